"""Checks of arguments that several modules share."""

import operator
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from hdl.config import Config

__all__ = ["integer", "vector_words"]


def integer(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """The integer ``value``, which must be from ``low`` to ``high``.

    Raises
    ------
    TypeError, ValueError
        If it is none, or not in the range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = operator.index(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value!r}")
    return number


def vector_words(config: Config, words: object) -> npt.NDArray[np.uint32]:
    """Words for vector memory, shape (words, sublanes, lanes), contiguous and as bits.

    Raises
    ------
    TypeError, ValueError
        If they are no array of float32 or uint32, or of another shape.
    """
    shape = (config.sublanes, config.lanes)
    if not isinstance(words, np.ndarray) or words.dtype not in (np.float32, np.uint32):
        what = words.dtype if isinstance(words, np.ndarray) else repr(words)
        raise TypeError(f"words must be an array of float32 or uint32, not {what}")
    if words.ndim != 3 or words.shape[1:] != shape:
        raise ValueError(f"words must have shape (words, {shape[0]}, {shape[1]}), "
                         f"not {words.shape!r}")
    return np.ascontiguousarray(words).view(np.uint32)
