// Drives the streams of the verilated matrix unit (hdl/mxu/mxu.py) through a list of tile products.
#include "model.hpp"

#include <cstdint>
#include <cstring>

namespace {

// Mirrors `_Job` in sim/models/mxu.py.
struct Job {
    const uint32_t* weights;      // tiles of lanes x lanes binary32 words
    const uint32_t* activations;  // tiles of rows x lanes binary32 words
    uint32_t* results;            // steps * rows rows of lanes words
    const uint32_t* weight_tile;  // for each step, which tile of weights
    const uint32_t* activation_tile;
    uint64_t steps;
    uint64_t rows;
    uint64_t lanes;
    uint64_t transpose;
    uint64_t weight_rows;      // rows accepted so far
    uint64_t activation_rows;  // likewise
    uint64_t result_rows;      // rows received so far
};

// Sets a stream's payload: a row of words, and above them a flag.
template <typename Payload>
void set_row(Payload& payload, const uint32_t* row, uint32_t lanes, uint32_t flag) {
    std::memcpy(&payload, row, lanes * sizeof(uint32_t));
    std::memcpy(reinterpret_cast<char*>(&payload) + lanes * sizeof(uint32_t), &flag, sizeof flag);
}

}  // namespace

// Runs at most `cycles` cycles of `job`, fewer if it is complete earlier. The clock runs only
// within calls, so the result does not depend on how a job is cut into calls.
SYSTOLITH_EXPORT int systolith_mxu_run(systolith::Model* model, Job* job, uint64_t cycles) {
    return model->guard([&] {
        // Verilator writes "__" in the name of a port as "___05F".
        auto& w_valid = model->top.w___05Fvalid;
        auto& w_ready = model->top.w___05Fready;
        auto& w_payload = model->top.w___05Fpayload;
        auto& x_valid = model->top.x___05Fvalid;
        auto& x_ready = model->top.x___05Fready;
        auto& x_payload = model->top.x___05Fpayload;
        auto& y_valid = model->top.y___05Fvalid;
        auto& y_ready = model->top.y___05Fready;
        auto& y_payload = model->top.y___05Fpayload;

        const uint64_t lanes = job->lanes;
        const uint64_t all_weights = job->steps * lanes;
        const uint64_t all_rows = job->steps * job->rows;

        const auto offer_weights = [&] {
            w_valid = job->weight_rows < all_weights;
            if (!w_valid) return;
            const uint64_t step = job->weight_rows / lanes, row = job->weight_rows % lanes;
            set_row(w_payload, job->weights + (job->weight_tile[step] * lanes + row) * lanes,
                    lanes, job->transpose);
        };
        const auto offer_activations = [&] {
            x_valid = job->activation_rows < all_rows;
            if (!x_valid) return;
            const uint64_t step = job->activation_rows / job->rows;
            const uint64_t row = job->activation_rows % job->rows;
            set_row(x_payload,
                    job->activations + (job->activation_tile[step] * job->rows + row) * lanes,
                    lanes, row == 0);
        };

        offer_weights();
        offer_activations();
        y_ready = 1;
        for (; cycles && job->result_rows < all_rows; --cycles) {
            model->fall();
            const bool weights_taken = w_valid && w_ready;
            const bool activations_taken = x_valid && x_ready;
            if (y_valid) {
                std::memcpy(job->results + job->result_rows * lanes, &y_payload,
                            lanes * sizeof(uint32_t));
                ++job->result_rows;
            }
            model->rise();
            if (weights_taken) {
                ++job->weight_rows;
                offer_weights();
            }
            if (activations_taken) {
                ++job->activation_rows;
                offer_activations();
            }
        }
        w_valid = 0;
        x_valid = 0;
        model->settled = false;
    });
}
