"""The front end of the DMA engine: reads descriptors, checks them, and turns them into transfers.

All checks are exact: no number wraps. A descriptor has two sides, source and destination. For a
side with runs, the front end locates the last run. The number of the last block, divided by the
length of a run, gives the number of the last run. This quotient times the stride gives the run's
offset. One loop divides and multiplies. For each bit of the quotient, from the highest down, it
doubles the offset, and adds the stride if the bit is set. The offset needs no more bits than an
address, because a transfer with a larger offset is out of range.
"""

from collections.abc import Collection
from functools import partial

from amaranth import Array, Cat, Module, Mux, Shape, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..config import Config
from ..core.interface import FAULT_BITS, DmaIssue, descriptor_words
from ..isa import BUNDLE_PITCH, Fault
from ..link.format import Direction
from ..tiles import instantiate
from .format import (
    DESCRIPTOR_LAYOUT,
    DESCRIPTOR_WORDS,
    DMA_DESTINATIONS,
    DMA_MAX_ROWS,
    DMA_SOURCES,
    DMA_SPACES,
    DmaSpace,
)
from .interface import (
    BLOCK_BITS,
    DIVISION_STEP_BITS,
    SHORT_BITS,
    VECTOR_SPACES,
    WORD_SPACES,
    CheckTimes,
    address_bits,
    check_config,
    row_words_log2,
    side,
    space_size,
    transfer,
)
from .remote import PLACE_PORTS, RemoteCheck, directions

__all__ = ["DescriptorFrontEnd", "SideCheck"]

_ORDER = (0, 1, 4, 8, 5, 9, 2, 3, 6, 7)
"""Order in which single words of a descriptor are read: inputs of the division first, addresses
last."""
assert sorted(_ORDER) == list(range(DESCRIPTOR_WORDS))


class SideCheck(wiring.Component):
    """Checks one side (source or destination) of a descriptor, and converts it to a `side`.

    From ``start`` on, all fields except the address must be valid; from ``finish`` on, also the
    address. ``finish`` requires ``done``. ``outside`` is valid from the cycle after ``finish``. The
    division begins in the cycle after ``start`` and takes ``BLOCK_BITS // DIVISION_STEP_BITS``
    cycles. A side without a run needs no division. Some cores read a descriptor in one cycle
    (`descriptor_words`). There, a side without a run is ``done`` in the cycle of ``start``, and the
    division of at most ``2 ** SHORT_BITS`` blocks takes half as many cycles.

    Parameters
    ----------
    config : Config
    spaces : collection of DmaSpace
        Spaces in which the side may lie.

    Attributes
    ----------
    space, rows, address, run, stride : In(4), In(32), In(64), In(32), In(signed(32))
        Fields of the descriptor.
    start, finish : In(1)
        ``start`` begins the division. ``finish`` computes the range of the side.
    done : Out(1)
        The division is complete.
    malformed, misaligned : Out(1)
        Faults DMA_DESCRIPTOR and DMA_ALIGNMENT of this side; combinational. ``misaligned`` is valid
        only if the side is not ``malformed``.
    outside : Out(1)
        Fault DMA_RANGE of this side; valid only if the side is not ``malformed`` or ``misaligned``.
    side : Out(side)
        The side in units of `space_size`, valid if it has no fault; combinational.
    """

    def __init__(self, config: Config, spaces: Collection[DmaSpace]) -> None:
        check_config(config)
        self._config = config
        self._spaces = sorted(space for space in spaces if DMA_SPACES[space].exists(config))
        self._vectors = [*VECTOR_SPACES, *(space.value for space in self._spaces
                                           if DMA_SPACES[space].links)]
        super().__init__({
            "space": In(4), "rows": In(32), "address": In(64), "run": In(32),
            "stride": In(signed(32)), "start": In(1), "finish": In(1), "done": Out(1),
            "malformed": Out(1), "misaligned": Out(1), "outside": Out(1), "side": Out(side(config)),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._look(m)
        size, far, stride_far = self._convert(m)
        offset, remainder, several, offset_far = self._divide(m)
        self._sum(m, size, far, (stride_far | offset_far), offset, remainder, several)
        return m

    def _look(self, m: Module) -> None:
        """Find the faults that follow from the fields alone: ``malformed`` and ``misaligned``."""
        config = self._config
        runs = [space.value for space, info in DMA_SPACES.items()
                if info.runs and (config.link_bytes or not info.links)]
        row_bits = exact_log2(config.row_bytes)
        is_hbm = Signal()
        is_vector = Signal()
        high = self.address[32:].any()
        if DmaSpace.REMOTE_VMEM in self._spaces:
            high &= self.space != DmaSpace.REMOTE_VMEM.value  # there it names the core
        m.d.comb += [
            is_hbm.eq(self.space == DmaSpace.HBM.value),
            is_vector.eq(self.space.matches(*self._vectors)),
            self.malformed.eq(
                ~self.space.matches(*(space.value for space in self._spaces)) |
                (~is_hbm & high) |
                ((self.run != 0) & ~self.space.matches(*runs)) |
                ((self.stride != 0) & (self.run == 0))),
            self.misaligned.eq(
                (is_hbm & (self.address[:row_bits] | self.stride[:row_bits]).any()) |
                (is_vector & self.rows[:exact_log2(config.sublanes)].any()) |
                ((self.space == DmaSpace.IMEM.value) &
                 self.address[:exact_log2(BUNDLE_PITCH)].any())),
        ]

    def _convert(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Convert address, stride and blocks to units of the space.

        Return three signals: the size of the side's space, and two bits. The first bit is set if
        the address or the number of blocks is too large for every space, the second if the stride
        is.
        """
        config, bits = self._config, address_bits(self._config)
        row_bits = exact_log2(config.row_bytes)
        address = Signal(64, name="address_units")
        stride = Signal(signed(32), name="stride_units")
        blocks = Signal(BLOCK_BITS + row_words_log2(config), name="all_blocks")
        size = Signal(bits + 1)
        far = Signal()
        stride_far = Signal()
        m.d.comb += [
            self.side.space.eq(self.space), self.side.address.eq(address),
            self.side.stride.eq(stride), self.side.blocks.eq(blocks),
            # A run that is longer than any transfer has the same effect as none.
            self.side.run.eq(Mux((self.run == 0) | self.run[BLOCK_BITS:].any(), DMA_MAX_ROWS,
                                 self.run)),
            far.eq(address[bits:].any() | blocks[BLOCK_BITS:].any()),
            stride_far.eq((stride >> bits != 0) & (stride >> bits != -1)),
        ]
        with m.If(self.space == DmaSpace.HBM.value):
            m.d.comb += [address.eq(self.address >> row_bits), stride.eq(self.stride >> row_bits)]
        with m.Else():
            m.d.comb += [address.eq(self.address), stride.eq(self.stride)]
        if DmaSpace.REMOTE_VMEM in self._spaces:
            with m.If(self.space == DmaSpace.REMOTE_VMEM.value):
                m.d.comb += address.eq(self.address[:32])
        with m.If(self.space.matches(*self._vectors)):
            m.d.comb += blocks.eq(self.rows[:BLOCK_BITS] >> exact_log2(config.sublanes))
        with m.Elif(self.space.matches(*WORD_SPACES)):
            m.d.comb += blocks.eq(self.rows[:BLOCK_BITS] << row_words_log2(config))
        with m.Else():
            m.d.comb += blocks.eq(self.rows[:BLOCK_BITS])
        with m.Switch(self.space):
            for space in self._spaces:
                with m.Case(space.value):
                    m.d.comb += size.eq(space_size(config, space))
        return size, far, stride_far

    def _divide(self, m: Module) -> tuple[Value, Signal, Signal, Signal]:
        """Locate the last block of the side, by dividing the number of blocks by the run length.

        Return four signals: offset of the last run from the first; position of the last block in
        it; a bit, set if there are several runs; a bit, set if the offset is beyond every space.
        """
        stride, run = self.side.stride, self.side.run
        offset = Signal(stride.shape(), reset_less=True)
        remainder = Signal(BLOCK_BITS, reset_less=True)
        last = Signal(BLOCK_BITS)
        short = Signal()
        dividend = Signal(BLOCK_BITS, reset_less=True)
        several = Signal(reset_less=True)
        far = Signal(reset_less=True)
        left = Signal(range(BLOCK_BITS // DIVISION_STEP_BITS + 1))
        wide = Shape(Shape.cast(stride.shape()).width + 2, signed=True)
        at_remainder, at_offset, at_several, at_far = remainder, offset, several, far
        for step in range(DIVISION_STEP_BITS):
            longer = Signal(BLOCK_BITS + 1, name=f"longer_{step}")
            fits = Signal(name=f"fits_{step}")
            rest = Signal(BLOCK_BITS, name=f"rest_{step}")
            further = Signal(wide, name=f"further_{step}")
            near = Signal.like(offset, name=f"near_{step}")
            found = Signal(name=f"found_{step}")
            beyond = Signal(name=f"beyond_{step}")
            m.d.comb += [
                longer.eq(Cat(dividend[BLOCK_BITS - 1 - step], at_remainder)),
                fits.eq(longer >= run),
                rest.eq(longer - Mux(fits, run, 0)),
                further.eq((at_offset << 1) + Mux(fits, stride, 0)),
                near.eq(further),
                found.eq(at_several | fits),
                beyond.eq(at_far | (further != near)),
            ]
            at_remainder, at_offset, at_several, at_far = rest, near, found, beyond
        # This saves cycles only where all words of a descriptor are read at once.
        at_once = descriptor_words(self._config) == DESCRIPTOR_WORDS
        single = Signal()
        m.d.comb += [
            single.eq(run == DMA_MAX_ROWS),
            last.eq(self.side.blocks - 1),
            short.eq(~last[SHORT_BITS:].any() & at_once),
            self.done.eq(Mux(self.start, single & at_once, left == 0)),
        ]
        with m.If(self.start):
            m.d.sync += [offset.eq(0), several.eq(0), far.eq(0), remainder.eq(0)]
            with m.If(single):
                m.d.sync += [remainder.eq(last), left.eq(0)]
            # Leading zeros of the dividend leave remainder and offset zero.
            with m.Elif(short):
                m.d.sync += [dividend.eq(last << (BLOCK_BITS - SHORT_BITS)),
                             left.eq(SHORT_BITS // DIVISION_STEP_BITS)]
            with m.Else():
                m.d.sync += [dividend.eq(last), left.eq(BLOCK_BITS // DIVISION_STEP_BITS)]
        with m.Elif(~self.done):
            m.d.sync += [remainder.eq(at_remainder), offset.eq(at_offset), several.eq(at_several),
                         far.eq(at_far), dividend.eq(dividend << DIVISION_STEP_BITS),
                         left.eq(left - 1)]
        # In the cycle of ``start``, the register has yet to be cleared.
        return Mux(single & at_once, 0, offset), remainder, several, far

    def _sum(self, m: Module, size: Signal, far: Signal, step_far: Signal, offset: Value,
             remainder: Signal, several: Signal) -> None:
        """Drive ``outside``, from the lowest and the highest block of the side.

        The lowest block is the start of the first run or of the last run. Only the last run may be
        incomplete. So the highest block is the end of the last run, or the end of the highest
        complete run. The highest complete run is the last but one or, if the stride is negative,
        the first.

        ``size`` and ``far`` are results of `_convert`; ``offset``, ``remainder`` and ``several``
        are results of `_divide`. ``step_far``: the stride or the offset is too large for every
        space.
        """
        stride, run, bits = self.side.stride, self.side.run, address_bits(self._config)
        place_shape = signed(max(bits, BLOCK_BITS) + 3)
        begin = Signal(place_shape)
        last_run = Signal(place_shape, reset_less=True)
        whole_run = Signal(place_shape, reset_less=True)
        last_end = Signal(place_shape)
        whole_end = Signal(place_shape)
        m.d.comb += [
            begin.eq(self.side.address + offset),
            last_end.eq(last_run + remainder),
            whole_end.eq(whole_run + run),  # the block after it
        ]
        with m.If(self.finish):
            m.d.sync += [last_run.eq(begin),
                         whole_run.eq(Mux(stride < 0, self.side.address, begin - stride))]
        m.d.comb += self.outside.eq(
            far | (last_run < 0) | (last_end >= size) |
            (several & (step_far | (whole_end > size))))


class DescriptorFrontEnd(wiring.Component):
    """Reads and checks descriptors of the program and of the host, and starts their transfers.

    If the queue has room, ``dma.valid`` and ``host_valid`` are answered with ``dma.ready`` and
    ``host_ready``, `CheckTimes.total` cycles later. In the argument of `total`, a side whose
    run has 2**24 - 1 blocks or more counts as a side without runs. Descriptors are processed one
    after the other; the host's descriptor has priority.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    dma : In(DmaIssue)
        Starts of transfers by the program.
    host_descriptor : In(320)
        The host's descriptor, of `DESCRIPTOR_LAYOUT`.
    host_valid, host_ready : In(1), Out(1)
        ``host_valid`` requests the check of the host's descriptor and the start of its transfer.
        ``host_ready``: the transfer starts, or is refused with a fault. The descriptor must be
        stable until then. Without ``host_valid``, no transfer starts.
    host_fault : Out(4)
        With ``host_ready``: the descriptor's `Fault`. If it is not `NONE`, no transfer was started.
    room : In(1)
        The queue has room for a transfer.
    remote_room, width, height, x, y : In(4), In(6), In(6), In(5), In(5)
        Present if the chip has links. ``remote_room``: the queue of remote transfers has room, one
        bit for each `Direction`. The others: chips along each side of the torus, and coordinates of
        this chip.
    push, transfer : Out(1), Out(transfer)
        If ``push`` is set, ``transfer`` starts in this cycle.
    busy : Out(1)
        A descriptor of the host is being read or checked.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        super().__init__({
            "dma": In(DmaIssue(config)), "host_descriptor": In(32 * DESCRIPTOR_WORDS),
            "host_valid": In(1), "host_ready": Out(1), "host_fault": Out(FAULT_BITS),
            "room": In(1), "push": Out(1), "transfer": Out(transfer(config)), "busy": Out(1),
            **({"remote_room": In(len(Direction)),
                **{name: In(width) for name, width in PLACE_PORTS.items()}}
               if config.link_bytes else {}),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        words = Signal(32 * DESCRIPTOR_WORDS, reset_less=True)
        fields = data.View(DESCRIPTOR_LAYOUT, words)
        source, destination = (
            instantiate(m, platform, f"{name}_check", f"dma_{name}_check",
                        partial(SideCheck, self._config, spaces))
            for name, spaces in (("source", DMA_SOURCES), ("destination", DMA_DESTINATIONS)))
        for name, check in (("source", source), ("destination", destination)):
            m.d.comb += [
                check.space.eq(fields[f"{name}_space"]), check.rows.eq(fields.rows),
                *(getattr(check, field).eq(fields[f"{name}_{field}"])
                  for field in ("address", "run", "stride")),
            ]
        m.d.comb += [self.transfer.rows.eq(fields.rows),
                     self.transfer.semaphore.eq(fields.semaphore),
                     self.transfer.signal.eq(fields.signal),
                     self.transfer.signal_other.eq(fields.signal_other)]
        wrong = Signal(FAULT_BITS)
        fault = Signal(FAULT_BITS, reset_less=True)
        malformed = Signal()
        # Except in a remote transfer, the fields of a remote signal are reserved as well.
        reserved = words[DESCRIPTOR_LAYOUT["signal_remote"].offset:32] != 0
        outside = source.outside | destination.outside
        if self._config.link_bytes:
            remote, unclear, far = self._check_remote(m, platform, fields)
            reserved = Mux(remote, (fields.reserved != 0) | unclear, reserved)
            outside |= far
        m.d.comb += malformed.eq(
            source.malformed | destination.malformed | reserved |
            (fields.rows == 0) | (fields.rows > DMA_MAX_ROWS) |
            (fields.signal_other & (self._config.cores == 1)))
        with m.If(malformed):
            m.d.comb += wrong.eq(Fault.DMA_DESCRIPTOR.value)
        with m.Elif(source.misaligned | destination.misaligned):
            m.d.comb += wrong.eq(Fault.DMA_ALIGNMENT.value)
        with m.Elif(outside):
            m.d.comb += wrong.eq(Fault.DMA_RANGE.value)
        compares = self._control(m, words, fault, source, destination)
        with m.If(compares):
            m.d.sync += [fault.eq(wrong), self.transfer.source.eq(source.side),
                         self.transfer.destination.eq(destination.side)]
        return m

    def _check_remote(self, m: Module, platform: object,
                      fields: data.View) -> tuple[Signal, Value, Value]:
        """Check the parts of ``fields`` that only a remote transfer has; add them to ``transfer``.

        ``fields`` is the descriptor. Return three bits: the transfer is remote; its destination is
        malformed, or its source is not vector memory; its destination is not on the torus.
        """
        check = instantiate(m, platform, "remote_check", "remote_check",
                            lambda: RemoteCheck(self._config))
        moved = self.transfer
        remote = Signal()
        m.d.comb += [
            remote.eq(fields.destination_space == DmaSpace.REMOTE_VMEM.value),
            check.word.eq(fields.destination_address[32:]),
            *(getattr(check, name).eq(getattr(self, name)) for name in PLACE_PORTS),
            moved.signal_remote.eq(fields.signal_remote),
            moved.remote_semaphore.eq(fields.remote_semaphore)]
        # Kept in registers, like the sides; all other parts of a transfer are the descriptor's.
        m.d.sync += [moved.remote.eq(remote), moved.to.eq(check.to)]
        return (remote, check.malformed | (fields.source_space != DmaSpace.VMEM.value),
                remote & check.outside)

    def _room(self) -> Value:
        """Return a bit, set if there is room in the queue into which ``transfer`` goes."""
        if not self._config.link_bytes:
            return self.room
        there = Cat(directions(self.transfer.to)) & self.remote_room
        return Mux(self.transfer.remote, there.any(), self.room)

    def _control(self, m: Module, words: Signal, fault: Signal, source: SideCheck,
                 destination: SideCheck) -> Signal:
        """Sequence the checks; return a signal that is set when all of them are complete.

        ``words``: the words of the descriptor. ``fault``: its fault, valid from the cycle after the
        one in which the returned signal is set. ``source`` and ``destination`` check its sides.
        """
        times = CheckTimes.of(self._config)
        from_host = Signal()
        given_up = Signal()
        can = Signal()
        compares = Signal()
        offered = Signal()
        count = Signal(range(times.complete + 2))  # cycles since the request, up to the limit
        m.d.comb += [
            given_up.eq(~Mux(from_host, self.host_valid, self.dma.valid)),
            self.transfer.from_host.eq(from_host),
            can.eq(offered & ((fault != Fault.NONE.value) | self._room())),
            self.dma.ready.eq(can & ~from_host), self.dma.fault.eq(fault),
            self.host_ready.eq(can & from_host), self.host_fault.eq(fault),
            self.push.eq(self.dma.taken |
                         (self.host_ready & self.host_valid & (fault == Fault.NONE.value))),
        ]
        m.d.sync += count.eq(0)
        with m.FSM(name="phase") as fsm:
            m.d.comb += self.busy.eq(from_host & ~fsm.ongoing("REST"))
            with m.State("REST"):
                m.d.comb += self.dma.read.eq(self.dma.valid & ~self.host_valid)
                m.d.sync += from_host.eq(self.host_valid)
                with m.If(self.host_valid | self.dma.valid):
                    m.d.sync += count.eq(1)
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.comb += [
                    self.dma.read.eq(~from_host & (count < times.reads)),
                    source.start.eq(count == times.division_start),
                    destination.start.eq(count == times.division_start),
                ]
                with m.If(given_up):
                    m.next = "REST"
                with m.Elif((count >= times.complete) & source.done & destination.done):
                    m.d.comb += [source.finish.eq(1), destination.finish.eq(1)]
                    m.next = "COMPARE"
                with m.Else():
                    m.d.sync += count.eq(Mux(count > times.complete, count, count + 1))
            with m.State("COMPARE"):
                m.d.comb += compares.eq(1)
                m.next = "OFFER"
                with m.If(given_up):
                    m.next = "REST"
            with m.State("OFFER"):
                m.d.comb += offered.eq(1)
                with m.If(given_up | self.dma.taken | self.host_ready):
                    m.next = "REST"
        self._read(m, words, count, from_host)
        return compares

    def _read(self, m: Module, words: Signal, count: Signal, from_host: Signal) -> None:
        """Set ``words`` to the program's descriptor in scalar memory or, ``from_host``, the host's.

        ``count``: cycles since the request.
        """
        if descriptor_words(self._config) == DESCRIPTOR_WORDS:
            m.d.comb += self.dma.read_address.eq(self.dma.address)
            with m.If(count == 1):
                m.d.sync += words.eq(Mux(from_host, self.host_descriptor, self.dma.data))
            return
        m.d.comb += self.dma.read_address.eq(self.dma.address + Array(_ORDER)[count])
        for number, word in enumerate(_ORDER):
            with m.If(count == number + 1):
                m.d.sync += words.word_select(word, 32).eq(
                    Mux(from_host, self.host_descriptor.word_select(word, 32), self.dma.data))
