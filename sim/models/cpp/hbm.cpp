// The C interface of the memory model (hbm.hpp). A function that fails returns -1 and keeps the
// error's text for `systolith_hbm_error`.
#include "hbm.hpp"

#include "export.hpp"

#include <cstdint>
#include <exception>
#include <string>

using systolith::AxiPins;
using systolith::Hbm;
using systolith::HbmCounters;
using systolith::HbmOptions;
using systolith::Pin;
using systolith::ProtocolError;
using systolith::Response;

namespace {

thread_local std::string error;

template <typename Action>
int guard(Action action) {
    try {
        action();
        return 0;
    } catch (const std::exception& thrown) {
        error = thrown.what();
        return -1;
    }
}

// Mirrors `_Options` in sim/models/hbm.py.
struct Options {
    uint64_t latency, seed;
    uint32_t beats, cycles, outstanding, stalls;
};

// Variables for the pins of a port without a verilated model. Mirrors `AxiPins` in
// sim/models/hbm.py.
struct Variables {
    uint64_t awaddr, araddr;
    uint8_t awid, awlen, awsize, awburst, awvalid, awready;
    uint8_t wlast, wvalid, wready;
    uint8_t bid, bresp, bvalid, bready;
    uint8_t arid, arlen, arsize, arburst, arvalid, arready;
    uint8_t rid, rresp, rlast, rvalid, rready;
    uint8_t wstrb[16];
    uint8_t wdata[128], rdata[128];
};

}  // namespace

SYSTOLITH_EXPORT const char* systolith_hbm_error() { return error.c_str(); }

// Returns null on failure. `memory` may be null.
SYSTOLITH_EXPORT Hbm* systolith_hbm_create(uint32_t cores, uint32_t channels,
                                           uint32_t channel_bytes, uint64_t bytes,
                                           uint8_t* memory) {
    Hbm* hbm = nullptr;
    guard([&] { hbm = new Hbm(cores, channels, channel_bytes, bytes, memory); });
    return hbm;
}

SYSTOLITH_EXPORT void systolith_hbm_destroy(Hbm* hbm) { delete hbm; }

SYSTOLITH_EXPORT int systolith_hbm_configure(Hbm* hbm, const Options* options) {
    return guard([&] {
        hbm->configure({options->latency, options->beats, options->cycles, options->outstanding,
                        options->stalls, options->seed});
    });
}

SYSTOLITH_EXPORT int systolith_hbm_fail(Hbm* hbm, uint64_t address, uint64_t bytes,
                                        uint32_t response, uint32_t reads, uint32_t writes) {
    return guard([&] { hbm->fail(address, bytes, Response(response), reads, writes); });
}

SYSTOLITH_EXPORT void systolith_hbm_heal(Hbm* hbm) { hbm->heal(); }

SYSTOLITH_EXPORT uint8_t* systolith_hbm_memory(Hbm* hbm) { return hbm->memory(); }

SYSTOLITH_EXPORT void systolith_hbm_counters(Hbm* hbm, HbmCounters* counters) {
    *counters = hbm->counters();
}

SYSTOLITH_EXPORT uint32_t systolith_hbm_idle(Hbm* hbm) { return hbm->idle(); }

SYSTOLITH_EXPORT void systolith_hbm_reset(Hbm* hbm) { hbm->reset(); }

SYSTOLITH_EXPORT int systolith_hbm_bind(Hbm* hbm, uint32_t core, uint32_t channel,
                                        Variables* variables) {
    return guard([&] {
        Variables& v = *variables;
        hbm->bind(core, channel, {
            Pin(v.awid), Pin(v.awaddr), Pin(v.awlen), Pin(v.awsize), Pin(v.awburst),
            Pin(v.awvalid), Pin(v.awready), Pin(v.wdata), Pin(v.wstrb), Pin(v.wlast),
            Pin(v.wvalid), Pin(v.wready), Pin(v.bid), Pin(v.bresp), Pin(v.bvalid), Pin(v.bready),
            Pin(v.arid), Pin(v.araddr), Pin(v.arlen), Pin(v.arsize), Pin(v.arburst),
            Pin(v.arvalid), Pin(v.arready), Pin(v.rid), Pin(v.rdata), Pin(v.rresp), Pin(v.rlast),
            Pin(v.rvalid), Pin(v.rready)});
    });
}

SYSTOLITH_EXPORT int systolith_hbm_sample(Hbm* hbm) {
    return guard([&] { hbm->sample(); });
}

SYSTOLITH_EXPORT void systolith_hbm_drive(Hbm* hbm) { hbm->drive(); }

// Runs cycles in which only the memory changes pins. Measures the memory's speed.
SYSTOLITH_EXPORT int systolith_hbm_run(Hbm* hbm, uint64_t cycles) {
    return guard([&] {
        for (uint64_t cycle = 0; cycle < cycles; ++cycle) {
            hbm->sample();
            hbm->drive();
        }
    });
}
