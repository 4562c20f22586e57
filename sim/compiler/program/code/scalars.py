"""The map of scalar memory while a compiled program runs."""

from dataclasses import dataclass

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS

__all__ = ["ScalarMemory"]

_KERNEL_SHARE = 8
"""Scalar memory divided by the part that belongs to kernels."""

_COUNTERS, _LEVELS = 8, 4
"""Counters of loops and of transfers, at least."""
INDICES = 4
"""Indices of a slice, at least."""


@dataclass(frozen=True)
class ScalarMemory:
    """Addresses of parts of scalar memory, in words.

    Attributes
    ----------
    config : Config
        The chip.
    """

    config: Config

    @property
    def window(self) -> range:
        """Where a vector is copied so that the program reads its elements, sublane by sublane."""
        return range(self.config.sublanes * self.config.lanes)

    @property
    def kernel(self) -> range:
        """Words that a kernel uses as it likes; what is copied to the window may end here."""
        size = self._rows(max(self.config.smem_words // _KERNEL_SHARE, DESCRIPTOR_WORDS))
        return range(self.window.stop, self.window.stop + size)

    @property
    def reads(self) -> int:
        """Most vectors of which the first rows can be copied to successive rows of the window."""
        return min(self.config.sublanes, len(self.kernel) // self.config.lanes + 1)

    @property
    def to_window(self) -> int:
        """Descriptor of a transfer from a vector to the window; word 2 is the vector's address."""
        return self.kernel.stop

    @property
    def first_pair(self) -> int:
        """Descriptors that load the first segment: of its code, and of its scalar image."""
        return self.to_window + DESCRIPTOR_WORDS

    @property
    def fixed(self) -> range:
        """Rows that the start of a program loads: the descriptors above."""
        return range(self.to_window, self.to_window + self._rows(3 * DESCRIPTOR_WORDS))

    @property
    def counters(self) -> range:
        """Counters of loops within each other, the outermost first."""
        return range(self.fixed.stop, self.fixed.stop + self._rows(_COUNTERS))

    @property
    def levels(self) -> range:
        """Counters of transfers of runs within runs, the outermost first."""
        return range(self.counters.stop, self.counters.stop + self._rows(_LEVELS))

    @property
    def indices(self) -> range:
        """Indices of a slice of a value in HBM."""
        return range(self.levels.stop, self.levels.stop + self._rows(INDICES))

    @property
    def images(self) -> tuple[range, range]:
        """The images of two segments: the one that runs, and the next one."""
        lanes = self.config.lanes
        first = self.indices.stop
        size = (self.config.smem_words - first) // 2 // lanes * lanes
        return range(first, first + size), range(first + size, first + 2 * size)

    def _rows(self, words: int) -> int:
        """Words of the rows that hold so many."""
        return -(-words // self.config.lanes) * self.config.lanes
