"""Kernels whose steps run on several threads give the bits of one thread and of Verilog."""

import os
import pathlib
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

import sim.verilated
from golden.core import GoldenCore
from hdl.config import Config
from hdl.encoding import pack
from hdl.isa import ScalarOp, Slot
from sim.verilated.model import Model
from sim.verilated.toolchain import Toolchain
from verif.sim.kernel.lockstep import PARALLEL, Lockstep, random_words, sparse
from verif.sim.kernel.test_grid import linked
from verif.sim.kernel.two_cores import CORES, TwoCoresModel, two_cores_library
from verif.system.programs.generator import Generator

SEED = 76
CYCLES = 1500
HALT = pack({Slot.S1: {"op": ScalarOp.HALT}})
POOL = pathlib.Path(sim.verilated.__file__).parent / "cpp"

POOL_TEST = r"""
#include "pool.hpp"
#include <cstdio>
#include <memory>
#include <vector>
#include <unistd.h>

// Each step of a job depends on the one before, and on the other jobs' in the last cycle.
struct Sum final : systolith::Job {
    Sum(const char* path, uint64_t work) : Job("sum", path, work), work(work) {}
    uint64_t load() const override { return work; }
    void run() override {
        uint64_t next = state;
        for (uint64_t i = 0; i < work; ++i) next = next * 6364136223846793005u + input + i;
        state = next;
    }
    uint64_t work, state = 1, input = 0;
};

uint64_t simulate(unsigned threads, uint64_t least, bool& shared) {
    systolith::Pool pool;
    systolith::Pool::current() = &pool;
    uint64_t outputs[6] = {};
    {
        std::vector<std::unique_ptr<Sum>> jobs;
        for (int i = 0; i < 6; ++i)
            jobs.push_back(std::make_unique<Sum>(i % 2 ? "b" : "a", i == 2 ? 40000 : 700 * i));
        pool.use(threads, least);
        for (int cycle = 0; cycle < 2000; ++cycle) {
            // Long pauses put the workers to sleep; sometimes threads come and go.
            if (cycle % 500 == 499) usleep(3000);
            if (cycle % 700 == 699) pool.use(threads, least);
            // In the first cycle nothing was posted before the result is needed.
            for (int i = 0; cycle && i < 6; ++i) {
                jobs[i]->input = outputs[(i + 1) % 6];
                jobs[i]->post();
            }
            uint64_t next[6];
            for (int i = 5; i >= 0; --i) {
                if (!jobs[i]->posted()) {
                    jobs[i]->input = outputs[(i + 1) % 6];
                    jobs[i]->post();
                }
                jobs[i]->finish();
                next[i] = jobs[i]->state;
            }
            std::copy(next, next + 6, outputs);
        }
        shared = pool.openings() > 1000;
    }
    return outputs[0] ^ outputs[1] ^ outputs[2] ^ outputs[3] ^ outputs[4] ^ outputs[5];
}

int main() {
    bool shared;
    const uint64_t expected = simulate(1, 0, shared);
    if (shared) return 1;
    for (unsigned threads : {2u, 3u, 8u}) {
        if (simulate(threads, 0, shared) != expected) return 2;
        if (!shared) return 3;
        if (simulate(threads, 100000, shared) != expected) return 4;
        if (shared) return 5;
    }
    std::puts("done");
}
"""

STATE_TEST = r"""
#include "pool.hpp"
#include <cstdio>
#include <cstring>
#include <memory>

template <size_t SIZE> struct State final : systolith::Job {
    explicit State(bool fails) : Job("state", "a", 1) {
        std::memset(words, 1, SIZE);
        if (fails) throw 1;
    }
    uint64_t load() const override { return 1; }
    void run() override {}
    unsigned char words[SIZE];
};

template <size_t SIZE> bool begins_at_a_multiple_of(size_t alignment) {
    const auto state = std::make_unique<State<SIZE>>(false);
    const bool aligned = reinterpret_cast<uintptr_t>(state.get()) % alignment == 0;
    try {
        delete new State<SIZE>(true);
        return false;
    } catch (int) {
    }
    return aligned;
}

int main() {
    systolith::Pool pool;
    systolith::Pool::current() = &pool;
    if (!begins_at_a_multiple_of<100>(64)) return 1;
    if (!begins_at_a_multiple_of<5 << 20>(2 << 20)) return 2;
    std::puts("done");
}
"""


@pytest.mark.parametrize(("sanitizer", "text"), [("thread", POOL_TEST), ("address", STATE_TEST)],
                         ids=["data races", "memory of states"])
def test_pool_passes_the_sanitizers(sanitizer: str, text: str, tmp_path: pathlib.Path) -> None:
    tools = Toolchain.find()
    source, program = tmp_path / "test.cpp", tmp_path / "test"
    source.write_text(text)
    command = [*tools.cxx, "-std=c++20", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}",
               "-Wall", "-Wextra", "-Werror", f"-I{POOL}", str(source), str(POOL / "pool.cpp"),
               "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if f"lib{sanitizer[0]}san" in built.stderr:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer")
    assert not built.returncode, built.stderr
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.fixture(scope="module")
def lockstep() -> Lockstep:
    return Lockstep("kernel_threads", {"g3x130": linked(3, 130), "g20x5": linked(20, 5)},
                    [PARALLEL])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("density", [0.5, 0.02])
def test_parallel_kernels_match_verilator(lockstep: Lockstep, threads: int, density: float) -> None:
    rng = np.random.default_rng(SEED)
    with Model(lockstep.path) as model:
        model.use_threads(threads, least=0)
        inputs = {name: random_words(rng, width, CYCLES)
                  for name, width in lockstep.inputs.items()}
        for name, width in lockstep.inputs.items():
            if name.endswith(("_xv", "_sv", "_own_bit_i", "_top")):
                inputs[name] = sparse(rng, width, CYCLES, density)
        inputs["rst"] = (rng.random(CYCLES) < 0.01).astype(np.uint32)
        # From the first rising edge on, before which there is no falling one.
        seen = lockstep.run(model, inputs, CYCLES)
        cycles, _ = model.shared_work
    assert seen.mean() > 0.8
    assert cycles > CYCLES // 10 if threads > 1 else cycles == 0


def test_little_work_stays_on_one_thread(lockstep: Lockstep) -> None:
    rng = np.random.default_rng(SEED)
    with Model(lockstep.path) as model:
        model.use_threads(2)
        lockstep.run(model, {name: random_words(rng, width, 200)
                             for name, width in lockstep.inputs.items()}, 200)
        assert model.shared_work == (0, 0)


def test_forked_process_goes_on_without_the_other_threads(lockstep: Lockstep) -> None:
    rng = np.random.default_rng(SEED)
    inputs = {name: random_words(rng, width, 100) for name, width in lockstep.inputs.items()}
    with Model(lockstep.path) as model:
        model.use_threads(2, least=0)
        lockstep.run(model, inputs, 100)
        assert model.shared_work[0]
        child = os.fork()
        if child == 0:
            status = 1
            try:
                lockstep.run(model, inputs, 100)
                model.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        lockstep.run(model, inputs, 100)


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, 0), "threads must be from 1 to 8, not 0"),
    ((9, 0), "threads must be from 1 to 8, not 9"),
    ((2, -1), "least must be from 0"),
])
def test_wrong_number_of_threads_is_named(lockstep: Lockstep, arguments: tuple[int, int],
                                          message: str) -> None:
    with Model(lockstep.path) as model, pytest.raises(ValueError, match=message):
        model.use_threads(arguments[0], least=arguments[1])


Round = tuple[list[list[int]], dict[str, np.ndarray]]
"""Programs of both cores, and random words at their host's ports."""


def stimuli(config: Config, rng: np.random.Generator, rounds: int, cycles: int) -> Iterator[Round]:
    """Programs of both cores and random words at their host's ports, for each round."""
    for _ in range(rounds):
        programs = [[*Generator(GoldenCore(config), rng).sequence(120), HALT] for _ in range(CORES)]
        inputs = {}
        for core in range(CORES):
            rows = random_words(rng, 32 * config.lanes + 16, cycles)
            rows[:, 0] = (rows[:, 0] & 0xFFFF0000) | (rows[:, 0] & 0xFFFF) % config.vmem_vectors
            inputs[f"core_{core}__host_write__payload"] = rows
            for name, density in (("write__valid", 0.2), ("rows__ready", 0.7)):
                inputs[f"core_{core}__host_{name}"] = (rng.random(cycles) < density).astype(
                    np.uint32)
        yield programs, inputs


def outputs_of(path: pathlib.Path, config: Config, *, threads: int, rounds: int = 6,
               cycles: int = 500) -> tuple[dict[str, np.ndarray], int]:
    """Runs both cores; returns all outputs by cycle, and the number of cycles with shared work."""
    rng = np.random.default_rng(SEED)
    results = []
    with Model(path) as model:
        model.use_threads(threads, least=0)
        cores = TwoCoresModel(model)
        outputs = [port.name for port in model.ports.values() if not port.is_input]
        for programs, inputs in stimuli(config, rng, rounds, cycles):
            for core, program in enumerate(programs):
                cores.load_program(core, program)
            for core in range(CORES):
                cores.start(core)
            results.append(model.run(inputs, outputs))
        shared, _ = model.shared_work
    return ({name: np.concatenate([result[name] for result in results]) for name in outputs},
            shared)


@pytest.mark.slow
def test_two_cores_on_two_threads_equal_one_thread() -> None:
    """`test_core.py` compares a core of each size, with kernels and in Verilog, with golden."""
    config = Config.preset("small")
    path = two_cores_library(config)
    expected, _ = outputs_of(path, config, threads=1)
    seen, shared = outputs_of(path, config, threads=2)
    for name, values in expected.items():
        np.testing.assert_array_equal(seen[name], values, err_msg=f"{name}, seed {SEED}")
    assert shared > 100
    for core in range(CORES):
        assert expected[f"core_{core}__running"].sum() > 100
        assert expected[f"core_{core}__host_rows__payload"].any() or \
            expected[f"core_{core}__pc"].any()
