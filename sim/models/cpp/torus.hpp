// Chips on a torus: equal chips, joined by wires.
#pragma once

#include "hbm.hpp"
#include "wire.hpp"

#include <csignal>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

namespace systolith {

// The pins of a chip's link.
struct LinkPins {
    Pin rx_valid, rx_frame, tx_valid, tx_frame;
};

// Where a frame has the bit that tells whether it carries a flit, and the number of that flit.
struct FrameBits {
    uint32_t size, carries, sequence, sequence_bits;
};

// What a chip has done on a link; mirrors `LINK_COUNTERS` in sim/models/chip/torus.py.
struct LinkCounters {
    uint64_t frames = 0;   // sent
    uint64_t flits = 0;    // sent for the first time
    uint64_t repeats = 0;  // flits sent again
    uint64_t stalls = 0;   // cycles in which a flit waits because the other end has no room
};

// Threads that do the same work together.
class Team {
public:
    explicit Team(uint32_t threads) {
        // Signals are for the application's own threads.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (uint32_t thread = 1; thread < threads; ++thread)
            threads_.emplace_back([this] { follow(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    ~Team() {
        {
            const std::lock_guard lock(mutex_);
            ended_ = true;
            ++turn_;
        }
        begin_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    // Calls `work(context)` on each thread, and waits for all. `work` throws no exception.
    void run(void (*work)(void*), void* context) {
        {
            const std::lock_guard lock(mutex_);
            work_ = work;
            context_ = context;
            left_ = threads_.size();
            ++turn_;
        }
        if (!threads_.empty()) begin_.notify_all();
        work(context);
        std::unique_lock lock(mutex_);
        end_.wait(lock, [this] { return left_ == 0; });
    }

private:
    void follow() {
        uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        while (true) {
            begin_.wait(lock, [&] { return turn_ != seen; });
            seen = turn_;
            if (ended_) return;
            lock.unlock();
            work_(context_);
            lock.lock();
            if (--left_ == 0) end_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable begin_, end_;
    uint64_t turn_ = 0;
    size_t left_ = 0;
    bool ended_ = false;
    void (*work_)(void*) = nullptr;
    void* context_ = nullptr;
    std::vector<std::thread> threads_;
};

// `Chip` has members `links`, an array of LinkPins; `stalled`, a pin with a bit for each; `join`;
// `begin` and `end`, the two halves of a cycle; `rests`; `begin_access`, `accessing` and
// `accessed`; and `guard` and `error`, which are those of its model.
//
// A process may simulate a part of the chips, with adjacent numbers. Then `take` and `put` carry
// frames between the parts, at least every `quantum` cycles.
template <typename Chip>
class Torus {
public:
    static constexpr uint32_t MAX_QUANTUM = 64;

    // At most `quantum` cycles of a chip run before those of another one, on `threads` threads. If
    // that is no more than the latency of any wire, the result is the same as cycle by cycle: what
    // a chip sends in these cycles arrives after them.
    Torus(const std::vector<Chip*>& chips, uint32_t first, uint32_t columns, uint32_t rows,
          const FrameBits& bits, const uint32_t* latencies, uint64_t seed, uint32_t quantum,
          uint32_t threads)
        : chips_(chips), first_(first), columns_(columns), rows_(rows), bits_(bits),
          quantum_(std::min(quantum, MAX_QUANTUM)), still_(chips_.size()), busy_(chips_.size()),
          counters_(columns * rows * LINKS), numbers_(columns * rows * LINKS),
          team_(std::min<uint32_t>(threads, static_cast<uint32_t>(chips_.size()))) {
        for (uint32_t wire = 0; wire < columns * rows * LINKS; ++wire)
            wires_.emplace_back(bits.size, latencies[wire], seed * 7919 + wire, quantum_);
        for (Chip* chip : chips_) chip->join(this);
    }

    ~Torus() {
        for (Chip* chip : chips_) chip->join(nullptr);
    }

    // Runs a cycle of all chips.
    void step() {
        const uint32_t count = static_cast<uint32_t>(chips_.size());
        for (uint32_t chip = 0; chip < count; ++chip) begin(chip, cycle_);
        for (uint32_t chip = 0; chip < count; ++chip) end(chip, cycle_);
        ++cycle_;
    }

    // Runs `cycles` cycles of all chips.
    void advance(uint64_t cycles) {
        struct Work {
            Torus* torus;
            uint32_t cycles;
            std::atomic<size_t> next{0};  // the chip that the next free thread takes
        };
        while (cycles) {
            Work work{this, static_cast<uint32_t>(std::min<uint64_t>(cycles, quantum_))};
            team_.run([](void* context) {
                Work& work = *static_cast<Work*>(context);
                Torus& torus = *work.torus;
                for (size_t chip; (chip = work.next++) < torus.chips_.size();)
                    torus.advance_chip(static_cast<uint32_t>(chip), work.cycles);
            }, &work);
            for (const Chip* chip : chips_)
                if (!chip->error().empty()) throw std::runtime_error(chip->error());
            cycle_ += work.cycles;
            cycles -= work.cycles;
        }
    }

    // Number of cycles, the last ones, in which all chips rested.
    uint32_t still() const { return *std::min_element(still_.begin(), still_.end()); }

    // Begins the next access of each chip that has one, after taking the outcome of the last one.
    // Returns whether there is none; a chip has none after one that was refused.
    template <typename Access>
    bool access(Access* const* lists, const uint64_t* counts, uint64_t* made) {
        bool done = true;
        for (size_t chip = 0; chip < chips_.size(); ++chip) {
            if (busy_[chip] && !chips_[chip]->accessing()) {
                busy_[chip] = false;
                lists[chip][made[chip]++] = chips_[chip]->accessed();
            }
            const bool refused = made[chip] && lists[chip][made[chip] - 1].response;
            if (!busy_[chip] && made[chip] < counts[chip] && !refused) {
                chips_[chip]->begin_access(lists[chip][made[chip]]);
                busy_[chip] = true;
            }
            done &= !busy_[chip];
        }
        return done;
    }

    // See `systolith_torus_take` and `systolith_torus_put` in chip.cpp.
    uint64_t take(const uint32_t* wires, uint64_t count, uint32_t cycles, uint32_t* words) const {
        uint32_t* const begin = words;
        for (uint64_t number = 0; number < count; ++number) {
            const Wire& wire = wires_.at(wires[number]);
            for (uint32_t cycle = 0; cycle < cycles; ++cycle) {
                const uint32_t* const frame = wire.leaving(cycle_ - cycles + cycle);
                if (!frame) continue;
                *words++ = static_cast<uint32_t>(number);
                *words++ = cycle;
                words = std::copy_n(frame, wire.size(), words);
            }
        }
        return static_cast<uint64_t>(words - begin);
    }

    void put(const uint32_t* wires, uint64_t count, uint32_t cycles, const uint32_t* words,
             uint64_t length) {
        for (uint64_t number = 0; number < count; ++number)
            for (uint32_t cycle = 0; cycle < cycles; ++cycle)
                wires_.at(wires[number]).put(nullptr, cycle_ - cycles + cycle);
        for (const uint32_t* const end = words + length; words != end;) {
            Wire& wire = wires_.at(wires[words[0]]);
            wire.put(words + 2, cycle_ - cycles + words[1]);
            words += 2 + wire.size();
        }
    }

    // The wire that leaves a chip by a link.
    Wire& wire(size_t number) { return wires_[number]; }
    // What chips of this process have done on each wire.
    const std::vector<LinkCounters>& counters() const { return counters_; }

private:
    void begin(uint32_t chip, uint64_t cycle) {
        for (uint32_t link = 0; link < LINKS; ++link) {
            const LinkPins& pins = chips_[chip]->links[link];
            const uint32_t* const frame =
                wires_[arriving_wire(first_ + chip, link, columns_, rows_)].arriving(cycle);
            pins.rx_valid.set(frame != nullptr);
            if (frame) std::memcpy(pins.rx_frame.data(), frame, pins.rx_frame.bytes());
        }
        chips_[chip]->begin();
    }

    void end(uint32_t chip, uint64_t cycle) {
        for (uint32_t link = 0; link < LINKS; ++link) {
            const LinkPins& pins = chips_[chip]->links[link];
            const size_t wire = (first_ + chip) * LINKS + link;
            const uint8_t* const frame = pins.tx_valid.get() ? pins.tx_frame.data() : nullptr;
            wires_[wire].send(frame, cycle);
            if (frame) count(wire, frame);
            counters_[wire].stalls += chips_[chip]->stalled.get() >> link & 1;
        }
        chips_[chip]->end();
        still_[chip] = chips_[chip]->rests() ? std::min(still_[chip] + 1, MOST_STILL) : 0;
    }

    void count(size_t wire, const uint8_t* frame) {
        LinkCounters& counters = counters_[wire];
        ++counters.frames;
        if (!field(frame, bits_.carries, 1)) return;
        // New flits have successive numbers.
        if (field(frame, bits_.sequence, bits_.sequence_bits) == numbers_[wire]) {
            ++counters.flits;
            numbers_[wire] = (numbers_[wire] + 1) & ((1u << bits_.sequence_bits) - 1);
        } else {
            ++counters.repeats;
        }
    }

    static uint32_t field(const uint8_t* frame, uint32_t low, uint32_t width) {
        uint32_t value = 0;
        for (uint32_t bit = 0; bit < width; ++bit)
            value |= uint32_t(frame[(low + bit) / 8] >> (low + bit) % 8 & 1) << bit;
        return value;
    }

    void advance_chip(uint32_t chip, uint32_t cycles) {
        chips_[chip]->guard([&] {
            for (uint32_t number = 0; number < cycles; ++number) {
                begin(chip, cycle_ + number);
                end(chip, cycle_ + number);
            }
        });
    }

    static constexpr uint32_t MOST_STILL = 1u << 31;

    std::vector<Chip*> chips_;
    uint32_t first_, columns_, rows_;
    FrameBits bits_;
    uint32_t quantum_;
    std::vector<uint32_t> still_;  // cycles in a row, up to now, in which a chip rested
    std::vector<uint8_t> busy_;  // whether a chip makes an access of `access`
    std::vector<LinkCounters> counters_;  // by wire
    std::vector<uint32_t> numbers_;       // of the next new flit on each wire
    std::vector<Wire> wires_;
    uint64_t cycle_ = 0;
    Team team_;
};

}  // namespace systolith
