"""Rewrites all convolutions as plain convolutions, for which there is a lowering rule.

A *plain* convolution has no padding, no dilation of the input, no reversal of the filter, and no
groups. Padding, dilation and reversal become copies. In a grouped convolution, each *feature group*
of the result depends on one feature group of the input. A grouped convolution becomes one
convolution for each group, or, if a group has one feature, multiplications and sums.

In a plain convolution, the sublanes hold the batch, or a spatial dimension along which the filter
has size 1. If the batch is small, a spatial dimension is *packed*. That is, the input is sliced
once for each offset of the filter along that dimension, and the slices are concatenated along the
features, which lie in the lanes. Further dimensions are packed if this reduces the number of weight
tiles (`_GAIN`).

If the result of a convolution has few spatial positions, and fewer than the filter, each position
of the result gets a product of its own. An example is the gradient of a filter.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations
from typing import Any

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, TensorType, Value
from sim.compiler.kernels.products.convolution import is_plain
from sim.compiler.passes.expand_products import finished, widened
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["expand_convolutions"]

_FULL = 0.8
"""A dimension is packed to use more of the sublanes only if less than this share is used."""
_POSITIONS = 64
"""Maximum number of spatial positions of a result that is computed by a product per position."""
_GAIN = 1.4
"""A further dimension of the window is packed (its offsets become features) if the number of weight
tiles then becomes smaller by at least this factor."""


def expand_convolutions(graph: Graph, config: Config) -> None:
    """Rewrite each ``convolution`` of a graph as operations that have lowering rules."""
    expand(graph, lambda operation, to: (
        _Convolution.of(operation, to).expanded(config)
        if operation.kind == "convolution" else None))


@dataclass(frozen=True, eq=False)
class _Convolution:
    """A convolution that is being rewritten.

    The attributes have StableHLO's names and meanings, such as ``window_strides``.
    """

    to: Expansion
    lhs: Value
    rhs: Value
    type: TensorType
    attributes: dict[str, Any]

    @classmethod
    def of(cls, operation: Operation, to: Expansion) -> "_Convolution":
        lhs, rhs = operation.operands
        return cls(to, lhs, rhs, operation.result.type, operation.attributes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.attributes[name]
        except KeyError:
            raise AttributeError(name) from None

    def changed(self, lhs: Value, rhs: Value, **attributes: Any) -> "_Convolution":
        """Return a copy with the input ``lhs``, the filter ``rhs``, and changed ``attributes``."""
        return replace(self, lhs=lhs, rhs=rhs, attributes={**self.attributes, **attributes})

    def expanded(self, config: Config) -> Value:
        """Write the convolution as operations that have lowering rules; return its result."""
        return self._without_reversal()._without_padding()._without_groups(
            lambda plain: plain._by_positions() if plain._has_few_positions
            else plain._packed(config)._written())

    def _written(self) -> Value:
        result = self.to.add("convolution", (self.lhs, self.rhs), self.type, **self.attributes)
        assert is_plain(self.to.graph.operations[-1])
        return result

    @property
    def windows(self) -> tuple[int, ...]:
        """Spatial sizes of the filter."""
        return tuple(self.rhs.shape[dimension] for dimension in self.kernel_spatial_dimensions)

    @property
    def results(self) -> tuple[int, ...]:
        """Spatial sizes of the result."""
        return tuple(self.type.shape[dimension] for dimension in self.output_spatial_dimensions)

    def _without_reversal(self) -> "_Convolution":
        reverse = self.window_reversal
        dimensions = tuple(dimension for dimension, reversed in zip(
            self.kernel_spatial_dimensions, reverse, strict=True) if reversed)
        if not dimensions:
            return self
        rhs = self.to.add("reverse", (self.rhs,), self.rhs.type, dimensions=dimensions)
        return self.changed(self.lhs, rhs, window_reversal=(False,) * len(reverse))

    def _without_padding(self) -> "_Convolution":
        """Pad and dilate the input by a ``pad`` operation; return the convolution of its result."""
        rank, count = len(self.lhs.shape), len(self.padding)
        low, high, interior = [0] * rank, [0] * rank, [0] * rank
        shape = list(self.lhs.shape)
        for dimension, pair, dilation in zip(self.input_spatial_dimensions, self.padding,
                                             self.lhs_dilation, strict=True):
            low[dimension], high[dimension] = pair
            interior[dimension] = dilation - 1
            shape[dimension] = (shape[dimension] - 1) * dilation + 1 + sum(pair)
        if not any((*low, *high, *interior)):
            return self
        dtype = self.lhs.dtype
        lhs = self.to.add("pad", (self.lhs, self.to.constant(0, dtype)),
                          TensorType(tuple(shape), dtype), edge_padding_low=tuple(low),
                          edge_padding_high=tuple(high), interior_padding=tuple(interior))
        return self.changed(lhs, self.rhs, padding=((0, 0),) * count, lhs_dilation=(1,) * count)

    def _without_groups(self, write: "Callable[[_Convolution], Value]") -> Value:
        """Write one convolution, by ``write``, for each group of features or of the batch.

        Groups of one input feature, or of one image, become multiplications and sums instead.
        Return the results of all groups, concatenated.
        """
        features, batches = self.feature_group_count, self.batch_group_count
        groups = max(features, batches)
        if groups == 1:
            return write(self)
        outputs = self.rhs.shape[self.kernel_output_feature_dimension] // groups
        along = self.input_feature_dimension if features > 1 else self.input_batch_dimension
        inputs = self.lhs.shape[along] // groups
        if features > 1 and inputs == 1:
            return self._depthwise(outputs)
        if batches > 1 and inputs == 1:
            return self._depthwise_gradient(outputs)
        shape = list(self.type.shape)
        shape[self.output_feature_dimension] = outputs
        parts = []
        for group in range(groups):
            lhs = self.to.slice(self.lhs, along, group * inputs, inputs)
            rhs = self.to.slice(self.rhs, self.kernel_output_feature_dimension, group * outputs,
                                outputs)
            part = self.changed(lhs, rhs, feature_group_count=1, batch_group_count=1)
            parts.append(write(replace(part, type=TensorType(tuple(shape), self.type.dtype))))
        return self.to.concatenate(parts, self.output_feature_dimension)

    def _window_starts(self, position: tuple[int, ...]) -> tuple[int, ...]:
        """Return the spatial indices of the input at which a result position's window starts."""
        return tuple(at * step for at, step in zip(position, self.window_strides, strict=True))

    def _shifted(self, value: Value, offsets: tuple[int, ...], counts: tuple[int, ...],
                 steps: tuple[int, ...]) -> Value:
        """Slice the spatial dimensions of the input ``value``.

        For each of them, ``offsets`` has the first index, ``counts`` the number of indices, and
        ``steps`` the distance between successive indices.
        """
        for dimension, offset, count, step in zip(self.input_spatial_dimensions, offsets, counts,
                                                  steps, strict=True):
            value = self.to.slice(value, dimension, offset, count, step)
        return value

    def _depthwise(self, outputs: int) -> Value:
        """Multiply each input feature by filters of its own; sum over filter offsets.

        ``outputs`` is the number of filters of each input feature.
        """
        to = self.to
        lhs, rhs = (widened(value, to) for value in (self.lhs, self.rhs))
        features = rhs.shape[self.kernel_output_feature_dimension]
        order = [0] * len(self.type.shape)
        for source, target in ((self.input_batch_dimension, self.output_batch_dimension),
                               (self.input_feature_dimension, self.output_feature_dimension),
                               *zip(self.input_spatial_dimensions, self.output_spatial_dimensions,
                                    strict=True)):
            order[target] = source
        total: Value | None = None
        for offset in _indexes(self.windows):
            starts = tuple(at * step for at, step in zip(offset, self.rhs_dilation, strict=True))
            rows = self._shifted(lhs, starts, self.results, self.window_strides)
            rows = self._repeated(to.transpose(rows, order), self.output_feature_dimension, outputs)
            weights = rhs
            for dimension, at in zip(self.kernel_spatial_dimensions, offset, strict=True):
                weights = to.slice(weights, dimension, at, 1)
            weights = to.broadcast(to.reshape(weights, (features,)), self.type.shape,
                                   (self.output_feature_dimension,))
            term = to.binary("multiply", rows, weights)
            total = term if total is None else to.binary("add", total, term)
        assert total is not None
        return finished(total, self.type.dtype, to)

    def _repeated(self, value: Value, along: int, times: int) -> Value:
        """Repeat each element ``times`` times in succession along dimension ``along``."""
        if times == 1:
            return value
        before, size, behind = value.shape[:along], value.shape[along], value.shape[along + 1:]
        shape = (*before, size, times, *behind)
        dimensions = [dimension for dimension in range(len(shape)) if dimension != along + 1]
        return self.to.reshape(self.to.broadcast(value, shape, dimensions),
                               (*before, size * times, *behind))

    def _depthwise_gradient(self, outputs: int) -> Value:
        """Write the convolution as multiplications and sums; each group has one image.

        Such a convolution computes the gradient of a depthwise filter. Each spatial position of its
        result is a sum of products, over the spatial positions and input features of `rhs`.
        ``outputs`` is the number of output features of a group.
        """
        to = self.to
        lhs, rhs = (widened(value, to) for value in (self.lhs, self.rhs))
        order = [0] * len(self.rhs.shape)
        for source, target in ((self.input_batch_dimension, self.kernel_output_feature_dimension),
                               (self.input_feature_dimension, self.kernel_input_feature_dimension),
                               *zip(self.input_spatial_dimensions, self.kernel_spatial_dimensions,
                                    strict=True)):
            order[target] = source
        summed = [dimension for dimension in range(len(self.rhs.shape))
                  if dimension != self.kernel_output_feature_dimension]
        shape = [1] * len(self.type.shape)
        shape[self.output_feature_dimension] = rhs.shape[self.kernel_output_feature_dimension]
        positions = {}
        for position in _indexes(self.results):
            starts = self._window_starts(position)
            rows = self._shifted(lhs, starts, self.windows, self.rhs_dilation)
            rows = self._repeated(to.transpose(rows, order), self.kernel_output_feature_dimension,
                                  outputs)
            term = to.binary("multiply", rows, rhs)
            positions[position] = to.reshape(to.sum(term, summed), shape)
        return finished(self._joined(positions), self.type.dtype, to)

    @property
    def _has_few_positions(self) -> bool:
        """Whether the result has few spatial positions, and fewer than the filter.

        A typical case is the gradient of a filter.
        """
        positions = math.prod(self.results)
        return positions < math.prod(self.windows) and positions <= _POSITIONS

    def _by_positions(self) -> Value:
        """Write one product for each spatial position of the result.

        Each product sums over the filter's positions and features.
        """
        to = self.to
        deep = (self.input_feature_dimension, *self.input_spatial_dimensions)
        filter_deep = (self.kernel_input_feature_dimension, *self.kernel_spatial_dimensions)
        # Features and positions stay in the input's order, so that only the batch moves.
        order = sorted(range(len(deep)), key=deep.__getitem__)
        batch, outputs = self.input_batch_dimension, self.kernel_output_feature_dimension
        depth = math.prod(self.rhs.shape) // self.rhs.shape[outputs]

        def flat(value: Value, dimensions: tuple[int, ...], free: int) -> Value:
            turned = to.transpose(value, [*(dimensions[number] for number in order), free])
            return to.reshape(turned, (depth, value.shape[free]))

        weights = flat(self.rhs, filter_deep, outputs)
        sizes = (self.lhs.shape[batch], self.rhs.shape[outputs])
        positions = {}
        for position in _indexes(self.results):
            starts = self._window_starts(position)
            rows = flat(self._shifted(self.lhs, starts, self.windows, self.rhs_dilation), deep,
                        batch)
            product = to.add(
                "dot_general", (rows, weights), TensorType(sizes, self.type.dtype),
                lhs_batching_dimensions=(), rhs_batching_dimensions=(),
                lhs_contracting_dimensions=(0,), rhs_contracting_dimensions=(0,),
                precision_config=self.precision_config)
            positions[position] = self._spread(product)
        return self._joined(positions)

    def _spread(self, product: Value) -> Value:
        """Reshape ``product``, shape (batch, outputs), to a result with one spatial position."""
        shape = [1] * len(self.type.shape)
        for dimension, size in zip((self.output_batch_dimension, self.output_feature_dimension),
                                   product.shape, strict=True):
            shape[dimension] = size
        if self.output_batch_dimension > self.output_feature_dimension:
            product = self.to.transpose(product, (1, 0))
        return self.to.reshape(product, shape)

    def _joined(self, positions: dict[tuple[int, ...], Value]) -> Value:
        """Concatenate the values of all spatial positions of the result.

        ``positions`` maps a position, as an index for each spatial dimension, to its value.
        """
        for level in reversed(range(len(self.results))):
            parts: dict[tuple[int, ...], list[Value]] = {}
            for position, value in positions.items():
                parts.setdefault(position[:level], []).append(value)
            along = self.output_spatial_dimensions[level]
            positions = {position: self.to.concatenate(values, along)
                         for position, values in parts.items()}
        return positions[()]

    def _packed(self, config: Config) -> "_Convolution":
        """Pack spatial dimensions until the sublanes and the array's depth are well filled."""

        def filled(size: int) -> float:
            return size / (-(-size // config.sublanes) * config.sublanes)

        batch = filled(self.type.shape[self.output_batch_dimension])
        fill = [filled(size) for size in self.results]
        free = [number for number, (window, step) in enumerate(zip(
            self.windows, self.window_strides, strict=True)) if window == step == 1]
        packed = self
        if fill and max([batch, *(fill[number] for number in free)]) < min(_FULL, max(fill)):
            packed = packed._with_packed(max(range(len(fill)), key=lambda number: (
                fill[number], number)))
        while True:
            depth = packed.lhs.shape[self.input_feature_dimension]
            gains = [(window * math.ceil(depth / config.lanes)
                      / math.ceil(window * depth / config.lanes), number)
                     for number, window in enumerate(packed.windows) if window > 1]
            if not gains or max(gains)[0] < _GAIN:
                return packed
            packed = packed._with_packed(max(gains)[1])

    def _with_packed(self, number: int) -> "_Convolution":
        """Pack spatial dimension ``number``: turn the filter's offsets along it into features.

        In the new feature dimension, the offset is the major index and the old feature the minor.
        """
        to, window = self.to, self.windows[number]
        along = self.input_spatial_dimensions[number]
        step, dilation = self.window_strides[number], self.rhs_dilation[number]
        lhs = to.concatenate(
            [to.slice(self.lhs, along, offset * dilation, self.results[number], step)
             for offset in range(window)], self.input_feature_dimension)
        inner = self.kernel_input_feature_dimension
        outer = self.kernel_spatial_dimensions[number]
        order = [dimension for dimension in range(len(self.rhs.shape)) if dimension != outer]
        order.insert(order.index(inner), outer)
        shape = list(self.rhs.shape)
        shape[inner] *= window
        shape[outer] = 1
        rhs = to.reshape(to.transpose(self.rhs, order), shape)

        def with_one(values: tuple[int, ...]) -> tuple[int, ...]:
            return (*values[:number], 1, *values[number + 1:])

        return self.changed(lhs, rhs, window_strides=with_one(self.window_strides),
                            rhs_dilation=with_one(self.rhs_dilation))


def _indexes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return combinations(*map(range, shape))
