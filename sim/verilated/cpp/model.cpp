// The C interface of one verilated model.
#include "model.hpp"

#include <stdexcept>

using systolith::Model;
using systolith::Port;
using systolith::PORT_COUNT;
using systolith::PORTS;

namespace {

size_t words(const Port& port) { return (port.bits + 31) / 32; }

}  // namespace

// Verilator's own vl_fatal ends the process.
void vl_fatal(const char* filename, int linenum, const char*, const char* message) {
    Verilated::threadContextp()->gotError(true);
    Verilated::threadContextp()->gotFinish(true);
    throw std::runtime_error(std::string(filename) + ":" + std::to_string(linenum) + ": "
                             + message);
}

SYSTOLITH_EXPORT uint32_t systolith_port_count() { return PORT_COUNT; }

SYSTOLITH_EXPORT const Port* systolith_ports() { return PORTS; }

SYSTOLITH_EXPORT Model* systolith_create() { return new Model; }

SYSTOLITH_EXPORT void systolith_destroy(Model* model) { delete model; }

SYSTOLITH_EXPORT const char* systolith_error(Model* model) { return model->error.c_str(); }

SYSTOLITH_EXPORT uint64_t systolith_cycle(Model* model) { return model->cycle(); }

SYSTOLITH_EXPORT int systolith_finished(Model* model) { return model->context.gotFinish(); }

SYSTOLITH_EXPORT void systolith_poke(Model* model, uint32_t port, const uint32_t* value) {
    std::memcpy(model->data[port], value, PORTS[port].bytes);
    model->settled = false;
}

// `*value` must be zero, because a port of up to 16 bits fills only its first bytes.
SYSTOLITH_EXPORT int systolith_peek(Model* model, uint32_t port, uint32_t* value) {
    return model->guard([&] {
        model->settle();
        std::memcpy(value, model->data[port], PORTS[port].bytes);
    });
}

// Runs `cycles` cycles, fewer if the design finishes. Before the rising edge of cycle t, input i
// takes row t of `sources[i]`; after it, output i goes to row t of `sinks[i]`. A row is
// ceil(bits / 32) words; the sinks must be zero.
SYSTOLITH_EXPORT int systolith_run(Model* model, uint64_t cycles, uint32_t input_count,
                                   const uint32_t* inputs, const uint32_t* const* sources,
                                   uint32_t output_count, const uint32_t* outputs,
                                   uint32_t* const* sinks) {
    return model->guard([&] {
        for (uint64_t t = 0; t < cycles && !model->context.gotFinish(); ++t) {
            for (uint32_t index = 0; index < input_count; ++index) {
                const Port& port = PORTS[inputs[index]];
                std::memcpy(model->data[inputs[index]], sources[index] + t * words(port),
                            port.bytes);
            }
            model->tick();
            for (uint32_t index = 0; index < output_count; ++index) {
                const Port& port = PORTS[outputs[index]];
                std::memcpy(sinks[index] + t * words(port), model->data[outputs[index]],
                            port.bytes);
            }
        }
    });
}

// Sets the number of threads for parallel kernels. Other threads are used in cycles in which they
// can take over work of about `least` nanoseconds.
SYSTOLITH_EXPORT void systolith_use_threads(Model* model, uint32_t threads, uint64_t least) {
    model->context.pool.use(threads, least);
}

// Returns in how many cycles there was work for several threads, and how many kernel steps threads
// did other than the one that runs the model.
SYSTOLITH_EXPORT void systolith_shared_work(Model* model, uint64_t* often, uint64_t* steps) {
    *often = model->context.pool.openings();
    *steps = model->context.pool.handed();
}

// Starts to write waveforms to `path`, or stops if it is null.
SYSTOLITH_EXPORT int systolith_trace(Model* model, const char* path) {
    return model->guard([&] {
#if VM_TRACE
        model->trace.reset();
        if (!path) return;
        auto trace = std::make_unique<VerilatedVcdC>();
        model->top.trace(trace.get(), 99);
        trace->open(path);
        if (!trace->isOpen()) throw std::runtime_error(std::string("cannot write ") + path);
        model->trace = std::move(trace);
#else
        (void)path;
        throw std::runtime_error("cannot write waveforms: built without trace=True");
#endif
    });
}
