"""Connects the vector unit's pins with a `VpuChecker`, a source of bundles and the host."""

from collections import deque
from collections.abc import Iterable

import cocotb
from cocotb.handle import HierarchyObject

from hdl import isa
from hdl.config import Config
from hdl.isa import Slot
from hdl.vpu.interface import HostSpace
from verif.benches.clocking import ClockDomain, config_argument, int_reader, pin
from verif.benches.core.host import RowPort
from verif.benches.ports import Ports
from verif.benches.rows import pack_row, unpack_row
from verif.models.vpu import (
    CORE_VECTORS,
    BundleIssuer,
    Cycle,
    VpuChecker,
    fill_bundles,
    input_widths,
    pins,
)
from verif.system.programs.bundles import random_words

__all__ = ["VpuBench"]

_WRITTEN = {("v", port): f"written__{port}" for port in ("v0", "v1", "load", "chain")} | {
    ("m", port): f"mask_written__{port}" for port in ("v0", "v1")}


class VpuBench:
    """Drives the unit's pins; compares its outputs with the checker's in every cycle.

    Attributes
    ----------
    issuer : BundleIssuer
        Gives the inputs of a cycle if ``cycles`` is empty.
    cycles : deque of Cycle
        Queue of inputs for the next cycles; they precede those of ``issuer``.
    checker : VpuChecker
    rows : RowPort
        The host's port to vector memory.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"))
        self.issuer = BundleIssuer(self.config, cocotb.RANDOM_SEED)
        self.cycles: deque[Cycle] = deque()
        self._written = self._rows = 0
        self.domain = ClockDomain(dut)
        self._widths = input_widths(self.config)
        self._inputs = {name: Ports(dut, name, members)
                        for name, members in self._widths.items()}
        self._row_inputs = {name: pin(dut, f"{name}__row")
                            for name in ("pop_chain", "result_chain")}
        self._row_outputs = {f"{name}_row": int_reader(pin(dut, f"{name}_row"))
                             for name in ("x", "w", "xlu")}
        self._outputs = {f"{name}__{member}": int_reader(pin(dut, f"{name}__{member}"))
                         for name in _WRITTEN.values() for member in ("valid", "d")}
        self._outputs["busy"] = int_reader(pin(dut, "busy"))
        self._urgent = {Slot.LOAD: int_reader(pin(dut, "urgent_read")),
                        Slot.STORE: int_reader(pin(dut, "urgent_write"))}
        for ports in self._inputs.values():
            ports.zero()
        for row in self._row_inputs.values():
            row.value = 0
        self._clear()
        self.domain.start()
        self.rows = RowPort(self.domain, dut, self.issuer.rng)
        cocotb.start_soon(self._run())

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "VpuBench":
        """A bench whose unit has been reset and given random contents."""
        bench = cls(dut)
        await bench.reset()
        return bench

    def _clear(self) -> None:
        self.issuer.restart()
        self.cycles.clear()
        self.checker = VpuChecker(self.config, known=False)
        self._want: dict | None = None

    @property
    def host_vectors(self) -> range:
        """Vectors of vector memory that only the host uses."""
        return range(self.config.vmem_vectors - 8, self.config.vmem_vectors)

    def write(self, address: int) -> None:
        """Queues the host's write of a vector with random contents."""
        vector = random_words(self.issuer.numbers, self.checker.vmem[0].shape)
        self.issuer.core.vmem[address] = self.checker.vmem[address] = vector
        self.rows.write(address, vector)

    async def reset(self) -> None:
        """Resets the unit; memory, registers and masks get new random contents."""
        self._written += self.checker.written
        self._rows += self.checker.rows
        self.rows.reads.clear()
        self.rows.writes.clear()
        await self.domain.reset()
        self.rows.clear()
        self._clear()
        for address in (*range(CORE_VECTORS), *self.host_vectors):
            self.write(address)
        await self.rows.drain()
        self.issuer.send(fill_bundles())
        await self.drain()

    async def drain(self) -> None:
        """Waits until all that was sent has issued and written its results."""
        while self.cycles or not self.issuer.idle:
            await self.domain.edge
        await self.domain.cycles(3)

    async def play(self, cycles: Iterable[Cycle]) -> None:
        """Applies inputs to the unit but not to the golden core; waits until the unit is idle."""
        self.cycles.extend([*cycles, *[Cycle()] * (isa.TRANSCENDENTAL_LATENCY + 1)])
        await self.drain()

    async def compare(self, *, bundles: bool = True) -> None:
        """Reads all registers, masks and the memory in use, and ends the checks.

        The state must equal the checker's and, with ``bundles``, the golden core's, too.
        """
        await self.drain()
        self.issuer.chains_busy = 0.0
        await self.domain.cycles(2)
        checker = self.checker
        addresses = (*range(CORE_VECTORS), *self.host_vectors)
        if bundles:
            checker.check_state(self.issuer.core, addresses)
        for number, vector in enumerate(checker.vectors):
            self.rows.expect(HostSpace.VREG, number, vector)
        self.rows.expect_masks(checker.masks)
        for address in addresses:
            self.rows.expect(HostSpace.VMEM, address, checker.vmem[address])
        await self.rows.drain()
        self.rows.finish()
        vectors = len(checker.vectors) + 1 + len(addresses)
        assert self.rows.checked >= vectors * self.config.sublanes

    def finish(self, writes: int, rows: int = 0) -> None:
        """Checks that at least ``writes`` writes, and ``rows`` rows of chains, were compared."""
        written = self._written + self.checker.written
        compared = self._rows + self.checker.rows
        assert written >= writes, f"{written} writes were compared, not {writes}"
        assert compared >= rows, f"{compared} rows of chains were compared, not {rows}"

    async def _run(self) -> None:
        while True:
            # In the middle of a cycle the inputs are still those of the cycle before.
            await self.domain.middle
            if self.domain.resetting:
                self._drive(Cycle())
                self._want = None
                continue
            if self._want is not None:
                self.checker.compare(self._want, self._read, self.domain.now - 1)
            if self.cycles:
                cycle = self.cycles.popleft()
            else:
                written = {(file, self._outputs[f"{name}__d"]())
                           for (file, port), name in _WRITTEN.items()
                           if port != "chain" and self._outputs[f"{name}__valid"]()}
                urgent = {slot for slot, one in self._urgent.items() if one()}
                cycle = self.issuer.next(written, urgent)
            self._drive(cycle)
            self._want = self.checker.step(cycle)

    def _read(self, name: str) -> object:
        if name in self._row_outputs:
            return unpack_row(self._row_outputs[name](), self.config.lanes)[0]
        return [self._outputs[name]()]

    def _drive(self, cycle: Cycle) -> None:
        values = pins(cycle)
        for name, ports in self._inputs.items():
            members = self._widths[name]
            own = {member: values[f"{name}__{member}"] for member in members
                   if f"{name}__{member}" in values}
            if own.get("valid"):
                # What no operand needs must not matter.
                own = {member: self.issuer.rng.getrandbits(width)
                       for member, width in members.items()} | own
            ports.drive(**own)
        for name, row in self._row_inputs.items():
            if f"{name}__row" in values:
                row.value = pack_row(values[f"{name}__row"])
