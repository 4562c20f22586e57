// The objects behind the API's opaque pointers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api.hpp"
#include "queue.hpp"

namespace systolith::pjrt {

struct Error {
    Status status;
};

struct Event {
    Shared completion;
    bool writes = false;  // the event ends a transfer that writes to an array of JAX
};

inline Event* event_of(Shared completion) { return new Event{std::move(completion)}; }

inline Error* error_of(const Status& status) {
    return status.ok() ? nullptr : new Error{status};
}

inline Error* refuse(int code, std::string message) {
    return new Error{{code, std::move(message)}};
}

// The memory of a device: HBM, which the cores of a chip share.
struct Memory {
    int id;
    Device* device;
    std::string text;
};

// The place of a core: its number, that of its chip, and the chip's coordinates on the torus.
struct Place {
    int core, chip, x, y;
    bool pod;  // whether there are several chips
};

// A device of JAX: a core of a chip.
struct Device {
    int id, chip;
    std::string kind, text;
    int64_t coordinates[3];
    std::vector<NamedValue> attributes;
    Memory memory;
    Memory* memories[1];
    Device* devices[1];

    Device(int number, const std::string& kind_of_chip, const Place& place)
        : id(number), chip(place.chip), kind(kind_of_chip),
          text("SystolithCore(id=" + std::to_string(number) + where(place) + ")"),
          coordinates{place.x, place.y, 0},
          memory{number, this, "HBM of core " + std::to_string(number)}, memories{&memory},
          devices{this} {
        attributes.resize(2);
        attributes[0] = {{sizeof(NamedValue), nullptr}, "coords", 6, kNamedInts, {}, 3};
        attributes[0].int64_array_value = coordinates;
        attributes[1] = {{sizeof(NamedValue), nullptr}, "core_on_chip", 12, kNamedInt, {}, 1};
        attributes[1].int64_value = place.core;
    }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    // In a pod, tells where the core is.
    static std::string where(const Place& place) {
        if (!place.pod) return "";
        return ", coords=(" + std::to_string(place.x) + ", " + std::to_string(place.y) +
               "), core_on_chip=" + std::to_string(place.core);
    }
};

// Counters of HBM, in bytes except `allocations`. The Python side updates them (`Client::note`).
struct MemoryStats {
    int64_t in_use, peak, allocations, largest, limit, largest_free;
};

// JAX's client: the chip, or all chips of a pod.
struct Client {
    std::string platform = "systolith";
    std::string version;
    std::vector<std::unique_ptr<Device>> owned;
    std::vector<Device*> devices;
    std::vector<Memory*> memories;
    // Jobs of the simulation (0) and of the compiler (1).
    Queue queues[2];
    std::atomic<int64_t> next_id{1};

    void add_device(const std::string& kind, const Place& place) {
        owned.push_back(std::make_unique<Device>(int(owned.size()), kind, place));
        if (size_t(place.chip) >= stats_.size()) stats_.resize(size_t(place.chip) + 1);
        devices.push_back(owned.back().get());
        memories.push_back(&owned.back()->memory);
    }

    Device* device(int id) const {
        return id >= 0 && size_t(id) < devices.size() ? devices[size_t(id)] : nullptr;
    }

    std::shared_ptr<Job> job(Kind kind, int64_t target, Shared completion) {
        auto made = std::make_shared<Job>();
        made->kind = kind;
        made->target = target;
        made->completion = std::move(completion);
        return made;
    }

    void simulate(std::shared_ptr<Job> job) { queues[0].push(std::move(job)); }

    // Uses the queue's lock, because before_fork (client.cpp) already takes that one.
    void note(int chip, const MemoryStats& stats) {
        std::lock_guard lock(queues[0].mutex);
        // Before the devices have been described, there is no entry.
        if (size_t(chip) >= stats_.size()) stats_.resize(size_t(chip) + 1);
        stats_[size_t(chip)] = stats;
    }

    MemoryStats stats(int chip) {
        std::lock_guard lock(queues[0].mutex);
        return stats_[size_t(chip)];
    }

private:
    std::vector<MemoryStats> stats_;  // of each chip
};

// Returns the only client of the process.
Client& chip();

// A value in HBM. The Python side identifies it by `id` until it is released.
struct Buffer {
    int64_t id;
    Device* device;
    int type;
    std::vector<int64_t> dims;
    Shared ready;
    std::atomic<bool> deleted{false};
    std::vector<int64_t> minor_to_major;

    Buffer(Device* where, int element_type, std::vector<int64_t> sizes, Shared completion)
        : id(chip().next_id++), device(where), type(element_type), dims(std::move(sizes)),
          ready(std::move(completion)) {
        for (size_t number = dims.size(); number-- > 0;)
            minor_to_major.push_back(int64_t(number));
    }
    ~Buffer() { release(); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // Appends a job that frees the memory, so that jobs already in the queue can still use it.
    void release() {
        if (!deleted.exchange(true)) chip().simulate(chip().job(kRelease, id, nullptr));
    }

    size_t bytes() const {
        size_t size = kElementBytes[type];
        for (int64_t length : dims) size *= size_t(length);
        return size;
    }
};

// A compiled program and its devices. JAX holds it as a loaded executable and, after
// `GetExecutable`, also as an executable: the object lives until JAX has destroyed both.
struct Executable {
    int64_t id = 0;
    std::string name, fingerprint, program, assignment;
    size_t replicas = 1, partitions = 1;
    int64_t code_bytes = 0;
    std::vector<Device*> devices;
    std::vector<int> output_types;
    std::vector<std::vector<int64_t>> output_dims;
    std::vector<size_t> donated;
    std::vector<int64_t> flat_dims;
    std::vector<size_t> ranks;
    std::vector<const char*> kinds;
    std::vector<size_t> kind_sizes;
    std::atomic<bool> deleted{false};
    std::atomic<int> references{1};

    void unload() {
        if (!deleted.exchange(true)) chip().simulate(chip().job(kUnload, id, nullptr));
    }
    void drop() {
        if (--references == 0) delete this;
    }
    // Fills in the fields from the Python side's answer (`Program.numbers` in compiler.py).
    void fill(const Job& job);
};

}  // namespace systolith::pjrt
