// Drives the host's ports of the verilated core (hdl/core/core.py): runs it and moves data.
//
// Every function returns after a while and counts what it did, so that its caller can show progress
// and be interrupted. The clock runs only within calls.
#include "model.hpp"
#include "watch.hpp"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <tuple>

using systolith::Watch;

namespace {

constexpr uint64_t STANDSTILL = 1 << 16;  // a transfer ends after so many cycles without progress

// Raises an error when a transfer does not advance.
class Progress {
public:
    void step(bool moved) {
        still_ = moved ? 0 : still_ + 1;
        if (still_ > STANDSTILL) throw std::runtime_error("a transfer by the host does not move");
    }

private:
    uint64_t still_ = 0;
};

// Mirrors `_Rows` in sim/models/core/ports.py.
struct Rows {
    uint32_t* data;  // vectors x sublanes x lanes
    uint64_t space;
    uint64_t address;  // of the first vector
    uint64_t vectors;
    uint64_t done;  // vectors moved so far
    uint64_t lanes;
    uint64_t sublanes;
};

// Clears inputs at the end of a function, also after an error.
template <typename... Inputs>
class Offers {
public:
    Offers(systolith::Model* model, Inputs&... inputs) : model_(model), inputs_(inputs...) {}
    ~Offers() {
        std::apply([](auto&... input) { ((input = 0), ...); }, inputs_);
        model_->settled = false;
    }

private:
    systolith::Model* model_;
    std::tuple<Inputs&...> inputs_;
};

constexpr uint32_t SPACE_BITS = 2;
constexpr uint32_t ADDRESS_BITS = 16;

}  // namespace

// Runs at most `limit` cycles; fewer if the core has stopped and is at rest, or if only a signal
// could let it continue, which `*resting` tells. `*done` is the number of cycles.
SYSTOLITH_EXPORT int systolith_core_run(systolith::Model* model, uint64_t limit, uint64_t* done,
                                        uint32_t* resting) {
    return model->guard([&] {
        auto& top = model->top;
        Watch watch;
        *done = 0;
        *resting = 0;
        model->settle();
        while (*done < limit) {
            if (top.idle && (!top.running || top.waiting)) {
                *resting = 1;
                return;
            }
            if (watch.late()) return;
            model->tick();
            ++*done;
        }
        *resting = top.idle && (!top.running || top.waiting);
    });
}

// Makes requests (packed payloads of the sequencer's port) in order, and stores each response: the
// data, and above them the error bit.
SYSTOLITH_EXPORT int systolith_core_requests(systolith::Model* model, const uint64_t* requests,
                                             uint64_t* responses, uint64_t count,
                                             uint64_t* done) {
    return model->guard([&] {
        auto& top = model->top;
        Watch watch;
        Progress progress;
        Offers offers(model, top.request___05Fvalid);
        uint64_t asked = *done;
        while (*done < count) {
            const bool late = watch.late();
            if (late && asked == *done) break;
            top.request___05Fvalid = asked < count && !late;
            if (top.request___05Fvalid) top.request___05Fpayload = requests[asked];
            model->fall();
            const bool taken = top.request___05Fvalid && top.request___05Fready;
            const bool answered = top.response___05Fvalid;
            if (answered) {
                responses[*done] = uint64_t(top.response___05Fdata)
                                   | uint64_t(top.response___05Ferror) << 32;
                ++*done;
            }
            model->rise();
            asked += taken;
            progress.step(taken || answered);
        }
    });
}

// Reads vectors.
SYSTOLITH_EXPORT int systolith_core_read_rows(systolith::Model* model, Rows* rows) {
    return model->guard([&] {
        auto& top = model->top;
        Watch watch;
        Progress progress;
        Offers offers(model, top.host_read___05Fvalid, top.host_rows___05Fready);
        uint64_t asked = rows->done, row = 0;
        top.host_rows___05Fready = 1;
        while (rows->done < rows->vectors) {
            const bool late = watch.late();
            if (late && asked == rows->done) break;
            top.host_read___05Fvalid = asked < rows->vectors && !late;
            top.host_read___05Fpayload = rows->space | (rows->address + asked) << SPACE_BITS;
            model->fall();
            const bool taken = top.host_read___05Fvalid && top.host_read___05Fready;
            const bool came = top.host_rows___05Fvalid;
            if (came) {
                std::memcpy(rows->data + (rows->done * rows->sublanes + row) * rows->lanes,
                            &top.host_rows___05Fpayload, rows->lanes * sizeof(uint32_t));
                if (++row == rows->sublanes) {
                    row = 0;
                    ++rows->done;
                }
            }
            model->rise();
            asked += taken;
            progress.step(taken || came);
        }
    });
}

// Writes vectors to vector memory.
SYSTOLITH_EXPORT int systolith_core_write_rows(systolith::Model* model, Rows* rows) {
    return model->guard([&] {
        auto& top = model->top;
        Watch watch;
        Progress progress;
        Offers offers(model, top.host_write___05Fvalid);
        const uint32_t* data = rows->data + rows->done * rows->sublanes * rows->lanes;
        uint64_t row = 0;
        const auto offer = [&] {
            // The address is in the low bits, below the row.
            auto* payload = reinterpret_cast<char*>(&top.host_write___05Fpayload);
            uint64_t carried = rows->address + rows->done;
            for (uint64_t lane = 0; lane < rows->lanes; ++lane) {
                carried |= uint64_t(data[lane]) << ADDRESS_BITS;
                const uint32_t low = uint32_t(carried);
                std::memcpy(payload + lane * sizeof low, &low, sizeof low);
                carried >>= 32;
            }
            const uint32_t last = uint32_t(carried);
            std::memcpy(payload + rows->lanes * sizeof last, &last, sizeof last);
        };
        while (rows->done < rows->vectors) {
            if (watch.late() && row == 0) break;
            offer();
            top.host_write___05Fvalid = 1;
            model->fall();
            const bool taken = top.host_write___05Fready;
            model->rise();
            if (taken) {
                data += rows->lanes;
                if (++row == rows->sublanes) {
                    row = 0;
                    ++rows->done;
                }
            }
            progress.step(taken);
        }
        // The last vector is written when the core leaves its memory a free cycle.
        top.host_write___05Fvalid = 0;
        for (model->tick(); top.host_busy; model->tick()) progress.step(false);
    });
}
