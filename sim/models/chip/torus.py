"""Simulated chips on a torus, joined by wires that delay, lose and damage frames."""

import ctypes
import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hdl.checks import instance, integer
from hdl.config import Config
from hdl.link.format import MAX_SIDE, Direction, frame_layout
from hdl.link.packet import link_config
from sim.closing import Closeable
from sim.models.chip.model import ChipModel
from sim.models.chip.simulation import Until
from sim.models.hbm import HbmOptions

__all__ = ["ChipTorus", "WireFaults", "longest_wire"]

_RATE = 1 << 16
_MAX_THREADS = 1024
_TURNAROUND = 16
"""Maximum number of cycles that a frame and its acknowledgement do not spend on wires."""


def longest_wire(config: Config) -> int:
    """Return the greatest latency of a wire between chips, in cycles.

    An acknowledgement must return before the sender repeats by itself. On longer wires, every flit
    would be sent several times, and on still longer ones the link would be given up.
    """
    return (link_config(config).retry_cycles - _TURNAROUND) // 2


class WireFaults(ctypes.Structure):
    """What a wire does to frames; mirrors ``WireFaults`` in wire.hpp.

    Parameters
    ----------
    lose, damage : float
        Probability that a frame is lost, and probability that some of its bits are flipped.
    dead : tuple of int, optional
        First cycle in which the wire loses all frames, and first cycle in which it no longer does,
        counted from the creation of the wire.

    Raises
    ------
    ValueError
        If a probability is not from 0 to 1.
    """

    _fields_ = (("lose", ctypes.c_uint32), ("damage", ctypes.c_uint32),
                ("dead_from", ctypes.c_uint64), ("dead_until", ctypes.c_uint64))

    def __init__(self, lose: float = 0, damage: float = 0, dead: tuple[int, int] | None = None,
                 ) -> None:
        for name, rate in (("lose", lose), ("damage", damage)):
            if not 0 <= rate <= 1:
                raise ValueError(f"{name} must be from 0 to 1, not {rate!r}")
        never = (1 << 64) - 1
        super().__init__(round(lose * _RATE), round(damage * _RATE), *(dead or (never, never)))


def _declare(library: ctypes.CDLL) -> None:
    pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
    for name, result, arguments in (
            ("create", pointer, (pointer, u32, u32, u32, pointer, ctypes.c_uint64, u32, u32)),
            ("destroy", None, (pointer,)),
            ("faults", None, (pointer, u32, ctypes.POINTER(WireFaults))),
            ("sent", None, (pointer, pointer))):
        function = getattr(library, f"systolith_torus_{name}")
        function.restype, function.argtypes = result, arguments


class ChipTorus(Closeable):
    """Equal chips on a torus, which run together: a call that runs one of them runs all.

    Each chip knows the torus and its own place (registers TORUS and POSITION). `ChipModel.run` of
    any chip until rest runs until all chips rest and no packet is under way.

    Parameters
    ----------
    config : Config
        Parameters of the chips, which must have links.
    shape : tuple of int
        Chips along X and along Y.
    latencies : int or array of int, shape (chips, 4)
        Cycles that a frame spends on each wire, from 1 to `longest_wire`. An array has an element
        for each chip that frames leave, and for each `Direction`. Chips are numbered along X first.
    kernels, memory
        As in `ChipModel`.
    seed : int
        Seed of the wires' faults.
    quantum : int, optional
        Number of cycles, at most, that a chip runs before another one follows, from 1 to the
        shortest latency, which is the default. A frame takes longer than that, so results do not
        depend on it. Until all chips rest, 9 cycles are the limit.
    threads : int, optional
        Number of threads that run chips; by default the number of processors. More threads than
        chips make no difference.

    Attributes
    ----------
    chips : list of ChipModel
        The chips.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or is out of range, or the chips have no links.
    """

    def __init__(self, config: Config, shape: tuple[int, int], latencies: npt.ArrayLike = 64, *,
                 kernels: bool = True, memory: HbmOptions | None = None, seed: int = 1,
                 quantum: int | None = None, threads: int | None = None) -> None:
        instance("config", config, Config)
        bits = frame_layout(link_config(config)).size
        self.config = config
        columns, rows = (integer("side of the torus", side, 1, MAX_SIDE) for side in shape)
        self.shape = columns, rows
        given, most = np.asarray(latencies), longest_wire(config)
        if given.dtype.kind not in "iu":
            raise TypeError(f"latencies must be integers, not {latencies!r}")
        if not ((given >= 1) & (given <= most)).all():
            raise ValueError(f"latencies must be from 1 to {most}, not {latencies!r}")
        shortest = int(given.min())
        quantum = integer("quantum", shortest if quantum is None else quantum, 1, shortest)
        if threads is None:
            threads = len(os.sched_getaffinity(0))
        integer("threads", threads, 1, _MAX_THREADS)
        cycles = np.ascontiguousarray(
            np.broadcast_to(given, (columns * rows, len(Direction))), np.uint32)
        self.chips: list[ChipModel] = []
        self._torus: int | None = None
        self._process = os.getpid()
        try:
            for _ in range(columns * rows):
                chip = ChipModel(config, kernels=kernels, memory=memory)
                self.chips.append(chip)
                if threads == 1 or columns * rows > 1:
                    chip.model.use_threads(1)  # a thread for each chip is faster
            for number, chip in enumerate(self.chips):
                chip.write("TORUS", WIDTH=columns, HEIGHT=rows)
                chip.write("POSITION", X=number % columns, Y=number // columns)
                chip.alone = False
            self._library = self.chips[0].model.library
            _declare(self._library)
            handles = (ctypes.c_void_p * len(self.chips))(*(chip.handle for chip in self.chips))
            self._torus = self._library.systolith_torus_create(
                handles, columns, rows, bits, cycles.ctypes.data, seed, quantum, threads)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, place: tuple[int, int]) -> ChipModel:
        """Return the chip at coordinates (x, y)."""
        x, y = place
        return self.chips[integer("y", y, 0, self.shape[1] - 1) * self.shape[0]
                          + integer("x", x, 0, self.shape[0] - 1)]

    def run(self, max_cycles: int | None = None, *, until: Until | str = Until.REST) -> int:
        """Run all chips as `ChipModel.run` does; `Until.INTERRUPT` refers to the first chip."""
        return self.chips[0].run(max_cycles, until=until)

    def set_faults(self, faults: Mapping[tuple[int, Direction], WireFaults]) -> None:
        """Set the faults of some wires.

        The key of a wire is the number of the chip that sends on it, and the wire's direction.

        Raises
        ------
        TypeError, ValueError
            If there is no such chip or direction.
        RuntimeError
            If the torus is closed.
        """
        handle = self._handle()
        wires = {integer("chip", chip, 0, len(self.chips) - 1) * len(Direction)
                 + Direction(direction): kinds for (chip, direction), kinds in faults.items()}
        for wire, kinds in wires.items():
            self._library.systolith_torus_faults(handle, wire, kinds)

    def sent(self) -> npt.NDArray[np.uint64]:
        """Return the number of frames that each chip has sent in each direction, shape (chips, 4).

        Raises
        ------
        RuntimeError
            If the torus is closed.
        """
        frames = np.zeros((len(self.chips), len(Direction)), np.uint64)
        self._library.systolith_torus_sent(self._handle(), frames.ctypes.data)
        return frames

    def close(self) -> None:
        """End the simulation; closing twice does nothing."""
        if self._torus is not None:
            # The child of a fork lacks the threads, for which the destructor would wait.
            if os.getpid() == self._process:
                self._library.systolith_torus_destroy(self._torus)
            self._torus = None
        for chip in self.chips:
            chip.close()

    def _handle(self) -> int:
        """Return the address of the torus (a ``Torus`` of torus.hpp)."""
        if self._torus is None:
            raise RuntimeError("torus is closed")
        return self._torus
