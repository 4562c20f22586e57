"""Simulation speed of the chip, and throughput of its transfers."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from tqdm import tqdm

from golden.chip import GoldenChip
from hdl.config import Config
from sim.asm.descriptor import Place, descriptor, hbm, vmem
from sim.models.chip import ChipModel, Until
from sim.verilated.toolchain import compile_for
from tools.bench.core import busy_program
from tools.bench.machine import AVX2, has_avx2

__all__ = ["busy_speed", "chip_figures", "loaded"]

RUNS = 5
BUSY_LOOPS = 64
IDLE_CYCLES = 100_000
CHECKED_LOOPS = 2

Transfers = Callable[[int], tuple[Place, Place]]


def _check(chip: ChipModel) -> None:
    """Run the busy program on all cores, and compare the state with the golden chip's.

    Raises
    ------
    RuntimeError
        If any state differs.
    """
    program = busy_program(chip.config, CHECKED_LOOPS).bundles
    golden = GoldenChip(chip.config)
    rng = np.random.default_rng(7)
    for core, one in enumerate(golden.cores):
        one.vmem[:] = rng.standard_normal(one.vmem.shape).astype(np.float32).view(np.uint32)
        chip.write_vmem(core, 0, one.vmem)
        one.load_program(program)
        one.start()
        chip.load_program(core, program)
    for core in range(chip.config.cores):
        chip.start(core)
    chip.run()
    while any(one.running for one in golden.cores):
        golden.run(1000)
    for core, one in enumerate(golden.cores):
        state = chip.state(core)
        for part, value in one.read_state(array=False).items():
            if not np.array_equal(state[part], value):
                raise RuntimeError(f"chip and golden chip differ in {part} of core {core}")


def busy_speed(chip: ChipModel, clock: Callable[[], float] = time.perf_counter,
               ) -> tuple[float, float]:
    """Run the program that all cores hold; measure the simulation speed.

    Return simulated cycles a second of ``clock``, and the share of cycles in which an activation
    row enters a core's array, for the core where it is smallest.
    """
    cores = range(chip.config.cores)
    for core in cores:
        chip.clear_counters(core)
    for core in cores:
        chip.start(core)
    first, began = chip.cycle, clock()
    chip.run()
    seconds, cycles = clock() - began, chip.cycle - first
    active = min(chip.counters(core)["mxu_active_cycles"] for core in cores)
    return cycles / seconds, active / cycles


def _idle(chip: ChipModel) -> float:
    """Measure the simulated cycles a second of ``chip`` while all of its units are idle."""
    began = time.perf_counter()
    chip.run(IDLE_CYCLES, until=Until.NEVER)
    return IDLE_CYCLES / (time.perf_counter() - began)


def _transfer(chip: ChipModel, places: Transfers) -> float:
    """Total throughput, in bytes a cycle, of concurrent transfers: one on each core.

    Each transfer is as large as vector memory; ``places(core)`` gives its source and destination.
    The measured cycles include the memory's latency and those in which the host starts the
    transfers.
    """
    config = chip.config
    rows = config.vmem_vectors * config.sublanes
    first = chip.cycle
    for core in range(config.cores):
        source, destination = places(core)
        chip.start_transfer(core, descriptor(config, source, destination, rows=rows))
    chip.run()
    return config.cores * rows * config.row_bytes / (chip.cycle - first)


def _transfers(chip: ChipModel) -> dict[str, float]:
    """Throughput in bytes a cycle from HBM to vector memory, and from vector memory to HBM.

    Raises
    ------
    RuntimeError
        If the rows that the second transfers store differ from those that the first ones loaded.
    """
    config = chip.config
    size, rows = config.vmem_bytes, config.vmem_vectors * config.sublanes
    used = config.cores * rows
    rng = np.random.default_rng(8)
    chip.hbm[:used] = rng.integers(0, 1 << 32, (used, config.lanes), np.uint32)
    load = _transfer(chip, lambda core: (hbm(core * size), vmem(0)))
    store = _transfer(chip, lambda core: (vmem(0), hbm((config.cores + core) * size)))
    if not np.array_equal(chip.hbm[:used], chip.hbm[used:2 * used]):
        raise RuntimeError("rows that were loaded and stored again differ from the original")
    return {"dma_load_bytes_per_cycle": load, "dma_store_bytes_per_cycle": store,
            "dma_bytes_per_cycle": 2 / (1 / load + 1 / store)}


def chip_figures(config: Config) -> dict[str, float]:
    """Measure simulated cycles a second, and the throughput of transfers.

    The busy chip is measured with the model's default number of threads, and with one thread. On a
    machine with AVX2, a busy chip whose kernels use AVX2 is also measured, with one thread:
    ``chip_busy_one_thread_avx2_cycles_per_second``.

    Raises
    ------
    RuntimeError
        If the chip and the golden chip differ.
    """
    speeds: dict[str, list[float]] = {"busy": [], "busy_one_thread": [], "idle": []}
    active = 0.0
    with contextlib.ExitStack() as stack:
        chip = stack.enter_context(loaded(config))
        for _ in tqdm(range(RUNS), "chip", unit="run", leave=False):
            speed, active = busy_speed(chip)
            speeds["busy"].append(speed)
            speeds["idle"].append(_idle(chip))
        transfers = _transfers(chip)
        single = {"busy_one_thread": chip}
        if has_avx2():
            with compile_for(AVX2):
                single["busy_one_thread_avx2"] = stack.enter_context(loaded(config))
            speeds["busy_one_thread_avx2"] = []
        for one in single.values():
            one.model.use_threads(1)
        for _ in tqdm(range(RUNS), "chip, one thread", unit="run", leave=False):
            for name, one in single.items():
                speeds[name].append(busy_speed(one)[0])
    figures = {f"chip_{name}_cycles_per_second": statistics.median(values)
               for name, values in speeds.items()}
    return {**figures, "chip_busy_mxu_active_percent": 100 * active, **transfers}


@contextlib.contextmanager
def loaded(config: Config) -> Iterator[ChipModel]:
    """Yield a chip with the busy program in all cores, after a comparison with the golden chip.

    Raises
    ------
    RuntimeError
        If the chip and the golden chip differ.
    """
    with ChipModel(config) as chip:
        _check(chip)
        program = busy_program(config, BUSY_LOOPS).bundles
        for core in range(config.cores):
            chip.load_program(core, program)
        yield chip
