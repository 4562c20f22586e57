"""Transfers: descriptors, the check for their faults, and the copy of the rows.

Specifies hdl/dma. `hdl.dma.format` has the layout and the spaces; `docs/isa.md` defines what a
transfer does.
"""

import mmap
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdl import isa
from hdl.checks import instance, integer
from hdl.config import Config
from hdl.dma.format import (
    DESCRIPTOR,
    DMA_DESTINATIONS,
    DMA_MAX_ROWS,
    DMA_SOURCES,
    DMA_SPACES,
    DmaSpace,
    DmaSpaceInfo,
    pack_descriptor,
    unpack_descriptor,
    unpack_remote,
)
from hdl.isa import BUNDLE_PITCH, Fault

__all__ = ["Descriptor", "Side", "allocate_hbm", "check_remote", "copy", "read_bundles",
           "write_bundles"]

# Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]

_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
"""Linux's flag that permits an allocation larger than the machine's memory; only pages that are
written take memory. Newer versions of Python define it in ``mmap``."""


def allocate_hbm(config: Config) -> _Words:
    """Return an HBM of zeros; only the pages that are written take memory of the host.

    Returns
    -------
    array of uint32, shape (hbm_rows, lanes)
        Contiguous, at an address that is fixed for the lifetime of the array.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    """
    instance("config", config, Config)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    size = config.hbm_rows * config.row_bytes
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint32).reshape(-1, config.lanes)


@dataclass(frozen=True)
class Side:
    """The source or the destination of a transfer: runs of blocks, a stride apart.

    Attributes
    ----------
    space : DmaSpace
    address : int
        Address of the first block.
    run : int
        Number of blocks in a run; 0 if all blocks are one run.
    stride : int
        Distance from the start of one run to the start of the next. Address and stride are in the
        unit of the space, as in a `Descriptor`.
    """

    space: DmaSpace
    address: int
    run: int
    stride: int

    @property
    def info(self) -> DmaSpaceInfo:
        """Properties of the space."""
        return DMA_SPACES[self.space]

    def unit(self, config: Config) -> int:
        """Return the distance between addresses of adjacent blocks, in the unit of the space."""
        if self.space is DmaSpace.HBM:
            return config.row_bytes
        return 1 if self.info.vector else config.lanes

    def size(self, config: Config) -> int:
        """Return the number of addresses of the space; in HBM, the number of bytes."""
        return {
            DmaSpace.HBM: config.hbm_rows * config.row_bytes,
            DmaSpace.VMEM: config.vmem_vectors,
            DmaSpace.OTHER_VMEM: config.vmem_vectors,
            DmaSpace.REMOTE_VMEM: config.vmem_vectors,
            DmaSpace.SMEM: config.smem_words,
            DmaSpace.IMEM: config.imem_bundles * BUNDLE_PITCH,
            DmaSpace.VREG: isa.VECTOR_REGISTERS,
            DmaSpace.MASK: 1,
        }[self.space]

    def blocks(self, rows: int, config: Config) -> int:
        """Return the blocks in ``rows`` rows; a block is a vector in a vector space, else a row."""
        return rows // config.sublanes if self.info.vector else rows

    def indices(self, rows: int, config: Config) -> NDArray[np.int64]:
        """Return the index of each block in its space, in the order of the transfer.

        Indices begin at 0; a block is a row in HBM, else a vector. The space must not be scalar or
        instruction memory. ``rows`` is the number of rows that the side has in total.
        """
        unit, count = self.unit(config), self.blocks(rows, config)
        runs, within = np.divmod(np.arange(count, dtype=np.int64), min(self.run or count, count))
        return self.address // unit + within + runs * (self.stride // unit)

    def span(self, rows: int, config: Config) -> tuple[int, int]:
        """Return the lowest address that ``rows`` rows occupy, and the highest plus 1.

        Addresses do not wrap.
        """
        unit, count = self.unit(config), self.blocks(rows, config)
        length = min(self.run or count, count)
        runs, rest = divmod(count, length)
        # First and last block of the first run, of the last whole run, and of the incomplete run.
        starts = [(0, length), (runs - 1, length)] + [(runs, rest)] * (rest > 0)
        addresses = [self.address + start * self.stride + block * unit
                     for start, blocks in starts for block in (0, blocks - 1)]
        return min(addresses), max(addresses) + unit

    def fits(self, rows: int, config: Config) -> bool:
        """Return whether all addresses that ``rows`` rows occupy exist in the space."""
        low, high = self.span(rows, config)
        return low >= 0 and high <= self.size(config)


@dataclass(frozen=True)
class Descriptor:
    """The descriptor of a transfer: the fields of `hdl.dma.format.DESCRIPTOR`.

    Any values that fit their fields are accepted; `check` finds faults.

    Attributes
    ----------
    source_space, destination_space : int
        A `DmaSpace`.
    rows : int
        Number of rows.
    source_address, destination_address : int
        Address of the first block: in bytes in HBM, in words in scalar and instruction memory, in
        vectors or registers in the other spaces.
    source_run, destination_run : int
        Number of consecutive blocks in a run; 0 if all blocks are one run.
    source_stride, destination_stride : int
        Distance from the start of one run to the start of the next, in the unit of the address.
    semaphore : int
        Number of the semaphore to which 1 is added when the transfer is complete.
    signal, signal_other : int
        Whether 1 is added to this core's semaphore, and whether to that of the chip's other core.
    signal_remote, remote_semaphore : int
        Whether a transfer to another chip adds 1 to a semaphore there, and the number of that
        semaphore.
    reserved : int
        If it is not 0, `check` returns DMA_DESCRIPTOR.

    Raises
    ------
    TypeError, ValueError
        If a value is not an integer or does not fit its field.
    """

    source_space: int
    destination_space: int
    rows: int
    source_address: int = 0
    source_run: int = 0
    source_stride: int = 0
    destination_address: int = 0
    destination_run: int = 0
    destination_stride: int = 0
    semaphore: int = 0
    signal: int = 0
    signal_other: int = 0
    signal_remote: int = 0
    remote_semaphore: int = 0
    reserved: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            # Flags may be bools.
            number = int(value) if isinstance(value, bool) else integer(field.name, value)
            object.__setattr__(self, field.name, number)
        self.pack()

    def pack(self) -> tuple[int, ...]:
        """Return the words that encode the descriptor in scalar memory."""
        return pack_descriptor({name: getattr(self, name) for name in DESCRIPTOR})

    @classmethod
    def unpack(cls, words: Sequence[int] | _Words) -> "Descriptor":
        """Return the descriptor that these words of scalar memory encode.

        Raises
        ------
        ValueError
            If there are not `hdl.dma.format.DESCRIPTOR_WORDS` words, or one does not fit 32 bits.
        """
        # What has been unpacked fits its field, so `__post_init__` is left out: chips unpack many.
        made = object.__new__(cls)
        made.__dict__.update(unpack_descriptor([int(word) for word in words]))
        return made

    @property
    def source(self) -> Side:
        """The side that the transfer reads. Its space must be a `DmaSpace`."""
        return Side(DmaSpace(self.source_space), self.source_address, self.source_run,
                    self.source_stride)

    @property
    def destination(self) -> Side:
        """The side that the transfer writes. Its space must be a `DmaSpace`.

        In space REMOTE_VMEM, the address is one in vector memory of the core that `remote` names.
        """
        space, address = DmaSpace(self.destination_space), self.destination_address
        if space is DmaSpace.REMOTE_VMEM:
            address &= 0xFFFFFFFF
        return Side(space, address, self.destination_run, self.destination_stride)

    @property
    def is_remote(self) -> bool:
        """Whether the transfer writes to another chip."""
        return self.destination_space == DmaSpace.REMOTE_VMEM

    @property
    def remote(self) -> int:
        """The word that names the core of another chip (`hdl.dma.format.REMOTE_LAYOUT`).

        Only defined if `is_remote`.
        """
        return self.destination_address >> 32

    def check(self, config: Config, cores: int, torus: tuple[int, int] = (1, 1)) -> Fault:
        """Return the fault of the descriptor, or `Fault.NONE`.

        If it has several faults, the first of DMA_DESCRIPTOR, DMA_ALIGNMENT and DMA_RANGE counts.

        Parameters
        ----------
        config : Config
        cores : int
            Cores of the chip; with 1, a descriptor that names the other core is a fault.
        torus : tuple of int
            Chips along X and along Y; 1 and 1 for a chip that is not on a torus.
        """
        if self._malformed(config, cores):
            return Fault.DMA_DESCRIPTOR
        sides = self.source, self.destination
        if any(self._misaligned(side, config) for side in sides):
            return Fault.DMA_ALIGNMENT
        if not all(side.fits(self.rows, config) for side in sides):
            return Fault.DMA_RANGE
        return check_remote(self.remote, config, torus) if self.is_remote else Fault.NONE

    def _malformed(self, config: Config, cores: int) -> bool:
        if (self.source_space not in DMA_SOURCES
                or self.destination_space not in DMA_DESTINATIONS
                or self.reserved or not 1 <= self.rows <= DMA_MAX_ROWS
                or (self.signal_other and cores == 1)):
            return True
        if self.is_remote:
            if (not config.link_bytes or self.source_space != DmaSpace.VMEM
                    or check_remote(self.remote, config) is Fault.DMA_DESCRIPTOR):
                return True
        elif self.signal_remote or self.remote_semaphore:
            return True
        return any(
            side.info.cores > cores
            or (side.space is not DmaSpace.HBM and side.address >> 32 != 0)
            or (side.run != 0 and not side.info.runs)
            or (side.stride != 0 and side.run == 0)
            for side in (self.source, self.destination))

    def _misaligned(self, side: Side, config: Config) -> bool:
        if side.space is DmaSpace.HBM:
            return side.address % config.row_bytes != 0 or side.stride % config.row_bytes != 0
        if side.space is DmaSpace.IMEM:
            return side.address % BUNDLE_PITCH != 0
        return side.info.vector and self.rows % config.sublanes != 0


def check_remote(word: int, config: Config, torus: tuple[int, int] = (1, 1)) -> Fault:
    """Return the fault of a word of `hdl.dma.format.REMOTE_LAYOUT`, which names a core elsewhere.

    DMA_DESCRIPTOR: a reserved bit is set, or chips have no core of that number. DMA_RANGE: the hops
    along X or those along Y are not fewer than the torus has chips along this axis, or both are 0.
    NONE: none of these is true.

    Parameters
    ----------
    word : int
        The word, of 32 bits.
    config : Config
        Parameters of all chips of the torus.
    torus : tuple of int
        Chips along X and along Y.
    """
    dx, dy, core, reserved = unpack_remote(word)
    if reserved or core >= config.cores:
        return Fault.DMA_DESCRIPTOR
    if dx == dy == 0 or abs(dx) >= torus[0] or abs(dy) >= torus[1]:
        return Fault.DMA_RANGE
    return Fault.NONE


def copy(descriptor: Descriptor, config: Config, memories: Mapping[DmaSpace, _Words]) -> None:
    """Read all rows of ``descriptor``, then write them; the descriptor must have no fault.

    Blocks are written in order: if several have the same address, the last one remains.

    Parameters
    ----------
    descriptor : Descriptor
    config : Config
    memories : mapping of DmaSpace to array of uint32
        The memory of each side, by its space: HBM with shape (hbm_rows, lanes); SMEM and IMEM with
        shape (words,); the others with shape (count, sublanes, lanes).
    """
    source, destination = descriptor.source, descriptor.destination
    rows = descriptor.rows
    data = _read(memories[source.space], source, rows, config)
    if source.space is destination.space:
        data = data.copy()
    _write(memories[destination.space], destination, rows, config, data)


def _extent(side: Side, rows: int, config: Config) -> tuple[int, int, int]:
    """Return a side's first block (`Side.indices`), its number of blocks, and a run's length."""
    count = side.blocks(rows, config)
    return side.address // side.unit(config), count, min(side.run or count, count)


def _read(memory: _Words, side: Side, rows: int, config: Config) -> _Words:
    """Return the ``rows`` rows of ``side``, shape (rows, lanes); possibly a view of ``memory``.

    ``memory`` holds the words of the side's space.
    """
    if not side.info.runs:
        part = memory[side.address:side.address + rows * config.lanes]
    else:
        first, count, length = _extent(side, rows, config)
        part = (memory[first:first + count] if length == count
                else memory[side.indices(rows, config)])
    return part.reshape(rows, config.lanes)


def _write(memory: _Words, side: Side, rows: int, config: Config, data: _Words) -> None:
    if not side.info.runs:
        memory[side.address:side.address + rows * config.lanes] = data.reshape(-1)
        return
    first, count, length = _extent(side, rows, config)
    data = data.reshape(count, *memory.shape[1:])
    if length == count:
        memory[first:first + count] = data
        return
    indices = side.indices(rows, config)
    if abs(side.stride) < length * side.unit(config):
        # Runs overlap. Of the blocks at one address, the last must remain: after the reversal,
        # `np.unique` returns its index, that of the first occurrence.
        indices, last = np.unique(indices[::-1], return_index=True)
        data = data[::-1][last]
    memory[indices] = data


def read_bundles(bundles: Sequence[int]) -> _Words:
    """Return the words of ``bundles``, `BUNDLE_PITCH` for each, as transfers address them."""
    packed = b"".join(bundle.to_bytes(4 * BUNDLE_PITCH, "little") for bundle in bundles)
    return np.frombuffer(bytearray(packed), "<u4").astype(np.uint32)


def write_bundles(words: _Words) -> list[int]:
    """Return the bundles that ``words`` hold: the inverse of `read_bundles`. Padding is ignored."""
    rows = words.astype("<u4").reshape(-1, BUNDLE_PITCH)[:, :isa.BUNDLE_WORDS]
    return [int.from_bytes(row.tobytes(), "little") for row in rows]
