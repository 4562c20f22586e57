"""Figures of links: cycles of a hop, the links' rate while cores use HBM, simulation speeds."""

import statistics
import time

import numpy as np
from tqdm import tqdm

from hdl.config import Config
from hdl.dma.format import DmaSpace, pack_descriptor, pack_remote
from sim.models.chip.model import ChipModel
from sim.models.chip.simulation import Until
from sim.models.chip.torus import ChipTorus
from tools.bench.chip import busy_speed, loaded

__all__ = ["PEAK", "link_figures"]

LATENCY = 64
LINK_BYTES = 128
PEAK = 11 / 16
"""Maximum rate of a link, in flits a cycle."""
WAYS = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""(hops along X, hops along Y) to each of the four neighbours of a chip."""
MANY_VECTORS = 1 << 20
WARM_CYCLES = 500
RUN_CYCLES = 1000
RUNS = 5


def _send(torus: ChipTorus, chip: int, core: int, hops: tuple[int, int], vectors: int) -> None:
    """Start a transfer that sends one vector ``vectors`` times to another chip.

    It goes from core ``core`` of chip number ``chip`` to the same core of the chip that is ``hops``
    (along X, along Y) away.
    """
    torus.chips[chip].start_transfer(core, pack_descriptor({
        "source_space": DmaSpace.VMEM, "destination_space": DmaSpace.REMOTE_VMEM,
        "rows": vectors * torus.config.sublanes, "source_address": 0, "source_run": 1,
        "destination_address": pack_remote(*hops, core) << 32, "destination_run": 1}))


def _send_all(torus: ChipTorus) -> None:
    """Let all cores send in all directions for a long time."""
    for chip in range(len(torus.chips)):
        for core in range(torus.config.cores):
            for hops in WAYS:
                _send(torus, chip, core, hops, MANY_VECTORS)


def _hop_cycles(config: Config) -> float:
    """Cycles from the arrival of a packet at a chip to its departure on another wire."""
    times = []
    with ChipTorus(config, (4, 1), LATENCY) as torus:
        for hops in (1, 3):
            first = torus.chips[0].cycle
            _send(torus, 0, 0, (hops, 0), 1)
            torus.run()
            times.append(torus.rested - first)
    return (times[1] - times[0]) / 2 - LATENCY


def _beside_hbm(config: Config) -> float:
    """Rate of the slowest link of 2 x 2 busy chips, as a share of `PEAK`.

    All cores send in all directions. Meanwhile, core 0 of each chip loads from HBM, and core 1
    stores to it.
    """
    with ChipTorus(config, (2, 2), LATENCY) as torus:
        for chip in torus.chips:
            for core, spaces in enumerate(((DmaSpace.HBM, DmaSpace.VMEM),
                                           (DmaSpace.VMEM, DmaSpace.HBM))):
                runs = {DmaSpace.HBM: config.sublanes, DmaSpace.VMEM: 1}
                chip.start_transfer(core, pack_descriptor({
                    "source_space": spaces[0], "destination_space": spaces[1],
                    "rows": MANY_VECTORS * config.sublanes,
                    "source_run": runs[spaces[0]], "destination_run": runs[spaces[1]]}))
        _send_all(torus)
        torus.run(WARM_CYCLES, until=Until.NEVER)
        before = torus.sent()
        torus.run(RUN_CYCLES, until=Until.NEVER)
        return float(np.min(torus.sent() - before)) / RUN_CYCLES / PEAK


def _slowdown(plain: Config, linked: Config) -> float:
    """Processor time to simulate a busy chip with idle links, divided by that of one without links.

    The two chips run alternately, each on one thread. The fastest run of each chip is compared,
    because other work on the machine can only slow a run down.
    """
    with loaded(plain) as one, loaded(linked) as other:
        speeds: dict[ChipModel, list[float]] = {one: [], other: []}
        for chip in speeds:
            chip.model.use_threads(1)
        for _ in tqdm(range(2 * RUNS), "chip with links", unit="run", leave=False):
            for chip, found in speeds.items():
                found.append(busy_speed(chip, time.thread_time)[0])
    return max(speeds[one]) / max(speeds[other])


def _speed(config: Config, quantum: int | None = None, threads: int | None = None) -> float:
    """Simulated cycles a second of 4 x 4 chips, while every core sends in all four directions."""
    speeds = []
    with ChipTorus(config, (4, 4), LATENCY, quantum=quantum, threads=threads) as torus:
        _send_all(torus)
        for _ in tqdm(range(RUNS), "pod", unit="run", leave=False):
            began = time.perf_counter()
            torus.run(RUN_CYCLES, until=Until.NEVER)
            speeds.append(RUN_CYCLES / (time.perf_counter() - began))
    return statistics.median(speeds)


def link_figures(name: str) -> dict[str, float]:
    """Measure chips of preset ``name`` with flits of `LINK_BYTES`, and wires of 64 cycles.

    Returns
    -------
    dict of str to float
        ``hop_cycles``: cycles that a packet spends in a chip which forwards it.
        ``link_share_beside_hbm``: share of its peak that the slowest link reaches while the cores
        also load from HBM and store to it. ``busy_chip_slowdown_with_idle_fabric``: processor time
        to simulate a busy chip with links that are idle, divided by that of one without links.
        ``pod_4x4_cycles_per_second``: speed of the simulation of 4 x 4 chips with a thread for each
        processor and a quantum of 64 cycles. ``pod_4x4_one_thread_cycles_per_second``: its speed
        with one thread and a quantum of one cycle, so that all chips run cycle by cycle.
    """
    plain, linked = Config.preset(name), Config.preset(name, link_bytes=LINK_BYTES)
    return {"hop_cycles": _hop_cycles(linked), "link_share_beside_hbm": _beside_hbm(linked),
            "busy_chip_slowdown_with_idle_fabric": _slowdown(plain, linked),
            "pod_4x4_cycles_per_second": _speed(linked),
            "pod_4x4_one_thread_cycles_per_second": _speed(linked, quantum=1, threads=1)}
