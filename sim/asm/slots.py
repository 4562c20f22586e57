"""The assembler's slots: classes whose methods are the operations of `hdl.isa`.

Written by `tools.docs.slots` from `hdl.isa.OPERATIONS`; do not edit.
"""

from hdl.isa import LoadOp, MiscOp, PopOp, PushOp, ScalarOp, StoreOp, VectorOp
from sim.asm.operands import (
    Mask,
    Scalar,
    Semaphore,
    SlotMethods,
    Source,
    Target,
    Vector,
    VectorSource,
    m,
)

__all__ = [
    "LoadMethods",
    "MiscMethods",
    "PopMethods",
    "PushMethods",
    "Scalar0Methods",
    "Scalar1Methods",
    "ScalarMethods",
    "StoreMethods",
    "Vector0Methods",
    "Vector1Methods",
]


class ScalarMethods(SlotMethods):
    """Operations of both scalar slots."""

    def add(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a + b, modulo 2**32."""
        self._put(ScalarOp.ADD, d, a, b)

    def sub(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a - b, modulo 2**32."""
        self._put(ScalarOp.SUB, d, a, b)

    def mul(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a * b, modulo 2**32."""
        self._put(ScalarOp.MUL, d, a, b)

    def and_(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a & b."""
        self._put(ScalarOp.AND, d, a, b)

    def or_(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a | b."""
        self._put(ScalarOp.OR, d, a, b)

    def xor(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a ^ b."""
        self._put(ScalarOp.XOR, d, a, b)

    def shl(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a << b; 0 if b, unsigned, is 32 or more."""
        self._put(ScalarOp.SHL, d, a, b)

    def shr(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a >> b, filled with zeros; 0 if b, unsigned, is 32 or more."""
        self._put(ScalarOp.SHR, d, a, b)

    def sar(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = a >> b, filled with the sign; 32 copies of the sign if b, unsigned, is 32 or more."""
        self._put(ScalarOp.SAR, d, a, b)

    def eq(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = 1 if a = b, otherwise 0."""
        self._put(ScalarOp.EQ, d, a, b)

    def ne(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = 1 if a != b, otherwise 0."""
        self._put(ScalarOp.NE, d, a, b)

    def lt(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = 1 if a < b, signed, otherwise 0."""
        self._put(ScalarOp.LT, d, a, b)

    def ltu(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = 1 if a < b, unsigned, otherwise 0."""
        self._put(ScalarOp.LTU, d, a, b)

    def min(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = the smaller of a and b, signed."""
        self._put(ScalarOp.MIN, d, a, b)

    def max(self, d: Scalar, a: Scalar, b: Source) -> None:
        """d = the larger of a and b, signed."""
        self._put(ScalarOp.MAX, d, a, b)


class Scalar0Methods(ScalarMethods):
    """Operations of slot s0, which accesses scalar memory."""

    def load(self, d: Scalar, base: Scalar, offset: Source = 0) -> None:
        """d = smem[base + offset]."""
        self._put(ScalarOp.LOAD, d, base, offset)

    def store(self, d: Scalar, base: Scalar, offset: Source = 0) -> None:
        """smem[base + offset] = d."""
        self._put(ScalarOp.STORE, d, base, offset)


class Scalar1Methods(ScalarMethods):
    """Operations of slot s1, which branches."""

    def jump(self, target: Source) -> None:
        """The next bundle is the one at target."""
        self._put(ScalarOp.JUMP, target)

    def call(self, d: Scalar, target: Source) -> None:
        """d = the address of this bundle + 1; the next bundle is the one at target."""
        self._put(ScalarOp.CALL, d, target)

    def beq(self, a: Scalar, b: Source, target: Target) -> None:
        """If a = b, the next bundle is the one at target."""
        self._put(ScalarOp.BEQ, a, b, target)

    def bne(self, a: Scalar, b: Source, target: Target) -> None:
        """If a != b, the next bundle is the one at target."""
        self._put(ScalarOp.BNE, a, b, target)

    def blt(self, a: Scalar, b: Source, target: Target) -> None:
        """If a < b, signed, the next bundle is the one at target."""
        self._put(ScalarOp.BLT, a, b, target)

    def bge(self, a: Scalar, b: Source, target: Target) -> None:
        """If a >= b, signed, the next bundle is the one at target."""
        self._put(ScalarOp.BGE, a, b, target)

    def bltu(self, a: Scalar, b: Source, target: Target) -> None:
        """If a < b, unsigned, the next bundle is the one at target."""
        self._put(ScalarOp.BLTU, a, b, target)

    def bgeu(self, a: Scalar, b: Source, target: Target) -> None:
        """If a >= b, unsigned, the next bundle is the one at target."""
        self._put(ScalarOp.BGEU, a, b, target)

    def loop(self, d: Scalar, target: Source) -> None:
        """d = d - 1, modulo 2**32; if the result is not 0, the next bundle is the one at target.
        With s0 as d the result is always 2**32 - 1.
        """
        self._put(ScalarOp.LOOP, d, target)

    def halt(self) -> None:
        """The core stops after this bundle, and the program counter stays at it."""
        self._put(ScalarOp.HALT)


class Vector0Methods(SlotMethods):
    """Operations of both vector slots."""

    def move(self, d: Vector, b: VectorSource) -> None:
        """d = b."""
        self._put(VectorOp.MOVE, d, b)

    def select(self, d: Vector, a: Vector, b: VectorSource, mask: Mask) -> None:
        """d = a where mask is set, otherwise b."""
        self._put(VectorOp.SELECT, d, a, b, mask)

    def lane(self, d: Vector) -> None:
        """d = the number of the element's lane."""
        self._put(VectorOp.LANE, d)

    def sublane(self, d: Vector) -> None:
        """d = the number of the element's sublane."""
        self._put(VectorOp.SUBLANE, d)

    def fadd(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a + b, fp32."""
        self._put(VectorOp.FADD, d, a, b)

    def fsub(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a + (-b), fp32."""
        self._put(VectorOp.FSUB, d, a, b)

    def fmul(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a * b, fp32."""
        self._put(VectorOp.FMUL, d, a, b)

    def fmin(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = the smaller of a and b, fp32; -0 is smaller than +0; NaN if an operand is NaN; a
        subnormal operand counts as the zero of its sign.
        """
        self._put(VectorOp.FMIN, d, a, b)

    def fmax(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = the larger of a and b, fp32; +0 is larger than -0; NaN if an operand is NaN; a
        subnormal operand counts as the zero of its sign.
        """
        self._put(VectorOp.FMAX, d, a, b)

    def fabs(self, d: Vector, a: Vector) -> None:
        """d = |a|, fp32; +0 if a is subnormal, 7FC00000 if a is NaN."""
        self._put(VectorOp.FABS, d, a)

    def fneg(self, d: Vector, a: Vector) -> None:
        """d = -a, fp32; the zero of the other sign if a is subnormal, 7FC00000 if a is NaN."""
        self._put(VectorOp.FNEG, d, a)

    def feq(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a = b as numbers: -0 equals +0, subnormals count as zeros; if an operand
        is NaN, d is not set.
        """
        self._put(VectorOp.FEQ, d, a, b)

    def fne(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a != b as numbers: -0 equals +0, subnormals count as zeros; if an operand
        is NaN, d is set.
        """
        self._put(VectorOp.FNE, d, a, b)

    def flt(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a < b as numbers: -0 equals +0, subnormals count as zeros; if an operand
        is NaN, d is not set.
        """
        self._put(VectorOp.FLT, d, a, b)

    def fle(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a <= b as numbers: -0 equals +0, subnormals count as zeros; if an operand
        is NaN, d is not set.
        """
        self._put(VectorOp.FLE, d, a, b)

    def fgt(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a > b as numbers: -0 equals +0, subnormals count as zeros; if an operand
        is NaN, d is not set.
        """
        self._put(VectorOp.FGT, d, a, b)

    def fge(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a >= b as numbers: -0 equals +0, subnormals count as zeros; if an operand
        is NaN, d is not set.
        """
        self._put(VectorOp.FGE, d, a, b)

    def add(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a + b, modulo 2**32."""
        self._put(VectorOp.ADD, d, a, b)

    def sub(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a - b, modulo 2**32."""
        self._put(VectorOp.SUB, d, a, b)

    def and_(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a & b."""
        self._put(VectorOp.AND, d, a, b)

    def or_(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a | b."""
        self._put(VectorOp.OR, d, a, b)

    def xor(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a ^ b."""
        self._put(VectorOp.XOR, d, a, b)

    def shl(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a << b; 0 if b, unsigned, is 32 or more."""
        self._put(VectorOp.SHL, d, a, b)

    def shr(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a >> b, filled with zeros; 0 if b, unsigned, is 32 or more."""
        self._put(VectorOp.SHR, d, a, b)

    def sar(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = a >> b, filled with the sign; 32 copies of the sign if b, unsigned, is 32 or more."""
        self._put(VectorOp.SAR, d, a, b)

    def eq(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a = b, as integers."""
        self._put(VectorOp.EQ, d, a, b)

    def ne(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a != b, as integers."""
        self._put(VectorOp.NE, d, a, b)

    def lt(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a < b, signed."""
        self._put(VectorOp.LT, d, a, b)

    def le(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a <= b, signed."""
        self._put(VectorOp.LE, d, a, b)

    def gt(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a > b, signed."""
        self._put(VectorOp.GT, d, a, b)

    def ge(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a >= b, signed."""
        self._put(VectorOp.GE, d, a, b)

    def ltu(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a < b, unsigned."""
        self._put(VectorOp.LTU, d, a, b)

    def geu(self, d: Mask, a: Vector, b: VectorSource) -> None:
        """d is set where a >= b, unsigned."""
        self._put(VectorOp.GEU, d, a, b)

    def f2i(self, d: Vector, a: Vector) -> None:
        """d = a, fp32, rounded toward zero to a signed integer and saturated; 0 for NaN."""
        self._put(VectorOp.F2I, d, a)

    def i2f(self, d: Vector, a: Vector) -> None:
        """d = a, a signed integer, rounded to fp32."""
        self._put(VectorOp.I2F, d, a)

    def bf16(self, d: Vector, a: Vector) -> None:
        """d = a, fp32, rounded to bf16 and widened again."""
        self._put(VectorOp.BF16, d, a)

    def mand(self, d: Mask, a: Mask, b: Mask) -> None:
        """d = a & b."""
        self._put(VectorOp.MAND, d, a, b)

    def mor(self, d: Mask, a: Mask, b: Mask) -> None:
        """d = a | b."""
        self._put(VectorOp.MOR, d, a, b)

    def mxor(self, d: Mask, a: Mask, b: Mask) -> None:
        """d = a ^ b; if one operand is m0, d is the inverse of the other."""
        self._put(VectorOp.MXOR, d, a, b)

    def mandn(self, d: Mask, a: Mask, b: Mask) -> None:
        """d = a & ~b."""
        self._put(VectorOp.MANDN, d, a, b)


class Vector1Methods(Vector0Methods):
    """Operations of slot v1, which has the transcendental unit."""

    def reciprocal(self, d: Vector, a: Vector) -> None:
        """d = 1 / a, fp32 (docs/transcendentals.md)."""
        self._put(VectorOp.RECIPROCAL, d, a)

    def rsqrt(self, d: Vector, a: Vector) -> None:
        """d = 1 / sqrt(a), fp32 (docs/transcendentals.md)."""
        self._put(VectorOp.RSQRT, d, a)

    def exp2(self, d: Vector, a: Vector) -> None:
        """d = 2 ** a, fp32 (docs/transcendentals.md)."""
        self._put(VectorOp.EXP2, d, a)

    def log2(self, d: Vector, a: Vector) -> None:
        """d = log2(a), fp32 (docs/transcendentals.md)."""
        self._put(VectorOp.LOG2, d, a)

    def tanh(self, d: Vector, a: Vector) -> None:
        """d = tanh(a), fp32 (docs/transcendentals.md)."""
        self._put(VectorOp.TANH, d, a)

    def random(self, d: Vector, a: Vector, b: VectorSource) -> None:
        """d = the first word of Threefry-2x32 with 20 rounds, counter (a, 0), key (b, 0)."""
        self._put(VectorOp.RANDOM, d, a, b)


class LoadMethods(SlotMethods):
    """Operations of slot ld: vector loads."""

    def load(self, d: Vector, base: Scalar, offset: Source = 0) -> None:
        """d = vmem[base + offset]."""
        self._put(LoadOp.LOAD, d, base, offset)


class StoreMethods(SlotMethods):
    """Operations of slot st: vector stores."""

    def store(self, d: Vector, base: Scalar, offset: Source = 0, mask: Mask = m[0]) -> None:
        """vmem[base + offset] = d where mask is set; other elements keep their value."""
        self._put(StoreOp.STORE, d, base, offset, mask)


class PushMethods(SlotMethods):
    """Operations of slot push: vectors to the array."""

    def weights(self, a: Vector) -> None:
        """The sublanes of a, rounded to bf16, become further rows of the next weight tile."""
        self._put(PushOp.WEIGHTS, a)

    def weights_t(self, a: Vector) -> None:
        """The sublanes of a, rounded to bf16, become further columns of the next weight tile."""
        self._put(PushOp.WEIGHTS_T, a)

    def rows(self, a: Vector) -> None:
        """Each sublane x of a, rounded to bf16, gives a result row x @ W; W is the active weight
        tile.
        """
        self._put(PushOp.ROWS, a)

    def rows_swap(self, a: Vector) -> None:
        """Makes the next weight tile the active one; then does the same as operation rows."""
        self._put(PushOp.ROWS_SWAP, a)


class PopMethods(SlotMethods):
    """Operations of slot pop: results of the array."""

    def pop(self, d: Vector) -> None:
        """d = the oldest result vector: its sublanes are result rows."""
        self._put(PopOp.POP, d)


class MiscMethods(SlotMethods):
    """Operations of slot misc: cross-lane unit, semaphores, and transfers.

    An operand beyond the limit that the operation states, such as b < lanes, is a fault
    (INDEX_RANGE); so is a ``signal`` that would raise a semaphore above 2**32 - 1 (SEMAPHORE).
    """

    def rotate_lanes(self, d: Vector, a: Vector, b: Source) -> None:
        """d[s, (l + b) mod lanes] = a[s, l]; b < lanes, unsigned."""
        self._put(MiscOp.ROTATE_LANES, d, a, b)

    def rotate_sublanes(self, d: Vector, a: Vector, b: Source) -> None:
        """d[(s + b) mod sublanes, l] = a[s, l]; b < sublanes, unsigned."""
        self._put(MiscOp.ROTATE_SUBLANES, d, a, b)

    def broadcast_lane(self, d: Vector, a: Vector, b: Source) -> None:
        """d[s, l] = a[s, b]; b < lanes, unsigned."""
        self._put(MiscOp.BROADCAST_LANE, d, a, b)

    def broadcast_sublane(self, d: Vector, a: Vector, b: Source) -> None:
        """d[s, l] = a[b, l]; b < sublanes, unsigned."""
        self._put(MiscOp.BROADCAST_SUBLANE, d, a, b)

    def sum_lanes(self, d: Vector, a: Vector) -> None:
        """d[s, l] = the fp32 sum of a[s, :]: neighbours are added in pairs (0 and 1, 2 and 3, ...),
        then neighbouring sums, and so on; missing elements, up to the next power of two, count as
        -0.
        """
        self._put(MiscOp.SUM_LANES, d, a)

    def max_lanes(self, d: Vector, a: Vector) -> None:
        """d[s, l] = the fmax of all elements of a[s, :]."""
        self._put(MiscOp.MAX_LANES, d, a)

    def transpose_in(self, a: Vector, b: Source) -> None:
        """The sublanes of a become consecutive rows of the transposer's tile, the first of them row
        b * sublanes; b < lanes / sublanes, unsigned.
        """
        self._put(MiscOp.TRANSPOSE_IN, a, b)

    def transpose_out(self, d: Vector, b: Source) -> None:
        """The sublanes of d = consecutive columns of the transposer's tile, the first of them
        column b * sublanes; b < lanes / sublanes, unsigned.
        """
        self._put(MiscOp.TRANSPOSE_OUT, d, b)

    def wait(self, d: Semaphore, b: Source) -> None:
        """Holds the whole bundle until semaphore d is at least b, unsigned; then subtracts b from
        it.
        """
        self._put(MiscOp.WAIT, d, b)

    def signal(self, d: Semaphore, b: Source) -> None:
        """Adds b, unsigned, to semaphore d."""
        self._put(MiscOp.SIGNAL, d, b)

    def read_semaphore(self, d: Scalar, a: Semaphore) -> None:
        """d = semaphore a."""
        self._put(MiscOp.READ_SEMAPHORE, d, a)

    def signal_other(self, d: Semaphore, b: Source) -> None:
        """Adds b, unsigned, to semaphore d of the other core. If the sum exceeds 2**32 - 1, the
        other core has the fault SEMAPHORE. ILLEGAL on a chip with one core.
        """
        self._put(MiscOp.SIGNAL_OTHER, d, b)

    def signal_remote(self, d: Semaphore, a: Scalar, b: Source) -> None:
        """Adds b, unsigned, to semaphore d of a core of another chip. Operand a names that core, in
        the format of the high word of a remote address. If the sum exceeds 2**32 - 1, that core has
        the fault SEMAPHORE. ILLEGAL on a chip without links.
        """
        self._put(MiscOp.SIGNAL_REMOTE, d, a, b)

    def dma(self, descriptor: Source) -> None:
        """Starts the transfer whose descriptor begins at smem[descriptor]."""
        self._put(MiscOp.DMA, descriptor)
