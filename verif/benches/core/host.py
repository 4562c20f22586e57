"""The host of a core: requests to the sequencer, rows of vector memory, programs."""

import random
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from cocotb.handle import HierarchyObject
from numpy.typing import NDArray

from hdl.config import Config
from hdl.core.interface import REQUEST_ADDRESS_BITS, REQUEST_WORD_BITS, Space, write_words
from hdl.encoding import bundle_words
from hdl.vpu.interface import HOST_ADDRESS_BITS, HostSpace
from verif.benches.clocking import ClockDomain, int_reader, pin
from verif.benches.ports import Ports
from verif.benches.rows import pack_row
from verif.benches.streams import StreamMonitor, StreamPins, StreamSink, StreamSource
from verif.models.in_order import InOrderChecker

__all__ = ["ProgramPort", "RequestPort", "RowPort"]


_LOADED: dict[int, int] = {}
"""Bundles that instruction memory holds, by address; they stay there after a reset or a test."""


class RequestPort:
    """Sends requests to a sequencer, and checks each response in the cycle after its request.

    Bundles at odd addresses are not written by requests, but through the port of DMA transfers.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        A design with the ports ``request``, ``response`` and ``word_write``.
    config : Config
        The design's configuration.
    rng : random.Random
        Decides on gaps.

    Attributes
    ----------
    source : StreamSource
        Its ``gap`` may be changed.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, config: Config,
                 rng: random.Random) -> None:
        pins = StreamPins.of(dut, "request")
        self._valid, self._ready = int_reader(pins.valid), int_reader(pins.ready)
        self.source = StreamSource(domain, pins, rng)
        self._writes = StreamSource(domain, StreamPins.of(dut, "word_write"), rng)
        self._together = write_words(config)
        self._domain = domain
        self._response = Ports(dut, "response", ("valid", "error", "data"))
        self._responses: InOrderChecker[tuple[int, int]] = InOrderChecker(
            "response", lambda item: f"error {item[0]}, data {item[1]:#x}")
        self._loading: dict[int, int] = {}
        self._taken = False
        domain.at_each_edge(self._cycle)

    @property
    def checked(self) -> int:
        """Number of responses that were compared."""
        return self._responses.checked

    def send(self, write: bool, space: Space, address: int, data: int = 0, *,
             expected: int = 0, error: bool = False) -> None:
        """Queues a request whose response is known."""
        self.source.send([write | space.value << 1 | address << 3
                          | data << 3 + REQUEST_ADDRESS_BITS])
        self._responses.expect((int(error), expected))

    def write(self, space: Space, words: Iterable[int], at: int = 0) -> None:
        """Queues writes of successive words."""
        for address, word in enumerate(words, at):
            self.send(True, space, address, int(word))

    def expect(self, space: Space, words: Iterable[int], at: int = 0) -> None:
        """Queues reads of successive words and their expected values."""
        for address, word in enumerate(words, at):
            self.send(False, space, address, expected=int(word))

    def load(self, bundles: Iterable[int], at: int = 0) -> None:
        """Queues writes of the bundles that the instruction memory does not hold yet."""
        for address, bundle in enumerate(bundles, at):
            if self._loading.get(address, _LOADED.get(address)) != bundle:
                _LOADED.pop(address, None)
                self._loading[address] = bundle
                words, at_word = bundle_words(bundle), address << REQUEST_WORD_BITS
                if address % 2:
                    self._write_together(words, at_word)
                else:
                    self.write(Space.IMEM, words, at_word)

    def _write_together(self, words: Sequence[int], at: int) -> None:
        """Queues writes of a bundle through the port of transfers: several words in each write."""
        for first in range(0, len(words), self._together):
            self._writes.send([Space.IMEM.value | at + first << 2 | sum(
                word << 2 + REQUEST_ADDRESS_BITS + 32 * number
                for number, word in enumerate(words[first:first + self._together]))])

    def clear(self) -> None:
        """Drops unanswered requests; to be called only in a reset."""
        self.source.clear()
        self._writes.clear()
        self._responses.clear()
        self._loading.clear()

    async def drain(self) -> None:
        """Waits until every request is answered, and all bundles are written."""
        while not (self.source.idle and self._writes.idle and self._responses.empty):
            await self._domain.edge
        _LOADED.update(self._loading)
        self._loading.clear()

    def finish(self) -> None:
        """Checks that all responses have come, and that there was at least one."""
        self._responses.finish()

    def _cycle(self) -> None:
        taken, self._taken = self._taken, False
        if self._domain.resetting:
            return
        valid = bool(self._response["valid"])
        assert valid == taken, ("a response came that no request asked for" if valid else
                                "a request was not answered in the cycle after it")
        if valid:
            self._responses.check((self._response["error"], self._response["data"]))
        self._taken = bool(self._valid() and self._ready())


class RowPort:
    """Writes and reads vector memory, and reads registers and masks; checks every row read.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        A design with the ports ``host_read``, ``host_rows``, ``host_write`` and ``host_busy``.
    rng : random.Random
        Decides on gaps and stalls.

    Attributes
    ----------
    reads, writes : StreamSource
        Their ``gap`` may be changed.
    sink : StreamSink
        Its ``stall`` may be changed.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, rng: random.Random) -> None:
        self.reads, self.writes = (StreamSource(domain, StreamPins.of(dut, name), rng)
                                   for name in ("host_read", "host_write"))
        self.sink = StreamSink(domain, StreamPins.of(dut, "host_rows"), rng)
        self._domain = domain
        self._busy = int_reader(pin(dut, "host_busy"))
        self._rows: InOrderChecker[int] = InOrderChecker("host row", hex)
        self._wanted: deque[int | None] = deque()
        self.looked = 0
        StreamMonitor(domain, dut, "host_rows", self._on_row)

    @property
    def checked(self) -> int:
        """Number of rows that were compared."""
        return self._rows.checked

    def write(self, address: int, word: NDArray[np.uint32]) -> None:
        """Queues a write of a vector, ``word`` of shape (sublanes, lanes), to vector memory."""
        self.writes.send(address | pack_row(row) << HOST_ADDRESS_BITS for row in word)

    def expect(self, space: HostSpace, address: int, word: NDArray[np.uint32]) -> None:
        """Queues a read, and the vector that it must return."""
        self.reads.send([space | address << 2])
        self._wanted.extend(pack_row(row) for row in word)

    def expect_masks(self, masks: NDArray[np.bool_]) -> None:
        """Queues a read of all masks, which must give ``masks``, shape (masks, sublanes, lanes)."""
        word = np.zeros(masks.shape[1:], np.uint32)
        for number, mask in enumerate(masks):
            word |= mask.astype(np.uint32) << np.uint32(number)
        self.expect(HostSpace.MASK, 0, word)

    def look(self, space: HostSpace, address: int, sublanes: int) -> None:
        """Queues a read of a vector that may change: its rows are only counted."""
        self.reads.send([space | address << 2])
        self._wanted.extend([None] * sublanes)

    def clear(self) -> None:
        """Drops everything under way; to be called only in a reset."""
        self.reads.clear()
        self.writes.clear()
        self._wanted.clear()
        self._rows.clear()

    async def drain(self) -> None:
        """Waits until all writes and reads are done."""
        while not (self.reads.idle and self.writes.idle and not self._wanted):
            await self._domain.edge
        await self._domain.cycles(2)
        while self._busy():
            await self._domain.edge

    def finish(self) -> None:
        """Checks that all rows have come, and that there was at least one."""
        assert not self._wanted, f"{len(self._wanted)} host rows did not come"
        self._rows.finish()

    def _on_row(self, payload: int) -> None:
        if self._wanted and self._wanted[0] is None:
            self._wanted.popleft()
            self.looked += 1
            return
        if self._wanted:
            row = self._wanted.popleft()
            assert row is not None
            self._rows.expect(row)
        self._rows.check(payload)


class ProgramPort:
    """Starts and stops programs.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        A sequencer or a core.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject) -> None:
        self._domain = domain
        self._inputs = {name: pin(dut, name)
                        for name in ("start", "start_pc", "stop", "watchdog")}
        self._outputs = {name: int_reader(pin(dut, name)) for name in ("running", "fault", "pc")}
        self._signal = Ports(dut, "signal", ("valid", "index", "amount"))
        for one in self._inputs.values():
            one.value = 0
        self._signal.zero()
        # There are no transfers, and there is no other core.
        for name in ("bus_error", "dma__read", "dma__ready", "other_signal__ready"):
            pin(dut, name).value = 0

    @property
    def running(self) -> bool:
        """Whether a program ran in the cycle that ends now."""
        return bool(self._outputs["running"]())

    @property
    def pc(self) -> int:
        """The program counter."""
        return self._outputs["pc"]()

    @property
    def fault(self) -> int:
        """The fault with which the program stopped."""
        return self._outputs["fault"]()

    async def start(self, pc: int = 0) -> None:
        """Starts a program; returns in its first cycle."""
        self._inputs["start_pc"].value = pc
        await self._pulse("start")
        assert not self.running
        await self._domain.edge

    async def stop(self) -> None:
        """Stops the program; returns in the first cycle in which it is stopped."""
        await self._pulse("stop")
        await self._domain.edge

    def set_watchdog(self, cycles: int) -> None:
        """Sets the cycles without an issue after which the core faults; 0: never."""
        self._inputs["watchdog"].value = cycles

    async def signal(self, index: int, amount: int) -> None:
        """Adds to a semaphore."""
        self._signal.drive(valid=1, index=index, amount=amount)
        await self._domain.edge
        self._signal.drive(valid=0)

    async def finish(self, limit: int) -> None:
        """Waits until the program has stopped.

        Raises
        ------
        AssertionError
            If it runs for more than ``limit`` cycles.
        """
        for _ in range(limit):
            if not self.running:
                return
            await self._domain.edge
        raise AssertionError(f"the program still runs after {limit} cycles, at bundle {self.pc}")

    def check(self, pc: int, fault: int) -> None:
        """Checks that the core is stopped, with this program counter and fault."""
        got = self.running, self.pc, self.fault
        assert got == (False, pc, fault), (
            f"running, pc, fault are {got}, not {(False, pc, fault)}")

    async def _pulse(self, name: str) -> None:
        self._inputs[name].value = 1
        await self._domain.edge
        self._inputs[name].value = 0
