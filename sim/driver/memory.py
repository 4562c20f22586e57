"""The device's memories and registers: buffers in HBM, and memories and registers of each core."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl import checks
from hdl.config import Config
from hdl.isa import SCALAR_REGISTERS
from sim.driver.heap import Buffer, Heap
from sim.driver.session import Session
from sim.models.chip import staging_rows

__all__ = ["Memory"]

Words = npt.NDArray[np.uint32]


class Memory(Session):
    """Part of `Device`: allocates and copies buffers, reads and writes the cores' memories."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # The last rows are staging rows, through which programs and vectors are transferred.
        self._heap = Heap(config.hbm_rows - staging_rows(config), config.row_bytes)

    # ---- HBM

    @property
    def free_bytes(self) -> int:
        """Number of free bytes of HBM, which need not be contiguous.

        Initially, all rows of HBM are free except the staging rows: its last 1,024 rows, but at
        most a quarter of HBM. They take 16 KiB of 1 MiB at `tiny`, 32 KiB of 16 MiB at `small`,
        512 KiB of 4 GiB at `v2`. The device uses the staging rows to load programs and to read and
        write vector memory, even while other cores run.

        Raises
        ------
        RuntimeError
            If the device is closed.
        """
        with self._open():
            return self._heap.free_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Largest number of bytes that a buffer allocated now could have.

        Raises
        ------
        RuntimeError
            If the device is closed.
        """
        with self._open():
            return self._heap.largest_free_bytes

    def allocate(self, size: int) -> Buffer:
        """Allocate a buffer in HBM. Its contents are undefined.

        Parameters
        ----------
        size : int
            Size in bytes, 1 or more. The buffer begins at a multiple of ``config.row_bytes``, and
            no other buffer uses the rest of its last row.

        Raises
        ------
        TypeError, ValueError
            If the size is not an integer, or not positive.
        MemoryError
            If no free part of HBM is large enough; the message says how much is free.
        RuntimeError
            If the device is closed.
        """
        with self._open():
            return self._heap.allocate(checks.integer("size", size, 1, 1 << 62))

    def free(self, buffer: Buffer) -> None:
        """Free a buffer. Afterwards neither programs nor the host may use it.

        Raises
        ------
        TypeError, ValueError
            If ``buffer`` is not a buffer of this device, or was freed before.
        RuntimeError
            If the device is closed.
        """
        with self._open():
            self._heap.free(buffer)

    def copy_in(self, buffer: Buffer, array: npt.NDArray[Any], offset: int = 0) -> None:
        """Write the elements of an array, in C order, to a buffer from byte ``offset`` on.

        Raises
        ------
        TypeError, ValueError
            If ``array`` is not a numpy array of numbers, or does not fit in the buffer; if
            ``buffer`` is not a buffer of this device.
        RuntimeError
            If the device is closed.
        """
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"array must be a numpy array of numbers, not {array!r}")
        with self._open() as backend:
            at, count, place = self._bytes(buffer, offset, array.nbytes)
            whole = place == slice(0, count * self._config.row_bytes)
            with backend.write_hbm(at, count, keep=not whole) as rows:
                rows.reshape(-1).view(np.uint8)[place] = np.ascontiguousarray(array).reshape(
                    -1).view(np.uint8)

    def copy_out(self, buffer: Buffer, dtype: npt.DTypeLike, shape: int | tuple[int, ...],
                 offset: int = 0) -> npt.NDArray[Any]:
        """Read an array from a buffer, from byte ``offset`` on.

        Parameters
        ----------
        buffer : Buffer
            The buffer to read.
        dtype : dtype of numbers
            Type of the array's elements.
        shape : int or tuple of int
            Shape of the array.
        offset : int
            Offset in bytes of the array from the beginning of the buffer.

        Raises
        ------
        TypeError, ValueError
            If ``dtype`` is not a type of numbers, ``shape`` is not a shape, or the array does not
            lie within the buffer; if ``buffer`` is not a buffer of this device.
        RuntimeError
            If the device is closed.
        """
        kind, sizes = _dtype(dtype), _shape(shape)
        with self._open() as backend:
            at, count, place = self._bytes(buffer, offset, math.prod(sizes) * kind.itemsize)
            result: npt.NDArray[Any] = np.empty(sizes, kind)
            result.reshape(-1).view(np.uint8)[:] = backend.read_hbm(at, count).reshape(-1).view(
                np.uint8)[place]
        return result

    def _bytes(self, buffer: Buffer, offset: int, size: int) -> tuple[int, int, slice]:
        """Locate ``size`` bytes of a buffer, from byte ``offset`` on.

        Return the first row of HBM, the number of rows, and the range of the bytes in these rows.
        """
        self._heap.check(buffer)
        first = checks.integer("offset", offset, 0, buffer.size)
        if first + size > buffer.size:
            raise ValueError(f"array must lie within the buffer's {buffer.size} bytes, not take "
                             f"{size} bytes from byte {first} on")
        at, begin = divmod(buffer.address + first, self._config.row_bytes)
        return at, -(-(begin + size) // self._config.row_bytes), slice(begin, begin + size)

    # ---- Memories and registers of a core

    def read_smem(self, core: int, at: int, count: int) -> Words:
        """Read ``count`` words of a core's scalar memory from address ``at`` on.

        The core may be running.

        Raises
        ------
        TypeError, ValueError
            If there is no such core, or the words do not lie within its scalar memory.
        RuntimeError
            If the device is closed.
        """
        with self._open() as backend:
            first = self._first("words", "scalar memory", self._config.smem_words, at, count)
            return backend.read_smem(self._core(core), first, count)

    def write_smem(self, core: int, at: int, words: npt.ArrayLike) -> None:
        """Write words to a core's scalar memory from address ``at`` on.

        The core may be running. Errors as `read_smem`.
        """
        given = _words(words)
        with self._open() as backend:
            first = self._first("words", "scalar memory", self._config.smem_words, at, len(given))
            backend.write_smem(self._core(core), first, given)

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        """Read ``count`` vectors of a core's vector memory, from address ``at`` on.

        A transfer moves them; the host may start it even while the core is running.

        Returns
        -------
        array of uint32, shape (count, sublanes, lanes)
            The elements as words; ``.view(np.float32)`` reads them as fp32 numbers.

        Raises
        ------
        TypeError, ValueError
            If there is no such core, or the vectors do not lie within its vector memory.
        RuntimeError
            If the transfer fails, or the device is closed.
        """
        with self._open() as backend:
            first = self._first("vectors", "vector memory", self._config.vmem_vectors, at, count)
            return backend.read_vmem(self._core(core), first, count)

    def write_vmem(self, core: int, at: int, vectors: npt.NDArray[Any]) -> None:
        """Write vectors to a core's vector memory from address ``at`` on, by a transfer.

        Errors are those of `read_vmem`.

        Parameters
        ----------
        core : int
            Number of the core.
        at : int
            Address of the first vector.
        vectors : array of float32 or uint32, shape (count, sublanes, lanes)
            The vectors.
        """
        given = checks.vectors("vectors", vectors, (self._config.sublanes, self._config.lanes))
        with self._open() as backend:
            first = self._first("vectors", "vector memory", self._config.vmem_vectors, at,
                                len(given))
            backend.write_vmem(self._core(core), first, given)

    def read_scalars(self, core: int) -> Words:
        """Read all scalar registers of a core.

        Raises
        ------
        TypeError, ValueError
            If there is no such core.
        RuntimeError
            If the core is running, or the device is closed.
        """
        with self._open() as backend:
            number = self._core(core)
            self._require_stopped(backend, number)
            return backend.read_scalars(number)

    def write_scalars(self, core: int, at: int, words: npt.ArrayLike) -> None:
        """Write scalar registers from number ``at`` on; s0 stays 0. Errors as `read_scalars`."""
        given = _words(words)
        with self._open() as backend:
            number = self._core(core)
            first = self._first("words", "scalar registers", SCALAR_REGISTERS, at, len(given))
            self._require_stopped(backend, number)
            backend.write_scalars(number, first, given)

    def read_semaphores(self, core: int) -> Words:
        """Read all semaphores of a core, which may be running; `Device.signal` adds to them."""
        with self._open() as backend:
            return backend.read_semaphores(self._core(core))


def _dtype(given: npt.DTypeLike) -> np.dtype[Any]:
    """Check that a type is numeric, and return it as a numpy dtype."""
    try:
        if given is None:
            raise TypeError
        kind = np.dtype(given)
    except TypeError:
        raise TypeError(f"dtype must be a numeric type, not {given!r}") from None
    if kind.hasobject or not kind.itemsize:
        raise TypeError(f"dtype must be a numeric type, not {given!r}")
    return kind


def _shape(given: int | tuple[int, ...]) -> tuple[int, ...]:
    """Check a shape (a size or a sequence of sizes), and return it as a tuple."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        return (checks.integer("shape", given, 0),)
    return tuple(checks.integer("a size of shape", size, 0) for size in given)


def _words(given: npt.ArrayLike) -> Words:
    """Check a sequence of 32-bit words, and return it as an array of uint32."""
    words = np.asarray(given)
    if words.ndim != 1 or (words.dtype.kind not in "ui" and words.size):
        raise TypeError(f"words must be a list of integers, not {given!r}")
    if words.size and not (int(words.min()) >= 0 and int(words.max()) < 1 << 32):
        raise ValueError(f"words must be from 0 to 2**32 - 1, not {given!r}")
    return words.astype(np.uint32)
