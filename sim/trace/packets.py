"""Shows the packets of a torus in a trace: a slice where a packet leaves, one where it arrives."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hdl.link.format import CHANNELS, Direction
from sim.trace.probes import link_inputs, link_record_layout, read_probe
from sim.trace.tracks import TRACK_PITCH
from sim.trace.writer import Place, TraceWriter

__all__ = ["PacketTracks"]

Words = npt.NDArray[np.uint32]

_NAMES = {Direction.X_PLUS: "X+", Direction.X_MINUS: "X-", Direction.Y_PLUS: "Y+",
          Direction.Y_MINUS: "Y-"}
_SENDS = ("inject", "inject_tail", "inject_core", "leave_tail", "leave_channel", "leave_input",
          "eject", "eject_tail", "eject_channel")
_ACTIVE = ("inject", "leave_tail", "eject")


@dataclass(frozen=True)
class _Packet:
    """A packet: the chip and the core that sent it, and where the trace shows that it left."""

    chip: tuple[int, int]
    core: int
    start: Place


class PacketTracks:
    """Writes the packets of all chips of a torus to a trace.

    Each chip has a process with two tracks for each of its four links: packets that its cores send
    by this link, and packets for its cores that arrive by it. An arrow joins the two slices of a
    packet.

    No field of a packet tells who sent it, so this class follows the last flit of each packet from
    router to router: packets of a virtual channel stay in order. A link that goes down drops flits.
    Arrows of packets whose way leads over this link are missing from then on.

    Parameters
    ----------
    writer : TraceWriter
        The trace.
    shape : tuple of int
        Chips along X and along Y, which are numbered along X first.
    pids : sequence of int
        Number of the process of each chip.
    """

    def __init__(self, writer: TraceWriter, shape: tuple[int, int], pids: Sequence[int]) -> None:
        self._writer, self._shape, self._pids = writer, shape, pids
        self._layout = link_record_layout()
        self._until = 0
        self._last: list[Words | None] = [None] * len(pids)
        self._waiting: dict[tuple[int, Direction, int], deque[_Packet]] = {
            (chip, way, channel): deque() for chip in range(len(pids)) for way in Direction
            for channel in range(CHANNELS)}
        self._began: dict[tuple[int, int], int] = {}  # cycle of a first flit, by process and track
        for chip, pid in enumerate(pids):
            writer.process(pid, f"chip {self._place(chip)} links")
            for way, name in _NAMES.items():
                writer.track(pid, self._tid(pid, way, False), f"packets out {name}")
                writer.track(pid, self._tid(pid, way, True), f"packets in {name}")

    def feed(self, records: Sequence[Words], now: int) -> None:
        """Adds the cycles before ``now``.

        Parameters
        ----------
        records : sequence of array of uint32, shape (records, 2 + words)
            For each chip, the records of its links since the last call, in the format of
            `Tracer.feed`.
        now : int
            Number of the next cycle.
        """
        moves = [move for chip, table in enumerate(records)
                 for move in self._moves(chip, table, now)]
        for cycle, chip, values in sorted(moves, key=lambda move: move[:2]):
            for way in Direction:
                self._follow(cycle, chip, way, dict(zip(
                    _SENDS, values[len(_SENDS) * way:], strict=False)))
        self._until = now

    def _moves(self, chip: int, table: Words, now: int) -> list[tuple[int, int, list[int]]]:
        """Return (cycle, chip, values of all fields) for each cycle in which a flit moves."""
        cycles = table[:, 0].astype(np.int64) | table[:, 1].astype(np.int64) << 32
        words = table[:, 2:]
        last = self._last[chip]
        if last is not None and (not len(cycles) or cycles[0] > self._until):
            cycles = np.concatenate([[self._until], cycles])
            words = np.concatenate([last[np.newaxis], words])
        if not len(cycles):
            return []
        self._last[chip] = words[-1].copy()
        ends = np.append(cycles[1:], now)
        found = np.stack([read_probe(self._layout, words, f"{name}_{way}")
                          for way in Direction for name in _SENDS], axis=1)
        columns = [len(_SENDS) * way + _SENDS.index(name) for way in Direction for name in _ACTIVE]
        return [(cycle, chip, found[index].tolist())
                for index in np.flatnonzero(found[:, columns].any(axis=1)).tolist()
                for cycle in range(int(cycles[index]), int(ends[index]))]

    def _follow(self, cycle: int, chip: int, way: Direction, sends: dict[str, int]) -> None:
        """Follow the flits of a chip that move in a cycle and use its link in direction ``way``.

        These are flits that leave by the link, and flits that arrived by it and are ejected.
        ``sends`` has the values of the fields `_SENDS` for this link.
        """
        pid = self._pids[chip]
        sent = None
        if sends["inject"]:
            core = sends["inject_core"]
            place = self._slice(cycle, pid, way, False, bool(sends["inject_tail"]),
                                f"core {core}")
            sent = None if place is None else _Packet(self._place(chip), core, place)
        if sends["leave_tail"]:
            source = link_inputs(way)[sends["leave_input"].bit_length() - 1]
            packet = sent if source is None else self._taken(chip, *source)
            if packet is not None:
                to = self._neighbour(chip, way), way.opposite, sends["leave_channel"]
                self._waiting[to].append(packet)
        if sends["eject"]:
            tail = bool(sends["eject_tail"])
            packet = self._taken(chip, way, sends["eject_channel"]) if tail else None
            name = "packet" if packet is None else f"chip {packet.chip} core {packet.core}"
            end = self._slice(cycle, pid, way, True, tail, name)
            if packet is not None and end is not None:
                self._writer.arrow("packet", packet.start, end, "packet")

    def _slice(self, cycle: int, pid: int, way: Direction, arrives: bool, tail: bool,
               name: str) -> Place | None:
        """Note a flit on the track of direction ``way``; if it is a packet's last, write a slice.

        ``tail`` tells whether the flit is the last one. Returns the end of the slice, or None.
        """
        tid = self._tid(pid, way, arrives)
        began = self._began.setdefault((pid, tid), cycle)
        if not tail:
            return None
        del self._began[pid, tid]
        self._writer.slice(pid, tid, name, began, cycle + 1)
        return Place(pid, tid, cycle)

    def _taken(self, chip: int, way: Direction, channel: int) -> _Packet | None:
        queue = self._waiting[chip, way, channel]
        return queue.popleft() if queue else None

    def _neighbour(self, chip: int, way: Direction) -> int:
        columns, rows = self._shape
        x, y = self._place(chip)
        if way.is_x:
            return y * columns + (x + way.step) % columns
        return (y + way.step) % rows * columns + x

    def _place(self, chip: int) -> tuple[int, int]:
        return chip % self._shape[0], chip // self._shape[0]

    @staticmethod
    def _tid(pid: int, way: Direction, arrives: bool) -> int:
        return pid * TRACK_PITCH + 2 * way + arrives
