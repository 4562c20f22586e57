// The C interface of one verilated model. `ports.inc` is generated from the header of the
// verilated class: one PORT(name, member, bits, is_input) per port.
#include "model.hpp"

#include "Vmodel.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

struct Port {
    const char* name;
    uint32_t bits;
    uint32_t is_input;
    uint32_t bytes;  // of Verilator's storage, at most 4 * ceil(bits / 32)
};

const Port PORTS[] = {
#define PORT(name, member, bits, is_input) {name, bits, is_input, sizeof(Vmodel::member)},
#include "ports.inc"
#undef PORT
};

constexpr uint32_t PORT_COUNT = sizeof(PORTS) / sizeof(PORTS[0]);

struct Model {
    VerilatedContext context;
    Vmodel top{&context};
    void* data[PORT_COUNT] = {
#define PORT(name, member, bits, is_input) &top.member,
#include "ports.inc"
#undef PORT
    };
    CData* clock = nullptr;
    uint64_t cycle = 0;
    bool settled = false;
    std::string error;
#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> trace;
#endif

    Model() {
        for (uint32_t index = 0; index < PORT_COUNT; ++index) {
            if (PORTS[index].is_input) std::memset(data[index], 0, PORTS[index].bytes);
            if (!std::strcmp(PORTS[index].name, "clk")) clock = static_cast<CData*>(data[index]);
        }
    }

    void dump(uint64_t half) {
#if VM_TRACE
        if (trace) trace->dump(2 * cycle + half);
#else
        (void)half;
#endif
    }

    void settle() {
        if (!settled) top.eval();
        settled = true;
    }

    void tick() {
        *clock = 0;
        top.eval();
        dump(0);
        *clock = 1;
        top.eval();
        dump(1);
        settled = true;
        ++cycle;
    }
};

// Runs `action`; an error inside the model is kept for `systolith_error` and turned into -1.
template <typename Action>
int guarded(Model* model, Action action) {
    try {
        action();
        return 0;
    } catch (const std::exception& error) {
        model->error = error.what();
        return -1;
    }
}

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

SYSTOLITH_EXPORT void systolith_destroy(Model* model) {
#if VM_TRACE
    if (model->trace) model->trace->close();
#endif
    model->top.final();
    delete model;
}

SYSTOLITH_EXPORT const char* systolith_error(Model* model) { return model->error.c_str(); }

SYSTOLITH_EXPORT uint64_t systolith_cycle(Model* model) { return model->cycle; }

SYSTOLITH_EXPORT int systolith_finished(Model* model) { return model->context.gotFinish(); }

SYSTOLITH_EXPORT void systolith_poke(Model* model, uint32_t port, const uint32_t* words) {
    std::memcpy(model->data[port], words, PORTS[port].bytes);
    model->settled = false;
}

// `words` must be zero: a port of up to 16 bits fills its first bytes only.
SYSTOLITH_EXPORT int systolith_peek(Model* model, uint32_t port, uint32_t* words) {
    return guarded(model, [&] {
        model->settle();
        std::memcpy(words, model->data[port], PORTS[port].bytes);
    });
}

// Runs `cycles` cycles. Before the rising edge of cycle t, input i takes row t of `sources[i]`;
// after it, output i goes to row t of `sinks[i]`. A row is ceil(bits / 32) words; the rows of the
// sinks must be zero.
SYSTOLITH_EXPORT int systolith_run(Model* model, uint64_t cycles, uint32_t input_count,
                                   const uint32_t* inputs, const uint32_t* const* sources,
                                   uint32_t output_count, const uint32_t* outputs,
                                   uint32_t* const* sinks) {
    return guarded(model, [&] {
        for (uint64_t t = 0; t < cycles; ++t) {
            for (uint32_t index = 0; index < input_count; ++index) {
                const Port& port = PORTS[inputs[index]];
                const size_t words = (port.bits + 31) / 32;
                std::memcpy(model->data[inputs[index]], sources[index] + t * words, port.bytes);
            }
            model->tick();
            for (uint32_t index = 0; index < output_count; ++index) {
                const Port& port = PORTS[outputs[index]];
                const size_t words = (port.bits + 31) / 32;
                std::memcpy(sinks[index] + t * words, model->data[outputs[index]], port.bytes);
            }
            if (model->context.gotFinish()) break;
        }
    });
}

// Writes waveforms to `path` from now on, or stops writing if it is null. -1: built without.
SYSTOLITH_EXPORT int systolith_trace(Model* model, const char* path) {
#if VM_TRACE
    return guarded(model, [&] {
        if (model->trace) model->trace->close();
        model->trace.reset();
        if (!path) return;
        model->context.traceEverOn(true);
        auto trace = std::make_unique<VerilatedVcdC>();
        model->top.trace(trace.get(), 99);
        trace->open(path);
        if (!trace->isOpen()) throw std::runtime_error("cannot write the trace");
        model->trace = std::move(trace);
    });
#else
    (void)path;
    model->error = "the model was built without trace=True";
    return -1;
#endif
}
