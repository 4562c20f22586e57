"""Elements as the device stores them: one 32-bit word each, whatever their type."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType

__all__ = ["from_words", "signed", "to_words", "uniform"]

Words = npt.NDArray[np.uint32]

_BF16 = array_dtype(DType.BF16)


def to_words(array: npt.NDArray[Any]) -> Words:
    """Convert the elements of a host array to words, in the array's shape.

    bf16 becomes the fp32 number of the same value; integers are extended by sign or by zeros; a
    predicate is 0 or 1.
    """
    if array.dtype == np.uint32:
        return array
    if array.dtype in (np.float32, np.int32):
        return array.view(np.uint32)
    if array.dtype == _BF16:
        return array.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return array.astype(np.int32).view(np.uint32)


def from_words(words: Words, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert words to a new array of the numpy type ``dtype``: the inverse of `to_words`.

    A float loses its low bits if it is not a bf16 number and the type is bf16. An integer that does
    not fit its type loses its high bits.
    """
    if dtype in (np.float32, np.int32, np.uint32):
        return words.copy().view(dtype)
    if dtype == _BF16:
        # If the array has no dimensions, numpy returns a scalar for the shifted words.
        return np.asarray(words >> np.uint32(16), np.uint16).view(_BF16)
    if dtype == np.bool_:
        return words.astype(np.bool_)
    return words.view(np.int32).astype(dtype)


def uniform(words: Words) -> bool:
    """Return whether all words of a non-empty array are equal."""
    return bool((words == words.reshape(-1)[0]).all())


def signed(word: int) -> int:
    """Return the low 32 bits of ``word`` as a signed integer (two's complement)."""
    return (word & 0xFFFF_FFFF ^ 1 << 31) - (1 << 31)
