"""Which rows of a device's memory are free."""

from dataclasses import dataclass

__all__ = ["Buffer", "Heap"]


@dataclass(eq=False)
class Buffer:
    """A piece of HBM. Made by `Device.allocate`.

    Attributes
    ----------
    address : int
        In bytes, as descriptors have it; a multiple of ``config.row_bytes``.
    size : int
        In bytes, as it was asked for.
    """

    address: int
    size: int


class Heap:
    """Which rows of HBM are free.

    Parameters
    ----------
    rows : int
        How many there are.
    row_bytes : int
        Pieces are whole rows.
    """

    def __init__(self, rows: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._free = [(0, rows)]  # first row and number of each free piece, in order
        self._used: dict[Buffer, tuple[int, int]] = {}

    @property
    def free_bytes(self) -> int:
        """All that is free."""
        return sum(count for _, count in self._free) * self._row_bytes

    def allocate(self, size: int) -> Buffer:
        """The first piece that is large enough.

        Raises
        ------
        MemoryError
            If there is none.
        """
        rows = -(-size // self._row_bytes)
        for index, (first, count) in enumerate(self._free):
            if count >= rows:
                self._free[index:index + 1] = [(first + rows, count - rows)] * (count > rows)
                buffer = Buffer(first * self._row_bytes, size)
                self._used[buffer] = first, rows
                return buffer
        largest = max((count for _, count in self._free), default=0) * self._row_bytes
        raise MemoryError(f"HBM must have {rows * self._row_bytes} bytes in one piece, but only "
                          f"{largest} of {self.free_bytes} that are free are in one")

    def free(self, buffer: Buffer) -> None:
        """Gives a piece back; errors as `check`."""
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
        """Refuses what is no piece of this memory, or was given back.

        Raises
        ------
        TypeError, ValueError
        """
        if not isinstance(buffer, Buffer):
            raise TypeError(f"buffer must be a Buffer, not {buffer!r}")
        if buffer not in self._used:
            raise ValueError(f"buffer must be one that this device allocated and has not freed, "
                             f"not {buffer!r}")
