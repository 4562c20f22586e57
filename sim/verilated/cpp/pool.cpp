#include "pool.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace systolith {

static constexpr size_t HUGE_PAGE = size_t(1) << 21;

// A pool's jobs, and the threads besides the calling one.
class Workers {
public:
    Workers() = default;
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;
    ~Workers() { stop(); }

    void use(unsigned threads, uint64_t least) {
        stop();
        threads_ = std::clamp(threads, 1u, MAX_THREADS);
        least_ = least;
    }

    uint64_t openings() const { return openings_; }
    uint64_t handed() const { return handed_.load(std::memory_order_relaxed); }

    void join(Job* job) {
        stop();
        jobs_.push_back(job);
    }

    void leave(Job* job) {
        stop();
        if (job->phase_.load(std::memory_order_relaxed) == Job::POSTED && count_) --count_;
        jobs_.erase(std::find(jobs_.begin(), jobs_.end(), job));
    }

    void post(Job& job) {
        job.phase_.store(Job::POSTED, std::memory_order_relaxed);
        if (++count_ == jobs_.size()) open();
    }

    void finish(Job& job) {
        // Before the first falling edge, modules post when they need the result.
        if (count_) open();
        if (!drained_) {
            work(0);
            drained_ = true;
        }
        if (job.phase_.load(std::memory_order_relaxed) == Job::POSTED) {
            job.run();
        } else {
            uint32_t phase;
            for (int spin = 0; (phase = job.phase_.load(std::memory_order_acquire)) == Job::TAKEN;
                 ++spin) {
                if (spin < SPINS) pause();
                else job.phase_.wait(Job::TAKEN, std::memory_order_acquire);
            }
        }
        job.phase_.store(Job::IDLE, std::memory_order_relaxed);
    }

private:
    static constexpr unsigned MAX_THREADS = 8;
    static constexpr uint64_t LEAST = 4000;
    static constexpr uint64_t LEAST_LOAD = 500;
    // Spins before a thread sleeps: tens of microseconds.
    static constexpr int SPINS = 2000;

    static unsigned available() {
        cpu_set_t cpus;
        const int count = sched_getaffinity(0, sizeof cpus, &cpus) ? 1 : CPU_COUNT(&cpus);
        return std::clamp(unsigned(count), 1u, 2u);
    }

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    // Opens the posted jobs if it pays to share them.
    void open() {
        count_ = 0;
        if (threads_ == 1) return;
        loads_.clear();
        uint64_t total = 0, heaviest = 0;
        for (const Job* job : jobs_) {
            const uint64_t load = job->posted() ? job->load() : 0;
            loads_.push_back(load);
            total += load;
            heaviest = std::max(heaviest, load);
        }
        if (!heaviest || total - heaviest < least_) return;
        if (order_.empty()) start();
        ++openings_;
        drained_ = false;
        for (size_t index = 0; index < jobs_.size(); ++index) {
            // Handing over a small job would take longer than running it.
            if (loads_[index] >= LEAST_LOAD)
                jobs_[index]->phase_.store(Job::OPEN, std::memory_order_release);
        }
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
    }

    // Runs jobs until none is open; returns how many it ran.
    uint64_t work(unsigned thread) {
        uint64_t count = 0;
        for (Job* job : order_[thread]) {
            if (!job->claim()) continue;
            job->execute();
            ++count;
        }
        return count;
    }

    void start() {
        std::vector<Job*> sorted = jobs_;
        std::sort(sorted.begin(), sorted.end(), [](const Job* a, const Job* b) {
            return std::tie(a->kind_, a->path_) < std::tie(b->kind_, b->path_);
        });
        for (size_t index = 0; index < sorted.size(); ++index) {
            const bool again = index && sorted[index]->kind_ == sorted[index - 1]->kind_;
            sorted[index]->home_ = again ? sorted[index - 1]->home_ + 1 : 0;
        }
        for (unsigned thread = 0; thread < threads_; ++thread) {
            const auto away = [&](const Job* job) { return job->home_ % threads_ != thread; };
            std::stable_sort(sorted.begin(), sorted.end(), [&](const Job* a, const Job* b) {
                return away(a) != away(b) ? away(b) : a->weight_ > b->weight_;
            });
            order_.push_back(sorted);
        }
        owner_ = getpid();
        stopping_.store(false, std::memory_order_relaxed);
        // Workers block all signals, which are for the application's own threads.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (unsigned thread = 1; thread < threads_; ++thread)
            workers_.emplace_back([this, thread, seen = epoch_.load(std::memory_order_relaxed)] {
                loop(thread, seen);
            });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void loop(unsigned thread, uint32_t seen) {
        for (;;) {
            for (int spin = 0; epoch_.load(std::memory_order_acquire) == seen; ++spin) {
                if (spin < SPINS) pause();
                else epoch_.wait(seen, std::memory_order_acquire);
            }
            if (stopping_.load(std::memory_order_relaxed)) return;
            seen = epoch_.load(std::memory_order_acquire);
            handed_.fetch_add(work(thread), std::memory_order_relaxed);
        }
    }

    void stop() {
        if (order_.empty()) return;
        stopping_.store(true, std::memory_order_relaxed);
        epoch_.fetch_add(1, std::memory_order_release);
        epoch_.notify_all();
        for (std::thread& worker : workers_) {
            // In a forked process the workers do not exist.
            if (owner_ == getpid()) worker.join();
            else worker.detach();
        }
        workers_.clear();
        order_.clear();
        drained_ = true;
        for (Job* job : jobs_) {
            if (job->phase_.load(std::memory_order_relaxed) == Job::OPEN)
                job->phase_.store(Job::POSTED, std::memory_order_relaxed);
        }
    }

    std::vector<Job*> jobs_;
    size_t count_ = 0;  // posted jobs that are not open yet
    bool drained_ = true;
    std::vector<uint64_t> loads_;
    unsigned threads_ = available();
    uint64_t least_ = LEAST;
    uint64_t openings_ = 0;
    std::vector<std::vector<Job*>> order_;  // by thread; empty while there are no workers
    std::vector<std::thread> workers_;
    pid_t owner_ = 0;
    alignas(64) std::atomic<uint32_t> epoch_ = 0;
    std::atomic<bool> stopping_ = false;
    std::atomic<uint64_t> handed_ = 0;
};

bool Job::claim() {
    uint32_t expected = OPEN;
    return phase_.load(std::memory_order_relaxed) == OPEN
        && phase_.compare_exchange_strong(expected, TAKEN, std::memory_order_acquire,
                                          std::memory_order_relaxed);
}

void Job::execute() {
    run();
    phase_.store(DONE, std::memory_order_release);
    phase_.notify_one();
}

Job::Job(std::string kind, std::string path, uint64_t weight)
    : workers_(*Pool::current()->workers_), kind_(std::move(kind)), path_(std::move(path)),
      weight_(weight) {
    workers_.join(this);
}
Job::~Job() { workers_.leave(this); }

void* Job::operator new(size_t size, std::align_val_t alignment) {
    const size_t unit = size < HUGE_PAGE ? size_t(alignment) : HUGE_PAGE;
    size = (size + unit - 1) / unit * unit;
    void* memory = std::aligned_alloc(unit, size);
    if (!memory) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    // If the system does not follow the advice, the memory has small pages.
    if (unit == HUGE_PAGE) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return memory;
}
void Job::operator delete(void* memory, std::align_val_t) { std::free(memory); }
void Job::post() { workers_.post(*this); }
void Job::finish() { workers_.finish(*this); }

Pool*& Pool::current() {
    thread_local Pool* pool = nullptr;
    return pool;
}

Pool::Pool() : workers_(std::make_unique<Workers>()) {}
Pool::~Pool() = default;
void Pool::use(unsigned threads, uint64_t least) { workers_->use(threads, least); }
uint64_t Pool::openings() const { return workers_->openings(); }
uint64_t Pool::handed() const { return workers_->handed(); }

}  // namespace systolith
