"""Converts MLIR's attributes to Python values."""

import re
from typing import Any

import ml_dtypes
import numpy as np

from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.ir import DType

__all__ = ["array_of", "dimensions", "enum_name", "pairs", "python", "strings"]

_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")


def python(attribute: Any) -> Any:
    """Convert an MLIR attribute to an integer, a bool, a string, or a tuple of these."""
    from jaxlib.mlir import ir

    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.DenseBoolArrayAttr):
        return tuple(bool(item) for item in attribute)
    if isinstance(attribute, ir.DenseI64ArrayAttr | ir.DenseI32ArrayAttr):
        return tuple(int(item) for item in attribute)
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(python(item) for item in attribute)
    if isinstance(attribute, ir.DenseIntElementsAttr):
        return tuple(np.array(attribute).reshape(-1).tolist())
    if isinstance(attribute, ir.FlatSymbolRefAttr | ir.StringAttr):
        return str(attribute.value)
    return str(attribute)


def pairs(attribute: Any) -> tuple[tuple[int, int], ...]:
    """Convert a padding attribute to a tuple with one (low, high) for each dimension."""
    return tuple((int(low), int(high)) for low, high in np.array(attribute).reshape(-1, 2))


def enum_name(attribute: Any) -> str:
    """Return the name in an enum's attribute: LT for ``#stablehlo<comparison_direction LT>``."""
    return str(attribute).rstrip(">").split()[-1]


def strings(attribute: Any) -> tuple[str, ...]:
    """Return the names in an array of enums, each without the dialect and the enum's type."""
    return tuple(enum_name(item) for item in attribute)


def dimensions(numbers: Any, *names: str) -> dict[str, Any]:
    """Return the fields ``names`` of a struct of dimension numbers; lists become tuples."""
    found = {name: getattr(numbers, name) for name in names}
    return {name: value if isinstance(value, int) else tuple(value)
            for name, value in found.items()}


def array_of(attribute: Any, shape: tuple[int, ...], dtype: DType) -> Array:
    """Convert the attribute of a constant to an array of type ``dtype`` and shape ``shape``.

    If all elements are equal, the array takes the memory of only one element.

    Raises
    ------
    ValueError
        If the attribute's elements do not fill ``shape``.
    """
    kind = array_dtype(dtype)
    if attribute.is_splat:
        value: Any = attribute.get_splat_value().value
        return np.broadcast_to(np.asarray(value).astype(kind), shape)
    if dtype is not DType.BF16:
        return np.asarray(np.array(attribute), kind).reshape(shape)
    # The bindings do not convert bf16: read the text, which is exact.
    text = str(attribute)
    text = text[:text.rindex(" : ")]
    packed = re.fullmatch(r'dense<"0x([0-9A-Fa-f]*)">', text)
    if packed:
        return np.frombuffer(bytes.fromhex(packed[1]), kind).reshape(shape)
    values = [_bf16(word) for word in _NUMBER.findall(text)]
    return np.array(values, ml_dtypes.bfloat16).reshape(shape)


def _bf16(word: str) -> Any:
    if word.startswith("0x"):
        return np.array(int(word, 16), np.uint16).view(ml_dtypes.bfloat16)
    return float(word)
