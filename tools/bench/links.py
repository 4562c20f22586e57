"""The cycles of a hop between chips, and the speed of a simulated pod."""

import statistics
import time

from tqdm import tqdm

from hdl.config import Config
from hdl.dma.format import DmaSpace, pack_descriptor, pack_remote
from sim.models.chip.simulation import Until
from sim.models.chip.torus import ChipTorus

__all__ = ["link_figures"]

CONFIG = Config.preset("tiny", link_bytes=16)
LATENCY = 64
WAYS = ((1, 0), (-1, 0), (0, 1), (0, -1))
"""(hops along X, hops along Y) to each of the four neighbours of a chip."""
MANY_VECTORS = 1 << 20
RUN_CYCLES = 1000
RUNS = 5


def _send(torus: ChipTorus, chip: int, core: int, hops: tuple[int, int], vectors: int) -> None:
    """Start a transfer that sends one vector ``vectors`` times to another chip.

    It goes from core ``core`` of chip number ``chip`` to the same core of the chip that is ``hops``
    (along X, along Y) away.
    """
    torus.chips[chip].start_transfer(core, pack_descriptor({
        "source_space": DmaSpace.VMEM, "destination_space": DmaSpace.REMOTE_VMEM,
        "rows": vectors * CONFIG.sublanes, "source_address": 0, "source_run": 1,
        "destination_address": pack_remote(*hops, core) << 32, "destination_run": 1}))


def _hop_cycles() -> float:
    """Latency in cycles that a chip adds to a packet which it forwards, from wire to wire."""
    times = []
    with ChipTorus(CONFIG, (4, 1), LATENCY) as torus:
        for hops in (1, 3):
            first = torus.chips[0].cycle
            _send(torus, 0, 0, (hops, 0), 1)
            torus.run()
            times.append(torus.chips[0].cycle - first)
    return (times[1] - times[0]) / 2 - LATENCY


def _speed(quantum: int | None = None, threads: int | None = None) -> float:
    """Simulated cycles a second of 4 x 4 chips, while every core sends in all four directions."""
    speeds = []
    with ChipTorus(CONFIG, (4, 4), LATENCY, quantum=quantum, threads=threads) as torus:
        for chip in range(len(torus.chips)):
            for core in range(CONFIG.cores):
                for hops in WAYS:
                    _send(torus, chip, core, hops, MANY_VECTORS)
        for _ in tqdm(range(RUNS), "pod", unit="run", leave=False):
            began = time.perf_counter()
            torus.run(RUN_CYCLES, until=Until.NEVER)
            speeds.append(RUN_CYCLES / (time.perf_counter() - began))
    return statistics.median(speeds)


def link_figures() -> dict[str, float]:
    """Measure chips of preset `tiny` with links, and wires of 64 cycles.

    Returns
    -------
    dict of str to float
        ``hop_cycles``; ``pod_4x4_cycles_per_second``, with a thread for each processor and a
        quantum of 64 cycles; ``pod_4x4_one_thread_cycles_per_second``, with one thread and a
        quantum of one cycle, so that all chips run cycle by cycle.
    """
    return {"hop_cycles": _hop_cycles(), "pod_4x4_cycles_per_second": _speed(),
            "pod_4x4_one_thread_cycles_per_second": _speed(quantum=1, threads=1)}
