// Shares the work of a model's kernels among threads.
//
// Between two clock edges the steps of all kernels are independent, because every output of a grid
// is a register. Each kernel is a `Job`. At the falling edge its module posts the inputs; when all
// modules have, the pool opens the jobs. At the rising edge each module finishes its job and takes
// the outputs; the first one to do so makes the calling thread work, too, until no job is left.
// Only the time that a job takes depends on the thread that runs it.
//
// Each thread first takes the jobs of its own home, whose state is in its cache, the heaviest
// first, and then those of others. So no thread ever waits for a worker that sleeps, or that does
// not exist in a forked process. Workers are not woken for little work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

namespace systolith {

class Pool;
class Workers;

// A kernel. Only the thread that evaluates the model calls its functions, except `run`.
class Job {
public:
    // `kind` and `path` are the names of the module and of its instance. The instances of a module,
    // in the order of their paths, have the homes 0, 1, and so on.
    // `weight` is the highest `load`.
    Job(std::string kind, std::string path, uint64_t weight);
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;
    virtual ~Job();

    // A large state is in huge pages, if the system has them: a step touches more small pages than
    // the processor's table holds.
    static void* operator new(size_t size, std::align_val_t alignment);
    static void operator delete(void* memory, std::align_val_t alignment);

    // Reports that the inputs are complete.
    void post();
    bool posted() const { return phase_.load(std::memory_order_relaxed) != IDLE; }
    // Returns when the job has run.
    void finish();

protected:
    // Estimate of the work that the inputs cause, in nanoseconds.
    virtual uint64_t load() const = 0;
    virtual void run() = 0;

private:
    friend Workers;
    // POSTED: only the calling thread may run it. OPEN: any thread may.
    enum Phase : uint32_t { IDLE, POSTED, OPEN, TAKEN, DONE };

    bool claim();
    void execute();

    alignas(64) std::atomic<uint32_t> phase_ = IDLE;
    Workers& workers_;
    const std::string kind_, path_;
    const uint64_t weight_;
    unsigned home_ = 0;
};

class Pool {
public:
    // The pool of the model that this thread evaluates.
    static Pool*& current();

    Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ~Pool();

    // Sets the maximum number of threads, the calling one included. Others are used when they can
    // take over a load of `least`.
    void use(unsigned threads, uint64_t least);

    // In how many cycles jobs were opened to all threads.
    uint64_t openings() const;
    // How many jobs threads other than the calling one ran.
    uint64_t handed() const;

private:
    friend Job;
    // Defined in `pool.cpp`, which is compiled once: all kernels include this file, and templates of
    // threads and sorting take longer to compile than a kernel.
    const std::unique_ptr<Workers> workers_;
};

}  // namespace systolith
