"""Moves the records of traced chips from their C++ code (sim/models/cpp/chip.cpp) to a trace."""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.trace.packets import PacketTracks
from sim.trace.probes import LINKS_PORT, port
from sim.trace.tracer import Tracer
from sim.trace.writer import TraceWriter
from sim.verilated.model import Model

__all__ = ["Recorded", "Recording", "one_chip", "torus"]

RECORDED_WORDS = 1 << 19
"""Threshold for `Recording.drain`, in words of a core's records."""

Words = npt.NDArray[np.uint32]


class Recorded(NamedTuple):
    """A chip that keeps records.

    Attributes
    ----------
    model : Model
        The verilated chip.
    handle : int
        Address of the chip's C++ object, a ``Chip`` of chip.cpp.
    first : int
        The cycle of the chip that is cycle 0 of the trace.
    """

    model: Model
    handle: int
    first: int = 0


class _Sink(Protocol):
    """Interface of the trace to which a `Recording` passes its records."""

    def feed(self, records: Sequence[Sequence[Words]], now: int) -> None:
        """Take the records of the cycles before ``now`` since the last call.

        ``records[c]`` has the records of chip ``c``: one array for each core and, if the chip has
        links, a last one for its links.
        """

    def close(self) -> None:
        """Complete the trace."""


class _Chips:
    """The trace of one or several chips, and of their packets."""

    def __init__(self, writer: TraceWriter, tracers: Sequence[Tracer],
                 packets: PacketTracks | None, cores: int) -> None:
        self._writer, self._tracers, self._packets = writer, tracers, packets
        self._cores = cores

    def feed(self, records: Sequence[Sequence[Words]], now: int) -> None:
        for tracer, tables in zip(self._tracers, records, strict=True):
            tracer.feed(tables[:self._cores], now)
        if self._packets is not None:
            self._packets.feed([tables[self._cores] for tables in records], now)

    def close(self) -> None:
        try:
            for tracer in self._tracers:
                tracer.close()
        finally:
            self._tracers = []
            self._writer.close()


def one_chip(writer: TraceWriter, config: Config, chip: Recorded) -> "Recording":
    """Return a recording of one chip, which traces no packets."""
    return Recording([chip], config, _Chips(writer, [Tracer(writer, config)], None, config.cores))


def torus(writer: TraceWriter, config: Config, shape: tuple[int, int],
          chips: Sequence[Recorded]) -> "Recording":
    """Return a recording of the chips of a torus, which are numbered along X first."""
    each = config.cores + 2  # processes of a chip: cores, host, links
    tracers = [Tracer(writer, config, each * number + 1, f"chip {x, y} ")
               for number, (y, x) in enumerate(product(range(shape[1]), range(shape[0])))]
    packets = PacketTracks(writer, shape, [each * (number + 1) for number in range(len(chips))])
    return Recording(chips, config, _Chips(writer, tracers, packets, config.cores))


class Recording:
    """Feeds the records of chips to a trace.

    A separate thread does this, so that Ctrl-C cannot leave the trace half written.

    Parameters
    ----------
    chips : sequence of Recorded
        The chips, whose clocks advance together.
    config : Config
        Their parameters.
    sink : _Sink
        Receives the records. `close` closes it.
    """

    def __init__(self, chips: Sequence[Recorded], config: Config, sink: _Sink) -> None:
        self._chips = list(chips)
        self._ports = [*(port(core) for core in range(config.cores)),
                       *([LINKS_PORT] if config.link_bytes else [])]
        self._sink = sink
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace")
        pointer, u32 = ctypes.c_void_p, ctypes.c_uint32
        for name, arguments in (
                ("records", (pointer, pointer, u32, ctypes.POINTER(ctypes.POINTER(u32)),
                             ctypes.POINTER(ctypes.c_uint64))),
                ("forget", (pointer, pointer, u32))):
            for chip in self._chips:
                function = getattr(chip.model.library, f"systolith_chip_{name}")
                function.restype = ctypes.c_int
                function.argtypes = arguments

    def drain(self) -> None:
        """Moves the records to the trace if a core has more than `RECORDED_WORDS` words of them.

        The chips must not run meanwhile.
        """
        if any(self._words(chip, number)[1] > RECORDED_WORDS for chip in self._chips
               for number in range(len(self._ports))):
            self._finish(self._move)

    def close(self) -> None:
        """Moves the remaining records, and completes the trace."""
        try:
            self._finish(self._move)
        finally:
            self._finish(self._sink.close)
            self._thread.shutdown()

    def _finish(self, step: Callable[[], None]) -> None:
        """Runs ``step`` to its end in the separate thread; Ctrl-C takes effect only afterwards."""
        try:
            future = self._thread.submit(step)
        except RuntimeError:
            # Python is exiting: it starts no more threads, and Ctrl-C can no longer do harm.
            step()
            return
        interrupt: KeyboardInterrupt | None = None
        while not future.done():
            try:
                wait([future])
            except KeyboardInterrupt as raised:
                interrupt = raised
        if interrupt is not None:
            raise interrupt
        future.result()

    def _words(self, chip: Recorded, number: int) -> tuple[Any, int]:
        """Pointer to the words of the records of a chip's port ``number``, and the number of words.

        Ports are numbered in the order of ``_ports``: those of the cores, then that of the links.
        """
        words, count = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_uint64()
        chip.model.check(chip.model.library.systolith_chip_records(
            chip.model.handle, chip.handle, number, words, count))
        return words, count.value

    def _move(self) -> None:
        self._sink.feed([[self._table(chip, number) for number in range(len(self._ports))]
                         for chip in self._chips],
                        self._chips[0].model.cycle - self._chips[0].first)

    def _table(self, chip: Recorded, number: int) -> Words:
        """Return the records of port ``number`` of a chip, and remove them from the C++ object.

        The result has the shape (records, words). The records' cycles count from the beginning of
        the trace.
        """
        words, count = self._words(chip, number)
        width = 2 + chip.model.ports[self._ports[number]].words
        table = (np.ctypeslib.as_array(words, (count,)).copy() if count
                 else np.zeros(0, np.uint32)).reshape(-1, width)
        chip.model.check(chip.model.library.systolith_chip_forget(
            chip.model.handle, chip.handle, number))
        cycles = (table[:, 0] | table[:, 1].astype(np.uint64) << np.uint64(32)) - np.uint64(
            chip.first)
        table[:, 0], table[:, 1] = cycles & np.uint64(0xFFFFFFFF), cycles >> np.uint64(32)
        return table
