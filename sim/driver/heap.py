"""The allocator of a device's HBM."""

from dataclasses import dataclass

from hdl.checks import instance

__all__ = ["Buffer", "Heap"]


@dataclass(eq=False)
class Buffer:
    """A contiguous part of HBM, from `Device.allocate`.

    Attributes
    ----------
    address : int
        Byte address of the first byte; a multiple of ``config.row_bytes``.
    size : int
        Size in bytes, as requested.
    """

    address: int
    size: int


class Heap:
    """Allocator of the rows of HBM: each buffer takes the first free block that is large enough.

    Parameters
    ----------
    rows : int
        Number of rows.
    row_bytes : int
        Bytes of a row. Blocks consist of whole rows.
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._free = [(0, rows)]  # first row and number of each free piece, in order
        self._used: dict[Buffer, tuple[int, int]] = {}

    @property
    def free_bytes(self) -> int:
        """Total number of free bytes."""
        return sum(count for _, count in self._free) * self._row_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest free block, in bytes."""
        return max((count for _, count in self._free), default=0) * self._row_bytes

    def allocate(self, size: int) -> Buffer:
        """Allocate a block of at least ``size`` bytes.

        Raises
        ------
        MemoryError
            If no free block is large enough.
        """
        rows = -(-size // self._row_bytes)
        for index, (first, count) in enumerate(self._free):
            if count >= rows:
                self._free[index:index + 1] = [(first + rows, count - rows)] * (count > rows)
                buffer = Buffer(first * self._row_bytes, size)
                self._used[buffer] = first, rows
                return buffer
        raise MemoryError(f"a buffer needs {rows * self._row_bytes} contiguous bytes of HBM, but "
                          f"the largest free block has {self.largest_free_bytes} of "
                          f"{self.free_bytes} free bytes")

    def free(self, buffer: Buffer) -> None:
        """Free a buffer.

        Raises
        ------
        TypeError, ValueError
            If ``buffer`` is not a `Buffer`, or belongs to another heap, or was freed before.
        """
        self.check(buffer)
        pieces = sorted([*self._free, self._used.pop(buffer)])
        merged = pieces[:1]
        for first, count in pieces[1:]:
            last, length = merged[-1]
            if last + length == first:
                merged[-1] = last, length + count
            else:
                merged.append((first, count))
        self._free = merged

    def check(self, buffer: object) -> None:
        """Check that a buffer is allocated in this heap.

        Raises
        ------
        TypeError, ValueError
            If ``buffer`` is not a `Buffer`, or belongs to another heap, or was freed.
        """
        instance("buffer", buffer, Buffer)
        if buffer not in self._used:
            raise ValueError(f"buffer must be one that this device allocated and has not freed, "
                             f"not {buffer!r}")
