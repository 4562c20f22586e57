// A verilated model as C++ that is linked into its library sees it.
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

    // Blocks that Verilator compiled on their own, and kernels, take theirs from the thread.
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

    // Runs `action`. An error in it is kept in `error` and turned into the result -1, because no
    // exception may leave through C. A cycle that it has begun is ended.
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
            // The first error is the one to tell.
        }
        return -1;
    }

    // Lets combinational logic follow the inputs.
    void settle() {
        if (!settled) top.eval();
        settled = true;
    }

    // One cycle of the clock: ends just after the rising edge.
    void tick() {
        fall();
        rise();
    }

    // The first half of a cycle: afterwards outputs show what the cycle's inputs give. No input may
    // change before the second half: other threads may work with what it makes already.
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
    bool settled = false;  // to be cleared when an input is changed
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
