// Jobs for the Python side, and their completions.
//
// Calls of JAX never enter Python: they append a `Job` to a queue, and a Python thread takes it.
// So JAX may call at any time, even while an exception unwinds or the interpreter shuts down.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api.hpp"
#include "python.hpp"

namespace systolith::pjrt {

// Code and message of an error; code 0 is success.
struct Status {
    int code = 0;
    std::string message;
    bool ok() const { return code == 0; }
};

// The end of something asynchronous. Threads may share it.
class Completion {
public:
    using Callback = std::function<void(const Status&)>;

    // Ends it, unless it has ended. Before, and while no wait can end, does what `last` says.
    void finish(Status status, const std::function<void()>& last = {}) {
        std::vector<Callback> callbacks;
        {
            std::lock_guard lock(mutex);
            if (ready_) return;
            if (last) last();
            status_ = std::move(status);
            ready_ = true;
            callbacks.swap(callbacks_);
        }
        done_.notify_all();
        for (auto& callback : callbacks) callback(status_);
    }

    bool ready() {
        std::lock_guard lock(mutex);
        return ready_;
    }

    // Calls back as soon as it is finished: now, or later on the thread that finishes it.
    void on_ready(Callback callback) {
        {
            std::lock_guard lock(mutex);
            if (!ready_) {
                callbacks_.push_back(std::move(callback));
                return;
            }
        }
        callback(status_);
    }

    // Waits; Ctrl-C ends the wait early.
    Status wait() {
        WithoutGil released;
        std::unique_lock lock(mutex);
        while (!done_.wait_for(lock, std::chrono::milliseconds(100),
                               [this] { return ready_ || !abandoned.ok(); })) {
            lock.unlock();
            if (interrupted()) return {kCancelled, "interrupted"};
            lock.lock();
        }
        return ready_ ? status_ : abandoned;
    }

    // Of all completions: a fork must find it free.
    static inline std::mutex mutex;
    // In the child of a fork: the end of what has not ended, for nothing will end it.
    static inline Status abandoned;

private:
    std::condition_variable done_;
    bool ready_ = false;
    Status status_;
    std::vector<Callback> callbacks_;
};

using Shared = std::shared_ptr<Completion>;

// Kinds of jobs; sim/pjrt/library.py has the same numbers.
enum Kind : int64_t {
    kCompile = 1,   // target: the executable to be; data: the program; more: the options
    kExecute = 2,   // target: the executable; numbers: count of devices, inputs, outputs; then ids
    kUpload = 3,    // target: the buffer; numbers: device, type, sizes; data: elements in C order
    kDownload = 4,  // target: the buffer; data: where to write its elements, in C order
    kShare = 5,     // target: the new buffer; numbers: the buffer whose contents it has
    kRelease = 6,   // target: the buffer
    kUnload = 7,    // target: the executable
};

// What Python sees of a job.
struct JobView {
    int64_t kind;
    int64_t target;
    const int64_t* numbers;
    int64_t count;
    const char* data;
    int64_t bytes;
    const char* more;
    int64_t more_bytes;
    struct Job* job;
};

struct Job {
    Kind kind;
    int64_t target = 0;
    std::vector<int64_t> numbers;
    std::vector<char> owned;  // what `data` points to, unless it is JAX's
    char* to = nullptr;       // of kDownload: where `owned` goes, unless the wait for it is cancelled
    const char* data = nullptr;
    int64_t bytes = 0;
    std::string more;
    Shared completion;
    // The answer to kCompile.
    std::vector<int64_t> answer;
    std::string name, fingerprint, program, assignment;
};

// A queue of jobs that one Python thread works on, in order.
class Queue {
public:
    // Appends a job. After `close`, it fails at once.
    void push(std::shared_ptr<Job> job) {
        {
            std::lock_guard lock(mutex);
            if (!closed_) {
                jobs_.push_back(std::move(job));
                work_.notify_one();
                return;
            }
        }
        if (job->completion) job->completion->finish(reason_);
    }

    // Takes the next job, waiting for one; false after `close`.
    bool next(JobView* view) {
        std::unique_lock lock(mutex);
        current_.reset();
        work_.wait(lock, [this] { return closed_ || !jobs_.empty(); });
        if (closed_) return false;
        current_ = std::move(jobs_.front());
        jobs_.pop_front();
        Job& job = *current_;
        *view = {job.kind, job.target, job.numbers.data(), int64_t(job.numbers.size()), job.data,
                 job.bytes, job.more.data(), int64_t(job.more.size()), &job};
        return true;
    }

    // Makes all jobs that have not begun, and all later ones, fail.
    void close(Status reason) {
        std::deque<std::shared_ptr<Job>> left;
        {
            std::lock_guard lock(mutex);
            closed_ = true;
            reason_ = std::move(reason);
            left.swap(jobs_);
        }
        work_.notify_all();
        for (auto& job : left)
            if (job->completion) job->completion->finish(reason_);
    }

    // In the child of a fork, which holds `mutex`: the threads that take jobs do not exist there.
    void abandon(Status reason) {
        closed_ = true;
        reason_ = std::move(reason);
    }

    std::mutex mutex;

private:
    std::condition_variable work_;
    std::deque<std::shared_ptr<Job>> jobs_;
    std::shared_ptr<Job> current_;
    bool closed_ = false;
    Status reason_;
};

}  // namespace systolith::pjrt
