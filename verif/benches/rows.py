"""Rows of elements as the integers that cocotb drives and reads."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["pack_row", "unpack_row"]

_WORD_BITS = 32


def pack_row(words: NDArray[np.uint32], flag: int = 0) -> int:
    """Packs a row into a payload: lane 0 in the lowest bits, the flag above the last lane."""
    payload = int.from_bytes(words.astype("<u4").tobytes(), "little")
    return payload | flag << (_WORD_BITS * len(words))


def unpack_row(payload: int, lanes: int) -> tuple[NDArray[Any], int]:
    """Returns a payload's words, as uint32, and its flag."""
    flag = payload >> (_WORD_BITS * lanes)
    words = payload & ((1 << (_WORD_BITS * lanes)) - 1)
    return np.frombuffer(words.to_bytes(4 * lanes, "little"), "<u4"), flag
