// Chips on a torus: equal chips, joined by wires.
#pragma once

#include "hbm.hpp"
#include "wire.hpp"

#include <csignal>

#include <algorithm>
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

// Threads that do the same work together, each of them its part.
class Team {
public:
    explicit Team(uint32_t threads) {
        // Signals are for the application's own threads.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (uint32_t part = 1; part < threads; ++part)
            threads_.emplace_back([this, part] { follow(part); });
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

    uint32_t size() const { return static_cast<uint32_t>(threads_.size()) + 1; }

    // Calls `work(context, part)` once for each part from 0 to `size() - 1`, and waits for all.
    // `work` throws no exception.
    void run(void (*work)(void*, uint32_t), void* context) {
        {
            const std::lock_guard lock(mutex_);
            work_ = work;
            context_ = context;
            left_ = threads_.size();
            ++turn_;
        }
        if (!threads_.empty()) begin_.notify_all();
        work(context, 0);
        std::unique_lock lock(mutex_);
        end_.wait(lock, [this] { return left_ == 0; });
    }

private:
    void follow(uint32_t part) {
        uint64_t seen = 0;
        std::unique_lock lock(mutex_);
        while (true) {
            begin_.wait(lock, [&] { return turn_ != seen; });
            seen = turn_;
            if (ended_) return;
            lock.unlock();
            work_(context_, part);
            lock.lock();
            if (--left_ == 0) end_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable begin_, end_;
    uint64_t turn_ = 0;
    size_t left_ = 0;
    bool ended_ = false;
    void (*work_)(void*, uint32_t) = nullptr;
    void* context_ = nullptr;
    std::vector<std::thread> threads_;
};

// `Chip` has members `links`, an array of LinkPins; `join`; `begin` and `end`, the two halves of a
// cycle; `rests`; and `guard` and `error`, which are those of its model.
template <typename Chip>
class Torus {
public:
    static constexpr uint32_t MAX_QUANTUM = 64;  // a bit of a word for each cycle

    // At most `quantum` cycles of a chip run before those of another one, on `threads` threads. If
    // that is no more than the latency of any wire, the result is the same as cycle by cycle: what
    // a chip sends in these cycles arrives after them.
    Torus(Chip* const* chips, uint32_t columns, uint32_t rows, uint32_t bits,
          const uint32_t* latencies, uint64_t seed, uint32_t quantum, uint32_t threads)
        : chips_(chips, chips + columns * rows), columns_(columns), rows_(rows),
          quantum_(std::min(quantum, MAX_QUANTUM)), rested_(chips_.size()),
          team_(std::min<uint32_t>(threads, columns * rows)) {
        for (size_t wire = 0; wire < chips_.size() * LINKS; ++wire)
            wires_.emplace_back(bits, latencies[wire], seed * 7919 + wire, quantum_);
        for (Chip* chip : chips_) chip->join(this);
    }

    ~Torus() {
        for (Chip* chip : chips_) chip->join(nullptr);
    }

    // Runs a cycle of all chips. `look` is called when the outputs have settled.
    template <typename Look>
    void step(Look look) {
        const uint32_t count = static_cast<uint32_t>(chips_.size());
        for (uint32_t chip = 0; chip < count; ++chip) begin(chip, cycle_);
        look();
        for (uint32_t chip = 0; chip < count; ++chip) end(chip, cycle_);
        ++cycle_;
    }

    // Runs `cycles` cycles of all chips, of which there may be at most `quantum()`.
    template <typename Run>
    void advance(const Run& run, uint32_t cycles) {
        struct Work {
            Torus* torus;
            const Run* run;
            uint32_t cycles;
        } work{this, &run, cycles};
        team_.run([](void* context, uint32_t part) {
            const Work& work = *static_cast<const Work*>(context);
            Torus& torus = *work.torus;
            for (size_t chip = part; chip < torus.chips_.size(); chip += torus.team_.size())
                torus.advance_chip(static_cast<uint32_t>(chip), *work.run, work.cycles);
        }, &work);
        for (const Chip* chip : chips_)
            if (!chip->error().empty()) throw std::runtime_error(chip->error());
        cycle_ += cycles;
    }

    // Whether all chips rested after the cycle with this number of the last `advance`.
    bool rested(uint32_t number) const {
        return std::all_of(rested_.begin(), rested_.end(),
                           [=](uint64_t cycles) { return cycles >> number & 1; });
    }

    template <typename Run>
    bool rests(const Run& run) const {
        return std::all_of(chips_.begin(), chips_.end(),
                           [&](const Chip* chip) { return chip->rests(run); });
    }

    uint32_t quantum() const { return quantum_; }

    // The wire that leaves a chip by a link.
    Wire& wire(size_t number) { return wires_[number]; }
    size_t wires() const { return wires_.size(); }

private:
    void begin(uint32_t chip, uint64_t cycle) {
        for (uint32_t link = 0; link < LINKS; ++link) {
            const LinkPins& pins = chips_[chip]->links[link];
            const uint32_t* const frame =
                wires_[arriving_wire(chip, link, columns_, rows_)].arriving(cycle);
            pins.rx_valid.set(frame != nullptr);
            if (frame) std::memcpy(pins.rx_frame.data(), frame, pins.rx_frame.bytes());
        }
        chips_[chip]->begin();
    }

    void end(uint32_t chip, uint64_t cycle) {
        for (uint32_t link = 0; link < LINKS; ++link) {
            const LinkPins& pins = chips_[chip]->links[link];
            wires_[chip * LINKS + link].send(pins.tx_valid.get() ? pins.tx_frame.data() : nullptr,
                                             cycle);
        }
        chips_[chip]->end();
    }

    template <typename Run>
    void advance_chip(uint32_t chip, const Run& run, uint32_t cycles) {
        uint64_t rested = 0;
        chips_[chip]->guard([&] {
            for (uint32_t number = 0; number < cycles; ++number) {
                begin(chip, cycle_ + number);
                end(chip, cycle_ + number);
                rested |= uint64_t(chips_[chip]->rests(run)) << number;
            }
        });
        rested_[chip] = rested;
    }

    std::vector<Chip*> chips_;
    uint32_t columns_, rows_, quantum_;
    std::vector<uint64_t> rested_;
    std::vector<Wire> wires_;
    uint64_t cycle_ = 0;
    Team team_;
};

}  // namespace systolith
