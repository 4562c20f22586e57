"""Argument checks for use by all packages."""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["instance", "integer", "vectors"]


def integer(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Check that an argument is an integer within its bounds, and return it as an ``int``.

    Parameters
    ----------
    name : str
        The argument's name, for the error message.
    value : int or numpy integer
        The argument. A bool is not an integer here.
    low, high : int, optional
        Least and greatest value. ``high`` requires ``low``.

    Raises
    ------
    TypeError
        If ``value`` is not an integer.
    ValueError
        If ``value`` is out of bounds.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    number = int(value)
    if low is None:
        assert high is None
    elif high is None:
        if number < low:
            raise ValueError(f"{name} must be at least {low}, not {value!r}")
    elif not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value!r}")
    return number


def instance(name: str, value: object, kind: type) -> None:
    """Check that an argument is an instance of a class.

    Parameters
    ----------
    name : str
        The argument's name, for the error message.
    value : object
        The argument.
    kind : type
        The class, such as `Config`.

    Raises
    ------
    TypeError
        If ``value`` is not an instance of ``kind``.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, not {value!r}")


def vectors(name: str, value: object, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Check an array of vectors, and return the bits of its elements as contiguous uint32.

    Parameters
    ----------
    name : str
        The argument's name, for the error messages.
    value : array of float32 or uint32, shape (count, sublanes, lanes)
        The argument.
    shape : tuple of int
        Sublanes and lanes.

    Raises
    ------
    TypeError
        If ``value`` is not an array of float32 or uint32.
    ValueError
        If the shape of ``value`` is not (count, sublanes, lanes).
    """
    if not isinstance(value, np.ndarray) or value.dtype not in (np.float32, np.uint32):
        what: Any = value.dtype if isinstance(value, np.ndarray) else repr(value)
        raise TypeError(f"{name} must be an array of float32 or uint32, not {what}")
    if value.ndim != 3 or value.shape[1:] != shape:
        raise ValueError(f"{name} must have shape (count, {shape[0]}, {shape[1]}), "
                         f"not {value.shape!r}")
    return np.ascontiguousarray(value).view(np.uint32)
