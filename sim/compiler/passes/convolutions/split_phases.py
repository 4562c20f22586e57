"""Splits the columns of images into phases, where this makes convolutions faster.

With *Q* phases, column *p* · *Q* + *q* of an image becomes position *p* of phase *q*. A convolution
over two dimensions becomes a ``phase_convolution`` (`sim.compiler.kernels.products.phases`) of
values whose columns are split in this way. Elementwise operations and reductions of its result are
applied to the split value, so columns are not joined between successive convolutions. Operations
that need the joined columns get a copy.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdl.config import Config
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.passes.convolutions.pair_columns import (
    Pairing,
    block_diagonal,
    for_two_columns,
    repeated_twice,
)
from sim.compiler.passes.convolutions.split_lines import (
    Order,
    as_phases,
    few_features,
    line_convolution,
    pooled,
    pooled_phases,
)
from sim.compiler.passes.expansion import Expansion, expand
from sim.compiler.tiling import standard

__all__ = ["split_phases"]

_FULL = 0.75
"""If one number of positions per phase suits all convolutions and fills at least this share of the
sublanes, all of them use it."""
_LEAST = 0.6
"""Least share of the sublanes that the positions of a phase must fill, unless a phase holds a whole
line."""

_ROOM = 0.5
"""A convolution that needs more than this share of vector memory is computed image by image."""
_SHARE = 0.4
"""A filter that takes at least this share of vector memory is multiplied line by line."""
_OFFSETS = 9
"""Columns are split only if the filter's number of offsets is at most this number, or at most the
number of spatial positions of the result."""


def split_phases(graph: Graph, config: Config) -> None:
    """Split the columns of a graph's convolutions into phases, where that makes them faster."""
    shapes = [shape for operation in graph.walk() if (shape := _Shape.of(operation)) is not None]
    common = _positions(math.gcd(*(shape.results for shape in shapes)), config.sublanes)
    splitter = _Splitter(config, common if common >= _FULL * config.sublanes else None,
                         Pairing(graph, config))
    expand(graph, splitter.rule)
    if splitter.has_parts:
        _order_by_use(graph)


def _order_by_use(graph: Graph) -> None:
    """Move each operation right before the first one that needs it.

    All operations on one image then come before those on the next image.
    """
    producers, users = graph.producers(), graph.users()
    done: set[Operation] = set()
    ordered: list[Operation] = []
    stack = [producers[value] for value in reversed(graph.outputs) if value in producers]
    while stack:
        operation = stack[-1]
        waiting = [producers[value] for value in operation.operands
                   if value in producers and producers[value] not in done]
        if waiting and operation not in done:
            stack.extend(reversed(waiting))
            continue
        stack.pop()
        # All slices of a value are computed together, so that it need not stay in vector memory.
        for each in [operation] if operation.kind != "slice" else [
                operation, *(user for user in users[operation.operands[0]]
                             if user.kind == "slice")]:
            if each not in done:
                done.add(each)
                ordered.append(each)
    graph.operations = ordered


def _positions(columns: int, most: int) -> int:
    """Return the largest divisor of ``columns`` that is at most ``most``."""
    return max((n for n in range(1, most + 1) if columns % n == 0), default=1)


@dataclass(frozen=True)
class _Shape:
    """Geometry of a convolution whose columns can be split.

    Attributes
    ----------
    attributes : dict
        Attributes of the convolution.
    inputs, results : int
        Number of columns of the input and of the result.
    """

    attributes: dict[str, Any]
    inputs: int
    results: int

    @classmethod
    def of(cls, operation: Operation) -> "_Shape | None":
        """Return an operation's geometry; None unless it is a convolution that can be split."""
        if operation.kind != "convolution":
            return None
        a, (lhs, rhs) = operation.attributes, operation.operands
        if (len(a["window_strides"]) != 2 or a["feature_group_count"] * a["batch_group_count"] != 1
                or not (lhs.dtype.is_float and rhs.dtype.is_float)
                or not operation.result.type.size or not lhs.type.size):
            return None
        sizes = [operation.result.shape[i] for i in a["output_spatial_dimensions"]]
        windows = [rhs.shape[i] for i in a["kernel_spatial_dimensions"]]
        strides, dilations = a["window_strides"], a["lhs_dilation"]
        if math.prod(windows) > max(math.prod(sizes), _OFFSETS) or any(
                step > 1 and dilation > 1 for step, dilation in zip(strides, dilations,
                                                                    strict=True)):
            return None
        columns = lhs.shape[a["input_spatial_dimensions"][1]]
        if columns * dilations[1] != sizes[1] * strides[1]:
            return None
        return cls(a, columns, sizes[1])

    @property
    def takes(self) -> Order:
        """Positions of four dimensions in the input's shape: lines, images, columns, features."""
        a = self.attributes
        lines, columns = a["input_spatial_dimensions"]
        return lines, a["input_batch_dimension"], columns, a["input_feature_dimension"]

    @property
    def makes(self) -> Order:
        """Positions of four dimensions in the result's shape: lines, images, columns, features."""
        a = self.attributes
        lines, columns = a["output_spatial_dimensions"]
        return lines, a["output_batch_dimension"], columns, a["output_feature_dimension"]


@dataclass(frozen=True)
class _Split:
    """A value with columns split into phases.

    Attributes
    ----------
    parts : tuple of Value
        One value of shape (lines, images, phases, positions, features), or one such value for each
        image.
    order : Order
        Numbers that the dimensions had before the columns were split.
    """

    parts: tuple[Value, ...]
    order: Order

    @property
    def form(self) -> tuple[Order, int]:
        """`order` and the number of phases.

        An elementwise operation on split values first converts its operands to equal forms.
        """
        return self.order, self.parts[0].shape[2]


@dataclass(frozen=True)
class _Lines:
    """A value with columns along the lanes, sorted by phase.

    Attributes
    ----------
    value : Value
        Shape (lines, images, features, phases * sublanes).
    order : Order
        Numbers that the dimensions had before the value was converted to this layout.
    positions : int
        Number of columns in each phase; further lanes of a phase are padding.
    """

    value: Value
    order: Order
    positions: int


def _pair(type: TensorType) -> TensorType:
    """Return the type of a split value after pairing: a row has the features of two columns."""
    lines, images, phases, positions, features = type.shape
    return TensorType((lines, images, phases // 2, positions, 2 * features), type.dtype)


class _Splitter:
    """Splits columns of values into phases, and remembers the split form of each value."""

    def __init__(self, config: Config, positions: int | None, pairing: Pairing) -> None:
        self._config = config
        self._pairing = pairing
        # For each value in paired columns, its parts: rows hold the features of two columns.
        self._pairs: dict[Value, tuple[Value, ...]] = {}
        self._sublanes = config.sublanes
        self._common = positions
        self._splits: dict[Value, _Split] = {}
        self._lines: dict[Value, _Lines] = {}
        self._wholes: dict[tuple[Value, ...], Value] = {}
        self.has_parts = False
        """Whether values have been split into separate images."""

    def rule(self, operation: Operation, to: Expansion) -> Value | None:
        """Return the value that replaces an operation's result; None to keep the operation."""
        if operation.kind == "convolution":
            return self._convolution(operation, to)
        if operation.kind in ELEMENTWISE:
            return self._elementwise(operation, to)
        if operation.kind == "reduce":
            return self._reduce(operation, to)
        if operation.kind == "reduce_window":
            return self._reduce_window(operation, to)
        return None

    def _convolution(self, operation: Operation, to: Expansion) -> Value | None:
        shape, (lhs, rhs) = _Shape.of(operation), operation.operands
        if shape is None:
            return None
        positions = self._common or _positions(shape.results, self._sublanes)
        columns = shape.results
        if columns % positions == 0 and few_features(operation, shape.takes, positions,
                                                     self._config):
            return self._from_lines(_Lines(line_convolution(
                operation, shape.takes, positions, self._config, to), shape.makes, positions), to)
        if not self._gains(lhs.shape[shape.takes[1]], lhs.shape[shape.takes[3]], positions,
                           columns):
            return None
        phases = shape.inputs // positions
        if shape.inputs % positions or phases * shape.attributes["lhs_dilation"][1] % (
                shape.attributes["window_strides"][1]):
            return None
        wanted = tuple(operation.result.shape[dimension] for dimension in shape.makes)
        names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal",
                 "kernel_input_feature_dimension", "kernel_output_feature_dimension",
                 "kernel_spatial_dimensions", "precision_config")
        attributes = {name: shape.attributes[name] for name in names} | {"columns": 1}
        producer = to.producers.get(rhs)
        if producer is not None and producer.kind == "reverse" and (
                set(producer.attributes["dimensions"]) <= set(
                    attributes["kernel_spatial_dimensions"])):
            # In a gradient, a `reverse` precedes: let the convolution reverse the filter instead.
            [rhs] = producer.operands
            attributes["window_reversal"] = tuple(
                reversal != (dimension in producer.attributes["dimensions"])
                for reversal, dimension in zip(attributes["window_reversal"],
                                               attributes["kernel_spatial_dimensions"],
                                               strict=True))
        type = TensorType((*wanted[:2], columns // positions, positions, wanted[3]),
                          operation.result.dtype)
        count = wanted[1] if self._is_large(lhs, rhs, type, attributes) else 1
        type = TensorType((type.shape[0], wanted[1] // count, *type.shape[2:]), type.dtype)
        if operation.result in self._pairing.made and type.shape[2] % 2 == 0:
            filters, changed = for_two_columns(rhs, attributes, to)
            return self._paired([to.add(
                "phase_convolution", (rows, filters), _pair(type), **attributes | changed)
                for rows in self._split(lhs, shape.takes, phases, count, to)], shape.makes, to)
        if (lhs in self._pairs and self._splits[lhs].order == shape.takes
                and self._pairing.takes_pairs(operation)):
            filters, changed = block_diagonal(rhs, attributes, to)
            return self._merged(_Split(tuple(to.add(
                "phase_convolution", (rows, filters), type, **attributes | changed)
                for rows in self._images(self._pairs[lhs], count, to)), shape.makes), to)
        parts = self._filter_parts(rhs, type, attributes, to)
        results = [to.total([to.add("phase_convolution", (rows, filters), type,
                                    **attributes | changed) for filters, changed in parts])
                   for rows in self._split(lhs, shape.takes, phases, count, to)]
        return self._merged(_Split(tuple(results), shape.makes), to)

    def _filter_parts(self, filters: Value, type: TensorType, attributes: dict[str, Any],
                      to: Expansion) -> list[tuple[Value, dict[str, Any]]]:
        """Return a convolution's filter, or its lines if the filter fills much of vector memory.

        A line is then a filter of its own, so it is read from HBM while the previous line
        is multiplied. Each filter comes with the attributes of the convolution that change with it.
        ``type`` is the type of the result, and ``attributes`` are those of the convolution.
        """
        spatial, config = attributes["kernel_spatial_dimensions"], self._config
        along, size = spatial[0], filters.shape[spatial[0]]
        if (size == 1 or along != 0 or attributes["window_reversal"][0]
                or type.dtype is not DType.F32 or filters in to.producers
                or standard(filters.shape, config).vectors < _SHARE * config.vmem_vectors):
            return [(filters, {})]
        (low, high), columns = attributes["padding"]
        step, found = attributes["rhs_dilation"][0], []
        for line in range(size):
            pads = low - line * step, high - (size - 1 - line) * step
            found.append((to.slice(filters, along, line, 1), {"padding": (pads, columns)}))
        return found

    def _is_large(self, lhs: Value, rhs: Value, type: TensorType, attributes: dict[str, Any]
                  ) -> bool:
        """Return whether a convolution of all images needs more than `_ROOM` of vector memory.

        ``lhs`` is the input, ``rhs`` the filter, ``type`` the type of the result split into phases,
        and ``attributes`` are those of the convolution.
        """
        def vectors(elements: int, features: int, positions: int) -> int:
            return elements // features // positions * -(-features // self._config.lanes)

        positions = type.shape[3]
        features = rhs.shape[attributes["kernel_input_feature_dimension"]]
        height, width = (rhs.shape[i] for i in attributes["kernel_spatial_dimensions"])
        result = vectors(type.size, type.shape[4], positions)
        copied = vectors(type.size // type.shape[4] * features, features, positions) * width * (
            height if attributes["window_strides"][0] > 1 else 1)
        if width == 1 and attributes["window_strides"] == (1, 1):
            copied = 0
        elif features < self._config.lanes:
            copied = -(-copied * features // self._config.lanes)
        total = vectors(lhs.type.size, features, positions) + result + copied
        return total > self._config.vmem_vectors * _ROOM

    def _gains(self, images: int, features: int, positions: int, columns: int) -> bool:
        """Return whether a split into phases pays off for a convolution.

        The input has ``images`` images and ``features`` features; a phase of the result has
        ``positions`` positions, and a line ``columns`` columns. Before the split, the images lie in
        the sublanes; after it, the positions of a phase. The split pays off if there are at least
        as many features as sublanes, and the positions fill the sublanes at least as well as the
        images did. The positions must also fill at least `_LEAST` of the sublanes, unless a phase
        holds a whole line.
        """
        def filled(size: int) -> float:
            return size / (-(-size // self._sublanes) * self._sublanes)

        if features < self._sublanes or filled(images) > filled(positions):
            return False
        return filled(positions) >= _LEAST or positions == columns

    def _elementwise(self, operation: Operation, to: Expansion) -> Value | None:
        lines = [self._lines[value] for value in operation.operands if value in self._lines]
        if lines:
            form = lines[0]
            operands = [found for value in operation.operands
                        if (found := self._as_lines(value, form, to)) is not None]
            if len(operands) == len(operation.operands):
                result = to.add(operation.kind, operands,
                                TensorType(form.value.shape, operation.result.dtype), (),
                                **operation.attributes)
                return self._from_lines(_Lines(result, form.order, form.positions), to)
        pairs = self._elementwise_pairs(operation, to)
        if pairs is not None:
            return pairs
        splits = [self._splits[value] for value in operation.operands if value in self._splits]
        if not splits:
            return None
        order, phases = splits[0].form
        parts = min((split.parts for split in splits), key=len)
        sources = [(value,) * len(parts) if not value.shape
                   else self._split(value, order, phases, len(parts), to)
                   for value in operation.operands]
        shape = (*parts[0].shape[:2], phases, operation.result.shape[order[2]] // phases,
                 parts[0].shape[4])
        results = [to.add(operation.kind, part, TensorType(shape, operation.result.dtype), (),
                          **operation.attributes) for part in zip(*sources, strict=True)]
        return self._merged(_Split(tuple(results), order), to)

    def _elementwise_pairs(self, operation: Operation, to: Expansion) -> Value | None:
        """Apply an elementwise operation to paired columns; None if an operand cannot be paired."""
        paired = [value for value in operation.operands if value in self._pairs]
        if not paired:
            return None
        order, parts = self._splits[paired[0]].order, self._pairs[paired[0]]
        sources: list[tuple[Value, ...]] = []
        for value in operation.operands:
            if value in self._pairs:
                sources.append(self._pairs[value])
            elif not value.shape:
                sources.append((value,) * len(parts))
            else:
                half = (*parts[0].shape[:4], parts[0].shape[4] // 2)
                repeated = self._repeated(value, order, half, 2, to)
                if repeated is None:
                    return None
                sources.append((repeated_twice(repeated, to),) * len(parts))
        type = TensorType(parts[0].shape, operation.result.dtype)
        return self._paired([to.add(operation.kind, part, type, (), **operation.attributes)
                             for part in zip(*sources, strict=True)], order, to)

    def _paired(self, parts: list[Value], order: Order, to: Expansion) -> Value:
        """Record the paired form of a value; write the value in its original layout, and return it.

        ``parts`` are the value's parts in paired columns: one part, or one for each image.
        ``order`` are the numbers of the value's dimensions in the original layout.
        """
        split = []
        for part in parts:
            lines, images, phases, positions, features = part.shape
            turned = to.transpose(to.reshape(
                part, (lines, images, phases, positions, 2, features // 2)), (0, 1, 2, 4, 3, 5))
            split.append(to.reshape(
                turned, (lines, images, 2 * phases, positions, features // 2)))
        value = self._merged(_Split(tuple(split), order), to)
        self._pairs[value] = tuple(parts)
        return value

    def _reduce(self, operation: Operation, to: Expansion) -> Value | None:
        """Apply a reduction over columns to a value that is split into phases.

        Return the result in its original layout; None if the operation must be kept.
        """
        split = self._splits.get(operation.operands[0])
        dimensions = operation.attributes["dimensions"]
        if split is None or len(operation.operands) != 2 or split.order[2] not in dimensions:
            return None
        new = (0, 1, (2, 3), 4)
        kept = [number for number in (0, 1, 3) if split.order[number] not in dimensions]
        reduced = [dimension for number in range(4) if number not in kept
                   for dimension in np.atleast_1d(new[number]).tolist()]
        whole = self._whole(split, to)
        shape = tuple(whole.shape[4 if number == 3 else number] for number in kept)
        result = to.add("reduce", (whole, operation.operands[1]),
                        TensorType(shape, operation.result.dtype), operation.regions,
                        dimensions=tuple(reduced))
        # The remaining dimensions, in their original order.
        was = [split.order[number] for number in kept]
        return to.transpose(result, sorted(range(len(was)), key=was.__getitem__))

    def _reduce_window(self, operation: Operation, to: Expansion) -> Value | None:
        """Apply a ``reduce_window`` over lines and columns to a value that is split into phases.

        Return the result in its original layout; None if the operation must be kept.
        """
        a, operand = operation.attributes, operation.operands[0]
        if len(operation.operands) != 2 or operand not in self._splits or any(
                step > 1 for step in (*a["base_dilations"], *a["window_dilations"])):
            return None
        split, lines = self._splits[operand], self._lines.get(operand)
        height, images, width, features = split.order
        if any((a["window_dimensions"][number], a["padding"][number]) != (1, (0, 0))
               or a["window_strides"][number] > 1 for number in (images, features)):
            return None
        if lines is not None:
            value = as_phases(pooled(operation, lines.value, 0, height, to), lines.positions,
                              self._sublanes, to)
        else:
            value = pooled(operation, self._whole(split, to), 0, height, to)
        result = pooled_phases(operation, value, width, to)
        return None if result is None else self._merged(_Split((result,), split.order), to)

    # Splitting and joining values.

    def _from_lines(self, lines: _Lines, to: Expansion) -> Value:
        """Record ``lines``, a form of a value; write and return the value's original form."""
        rows = as_phases(lines.value, lines.positions, self._sublanes, to)
        value = self._merged(_Split((rows,), lines.order), to)
        self._lines[value] = lines
        return value

    def _as_lines(self, value: Value, form: _Lines, to: Expansion) -> Value | None:
        """Return ``value`` in the layout of ``form``; None if that takes a copy of elements."""
        known = self._lines.get(value)
        if not value.shape:
            return value
        if known is None:
            height, images, _, features = form.order
            columns = form.order[2]
            return self._repeated(value, (height, images, features, columns), form.value.shape, 3,
                                  to)
        same = (known.order, known.positions, known.value.shape) == (
            form.order, form.positions, form.value.shape)
        return known.value if same else None

    def _whole(self, split: _Split, to: Expansion) -> Value:
        """Join the images of a split value; its columns remain split into phases."""
        if split.parts not in self._wholes:
            self._wholes[split.parts] = to.concatenate(split.parts, 1)
        return self._wholes[split.parts]

    def _split(self, value: Value, order: Order, phases: int, count: int, to: Expansion
               ) -> tuple[Value, ...]:
        """Split the columns of a value into ``phases`` phases; return the parts of the result.

        ``order`` has the value's dimensions. ``count`` is the number of parts: 1 for a part with
        all images, or the number of images for a part of each image.
        """
        known = self._splits.get(value)
        if known is not None and known.form == (order, phases):
            if len(known.parts) == count:
                return known.parts
            whole = self._whole(known, to)
        else:
            lines, images, columns, features = (value.shape[dimension] for dimension in order)
            shape = (lines, images // count, phases, columns // phases, features)
            repeated = self._repeated(value, order, shape, 2, to)
            if repeated is not None:
                return (repeated,) * count
            flat = to.reshape(to.transpose(value, order),
                              (lines, images, columns // phases, phases, features))
            whole = to.transpose(flat, (0, 1, 3, 2, 4))
        return self._images((whole,), count, to)

    def _images(self, parts: tuple[Value, ...], count: int, to: Expansion) -> tuple[Value, ...]:
        """Divide the images of ``parts`` anew, into ``count`` parts.

        ``count`` is 1 or the number of images.
        """
        if len(parts) == count:
            return parts
        whole = to.concatenate(parts, 1)
        if count == 1:
            return (whole,)
        self.has_parts = True
        return tuple(to.slice(whole, 1, number, 1) for number in range(count))

    @staticmethod
    def _repeated(value: Value, order: Order, shape: tuple[int, ...], columns: int,
                  to: Expansion) -> Value | None:
        """Write ``value`` in another layout, if it is a splat, or a broadcast with equal columns.

        Return None for any other value. If ``shape`` has four dimensions, dimension ``order[n]`` of
        the value becomes dimension n of ``shape``. The image columns are dimension n = ``columns``.
        If ``shape`` has five dimensions, the image columns become the dimensions ``columns`` and
        ``columns + 1``, and dimensions with a greater n become dimension n + 1.
        """
        producer = to.producers.get(value)
        if producer is not None and producer.kind == "constant":
            array = np.asarray(producer.attributes["value"])
            if array.size and (array == array.flat[0]).all():
                return to.broadcast(to.constant(array.flat[0], value.dtype), shape, ())
        if producer is None or producer.kind != "broadcast_in_dim":
            return None
        [source] = producer.operands
        targets = [order.index(i) for i in producer.attributes["broadcast_dimensions"]]
        if columns in targets or any(
                size not in (1, shape[target + (len(shape) - 4) * (target > columns)])
                for target, size in zip(targets, source.shape, strict=True)):
            return None
        targets = [target + len(shape) - 4 if target > columns else target for target in targets]
        if targets != sorted(targets):
            return None
        return to.broadcast(source, shape, targets)

    def _merged(self, split: _Split, to: Expansion) -> Value:
        """Return a split value in its original layout; record the split form of the result."""
        whole = self._whole(split, to)
        lines, images, phases, positions, features = whole.shape
        flat = to.reshape(to.transpose(whole, (0, 1, 3, 2, 4)),
                          (lines, images, phases * positions, features))
        value = to.transpose(flat, sorted(range(4), key=split.order.__getitem__))
        self._splits[value] = split
        return value
