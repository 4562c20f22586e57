"""Address map of scalar memory while a compiled program runs."""

from dataclasses import dataclass

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS

__all__ = ["ScalarMemory"]

_KERNEL_SHARE = 8
"""Kernels get at least 1/8 of scalar memory for words of their own."""

_COUNTERS, _LEVELS = 8, 4
"""Minimum numbers of words for `ScalarMemory.counters` and for `ScalarMemory.levels`."""
INDICES = 4
"""Minimum number of words for `ScalarMemory.indices`."""


@dataclass(frozen=True)
class ScalarMemory:
    """Address map of scalar memory, in words.

    Attributes
    ----------
    config : Config
        The chip.
    held : int
        Number of words, right before `to_window`, that kernels must not use for now: a sum over
        the pod, whose steps run between kernels, keeps its data there.
    """

    config: Config
    held: int = 0

    @property
    def window(self) -> range:
        """Words to which a vector is copied so that its elements can be read as scalars.

        Element (sublane, lane) is word ``sublane * lanes + lane`` of the range.
        """
        return range(self.config.sublanes * self.config.lanes)

    @property
    def kernel(self) -> range:
        """Words that a kernel may use; some copies to the window overwrite them, see `reads`."""
        return range(self.window.stop, self.to_window - self.held)

    @property
    def reads(self) -> int:
        """Maximum number of vectors whose first rows can be in the window at the same time.

        The copy of vector *n* begins at row *n* of the window. A vector has as many rows as the
        window, so the last *n* rows of this copy lie after the window, in `kernel`.
        """
        return min(self.config.sublanes, len(self.kernel) // self.config.lanes + 1)

    @property
    def to_window(self) -> int:
        """Address of the descriptor that copies a vector to the window.

        Word 2 of the descriptor is the vector's address.
        """
        size = self._rows(max(self.config.smem_words // _KERNEL_SHARE, DESCRIPTOR_WORDS))
        return self.window.stop + size

    @property
    def first_pair(self) -> int:
        """Address of the pair of descriptors that loads the first segment: code, scalar image."""
        return self.to_window + DESCRIPTOR_WORDS

    @property
    def fixed(self) -> range:
        """Words that the start of a program loads, as whole rows.

        They hold the descriptors at `to_window` and `first_pair`.
        """
        return range(self.to_window, self.to_window + self._rows(3 * DESCRIPTOR_WORDS))

    @property
    def counters(self) -> range:
        """Words for the counters of nested loops, the outermost loop first."""
        first = max(self.fixed.stop, self.iterations + 1)
        size = self._rows(_COUNTERS + first - self.fixed.stop)
        return range(first, self.fixed.stop + size)

    @property
    def iterations(self) -> int:
        """Address of the word that counts complete iterations of a loop with infeed or outfeed.

        The host writes 0 before the program starts, and reads the word while the program runs.
        """
        # The rows of `fixed` usually have a word to spare; otherwise it is the first of `counters`.
        spare = self.to_window + 3 * DESCRIPTOR_WORDS
        return min(self.fixed.stop, spare)

    @property
    def levels(self) -> range:
        """Words for the counters of loops over runs (`Rows.levels`), the outermost loop first."""
        return range(self.counters.stop, self.counters.stop + self._rows(_LEVELS))

    @property
    def indices(self) -> range:
        """Words for the start indices of a slice of a value in HBM."""
        return range(self.levels.stop, self.levels.stop + self._rows(INDICES))

    @property
    def images(self) -> tuple[range, range]:
        """Words for the scalar images of two segments: the one that runs, and the next one."""
        lanes = self.config.lanes
        first = self.indices.stop
        size = (self.config.smem_words - first) // 2 // lanes * lanes
        return range(first, first + size), range(first + size, first + 2 * size)

    def _rows(self, words: int) -> int:
        """Round a number of words up to a multiple of the words of a row."""
        return -(-words // self.config.lanes) * self.config.lanes
