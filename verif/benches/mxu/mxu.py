"""Model and bench of the matrix unit; both handle its streams row by row."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject
from numpy.typing import NDArray

from golden.mxu import tile_matmul
from golden.numerics import bits
from hdl.config import Config
from verif.benches.clocking import ClockDomain, config_argument, pin
from verif.benches.rows import pack_row, unpack_row
from verif.benches.streams import StreamMonitor, StreamPins, StreamSink, StreamSource
from verif.models.in_order import InOrderChecker

__all__ = ["MxuBench", "StreamedMxu", "Tile"]


@dataclass(frozen=True)
class Tile:
    """One load of weights and the activations that use it.

    Attributes
    ----------
    weights : array of float32, shape (array, array)
    activations : array of float32, shape (M, array)
        At least one row.
    transpose : bool
        Whether to send the weights transposed. The unit transposes them back, so the product is
        the same.
    """

    weights: NDArray[np.float32]
    activations: NDArray[np.float32]
    transpose: bool = False

    def weight_payloads(self, rng: random.Random) -> Iterable[int]:
        """Payloads of the weight stream.

        ``transpose`` counts only in the first row; in the others it is random.
        """
        rows = bits(self.weights.T if self.transpose else self.weights)
        for index, row in enumerate(rows):
            yield pack_row(row, rng.getrandbits(1) if index else int(self.transpose))

    def activation_payloads(self) -> Iterable[int]:
        """Payloads of the activation stream; ``swap`` is set in the first row."""
        for index, row in enumerate(bits(self.activations)):
            yield pack_row(row, int(index == 0))


class StreamedMxu:
    """A model of the matrix unit, without timing, that maps rows to rows.

    Parameters
    ----------
    config : Config
        Its size.
    """

    def __init__(self, config: Config) -> None:
        self._size = config.array
        self.reset()

    def reset(self) -> None:
        """Forgets all weights."""
        self._rows: list[NDArray[np.float32]] = []
        self._transpose = False
        self._weights: NDArray[np.float32] | None = None

    def weight_row(self, payload: int) -> None:
        """Accept a row of weights.

        Raises
        ------
        AssertionError
            If a load is complete and waits for its swap.
        """
        assert len(self._rows) < self._size, "a weight row was accepted before the load's swap"
        words, flag = unpack_row(payload, self._size)
        if not self._rows:
            self._transpose = bool(flag)
        self._rows.append(words.view(np.float32))

    def activation_row(self, payload: int) -> int:
        """The result row of an activation row.

        Raises
        ------
        AssertionError
            If the row swaps before a load is complete, or if there are no weights yet.
        """
        words, swap = unpack_row(payload, self._size)
        if swap:
            assert len(self._rows) == self._size, (
                f"a swap was accepted after {len(self._rows)} weight rows")
            loaded = np.array(self._rows)
            self._weights = loaded.T if self._transpose else loaded
            self._rows = []
        assert self._weights is not None, "an activation row before the first swap"
        return pack_row(bits(tile_matmul(words.view(np.float32)[np.newaxis], self._weights))[0])


class MxuBench:
    """A matrix unit with sources, sink, monitors, model and checker.

    Expected results follow from the transfers at the inputs, so sources may send anything at any
    time, before and after resets.

    Attributes
    ----------
    config : Config
    rng : random.Random
        Random numbers for the bench's decisions, seeded with the test's seed.
    w_source, x_source : StreamSource
    y_sink : StreamSink
    w, x, y : StreamMonitor
    results : list of int
        Result rows, as payloads, since the start.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"),
                                    mac_latency=int(config_argument("mac_latency")))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.results: list[int] = []
        self._counters = {name: pin(dut, name)
                          for name in ("cycles", "mxu_active_cycles", "weight_load_cycles")}
        self._model = StreamedMxu(self.config)
        digits = 8 * self.config.lanes
        self._checker: InOrderChecker[int] = InOrderChecker(
            "result row", lambda row: f"{row:0{digits}x}")
        self._origin = 0
        self.domain = ClockDomain(dut)
        self.domain.start()
        self.w_source, self.x_source = (
            StreamSource(self.domain, StreamPins.of(dut, name), self.rng) for name in "wx")
        self.y_sink = StreamSink(self.domain, StreamPins.of(dut, "y"), self.rng)
        self.w, self.x, self.y = (
            StreamMonitor(self.domain, dut, name, on_transfer) for name, on_transfer in (
                ("w", self._model.weight_row), ("x", self._on_activation), ("y", self._on_result)))

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "MxuBench":
        """A bench whose design has been reset."""
        bench = cls(dut)
        await bench.reset()
        return bench

    def _on_activation(self, payload: int) -> None:
        self._checker.expect(self._model.activation_row(payload))

    def _on_result(self, payload: int) -> None:
        self._checker.check(payload)
        self.results.append(payload)

    @property
    def checked(self) -> int:
        """Result rows compared since the start."""
        return self._checker.checked

    def send(self, tiles: Iterable[Tile]) -> None:
        """Queues tiles on both inputs."""
        for tile in tiles:
            self.w_source.send(tile.weight_payloads(self.rng))
            self.x_source.send(tile.activation_payloads())

    async def reset(self, cycles: int = 2) -> None:
        """Resets the design; rows under way are lost."""
        self.w_source.clear()
        self.x_source.clear()
        await self.domain.reset(cycles)
        self._model.reset()
        self._checker.clear()
        self._origin = self.domain.now

    async def drain(self) -> None:
        """Waits until all results have come."""
        while not (self.w_source.idle and self.x_source.idle and self._checker.empty):
            await self.domain.edge

    def check_counters(self) -> None:
        """Compares the counters with what the monitors saw; must be called right after an edge."""
        now, origin = self.domain.now, self._origin
        active = {cycle for cycle in self.x.transfers if origin < cycle < now}
        loading = {cycle for cycle in self.w.transfers if origin < cycle < now}
        expected = {"cycles": now - origin - 1, "mxu_active_cycles": len(active),
                    "weight_load_cycles": len(loading - active)}
        got = {name: int(counter.value) for name, counter in self._counters.items()}
        assert got == expected, f"counters {got}, not {expected}"
        assert got["mxu_active_cycles"] + got["weight_load_cycles"] <= got["cycles"]

    async def finish(self) -> None:
        """Waits for all results, and then for some time in which no other result may come.

        Raises
        ------
        AssertionError
            If no result row was compared, one too many came, or the counters are wrong.
        """
        await self.drain()
        await self.domain.cycles(self.config.array_latency + 10)
        self._checker.finish()
        self.check_counters()
