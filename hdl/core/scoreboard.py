"""The scoreboard: registers with outstanding writes or reads, and reserved write ports."""

from collections import defaultdict
from functools import partial

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..isa import (
    LATENCIES,
    MASKS,
    SCALAR_REGISTERS,
    SLOTS,
    VECTOR_REGISTERS,
    Slot,
    Unit,
    VectorOp,
)
from ..tiles import instantiate
from ..vpu.interface import REGISTER_BITS, V1_DELAY, MasksWritten, RegistersWritten, RegisterWrite
from ..vpu.random import IterativeRandom, Random
from .decode import unit_codes

__all__ = ["READERS", "VECTOR_LATENCIES", "Scoreboard", "SharedPorts", "WritePort",
           "taken_write_ports"]

VECTOR_LATENCIES = {unit: LATENCIES[unit]
                    for unit in (Unit.SIMPLE, Unit.FLOAT, Unit.TRANSCENDENTAL)}
"""Cycles from issue to the write of the result, for each unit of the vector slots."""
READERS = ("x", "w", "xlu")
"""Units that may read a register later than in the cycle after issue."""


def _members(written: wiring.FlippedInterface, names: tuple[str, ...], size: int) -> Value:
    """Return ``size`` bits, one for each register: whether any of the members reports it.

    ``names`` are the names of the members of ``written``; each has ``valid``, and ``d``, the number
    of the register that it reports.
    """
    union: Value = Const(0, size)
    for name in names:
        port = getattr(written, name)
        union |= (port.valid << port.d)[:size]
    return union


class WritePort(wiring.Component):
    """Reserves the write port of a vector slot for one operation in each cycle.

    Operations have different latencies, and results cannot wait. So an operation issues only if no
    earlier operation of the slot will write its result in the same cycle.

    Parameters
    ----------
    slot : Slot
        `V0` or `V1`.

    Attributes
    ----------
    op : In(6)
        The slot's operation.
    issue : In(1)
        The operation issues in this cycle.
    taken : Out(1)
        An earlier operation has reserved the cycle in which ``op`` would write: ``op`` must wait.
    """

    def __init__(self, slot: Slot) -> None:
        if slot not in (Slot.V0, Slot.V1):
            raise ValueError(f"slot must be a vector slot, not {slot!r}")
        self._codes = {latency: codes for unit, latency in VECTOR_LATENCIES.items()
                       if (codes := unit_codes(slot, unit))}
        super().__init__({"op": In(SLOTS[slot]["op"]), "issue": In(1), "taken": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Bit i: the port writes i cycles from now.
        reserved = Signal(max(self._codes) + 1)
        wanted = Signal.like(reserved)
        for latency, codes in self._codes.items():
            m.d.comb += wanted[latency].eq(self.op.matches(*codes))
        m.d.comb += self.taken.eq((reserved & wanted).any())
        with m.If(self.issue):
            m.d.sync += reserved.eq((reserved | wanted) >> 1)
        with m.Else():
            m.d.sync += reserved.eq(reserved >> 1)
        return m


class SharedPorts(wiring.Component):
    """Reserves the shared hardware of the vector slots for one operation at a time.

    If ``issue_cycles`` is 3, the slots share a write port and the random number unit. An operation
    reserves the port for the cycle in which its result is written, and the unit for all cycles of
    its iterations. Operations of v1 are `V1_DELAY` cycles behind those of v0, so the two operations
    of a bundle never write in the same cycle.

    Attributes
    ----------
    v0, v1 : In(6)
        The slots' operations. They must not have changed since the last cycle.
    issue : In(1)
        The operations issue in this cycle.
    taken : Out(1)
        The operations must not issue in the next cycle. Defined only if nothing issues in this one.
    """

    def __init__(self) -> None:
        super().__init__({"v0": In(SLOTS[Slot.V0]["op"]), "v1": In(SLOTS[Slot.V1]["op"]),
                          "issue": In(1), "taken": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        random = self.v1 == VectorOp.RANDOM.value
        random_latency = (LATENCIES[Unit.TRANSCENDENTAL] - Random.latency
                          + IterativeRandom.latency + V1_DELAY)
        # `taken` compares operations with earlier ones only, not those of a bundle with each other.
        shared = ({latency for unit, latency in VECTOR_LATENCIES.items()
                   if unit_codes(Slot.V0, unit)}
                  & {random_latency, *(latency + V1_DELAY
                                       for latency in VECTOR_LATENCIES.values())})
        if shared:
            raise ValueError("operations of v0 and v1 in a bundle must write in different cycles, "
                             f"not both {min(shared)} cycles after issue; V1_DELAY is {V1_DELAY}")
        writes: dict[int, list[Value]] = defaultdict(list)  # by number of cycles after issue
        for unit, latency in VECTOR_LATENCIES.items():
            writes[latency].append(self.v0.matches(*unit_codes(Slot.V0, unit)))
            codes = [code for code in unit_codes(Slot.V1, unit) if code != VectorOp.RANDOM.value]
            writes[latency + V1_DELAY].append(self.v1.matches(*codes))
        writes[random_latency].append(random)
        # Bit i: the port writes i cycles from now.
        self._reserve(m, "writes", [Cat(writes[i]).any() for i in range(max(writes) + 1)])
        self._reserve(m, "random", [random] * IterativeRandom.latency)
        return m

    def _reserve(self, m: Module, name: str, wanted: list[Value]) -> None:
        """Set ``taken`` if the operations need a cycle that is reserved already.

        Bit i of ``wanted``: they need the cycle i cycles after their issue. The signals' names
        begin with ``name``.
        """
        reserved = Signal(len(wanted), name=f"{name}_reserved")
        kept = Signal(len(wanted), name=f"{name}_wanted", reset_less=True)
        m.d.sync += [kept.eq(Cat(wanted)),
                     reserved.eq((reserved | Mux(self.issue, kept, 0)) >> 1)]
        with m.If((reserved[1:] & kept).any()):
            m.d.comb += self.taken.eq(1)


def taken_write_ports(m: Module, platform: object, bundle: data.View, issue: Signal,
                      shared: bool) -> Value:
    """Reserve the vector slots' write ports; return whether a bundle must wait for them.

    ``bundle`` has `hdl.isa.BUNDLE_LAYOUT`, and ``issue`` is set if it issues in this cycle. The
    result has a bit for each vector slot. The bit says that the slot's operation must not issue in
    this cycle, because it would write in the same cycle as an earlier operation. With ``shared``,
    the result is a single bit. This bit says that the bundle must not issue in the next cycle, for
    the reasons that `SharedPorts` gives.
    """
    if shared:
        ports = instantiate(m, platform, "ports", "shared_ports", SharedPorts)
        m.d.comb += [ports.v0.eq(bundle.v0.op), ports.v1.eq(bundle.v1.op), ports.issue.eq(issue)]
        return ports.taken
    taken = []
    for slot in (Slot.V0, Slot.V1):
        port = instantiate(m, platform, f"{slot}_port", f"write_port_{slot}",
                           partial(WritePort, slot))
        m.d.comb += [port.op.eq(bundle[slot].op), port.issue.eq(issue)]
        taken.append(port.taken)
    return Cat(taken)


class Scoreboard(wiring.Component):
    """Tracks registers with outstanding writes or reads, and finds the bundle's hazards.

    A vector register or mask is outstanding from the issue of the operation that writes it until
    the cycle of the write. A bundle that issues in the cycle of the write reads the register in the
    next cycle, and so gets the new value. The register of a scalar load is outstanding for one
    cycle.

    Attributes
    ----------
    vector_reads, vector_writes, vector_loads : In(VECTOR_REGISTERS)
        The bundle's registers, from `hdl.core.decode.BundleDecoder`. Further inputs from there:
        ``mask_reads``, ``mask_writes``, ``scalar_reads`` and ``scalar_writes``.
    issue : In(1)
        The bundle issues in this cycle.
    scalar_load, scalar_d : In(1), In(5)
        The bundle has a scalar load, to scalar register ``scalar_d``.
    written, mask_written : In(RegistersWritten), In(MasksWritten)
        Registers and masks that the vector unit writes at the end of this cycle.
    {reader}_pending : In(RegisterWrite)
        A register that ``reader`` has not read yet; one port for each of `READERS`.
    load_lands, load_d : Out(1), Out(5)
        A scalar load writes this register at the end of this cycle.
    vector_hazard : Out(1)
        The bundle reads or writes an outstanding vector register or mask, or writes a register that
        a unit has not read yet.
    memory_hazard : Out(1)
        The bundle reads or writes a vector or scalar register with an outstanding load.
    busy : Out(1)
        A register or mask is outstanding.
    """

    def __init__(self) -> None:
        super().__init__({
            "vector_reads": In(VECTOR_REGISTERS), "vector_writes": In(VECTOR_REGISTERS),
            "vector_loads": In(VECTOR_REGISTERS),
            "mask_reads": In(MASKS), "mask_writes": In(MASKS),
            "scalar_reads": In(SCALAR_REGISTERS), "scalar_writes": In(SCALAR_REGISTERS),
            "issue": In(1), "scalar_load": In(1), "scalar_d": In(REGISTER_BITS),
            "written": In(RegistersWritten()), "mask_written": In(MasksWritten()),
            **{f"{reader}_pending": In(RegisterWrite()) for reader in READERS},
            "load_lands": Out(1), "load_d": Out(REGISTER_BITS),
            "vector_hazard": Out(1), "memory_hazard": Out(1), "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        vectors = Signal(VECTOR_REGISTERS)  # outstanding at the beginning of this cycle
        loading = Signal(VECTOR_REGISTERS)  # those of them with an outstanding load
        masks = Signal(MASKS)
        vectors_left = Signal(VECTOR_REGISTERS)  # outstanding at the end of this cycle
        loading_left = Signal(VECTOR_REGISTERS)
        masks_left = Signal(MASKS)
        vectors_written = Signal(VECTOR_REGISTERS)
        masks_written = Signal(MASKS)
        unread = Signal(VECTOR_REGISTERS)
        vectors_named = Signal(VECTOR_REGISTERS)
        masks_named = Signal(MASKS)
        scalars_named = Signal(SCALAR_REGISTERS)
        scalar_loading = Signal(SCALAR_REGISTERS)
        m.d.comb += [
            vectors_written.eq(_members(self.written, ("v0", "v1", "load", "chain"),
                                        VECTOR_REGISTERS)),
            masks_written.eq(_members(self.mask_written, ("v0", "v1"), MASKS)),
            unread.eq(_members(self, tuple(f"{reader}_pending" for reader in READERS),
                               VECTOR_REGISTERS)),
            vectors_left.eq(vectors & ~vectors_written),
            loading_left.eq(loading & ~vectors_written),
            masks_left.eq(masks & ~masks_written),
            vectors_named.eq(self.vector_reads | self.vector_writes),
            masks_named.eq(self.mask_reads | self.mask_writes),
            scalars_named.eq(self.scalar_reads | self.scalar_writes),
            scalar_loading.eq(self.load_lands << self.load_d),
            self.vector_hazard.eq((vectors_named & vectors_left).any() |
                                  (masks_named & masks_left).any() |
                                  (self.vector_writes & unread).any()),
            # A load to s0 has no effect.
            self.memory_hazard.eq((vectors_named & loading_left).any() |
                                  (scalars_named & scalar_loading)[1:].any()),
            self.busy.eq(vectors.any() | masks.any() | self.load_lands),
        ]
        m.d.sync += [
            vectors.eq(vectors_left), loading.eq(loading_left), masks.eq(masks_left),
            self.load_lands.eq(self.issue & self.scalar_load),
            self.load_d.eq(self.scalar_d),
        ]
        with m.If(self.issue):
            m.d.sync += [
                vectors.eq(vectors_left | self.vector_writes),
                loading.eq(loading_left | self.vector_loads),
                masks.eq(masks_left | self.mask_writes),
            ]
        return m
