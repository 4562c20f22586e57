"""Counters of loops, in scalar memory."""

from hdl.isa import Slot
from sim.asm.operands import Scalar, s
from sim.compiler.graph.ir import Value
from sim.compiler.program.code.reserved import WORK
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.control.counted import Affine

__all__ = ["Counters", "advance"]


class Counters:
    """Words of scalar memory for the counters of loops within each other.

    Parameters
    ----------
    words : range
        Their addresses.

    Attributes
    ----------
    values : dict of Value to (int, Affine)
        Values that follow from a counter, with the counter's address.
    """

    def __init__(self, words: range) -> None:
        self._words = words
        self._taken = 0
        self.values: dict[Value, tuple[int, Affine]] = {}

    @property
    def left(self) -> int:
        """Number of words that are free."""
        return len(self._words) - self._taken

    def take(self, count: int) -> list[int]:
        """Take words; return their addresses.

        Raises
        ------
        MemoryError
            If too few are left.
        """
        if count > self.left:
            raise MemoryError("loops within each other must need at most "
                              f"{len(self._words)} counters")
        self._taken += count
        return list(self._words[self._taken - count:self._taken])

    def give(self, count: int) -> None:
        """Give back the words that were taken last."""
        self._taken -= count


def advance(stream: Stream, counter: int, register: Scalar = WORK) -> None:
    """Write code that adds 1 to a word of scalar memory; the sum stays in the register."""
    stream.bundle((Slot.S0, "load", (register, s[0], counter)))
    stream.bundle((Slot.S0, "add", (register, register, 1)))
    stream.bundle((Slot.S0, "store", (register, s[0], counter)))
