"""The vector unit: lanes of vector registers, ALUs and vector memory, and their control."""

from amaranth import C, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..config import Config
from ..isa import LATENCIES
from ..tiles import TileGrid, instantiate
from .control import HostControl, MemoryControl, SlotControl
from .element import SLOTS, slot_ports, vpu_grid
from .interface import (
    V1_DELAY,
    ChainControl,
    ChainWrite,
    LoadIssue,
    MasksWritten,
    RegistersWritten,
    RowShift,
    StoreIssue,
    VectorIssue,
    check_vmem,
    host_read_request,
    host_write_row,
    row_bits,
)

__all__ = ["Vpu"]


class Vpu(wiring.Component):
    """Vector unit of a core: ``sublanes`` x ``lanes`` elements that execute the same operations.

    An operation that issues in cycle t reads its registers and masks in cycle t + 1. It writes at
    the end of cycle t + L, where L is the operation's latency in `hdl.isa`. An operation that
    issues in t + L is the first that can read the result. A load reads vector memory, and a store
    writes it, at the end of cycle t + 2. If both access a vector in the same cycle, the load
    returns the old vector. The sequencer prevents two writes by one slot, or to one register, in
    one cycle.

    If ``issue_cycles`` is 3, operations of v1 read and write `V1_DELAY` cycles later, random
    numbers take two more cycles, and a load waits for writes of the cross-lane unit. The sequencer
    then prevents two writes by both slots in one cycle, too.

    Parameters
    ----------
    config : Config
        ``vmem_vectors`` must be from 2 to 2**16.

    Attributes
    ----------
    v0, v1 : In(VectorIssue)
        The operations of the vector slots that issue in this cycle.
    load, store : In(LoadIssue), In(StoreIssue)
        The load and the store that issue in this cycle.
    x_chain, w_chain, xlu_chain : In(ChainControl)
        Control of the chains that carry rows out of vector registers. The xlu chain recirculates
        its rows.
    x_row, w_row, xlu_row : Out(row_bits)
        The southmost rows of these chains: sublane 0 after a load. Registered.
    pop_chain, result_chain : In(RowShift)
        Rows that enter the pop chain and the result chain, from which ``chain_write`` writes.
    chain_write : In(ChainWrite)
        Writes the rows that a chain holds in this cycle, before its shift, to a vector register.
    reading, load_waits : Out(1)
        Present only if ``issue_cycles`` is 3. ``reading``: an operation of a vector slot reads
        registers in this cycle, so no chain may load a register. ``load_waits``: a load is to write
        its register, so no row of the pop chain may be written.
    written, mask_written : Out(RegistersWritten), Out(MasksWritten)
        Registers and masks that are written at the end of this cycle.
    busy : Out(1)
        An issued operation of the four slots has not written its result yet.
    host_read : In(stream of host_read_request)
        Read requests of the host.
    host_rows : Out(stream of row_bits)
        ``sublanes`` rows for each read, sublane 0 first. If masks are read, bit k of an element is
        the element's bit of mask k.
    host_write : In(stream of host_write_row)
        Writes of the host: ``sublanes`` rows for each vector, sublane 0 first.
    host_busy : Out(1)
        A read or a write of the host is incomplete. A read that is accepted after the last row of a
        write returns the written data; an earlier read may return the old data or the new.
    urgent_read, urgent_write : Out(1)
        The host has waited long enough for the memory: no load, or no store, may issue in this
        cycle. Set until the host's vector is read or written. If ``issue_cycles`` is 3,
        ``urgent_read`` is also set while a load waits to write its register.

    Addresses are not checked: the memory uses as many low bits as its size needs, and its behaviour
    beyond the last vector is undefined. The sequencer checks the addresses of programs; hosts must
    check theirs.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or the size of vector memory is out of range.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        check_vmem(config)
        self._config = config
        row = row_bits(config)
        super().__init__({
            "v0": In(VectorIssue()), "v1": In(VectorIssue()),
            "load": In(LoadIssue(config)), "store": In(StoreIssue(config)),
            "x_chain": In(ChainControl()), "w_chain": In(ChainControl()),
            "xlu_chain": In(ChainControl()),
            "x_row": Out(row), "w_row": Out(row), "xlu_row": Out(row),
            "pop_chain": In(RowShift(config)), "result_chain": In(RowShift(config)),
            "chain_write": In(ChainWrite()),
            **({"reading": Out(1), "load_waits": Out(1)} if config.issue_cycles > 1 else {}),
            "written": Out(RegistersWritten()), "mask_written": Out(MasksWritten()),
            "busy": Out(1),
            "host_read": In(stream.Signature(host_read_request())),
            "host_rows": Out(stream.Signature(row)),
            "host_write": In(stream.Signature(host_write_row(config))),
            "host_busy": Out(1), "urgent_read": Out(1), "urgent_write": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        grid = instantiate(m, platform, "grid", "vpu_grid", lambda: vpu_grid(self._config))
        busy = C(0, 1)
        self._reading: Value = C(0, 1)
        for slot, full in SLOTS.items():
            busy = busy | self._slot(m, platform, grid, slot, full)
        memory = instantiate(m, platform, "memory_control", "vpu_memory_control",
                             lambda: MemoryControl(self._config))
        wiring.connect(m, wiring.flipped(self.load), memory.load)
        wiring.connect(m, wiring.flipped(self.store), memory.store)
        wiring.connect(m, memory.written, wiring.flipped(self.written.load))
        for name in ("load_write", "load_d", "store_read", "store_d", "store_m", "vmem_write"):
            m.d.comb += getattr(grid, name).eq(getattr(memory, name))
        m.d.comb += [self.busy.eq(busy | memory.busy), grid.position.eq(self._positions())]
        if self._config.issue_cycles > 1:
            m.d.comb += [
                self.reading.eq(self._reading), self.load_waits.eq(memory.waits),
                memory.grant.eq(~(self.chain_write.valid & self.chain_write.from_xlu)),
            ]
        self._chains(m, grid)
        self._host(m, platform, grid, memory)
        return m

    def _positions(self) -> C:
        """Return the value of the grid's port ``position``: 8 bits each for lane and sublane."""
        value = 0
        sublanes, lanes = self._config.sublanes, self._config.lanes
        for index in range(sublanes * lanes):
            row, lane = divmod(index, lanes)
            value |= (lane | sublanes - 1 - row << 8) << 16 * index
        return C(value, 16 * sublanes * lanes)

    def _slot(self, m: Module, platform: object, grid: TileGrid, slot: str, full: bool) -> Signal:
        """Instantiate the control pipeline of a vector slot; return its ``busy`` signal.

        ``full``: the slot has the units for transcendental functions and random numbers.
        """
        shared = self._config.issue_cycles > 1
        control = instantiate(m, platform, f"{slot}_control", SlotControl.module(full),
                              lambda: SlotControl(full, shared))
        issue = getattr(self, slot)
        busy = control.busy
        if slot == "v1" and shared:
            # v1 uses the ALU and the registers' ports after v0. Bundles issue at most every third
            # cycle, so the fields need no further register. All reads of a bundle must come before
            # its writes: v1 reads in cycle t + 1 + V1_DELAY, also what v0 or the load writes.
            if V1_DELAY >= min(LATENCIES.values()):
                raise ValueError(f"V1_DELAY must be less than {min(LATENCIES.values())}, the least "
                                 f"latency in LATENCIES, not {V1_DELAY!r}")
            later = VectorIssue().create(path=("v1_later",))
            with m.If(issue.valid):
                m.d.sync += [getattr(later, name).eq(getattr(issue, name))
                             for name in later.signature.members if name != "valid"]
            valid = issue.valid
            for i in range(V1_DELAY):
                delayed = Signal(name=f"v1_valid_{i}")
                m.d.sync += delayed.eq(valid)
                busy, valid = busy | delayed, delayed
            m.d.comb += later.valid.eq(valid)
            wiring.connect(m, later, control.issue)
        else:
            wiring.connect(m, wiring.flipped(issue), control.issue)
        if shared:
            self._reading = self._reading | control.read
        wiring.connect(m, control.written, wiring.flipped(getattr(self.written, slot)))
        wiring.connect(m, control.mask_written, wiring.flipped(getattr(self.mask_written, slot)))
        for name in slot_ports(full, shared):
            m.d.comb += getattr(grid, f"{slot}_{name}").eq(getattr(control, name))
        return busy

    def _chains(self, m: Module, grid: TileGrid) -> None:
        for chain in ("x", "w", "xlu"):
            control = getattr(self, f"{chain}_chain")
            for name in ("load", "source", "shift"):
                m.d.comb += getattr(grid, f"{chain}_{name}").eq(getattr(control, name))
            m.d.comb += getattr(self, f"{chain}_row").eq(getattr(grid, f"{chain}_out"))
        for chain in ("pop", "result"):
            rows = getattr(self, f"{chain}_chain")
            m.d.comb += [getattr(grid, f"{chain}_shift").eq(rows.shift),
                         getattr(grid, f"{chain}_in").eq(rows.row)]
        m.d.comb += [
            grid.xlu_in.eq(grid.xlu_out),
            grid.chain_write.eq(self.chain_write.valid), grid.chain_d.eq(self.chain_write.d),
            grid.chain_from_xlu.eq(self.chain_write.from_xlu),
            self.written.chain.valid.eq(self.chain_write.valid),
            self.written.chain.d.eq(self.chain_write.d),
        ]

    def _host(self, m: Module, platform: object, grid: TileGrid, memory: MemoryControl) -> None:
        host = instantiate(m, platform, "host_control", "vpu_host_control",
                           lambda: HostControl(self._config))
        wiring.connect(m, wiring.flipped(self.host_read), host.requests)
        urgent, reads = host.urgent_read, memory.vmem_read
        if self._config.issue_cycles > 1:
            m.d.comb += host.store_reads.eq(memory.store_read)
            # The word that was read last stays until the load has written it.
            urgent |= memory.waits & ~memory.grant
            reads |= memory.waits & ~memory.grant
        m.d.comb += [
            host.core_reads.eq(reads), host.core_writes.eq(memory.vmem_write),
            host.rows_ready.eq(self.host_rows.ready),
            self.host_rows.valid.eq(host.rows_valid), self.host_rows.payload.eq(grid.host_out_out),
            host.write_valid.eq(self.host_write.valid),
            host.write_address.eq(self.host_write.payload.address),
            self.host_write.ready.eq(host.write_ready),
            self.host_busy.eq(host.busy),
            self.urgent_read.eq(urgent), self.urgent_write.eq(host.urgent_write),
            grid.host_in_in.eq(self.host_write.payload.data), grid.host_in_shift.eq(host.in_shift),
            grid.host_out_load.eq(host.out_load), grid.host_out_shift.eq(host.out_shift),
            grid.host_space.eq(host.space), grid.host_source.eq(host.source),
            grid.vmem_read.eq(memory.vmem_read | host.read),
            grid.vmem_read_address.eq(Mux(memory.vmem_read, memory.vmem_read_address,
                                          host.read_address)),
            grid.vmem_write_host.eq(host.write),
            grid.vmem_write_address.eq(Mux(host.write, host.address, memory.vmem_write_address)),
        ]
