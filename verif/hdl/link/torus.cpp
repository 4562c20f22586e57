// A torus of fabrics (hdl/link/fabric.py) joined by wires, with queues at their injectors and a log
// at their ejectors.
#include "model.hpp"
#include "wire.hpp"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using systolith::LINKS;
using systolith::Model;
using systolith::Wire;

constexpr uint32_t CHANNELS = 2;

uint32_t find(const std::string& name) {
    for (uint32_t index = 0; index < systolith::PORT_COUNT; ++index)
        if (name == systolith::PORTS[index].name) return index;
    throw std::runtime_error("no port " + name);
}

// Numbers of a port's signals.
struct Signals {
    uint32_t rx_valid, rx_frame, tx_valid, tx_frame;
    uint32_t inject_valid, inject_payload, inject_ready;
    uint32_t eject_valid, eject_payload, eject_ready;
};

struct Record {
    uint32_t node, port;
    uint64_t cycle;
};

// Mirrors `_Traffic` in torus.py.
struct Traffic {
    const uint32_t* flits;     // of all injectors, `words` words each
    const uint64_t* begin;     // first flit of each injector; one more entry than injectors
    uint64_t* next;            // next flit of each injector
    uint32_t* ejected;         // `words` words of each flit
    Record* records;           // of each flit that was ejected
    uint64_t capacity;         // of `ejected` and `records`
    uint64_t count;            // flits ejected so far
    uint64_t words;            // of a flit
    uint32_t offer, accept;    // probability of an offer, and of readiness, of 65536
    uint64_t closed;           // first cycle in which ejectors may be ready
};

struct Torus {
    std::vector<Model*> nodes;
    uint32_t columns, rows;
    std::vector<Wire> wires;  // leaving each node by each port
    std::vector<Signals> signals;
    std::vector<uint8_t> offered;
    std::vector<uint64_t> flits;  // sent on each channel of each wire, repetitions included
    uint32_t carries_bit, channel_bit;
    systolith::Random random;
    uint64_t cycle = 0;
    std::string error;

    Torus(Model* const* models, uint32_t columns, uint32_t rows, const uint32_t* latencies,
          uint64_t seed, uint32_t carries_bit, uint32_t channel_bit)
        : nodes(models, models + columns * rows), columns(columns), rows(rows),
          carries_bit(carries_bit), channel_bit(channel_bit), random(seed) {
        for (uint32_t port = 0; port < LINKS; ++port) {
            const std::string n = std::to_string(port);
            signals.push_back({find("rx_valid__" + n), find("rx_frame__" + n),
                               find("tx_valid__" + n), find("tx_frame__" + n),
                               find("inject__" + n + "__valid"), find("inject__" + n + "__payload"),
                               find("inject__" + n + "__ready"), find("eject__" + n + "__valid"),
                               find("eject__" + n + "__payload"), find("eject__" + n + "__ready")});
        }
        const uint32_t bits = systolith::PORTS[signals[0].rx_frame].bits;
        for (size_t wire = 0; wire < nodes.size() * LINKS; ++wire)
            wires.emplace_back(bits, latencies[wire], seed * 7919 + wire);
        offered.resize(wires.size());
        flits.resize(wires.size() * CHANNELS);
    }

    static CData& bit(Model* model, uint32_t index) {
        return *static_cast<CData*>(model->data[index]);
    }

    static bool frame_bit(const void* frame, uint32_t number) {
        return static_cast<const uint32_t*>(frame)[number / 32] >> number % 32 & 1;
    }

    void drive(uint32_t node, Traffic& traffic) {
        Model* const model = nodes[node];
        for (uint32_t port = 0; port < LINKS; ++port) {
            const Signals& s = signals[port];
            const uint32_t injector = node * LINKS + port;
            const uint32_t* const frame =
                wires[systolith::arriving_wire(node, port, columns, rows)].arriving(cycle);
            bit(model, s.rx_valid) = frame != nullptr;
            if (frame)
                std::memcpy(model->data[s.rx_frame], frame, systolith::PORTS[s.rx_frame].bytes);
            const uint64_t next = traffic.next[injector];
            // A flit on offer stays on offer.
            if (!offered[injector] && next < traffic.begin[injector + 1]
                && random.chance(traffic.offer)) {
                offered[injector] = 1;
                std::memcpy(model->data[s.inject_payload], traffic.flits + next * traffic.words,
                            systolith::PORTS[s.inject_payload].bytes);
            }
            bit(model, s.inject_valid) = offered[injector];
            bit(model, s.eject_ready) = random.chance(traffic.accept) && cycle >= traffic.closed;
        }
    }

    void sample(uint32_t node, Traffic& traffic) {
        Model* const model = nodes[node];
        for (uint32_t port = 0; port < LINKS; ++port) {
            const Signals& s = signals[port];
            const uint32_t injector = node * LINKS + port;
            if (offered[injector] && bit(model, s.inject_ready)) {
                offered[injector] = 0;
                ++traffic.next[injector];
            }
            if (bit(model, s.eject_valid) && bit(model, s.eject_ready)) {
                if (traffic.count == traffic.capacity)
                    throw std::runtime_error("more flits were ejected than injected");
                std::memcpy(traffic.ejected + traffic.count * traffic.words,
                            model->data[s.eject_payload], systolith::PORTS[s.eject_payload].bytes);
                traffic.records[traffic.count++] = {node, port, cycle};
            }
        }
    }

    // All wires are read before any of them is written: all chips see the same cycle.
    void step(Traffic& traffic) {
        const uint32_t count = static_cast<uint32_t>(nodes.size());
        for (uint32_t node = 0; node < count; ++node) drive(node, traffic);
        for (uint32_t node = 0; node < count; ++node) {
            Model* const model = nodes[node];
            model->context.enter();
            model->fall();
            sample(node, traffic);
            for (uint32_t port = 0; port < LINKS; ++port) {
                const uint32_t wire = node * LINKS + port;
                const void* const frame = bit(model, signals[port].tx_valid)
                                              ? model->data[signals[port].tx_frame] : nullptr;
                if (frame && frame_bit(frame, carries_bit))
                    ++flits[wire * CHANNELS + frame_bit(frame, channel_bit)];
                wires[wire].send(frame, cycle);
            }
            model->rise();
        }
        ++cycle;
    }
};

}  // namespace

SYSTOLITH_EXPORT Torus* systolith_torus_create(Model* const* models, uint32_t columns,
                                               uint32_t rows, const uint32_t* latencies,
                                               uint64_t seed, uint32_t carries_bit,
                                               uint32_t channel_bit) {
    return new Torus(models, columns, rows, latencies, seed, carries_bit, channel_bit);
}

SYSTOLITH_EXPORT void systolith_torus_destroy(Torus* torus) { delete torus; }

SYSTOLITH_EXPORT void systolith_torus_faults(Torus* torus, uint32_t wire,
                                             const systolith::WireFaults* faults) {
    torus->wires[wire].faults = *faults;
}

// Frames sent on each wire, and flits sent on each channel of each wire.
SYSTOLITH_EXPORT void systolith_torus_sent(const Torus* torus, uint64_t* frames,
                                           uint64_t* flits) {
    for (size_t wire = 0; wire < torus->wires.size(); ++wire) frames[wire] = torus->wires[wire].sent;
    std::memcpy(flits, torus->flits.data(), torus->flits.size() * sizeof(uint64_t));
}

// Runs at most `cycles` cycles, fewer if `target` flits have been ejected. Returns null, or a
// message of the error that ended it.
SYSTOLITH_EXPORT const char* systolith_torus_run(Torus* torus, Traffic* traffic, uint64_t cycles,
                                                 uint64_t target) {
    try {
        while (cycles-- && traffic->count < target) torus->step(*traffic);
    } catch (const std::exception& thrown) {
        torus->error = thrown.what();
        return torus->error.c_str();
    }
    return nullptr;
}
