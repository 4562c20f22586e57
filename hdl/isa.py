"""The instruction set: the format of a bundle, and the meaning of each operation.

This is the only definition. The RTL decodes with it, the golden model executes it, the assembler
and the disassembler translate it, and `docs/isa.md` is generated from it.

A program is a sequence of bundles. A bundle holds at most one operation for each slot, and three
32-bit immediates that the slots share. All operations of a bundle read the state that the previous
bundle left, then all write, so the order of slots never matters. Hardware overlaps bundles, but a
program cannot tell: it sees them executed one after the other.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from amaranth.lib import data

from .config import Config

__all__ = [
    "BUNDLE_BITS", "BUNDLE_LAYOUT", "BUNDLE_PITCH", "BUNDLE_WORDS", "FAULTS", "FLOAT_LATENCY",
    "IMMEDIATES", "INLINE_BASE", "INLINE_MAX", "INLINE_MIN", "LATENCIES", "LOAD_LATENCY",
    "MASKS", "OPERATIONS", "SCALAR_REGISTERS", "SEMAPHORES", "SIMPLE_LATENCY", "SLOTS",
    "TRANSCENDENTAL_LATENCY", "VECTOR_REGISTERS", "Fault", "Kind", "LoadOp", "MiscOp",
    "Operand", "Operation", "PopOp", "PushOp", "ScalarOp", "Slot", "StoreOp", "Unit",
    "VectorOp", "index_limits", "operation",
]

SCALAR_REGISTERS = 32
"""Number of scalar registers, s0 to s31, of 32 bits; s0 reads as zero and ignores writes."""
VECTOR_REGISTERS = 32
"""Number of vector registers, v0 to v31, of sublanes x lanes x 32 bits."""
MASKS = 8
"""Number of mask registers, m0 to m7, of sublanes x lanes bits; m0 is all ones and read-only."""
SEMAPHORES = 16
"""Number of semaphores, counters of 32 bits."""
IMMEDIATES = 3
"""Number of immediates of a bundle, of 32 bits each."""

INLINE_MIN, INLINE_MAX = -8, 15
"""Least and greatest integer that a scalar source can encode without an immediate."""
FIRST_IMMEDIATE = SCALAR_REGISTERS
INLINE_BASE = 48
"""The code of a scalar source has 6 bits: 0 to 31 are scalar registers, 32 to 34 are immediates,
40 to 63 are the integers ``code - INLINE_BASE``; 35 to 39 are illegal."""

SOURCE_BITS = 6
VECTOR_FLAG = 1 << SOURCE_BITS
"""The code of a vector source has 7 bits. With this bit, it is the number of a vector register;
without it, the code of a scalar source, which is broadcast to all elements."""

SIMPLE_LATENCY = 3
FLOAT_LATENCY = 4
LOAD_LATENCY = 3
TRANSCENDENTAL_LATENCY = 6
"""Cycles from an operation of the transcendental unit to the first operation that can use its
result without a wait. The other constants whose names end in ``_LATENCY`` have the same meaning for
other units. `LATENCIES` lists them by unit."""


class Slot(StrEnum):
    """The slots of a bundle; the values are their names in assembly text."""

    S0 = "s0"
    S1 = "s1"
    V0 = "v0"
    V1 = "v1"
    LOAD = "ld"
    STORE = "st"
    PUSH = "push"
    POP = "pop"
    MISC = "misc"


class ScalarOp(IntEnum):
    """Operations of the scalar slots."""

    NOP = 0
    ADD = 1
    SUB = 2
    MUL = 3
    AND = 4
    OR = 5
    XOR = 6
    SHL = 7
    SHR = 8
    SAR = 9
    EQ = 10
    NE = 11
    LT = 12
    LTU = 13
    MIN = 14
    MAX = 15
    LOAD = 16
    STORE = 17
    JUMP = 32
    CALL = 33
    BEQ = 34
    BNE = 35
    BLT = 36
    BGE = 37
    BLTU = 38
    BGEU = 39
    LOOP = 40
    HALT = 41


class VectorOp(IntEnum):
    """Operations of the vector slots."""

    NOP = 0
    MOVE = 1
    SELECT = 2
    LANE = 3
    SUBLANE = 4
    FADD = 5
    FSUB = 6
    FMUL = 7
    FMIN = 8
    FMAX = 9
    FABS = 10
    FNEG = 11
    FEQ = 12
    FNE = 13
    FLT = 14
    FLE = 15
    FGT = 16
    FGE = 17
    ADD = 18
    SUB = 19
    AND = 20
    OR = 21
    XOR = 22
    SHL = 23
    SHR = 24
    SAR = 25
    EQ = 26
    NE = 27
    LT = 28
    LE = 29
    GT = 30
    GE = 31
    LTU = 32
    GEU = 33
    F2I = 34
    I2F = 35
    BF16 = 36
    MAND = 37
    MOR = 38
    MXOR = 39
    MANDN = 40
    RECIPROCAL = 48
    RSQRT = 49
    EXP2 = 50
    LOG2 = 51
    TANH = 52
    RANDOM = 53


class LoadOp(IntEnum):
    """Operations of the vector load slot."""

    NOP = 0
    LOAD = 1


class StoreOp(IntEnum):
    """Operations of the vector store slot."""

    NOP = 0
    STORE = 1


class PushOp(IntEnum):
    """Operations of the array push slot."""

    NOP = 0
    WEIGHTS = 1
    WEIGHTS_T = 2
    ROWS = 3
    ROWS_SWAP = 4


class PopOp(IntEnum):
    """Operations of the array pop slot."""

    NOP = 0
    POP = 1


class MiscOp(IntEnum):
    """Operations of the miscellaneous slot: the cross-lane unit, semaphores, and transfers."""

    NOP = 0
    ROTATE_LANES = 1
    ROTATE_SUBLANES = 2
    BROADCAST_LANE = 3
    BROADCAST_SUBLANE = 4
    SUM_LANES = 5
    MAX_LANES = 6
    TRANSPOSE_IN = 7
    TRANSPOSE_OUT = 8
    WAIT = 16
    SIGNAL = 17
    READ_SEMAPHORE = 18
    SIGNAL_OTHER = 19
    SIGNAL_REMOTE = 20
    DMA = 24


class Fault(IntEnum):
    """Why a core stopped. If a bundle has several faults, the one with the lowest number counts.

    At most one fault is reported for a descriptor: the first that applies of DMA_DESCRIPTOR,
    DMA_ALIGNMENT and DMA_RANGE.
    """

    NONE = 0
    ILLEGAL = 1
    CONFLICT = 2
    PC_RANGE = 3
    SMEM_RANGE = 4
    VMEM_RANGE = 5
    INDEX_RANGE = 6
    WEIGHT_LOAD = 7
    FIFO_OVERFLOW = 8
    FIFO_UNDERFLOW = 9
    SEMAPHORE = 10
    WATCHDOG = 11
    BUS_ERROR = 12
    DMA_DESCRIPTOR = 13
    DMA_RANGE = 14
    DMA_ALIGNMENT = 15
    LINK = 16


FAULTS: dict[Fault, str] = {
    Fault.NONE: "No fault.",
    Fault.ILLEGAL: "The bundle contains one of these: an operation code that the slot lacks; a "
        "scalar source with a code from 35 to 39; a vector source with a code above 95; a mask, a "
        "semaphore or an immediate that does not exist; m0 as a destination; a reserved bit that "
        "is set; an operation on the other core, on a chip with one core; an operation on another "
        "chip, on a chip without links.",
    Fault.CONFLICT: "Two operations of the bundle write the same vector register, the same mask, "
        "or the same scalar register other than s0.",
    Fault.PC_RANGE: "The address of the next bundle is beyond the instruction memory. The program "
        "counter holds this address; the previous bundle was executed.",
    Fault.SMEM_RANGE: "The address of a scalar load or store, or of a word of a descriptor, is "
        "beyond the scalar memory.",
    Fault.VMEM_RANGE: "The address of a vector load or store is beyond the vector memory.",
    Fault.INDEX_RANGE: "Operand b of a cross-lane operation is too large: a distance, or the "
        "number of a lane, of a sublane, or of a group of the transposer's rows or columns.",
    Fault.WEIGHT_LOAD: "The bundle contains one of these: a push of weights when the next tile is "
        "already complete; weights after weights_t in one tile, or the reverse; rows_swap before "
        "the next tile is complete; rows before the first rows_swap.",
    Fault.FIFO_OVERFLOW: "A push of rows when the array already holds its maximum of results "
        "(result_vregs).",
    Fault.FIFO_UNDERFLOW: "A pop without an outstanding result.",
    Fault.SEMAPHORE: "A signal that would raise a semaphore above 2**32 - 1.",
    Fault.WATCHDOG: "No bundle issued for the number of cycles that the host set as the watchdog.",
    Fault.BUS_ERROR: "The HBM answered a transfer with an error. This fault is not precise: the "
        "core stops some time after the transfer started. The transfer's other rows are written, "
        "but the transfer signals no semaphore.",
    Fault.DMA_DESCRIPTOR: "The descriptor, or the name of a remote core, contains one of these: a "
        "space that does not exist or is not allowed on its side; a reserved bit that is set; a "
        "number of rows that is 0, or 2**24 or more; a high address word that is not 0, in a space "
        "other than HBM and REMOTE_VMEM; a run in a space without runs; a stride without a run; "
        "the other core, on a chip with one core; REMOTE_VMEM on a chip without links, or with a "
        "source other than vector memory; a core number that the chips do not have; a remote "
        "signal of a transfer that is not remote.",
    Fault.DMA_RANGE: "A block of a transfer lies outside its space. Or, in the name of a remote "
        "core, a number of hops is not less than that side of the torus, or both numbers are 0.",
    Fault.DMA_ALIGNMENT: "An address or a stride in HBM is not a multiple of a row's bytes, the "
        "rows do not fill whole vectors, or an address in instruction memory is not the start of a "
        "bundle.",
    Fault.LINK: "A link of the chip is down, or a packet arrived that is meant for another chip, "
        "for a core that the chip does not have, or for an address beyond vector memory. All cores "
        "of the chip have this fault. The fault is not precise.",
}
"""Meaning of each fault."""


class Kind(StrEnum):
    """Kind of an operand: the resource that it names, and whether it is read or written."""

    SCALAR_OUT = "scalar register, written"
    SCALAR_IN = "scalar register, read"
    SCALAR_INOUT = "scalar register, read and written"
    SOURCE = "scalar source"
    VECTOR_OUT = "vector register, written"
    VECTOR_IN = "vector register, read"
    VECTOR_SOURCE = "vector source"
    MASK_OUT = "mask register, written"
    MASK_IN = "mask register, read"
    SEMAPHORE = "semaphore"
    IMMEDIATE = "number of an immediate"


class Unit(StrEnum):
    """The unit that executes an operation; it determines the latency."""

    SCALAR = "scalar"
    SMEM = "scalar memory"
    BRANCH = "branch"
    SIMPLE = "vector ALU, simple"
    FLOAT = "vector ALU, floating point"
    TRANSCENDENTAL = "transcendental"
    VMEM = "vector memory"
    MXU = "array"
    XLU = "cross-lane"
    SEMAPHORE = "semaphores"
    OTHER_CORE = "other core"
    LINKS = "links"
    DMA = "transfers"


@dataclass(frozen=True)
class Operand:
    """An operand: the field of the slot that encodes it, and its kind."""

    field: str
    kind: Kind


@dataclass(frozen=True)
class Operation:
    """An operation of the instruction set.

    Attributes
    ----------
    op : IntEnum
        The operation's code; the name of the enum member in lower case is `name`.
    slots : tuple of Slot
        The slots that can hold the operation.
    operands : tuple of Operand
        The operands, in the order of the text form. Fields that no operand uses are ignored.
    unit : Unit
        The unit that executes the operation.
    semantics : str
        The operation's effect, as a sentence for docs/isa.md.
    faults : tuple of Fault
        The faults it can raise, without ILLEGAL and CONFLICT, which every operation can raise.
    cores : int
        Least number of cores of a chip with this operation; on a smaller chip it is ILLEGAL.
    links : bool
        Whether only chips with links have this operation; on others it is ILLEGAL.
    """

    op: IntEnum
    slots: tuple[Slot, ...]
    operands: tuple[Operand, ...]
    unit: Unit
    semantics: str
    faults: tuple[Fault, ...] = ()
    cores: int = 1
    links: bool = False

    @property
    def name(self) -> str:
        """The operation's name in the text form of a program."""
        return self.op.name.lower()


_SCALAR_FIELDS = {"op": 6, "d": 5, "a": 5, "b": SOURCE_BITS}
_VECTOR_FIELDS = {"op": 6, "d": 5, "a": 5, "b": SOURCE_BITS + 1, "m": 3}
SLOTS: dict[Slot, dict[str, int]] = {
    Slot.S0: _SCALAR_FIELDS,
    Slot.S1: _SCALAR_FIELDS,
    Slot.V0: _VECTOR_FIELDS,
    Slot.V1: _VECTOR_FIELDS,
    Slot.LOAD: {"op": 2, "d": 5, "a": 5, "b": SOURCE_BITS},
    Slot.STORE: {"op": 2, "d": 5, "a": 5, "b": SOURCE_BITS, "m": 3},
    Slot.PUSH: {"op": 3, "a": 5},
    Slot.POP: {"op": 1, "d": 5},
    Slot.MISC: {"op": 5, "d": 5, "a": 5, "b": SOURCE_BITS},
}
"""Fields of each slot and their widths in bits, from the bundle's lowest bits up."""

BUNDLE_WORDS = 9
"""Number of 32-bit words in a bundle; the first word holds the lowest bits."""
BUNDLE_PITCH = 16
"""Distance in words between bundles where instruction memory is addressed by words."""
BUNDLE_BITS = 32 * BUNDLE_WORDS
_SLOT_BITS = sum(sum(fields.values()) for fields in SLOTS.values())
RESERVED_BITS = BUNDLE_BITS - _SLOT_BITS - 32 * IMMEDIATES
"""Number of bits between slots and immediates; they must be zero."""

BUNDLE_LAYOUT = data.StructLayout({
    **{str(slot): data.StructLayout(fields) for slot, fields in SLOTS.items()},
    "reserved": RESERVED_BITS,
    "imm": data.ArrayLayout(32, IMMEDIATES),
})
"""The bundle in hardware: a member for each slot, ``reserved``, and ``imm``."""

_BOTH_SCALAR = (Slot.S0, Slot.S1)
_BOTH_VECTOR = (Slot.V0, Slot.V1)


def _operands(text: str) -> tuple[Operand, ...]:
    """Parse operands from words of the form ``field:KIND``, separated by spaces."""
    pairs = (word.split(":") for word in text.split())
    return tuple(Operand(field, Kind[kind]) for field, kind in pairs)


_SCALAR_3 = "d:SCALAR_OUT a:SCALAR_IN b:SOURCE"
_BRANCH = "a:SCALAR_IN b:SOURCE d:IMMEDIATE"
_BINARY = "d:VECTOR_OUT a:VECTOR_IN b:VECTOR_SOURCE"
_UNARY = "d:VECTOR_OUT a:VECTOR_IN"
_COMPARE = "d:MASK_OUT a:VECTOR_IN b:VECTOR_SOURCE"
_MASKS = "d:MASK_OUT a:MASK_IN b:MASK_IN"
_CROSS = "d:VECTOR_OUT a:VECTOR_IN b:SOURCE"


def _scalar(op: ScalarOp, semantics: str) -> Operation:
    return Operation(op, _BOTH_SCALAR, _operands(_SCALAR_3), Unit.SCALAR, semantics)


def _branch(op: ScalarOp, condition: str) -> Operation:
    return Operation(op, (Slot.S1,), _operands(_BRANCH), Unit.BRANCH,
                     f"If {condition}, the next bundle is the one at imm[d].", (Fault.PC_RANGE,))


def _vector(op: VectorOp, operands: str, semantics: str, unit: Unit = Unit.SIMPLE,
            slots: tuple[Slot, ...] = _BOTH_VECTOR) -> Operation:
    return Operation(op, slots, _operands(operands), unit, semantics)


def _misc(op: MiscOp, operands: str, semantics: str, *faults: Fault,
          unit: Unit = Unit.XLU, cores: int = 1, links: bool = False) -> Operation:
    return Operation(op, (Slot.MISC,), _operands(operands), unit, semantics, faults, cores, links)


_F_COMPARE = ("as numbers: -0 equals +0, subnormals count as zeros; if an operand is NaN, d is "
              "{}set.")

OPERATIONS: tuple[Operation, ...] = (
    _scalar(ScalarOp.ADD, "d = a + b, modulo 2**32."),
    _scalar(ScalarOp.SUB, "d = a - b, modulo 2**32."),
    _scalar(ScalarOp.MUL, "d = a * b, modulo 2**32."),
    _scalar(ScalarOp.AND, "d = a & b."),
    _scalar(ScalarOp.OR, "d = a | b."),
    _scalar(ScalarOp.XOR, "d = a ^ b."),
    _scalar(ScalarOp.SHL, "d = a << b; 0 if b, unsigned, is 32 or more."),
    _scalar(ScalarOp.SHR, "d = a >> b, filled with zeros; 0 if b, unsigned, is 32 or more."),
    _scalar(ScalarOp.SAR, "d = a >> b, filled with the sign; 32 copies of the sign if b, "
                          "unsigned, is 32 or more."),
    _scalar(ScalarOp.EQ, "d = 1 if a = b, otherwise 0."),
    _scalar(ScalarOp.NE, "d = 1 if a != b, otherwise 0."),
    _scalar(ScalarOp.LT, "d = 1 if a < b, signed, otherwise 0."),
    _scalar(ScalarOp.LTU, "d = 1 if a < b, unsigned, otherwise 0."),
    _scalar(ScalarOp.MIN, "d = the smaller of a and b, signed."),
    _scalar(ScalarOp.MAX, "d = the larger of a and b, signed."),
    Operation(ScalarOp.LOAD, (Slot.S0,), _operands(_SCALAR_3), Unit.SMEM,
              "d = smem[a + b].", (Fault.SMEM_RANGE,)),
    Operation(ScalarOp.STORE, (Slot.S0,), _operands("d:SCALAR_IN a:SCALAR_IN b:SOURCE"), Unit.SMEM,
              "smem[a + b] = d.", (Fault.SMEM_RANGE,)),
    Operation(ScalarOp.JUMP, (Slot.S1,), _operands("b:SOURCE"), Unit.BRANCH,
              "The next bundle is the one at b.", (Fault.PC_RANGE,)),
    Operation(ScalarOp.CALL, (Slot.S1,), _operands("d:SCALAR_OUT b:SOURCE"), Unit.BRANCH,
              "d = the address of this bundle + 1; the next bundle is the one at b.",
              (Fault.PC_RANGE,)),
    _branch(ScalarOp.BEQ, "a = b"),
    _branch(ScalarOp.BNE, "a != b"),
    _branch(ScalarOp.BLT, "a < b, signed"),
    _branch(ScalarOp.BGE, "a >= b, signed"),
    _branch(ScalarOp.BLTU, "a < b, unsigned"),
    _branch(ScalarOp.BGEU, "a >= b, unsigned"),
    Operation(ScalarOp.LOOP, (Slot.S1,), _operands("d:SCALAR_INOUT b:SOURCE"), Unit.BRANCH,
              "d = d - 1, modulo 2**32; if the result is not 0, the next bundle is the one at b. "
              "With s0 as d the result is always 2**32 - 1.", (Fault.PC_RANGE,)),
    Operation(ScalarOp.HALT, (Slot.S1,), (), Unit.BRANCH,
              "The core stops after this bundle, and the program counter stays at it."),
    _vector(VectorOp.MOVE, "d:VECTOR_OUT b:VECTOR_SOURCE", "d = b."),
    _vector(VectorOp.SELECT, _BINARY + " m:MASK_IN", "d = a where m is set, otherwise b."),
    _vector(VectorOp.LANE, "d:VECTOR_OUT", "d = the number of the element's lane."),
    _vector(VectorOp.SUBLANE, "d:VECTOR_OUT", "d = the number of the element's sublane."),
    _vector(VectorOp.FADD, _BINARY, "d = a + b, fp32.", Unit.FLOAT),
    _vector(VectorOp.FSUB, _BINARY, "d = a + (-b), fp32.", Unit.FLOAT),
    _vector(VectorOp.FMUL, _BINARY, "d = a * b, fp32.", Unit.FLOAT),
    _vector(VectorOp.FMIN, _BINARY, "d = the smaller of a and b, fp32; -0 is smaller than +0; NaN "
                                    "if an operand is NaN; a subnormal operand counts as the zero "
                                    "of its sign."),
    _vector(VectorOp.FMAX, _BINARY, "d = the larger of a and b, fp32; +0 is larger than -0; NaN if "
                                    "an operand is NaN; a subnormal operand counts as the zero of "
                                    "its sign."),
    _vector(VectorOp.FABS, _UNARY, "d = |a|, fp32; +0 if a is subnormal, 7FC00000 if a is NaN."),
    _vector(VectorOp.FNEG, _UNARY, "d = -a, fp32; the zero of the other sign if a is subnormal, "
                                   "7FC00000 if a is NaN."),
    _vector(VectorOp.FEQ, _COMPARE, "d is set where a = b " + _F_COMPARE.format("not ")),
    _vector(VectorOp.FNE, _COMPARE, "d is set where a != b " + _F_COMPARE.format("")),
    _vector(VectorOp.FLT, _COMPARE, "d is set where a < b " + _F_COMPARE.format("not ")),
    _vector(VectorOp.FLE, _COMPARE, "d is set where a <= b " + _F_COMPARE.format("not ")),
    _vector(VectorOp.FGT, _COMPARE, "d is set where a > b " + _F_COMPARE.format("not ")),
    _vector(VectorOp.FGE, _COMPARE, "d is set where a >= b " + _F_COMPARE.format("not ")),
    _vector(VectorOp.ADD, _BINARY, "d = a + b, modulo 2**32."),
    _vector(VectorOp.SUB, _BINARY, "d = a - b, modulo 2**32."),
    _vector(VectorOp.AND, _BINARY, "d = a & b."),
    _vector(VectorOp.OR, _BINARY, "d = a | b."),
    _vector(VectorOp.XOR, _BINARY, "d = a ^ b."),
    _vector(VectorOp.SHL, _BINARY, "d = a << b; 0 if b, unsigned, is 32 or more."),
    _vector(VectorOp.SHR, _BINARY, "d = a >> b, filled with zeros; 0 if b, unsigned, is 32 or "
                                   "more."),
    _vector(VectorOp.SAR, _BINARY, "d = a >> b, filled with the sign; 32 copies of the sign if b, "
                                   "unsigned, is 32 or more."),
    _vector(VectorOp.EQ, _COMPARE, "d is set where a = b, as integers."),
    _vector(VectorOp.NE, _COMPARE, "d is set where a != b, as integers."),
    _vector(VectorOp.LT, _COMPARE, "d is set where a < b, signed."),
    _vector(VectorOp.LE, _COMPARE, "d is set where a <= b, signed."),
    _vector(VectorOp.GT, _COMPARE, "d is set where a > b, signed."),
    _vector(VectorOp.GE, _COMPARE, "d is set where a >= b, signed."),
    _vector(VectorOp.LTU, _COMPARE, "d is set where a < b, unsigned."),
    _vector(VectorOp.GEU, _COMPARE, "d is set where a >= b, unsigned."),
    _vector(VectorOp.F2I, _UNARY, "d = a, fp32, rounded toward zero to a signed integer and "
                                  "saturated; 0 for NaN."),
    _vector(VectorOp.I2F, _UNARY, "d = a, a signed integer, rounded to fp32.", Unit.FLOAT),
    _vector(VectorOp.BF16, _UNARY, "d = a, fp32, rounded to bf16 and widened again."),
    _vector(VectorOp.MAND, _MASKS, "d = a & b."),
    _vector(VectorOp.MOR, _MASKS, "d = a | b."),
    _vector(VectorOp.MXOR, _MASKS, "d = a ^ b; if one operand is m0, d is the inverse of the "
                                   "other."),
    _vector(VectorOp.MANDN, _MASKS, "d = a & ~b."),
    *(_vector(op, _UNARY, f"d = {formula}, fp32 (docs/transcendentals.md).", Unit.TRANSCENDENTAL,
              (Slot.V1,))
      for op, formula in ((VectorOp.RECIPROCAL, "1 / a"), (VectorOp.RSQRT, "1 / sqrt(a)"),
                          (VectorOp.EXP2, "2 ** a"), (VectorOp.LOG2, "log2(a)"),
                          (VectorOp.TANH, "tanh(a)"))),
    _vector(VectorOp.RANDOM, _BINARY,
            "d = the first word of Threefry-2x32 with 20 rounds, counter (a, 0), key (b, 0).",
            Unit.TRANSCENDENTAL, (Slot.V1,)),
    Operation(LoadOp.LOAD, (Slot.LOAD,), _operands("d:VECTOR_OUT a:SCALAR_IN b:SOURCE"), Unit.VMEM,
              "d = vmem[a + b].", (Fault.VMEM_RANGE,)),
    Operation(StoreOp.STORE, (Slot.STORE,),
              _operands("d:VECTOR_IN a:SCALAR_IN b:SOURCE m:MASK_IN"), Unit.VMEM,
              "vmem[a + b] = d where m is set; other elements keep their value.",
              (Fault.VMEM_RANGE,)),
    Operation(PushOp.WEIGHTS, (Slot.PUSH,), _operands("a:VECTOR_IN"), Unit.MXU,
              "The sublanes of a, rounded to bf16, become further rows of the next weight tile.",
              (Fault.WEIGHT_LOAD,)),
    Operation(PushOp.WEIGHTS_T, (Slot.PUSH,), _operands("a:VECTOR_IN"), Unit.MXU,
              "The sublanes of a, rounded to bf16, become further columns of the next weight tile.",
              (Fault.WEIGHT_LOAD,)),
    Operation(PushOp.ROWS, (Slot.PUSH,), _operands("a:VECTOR_IN"), Unit.MXU,
              "Each sublane x of a, rounded to bf16, gives a result row x @ W; W is the active "
              "weight tile.",
              (Fault.WEIGHT_LOAD, Fault.FIFO_OVERFLOW)),
    Operation(PushOp.ROWS_SWAP, (Slot.PUSH,), _operands("a:VECTOR_IN"), Unit.MXU,
              "Makes the next weight tile the active one; then does the same as operation rows.",
              (Fault.WEIGHT_LOAD, Fault.FIFO_OVERFLOW)),
    Operation(PopOp.POP, (Slot.POP,), _operands("d:VECTOR_OUT"), Unit.MXU,
              "d = the oldest result vector: its sublanes are result rows.",
              (Fault.FIFO_UNDERFLOW,)),
    _misc(MiscOp.ROTATE_LANES, _CROSS,
          "d[s, (l + b) mod lanes] = a[s, l]; b < lanes, unsigned.", Fault.INDEX_RANGE),
    _misc(MiscOp.ROTATE_SUBLANES, _CROSS,
          "d[(s + b) mod sublanes, l] = a[s, l]; b < sublanes, unsigned.", Fault.INDEX_RANGE),
    _misc(MiscOp.BROADCAST_LANE, _CROSS, "d[s, l] = a[s, b]; b < lanes, unsigned.",
          Fault.INDEX_RANGE),
    _misc(MiscOp.BROADCAST_SUBLANE, _CROSS, "d[s, l] = a[b, l]; b < sublanes, unsigned.",
          Fault.INDEX_RANGE),
    _misc(MiscOp.SUM_LANES, _UNARY,
          "d[s, l] = the fp32 sum of a[s, :]: neighbours are added in pairs (0 and 1, 2 and 3, "
          "...), then neighbouring sums, and so on; missing elements, up to the next power of "
          "two, count as -0."),
    _misc(MiscOp.MAX_LANES, _UNARY, "d[s, l] = the fmax of all elements of a[s, :]."),
    _misc(MiscOp.TRANSPOSE_IN, "a:VECTOR_IN b:SOURCE",
          "The sublanes of a become consecutive rows of the transposer's tile, the first of them "
          "row b * sublanes; b < lanes / sublanes, unsigned.", Fault.INDEX_RANGE),
    _misc(MiscOp.TRANSPOSE_OUT, "d:VECTOR_OUT b:SOURCE",
          "The sublanes of d = consecutive columns of the transposer's tile, the first of them "
          "column b * sublanes; b < lanes / sublanes, unsigned.", Fault.INDEX_RANGE),
    _misc(MiscOp.WAIT, "d:SEMAPHORE b:SOURCE",
          "Holds the whole bundle until semaphore d is at least b, unsigned; then subtracts b from "
          "it.",
          unit=Unit.SEMAPHORE),
    _misc(MiscOp.SIGNAL, "d:SEMAPHORE b:SOURCE", "Adds b, unsigned, to semaphore d.",
          Fault.SEMAPHORE, unit=Unit.SEMAPHORE),
    _misc(MiscOp.READ_SEMAPHORE, "d:SCALAR_OUT a:SEMAPHORE", "d = semaphore a.",
          unit=Unit.SEMAPHORE),
    _misc(MiscOp.SIGNAL_OTHER, "d:SEMAPHORE b:SOURCE",
          "Adds b, unsigned, to semaphore d of the other core. If the sum exceeds 2**32 - 1, "
          "the other core has the fault SEMAPHORE. ILLEGAL on a chip with one core.",
          unit=Unit.OTHER_CORE, cores=2),
    _misc(MiscOp.SIGNAL_REMOTE, "d:SEMAPHORE a:SCALAR_IN b:SOURCE",
          "Adds b, unsigned, to semaphore d of a core of another chip. Operand a names that core, "
          "in the format of the high word of a remote address. If the sum exceeds 2**32 - 1, that "
          "core has the fault SEMAPHORE. ILLEGAL on a chip without links.",
          Fault.DMA_DESCRIPTOR, Fault.DMA_RANGE, unit=Unit.LINKS, links=True),
    _misc(MiscOp.DMA, "b:SOURCE",
          "Starts the transfer whose descriptor begins at smem[b].",
          Fault.SMEM_RANGE, Fault.DMA_DESCRIPTOR, Fault.DMA_RANGE, Fault.DMA_ALIGNMENT,
          unit=Unit.DMA),
)
"""All operations. In every slot, code 0 means no operation."""

LATENCIES = {Unit.SIMPLE: SIMPLE_LATENCY, Unit.FLOAT: FLOAT_LATENCY,
             Unit.TRANSCENDENTAL: TRANSCENDENTAL_LATENCY, Unit.VMEM: LOAD_LATENCY}
"""Cycles from issue to the write of a vector register or mask, for units of fixed latency."""


def index_limits(config: Config) -> dict[MiscOp, int]:
    """Return the exclusive upper bound of operand b for each operation of the cross-lane unit.

    Operations without such a bound are absent.
    """
    limits = {
        MiscOp.ROTATE_LANES: config.lanes,
        MiscOp.ROTATE_SUBLANES: config.sublanes,
        MiscOp.BROADCAST_LANE: config.lanes,
        MiscOp.BROADCAST_SUBLANE: config.sublanes,
        MiscOp.TRANSPOSE_IN: config.tile_vregs,
        MiscOp.TRANSPOSE_OUT: config.tile_vregs,
    }
    assert set(limits) == {operation.op for operation in OPERATIONS
                           if Fault.INDEX_RANGE in operation.faults}
    return limits


_BY_CODE: dict[tuple[Slot, int], Operation] = {
    (slot, operation.op.value): operation for operation in OPERATIONS for slot in operation.slots}


def operation(slot: Slot, code: int) -> Operation | None:
    """Return the operation with code ``code`` in ``slot``, or None if the slot lacks this code."""
    return _BY_CODE.get((slot, code))
