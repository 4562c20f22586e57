// Chips on a torus: equal chips, joined by wires, which run in lockstep.
#pragma once

#include "hbm.hpp"
#include "wire.hpp"

#include <cstdint>
#include <vector>

namespace systolith {

// The pins of a chip's link.
struct LinkPins {
    Pin rx_valid, rx_frame, tx_valid, tx_frame;
};

// `Chip` has members `links`, an array of LinkPins; `join`; `begin` and `end`, the two halves of a
// cycle; and `rests`.
template <typename Chip>
class Torus {
public:
    Torus(Chip* const* chips, uint32_t columns, uint32_t rows, uint32_t bits,
          const uint32_t* latencies, uint64_t seed)
        : chips_(chips, chips + columns * rows), columns_(columns), rows_(rows) {
        for (size_t wire = 0; wire < chips_.size() * LINKS; ++wire)
            wires_.emplace_back(bits, latencies[wire], seed * 7919 + wire);
        for (Chip* chip : chips_) chip->join(this);
    }

    ~Torus() {
        for (Chip* chip : chips_) chip->join(nullptr);
    }

    // Runs a cycle of all chips: all wires are read before any of them is written. `look` is called
    // when the outputs have settled.
    template <typename Look>
    void step(Look look) {
        const uint32_t count = static_cast<uint32_t>(chips_.size());
        for (uint32_t chip = 0; chip < count; ++chip) {
            for (uint32_t link = 0; link < LINKS; ++link) {
                const LinkPins& pins = chips_[chip]->links[link];
                const uint32_t* const frame = arriving(chip, link).arriving();
                pins.rx_valid.set(frame != nullptr);
                if (frame) std::memcpy(pins.rx_frame.data(), frame, pins.rx_frame.bytes());
            }
            chips_[chip]->begin();
        }
        look();
        for (uint32_t chip = 0; chip < count; ++chip) {
            for (uint32_t link = 0; link < LINKS; ++link) {
                const LinkPins& pins = chips_[chip]->links[link];
                wires_[chip * LINKS + link].send(
                    pins.tx_valid.get() ? pins.tx_frame.data() : nullptr, cycle_);
            }
            chips_[chip]->end();
        }
        ++cycle_;
    }

    template <typename Run>
    bool rests(const Run& run) const {
        for (const Chip* chip : chips_)
            if (!chip->rests(run)) return false;
        return true;
    }

    // The wire that leaves a chip by a link.
    Wire& wire(size_t number) { return wires_[number]; }
    size_t wires() const { return wires_.size(); }

private:
    const Wire& arriving(uint32_t chip, uint32_t link) const {
        return wires_[arriving_wire(chip, link, columns_, rows_)];
    }

    std::vector<Chip*> chips_;
    uint32_t columns_, rows_;
    std::vector<Wire> wires_;
    uint64_t cycle_ = 0;
};

}  // namespace systolith
