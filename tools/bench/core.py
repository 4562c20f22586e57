"""Simulation speed of the core: all units busy, the vector unit alone, scalar code, and idle."""

import statistics
import time
from collections.abc import Callable

import numpy as np
from tqdm import tqdm

from golden.core import GoldenCore
from hdl.config import Config
from sim.asm.assembler import Assembler, Program
from sim.asm.operands import s, v
from sim.models.core import CoreModel

__all__ = ["busy_program", "core_figures", "scalar_program", "vector_program"]

RUNS = 5
BUSY_LOOPS = 256
VECTOR_LOOPS = 100
SCALAR_LOOPS = 20_000
IDLE_CYCLES = 200_000
CHECKED_LOOPS = 3

_ADDRESS, _COUNT = s[1], s[2]
_FACTORS, _TERMS = v[1], v[2]
_ROWS, _WEIGHTS, _RESULTS, _LOADED, _PRODUCTS, _SUMS = (
    [v[number] for number in range(first, end)]
    for first, end in ((3, 5), (5, 7), (7, 9), (9, 17), (17, 24), (24, 32)))


def _address_of_stores(config: Config) -> int:
    return config.vmem_vectors // 2


def busy_program(config: Config, loops: int) -> Program:
    """A program of ``loops`` iterations that keeps every unit busy.

    An iteration pushes a weight tile and ``array`` rows of activations. Each of its bundles
    multiplies in one vector slot and adds in the other, loads and stores a vector, and computes
    the next address in a scalar slot. Rows and weights are pushed, and results popped, at the rate
    of the array: one row a cycle.

    Raises
    ------
    ValueError
        If ``config`` has fewer than 4 sublanes.
    """
    if config.sublanes < 4:
        raise ValueError(f"config must have at least 4 sublanes, not {config.sublanes!r}")
    asm = Assembler(config)
    ahead = config.result_vregs - 2
    _begin(asm, loops)
    for group in range(config.tile_vregs):
        with asm.bundle() as bundle:
            bundle.ld.load(_WEIGHTS[group % 2], s[0], group)
        with asm.bundle() as bundle:
            bundle.push.weights(_WEIGHTS[group % 2])
    # Rows in flight: the array processes them while the loop pushes more.
    for group in range(ahead):
        with asm.bundle() as bundle:
            if group:
                bundle.push.rows(_ROWS[group % 2])
            else:
                bundle.push.rows_swap(_ROWS[0])
    for group in range(config.tile_vregs):
        with asm.bundle() as bundle:
            bundle.ld.load(_WEIGHTS[group % 2], s[0], group)
        with asm.bundle() as bundle:
            bundle.push.weights(_WEIGHTS[group % 2])
    _loop(asm, config, config.array, array=True)
    # Drain the array, so that the program can run again.
    with asm.bundle() as bundle:
        bundle.push.rows_swap(_ROWS[0])
    for _ in range(ahead + 1):
        with asm.bundle() as bundle:
            bundle.pop.pop(_RESULTS[0])
    with asm.bundle() as bundle:
        bundle.s1.halt()
    return asm.assemble()


def vector_program(config: Config, loops: int) -> Program:
    """The program `busy_program` of ``loops`` iterations, but without pushes and pops."""
    asm = Assembler(config)
    _begin(asm, loops)
    _loop(asm, config, 8 * len(_PRODUCTS), array=False)
    with asm.bundle() as bundle:
        bundle.s1.halt()
    return asm.assemble()


def scalar_program(config: Config, loops: int) -> Program:
    """A loop of four bundles with an operation in each scalar slot, for ``loops`` iterations."""
    asm = Assembler(config)
    with asm.bundle() as bundle:
        bundle.s0.add(_COUNT, s[0], loops)
    asm.label("loop")
    with asm.bundle() as bundle:
        bundle.s0.add(s[3], s[3], _COUNT)
        bundle.s1.xor(s[4], s[4], s[3])
    with asm.bundle() as bundle:
        bundle.s0.mul(s[5], s[3], s[4])
        bundle.s1.shr(s[6], s[4], 3)
    with asm.bundle() as bundle:
        bundle.s0.store(s[5], s[0], 5)
        bundle.s1.sub(s[7], s[6], s[5])
    with asm.bundle() as bundle:
        bundle.s0.load(s[8], s[0], 5)
        bundle.s1.loop(_COUNT, "loop")
    with asm.bundle() as bundle:
        bundle.s1.halt()
    return asm.assemble()


def _begin(asm: Assembler, loops: int) -> None:
    with asm.bundle() as bundle:
        bundle.s0.add(_COUNT, s[0], loops)
        bundle.s1.add(_ADDRESS, s[0], 0)
    for number, register in enumerate((_FACTORS, _TERMS, *_ROWS, *_WEIGHTS, *_RESULTS, *_LOADED,
                                       *_PRODUCTS, *_SUMS)):
        with asm.bundle() as bundle:
            bundle.ld.load(register, s[0], number)


def _loop(asm: Assembler, config: Config, length: int, *, array: bool) -> None:
    """Append a loop of ``length`` bundles to ``asm``, with pushes and pops if ``array`` is true."""
    stores = _address_of_stores(config)
    group_length = config.sublanes
    asm.label("loop")
    for index in range(length):
        group, place = divmod(index, group_length)
        loaded = _LOADED[index % len(_LOADED)]
        with asm.bundle() as bundle:
            bundle.v0.fmul(_PRODUCTS[index % len(_PRODUCTS)],
                           _LOADED[(index - 4) % len(_LOADED)], _FACTORS)
            bundle.v1.fadd(_SUMS[index % len(_SUMS)],
                           _PRODUCTS[(index - 5) % len(_PRODUCTS)], _TERMS)
            if array:
                if place == 0:
                    # The weights that the previous iteration loaded.
                    push = bundle.push.rows_swap if group == 0 else bundle.push.rows
                    push(_ROWS[group % 2])
                elif place == 1:
                    bundle.push.weights(_WEIGHTS[group % 2])
                elif place == 2:
                    bundle.pop.pop(_RESULTS[group % 2])
                    loaded = _ROWS[(group + 1) % 2]
                else:
                    loaded = _WEIGHTS[(group + 1) % 2] if place == 3 else loaded
            bundle.ld.load(loaded, _ADDRESS)
            bundle.st.store(_SUMS[(index - 6) % len(_SUMS)], _ADDRESS, stores)
            if index < length - 1:
                bundle.s0.add(_ADDRESS, _ADDRESS, 1)
            else:
                bundle.s0.add(_ADDRESS, s[0], 0)
                bundle.s1.loop(_COUNT, "loop")


def _check(core: CoreModel, program: Program) -> None:
    """Run ``program`` on the core and on the golden core, and compare their states.

    Raises
    ------
    RuntimeError
        If any state differs.
    """
    golden = GoldenCore(core.config)
    rng = np.random.default_rng(7)
    data = rng.standard_normal(golden.vmem.shape).astype(np.float32)
    golden.vmem[:] = data.view(np.uint32)
    golden.load_program(program.bundles)
    golden.start()
    while golden.running:
        golden.run(1000)
    core.reset()
    core.write_vmem(0, data)
    core.run_program(program.bundles)
    state, expected = core.read_state(), golden.read_state(array=False)
    for part, value in expected.items():
        if not np.array_equal(state[part], value):
            raise RuntimeError(f"core and golden core differ in {part}")


def core_figures(config: Config) -> dict[str, float]:
    """Measure the core's simulated cycles a second, and the share of cycles with a busy array.

    Raises
    ------
    RuntimeError
        If the core and the golden core differ.
    """
    speeds: dict[str, list[float]] = {"busy": [], "vector": [], "scalar": [], "idle": []}
    active = 0.0
    with CoreModel(config) as core:
        for make in (busy_program, vector_program, scalar_program):
            _check(core, make(config, CHECKED_LOOPS))
        programs: dict[str, Callable[[], Program]] = {
            "busy": lambda: busy_program(config, BUSY_LOOPS),
            "vector": lambda: vector_program(config, VECTOR_LOOPS),
            "scalar": lambda: scalar_program(config, SCALAR_LOOPS)}
        for name, program in tqdm(programs.items(), "core", unit="program", leave=False):
            core.load_program(program().bundles)
            for _ in range(RUNS):
                began = time.perf_counter()
                counters = core.run_program()
                speeds[name].append(counters["cycles"] / (time.perf_counter() - began))
                if name == "busy":
                    active = 100 * counters["mxu_active_cycles"] / counters["cycles"]
        for _ in range(RUNS):
            began = time.perf_counter()
            core.model.tick(IDLE_CYCLES)
            speeds["idle"].append(IDLE_CYCLES / (time.perf_counter() - began))
    return {**{f"core_{name}_cycles_per_second": statistics.median(values)
               for name, values in speeds.items()},
            "core_busy_mxu_active_percent": active}
