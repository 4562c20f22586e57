// Jobs for the Python side, and their completions.
//
// Calls of JAX never enter Python: they append a `Job` to a queue, from which a Python thread takes
// it. So JAX may call at any time, even during an exception or the interpreter's shutdown.
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

// Completion of an asynchronous job, with its status. Threads may share it.
class Completion {
public:
    using Callback = std::function<void(const Status&)>;

    // Completes the job with a status, unless it is complete already. First calls `last`, under the
    // lock, so that no wait can return before or during that call.
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

    // Calls back on completion: at once if the job is complete, else from the finishing thread.
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

    // Waits for completion, and returns its status; Ctrl-C ends the wait early with `kCancelled`.
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

    // One lock for all completions, so that a fork can take it (before_fork in client.cpp).
    static inline std::mutex mutex;
    // In the child of a fork: the status of all incomplete jobs, which no thread will complete.
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
    kExecute = 2,   // target: the executable; numbers: count of devices, inputs, outputs, donated
                    // inputs; then the numbers of the latter, and the ids of inputs and outputs
    kUpload = 3,    // target: the buffer; numbers: device, type, sizes; data: elements in C order
    kDownload = 4,  // target: the buffer; data: where to write its elements, in C order
    kShare = 5,     // target: the new buffer; numbers: the buffer whose contents it has, device
    kRelease = 6,   // target: the buffer
    kUnload = 7,    // target: the executable
};

// A job as Python sees it: `Job` of sim/pjrt/library.py.
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
    std::vector<char> owned;  // the bytes at `data`, unless these belong to JAX
    char* to = nullptr;       // of kDownload: JAX's array; receives `owned` unless cancelled
    const char* data = nullptr;
    int64_t bytes = 0;
    std::string more;
    Shared completion;
    // The answer to kCompile.
    std::vector<int64_t> answer;
    std::string name, fingerprint, program, assignment;
};

// A queue of jobs, which one Python thread does in order.
class Queue {
public:
    // Appends a job; after `close`, the job fails at once.
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

    // Waits for the next job and takes it; returns false after `close`.
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

    // For the child of a fork, where the threads that take jobs do not exist: closes the queue. The
    // caller holds `mutex`.
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
