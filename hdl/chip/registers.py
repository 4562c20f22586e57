"""The register map: one table for hardware, driver and docs/registers.md."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..axi.interface import CONTROL_ADDRESS_BITS
from ..axi.lite import RegisterAccess
from ..config import Config
from ..core.counters import COUNTERS
from ..core.interface import (
    FAULT_BITS,
    REQUEST_ADDRESS_BITS,
    REQUEST_WORD_BITS,
    SEMAPHORE_BITS,
    SPACE_BITS,
)
from ..dma.format import DESCRIPTOR_WORDS
from ..isa import BUNDLE_WORDS

__all__ = ["ACCESS_ADDRESS_BITS", "CORE_PITCH", "CORE_REGISTERS", "COUNTER_REGISTERS", "EVENTS",
           "EVENT_PITCH", "GLOBAL_REGISTERS", "IDENTITY", "LINK_REGISTERS", "MAX_CORES",
           "OFFSET_BITS", "VERSION", "WAIT_CYCLES", "Access", "Field", "Register",
           "RegisterBlock", "address", "chip_registers", "parameters"]

OFFSET_BITS = 12
"""Width of a register's offset within its block."""
CORE_PITCH = 1 << OFFSET_BITS
"""Bytes of address space of a register block. The block of core k begins at (k + 1) * CORE_PITCH.
"""
MAX_CORES = 2
IDENTITY = int.from_bytes(b"SYST", "big")
"""Value of register ID."""
VERSION = (0, 1, 0)
"""Version of the register map: major (incompatible change), minor (addition), patch (correction).
"""
WAIT_CYCLES = 1 << 10
"""Cycles that an access waits for a core to accept it, before it is refused."""
ACCESS_ADDRESS_BITS = REQUEST_ADDRESS_BITS + 4
"""Width of the address in ACCESS_ADDRESS. It is wider than the address in a request: an address
that is incremented beyond the end of a space must not wrap to its beginning."""
EVENTS = ("STOPPED", "FAULT", "TRANSFER_DONE", "TRANSFER_FAILED")
"""Events of a core that can cause an interrupt, from the lowest bit on."""
EVENT_PITCH = 8
"""Distance in bits between the events of successive cores in the interrupt registers."""


class Access(StrEnum):
    """Permitted accesses to a register; all others are refused with SLVERR.

    RO: read. RW: read and write. WO: write. W1: write; a 1 has an effect, a 0 has none. W1C: read
    and write; a 1 clears its bit, a 0 has no effect.
    """

    RO = "ro"
    RW = "rw"
    WO = "wo"
    W1 = "w1"
    W1C = "w1c"


@dataclass(frozen=True)
class Field:
    """A field of a register: a range of its bits.

    Attributes
    ----------
    name : str
        Name, in capitals.
    low, width : int
        Number of the field's lowest bit in the register, and the field's number of bits.
    description : str
        Meaning of the field.
    """

    name: str
    low: int
    width: int
    description: str

    def __post_init__(self) -> None:
        if self.low < 0 or self.width < 1 or self.low + self.width > 32:
            raise ValueError(f"field {self.name} must lie within bits 0 to 31, not have "
                             f"{self.width} bits from bit {self.low} on")

    @property
    def mask(self) -> int:
        """The bits of the field, as a mask of the register's word."""
        return (1 << self.width) - 1 << self.low

    def get(self, word: int) -> int:
        """Return the field's value in ``word``, a value of the register."""
        return (word & self.mask) >> self.low

    def put(self, value: int) -> int:
        """Return a word with ``value`` in this field, and zeros elsewhere.

        Raises
        ------
        ValueError
            If ``value`` does not fit the field.
        """
        if not 0 <= value < 1 << self.width:
            raise ValueError(f"{self.name} must be from 0 to {(1 << self.width) - 1}, "
                             f"not {value!r}")
        return value << self.low


@dataclass(frozen=True)
class Register:
    """A register of 32 bits. Bits outside all fields read as zero, and must be written as zero.

    Attributes
    ----------
    name : str
        Name, in capitals.
    offset : int
        Offset within its block, in bytes; a multiple of 4.
    access : Access
        Permitted accesses.
    description : str
        Meaning of the register.
    fields : tuple of Field
        The fields, from the lowest bit on. Empty: the whole register is one field.
    reset : int or None
        Value after a reset. None: the value is not fixed, or the register cannot be read.
    acts : bool
        Whether an access has effects other than to read or store a value.
    """

    name: str
    offset: int
    access: Access
    description: str
    fields: tuple[Field, ...] = ()
    reset: int | None = None
    acts: bool = False

    def __post_init__(self) -> None:
        if self.offset % 4 or not 0 <= self.offset < CORE_PITCH:
            raise ValueError(f"offset of {self.name} must be a multiple of 4 from 0 to "
                             f"{CORE_PITCH - 4:#x}, not {self.offset:#x}")
        used = 0
        for field in self.fields:
            if used >> field.low:
                raise ValueError(f"fields of {self.name} must be in ascending order, without "
                                 f"overlap; {field.name} overlaps or precedes an earlier one")
            used |= field.mask
        if self.reset is not None and self.reset & ~self.mask:
            raise ValueError(f"reset of {self.name} must be within its fields, "
                             f"not {self.reset:#x}")

    @property
    def mask(self) -> int:
        """The bits of all fields, as a mask of the register's word."""
        return sum(field.mask for field in self.fields) if self.fields else 0xFFFFFFFF

    @property
    def readable(self) -> bool:
        """Whether the register can be read."""
        return self.access not in (Access.WO, Access.W1)

    @property
    def writable(self) -> bool:
        """Whether the register can be written."""
        return self.access is not Access.RO

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name} has no field {name!r}")

    def pack(self, **values: int) -> int:
        """Return a word with these values in its fields, and zeros in the others.

        Raises
        ------
        KeyError, ValueError
            If a field does not exist, or a value does not fit its field.
        """
        return sum(self[name].put(value) for name, value in values.items())

    def unpack(self, word: int) -> dict[str, int]:
        """Return the values of the fields in ``word``, by name."""
        return {field.name: field.get(word) for field in self.fields}


def _table(registers: Iterable[Register]) -> dict[str, Register]:
    table: dict[str, Register] = {}
    for register in registers:
        if register.name in table:
            raise ValueError(f"name of a register must be unique, not {register.name!r} again")
        if any(register.offset == other.offset for other in table.values()):
            raise ValueError(f"offset of {register.name} must be unique, not {register.offset:#x}")
        table[register.name] = register
    return table


def _events() -> tuple[Field, ...]:
    meanings = ("stopped, for any reason", "has a fault",
                "ended a transfer of the host, successfully or not",
                "ended a transfer of the host with an error")
    return tuple(Field(f"CORE{core}_{event}", EVENT_PITCH * core + bit, 1, f"Core {core} {text}.")
                 for core in range(MAX_CORES)
                 for bit, (event, text) in enumerate(zip(EVENTS, meanings, strict=True)))


GLOBAL_REGISTERS = _table((
    Register("ID", 0x000, Access.RO, "Identifies the device: \"SYST\" in ASCII.", reset=IDENTITY),
    Register("VERSION", 0x004, Access.RO, "Version of this register map.", (
        Field("PATCH", 0, 8, "Counts corrections."),
        Field("MINOR", 8, 8, "Counts compatible additions."),
        Field("MAJOR", 16, 16, "Counts incompatible changes."),
    ), VERSION[0] << 16 | VERSION[1] << 8 | VERSION[2]),
    Register("ARRAY", 0x010, Access.RO, "Number of the array's rows, of its columns, and of "
             "lanes: all three are equal."),
    Register("SUBLANES", 0x014, Access.RO, "Number of sublanes of a vector register."),
    Register("CORES", 0x018, Access.RO, "Number of cores."),
    Register("VMEM_VECTORS", 0x01C, Access.RO, "Size of a core's vector memory, in vectors."),
    Register("SMEM_WORDS", 0x020, Access.RO, "Size of a core's scalar memory, in words."),
    Register("IMEM_BUNDLES", 0x024, Access.RO, "Size of a core's instruction memory, in "
             "bundles."),
    Register("HBM_BYTES_LO", 0x028, Access.RO,
             "Size of HBM, the memory that all cores share, in bytes: lower 32 bits."),
    Register("HBM_BYTES_HI", 0x02C, Access.RO,
             "Size of HBM, in bytes: upper 32 bits."),
    Register("HBM_CHANNELS", 0x030, Access.RO, "Number of HBM channels of each core."),
    Register("INTERRUPT_STATUS", 0x040, Access.W1C,
             "Events that occurred since their bits were last cleared. Writing a 1 clears a bit, "
             "unless the event occurs in the same cycle.", _events(), 0),
    Register("INTERRUPT_ENABLE", 0x044, Access.RW,
             "Selects the events that cause an interrupt. The interrupt line is set one cycle "
             "after a bit is set both here and in INTERRUPT_STATUS.", _events(), 0),
))
"""Registers of every chip, by name."""

LINK_REGISTERS = _table((
    Register("LINK_BYTES", 0x034, Access.RO, "Number of bytes of data in a flit of a link."),
    Register("TORUS", 0x050, Access.RW, "Shape of the torus of chips; all its chips must have the "
             "same value here. A write is refused if WIDTH or HEIGHT is out of range, or is not "
             "more than the chip's coordinate in POSITION.", (
        Field("WIDTH", 0, 8, "Number of chips along X: 1 to 32, and more than POSITION.X."),
        Field("HEIGHT", 8, 8, "Number of chips along Y: 1 to 32, and more than POSITION.Y."),
    ), 0x0101, acts=True),
    Register("POSITION", 0x054, Access.RW, "Coordinates of the chip on the torus. A write is "
             "refused if X is not less than TORUS.WIDTH, or Y not less than TORUS.HEIGHT.", (
        Field("X", 0, 8, "Coordinate along X, less than TORUS.WIDTH."),
        Field("Y", 8, 8, "Coordinate along Y, less than TORUS.HEIGHT."),
    ), 0, acts=True),
    Register("START", 0x058, Access.W1, "Starts one or more cores in the same cycle. The "
             "whole write is refused if one of these cores runs or is being reset, or does not "
             "exist.", tuple(
        Field(f"CORE{core}", core, 1, f"Starts core {core}, as CONTROL.START does.")
        for core in range(MAX_CORES)), acts=True),
))
"""Further registers of a chip with links, by name."""
assert not {register.offset for register in LINK_REGISTERS.values()} & {
    register.offset for register in GLOBAL_REGISTERS.values()}

_CONTROL = Register("CONTROL", 0x000, Access.W1, "Commands: writing 1 to a bit executes it.", (
    Field("START", 0, 1, "Starts the program at START_PC and clears the fault. The whole write is "
          "refused if the core runs or is being reset, or if STOP or RESET is written with it."),
    Field("STOP", 1, 1, "Stops the program before its next bundle; no effect if none runs."),
    Field("CLEAR_COUNTERS", 2, 1, "Clears all counters."),
    Field("RESET", 3, 1, "Resets the core and drops its transfers, after memory has completed "
          "outstanding accesses; see STATUS.RESETTING."),
), acts=True)

_STATUS = Register("STATUS", 0x004, Access.RO, "State of the core.", (
    Field("RUNNING", 0, 1, "A program is running."),
    Field("WAITING", 1, 1, "The next bundle waits only for a semaphore."),
    Field("IDLE", 2, 1, "No operation is in progress; the array may hold results for later pops."),
    Field("DMA_BUSY", 3, 1, "Transfers are in progress or queued."),
    Field("RESETTING", 4, 1, "The core is being reset."),
    Field("FAULT", 8, FAULT_BITS + 1,
          "Why the core stopped: a fault number of isa.md, 0 for none."),
))

_ACCESS = (
    Register("ACCESS_ADDRESS", 0x020, Access.RW, "Address that an access to ACCESS_DATA reads or "
             "writes. Each such access that is not refused advances the address to the next word; "
             f"in instruction memory, word {BUNDLE_WORDS - 1} of a bundle is followed by word 0 of "
             "the next bundle.", (
        Field("ADDRESS", 0, ACCESS_ADDRESS_BITS, "Number of the word, register or semaphore; in "
              f"instruction memory, {1 << REQUEST_WORD_BITS} times the number of the bundle plus "
              "the number of the word in it."),
        Field("SPACE", ACCESS_ADDRESS_BITS, SPACE_BITS, "0: instruction memory, 1: scalar memory, "
              "2: scalar registers, 3: semaphores."),
    ), 0, acts=True),
    Register("ACCESS_DATA", 0x024, Access.RW, "The word at ACCESS_ADDRESS. An access is refused if "
             "the word does not exist, and during a reset. While a program runs, only reads and "
             "writes of scalar memory, writes of instruction memory, and reads of semaphores are "
             "permitted.", acts=True),
    Register("SEMAPHORE_ADD", 0x028, Access.WO, "Adds to a semaphore, in any state of the core. On "
             "overflow the semaphore keeps its value and the core has the fault SEMAPHORE. Refused "
             "during a reset.", (
        Field("AMOUNT", 0, 32 - SEMAPHORE_BITS, "The number to add."),
        Field("INDEX", 32 - SEMAPHORE_BITS, SEMAPHORE_BITS, "Number of the semaphore."),
    ), acts=True),
)

_TRANSFERS = (
    *(Register(f"DMA_DESCRIPTOR_{word}", 0x040 + 4 * word, Access.RW,
               f"Word {word} of a transfer's descriptor, as defined in isa.md.", reset=0)
      for word in range(DESCRIPTOR_WORDS)),
    Register("DMA_START", 0x068, Access.W1, "Starts a transfer. The write is refused if the "
             "transfer cannot start; DMA_FAULT then gives the reason.", (
        Field("GO", 0, 1, "Queues the descriptor's transfer."),
    ), acts=True),
    Register("DMA_FAULT", 0x06C, Access.RO, "Outcome of the last attempt to start a transfer by "
             "DMA_START; 0: the transfer was queued.", (
        Field("FAULT", 0, FAULT_BITS, "The descriptor's fault: a fault number of isa.md, "
              "0 for none."),
        Field("BUSY", 8, 1, "The transfer was not accepted, because too many are queued or "
              "the core is being reset. The write can be repeated."),
    ), 0),
)

COUNTER_REGISTERS = ("CYCLES", *(counter.upper() for counter in COUNTERS))
"""Counters, in the order of their registers: each has ``{name}_LO``, followed by ``{name}_HI``."""


def _counters() -> Iterator[Register]:
    for number, name in enumerate(COUNTER_REGISTERS):
        offset = 0x080 + 8 * number
        if name == "CYCLES":
            text = ("Number of cycles since the counters were cleared: lower 32 bits. A read "
                    "captures all counters, with both halves, in the same cycle. The registers "
                    "below return the captured values; the counters of causes sum to CYCLES.")
        else:
            text = ("Number of cycles charged to this cause: lower 32 bits, captured when "
                    "CYCLES_LO was last read.")
        yield Register(f"{name}_LO", offset, Access.RO, text,
                       reset=None if name == "CYCLES" else 0, acts=name == "CYCLES")
        yield Register(f"{name}_HI", offset + 4, Access.RO,
                       "Upper 32 bits of the same counter, captured when CYCLES_LO was last read.",
                       reset=0)


CORE_REGISTERS = _table((
    _CONTROL,
    _STATUS,
    Register("PC", 0x008, Access.RO,
             "Address of the bundle that issues next, or halted the core, or has the fault."),
    Register("START_PC", 0x00C, Access.RW, "Address of the bundle at which START begins.", reset=0),
    Register("WATCHDOG", 0x010, Access.RW,
             "A running core that issues no bundle for this number of cycles stops with the fault "
             "WATCHDOG; 0: never.",
             reset=0),
    *_ACCESS,
    *_TRANSFERS,
    *_counters(),
))
"""Registers of a core, by name; offsets are relative to the core's block."""


def address(name: str, core: int | None = None) -> int:
    """Return the byte address of a register of the chip or, if ``core`` is given, of that core.

    Raises
    ------
    KeyError
        If the register does not exist.
    ValueError
        If the core does not exist.
    """
    if core is None:
        return (GLOBAL_REGISTERS | LINK_REGISTERS)[name].offset
    if core not in range(MAX_CORES):
        raise ValueError(f"core must be from 0 to {MAX_CORES - 1}, not {core!r}")
    return CORE_PITCH * (core + 1) + CORE_REGISTERS[name].offset


assert CORE_PITCH * (MAX_CORES + 1) <= 1 << CONTROL_ADDRESS_BITS


def chip_registers(config: Config) -> dict[str, Register]:
    """Return a chip's registers outside its cores' blocks, by name, for this configuration."""
    return GLOBAL_REGISTERS | (LINK_REGISTERS if config.link_bytes else {})


def parameters(config: Config) -> dict[str, int]:
    """Return the values of the registers that describe the configuration, by register name."""
    return {
        "ARRAY": config.array, "SUBLANES": config.sublanes, "CORES": config.cores,
        "VMEM_VECTORS": config.vmem_vectors, "SMEM_WORDS": config.smem_words,
        "IMEM_BUNDLES": config.imem_bundles, "HBM_BYTES_LO": config.hbm_bytes & 0xFFFFFFFF,
        "HBM_BYTES_HI": config.hbm_bytes >> 32, "HBM_CHANNELS": config.hbm_channels,
        **({"LINK_BYTES": config.link_bytes} if config.link_bytes else {}),
    }


class RegisterBlock(wiring.Component):
    """A block of registers in hardware: decodes addresses and refuses illegal accesses.

    Parameters
    ----------
    registers : mapping of str to Register
        The registers, by name.

    Attributes
    ----------
    access : In(RegisterAccess)
        Accesses; their addresses are offsets in the block.
    {name} : In(32) or Out(32)
        One port for each register, named in lower case. `In`: the value to return to reads, if the
        register is `RO`, or if it ``acts`` and can be read. `Out`: the stored value.
    {name}_set : In(32)
        For a `W1C` register: bits to set, even if a write clears them in the same cycle.
    {name}_read, {name}_write : Out(1)
        For a register that ``acts``: a legal read, or a legal write of ``access.data``, is
        requested.
    {name}_done, {name}_error : In(1)
        For a register that ``acts``: the access takes place, or is refused; in the cycle of the
        request or later.

    Raises
    ------
    ValueError
        If ``registers`` is empty, or a `WO` or `W1` register does not have ``acts`` set.
    """

    def __init__(self, registers: Mapping[str, Register]) -> None:
        if not registers:
            raise ValueError("registers must contain at least one register, not none")
        self._registers = dict(registers)
        ports: dict[str, wiring.Member] = {"access": In(RegisterAccess(OFFSET_BITS))}
        for register in self._registers.values():
            name = register.name.lower()
            if register.access in (Access.WO, Access.W1) and not register.acts:
                raise ValueError(f"register {register.name} must act on a write (acts=True), "
                                 "because its value cannot be read (access "
                                 f"{register.access.value!r})")
            if register.acts:
                ports |= {f"{name}_done": In(1), f"{name}_error": In(1)}
                if register.readable:
                    ports |= {name: In(32), f"{name}_read": Out(1)}
                if register.writable:
                    ports[f"{name}_write"] = Out(1)
            elif register.access is Access.RO:
                ports[name] = In(32)
            else:
                ports[name] = Out(32, init=register.reset or 0)
                if register.access is Access.W1C:
                    ports[f"{name}_set"] = In(32)
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += [self.access.done.eq(1), self.access.error.eq(1)]
        for register in self._registers.values():
            if register.access is Access.W1C:
                value, ones = (getattr(self, register.name.lower() + end) for end in ("", "_set"))
                m.d.sync += value.eq(value | ones)
        with m.Switch(self.access.address):
            for register in self._registers.values():
                with m.Case(register.offset):
                    self._access(m, register)
        return m

    def _access(self, m: Module, register: Register) -> None:
        """Connect a register to ``access``, for accesses at the register's offset."""
        name = register.name.lower()
        access = self.access
        legal = Signal(name=f"{name}_legal")
        reads = access.valid & ~access.write & legal
        writes = access.valid & access.write & legal
        if register.writable:
            fits = (access.data & (register.mask ^ 0xFFFFFFFF)) == 0
            m.d.comb += legal.eq(Mux(access.write, fits, register.readable))
        else:
            m.d.comb += legal.eq(~access.write)
        m.d.comb += access.error.eq(~legal)
        if register.readable:
            m.d.comb += access.value.eq(getattr(self, name))
        if register.acts:
            done, error = getattr(self, f"{name}_done"), getattr(self, f"{name}_error")
            m.d.comb += [access.done.eq(done | ~legal), access.error.eq(error | ~legal)]
            if register.readable:
                m.d.comb += getattr(self, f"{name}_read").eq(reads)
            if register.writable:
                m.d.comb += getattr(self, f"{name}_write").eq(writes)
        elif register.access is not Access.RO:
            value = getattr(self, name)
            with m.If(writes):
                if register.access is Access.W1C:
                    m.d.sync += value.eq((value & ~access.data) | getattr(self, f"{name}_set"))
                else:
                    m.d.sync += value.eq(access.data)
