// Drives the verilated chip (hdl/chip/chip.py): its memory in every cycle and, as its host, the
// control slave.
//
// Every function returns after a while and counts what it did, so that its caller can show progress
// and be interrupted. The clock runs only within calls.
#include "hbm.hpp"
#include "model.hpp"
#include "torus.hpp"
#include "watch.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using systolith::AxiPins;
using systolith::FrameBits;
using systolith::Hbm;
using systolith::LinkPins;
using systolith::Model;
using systolith::Pin;
using systolith::Port;
using systolith::PORT_COUNT;
using systolith::PORTS;
using systolith::Torus;
using systolith::Watch;

namespace {

constexpr uint64_t STANDSTILL = 1 << 16;  // an access ends after so many cycles without a response
// The chip is at rest after so many cycles in a row without activity: what one core or engine does
// to another core shows in the status of that core a few cycles later.
constexpr uint32_t STILL = 8;
// Mirrors `REST_CYCLES` in hdl/chip/chip.py: the links are at rest after so many cycles in a row
// without activity.
constexpr uint32_t LINKS_REST = 64;

// Mirrors `_ACCESS` in sim/models/chip/registers.py: an access of the host.
struct Access {
    uint32_t address;
    uint32_t data;
    uint32_t write;
    uint32_t response;
};

// Mirrors `Run` in sim/models/chip/simulation.py.
struct Run {
    uint64_t limit;  // maximum number of cycles
    uint64_t done;   // cycles run
    // Masks in STATUS.
    uint32_t running, waiting, idle, dma_busy, resetting;
    uint32_t until_rest, until_interrupt;  // events that end the run
    uint32_t watched;  // cores with a watchdog, which do not wait for ever
    uint32_t still;    // cycles in a row without activity
    uint32_t ended;
    uint32_t interrupt;  // on a torus: whether the interrupt line is set
};

// Verilator's variable of the port of that name, unbound if there is none.
Pin find_pin(Model& model, const std::string& name) {
    for (uint32_t index = 0; index < PORT_COUNT; ++index)
        if (name == PORTS[index].name) return Pin(model.data[index], PORTS[index].bytes);
    return {};
}

Pin pin(Model& model, const std::string& name) {
    const Pin found = find_pin(model, name);
    if (!found.bound()) throw std::invalid_argument("the chip must have a port " + name);
    return found;
}

// Records of what a core shows (sim/trace/probes.py), one for each cycle in which that changes: the
// number of the cycle in two words, and the words of the port.
class Records {
public:
    explicit Records(const Pin& pin) : pin_(pin), last_(pin.bytes() / sizeof(uint32_t)) {}

    void sample(uint64_t cycle) {
        if (begun_ && !std::memcmp(last_.data(), pin_.data(), pin_.bytes())) return;
        begun_ = true;
        std::memcpy(last_.data(), pin_.data(), pin_.bytes());
        words.push_back(uint32_t(cycle));
        words.push_back(uint32_t(cycle >> 32));
        words.insert(words.end(), last_.begin(), last_.end());
    }

    std::vector<uint32_t> words;

private:
    Pin pin_;
    std::vector<uint32_t> last_;
    bool begun_ = false;
};

#if VM_TRACE
// A waveform in which cycle n begins, with its rising edge, at time n microseconds.
class Waveform {
public:
    Waveform(Model& model, const char* path) {
        model.top.trace(&file_, LEVELS);
        file_.set_time_unit("100ns");
        file_.set_time_resolution("100ns");
        file_.open(path);
        if (!file_.isOpen()) throw std::runtime_error(std::string("cannot write ") + path);
    }

    // Writes the state after `halves` half cycles.
    void dump(uint64_t halves) { file_.dump(halves * HALF_CYCLE); }

private:
    static constexpr int LEVELS = 99;
    static constexpr uint64_t HALF_CYCLE = 5;
    VerilatedVcdC file_;
};
#endif

AxiPins axi_pins(Model& model, uint32_t core, uint32_t channel) {
    const std::string prefix = "m_axi_hbm" + std::to_string(core) + std::to_string(channel) + "_";
    const auto find = [&](const char* name) { return pin(model, prefix + name); };
    return {find("awid"), find("awaddr"), find("awlen"), find("awsize"), find("awburst"),
            find("awvalid"), find("awready"), find("wdata"), find("wstrb"), find("wlast"),
            find("wvalid"), find("wready"), find("bid"), find("bresp"), find("bvalid"),
            find("bready"), find("arid"), find("araddr"), find("arlen"), find("arsize"),
            find("arburst"), find("arvalid"), find("arready"), find("rid"), find("rdata"),
            find("rresp"), find("rlast"), find("rvalid"), find("rready")};
}

// A chip and its memory.
class Chip {
public:
    Chip(Model& model, Hbm& hbm, uint32_t cores, uint32_t channels)
        : model_(model), hbm_(hbm), interrupt_(pin(model, "interrupt")) {
        for (uint32_t core = 0; core < cores; ++core) {
            status_.push_back(pin(model, "status_" + std::to_string(core)));
            record(find_pin(model, "trace_" + std::to_string(core)));
            for (uint32_t channel = 0; channel < channels; ++channel)
                hbm.bind(core, channel, axi_pins(model, core, channel));
        }
        for (size_t link = 0; link < systolith::LINKS; ++link) {
            const std::string prefix = std::string("link_") + LINK_NAMES[link] + "_";
            links[link] = {find_pin(model, prefix + "rx_valid"),
                           find_pin(model, prefix + "rx_frame"),
                           find_pin(model, prefix + "tx_valid"),
                           find_pin(model, prefix + "tx_frame")};
        }
        record(find_pin(model, "trace_links"));
        link_busy_ = find_pin(model, "link_busy");
        link_wake_ = find_pin(model, "link_wake");
        link_clock_ = find_pin(model, "link_clk");
        stalled = find_pin(model, "link_stalled");
        model.top.s_axil_wstrb = 0xf;
        model.top.s_axil_bready = 1;
        model.top.s_axil_rready = 1;
        model.settled = false;
    }

    // Resets the chip and the memory's ports. Memories keep their contents.
    void reset() {
        auto& top = model_.top;
        top.s_axil_awvalid = top.s_axil_wvalid = top.s_axil_arvalid = 0;
        top.rst = 1;
        for (int cycle = 0; cycle < 2; ++cycle) {
            fall();
            rise();
        }
        hbm_.reset();
        top.rst = 0;
        model_.settled = false;
    }

    // Runs a cycle, of all chips of its torus.
    void step() {
        if (torus_) return torus_->step();
        fall();
        finish();
    }

    // The two halves of a cycle of a chip of a torus.
    void begin() {
        model_.context.enter();
        fall();
    }
    void end() {
        model_.context.enter();
        finish();
    }

    // From now on the chip runs with all chips of the torus, or alone if it is null.
    void join(Torus<Chip>* torus) { torus_ = torus; }
    // Sets the masks of `run`, and the cores with a watchdog.
    void watch(const Run& run) { run_ = run; }
    Torus<Chip>& torus() { return *torus_; }

    // Begins an access of the host, unless one is under way.
    void begin_access(const Access& access) {
        if (accessing_) return;
        auto& top = model_.top;
        access_ = access;
        accessing_ = true;
        waited_ = 0;
        if (access.write) {
            top.s_axil_awaddr = access.address;
            top.s_axil_wdata = access.data;
            top.s_axil_awvalid = top.s_axil_wvalid = 1;
        } else {
            top.s_axil_araddr = access.address;
            top.s_axil_arvalid = 1;
        }
        model_.settled = false;
    }

    // Whether an access of the host is under way; afterwards `accessed` has its outcome.
    bool accessing() const { return accessing_; }
    const Access& accessed() const { return access_; }

    // Whether the run ends. Inputs from memory may not have settled yet, but the cores' status is
    // in registers.
    bool ends(Run& run) {
        if (run.until_interrupt && interrupt_.get()) return true;
        run.still = run.until_rest && rests() ? run.still + 1 : 0;
        return run.still > STILL;
    }

    // Runs the limit's cycles of all chips of its torus.
    void advance(Run& run) {
        torus_->advance(run.limit);
        run.done = run.limit;
        run.still = torus_->still();
        run.interrupt = uint32_t(interrupt_.get());
    }

    // Runs `action` as a function of this chip's model.
    template <typename Action>
    void guard(Action action) {
        model_.guard(action);
    }

    // Message of the error that ended the simulation, empty if none.
    const std::string& error() const { return model_.error; }

    // Whether no core is active, and no packet of this chip is under way.
    bool rests() const {
        if (link_busy_.get()) return false;
        for (size_t core = 0; core < status_.size(); ++core)
            if (!rests(uint32_t(status_[core].get()), run_.watched >> core & 1)) return false;
        return true;
    }

    // Starts to keep records and, unless `path` is null, to write a waveform.
    void trace(const char* path) {
#if VM_TRACE
        if (path) waveform_ = std::make_unique<Waveform>(model_, path);
        tracing_ = true;
#else
        throw std::runtime_error(std::string("cannot write ") + (path ? path : "a trace")
                                 + ": built without trace");
#endif
    }

    // The records of a core or, after those of all cores, of the links.
    Records& records(uint32_t number) { return records_.at(number); }

    LinkPins links[systolith::LINKS];
    Pin stalled;

private:
    static constexpr const char* LINK_NAMES[] = {"xp", "xn", "yp", "yn"};

    void finish() {
        hbm_.sample();
        if (!accessing_) {
            rise();
        } else {
            const auto& top = model_.top;
            const bool address = access_.write ? top.s_axil_awready : top.s_axil_arready;
            const bool data = top.s_axil_wready;
            const bool answered = answer();
            rise();
            end_access(address, data, answered);
        }
        hbm_.drive();
        model_.settled = false;
    }

    // The two halves of a cycle. Outputs are read between them.
    void fall() {
        link_clock_.set(0);
        model_.fall();
        if (tracing_) {
            for (Records& records : records_) records.sample(model_.cycle());
            dump();
        }
        if (link_clock_.bound()) link_clock_.set(links_move());
    }

    // Whether the links need the coming edge of the clock: not if they are at rest.
    bool links_move() {
        bool active = model_.top.rst || link_busy_.get() || link_wake_.get();
        for (const LinkPins& link : links) active |= link.rx_valid.get() || link.tx_valid.get();
        rested_ = active ? 0 : std::min(rested_ + 1, LINKS_REST);
        return rested_ < LINKS_REST;
    }

    void rise() {
        model_.rise();
        if (tracing_) dump();
    }

    void dump() {
#if VM_TRACE
        if (waveform_) waveform_->dump(model_.context.time());
#endif
    }

    void record(const Pin& shown) {
        if (shown.bound()) records_.emplace_back(shown);
    }

    bool rests(uint32_t status, bool watched) const {
        if (status & (run_.dma_busy | run_.resetting) || !(status & run_.idle)) return false;
        return !(status & run_.running) || (status & run_.waiting && !watched);
    }

    // Whether the access is answered in this cycle; takes the answer.
    bool answer() {
        auto& top = model_.top;
        if (access_.write) {
            if (top.s_axil_bvalid) access_.response = top.s_axil_bresp;
            return top.s_axil_bvalid;
        }
        if (top.s_axil_rvalid) {
            access_.response = top.s_axil_rresp;
            access_.data = top.s_axil_rdata;
        }
        return top.s_axil_rvalid;
    }

    // Withdraws what was accepted in this cycle.
    void end_access(bool address, bool data, bool answered) {
        auto& top = model_.top;
        if (access_.write) {
            if (address) top.s_axil_awvalid = 0;
            if (data) top.s_axil_wvalid = 0;
        } else if (address) {
            top.s_axil_arvalid = 0;
        }
        accessing_ = !answered;
        if (accessing_ && ++waited_ == STANDSTILL)
            throw std::runtime_error("an access to address " + std::to_string(access_.address)
                                     + " is not answered");
    }

    Model& model_;
    Hbm& hbm_;
    Pin interrupt_;
    std::vector<Pin> status_;
    Pin link_busy_, link_wake_, link_clock_;
    uint32_t rested_ = 0;  // cycles in a row without activity of the links, at most LINKS_REST
    Torus<Chip>* torus_ = nullptr;
    Run run_{};             // the last one, or what `watch` has set
    Access access_{};       // of the host, under way or the last one
    bool accessing_ = false;
    uint64_t waited_ = 0;   // cycles that it has been under way
    std::vector<Records> records_;
    bool tracing_ = false;
#if VM_TRACE
    std::unique_ptr<Waveform> waveform_;
#endif
};

}  // namespace

// Returns null on failure. Model and memory must outlive the chip.
SYSTOLITH_EXPORT Chip* systolith_chip_create(Model* model, Hbm* hbm, uint32_t cores,
                                             uint32_t channels) {
    Chip* chip = nullptr;
    model->guard([&] { chip = new Chip(*model, *hbm, cores, channels); });
    return chip;
}

// Joins chips of equal ports to a torus, in rows along X. `chips` has those from number `first` on
// that this process simulates. `latencies` are those of the wires that leave each chip of the torus
// by its four links. The chips must outlive the torus. `quantum`, `threads`: as in torus.hpp.
SYSTOLITH_EXPORT Torus<Chip>* systolith_torus_create(Chip* const* chips, uint32_t first,
                                                     uint32_t count, uint32_t columns,
                                                     uint32_t rows, const FrameBits* bits,
                                                     const uint32_t* latencies, uint64_t seed,
                                                     uint32_t quantum, uint32_t threads) {
    return new Torus<Chip>({chips, chips + count}, first, columns, rows, *bits, latencies, seed,
                           quantum, threads);
}

// Tells a chip of a torus which cores have a watchdog, and the masks in STATUS.
SYSTOLITH_EXPORT void systolith_torus_watch(Chip* chip, const Run* run) { chip->watch(*run); }

SYSTOLITH_EXPORT void systolith_torus_destroy(Torus<Chip>* torus) { delete torus; }

SYSTOLITH_EXPORT void systolith_torus_faults(Torus<Chip>* torus, uint32_t wire,
                                             const systolith::WireFaults* faults) {
    torus->wire(wire).faults = *faults;
}

// Copies what chips of this process have done on each wire; others are 0.
SYSTOLITH_EXPORT void systolith_torus_counters(Torus<Chip>* torus,
                                               systolith::LinkCounters* counters) {
    std::copy(torus->counters().begin(), torus->counters().end(), counters);
}

// Copies what arrives from the last `cycles` cycles of a wire: for each frame, the number of the
// wire, the number of the cycle counted from the first of these, and the frame. Returns the number
// of words, of which there must be room for 2 + the frame's words in each cycle.
SYSTOLITH_EXPORT uint64_t systolith_torus_take(Torus<Chip>* torus, const uint32_t* wires,
                                               uint64_t count, uint32_t cycles, uint32_t* words) {
    return torus->take(wires, count, cycles, words);
}

// The other end of `systolith_torus_take`: puts what another process has taken on the same wires.
SYSTOLITH_EXPORT void systolith_torus_put(Torus<Chip>* torus, const uint32_t* wires, uint64_t count,
                                          uint32_t cycles, const uint32_t* words, uint64_t length) {
    torus->put(wires, count, cycles, words, length);
}

SYSTOLITH_EXPORT void systolith_chip_destroy(Chip* chip) { delete chip; }

SYSTOLITH_EXPORT int systolith_chip_reset(Model* model, Chip* chip) {
    return model->guard([&] { chip->reset(); });
}

SYSTOLITH_EXPORT int systolith_chip_trace(Model* model, Chip* chip, const char* path) {
    return model->guard([&] { chip->trace(path); });
}

// Returns the records of a core since `systolith_chip_forget`: `*count` words, valid until the next
// call for the chip.
SYSTOLITH_EXPORT int systolith_chip_records(Model* model, Chip* chip, uint32_t core,
                                            const uint32_t** words, uint64_t* count) {
    return model->guard([&] {
        const Records& records = chip->records(core);
        *words = records.words.data();
        *count = records.words.size();
    });
}

SYSTOLITH_EXPORT int systolith_chip_forget(Model* model, Chip* chip, uint32_t core) {
    return model->guard([&] { chip->records(core).words.clear(); });
}

// Makes accesses in order until one is refused; `*done` counts all that were made. Stops after
// `*limit` cycles, from which it subtracts those run; the access that is then under way goes on in
// the next call.
SYSTOLITH_EXPORT int systolith_chip_access(Model* model, Chip* chip, Access* accesses,
                                           uint64_t count, uint64_t* done, uint64_t* limit) {
    return model->guard([&] {
        Watch watch;
        while (*done < count && *limit && (chip->accessing() || !watch.late())) {
            Access& access = accesses[*done];
            chip->begin_access(access);
            for (; *limit && chip->accessing(); --*limit) chip->step();
            if (chip->accessing()) return;
            access = chip->accessed();
            ++*done;
            if (access.response) return;
        }
    });
}

// Makes accesses of the torus's chips, beginning in the same cycle; `*done` becomes 1 if all were
// made. `lists[n]` has `counts[n]` accesses of the nth chip of this process; `made[n]` counts those
// that were made. Otherwise as `systolith_chip_access`; `model` is that of any of the chips.
SYSTOLITH_EXPORT int systolith_chip_access_all(Model* model, Chip* chip, Access* const* lists,
                                               const uint64_t* counts, uint64_t* made,
                                               uint64_t* limit, uint32_t* done) {
    return model->guard([&] {
        while (!(*done = chip->torus().access(lists, counts, made)) && *limit) {
            chip->step();
            --*limit;
        }
    });
}

SYSTOLITH_EXPORT int systolith_chip_run(Model* model, Chip* chip, Run* run) {
    return model->guard([&] {
        Watch watch;
        chip->watch(*run);
        run->done = 0;
        model->settle();
        // `ends` counts cycles, so it looks once at each: not at one at which the call ends early,
        // because the next call does.
        for (run->ended = 0;; ++run->done) {
            const bool more = run->done < run->limit;
            if (more && watch.late()) break;
            if ((run->ended = chip->ends(*run)) || !more) break;
            chip->step();
        }
    });
}

// Runs exactly `run->limit` cycles of all chips of a torus. Fills `run->interrupt`, and
// `run->still`, the number of cycles in a row, up to now, in which none of them was active.
SYSTOLITH_EXPORT int systolith_chip_advance(Model* model, Chip* chip, Run* run) {
    return model->guard([&] {
        chip->watch(*run);
        chip->advance(*run);
    });
}
