// High-bandwidth memory behind the AXI4 masters of a simulated chip.
//
// One memory serves `cores` cores, each through `channels` ports. A row of memory has channels *
// channel_bytes bytes, spread over the channels: those from c * channel_bytes on of row r are at
// address r * channel_bytes of channel c. The ports of all cores for one channel share its
// bandwidth.
//
// A cycle of the simulation has four steps: the model's clock falls, `sample` reads the ports, the
// clock rises, `drive` sets the ports. So the memory sees the masters' outputs for the inputs of
// this cycle, and its own outputs change in the next cycle. Nothing here depends on Verilator.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>

namespace systolith {

// A variable that holds the value of a port of any width, little endian.
class Pin {
public:
    Pin() = default;
    // A variable of a verilated class: an integer, or a wide one of 32-bit words.
    template <typename T>
    explicit Pin(T& variable) : Pin(&variable, sizeof variable) {}
    Pin(void* data, size_t bytes) : data_(static_cast<uint8_t*>(data)), bytes_(bytes) {}

    bool bound() const { return data_ != nullptr; }
    size_t bytes() const { return bytes_; }
    uint8_t* data() const { return data_; }
    // The low 64 bits; zero if there is no such port.
    uint64_t get() const {
        switch (bytes_) {
            case 0: return 0;
            case 1: return *data_;
            case 2: return as<uint16_t>();
            case 4: return as<uint32_t>();
            default: return as<uint64_t>();
        }
    }
    void set(uint64_t value) const {
        if (data_) std::memcpy(data_, &value, std::min(bytes_, sizeof value));
    }

private:
    template <typename T> uint64_t as() const {
        T value;
        std::memcpy(&value, data_, sizeof value);
        return value;
    }

    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

// An AXI4 port, with the names of the specification. Identifiers may be absent.
struct AxiPins {
    Pin awid, awaddr, awlen, awsize, awburst, awvalid, awready;
    Pin wdata, wstrb, wlast, wvalid, wready;
    Pin bid, bresp, bvalid, bready;
    Pin arid, araddr, arlen, arsize, arburst, arvalid, arready;
    Pin rid, rdata, rresp, rlast, rvalid, rready;
};

// The pins of a verilated top with ports PREFIX_awaddr and so on.
#define SYSTOLITH_AXI_PINS(top, prefix) \
    ::systolith::AxiPins{ \
        SYSTOLITH_PIN(top, prefix, awid), SYSTOLITH_PIN(top, prefix, awaddr), \
        SYSTOLITH_PIN(top, prefix, awlen), SYSTOLITH_PIN(top, prefix, awsize), \
        SYSTOLITH_PIN(top, prefix, awburst), SYSTOLITH_PIN(top, prefix, awvalid), \
        SYSTOLITH_PIN(top, prefix, awready), SYSTOLITH_PIN(top, prefix, wdata), \
        SYSTOLITH_PIN(top, prefix, wstrb), SYSTOLITH_PIN(top, prefix, wlast), \
        SYSTOLITH_PIN(top, prefix, wvalid), SYSTOLITH_PIN(top, prefix, wready), \
        SYSTOLITH_PIN(top, prefix, bid), SYSTOLITH_PIN(top, prefix, bresp), \
        SYSTOLITH_PIN(top, prefix, bvalid), SYSTOLITH_PIN(top, prefix, bready), \
        SYSTOLITH_PIN(top, prefix, arid), SYSTOLITH_PIN(top, prefix, araddr), \
        SYSTOLITH_PIN(top, prefix, arlen), SYSTOLITH_PIN(top, prefix, arsize), \
        SYSTOLITH_PIN(top, prefix, arburst), SYSTOLITH_PIN(top, prefix, arvalid), \
        SYSTOLITH_PIN(top, prefix, arready), SYSTOLITH_PIN(top, prefix, rid), \
        SYSTOLITH_PIN(top, prefix, rdata), SYSTOLITH_PIN(top, prefix, rresp), \
        SYSTOLITH_PIN(top, prefix, rlast), SYSTOLITH_PIN(top, prefix, rvalid), \
        SYSTOLITH_PIN(top, prefix, rready)}
#define SYSTOLITH_PIN(top, prefix, name) ::systolith::Pin((top).prefix##_##name)

enum class Response : uint8_t { OKAY = 0, SLVERR = 2, DECERR = 3 };

struct HbmOptions {
    // Minimum number of cycles from the handshake of a read's address to its first beat, and from
    // that of a write's last beat to its response; 1 or more.
    uint64_t latency = 40;
    // On average a channel moves at most `beats` beats in `cycles` cycles, reads and writes of all
    // cores together. 0 beats: no limit.
    uint32_t beats = 0;
    uint32_t cycles = 1;
    // Bursts in flight that a port accepts, in each direction.
    uint32_t outstanding = 64;
    // Number of cycles in 65,536 in which a handshake is delayed, at random.
    uint32_t stalls = 0;
    uint64_t seed = 1;
};

// A master violates the protocol, or requests something that this memory does not support.
class ProtocolError : public std::runtime_error {
public:
    ProtocolError(uint32_t core, uint32_t channel, uint64_t cycle, const std::string& what)
        : std::runtime_error("memory channel " + std::to_string(channel) + " of core "
                             + std::to_string(core) + ", cycle " + std::to_string(cycle) + ": "
                             + what),
          core(core), channel(channel), cycle(cycle) {}

    const uint32_t core, channel;
    const uint64_t cycle;
};

// A block of zeros. Pages take no space until they are written.
class Memory {
public:
    explicit Memory(uint64_t bytes) : bytes_(bytes) {
        void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED)
            throw std::runtime_error("no memory of " + std::to_string(bytes) + " bytes");
        data_ = static_cast<uint8_t*>(found);
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { munmap(data_, bytes_); }

    uint8_t* data() const { return data_; }

private:
    uint8_t* data_;
    uint64_t bytes_;
};

struct HbmCounters {
    uint64_t cycles;
    uint64_t read_bursts, read_beats, write_bursts, write_beats;
    uint64_t error_beats;  // of reads and writes that got an error response
};

class Hbm {
public:
    static constexpr uint32_t MAX_BYTES = 128;
    static constexpr uint64_t BOUNDARY = 4096;
    static constexpr uint8_t NOTHING_READ = 0xdb;  // every byte of a beat with an error

    // `memory` has `bytes` bytes, a multiple of a row. If it is null, this object allocates one.
    Hbm(uint32_t cores, uint32_t channels, uint32_t channel_bytes, uint64_t bytes,
        uint8_t* memory = nullptr)
        : cores_(cores), channels_(channels), beat_(channel_bytes), bytes_(bytes) {
        if (!cores || !channels) throw std::invalid_argument("there must be at least one port");
        if (channel_bytes < 4 || channel_bytes > MAX_BYTES || channel_bytes & (channel_bytes - 1))
            throw std::invalid_argument("channel_bytes must be a power of two from 4 to 128, not "
                                        + std::to_string(channel_bytes));
        if (!bytes || bytes % row())
            throw std::invalid_argument("bytes must be a multiple of a row, not "
                                        + std::to_string(bytes));
        if (!memory) own_ = std::make_unique<Memory>(bytes);
        memory_ = memory ? memory : own_->data();
        size_ = 31 - __builtin_clz(beat_);
        rows_ = bytes / row();
        for (uint32_t channel = 0; channel < channels; ++channel) {
            groups_.emplace_back();
            for (uint32_t core = 0; core < cores; ++core) ports_.push_back({core, channel});
        }
        configure({});
    }

    // May be called between any two cycles.
    void configure(const HbmOptions& options) {
        if (!options.latency) throw std::invalid_argument("latency must be at least 1, not 0");
        if (!options.cycles) throw std::invalid_argument("cycles must be at least 1, not 0");
        if (!options.outstanding)
            throw std::invalid_argument("outstanding must be at least 1, not 0");
        if (options.stalls > 65535)
            throw std::invalid_argument("stalls must be less than 65536, not "
                                        + std::to_string(options.stalls));
        options_ = options;
        for (Port& port : ports_) port.random = mix(options.seed ^ mix(index(port) + 1));
        for (Group& group : groups_) group = {0, counters_.cycles, 0};
    }

    // Makes accesses to any of these bytes fail from now on.
    void fail(uint64_t address, uint64_t bytes, Response response, bool reads = true,
              bool writes = true) {
        failures_.push_back({address, bytes, response, reads, writes});
    }
    void heal() { failures_.clear(); }

    void bind(uint32_t core, uint32_t channel, const AxiPins& pins) {
        Port& port = at(core, channel);
        const auto check = [&](const Pin& pin, size_t bytes, const char* name) {
            if (!pin.bound() || pin.bytes() < bytes)
                throw std::invalid_argument(std::string("pin ") + name + " must have "
                                            + std::to_string(bytes) + " bytes");
        };
        check(pins.wdata, beat_, "wdata");
        check(pins.rdata, beat_, "rdata");
        check(pins.wstrb, (beat_ + 7) / 8, "wstrb");
        for (const Pin* pin : {&pins.awvalid, &pins.awready, &pins.wvalid, &pins.wready,
                               &pins.wlast, &pins.bvalid, &pins.bready, &pins.arvalid,
                               &pins.arready, &pins.rvalid, &pins.rready})
            check(*pin, 1, "of a handshake");
        for (const Pin* pin : {&pins.awaddr, &pins.awlen, &pins.araddr, &pins.arlen,
                               &pins.bresp, &pins.rresp, &pins.rlast})
            check(*pin, 1, "of an address or a response");
        port.pins = pins;
        port.awvalid = pins.awvalid.data();
        port.wvalid = pins.wvalid.data();
        port.arvalid = pins.arvalid.data();
        port.bound = true;
        clear(port);
        put(port);
    }

    // Drops all bursts, because the masters are in reset. Memory keeps its contents.
    void reset() {
        for (Port& port : ports_) {
            clear(port);
            if (port.bound) put(port);
        }
    }

    // Samples the masters' outputs in this cycle, after the clock's falling edge.
    void sample() {
        bool busy = false;
        for (Port& port : ports_) {
            if (!port.bound) continue;
            const bool aw = *port.awvalid, w = *port.wvalid, ar = *port.arvalid;
            if (!(aw | w | ar) && port.resting) continue;
            port.resting = false;
            busy = true;
            // Data and responses first: they belong to addresses of earlier cycles.
            take_data(port, w);
            take_answers(port);
            take_address(port, port.write, aw, true);
            take_address(port, port.read, ar, false);
        }
        ++counters_.cycles;
        if (!busy) return;
        for (uint32_t channel = 0; channel < channels_; ++channel) decide(channel);
        changed_ = true;
    }

    // Drives the masters' inputs for the next cycle, after the clock's rising edge.
    void drive() {
        if (!changed_) return;
        changed_ = false;
        for (Port& port : ports_) {
            if (!port.changed) continue;
            put(port);
            port.changed = false;
        }
    }

    uint8_t* memory() const { return memory_; }
    uint64_t bytes() const { return bytes_; }
    const HbmCounters& counters() const { return counters_; }
    // Whether no burst is in flight.
    bool idle() const {
        return std::all_of(ports_.begin(), ports_.end(), [](const Port& port) {
            return port.read.bursts.empty() && port.write.bursts.empty();
        });
    }

private:
    struct Burst {
        uint64_t row;   // of the next beat
        uint32_t left;  // beats left
        uint64_t due;   // first cycle of its response; of a write, known after its last beat
        uint8_t id;
        Response response;
    };

    // A queue that allocates memory only when it grows.
    class Bursts {
    public:
        bool empty() const { return first_ == end_; }
        size_t size() const { return end_ - first_; }
        Burst& front() { return at(0); }
        Burst& at(size_t index) { return ring_[(first_ + index) & (ring_.size() - 1)]; }
        void pop() { ++first_; }
        void clear() { first_ = end_ = 0; }
        void push(const Burst& burst) {
            if (size() == ring_.size()) {
                std::vector<Burst> larger(2 * ring_.size());
                for (size_t index = 0; index < size(); ++index) larger[index] = at(index);
                end_ -= first_;
                first_ = 0;
                ring_.swap(larger);
            }
            ring_[end_++ & (ring_.size() - 1)] = burst;
        }

    private:
        std::vector<Burst> ring_ = std::vector<Burst>(16);  // its size is a power of two
        size_t first_ = 0, end_ = 0;
    };

    struct Address {
        uint64_t address = 0;
        uint32_t length = 0, size = 0, burst = 0, id = 0;
        bool operator==(const Address& other) const {
            return address == other.address && length == other.length && size == other.size &&
                burst == other.burst && id == other.id;
        }
    };

    struct Side {
        Bursts bursts;
        bool ready = false;    // AR or AW ready in this cycle
        bool waits = false;    // an address was offered and not accepted
        Address offered;
        bool answer = false;   // R or B valid in this cycle
    };

    struct Port {
        uint32_t core, channel;
        // Members that a cycle without events reads come first.
        bool bound = false;
        bool resting = false;  // nothing to do, and ready for everything
        bool changed = false;  // since the last `drive`
        const uint8_t* awvalid = nullptr;
        const uint8_t* wvalid = nullptr;
        const uint8_t* arvalid = nullptr;
        AxiPins pins = {};
        Side read = {}, write = {};
        size_t filled = 0;         // writes at the queue's front whose data are complete
        bool data_ready = false;   // W ready in this cycle
        bool data_waits = false;
        bool data_last = false;
        std::array<uint8_t, MAX_BYTES> data = {};
        std::array<uint8_t, MAX_BYTES / 8> strobes = {};
        bool fresh = false;             // R shows a new beat
        const uint8_t* beat = nullptr;  // null: an error
        bool last = false;
        Response response = Response::OKAY;  // of R
        uint64_t random = 0;
    };

    struct Group {
        int64_t credit = 0;  // beats that may move now, times `cycles`
        uint64_t since = 0;  // cycle in which `credit` was computed
        uint32_t turn = 0;   // next in turn: turn / 2 is a core, odd numbers are writes
    };

    struct Failure {
        uint64_t address, bytes;
        Response response;
        bool reads, writes;
    };

    // Copies a beat. Common widths are constants here, so that the compiler needs no loop.
    void copy(uint8_t* to, const uint8_t* from) const {
        switch (beat_) {
            case 128: std::memcpy(to, from, 128); break;
            case 64: std::memcpy(to, from, 64); break;
            default: std::memcpy(to, from, beat_);
        }
    }

    uint64_t row() const { return uint64_t(beat_) * channels_; }
    uint64_t index(const Port& port) const { return port.channel * cores_ + port.core; }
    Port& at(uint32_t core, uint32_t channel) {
        if (core >= cores_ || channel >= channels_)
            throw std::invalid_argument("there is no channel " + std::to_string(channel)
                                        + " of core " + std::to_string(core));
        return ports_[channel * cores_ + core];
    }

    static uint64_t mix(uint64_t x) {  // splitmix64
        x += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
    }

    // Whether to delay a handshake.
    bool stalls(Port& port) {
        if (!options_.stalls) return false;
        port.random += 0x9e3779b97f4a7c15;
        return (mix(port.random) & 0xffff) < options_.stalls;
    }

    [[noreturn]] void violated(const Port& port, const std::string& what) const {
        throw ProtocolError(port.core, port.channel, counters_.cycles, what);
    }

    void clear(Port& port) {
        for (Side* side : {&port.read, &port.write}) {
            side->bursts.clear();
            side->ready = side->waits = side->answer = false;
        }
        port.filled = 0;
        port.data_ready = port.data_waits = port.fresh = port.resting = false;
        port.beat = nullptr;
        port.changed = true;
    }

    void take_address(Port& port, Side& side, bool valid, bool write) {
        const AxiPins& pins = port.pins;
        const char* name = write ? "AW" : "AR";
        if (!valid) {
            if (side.waits) violated(port, std::string(name) + "VALID must stay until it is taken");
            return;
        }
        const Address now = write
            ? Address{pins.awaddr.get(), uint32_t(pins.awlen.get()),
                      pins.awsize.bound() ? uint32_t(pins.awsize.get()) : size_,
                      pins.awburst.bound() ? uint32_t(pins.awburst.get()) : 1,
                      uint32_t(pins.awid.get())}
            : Address{pins.araddr.get(), uint32_t(pins.arlen.get()),
                      pins.arsize.bound() ? uint32_t(pins.arsize.get()) : size_,
                      pins.arburst.bound() ? uint32_t(pins.arburst.get()) : 1,
                      uint32_t(pins.arid.get())};
        if (side.waits && !(now == side.offered))
            violated(port, std::string(name) + " must not change until it is taken");
        if (!side.waits) check(port, now, name);
        side.offered = now;
        side.waits = !side.ready;
        if (side.waits) return;
        side.bursts.push({now.address >> size_, now.length + 1,
                          counters_.cycles + options_.latency, uint8_t(now.id), Response::OKAY});
        ++(write ? counters_.write_bursts : counters_.read_bursts);
    }

    void check(const Port& port, const Address& address, const char* channel) const {
        const auto name = [&] { return std::string(channel); };
        if (address.burst != 1)
            violated(port, name() + "BURST must be 1 (INCR), not " + std::to_string(address.burst));
        if (address.size != size_)
            violated(port, name() + "SIZE must be " + std::to_string(size_) + ", not "
                           + std::to_string(address.size));
        if (address.length > 255)
            violated(port, name() + "LEN must be below 256, not " + std::to_string(address.length));
        if (address.address & (beat_ - 1))
            violated(port, name() + "ADDR must be a multiple of " + std::to_string(beat_) + ", not "
                           + std::to_string(address.address));
        const uint64_t end = address.address + uint64_t(address.length) * beat_;
        if (address.address / BOUNDARY != end / BOUNDARY)
            violated(port, name() + " burst of " + std::to_string(address.length + 1)
                           + " beats at address " + std::to_string(address.address)
                           + " must not cross a boundary of 4096 bytes");
    }

    void take_data(Port& port, bool valid) {
        const AxiPins& pins = port.pins;
        if (!valid) {
            if (port.data_waits) violated(port, "WVALID must stay until it is taken");
            return;
        }
        const bool last = *pins.wlast.data();
        const uint8_t* data = pins.wdata.data();
        const uint8_t* strobes = pins.wstrb.data();
        if (port.data_waits
            && (last != port.data_last || std::memcmp(data, port.data.data(), beat_)
                || std::memcmp(strobes, port.strobes.data(), (beat_ + 7) / 8)))
            violated(port, "W must not change until it is taken");
        if (!port.data_ready) {
            if (!port.data_waits) {
                port.data_last = last;
                std::memcpy(port.data.data(), data, beat_);
                std::memcpy(port.strobes.data(), strobes, (beat_ + 7) / 8);
            }
            port.data_waits = true;
            return;
        }
        port.data_waits = false;
        Burst& burst = port.write.bursts.at(port.filled);
        if (last != (burst.left == 1))
            violated(port, last ? "WLAST must not be set, " + std::to_string(burst.left - 1)
                                      + " beats before the last of its burst"
                                : "WLAST must be set in the last beat of a burst");
        write(port, burst, data, strobes);
        pay(groups_[port.channel]);
        ++counters_.write_beats;
        ++burst.row;
        if (--burst.left) return;
        burst.due = counters_.cycles + options_.latency;
        ++port.filled;
    }

    void write(const Port& port, Burst& burst, const uint8_t* data, const uint8_t* strobes) {
        const Response response = outcome(port, burst.row, true);
        if (response != Response::OKAY) {
            burst.response = std::max(burst.response, response);
            ++counters_.error_beats;
            return;
        }
        uint8_t* to = place(port, burst.row);
        bool all = beat_ >= 8;
        for (uint32_t byte = 0; byte < beat_ / 8; ++byte) all &= strobes[byte] == 0xff;
        if (all) {
            copy(to, data);
            return;
        }
        for (uint32_t byte = 0; byte < beat_; ++byte)
            if (strobes[byte / 8] >> (byte % 8) & 1) to[byte] = data[byte];
    }

    void take_answers(Port& port) {
        if (port.read.answer && *port.pins.rready.data()) {
            port.read.answer = false;
            Burst& burst = port.read.bursts.front();
            ++counters_.read_beats;
            ++burst.row;
            if (!--burst.left) port.read.bursts.pop();
        }
        if (port.write.answer && *port.pins.bready.data()) {
            port.write.answer = false;
            port.write.bursts.pop();
            --port.filled;
        }
    }

    // Decides the outputs of a channel's ports in the next cycle.
    void decide(uint32_t channel) {
        Group& group = groups_[channel];
        for (uint32_t core = 0; core < cores_; ++core) {
            Port& port = ports_[channel * cores_ + core];
            if (!port.bound || port.resting) continue;
            port.changed = true;
            port.read.ready = port.read.bursts.size() < options_.outstanding && !stalls(port);
            port.write.ready = port.write.bursts.size() < options_.outstanding && !stalls(port);
            decide_response(port);
        }
        // Round robin: the port after the last one that got bandwidth is first.
        refill(group);
        const uint32_t first = group.turn, count = 2 * cores_;  // group.turn changes in the loop
        for (uint32_t turn = 0; turn < count; ++turn) {
            const uint32_t sum = first + turn, number = sum < count ? sum : sum - count;
            Port& port = ports_[channel * cores_ + number / 2];
            if (!port.bound || port.resting) continue;
            if (number % 2 ? decide_data(port, group) : decide_read(port, group))
                group.turn = number + 1 < count ? number + 1 : 0;
        }
        for (uint32_t core = 0; core < cores_; ++core) {
            Port& port = ports_[channel * cores_ + core];
            if (!port.bound || port.resting) continue;
            port.resting = port.read.bursts.empty() && port.write.bursts.empty()
                && port.read.ready && port.write.ready && !port.data_waits && !port.read.waits
                && !port.write.waits;
        }
    }

    void decide_response(Port& port) {
        Side& side = port.write;
        if (side.answer || !port.filled || side.bursts.front().due > counters_.cycles) return;
        side.answer = !stalls(port);
    }

    // Returns whether the port uses bandwidth.
    bool decide_read(Port& port, Group& group) {
        Side& side = port.read;
        if (side.answer || side.bursts.empty()) return false;
        const Burst& burst = side.bursts.front();
        if (burst.due > counters_.cycles || stalls(port) || !affords(group)) return false;
        pay(group);
        port.response = outcome(port, burst.row, false);
        port.last = burst.left == 1;
        port.beat = port.response == Response::OKAY ? place(port, burst.row) : nullptr;
        if (!port.beat) ++counters_.error_beats;
        side.answer = port.fresh = true;
        return true;
    }

    // Returns whether the port may use bandwidth. It pays only when data come, so several ports may
    // spend the same credit; then all wait until the debt is paid back.
    bool decide_data(Port& port, const Group& group) {
        port.data_ready = port.filled < port.write.bursts.size() && !stalls(port)
            && affords(group);
        return port.data_ready;
    }

    void refill(Group& group) {
        if (!options_.beats) return;
        const int64_t most = int64_t(options_.beats) + options_.cycles - 1;
        // The bound avoids an overflow, and still pays back any debt after a long pause.
        const int64_t passed = int64_t(std::min<uint64_t>(counters_.cycles - group.since, 1 << 30));
        group.credit = std::min(most, group.credit + passed * options_.beats);
        group.since = counters_.cycles;
    }
    bool affords(const Group& group) const {
        return !options_.beats || group.credit >= options_.cycles;
    }
    void pay(Group& group) const {
        if (options_.beats) group.credit -= options_.cycles;
    }

    uint64_t address(const Port& port, uint64_t row_number) const {
        return row_number * row() + uint64_t(port.channel) * beat_;
    }
    uint8_t* place(const Port& port, uint64_t row_number) const {
        return memory_ + address(port, row_number);
    }

    Response outcome(const Port& port, uint64_t row_number, bool write) const {
        if (row_number >= rows_) return Response::DECERR;
        Response worst = Response::OKAY;
        if (failures_.empty()) return worst;
        const uint64_t first = address(port, row_number);
        for (const Failure& failure : failures_) {
            if ((write ? failure.writes : failure.reads) && first < failure.address + failure.bytes
                && failure.address < first + beat_)
                worst = std::max(worst, failure.response);
        }
        return worst;
    }

    void put(Port& port) const {
        const AxiPins& pins = port.pins;
        *pins.awready.data() = port.write.ready;
        *pins.arready.data() = port.read.ready;
        *pins.wready.data() = port.data_ready;
        *pins.bvalid.data() = port.write.answer;
        *pins.rvalid.data() = port.read.answer;
        if (port.write.answer) {
            const Burst& burst = port.write.bursts.front();
            pins.bid.set(burst.id);
            pins.bresp.set(uint64_t(burst.response));
        }
        // A beat that waits to be accepted stays the same, even if memory changes.
        if (!port.fresh) return;
        port.fresh = false;
        pins.rid.set(port.read.bursts.front().id);
        pins.rresp.set(uint64_t(port.response));
        pins.rlast.set(port.last);
        if (port.beat) copy(pins.rdata.data(), port.beat);
        else std::memset(pins.rdata.data(), NOTHING_READ, beat_);
    }

    const uint32_t cores_, channels_, beat_;
    const uint64_t bytes_;
    uint32_t size_;  // binary logarithm of channel_bytes
    uint64_t rows_;
    std::unique_ptr<Memory> own_;
    uint8_t* memory_;
    HbmOptions options_;
    HbmCounters counters_ = {};
    bool changed_ = false;
    std::vector<Port> ports_;    // by channel, then by core
    std::vector<Group> groups_;  // by channel
    std::vector<Failure> failures_;
};

}  // namespace systolith
