"""A torus of fabrics in RTL, joined by wires that delay, lose and damage frames."""

import ctypes
import pathlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from golden.torus.route import route, wraps
from hdl.link.fabric import Fabric
from hdl.link.format import (
    CHANNELS,
    HOP_BITS,
    Direction,
    LinkConfig,
    flit_layout,
    frame_body,
)
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from sim import models
from sim.models.chip.torus import WireFaults
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

PORTS = len(Direction)
_HERE = pathlib.Path(__file__).parent
_CPP = pathlib.Path(models.__file__).parent / "cpp"
_RATE = 1 << 16
_ID_WORDS = 2
"""Number of words of a payload that identify the packet and the flit. They determine all other
words."""


def open_fabric(config: LinkConfig, *, optimise: bool | None = None) -> Model:
    sources = cached_json("fabric", asdict(config),
                          lambda: VerilogLibrary().write("fabric", lambda: Fabric(config)))
    return Model(build_model(
        "fabric", sources, waivers=LINT_WAIVERS, optimise=optimise,
        cpp={"torus.cpp": (_HERE / "torus.cpp").read_text(),
             "wire.hpp": (_CPP / "wire.hpp").read_text()}))


class _Traffic(ctypes.Structure):
    """Mirrors ``Traffic`` in torus.cpp."""

    _fields_ = (*((name, ctypes.c_void_p) for name in (
                    "flits", "begin", "next", "ejected", "records")),
                *((name, ctypes.c_uint64) for name in ("capacity", "count", "words")),
                ("offer", ctypes.c_uint32), ("accept", ctypes.c_uint32),
                ("closed", ctypes.c_uint64))


RECORD = np.dtype([("node", "<u4"), ("port", "<u4"), ("cycle", "<u8")])


@dataclass(frozen=True)
class Packets:
    """Packets to send, as arrays of shape (count,); each injector sends its packets in order."""

    source: npt.NDArray[np.int64]
    dx: npt.NDArray[np.int64]
    dy: npt.NDArray[np.int64]
    flits: npt.NDArray[np.int64]

    @staticmethod
    def random(rng: np.random.Generator, shape: tuple[int, int], count: int, most: int,
               ) -> "Packets":
        """Packets of 1 to ``most`` flits between random fabrics, either way round the rings."""
        columns, rows = shape
        dx = rng.integers(1 - columns, columns, count)
        dy = rng.integers(1 - rows, rows, count)
        none = (dx == 0) & (dy == 0)
        dx, dy = (np.where(none, 1, dx), dy) if columns > 1 else (dx, np.where(none, 1, dy))
        return Packets(rng.integers(0, columns * rows, count), dx, dy,
                       rng.integers(1, most + 1, count))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def injector(self) -> npt.NDArray[np.int64]:
        """Port by which each packet leaves its source."""
        x, y = (np.where(hops < 0, 1, 0) for hops in (self.dx, self.dy))
        return np.where(self.dx != 0, Direction.X_PLUS + x, Direction.Y_PLUS + y)

    def last_port(self) -> npt.NDArray[np.int64]:
        """Port by which each packet arrives at its destination."""
        x, y = (np.where(hops < 0, 1, 0) for hops in (self.dx, self.dy))
        return np.where(self.dy != 0, Direction.Y_PLUS + y, Direction.X_PLUS + x) ^ 1

    def destination(self, shape: tuple[int, int]) -> npt.NDArray[np.int64]:
        columns, rows = shape
        x, y = self.source % columns + self.dx, self.source // columns + self.dy
        return y % rows * columns + x % columns


def _mixed(packet: npt.NDArray[np.int64], place: npt.NDArray[np.int64], word: int,
           ) -> npt.NDArray[np.uint64]:
    """A word of a payload that depends on all bits of the packet's number."""
    value = (packet.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
             + place.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
             + np.uint64(word) * np.uint64(0x94D049BB133111EB))
    return value >> np.uint64(32)


def _payloads(config: LinkConfig, packet: npt.NDArray[np.int64], place: npt.NDArray[np.int64],
              ) -> npt.NDArray[np.uint64]:
    """Payloads of flits, as words of 32 bits; shape (flits, words)."""
    words = config.payload_bytes // 4
    rest = [_mixed(packet, place, word) for word in range(words - _ID_WORDS)]
    return np.stack([packet.astype(np.uint64), place.astype(np.uint64), *rest], axis=1)


def _pack(config: LinkConfig, tail: npt.NDArray[np.bool_], dx: npt.NDArray[np.int64],
          dy: npt.NDArray[np.int64], payload: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return flits as words of 32 bits; shape (flits, words)."""
    layout, words = flit_layout(config), config.payload_bytes // 4
    mask = (1 << HOP_BITS) - 1
    packed = np.zeros((len(tail), words + 1), np.uint32)
    packed[:, :words] = payload
    for name, value in (("tail", tail), ("dx", dx & mask), ("dy", dy & mask)):
        packed[:, words] |= value.astype(np.uint32) << np.uint32(layout[name].offset - 32 * words)
    return packed


def _payload_words(config: LinkConfig, flits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """The payloads of flits in the form that `_pack` returns, as words; shape (flits, words)."""
    return flits[:, :config.payload_bytes // 4].astype(np.uint64)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declares the types of the functions in torus.cpp."""
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in (
            ("create", pointer, (pointer, u32, u32, pointer, u64, u32, u32)),
            ("destroy", None, (pointer,)),
            ("faults", None, (pointer, u32, ctypes.POINTER(WireFaults))),
            ("sent", None, (pointer, pointer, pointer)),
            ("run", ctypes.c_char_p, (pointer, ctypes.POINTER(_Traffic), u64, u64))):
        function = getattr(library, f"systolith_torus_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Torus:
    """Fabrics of equal parameters on a torus, and wires between them.

    Parameters
    ----------
    config : LinkConfig
        Parameters of the links. A payload has at least 8 bytes, in whole words.
    shape : tuple of int
        Fabrics along X and along Y.
    latencies : int or array of int, shape (fabrics, 4)
        Cycles that a frame spends on each wire, by the fabric and the port that it leaves.
    seed : int
        Seed of the wires' faults, and of the gaps in the traffic.
    optimise : bool or None
        As in `sim.verilated.build.build_model`.
    """

    def __init__(self, config: LinkConfig, shape: tuple[int, int], latencies: object, seed: int,
                 *, optimise: bool | None = None) -> None:
        self.config, self.shape = config, shape
        self.nodes = [open_fabric(config, optimise=optimise) for _ in range(shape[0] * shape[1])]
        for number, node in enumerate(self.nodes):
            node.reset()
            node.poke("wraps", sum(
                wraps(number % shape[0], number // shape[0], port, shape) << port
                for port in Direction))
        self._library = _declared(self.nodes[0].library)
        handles = (ctypes.c_void_p * len(self.nodes))(*(node.handle for node in self.nodes))
        cycles = np.ascontiguousarray(
            np.broadcast_to(np.asarray(latencies), (len(self.nodes), PORTS)), np.uint32)
        body = frame_body(config)
        self._torus = self._library.systolith_torus_create(
            handles, *shape, cycles.ctypes.data, seed, body["carries"].offset,
            body["channel"].offset)

    def faults(self, faults: Mapping[tuple[int, Direction], WireFaults]) -> None:
        """Sets the faults of the wires that leave a fabric by a port."""
        for (node, port), kinds in faults.items():
            self._library.systolith_torus_faults(self._torus, node * PORTS + port, kinds)

    def busy(self) -> bool:
        """Whether any fabric reports traffic on a link by its port ``busy``."""
        return any(node.peek("busy") for node in self.nodes)

    def down(self) -> set[tuple[int, Direction]]:
        """The links that are down, each by its fabric and port."""
        return {(number, port) for number, node in enumerate(self.nodes) for port in Direction
                if node.peek("down") >> port & 1}

    def sent(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Numbers of sent frames, shape (fabrics, ports), and flits, (fabrics, ports, channels)."""
        frames = np.zeros((len(self.nodes), PORTS), np.uint64)
        flits = np.zeros((*frames.shape, CHANNELS), np.uint64)
        self._library.systolith_torus_sent(self._torus, frames.ctypes.data, flits.ctypes.data)
        return frames, flits

    def run(self, packets: Packets, *, offer: float = 1.0, accept: float = 1.0,
            closed: int = 0, cycles: int = 100_000) -> "Delivery":
        """Sends the packets; runs until all have arrived, or for at most ``cycles`` cycles.

        An injector offers a flit in a share ``offer`` of cycles; an ejector accepts one in a share
        ``accept``, and none before cycle ``closed``.
        """
        number = np.repeat(np.arange(len(packets)), packets.flits)
        place = np.arange(len(number)) - np.repeat(
            np.cumsum(packets.flits) - packets.flits, packets.flits)
        flits = _pack(self.config, place == packets.flits[number] - 1, packets.dx[number],
                      packets.dy[number], _payloads(self.config, number, place))
        queue = (packets.source * PORTS + packets.injector)[number]
        order = np.argsort(queue, kind="stable")
        flits = np.ascontiguousarray(flits[order])
        begin = np.searchsorted(queue[order], np.arange(PORTS * len(self.nodes) + 1)).astype("u8")
        following = begin[:-1].copy()
        ejected = np.zeros_like(flits)
        records = np.zeros(len(flits), RECORD)
        traffic = _Traffic(*(array.ctypes.data for array in (
            flits, begin, following, ejected, records)), len(flits), 0, flits.shape[1],
            round(offer * _RATE), round(accept * _RATE), closed)
        # Without packets, all cycles run.
        error = self._library.systolith_torus_run(self._torus, traffic, cycles, max(1, len(flits)))
        if error:
            raise RuntimeError(error.decode())
        count = traffic.count
        return Delivery(self.config, self.shape, packets, records[:count], ejected[:count],
                        int((following - begin[:-1]).sum()))

    def close(self) -> None:
        self._library.systolith_torus_destroy(self._torus)
        for node in self.nodes:
            node.close()


@dataclass(frozen=True)
class Delivery:
    """The flits that were ejected, in order of time."""

    config: LinkConfig
    shape: tuple[int, int]
    packets: Packets
    records: np.ndarray
    flits: npt.NDArray[np.uint32]
    injected: int

    def check(self, *, complete: bool = True, cut: bool = False) -> None:
        """Checks every flit; if ``complete``, also checks that every packet has arrived.

        ``cut`` says that links have died, and that nothing is under way. A packet of which only a
        part has arrived must then end with a tail whose payload is all ones.

        A flit must have the payload that was sent, no hop left, and arrive at the right port of the
        right fabric. No flits of another packet come between the flits of a packet. Packets of
        equal source, hops and injector arrive in the order in which they were sent.
        """
        payload = _payload_words(self.config, self.flits)
        ends = (payload == 0xFFFFFFFF).all(axis=1)
        assert cut or not ends.any(), "a packet was cut"
        if ends.any():
            tail = flit_layout(self.config)["tail"].offset
            assert (self.flits[ends, tail // 32] >> np.uint32(tail % 32) & 1).all()
            whole = Delivery(self.config, self.shape, self.packets, self.records[~ends],
                             self.flits[~ends], self.injected)
            partial = whole._check(payload[~ends], complete=False)
            assert partial == np.count_nonzero(ends)
        else:
            assert not self._check(payload, complete=complete) or not cut

    def _check(self, payload: npt.NDArray[np.uint64], *, complete: bool) -> int:
        """Checks all flits except the tails of cut packets; counts the packets that lack flits."""
        number, place = payload[:, 0].astype(np.int64), payload[:, 1].astype(np.int64)
        packets = self.packets
        assert len(number)
        assert number.max() < len(packets), "a packet that was not sent"
        assert (place < packets.flits[number]).all()
        zero = np.zeros_like(number)
        expected = _pack(self.config, place == packets.flits[number] - 1, zero, zero,
                         _payloads(self.config, number, place))
        np.testing.assert_array_equal(self.flits, expected)
        np.testing.assert_array_equal(self.records["node"],
                                      packets.destination(self.shape)[number])
        np.testing.assert_array_equal(self.records["port"], packets.last_port()[number])
        self._check_order(number, place)
        counts = np.bincount(number, minlength=len(packets))
        assert (counts <= packets.flits).all(), "a flit arrived twice"
        if complete:
            np.testing.assert_array_equal(counts, packets.flits)
        return int(np.count_nonzero((counts > 0) & (counts < packets.flits)))

    def _check_order(self, number: npt.NDArray[np.int64], place: npt.NDArray[np.int64]) -> None:
        packets = self.packets
        where = self.records["node"].astype(np.int64) * PORTS + self.records["port"]
        order = np.argsort(where, kind="stable")
        number, place, where = number[order], place[order], where[order]
        new = place == 0
        # Within an ejector, a flit is the first of a packet, or follows the one before it.
        follows = np.zeros(len(number), bool)
        follows[1:] = ((number[1:] == number[:-1]) & (place[1:] == place[:-1] + 1)
                       & (where[1:] == where[:-1]))
        assert (new | follows).all(), "a packet was interrupted"
        heads = number[new]
        way = np.stack([packets.source[heads], packets.dx[heads], packets.dy[heads]])
        order = np.lexsort(way)
        same = (np.diff(way[:, order]) == 0).all(axis=0)
        assert (np.diff(heads[order])[same] > 0).all(), "a packet overtook another of its way"

    @property
    def cycles(self) -> int:
        """Number of cycles from the first cycle of the torus until the last flit arrived."""
        return int(self.records["cycle"][-1]) + 1


def flits_by_channel(packets: Packets, shape: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Number of flits on each channel by the golden routes; shape (fabrics, 4, 2)."""
    found = np.zeros((shape[0] * shape[1], PORTS, CHANNELS), np.uint64)
    for source, dx, dy, flits in zip(packets.source.tolist(), packets.dx.tolist(),
                                     packets.dy.tolist(), packets.flits.tolist(), strict=True):
        for hop in route(source % shape[0], source // shape[0], dx, dy, shape):
            found[hop.y * shape[0] + hop.x, hop.direction, hop.channel] += flits
    return found
