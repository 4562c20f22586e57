// Limits the time that a call into a model takes, so that its caller can show progress and be
// interrupted.
#pragma once

#include <chrono>
#include <cstdint>

namespace systolith {

// Tells when a call has taken long enough.
class Watch {
public:
    bool late() {
        if (++calls_ % CALLS_PER_LOOK == 0) late_ = std::chrono::steady_clock::now() >= end_;
        return late_;
    }

private:
    static constexpr auto PATIENCE = std::chrono::milliseconds(30);
    static constexpr uint64_t CALLS_PER_LOOK = 16;  // reading the time costs an idle cycle's time

    std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() + PATIENCE;
    uint64_t calls_ = 0;
    bool late_ = false;
};

}  // namespace systolith
