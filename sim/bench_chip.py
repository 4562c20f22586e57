"""How fast the chip is simulated, busy and idle, and how many bytes its transfers move a cycle."""

import statistics
import time
from collections.abc import Callable

import numpy as np
from tqdm import tqdm

from golden.chip import GoldenChip
from hdl.config import Config
from sim.bench_core import busy_program
from sim.chip import ChipModel, Until
from sim.descriptor import Place, descriptor, hbm, vmem

__all__ = ["chip_figures"]

RUNS = 5
BUSY_LOOPS = 64
IDLE_CYCLES = 100_000
CHECKED_LOOPS = 2

Transfers = Callable[[int], tuple[Place, Place]]


def _check(chip: ChipModel) -> None:
    """Compares a run of all cores with the golden chip's.

    Raises
    ------
    RuntimeError
        If any state differs.
    """
    program = busy_program(chip.config, CHECKED_LOOPS).bundles
    golden = GoldenChip(chip.config)
    rng = np.random.default_rng(7)
    for core, machine in enumerate(golden.cores):
        machine.vmem[:] = rng.standard_normal(machine.vmem.shape).astype(np.float32).view(np.uint32)
        chip.write_vmem(core, 0, machine.vmem)
        machine.load_program(program)
        machine.start()
        chip.load_program(core, program)
    for core in range(chip.config.cores):
        chip.start(core)
    chip.run()
    while any(machine.running for machine in golden.cores):
        golden.run(1000)
    for core, machine in enumerate(golden.cores):
        state = chip.state(core)
        for part, value in machine.read_state(array=False).items():
            if not np.array_equal(state[part], value):
                raise RuntimeError(f"chip and golden chip differ in {part} of core {core}")


def _busy(chip: ChipModel) -> float:
    """Cycles a second with all units of all cores at work."""
    for core in range(chip.config.cores):
        chip.start(core)
    first, began = chip.cycle, time.perf_counter()
    chip.run()
    return (chip.cycle - first) / (time.perf_counter() - began)


def _idle(chip: ChipModel) -> float:
    """Cycles a second with nothing at work."""
    began = time.perf_counter()
    chip.run(IDLE_CYCLES, until=Until.NEVER)
    return IDLE_CYCLES / (time.perf_counter() - began)


def _transfer(chip: ChipModel, places: Transfers) -> float:
    """Bytes a cycle of a transfer as large as vector memory on each core, all at once.

    The cycles in which the host starts them count, and the memory's latency.
    """
    config = chip.config
    rows = config.vmem_words * config.sublanes
    first = chip.cycle
    for core in range(config.cores):
        source, destination = places(core)
        chip.start_transfer(core, descriptor(config, source, destination, rows=rows))
    chip.run()
    return config.cores * rows * config.row_bytes / (chip.cycle - first)


def _transfers(chip: ChipModel) -> dict[str, float]:
    """Bytes a cycle from HBM to vector memory, and back to another place.

    Raises
    ------
    RuntimeError
        If what comes back is something else.
    """
    config = chip.config
    size, rows = config.vmem_bytes, config.vmem_words * config.sublanes
    used = config.cores * rows
    rng = np.random.default_rng(8)
    chip.hbm[:used] = rng.integers(0, 1 << 32, (used, config.lanes), np.uint32)
    load = _transfer(chip, lambda core: (hbm(core * size), vmem(0)))
    store = _transfer(chip, lambda core: (vmem(0), hbm((config.cores + core) * size)))
    if not np.array_equal(chip.hbm[:used], chip.hbm[used:2 * used]):
        raise RuntimeError("transfers have brought other data")
    return {"dma_load_bytes_per_cycle": load, "dma_store_bytes_per_cycle": store,
            "dma_bytes_per_cycle": 2 / (1 / load + 1 / store)}


def chip_figures(config: Config) -> dict[str, float]:
    """Simulated cycles a second, on two threads where there are two, and the speed of transfers.

    Raises
    ------
    RuntimeError
        If the chip does something else than the golden chip.
    """
    speeds: dict[str, list[float]] = {"busy": [], "busy_one_thread": [], "idle": []}
    with ChipModel(config) as chip:
        _check(chip)
        program = busy_program(config, BUSY_LOOPS).bundles
        for core in range(config.cores):
            chip.load_program(core, program)
        for _ in tqdm(range(RUNS), "chip", unit="run", leave=False):
            speeds["busy"].append(_busy(chip))
            speeds["idle"].append(_idle(chip))
        transfers = _transfers(chip)
        chip.model.use_threads(1)
        for _ in tqdm(range(RUNS), "chip, one thread", unit="run", leave=False):
            speeds["busy_one_thread"].append(_busy(chip))
    return {**{f"chip_{name}_cycles_per_second": statistics.median(values)
               for name, values in speeds.items()}, **transfers}
