"""Checks of arguments that several modules share."""

import operator
from typing import SupportsIndex

__all__ = ["integer"]


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
