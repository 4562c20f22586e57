// A wire between two chips: it delays frames, and can lose or damage them.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace systolith {

// A small generator of random numbers (xorshift64*), whose state is never zero.
class Random {
public:
    explicit Random(uint64_t seed) : state(seed * 2 + 1) {
        for (int warm = 0; warm < 8; ++warm) next();
    }

    uint64_t next() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545F4914F6CDD1DULL;
    }

    // True with probability `rate` / 65536.
    bool chance(uint32_t rate) { return (next() >> 48) < rate; }

    uint32_t below(uint32_t bound) { return static_cast<uint32_t>((next() >> 32) * bound >> 32); }

private:
    uint64_t state;
};

struct WireFaults {
    uint32_t lose = 0;      // probability to lose a frame, of 65536
    uint32_t damage = 0;    // probability to flip one to three bits of a frame, of 65536
    uint64_t dead_from = ~0ULL;  // from this cycle on, until `dead_until`, every frame is lost
    uint64_t dead_until = ~0ULL;
};

class Wire {
public:
    // A frame sent in cycle t arrives in cycle t + `latency`, which is at least 1. The two ends may
    // be up to `quantum` cycles apart.
    Wire(uint32_t bits, uint32_t latency, uint64_t seed, uint32_t quantum = 1)
        : bits(bits), words((bits + 31) / 32), quantum(quantum), slots(latency + quantum),
          random(seed) {
        for (Slot& slot : slots) slot.frame.resize(words);
    }

    // What arrives in a cycle; null if nothing.
    const uint32_t* arriving(uint64_t cycle) const {
        const Slot& slot = slots[(cycle + quantum) % slots.size()];
        return slot.valid ? slot.frame.data() : nullptr;
    }

    // Puts `frame` on the wire in a cycle, or nothing if it is null. Call it for every cycle.
    void send(const void* frame, uint64_t cycle) {
        Slot& slot = slots[cycle % slots.size()];
        slot.valid = false;
        if (frame) {
            ++sent;
            const bool dead = cycle >= faults.dead_from && cycle < faults.dead_until;
            if (!dead && !random.chance(faults.lose)) {
                slot.valid = true;
                std::memcpy(slot.frame.data(), frame, words * sizeof(uint32_t));
                if (random.chance(faults.damage)) flip(slot.frame);
            }
        }
    }

    // What `send` has put on the wire in a cycle, one of the last `quantum`; null if nothing.
    const uint32_t* leaving(uint64_t cycle) const {
        const Slot& slot = slots[cycle % slots.size()];
        return slot.valid ? slot.frame.data() : nullptr;
    }

    // Puts on the wire what another end of it has sent in a cycle; its faults have happened.
    void put(const uint32_t* frame, uint64_t cycle) {
        Slot& slot = slots[cycle % slots.size()];
        slot.valid = frame != nullptr;
        if (frame) std::memcpy(slot.frame.data(), frame, words * sizeof(uint32_t));
    }

    uint32_t size() const { return words; }

    WireFaults faults;
    uint64_t sent = 0;

private:
    struct Slot {
        bool valid = false;
        std::vector<uint32_t> frame;
    };

    void flip(std::vector<uint32_t>& frame) {
        for (uint32_t left = 1 + random.below(3); left; --left) {
            const uint32_t bit = random.below(bits);
            frame[bit / 32] ^= 1u << bit % 32;
        }
    }

    uint32_t bits, words, quantum;
    std::vector<Slot> slots;
    Random random;
};

// The links of a chip: X+, X-, Y+, Y-. Bit 0 of a link's number tells its sign.
constexpr uint32_t LINKS = 4;

// Number of the wire that arrives at a chip of a torus by a link. It leaves the neighbour on that
// side by the opposite link. Wires are numbered by the chip and the link that they leave, and chips
// along X first.
inline size_t arriving_wire(uint32_t chip, uint32_t link, uint32_t columns, uint32_t rows) {
    uint32_t x = chip % columns, y = chip / columns;
    if (link == 0) x = (x + 1) % columns;
    if (link == 1) x = (x + columns - 1) % columns;
    if (link == 2) y = (y + 1) % rows;
    if (link == 3) y = (y + rows - 1) % rows;
    return (y * columns + x) * LINKS + (link ^ 1);
}

}  // namespace systolith
