"""Pieces: how the array multiplies numbers that are not bf16, in several passes.

The array rounds its operands to bf16 and adds in fp32. A number with more bits is a sum of *pieces*
that bf16 holds. The product of two numbers is the sum of the products of their pieces. A *pass*
is all steps of the array that multiply one piece of the rows by one piece of the weights. A scheme
selects the pieces that are multiplied in each pass, computes them, and adds the results.

- fp32, DEFAULT: one pass, rounded to bf16 by the array.
- fp32, HIGH and HIGHEST: an operand x is h + l + m with h = bf16(x), l = bf16(x - h) and
  m = x - h - l, all three exact unless they underflow. HIGH computes the products hl, lh and hh;
  HIGHEST also hm, ll and mh. The products of the smallest magnitude are added first. Only the last
  pass multiplies infinities and NaN. The other passes replace them by 0, so that no infinity is
  multiplied by a low piece that is 0. Numbers that round to an infinity count as infinite.
- Integers of 32 bits: the pieces are four bytes. The products of bytes *a* and *b* have the weight
  2^(8a + 8b); ten of them matter modulo 2^32. A column adds at most `lanes` (256 or less) products
  below 2^16, which is exact in fp32, and the tiles' results are added as integers.
- Integers that bf16 holds: one pass.
"""

from dataclasses import dataclass
from typing import Protocol

from sim.compiler.graph.ir import DType
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import MReg, SReg, VmemBuffer, VReg

__all__ = ["Integers", "Passes", "Rounded", "Scheme", "Side", "Split", "Stored", "scheme",
           "split"]

Number = SReg | int
_NEGATIVE_ZERO = 0x80000000
_MAGNITUDE = 0x7FFFFFFF
_OVERFLOW = 0x7F7F8000
"""Bits of the smallest magnitude that rounds to an infinity in bf16."""
_LEVELS = {"DEFAULT": 1, "HIGH": 2, "HIGHEST": 3}


@dataclass(frozen=True)
class Side:
    """An operand of the array: its rows, or its weights.

    ``number`` is 0 for rows and 1 for weights. ``padding`` is the word that is pushed in place of
    an element that does not exist.
    """

    number: int
    padding: int


ROWS = Side(0, 0)
WEIGHTS = Side(1, _NEGATIVE_ZERO)


class Scheme(Protocol):
    """Interface of the schemes: how operands are pushed, and how results are added.

    The methods take the number of a pass, from 0, as an integer or in a scalar register. A
    *setting* is a scalar that differs from pass to pass and is an operand of the vector operations
    of `piece` or `total`. It is computed once for a pass, not again for each vector.
    """

    @property
    def passes(self) -> int:
        """Number of passes."""

    @property
    def work(self) -> tuple[int, int, int]:
        """Numbers of vector operations: for a vector of rows, of weights, and of results."""

    def settings(self, b: Builder, side: Side, number: Number) -> list[Number]:
        """Compute the settings of `piece` for pass ``number`` and operand ``side``.

        Their number is the same for all passes.
        """

    def piece(self, b: Builder, side: Side, vector: VReg, settings: list[Number],
              mask: MReg | None) -> VReg:
        """Compute the piece of ``vector`` for a pass, with the settings that `settings` returned.

        Where ``mask`` is 0, elements become the padding of ``side``; None is a mask of ones.
        """

    def total_setting(self, b: Builder, number: Number) -> Number | None:
        """Compute the setting of `total` for pass ``number``; None if `total` needs no setting.

        A setting is 0 to 31: the number of bits by which `total` shifts results left.
        """

    def total(self, b: Builder, result: VReg, sum: VReg | None, started: MReg | None,
              setting: Number | None, into: VReg | None) -> VReg:
        """Add a vector of results to ``sum``, and return the total, in register ``into`` if given.

        Where the mask ``started`` is 0, the total is the result alone; None is a mask of ones. If
        ``sum`` is None, the total is the result. ``setting`` is what `total_setting` returned for
        this pass.
        """


def _masked(b: Builder, side: Side, vector: VReg, mask: MReg | None) -> VReg:
    return vector if mask is None else b.vector("select", vector, side.padding, mask)


def _add(b: Builder, operation: str, neutral: int, result: VReg, sum: VReg | None,
         started: MReg | None, into: VReg | None) -> VReg:
    if sum is None:
        return result
    if started is not None:
        sum = b.vector("select", sum, neutral, started)
    return b.vector(operation, sum, result, into=into)


@dataclass(frozen=True)
class Rounded:
    """The scheme of one pass: the array rounds fp32 numbers to bf16."""

    passes: int = 1
    work: tuple[int, int, int] = (0, 0, 2)

    def settings(self, b: Builder, side: Side, number: Number) -> list[Number]:
        """Return an empty list: with only one pass, `piece` needs nothing but its operand."""
        return []

    def piece(self, b: Builder, side: Side, vector: VReg, settings: list[Number],
              mask: MReg | None) -> VReg:
        """Return ``vector``, with padding where the mask is 0; the array rounds it."""
        return _masked(b, side, vector, mask)

    def total_setting(self, b: Builder, number: Number) -> Number | None:
        """Return None: `total` has no setting, as there is only one pass."""
        return None

    def total(self, b: Builder, result: VReg, sum: VReg | None, started: MReg | None,
              setting: Number | None, into: VReg | None) -> VReg:
        """Add the result to the sum in fp32."""
        return _add(b, "fadd", _NEGATIVE_ZERO, result, sum, started, into)


def _bit(b: Builder, table: int, number: Number) -> Number:
    """Return a word of ones if bit ``number`` of ``table`` is set, otherwise 0."""
    if isinstance(number, int):
        return -(table >> number & 1) & 0xFFFFFFFF
    return b.scalar("sub", 0, b.scalar("and", b.scalar("shr", b.value(table), number), 1))


@dataclass(frozen=True)
class Split:
    """Passes that multiply fp32 numbers, which are split into two or three pieces.

    Attributes
    ----------
    pairs : tuple of (int, int)
        For each pass, the numbers of the pieces of rows and weights that it multiplies. Piece 0 is
        the most significant one: h, l and m of the module's docstring are 0, 1 and 2.
    """

    pairs: tuple[tuple[int, int], ...]

    @property
    def passes(self) -> int:
        """Number of passes."""
        return len(self.pairs)

    @property
    def work(self) -> tuple[int, int, int]:
        """Numbers of vector operations: for a vector of rows, of weights, and of results."""
        return 3 + 3 * self.most(ROWS), 3 + 3 * self.most(WEIGHTS), 2

    def settings(self, b: Builder, side: Side, number: Number) -> list[Number]:
        """Compute the settings of `piece` for pass ``number`` and operand ``side``.

        The first is a limit: elements of at least this magnitude are replaced by 0. The others
        are words, one for each piece except the least significant: all ones if the pass subtracts
        that piece, otherwise 0.
        """
        return [self._limit(b, number), *(_bit(b, self._table(side, level), number)
                                          for level in range(1, 1 + self.most(side)))]

    def _limit(self, b: Builder, number: Number) -> Number:
        last = self.passes - 1
        if isinstance(number, int):
            return 0xFFFFFFFF if number == last else _OVERFLOW
        final = b.scalar("eq", number, last)
        return b.scalar("or", b.scalar("sub", 0, final), _OVERFLOW)

    def piece(self, b: Builder, side: Side, vector: VReg, settings: list[Number],
              mask: MReg | None) -> VReg:
        """Subtract the higher pieces from ``vector``; the array rounds the difference.

        Elements that `_limited` excludes become 0.
        """
        limit, *levels = settings
        rest = _limited(b, vector, limit, mask)
        for level in levels:
            above = b.vector("and", b.vector("bf16", rest), level)
            rest = b.vector("fsub", rest, above)
        return rest

    def total_setting(self, b: Builder, number: Number) -> Number | None:
        """Return None: `total` has no setting, because it does the same in every pass."""
        return None

    def total(self, b: Builder, result: VReg, sum: VReg | None, started: MReg | None,
              setting: Number | None, into: VReg | None) -> VReg:
        """Add the result to the sum in fp32."""
        return _add(b, "fadd", _NEGATIVE_ZERO, result, sum, started, into)

    def most(self, side: Side) -> int:
        """Return the number of the least significant piece of operand ``side`` that any pass uses.

        Pieces are numbered from the most significant one.
        """
        return max(pair[side.number] for pair in self.pairs)

    def _table(self, side: Side, level: int) -> int:
        """Return an integer whose bit n is 1 if pass n uses piece ``level`` of operand ``side``.

        The bit is also 1 if pass n uses a less significant piece of this operand.
        """
        return sum(1 << number for number, pair in enumerate(self.pairs)
                   if pair[side.number] >= level)


@dataclass(frozen=True)
class Stored(Split):
    """The passes of `Split`, with pieces that the function `split` has stored."""

    @property
    def work(self) -> tuple[int, int, int]:
        """Numbers of vector operations: for a vector of rows, of weights, and of results."""
        return 0, 0, 2

    def settings(self, b: Builder, side: Side, number: Number) -> list[Number]:
        """Return an empty list: `piece` does the same in every pass, with another stored piece."""
        return []

    def piece(self, b: Builder, side: Side, vector: VReg, settings: list[Number],
              mask: MReg | None) -> VReg:
        """Return ``vector``, which is already a piece, with zeros where the mask is 0."""
        return _masked(b, Side(side.number, 0), vector, mask)

    def stored(self, b: Builder, side: Side, number: Number) -> Number:
        """Return the index of the stored value of operand ``side`` that pass ``number`` uses.

        Of the values that `split` stores, index 0 has the operand's numbers themselves, and index
        n + 1 has their piece n.
        """
        stored = [pair[side.number] + 1 for pair in self.pairs[:-1]] + [0]
        if isinstance(number, int):
            return stored[number]
        table = sum(index << 2 * at for at, index in enumerate(stored))
        return b.scalar("and", b.scalar("shr", b.value(table), b.scalar("shl", number, 1)), 3)


def split(b: Builder, source: VmemBuffer, target: VmemBuffer, most: int) -> None:
    """Store the numbers of ``source`` in ``target``, and after them their pieces 0 to ``most``.

    The numbers are for the last pass, the pieces for the other passes. The pieces are h, l and m,
    numbered from 0. They are stored unrounded, because the array rounds them. All pieces of a NaN
    are 0, and so are those of a number that rounds to an infinity.
    """
    with b.loop(source.vectors) as number:
        vector = b.load(source, number)
        b.store(vector, target, number)
        rest = _limited(b, vector, _OVERFLOW, None)
        for level in range(most + 1):
            if level:
                rest = b.vector("fsub", rest, b.vector("bf16", rest))
            b.store(rest, target, number + (level + 1) * source.vectors)


def _limited(b: Builder, vector: VReg, limit: Number, mask: MReg | None) -> VReg:
    """Set to 0 the elements whose magnitude is not below ``limit`` or whose mask bit is 0."""
    valid = b.compare("ltu", b.vector("and", vector, _MAGNITUDE), limit)
    if mask is not None:
        valid = b.mask("mand", valid, mask)
    return b.vector("select", vector, 0, valid)


@dataclass(frozen=True)
class Integers:
    """The scheme of one pass, for integers that bf16 holds."""

    passes: int = 1
    work: tuple[int, int, int] = (1, 1, 3)

    def settings(self, b: Builder, side: Side, number: Number) -> list[Number]:
        """Return an empty list: with only one pass, `piece` needs nothing but its operand."""
        return []

    def piece(self, b: Builder, side: Side, vector: VReg, settings: list[Number],
              mask: MReg | None) -> VReg:
        """Convert the integers in ``vector`` to fp32, which the array rounds to bf16 exactly."""
        return b.vector("i2f", _masked(b, Side(side.number, 0), vector, mask))

    def total_setting(self, b: Builder, number: Number) -> Number | None:
        """Return None: `total` has no setting, as there is only one pass."""
        return None

    def total(self, b: Builder, result: VReg, sum: VReg | None, started: MReg | None,
              setting: Number | None, into: VReg | None) -> VReg:
        """Add the result, as an integer, to the sum."""
        return _add(b, "add", 0, b.vector("f2i", result), sum, started, into)


@dataclass(frozen=True)
class Passes:
    """The scheme of ten passes, one for each pair of bytes of 32-bit integers that matters.

    Attributes
    ----------
    pairs : tuple of (int, int)
        For each pass, the byte of the rows and that of the weights; byte 0 has the lowest bits.
    """

    pairs: tuple[tuple[int, int], ...]

    @property
    def passes(self) -> int:
        """Number of passes."""
        return len(self.pairs)

    @property
    def work(self) -> tuple[int, int, int]:
        """Numbers of vector operations: for a vector of rows, of weights, and of results."""
        return 3, 3, 4

    def settings(self, b: Builder, side: Side, number: Number) -> list[Number]:
        """Compute the shift that moves the byte for pass ``number`` to the lowest bits."""
        return [self._shift(b, [pair[side.number] for pair in self.pairs], number)]

    def piece(self, b: Builder, side: Side, vector: VReg, settings: list[Number],
              mask: MReg | None) -> VReg:
        """Extract a byte of each integer in ``vector``, as an fp32 number."""
        byte = b.vector("and", b.vector("shr", vector, settings[0]), 255)
        return b.vector("i2f", _masked(b, Side(side.number, 0), byte, mask))

    def total_setting(self, b: Builder, number: Number) -> Number | None:
        """Compute the number of bits by which `total` shifts a result left."""
        return self._shift(b, [sum(pair) for pair in self.pairs], number)

    def total(self, b: Builder, result: VReg, sum: VReg | None, started: MReg | None,
              setting: Number | None, into: VReg | None) -> VReg:
        """Add the shifted result to the sum, modulo 2^32."""
        assert setting is not None
        return _add(b, "add", 0, b.vector("shl", b.vector("f2i", result), setting), sum, started,
                    into)

    @staticmethod
    def _shift(b: Builder, bytes: list[int], number: Number) -> Number:
        if isinstance(number, int):
            return 8 * bytes[number]
        table = sum(byte << 2 * index for index, byte in enumerate(bytes))
        byte = b.scalar("and", b.scalar("shr", b.value(table), b.scalar("shl", number, 1)), 3)
        return b.scalar("shl", byte, 3)


def _bytes(dtype: DType) -> int:
    return 1 if dtype.bits <= 8 else 4


def scheme(rows: DType, weights: DType, precision: str) -> Scheme:
    """Return the scheme for operands of two types.

    Parameters
    ----------
    rows, weights : DType
        Types of the operands: both floating-point, or neither.
    precision : str
        DEFAULT, HIGH or HIGHEST; it has an effect on fp32 only.

    Raises
    ------
    ValueError
        If the precision is another string, or only one type is floating-point.
    """
    if precision not in _LEVELS:
        raise ValueError(f"precision must be one of {', '.join(_LEVELS)}, not {precision!r}")
    if rows.is_float != weights.is_float:
        raise ValueError(f"types must both be floating-point, or neither, not {rows.value} and "
                         f"{weights.value}")
    if rows.is_float:
        levels = [1 if dtype is DType.BF16 else _LEVELS[precision] for dtype in (rows, weights)]
        most = _LEVELS[precision]
        pairs = [(a, c) for a in range(levels[0]) for c in range(levels[1]) if a + c < most]
        pairs.sort(key=lambda pair: (-sum(pair), -abs(pair[0] - pair[1]), -pair[0]))
        return Rounded() if len(pairs) == 1 else Split(tuple(pairs))
    counts = [_bytes(dtype) for dtype in (rows, weights)]
    if counts == [1, 1]:
        return Integers()
    # A narrow operand is extended to 32 bits, so all four of its bytes are used.
    return Passes(tuple((a, c) for total in range(4) for a in range(4) for c in range(4)
                        if a + c == total))
