"""Sums of large values over whole rings of chips, with all links of each chip busy.

A value is divided as in `sim.compiler.collectives.plan`: each core of a chip reduces one half of
it. If the sum does not add the values of a chip's two cores, each core reduces the whole of its own
value instead; below, this is its half. Core 0 reduces its half along X first and then along Y, core
1 the other way round. A half has two quarters, which go round the rings in opposite directions.
Along the first axis, a quarter has a segment for each chip, and along the second axis, a segment
has a block for each chip. The blocks are reduced along both axes. The totals then travel along both
axes until all chips have all of them. Functions append operations to the graph of their parameter
``at``.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, TensorType, Value
from sim.compiler.graph.torus import CORES, Torus
from sim.compiler.importer.sharding.positions import chosen, device_scalar, sent
from sim.compiler.passes.expansion import Expansion

__all__ = ["Combine", "ring_sum"]

Combine = Callable[[Value, Value], Value]
"""A function of two values of one shape, elementwise; the order of the two does not matter."""
_WAYS = 1, -1
_TILE = 8, 128
"""Sublanes and lanes of a vector of preset `v2`: parts whose two sizes are multiples of these
numbers cost fewer cycles.
"""
_MOST_PADDED = 2
"""Greatest ratio of a part's rows with padding to those without it. Padding makes the number of
rows a multiple of the number of chips times the sublanes in `_TILE`."""


def ring_sum(at: Expansion, combine: Combine, value: Value, torus: Torus, kinds: Sequence[str]
             ) -> Value | None:
    """Reduce a value over all devices of whole rings; all of them get the result.

    Parameters
    ----------
    at : Expansion
    combine : Combine
        The reduction.
    value : Value
        The value that each device contributes.
    torus : Torus
        The torus of chips.
    kinds : sequence of str
        The kinds of rings (`sim.compiler.graph.torus.RINGS`) that connect the devices; at least one
        is a ring of chips.

    Returns
    -------
    Value or None
        None if the value does not have two dimensions, or cannot be divided into equal parts.
    """
    axes = [kind for kind in kinds if kind != "core"]
    parts = len(_WAYS) * (CORES if "core" in kinds else 1)
    chips = math.prod(_side(torus, kind) for kind in axes)
    cut = _dimension(value.shape, parts, chips)
    if cut is None:
        return None
    dimension, rows = cut
    size = value.shape[dimension] // parts
    pieces = [at.slice(value, dimension, number * size, size) for number in range(parts)]
    if "core" in kinds:
        other = tuple(torus.neighbour(device, "core", 1) for device in range(torus.devices))
        near = [_of_core(at, torus, pieces[way::2]) for way in range(len(_WAYS))]
        far = [_of_core(at, torus, pieces[way::2][::-1]) for way in range(len(_WAYS))]
        came = [sent(at, piece, other) for piece in far]
        pieces = [combine(one, two) for one, two in zip(near, came, strict=True)]
    totals = _over_chips(at, combine, pieces, torus, axes, rows)
    if "core" not in kinds:
        return at.concatenate(totals, dimension)
    theirs = [sent(at, total, other) for total in totals]
    both = [*zip(totals, theirs, strict=True)]
    return at.concatenate([_of_core(at, torus, [pair[core], pair[1 - core]])
                           for core in range(CORES) for pair in both], dimension)


def _dimension(shape: tuple[int, ...], parts: int, chips: int) -> tuple[int, int] | None:
    """Choose how to divide a value into ``parts`` parts, each with a block for each of the chips.

    ``shape`` is the value's shape. Return the number of the dimension that is divided into parts,
    and the number of rows (indices of dimension 0) of a part with its padding. Return None if the
    value does not have two dimensions, or cannot be divided.
    """
    if len(shape) != 2:
        return None
    rows, columns = shape
    if rows % (parts * chips * _TILE[0]) == 0:
        return 0, rows // parts
    padded = -(-rows // (chips * _TILE[0])) * chips * _TILE[0]
    if columns % (parts * _TILE[1]) == 0 and padded <= _MOST_PADDED * rows:
        return 1, padded
    for dimension, size in ((0, rows // parts), (1, rows)):
        if shape[dimension] % parts == 0 and size % chips == 0:
            return dimension, size
    return None


def _side(torus: Torus, kind: str) -> int:
    return {"x": torus.width, "y": torus.height}[kind]


def _of_core(at: Expansion, torus: Torus, values: Sequence[Value]) -> Value:
    """Return, on a device with core number c, ``values[c]``."""
    return chosen(at, [values[torus.place(device)[0]] for device in range(torus.devices)])


def _over_chips(at: Expansion, combine: Combine, pieces: Sequence[Value], torus: Torus,
                axes: Sequence[str], rows: int) -> list[Value]:
    """Reduce a core's quarters, one for each of `_WAYS`, over the chips along ``axes``.

    ``rows`` is the number of rows of a quarter with its padding, a multiple of the number of chips.
    """
    given, columns = pieces[0].shape
    padded = [_padded(at, piece, rows) for piece in pieces]
    orders = [axes, axes[::-1]] if len(axes) == 2 else [axes]
    found = []
    for core, order in enumerate(orders):
        cores = (core,) if len(orders) > 1 else tuple(range(CORES))
        rings = [_Ring(at, torus, kind, cores) for kind in order]
        sides = [ring.size for ring in rings]
        block = rows // math.prod(sides), columns
        parts = [at.reshape(piece, (*sides, *block)) for piece in padded]
        shapes = [(*sides[number:], *block) for number in range(len(sides) + 1)]
        for ring, shape in zip(rings, shapes[1:], strict=True):
            parts = [at.reshape(part, shape) for part in ring.scattered(combine, parts)]
        for ring, shape in [*zip(rings, shapes, strict=False)][::-1]:
            parts = [at.reshape(part, shape) for part in ring.gathered(parts)]
        found.append([at.slice(at.reshape(part, (rows, columns)), 0, 0, given)
                      for part in parts])
    return [_of_core(at, torus, both) if len(orders) > 1 else both[0]
            for both in zip(*found, strict=True)]


def _padded(at: Expansion, value: Value, rows: int) -> Value:
    """Pad a value of two dimensions with zeros to ``rows`` rows."""
    if value.shape[0] == rows:
        return value
    return at.add("pad", (value, at.constant(0, value.dtype)),
                  TensorType((rows, value.shape[1]), value.dtype), edge_padding_low=(0, 0),
                  edge_padding_high=(rows - value.shape[0], 0), interior_padding=(0, 0))


class _Ring:
    """Rings of one kind, along which the cores with the numbers ``cores`` move values.

    Each method takes a value for each of `_WAYS`.

    Parameters
    ----------
    at : Expansion
    torus : Torus
        The torus of chips.
    kind : str
        One of `sim.compiler.graph.torus.RINGS`.
    cores : sequence of int
        The numbers of the cores that take part. Values of other cores are undefined.
    """

    def __init__(self, at: Expansion, torus: Torus, kind: str, cores: Sequence[int]) -> None:
        self._at = at
        self.size = _side(torus, kind)
        self._places = [torus.place(device)[1 + "xy".index(kind)]
                        for device in range(torus.devices)]
        self._sources = {way: tuple(
            torus.neighbour(device, kind, -way) if torus.place(device)[0] in cores else device
            for device in range(torus.devices)) for way in _WAYS}

    def scattered(self, combine: Combine, values: Sequence[Value]) -> list[Value]:
        """Reduce-scatter: chip n of a ring gets index n of the first dimension, reduced."""
        made = [self._own(value, way, 1) for value, way in zip(values, _WAYS, strict=True)]
        for step in range(2, self.size + 1):
            came = self._moved(made)
            made = [combine(one, self._own(value, way, step))
                    for one, value, way in zip(came, values, _WAYS, strict=True)]
        return made

    def gathered(self, parts: Sequence[Value]) -> list[Value]:
        """All-gather: the part of chip n of a ring becomes index n of the first dimension."""
        at, [shape, *_] = self._at, [(1, *part.shape) for part in parts]
        kind = TensorType((self.size, *shape[1:]), parts[0].dtype)
        made = [at.add("constant", (), kind, value=np.broadcast_to(
            np.zeros((), array_dtype(kind.dtype)), kind.shape)) for _ in parts]
        held = list(parts)
        for step in range(self.size):
            held = self._moved(held) if step else held
            made = [at.add("dynamic_update_slice", (
                whole, at.reshape(part, shape), self._index(way, step),
                *[at.constant(0, DType.S32)] * (len(shape) - 1)), kind)
                for whole, part, way in zip(made, held, _WAYS, strict=True)]
        return made

    def _moved(self, values: Sequence[Value]) -> list[Value]:
        return [sent(self._at, value, self._sources[way], way)
                for value, way in zip(values, _WAYS, strict=True)]

    def _own(self, value: Value, way: int, steps: int) -> Value:
        """Return the part of a value at one index of its first dimension.

        The index is the place in the ring that lies ``steps`` places before this chip's place, as
        seen in direction ``way``.
        """
        at, shape = self._at, (1, *value.shape[1:])
        zeros = [at.constant(0, DType.S32)] * (len(shape) - 1)
        return at.add("dynamic_slice", (value, self._index(way, steps), *zeros),
                      TensorType(shape, value.dtype), slice_sizes=shape)

    def _index(self, way: int, steps: int) -> Value:
        numbers = [(place - way * steps) % self.size for place in self._places]
        return device_scalar(self._at, numbers, DType.S32)
