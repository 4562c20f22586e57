"""Rewrites large operations that cannot be divided into blocks as operations that can be divided.

Blocks begin at whole vectors, so a dimension along the lanes can only be divided at multiples of
the lanes. Operations that move elements along the lanes by other distances than such multiples are
rewritten here. The new operations do most of the work on rows of `lanes` elements; the number of
the row is a dimension of its own.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import isqrt

import numpy as np

from hdl.config import Config
from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.reductions import reducer_kind
from sim.compiler.kernels.reduce import identity
from sim.compiler.passes.expansion import Expansion
from sim.compiler.passes.streaming.axes import resized
from sim.compiler.passes.streaming.reductions import mapped, sum_type
from sim.compiler.words import from_words

__all__ = ["rewrite"]


def rewrite(operation: Operation, at: Expansion, config: Config, scalars: Mapping[Value, Array]
            ) -> Sequence[Value] | None:
    """Write operations that can be divided, in place of one that cannot; return their results.

    Parameters
    ----------
    operation : Operation
        An operation whose operands and results do not fit vector memory.
    at : Expansion
        Receives the operations.
    config : Config
        The chip.
    scalars : mapping of Value to array
        The scalars that are constants.

    Returns
    -------
    sequence of Value or None
        A value for each result; None, and nothing is written, if there is no such rewriting.
    """
    if operation.kind == "reduce_window":
        return _reduce_window(operation, at, config.lanes, scalars)
    rule = _RULES.get(operation.kind)
    return None if rule is None else rule(operation, at, config.lanes)


def _reshape(operation: Operation, at: Expansion, lanes: int) -> Sequence[Value] | None:
    """Rewrite a large reshape as two, by way of shape (size / lanes, lanes) if possible."""
    [value], result = operation.operands, operation.result
    size = result.type.size
    shape = (size,) if size % lanes else (size // lanes, lanes)
    if shape in (value.shape, result.shape):
        return None
    return [at.reshape(at.reshape(value, shape), result.shape)]


def _reverse(operation: Operation, at: Expansion, lanes: int) -> Sequence[Value] | None:
    """Reverse lines longer than ``lanes``: the order of their rows, and the elements of each row.

    A line runs along the last dimension; a row is ``lanes`` consecutive elements of it. ``at``
    receives the new operations. Return None if ``operation`` does not reverse such lines.
    """
    [value], dimensions = operation.operands, operation.attributes["dimensions"]
    last, size = value.type.rank - 1, value.shape[-1]
    if last not in dimensions or size <= lanes:
        return None
    rows = _rows(at, value, -(-size // lanes), lanes)
    turned = at.add("reverse", (rows,), rows.type, dimensions=(*dimensions, last + 1))
    line = _line(at, turned)
    return [at.slice(line, last, line.shape[last] - size, size)]


def _concatenate(operation: Operation, at: Expansion, lanes: int) -> Sequence[Value] | None:
    """Concatenate along the last dimension, in HBM, by pieces that begin at multiples of ``lanes``.

    A piece is a slice of one operand. But where the next ``lanes`` elements of the result come from
    several operands, the piece is these elements. Return None if the operation concatenates along
    another dimension, or if the last dimension of the result has at most ``lanes`` elements.
    """
    values, result = operation.operands, operation.result
    last = result.type.rank - 1
    if operation.attributes["dimension"] != last or result.shape[last] <= lanes:
        return None
    ends = list(accumulate(value.shape[last] for value in values))
    pieces: list[Value] = []
    first = 0

    def part(number: int, begin: int, end: int) -> Value:
        offset = ends[number] - values[number].shape[last]
        return at.slice(values[number], last, begin - offset, end - begin)

    while first < ends[-1]:
        number = bisect_right(ends, first)
        end = ends[number]
        if end < ends[-1]:
            end -= (end - first) % lanes
        if end > first:
            pieces.append(part(number, first, end))
        else:
            end = min(first + lanes, ends[-1])
            starts = [first, *(cut for cut in dict.fromkeys(ends) if first < cut < end)]
            pieces.append(at.concatenate([
                part(bisect_right(ends, a), a, b)
                for a, b in zip(starts, [*starts[1:], end], strict=True)], last))
        first = end
    return [at.add("concatenate", pieces, result.type, dimension=last, in_hbm=True)]


def _dynamic_slice(operation: Operation, at: Expansion, lanes: int) -> Sequence[Value] | None:
    """Rewrite a dynamic slice: slice whole rows in HBM, then shift their elements into place."""
    (value, *starts), result = operation.operands, operation.result
    if not _moves_along_lanes(value, result, starts[-1]):
        return None
    size, last = result.shape[-1], result.type.rank - 1
    count = -(-size // lanes)
    row, shift = _place(at, starts[-1], value.shape[-1] - size, lanes)
    rows = _rows(at, value, (value.shape[-1] - size) // lanes + count + 1, lanes)
    parts = [_rows_at(at, rows, first, count) for first in (
        row, at.binary("add", row, at.constant(1, DType.S32)))]
    return [at.slice(_line(at, _shifted(at, parts, shift)), last, 0, size)]


def _dynamic_update_slice(operation: Operation, at: Expansion, lanes: int
                          ) -> Sequence[Value] | None:
    """Rewrite a dynamic update: shift the update, merge it with the old rows, write whole rows."""
    value, update, *starts = operation.operands
    if not _moves_along_lanes(value, update, starts[-1]):
        return None
    size, last = update.shape[-1], value.type.rank - 1
    count = -(-size // lanes) + 1
    row, shift = _place(at, starts[-1], value.shape[-1] - size, lanes)
    rows = _rows(at, value, (value.shape[-1] - size) // lanes + count, lanes)
    moved = _rows(at, _padded(at, update, last, lanes, 0), count + 1, lanes)
    back = at.binary("subtract", at.constant(lanes, DType.S32), shift)
    shifted = _shifted(at, [at.slice(moved, last, first, count) for first in (0, 1)], back)
    old = _rows_at(at, rows, row, count)
    new = at.add("select", (_between(at, shifted.shape, shift, size), shifted, old), old.type)
    made = at.add("dynamic_update_slice", (rows, new, *_corner(at, row, last)), rows.type,
                  in_hbm=True)
    return [at.slice(_line(at, made), last, 0, value.shape[-1])]


def _reduce_window(operation: Operation, at: Expansion, lanes: int,
                   scalars: Mapping[Value, Array]) -> Sequence[Value] | None:
    """Rewrite a running reduction: accumulate within rows, then add totals of earlier rows.

    The reducer must be associative, as StableHLO allows the compiler to assume.
    """
    along = _accumulated(operation)
    if along is None:
        return None
    count, attributes, [region] = len(operation.results), operation.attributes, operation.regions
    values, initial = operation.operands[:count], operation.operands[count:]
    size, backwards = values[0].shape[along], attributes["padding"][along][0] == 0
    width = max(isqrt(size) // lanes, 1) * lanes
    if size <= width:
        return None
    kind = reducer_kind(region)
    wide = [sum_type(value.dtype, kind) for value in values]
    region = region if kind is None else _reducer(kind, wide[0])
    # StableHLO requires that the initial values of other reducers are identities.
    neutral = initial if kind is None else [_identity(at, kind, wide[0])]
    rows = [_rows(at, at.convert(value, dtype), -(-size // width), width, along, filler)
            for value, dtype, filler in zip(values, wide, neutral, strict=True)]
    local = _scanned(at, rows, neutral, region, along + 1, backwards)
    ends = [at.slice(value, along + 1, 0 if backwards else width - 1, 1) for value in local]
    sums = _scanned(at, ends, neutral, region, along, backwards)
    number = rows[0].shape[along]
    before = [_padded(at, at.slice(value, along, int(backwards), number - 1), along,
                      int(not backwards), int(backwards), filler)
              for value, filler in zip(sums, neutral, strict=True)]
    spread = [at.broadcast(at.reshape(value, (*rows[0].shape[:along + 1],
                                              *rows[0].shape[along + 2:])), rows[0].shape,
                           [n for n in range(rows[0].type.rank) if n != along + 1])
              for value in before]
    found = mapped(at, region, [*local, *spread] if backwards else [*spread, *local])
    if kind is not None:
        first = at.broadcast(at.convert(initial[0], wide[0]), rows[0].shape, ())
        found = mapped(at, region, [first, *found])
    lines = [at.slice(_line(at, value, along), along, 0, size) for value in found]
    if kind is not None and not _is_idempotent(kind, scalars.get(initial[0])):
        # The padding of a window consists of more initial values, a different number at each index.
        shape = resized(values[0].type, along, size - 1).shape
        line = at.broadcast(at.convert(initial[0], wide[0]), shape, ())
        padding = _scanned(at, [line], neutral, region, along, not backwards)
        filled = [_padded(at, value, along, int(backwards), int(not backwards), filler)
                  for value, filler in zip(padding, neutral, strict=True)]
        lines = mapped(at, region, [*filled, *lines])
    return [at.convert(line, result.dtype)
            for line, result in zip(lines, operation.results, strict=True)]


_RULES: dict[str, Callable[[Operation, Expansion, int], Sequence[Value] | None]] = {
    "reshape": _reshape, "reverse": _reverse, "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice}


# Rows.


def _padded(at: Expansion, value: Value, along: int, low: int, high: int,
            filler: Value | None = None) -> Value:
    """Pad dimension ``along`` of ``value`` by ``low`` elements before and ``high`` after it.

    The elements are ``filler``, by default zeros.
    """
    if low == high == 0:
        return value
    if filler is None:
        filler = at.constant(0, value.dtype)
    none = (0,) * value.type.rank
    return at.add("pad", (value, filler), resized(value.type, along, (
        value.shape[along] + low + high)),
        edge_padding_low=(*none[:along], low, *none[along + 1:]),
        edge_padding_high=(*none[:along], high, *none[along + 1:]), interior_padding=none)


def _rows(at: Expansion, value: Value, count: int, width: int, along: int | None = None,
          filler: Value | None = None) -> Value:
    """Split dimension ``along``, by default the last, into ``count`` rows of ``width`` elements.

    The last rows are padded with ``filler``.
    """
    along = value.type.rank - 1 if along is None else along
    whole = _padded(at, value, along, 0, count * width - value.shape[along], filler)
    return at.reshape(whole, (*value.shape[:along], count, width, *value.shape[along + 1:]))


def _line(at: Expansion, rows: Value, along: int | None = None) -> Value:
    """Join ``rows`` to one long dimension again: the inverse of `_rows`, but padding stays."""
    along = rows.type.rank - 2 if along is None else along
    count, width = rows.shape[along:along + 2]
    return at.reshape(rows, (*rows.shape[:along], count * width, *rows.shape[along + 2:]))


# Dynamic slices.


def _moves_along_lanes(value: Value, part: Value, start: Value) -> bool:
    """Return whether a slice ``part`` is smaller than ``value`` only in the last dimension.

    Return False also if the slice's start index in this dimension, ``start``, is not an s32.
    """
    return (value.shape[:-1] == part.shape[:-1] and value.shape[-1] > part.shape[-1]
            and start.dtype is DType.S32)


def _place(at: Expansion, start: Value, most: int, lanes: int) -> tuple[Value, Value]:
    """Clamp an index to 0 … ``most``; return index // ``lanes`` and index % ``lanes``."""
    low, high = (at.constant(number, DType.S32) for number in (0, most))
    start = at.binary("minimum", at.binary("maximum", start, low), high)
    shift = at.constant(lanes.bit_length() - 1, DType.S32)
    return (at.binary("shift_right_logical", start, shift),
            at.binary("and", start, at.constant(lanes - 1, DType.S32)))


def _corner(at: Expansion, row: Value, along: int) -> list[Value]:
    """Return the start indices, one per dimension, of a slice that begins with row ``row``.

    The index is ``row`` in dimension ``along``, the second to last, and 0 in all others.
    """
    zero = at.constant(0, DType.S32)
    return [*[zero] * along, row, zero]


def _rows_at(at: Expansion, rows: Value, first: Value, count: int) -> Value:
    """Append a slice in HBM, ``count`` rows of ``rows`` from row ``first`` on; return it."""
    along = rows.type.rank - 2
    kind = resized(rows.type, along, count)
    return at.add("dynamic_slice", (rows, *_corner(at, first, along)), kind,
                  slice_sizes=kind.shape, in_hbm=True)


def _shifted(at: Expansion, parts: Sequence[Value], shift: Value) -> Value:
    """Join corresponding rows of two values; of each joined row, take elements from ``shift`` on.

    ``parts`` has the two values. Rows of the result are as wide as those of one value.
    """
    [one, _], last = parts, parts[0].type.rank - 1
    pairs = at.concatenate(parts, last)
    zero = at.constant(0, DType.S32)
    return at.add("dynamic_slice", (pairs, *[zero] * last, shift), one.type,
                  slice_sizes=one.shape)


def _between(at: Expansion, shape: Sequence[int], first: Value, size: int) -> Value:
    """Return a predicate of shape ``shape``, true for elements ``first`` to ``first + size - 1``.

    Elements are numbered in row-major order along the last two dimensions of ``shape``: the rows,
    and the elements of a row.
    """
    kind = TensorType(tuple(shape), DType.S32)
    rows, places = (at.add("iota", (), kind, iota_dimension=kind.rank - n) for n in (2, 1))
    width = at.broadcast(at.constant(shape[-1], DType.S32), shape, ())
    place = at.binary("add", at.binary("multiply", rows, width), places)
    place = at.binary("subtract", place, at.broadcast(first, shape, ()))
    # As unsigned numbers, negative ones are large.
    plain = at.convert(place, DType.U32)
    limit = at.broadcast(at.constant(size, DType.U32), shape, ())
    return at.add("compare", (plain, limit), TensorType(kind.shape, DType.PRED),
                  comparison_direction="LT", compare_type="UNSIGNED")


# Accumulation.


def _accumulated(operation: Operation) -> int | None:
    """Return the dimension along which a ``reduce_window`` accumulates; None if it does not.

    An accumulation combines, at each index of one dimension, all elements up to this index, or all
    elements from this index on.
    """
    attributes, shape = operation.attributes, operation.operands[0].shape
    windows = attributes["window_dimensions"]
    wide = [n for n, size in enumerate(windows) if size != 1]
    if len(wide) != 1 or windows[wide[0]] != shape[wide[0]] or any(
            step != 1 for name in ("window_strides", "base_dilations", "window_dilations")
            for step in attributes[name]):
        return None
    [along] = wide
    most = shape[along] - 1
    if any(tuple(pair) not in (((most, 0), (0, most)) if n == along else ((0, 0),))
           for n, pair in enumerate(attributes["padding"])):
        return None
    return along


def _is_idempotent(kind: str, initial: Array | None) -> bool:
    """Return whether reducer ``kind`` combines ``initial`` with itself to ``initial`` again.

    ``initial`` is None if it is not known.
    """
    combine = {"add": np.add, "multiply": np.multiply, "xor": np.bitwise_xor}.get(kind)
    with np.errstate(over="ignore"):
        return combine is None or (initial is not None and bool(
            combine(initial, initial) == initial))


def _reducer(kind: str, dtype: DType) -> Graph:
    scalar = TensorType((), dtype)
    region = Graph([Value(scalar), Value(scalar)])
    region.outputs = [region.add(kind, region.inputs, scalar).result]
    return region


def _identity(at: Expansion, kind: str, dtype: DType) -> Value:
    word = np.array(identity(kind, dtype), np.uint32)
    return at.add("constant", (), TensorType((), dtype),
                  value=from_words(word, array_dtype(dtype)))


def _scanned(at: Expansion, values: Sequence[Value], initial: Sequence[Value], region: Graph,
             along: int, backwards: bool) -> Sequence[Value]:
    """Return the running reductions of ``values`` along ``along``, from its end if ``backwards``.

    ``region`` is the reducer, and ``initial`` its initial values; there is a result for each value.
    """
    rank, size = values[0].type.rank, values[0].shape[along]
    ones, pads = (1,) * rank, [(0, 0)] * rank
    pads[along] = (0, size - 1) if backwards else (size - 1, 0)
    return at.graph.add("reduce_window", [*values, *initial], [value.type for value in values], {
        "window_dimensions": (*ones[:along], size, *ones[along + 1:]), "window_strides": ones,
        "base_dilations": ones, "window_dilations": ones, "padding": tuple(pads)},
        [region.renewed()], at.location).results
