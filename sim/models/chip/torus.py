"""Simulated chips on a torus, joined by wires that delay, lose and damage frames."""

import ctypes
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.checks import instance, integer
from hdl.chip.registers import COUNTER_REGISTERS, address
from hdl.config import Config
from hdl.link.format import Direction, frame_body, frame_layout, torus_sides
from hdl.link.packet import link_config
from sim.closing import Closeable
from sim.models.chip.library import chip_library
from sim.models.chip.model import ChipModel
from sim.models.chip.registers import access_table, check_answers
from sim.models.chip.simulation import (
    NO_LIMIT,
    ChipSimulation,
    Run,
    Until,
    Words,
    close_trace,
    open_trace,
)
from sim.models.hbm import HbmOptions
from sim.models.ranks.ranks import join
from sim.trace.recording import Recorded, Recording, torus
from sim.trace.writer import trace_paths

__all__ = ["LINK_COUNTERS", "ChipTorus", "WireFaults", "longest_wire", "wire_cycles"]

_T = TypeVar("_T")
_RATE = 1 << 16
_MAX_THREADS = 1024
_PERIOD = 64
"""Number of cycles between two tests whether a run that waits for an event must end."""
_STILL = 8
"""The chips rest if all of them have been inactive for more cycles than this. What one core does to
another takes a few cycles to appear in the status of the other core."""
_TURNAROUND = 16
"""Maximum number of cycles that a frame and its acknowledgement together spend outside of wires."""


LINK_COUNTERS = ("frames", "flits", "repeated_flits", "credit_stall_cycles")
"""What `ChipTorus.link_counters` counts for each link: frames sent; flits sent for the first time;
flits sent again; cycles in which a flit waits because the other end's buffer has no room."""


def longest_wire(config: Config) -> int:
    """Return the greatest latency of a wire between chips, in cycles.

    An acknowledgement must return before the sender repeats unacknowledged flits. On longer wires,
    every flit would be sent several times, and on still longer ones the link would go down.
    """
    return (link_config(config).retry_cycles - _TURNAROUND) // 2


def _frame_bits(config: Config) -> npt.NDArray[np.uint32]:
    """Return where a frame has its fields, in bits: the members of ``FrameBits`` in torus.hpp."""
    link = link_config(config)
    body = frame_body(link)
    return np.array([frame_layout(link).size, body["carries"].offset, body["sequence"].offset,
                     body["sequence"].width], np.uint32)


def wire_cycles(config: Config, latencies: npt.ArrayLike, chips: int) -> npt.NDArray[np.uint32]:
    """Return the argument ``latencies`` of a `ChipTorus` as an array of shape (chips, 4).

    Raises
    ------
    TypeError, ValueError
        If it is of the wrong type or shape, or out of range.
    """
    given, most = np.asarray(latencies), longest_wire(config)
    if given.dtype.kind not in "iu":
        raise TypeError(f"latencies must be integers, not {latencies!r}")
    if not ((given >= 1) & (given <= most)).all():
        raise ValueError(f"latencies must be from 1 to {most}, not {latencies!r}")
    shape = chips, len(Direction)
    try:
        return np.ascontiguousarray(np.broadcast_to(given, shape), np.uint32)
    except ValueError:
        raise ValueError(f"latencies must have the shape {shape}, not {given.shape}") from None


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
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in (
            ("create", pointer, (pointer, u32, u32, u32, u32, pointer, pointer, u64, u32, u32)),
            ("destroy", None, (pointer,)),
            ("watch", None, (pointer, ctypes.POINTER(Run))),
            ("faults", None, (pointer, u32, ctypes.POINTER(WireFaults))),
            ("counters", None, (pointer, pointer)),
            ("take", u64, (pointer, pointer, u64, u32, pointer)),
            ("put", None, (pointer, pointer, u64, u32, pointer, u64))):
        function = getattr(library, f"systolith_torus_{name}")
        function.restype, function.argtypes = result, arguments


class _Blocks:
    """A run of all chips, in blocks that end every `_PERIOD` cycles of the torus.

    A run that waits for an event (an interrupt, or rest) ends as follows. At the end of each block,
    a rank tells the others whether it has seen the event. It reads their answers at the end of the
    next block, so ranks need not wait for each other. If any rank has seen the event, the run ends
    with that next block. A run without ranks ends at the same cycle, because only the cycle of the
    event decides.
    """

    def __init__(self, torus: "_TorusSimulation", chip: ChipSimulation) -> None:
        self._torus, self._chip = torus, chip
        self._began = torus.cycle
        self._seen: Callable[[], list[int]] | None = None

    def __call__(self, run: Run) -> None:
        torus = self._torus
        run.limit = min(run.limit, _PERIOD - torus.cycle % _PERIOD, torus.room())
        self._chip.advance("advance", run)
        torus.passed(run.done)
        run.ended = 0
        if not run.done or torus.cycle % _PERIOD or not run.until_rest:
            return
        if self._seen is not None:
            still, quiet = self._seen()
            at = torus.cycle - _PERIOD
            rests = min(still, at - self._began) > _STILL
            if rests:
                torus.rested = at - still
            run.ended = rests or (run.until_interrupt and not quiet)
        self._seen = torus.least([run.still, not (torus.interrupts and run.interrupt)])


class _TorusSimulation(Closeable):
    """The clocked part of a `ChipTorus`; `ChipTorus` documents the arguments."""

    def __init__(self, config: Config, shape: tuple[int, int],  # noqa: PLR0913
                 latencies: npt.ArrayLike = 64, *, kernels: bool = True,
                 memory: HbmOptions | None = None, seed: int = 1,
                 quantum: int | None = None, threads: int | None = None,
                 communicator: Any = None,
                 trace: str | os.PathLike[str] | None = None) -> None:
        instance("config", config, Config)
        file = None if trace is None else trace_paths(trace)[0]
        bits = _frame_bits(config)
        self.config = config
        columns, rows = torus_sides(shape)
        self.shape = columns, rows
        cycles = wire_cycles(config, latencies, columns * rows)
        shortest = int(cycles.min())
        quantum = integer("quantum", shortest if quantum is None else quantum, 1, shortest)
        if threads is not None:
            integer("threads", threads, 1, _MAX_THREADS)
        self.ranks = join(communicator, self.shape)
        if file is not None and self.ranks is not None:
            raise ValueError(f"trace must be None if several ranks simulate a pod, not {trace!r}")
        if threads is None:
            threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)) if self.ranks is None
                          else self.ranks.threads)
        self.chips: list[ChipModel] = []
        self.part = range(columns * rows) if self.ranks is None else self.ranks.part
        self.cycle = self.rested = 0
        self.interrupts = True
        self._quantum = min(quantum, _PERIOD)
        self._exchanged = 0  # the cycle of the last exchange between ranks
        self._ahead: int | None = None  # of the other ranks, in cycles, while this one leads
        self._torus: int | None = None
        self._recording: Recording | None = None
        self._process = os.getpid()
        try:
            library = None if file is None else chip_library(config, kernels=kernels, trace=True)
            for number in self.part:
                chip = ChipModel(config, kernels=kernels, memory=memory, library=library)
                self.chips.append(chip)
                library = chip.model.path
                if threads == 1 or columns * rows > 1:
                    chip.model.use_threads(1)  # a thread for each chip is faster
                self._place(number, chip)
            self._library = self.chips[0].model.library
            _declare(self._library)
            handles = (ctypes.c_void_p * len(self.chips))(*(chip.handle for chip in self.chips))
            self._torus = self._library.systolith_torus_create(
                handles, self.part.start, len(self.chips), columns, rows, bits.ctypes.data,
                cycles.ctypes.data, seed, quantum, threads)
            for chip in self.chips:
                self._library.systolith_torus_watch(chip.handle, chip.new_run(Until.REST))
            if file is not None:
                self._record(file)
            if self.ranks is not None:
                self.ranks.connect(self._wires(), self._quantum * (2 + (int(bits[0]) + 31) // 32))
        except BaseException:
            self.close()
            raise

    def _place(self, number: int, chip: ChipModel) -> None:
        """Tell a chip its coordinates, and let `prepare` write its memories."""
        columns, rows = self.shape
        chip.write("TORUS", WIDTH=columns, HEIGHT=rows)
        chip.write("POSITION", X=number % columns, Y=number // columns)
        self.prepare(number, chip)
        chip.together = self

    def prepare(self, number: int, chip: ChipModel) -> None:
        """Do nothing; subclasses may write the memories of chip number ``number`` here.

        The constructor calls this before the chips are joined. Until then, a chip runs alone, so
        the memories of many chips are written in less time.
        """

    def __getitem__(self, place: tuple[int, int]) -> ChipModel:
        """Return the chip at coordinates (x, y).

        Raises
        ------
        ValueError
            If there is no such chip, or another rank simulates it.
        """
        number = self.number(place)
        if number not in self.part:
            raise ValueError(f"chip must be one that this rank simulates, not {place!r}")
        return self.chips[number - self.part.start]

    def number(self, place: tuple[int, int]) -> int:
        """Return the number of the chip at coordinates (x, y)."""
        x, y = place
        return (integer("y", y, 0, self.shape[1] - 1) * self.shape[0]
                + integer("x", x, 0, self.shape[0] - 1))

    def run(self, max_cycles: int | None = None, *, until: Until | str = Until.REST,
            chip: int = 0) -> int:
        """Run all chips as `ChipModel.run` does; `Until.INTERRUPT` means ``chip``'s interrupt."""
        self.interrupts = chip in self.part
        model = self.chips[chip - self.part.start if self.interrupts else 0]
        try:
            return model.run(max_cycles, until=until)
        finally:
            self.interrupts = True

    def room(self) -> int:
        """Return the number of cycles that the chips may run before `passed` must be called."""
        return (NO_LIMIT if self.ranks is None
                else self._exchanged + self._quantum - self.cycle)

    def passed(self, cycles: int) -> None:
        """Note that the chips have run ``cycles`` cycles since the last call.

        If `room` is then 0, exchange frames with other ranks.
        """
        self.cycle += cycles
        if self.ranks is None:
            return
        if self._ahead is not None:
            self._ahead += cycles
        if not self.room():
            if self._ahead is not None:
                self.ranks.broadcast((self._ahead, None), self.ranks.rank)
                self._ahead = 0
            self.ranks.exchange(self._take, self._put)
            self._exchanged = self.cycle

    def least(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Begin to find, for each index of ``values``, the least value of all ranks.

        Returns a function that waits for these values and returns them; see `Ranks.least`.
        """
        return (lambda: list(values)) if self.ranks is None else self.ranks.least(values)

    def clock(self) -> float:
        """Return the seconds of this host's clock or, if there are ranks, of the first one's."""
        now = time.monotonic()
        return now if self.ranks is None else self.ranks.broadcast(now, 0)

    def lead(self, chip: int, action: Callable[[], _T]) -> _T:
        """Use a chip on the rank that simulates it; return the result on all ranks.

        The other ranks run their chips for as many cycles as ``action`` takes. An error is raised
        on all ranks. Without ranks, ``action`` is just called.
        """
        if self.ranks is None:
            return action()
        owner = self.ranks.owner(chip)
        outcome: tuple[Any, ...] | None = None
        if owner == self.ranks.rank:
            self._ahead = 0
            try:
                outcome = None, action()
            except Exception as error:  # noqa: BLE001  (it is raised on all ranks)
                outcome = type(error), error.args, error.__dict__
            ahead, self._ahead = self._ahead, None
            self.ranks.broadcast((ahead, outcome), owner)
        while outcome is None:
            message: tuple[int, tuple[Any, ...] | None] = self.ranks.broadcast(None, owner)
            cycles, outcome = message
            self._follow(cycles)
        if outcome[0] is None:
            result: _T = outcome[1]
            return result
        kind, arguments, members = outcome
        raised = kind.__new__(kind)
        raised.args = arguments
        raised.__dict__.update(members)
        raise raised

    def close(self) -> None:
        """End the simulation; closing twice does nothing."""
        recording, self._recording = self._recording, None
        for chip in self.chips:
            chip.record(None)
        close_trace(self, recording)
        if self._torus is not None:
            # The child of a fork lacks the threads, for which the destructor would wait.
            if os.getpid() == self._process:
                self._library.systolith_torus_destroy(self._torus)
            self._torus = None
        if self.ranks is not None:
            self.ranks.close()
        for chip in self.chips:
            chip.close()

    def _record(self, file: pathlib.Path) -> None:
        """Begin to write a trace."""
        for chip in self.chips:
            chip.advance("trace", None)
        self._recording = torus(
            open_trace(self, file, self.config), self.config, self.shape,
            [Recorded(chip.model, chip.handle, chip.cycle) for chip in self.chips])
        for chip in self.chips:
            chip.record(self._recording)

    def _follow(self, cycles: int) -> None:
        """Run this rank's chips for the ``cycles`` cycles that another rank's chips have run.

        ``cycles`` is at most `room`.
        """
        run = self.chips[0].new_run(Until.NEVER)
        run.limit = cycles
        self.chips[0].advance("advance", run)
        self.passed(cycles)

    def _wires(self) -> list[tuple[int, int]]:
        """Return the numbers of the chips that each wire leaves and arrives at.

        The order is by chip that the wire leaves, then by `Direction`.
        """
        columns, rows = self.shape
        return [(y * columns + x, (y + dy) % rows * columns + (x + dx) % columns)
                for y in range(rows) for x in range(columns)
                for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]

    def _take(self, wires: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> int:
        """Copy to ``words`` the frames that entered ``wires`` since the last exchange.

        ``wires`` are indices of the list that `_wires` returns.

        Returns the number of words that were copied.
        """
        return int(self._library.systolith_torus_take(
            self._handle(), wires.ctypes.data, len(wires), self._quantum, words.ctypes.data))

    def _put(self, wires: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> None:
        self._library.systolith_torus_put(self._handle(), wires.ctypes.data, len(wires),
                                          self._quantum, words.ctypes.data, len(words))

    def blocks(self, chip: ChipSimulation) -> Callable[[Run], object]:
        """Return a function that runs all chips for a block of cycles; its calls make up one run.

        A run that lasts `Until.INTERRUPT` ends at an interrupt of ``chip``.
        """
        return _Blocks(self, chip)

    def _handle(self) -> int:
        """Return the address of the torus (a ``Torus`` of torus.hpp)."""
        if self._torus is None:
            raise RuntimeError("torus is closed")
        return self._torus


class ChipTorus(_TorusSimulation):
    """Equal chips on a torus, which run together: a call that runs one of them runs all.

    Each chip knows the size of the torus and its own coordinates (registers TORUS and POSITION).
    If one chip runs until rest, all chips run until all of them rest and no packet is under way. A
    run ends at a multiple of 64 cycles, up to 128 cycles after the event that ends it.

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
        Maximum number of cycles that a chip runs before another chip runs the same cycles. From 1
        to the shortest latency, which is the default; numbers above 64 count as 64. A frame that is
        sent in these cycles arrives after them, so results do not depend on the number.
    threads : int, optional
        Number of threads that run chips; by default the number of processors, divided by the
        number of ranks on this host. More threads than chips make no difference.
    communicator : mpi4py.MPI.Comm, optional
        Ranks that simulate the torus together: each simulates a part of the chips. All ranks call
        the same methods with the same arguments, and get the same results.
    trace : path, optional
        Write a trace of all chips and packets to this path with ``.json`` added. Cycle 0 of the
        trace is `cycle` 0. The file is complete when the torus is closed. Requires ``kernels``, and
        a single rank.

    Attributes
    ----------
    chips : list of ChipModel
        The chips that this process simulates.
    ranks : Ranks or None
        The ranks, if there are several.
    interrupts : bool
        Whether this process simulates the chip for whose interrupt a run waits.
    cycle : int
        Number of cycles since the torus was created.
    rested : int
        The cycle from which on all chips rested, in the last run that ended because all rested.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or is out of range, or the chips have no links.
    """

    def access(self, lists: Mapping[int, Sequence[tuple[bool, int, int]]]) -> dict[int, Words]:
        """Make accesses to registers of several chips, beginning in the same cycle.

        Parameters
        ----------
        lists : mapping of int to sequence
            For each chip, by number, its accesses (write, address, data), which follow each other.

        Returns
        -------
        dict of int to array of uint32
            For each chip, a word for each of its accesses: the word that was read or written.

        Raises
        ------
        RegisterError
            If a chip refuses an access. This chip's accesses after it are not made; those of other
            chips are.
        """
        tables = {chip: access_table(accesses) for chip, accesses in lists.items()
                  if chip in self.part}
        pointers = (ctypes.c_void_p * len(self.chips))()
        counts, made = ((ctypes.c_uint64 * len(self.chips))() for _ in range(2))
        for chip, table in tables.items():
            own = chip - self.part.start
            pointers[own], counts[own] = table.ctypes.data, len(table)
        done = ctypes.c_uint32()
        ended = 0
        while not ended:
            room = self.room()
            left = ctypes.c_uint64(room)
            self.chips[0].advance("access_all", pointers, counts, made, left, done)
            # All ranks run as long as the slowest one.
            least, ended = self.least([left.value, done.value])()
            if self.ranks is not None:
                run = self.chips[0].new_run(Until.NEVER)
                run.limit = left.value - least
                self.chips[0].advance("advance", run)
            self.passed(room - least)
        found = {chip: table[:made[chip - self.part.start]] for chip, table in tables.items()}
        if self.ranks is not None:
            found = {chip: table for part in self.ranks.gather(found)
                     for chip, table in part.items()}
        for table in found.values():
            check_answers(table)
        return {chip: table["data"].copy() for chip, table in found.items()}

    def start(self, cores: Iterable[tuple[int, int]]) -> int:
        """Start cores (chip, core) at bundle 0, all of them in the same cycle.

        Returns the number of the cycle in which the host begins to do so.

        Raises
        ------
        RegisterError
            If a core runs, or is being reset. No core of its chip is started then; the given cores
            of other chips are.
        """
        masks: dict[int, int] = {}
        for chip, core in cores:
            masks[chip] = masks.get(chip, 0) | 1 << core
        self.access({chip: [(True, address("START_PC", core), 0)
                            for core in range(self.config.cores) if mask >> core & 1]
                     for chip, mask in masks.items()})
        began = self.cycle
        self.access({chip: [(True, address("START"), mask)] for chip, mask in masks.items()})
        return began

    def read_cores(self, registers: Sequence[str]) -> list[list[dict[str, int]]]:
        """Return the values of registers of all cores of all chips, by chip, core and name.

        All chips are read in the same cycles, and the registers of a core in the given order.
        """
        reads = [(False, address(name, core), 0)
                 for name in registers for core in range(self.config.cores)]
        data = self.access(dict.fromkeys(range(self.shape[0] * self.shape[1]), reads))
        return [[dict(zip(registers, words[core::self.config.cores].tolist(), strict=True))
                 for core in range(self.config.cores)] for words in data.values()]

    def counters(self) -> list[list[dict[str, int]]]:
        """Return the counters of all cores of all chips, as `ChipModel.counters` does.

        All counters of a core are sampled in the same cycle.
        """
        found = self.read_cores([f"{name}_{half}" for name in COUNTER_REGISTERS
                                 for half in ("LO", "HI")])
        return [[{name.lower(): values[f"{name}_LO"] | values[f"{name}_HI"] << 32
                  for name in COUNTER_REGISTERS} for values in cores] for cores in found]

    def set_faults(self, faults: Mapping[tuple[int, Direction], WireFaults]) -> None:
        """Set the faults of some wires; all other wires keep theirs.

        The key of a wire is the number of the chip that sends on it, and the wire's direction.

        Raises
        ------
        TypeError, ValueError
            If there is no such chip or direction.
        RuntimeError
            If the torus is closed.
        """
        handle = self._handle()
        last = self.shape[0] * self.shape[1] - 1
        wires = {integer("chip", chip, 0, last) * len(Direction)
                 + Direction(direction): kinds for (chip, direction), kinds in faults.items()}
        for wire, kinds in wires.items():
            self._library.systolith_torus_faults(handle, wire, kinds)

    def link_counters(self) -> npt.NDArray[np.uint64]:
        """Return the counters of all links since the torus was created.

        Returns
        -------
        array of uint64, shape (chips, 4, counters)
            By chip, by the `Direction` in which it sends, and by `LINK_COUNTERS`.

        Raises
        ------
        RuntimeError
            If the torus is closed.
        """
        found = np.zeros((self.shape[0] * self.shape[1], len(Direction), len(LINK_COUNTERS)),
                         np.uint64)
        self._library.systolith_torus_counters(self._handle(), found.ctypes.data)
        return found if self.ranks is None else np.sum(self.ranks.gather(found), axis=0)

    def sent(self) -> npt.NDArray[np.uint64]:
        """Return the number of frames that each chip has sent in each direction, shape (chips, 4).

        Raises
        ------
        RuntimeError
            If the torus is closed.
        """
        frames: npt.NDArray[np.uint64] = self.link_counters()[..., LINK_COUNTERS.index("frames")]
        return frames
