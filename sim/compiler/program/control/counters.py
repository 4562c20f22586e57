"""Loop counters in scalar memory."""

from hdl.isa import Slot
from sim.asm.operands import Scalar, s
from sim.compiler.graph.counted import Affine
from sim.compiler.graph.ir import Value
from sim.compiler.program.code.reserved import WORK
from sim.compiler.program.code.stream import Stream

__all__ = ["Counters", "advance"]


class Counters:
    """Allocates words of scalar memory for the counters of nested loops, as a stack.

    Parameters
    ----------
    words : range
        Addresses of the words.

    Attributes
    ----------
    values : dict of Value to (int, Affine)
        For each value that is an affine function of a counter, the counter's address and the
        function.
    """

    def __init__(self, words: range) -> None:
        self._words = words
        self._taken = 0
        self.values: dict[Value, tuple[int, Affine]] = {}

    @property
    def left(self) -> int:
        """Number of free words."""
        return len(self._words) - self._taken

    def take(self, count: int) -> list[int]:
        """Allocate ``count`` words; return their addresses.

        Raises
        ------
        MemoryError
            If fewer than ``count`` words are free.
        """
        if count > self.left:
            raise MemoryError("nested loops must use at most "
                              f"{len(self._words)} counters in scalar memory: nest fewer loops")
        self._taken += count
        return list(self._words[self._taken - count:self._taken])

    def give(self, count: int) -> None:
        """Free the ``count`` words that were allocated last."""
        self._taken -= count


def advance(stream: Stream, counter: int, register: Scalar = WORK) -> None:
    """Write code that adds 1 to the word of scalar memory at ``counter``.

    Afterwards ``register`` holds the sum, too.
    """
    stream.bundle((Slot.S0, "load", (register, s[0], counter)))
    stream.bundle((Slot.S0, "add", (register, register, 1)))
    stream.bundle((Slot.S0, "store", (register, s[0], counter)))
