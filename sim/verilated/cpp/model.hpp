// A verilated model, for C++ that is linked into its library.
#pragma once

#include "export.hpp"
#include "pool.hpp"

#include "Vmodel.h"
#include "verilated.h"
#if VM_TRACE
#include "verilated_vcd_c.h"
#endif

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

namespace systolith {

struct Port {
    const char* name;
    uint32_t bits;
    uint32_t is_input;
    uint32_t bytes;  // of Verilator's storage, at most 4 * ceil(bits / 32)
};

// `ports.inc` is generated from the header of the verilated class: one
// PORT(name, member, bits, is_input) per port.
inline constexpr Port PORTS[] = {
#define PORT(name, member, bits, is_input) {name, bits, is_input, sizeof(Vmodel::member)},
#include "ports.inc"
#undef PORT
};

inline constexpr uint32_t PORT_COUNT = sizeof(PORTS) / sizeof(PORTS[0]);

class Context : public VerilatedContext {
public:
    Context() {
        threads(SYSTOLITH_THREADS);
#if VM_TRACE
        traceEverOn(true);
#endif
    }

    // Separately verilated blocks, and kernels, get their context and pool from the thread.
    void enter() {
        Verilated::threadContextp(this);
        Pool::current() = &pool;
    }

    Pool pool;
};

class Model {
public:
    Model() {
        context.enter();
        for (uint32_t index = 0; index < PORT_COUNT; ++index) {
            if (PORTS[index].is_input) std::memset(data[index], 0, PORTS[index].bytes);
            if (!std::strcmp(PORTS[index].name, "clk")) clock = static_cast<CData*>(data[index]);
        }
    }

    ~Model() {
        guard([&] { top.final(); });
    }

    // Runs `action`. If it throws an exception, which must not leave through C, keeps the message
    // in `error`, completes a cycle that has begun, and returns -1.
    template <typename Action>
    int guard(Action action) {
        context.enter();
        try {
            try {
                action();
                return 0;
            } catch (const std::exception& thrown) {
                error = thrown.what();
                if (context.time() % 2) rise();
            }
        } catch (const std::exception&) {
            // The first error is the one to report.
        }
        return -1;
    }

    // Lets combinational logic follow the inputs.
    void settle() {
        if (!settled) top.eval();
        settled = true;
    }

    // Runs one clock cycle, which ends just after the rising edge.
    void tick() {
        fall();
        rise();
    }

    // The first half of a cycle. Afterwards outputs have settled for the cycle's inputs. No input
    // may change before the second half, because other threads may already use kernels' inputs.
    void fall() {
        *clock = 0;
        edge();
    }

    // The second half of a cycle, with the rising edge.
    void rise() {
        *clock = 1;
        edge();
        settled = true;
    }

    uint64_t cycle() const { return context.time() / 2; }

    Context context;
    Vmodel top{&context};
    // Verilator's storage of each port, in the order of PORTS.
    void* const data[PORT_COUNT] = {
#define PORT(name, member, bits, is_input) &top.member,
#include "ports.inc"
#undef PORT
    };
    bool settled = false;  // must be cleared when an input changes
    std::string error;
#if VM_TRACE
    std::unique_ptr<VerilatedVcdC> trace;
#endif

private:
    // Half a cycle is one unit of the simulation's time.
    void edge() {
        top.eval();
#if VM_TRACE
        if (trace) trace->dump(context.time());
#endif
        context.timeInc(1);
    }

    CData* clock = nullptr;
};

}  // namespace systolith
