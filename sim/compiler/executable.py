"""Executables: buffers, and programs for the cores. The result of compilation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.asm.assembler import Program

__all__ = ["BufferSpec", "Executable", "Layout", "Relocations", "Role"]

Words = npt.NDArray[np.uint32]

_LINKED = 8
"""Placements whose programs an executable keeps."""


class Layout(Protocol):
    """How an array of the host lies in rows of HBM."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the host's array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""

    @property
    def rows(self) -> int:
        """Rows of HBM that it takes."""

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write the array and its padding to ``memory``, shape (rows, lanes)."""

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array of what ``memory``, shape (rows, lanes), holds."""


class Role(Enum):
    """Purpose of a buffer of an executable."""

    INPUT = "input"
    """The host gives its array for each run."""
    OUTPUT = "output"
    """The run returns its array."""
    CONSTANT = "constant"
    """Its array is part of the executable."""
    SCRATCH = "scratch"
    """Only the programs use it."""


@dataclass(frozen=True, eq=False)
class BufferSpec:
    """A buffer that an executable needs.

    Attributes
    ----------
    name : str
        Name of the buffer, unique in the executable.
    role : Role
        What it is for.
    layout : Layout
        Shape and type of the host's array, and its place in the buffer's rows of HBM.
    value : array, optional
        The array of a constant.
    """

    name: str
    role: Role
    layout: Layout
    value: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class Relocations:
    """Places in a constant that hold addresses in a buffer.

    Attributes
    ----------
    buffer : str
        The constant.
    words : array of int
        Words of its rows, counted from the first. Each holds, with the word behind it as the high
        half, an offset in ``target``.
    target : str
        The buffer whose address is to be added.
    core : int
        The core whose program uses it.
    rows : bool
        Each word holds the number of a row instead, to which that of the target's first is added.
    """

    buffer: str
    words: npt.NDArray[np.int64]
    target: str
    core: int = 0
    rows: bool = False

    def offsets(self, constant: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """Numbers that the words of the constant hold before an address is added to them."""
        flat, low = constant.reshape(-1), self.words
        if self.rows:
            return flat[low].astype(np.uint64)
        return flat[low] | flat[low + 1].astype(np.uint64) << np.uint64(32)

    def apply(self, memory: npt.NDArray[np.uint32], offsets: npt.NDArray[np.uint64],
              address: int) -> None:
        """Write sums of offsets and an address to the words.

        Parameters
        ----------
        memory : array of uint32
            Rows of the constant's buffer.
        offsets : array of uint64
            From `offsets`, of the constant that was packed.
        address : int
            Byte address of the target; with ``rows``, the number of its first row. It may be
            negative if all sums are addresses.
        """
        flat, low = memory.reshape(-1), self.words
        sums = offsets + np.uint64(address % (1 << 64))
        flat[low] = sums.astype(np.uint32)
        if not self.rows:
            flat[low + 1] = (sums >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True, eq=False)
class Executable:
    """Buffers, and programs that compute the outputs from the inputs.

    Attributes
    ----------
    config : Config
        The chip that it is for.
    name : str
        What it computes, for messages.
    buffers : tuple of BufferSpec
        The buffers, in the order in which a device allocates them.
    link : callable
        Makes the programs, by core, for the HBM address of each buffer, by name. `programs` checks
        the addresses and keeps the results.
    array_rows : int
        About how many rows a run pushes into the arrays of all cores: the measure of its progress.
    relocations : tuple of Relocations
        Addresses in constants; `relocate` adds them.

    Raises
    ------
    ValueError
        If two buffers have the same name, or a buffer that is not a constant has a value, or one
        that is has none.
    """

    config: Config
    name: str
    buffers: tuple[BufferSpec, ...]
    link: Callable[[Mapping[str, int]], Mapping[int, Program]]
    array_rows: int
    relocations: tuple[Relocations, ...] = ()

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.buffers]
        for spec in self.buffers:
            if names.count(spec.name) > 1:
                raise ValueError(f"buffers must have different names, not {spec.name!r} twice")
            if (spec.role is Role.CONSTANT) != (spec.value is not None):
                raise ValueError(f"buffer {spec.name!r} must have a value if it is a constant, and "
                                 f"only then, not role {spec.role.value} and {spec.value!r}")

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        """The buffers whose arrays the host gives, in order."""
        return tuple(spec for spec in self.buffers if spec.role is Role.INPUT)

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        """The buffers whose arrays a run returns, in order."""
        return tuple(spec for spec in self.buffers if spec.role is Role.OUTPUT)

    def role(self, name: str) -> Role:
        """Role of the buffer of a name."""
        [role] = [spec.role for spec in self.buffers if spec.name == name]
        return role

    def programs(self, addresses: Mapping[str, int]) -> Mapping[int, Program]:
        """Link the programs of all cores that take part.

        Equal addresses give the same `Program` objects, as long as few placements alternate.

        Parameters
        ----------
        addresses : mapping of str to int
            For each buffer, by name, the byte address in HBM; a multiple of ``config.row_bytes``.

        Raises
        ------
        ValueError
            If an address is not such a multiple, or a buffer does not lie in HBM.
        """
        row_bytes, size = self.config.row_bytes, self.config.hbm_bytes
        for spec in self.buffers:
            address, needed = addresses[spec.name], spec.layout.rows * row_bytes
            if address % row_bytes:
                raise ValueError(f"{spec.name} must be a multiple of a row's {row_bytes} bytes, "
                                 f"not {address!r}")
            if not 0 <= address <= size - needed:
                raise ValueError(f"{spec.name} must lie within {size} bytes of HBM, not {needed} "
                                 f"bytes from {address!r} on")
        return self._linked(tuple(addresses[spec.name] for spec in self.buffers))

    def relocate(self, addresses: Mapping[str, int],
                 memory: Mapping[str, npt.NDArray[np.uint32]]) -> None:
        """Add the addresses of buffers to the words of constants that need them.

        Parameters
        ----------
        addresses : mapping of str to int
            As in `programs`.
        memory : mapping of str to array of uint32
            Rows of each buffer, by name. Constants have just been packed.
        """
        for relocation in self.relocations:
            constant, address = memory[relocation.buffer], addresses[relocation.target]
            relocation.apply(constant, relocation.offsets(constant),
                             address // self.config.row_bytes if relocation.rows else address)

    @cached_property
    def _linked(self) -> Callable[[tuple[int, ...]], Mapping[int, Program]]:
        names = [spec.name for spec in self.buffers]

        @lru_cache(maxsize=_LINKED)
        def linked(addresses: tuple[int, ...]) -> Mapping[int, Program]:
            return self.link(dict(zip(names, addresses, strict=True)))

        return linked
