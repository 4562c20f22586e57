"""Values that differ between devices, written so that devices share a program where they can.

A choice that depends only on the core's number is the operation ``by_device``: it costs nothing,
because the cores of a chip have programs of their own. Other choices depend on the chip's
position on the torus. They are operations on a ``device_constant``, the only words in which the
programs of chips differ. So the compiler plans a program once for all chips. Functions append
operations to the graph of their parameter ``at``.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, TensorType, Value
from sim.compiler.graph.torus import CORES
from sim.compiler.passes.expansion import Expansion

__all__ = ["chosen", "device_scalar", "part_of", "sent"]


def device_scalar(at: Expansion, numbers: Sequence[float], dtype: DType) -> Value:
    """Return, on device number d, the scalar ``numbers[d]`` of type ``dtype``."""
    if len(set(numbers)) == 1:
        return at.constant(numbers[0], dtype)
    if _depends_on_core(numbers):
        return _by_device(at, [at.constant(number, dtype) for number in numbers])
    return at.add("device_constant", (), TensorType((), dtype),
                  values=np.array(numbers, array_dtype(dtype)))


def part_of(at: Expansion, value: Value, starts: Sequence[tuple[int, ...]],
            shape: tuple[int, ...]) -> Value:
    """Return, on device number d, the slice of ``value`` that begins at ``starts[d]``.

    ``starts[d]`` has the first index along each dimension; ``shape`` is the shape of the slice.
    """
    if _depends_on_core(starts):
        parts = {start: _slice(at, value, start, shape) for start in dict.fromkeys(starts)}
        return _by_device(at, [parts[start] for start in starts])
    along = [device_scalar(at, numbers, DType.S32) for numbers in zip(*starts, strict=True)]
    return at.add("dynamic_slice", (value, *along), TensorType(shape, value.dtype),
                  slice_sizes=shape)


def chosen(at: Expansion, values: Sequence[Value], candidates: Sequence[Value] = ()) -> Value:
    """Return, on device number d, ``values[d]``.

    If the choice depends on the chip, all candidates are concatenated, and the device takes a part
    of the result. ``candidates`` has all of ``values``, and perhaps others, each once; by default,
    it is ``values`` without duplicates. Calls with equal ``candidates`` share the concatenation.
    """
    if _depends_on_core(values):
        return _by_device(at, values)
    distinct = list(candidates or dict.fromkeys(values))
    type, numbers = values[0].type, [distinct.index(value) for value in values]
    if len(distinct) == 2:
        return at.add("select", (device_scalar(at, numbers, DType.PRED), *distinct[::-1]), type)
    whole = at.concatenate([at.reshape(value, (1, *type.shape)) for value in distinct], 0)
    rest = [0] * len(type.shape)
    return at.reshape(part_of(at, whole, [(number, *rest) for number in numbers],
                              (1, *type.shape)), type.shape)


def sent(at: Expansion, value: Value, sources: Sequence[int], way: int = 1) -> Value:
    """Return, on device number d, the ``value`` of device number ``sources[d]``.

    ``way`` is -1 if ``sources`` moves values one step backward along rings, otherwise 1. It does
    not change the result.
    """
    operands = [value] * len(sources)
    if way == 1:
        return at.add("exchange", operands, value.type, sources=tuple(sources))
    return at.add("exchange", operands, value.type, sources=tuple(sources), way=way)


def _depends_on_core(items: Sequence[Hashable]) -> bool:
    """Return whether items of devices with the same core number, on different chips, are equal.

    ``items`` has an item for each device.
    """
    return all(len(set(items[core::CORES])) == 1 for core in range(CORES))


def _by_device(at: Expansion, values: Sequence[Value]) -> Value:
    if all(value is values[0] for value in values):
        return values[0]
    return at.add("by_device", values, values[0].type)


def _slice(at: Expansion, value: Value, start: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    if value.shape == shape:
        return value
    limits = tuple(first + size for first, size in zip(start, shape, strict=True))
    return at.add("slice", (value,), TensorType(shape, value.dtype), start_indices=start,
                  limit_indices=limits, strides=(1,) * len(shape))
