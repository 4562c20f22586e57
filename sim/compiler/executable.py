"""Executables, the result of compilation: buffers, and programs for the cores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.asm.assembler import Program

__all__ = ["BufferSpec", "Executable", "Layout", "Queues", "Relocations", "Role"]

Words = npt.NDArray[np.uint32]

_LINKED = 8
"""Number of placements (sets of buffer addresses) for which an executable caches its programs."""


class Layout(Protocol):
    """How an array of the host is stored in rows of HBM."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the host's array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array's elements."""

    @property
    def rows(self) -> int:
        """Number of rows of HBM that the array occupies."""

    def pack(self, array: npt.NDArray[Any], memory: Words) -> None:
        """Write an array to ``memory``, shape (rows, lanes).

        An implementation may set words of padding in ``memory`` to 0, or leave them unchanged.
        """

    def unpack(self, memory: Words) -> npt.NDArray[Any]:
        """Return a new array with the elements that ``memory``, shape (rows, lanes), holds."""


class Role(Enum):
    """Purpose of a buffer of an executable."""

    INPUT = "input"
    """A buffer whose array the host passes for each run."""
    OUTPUT = "output"
    """A buffer whose array a run returns."""
    CONSTANT = "constant"
    """A buffer whose array is part of the executable."""
    SCRATCH = "scratch"
    """A buffer that only the programs use."""


@dataclass(frozen=True, eq=False)
class BufferSpec:
    """A buffer that an executable needs.

    Attributes
    ----------
    name : str
        Name of the buffer, unique in the executable.
    role : Role
        Purpose of the buffer.
    layout : Layout
        Shape and type of the host's array, and its place in the buffer's rows of HBM.
    value : array, optional
        The array, if the role is CONSTANT.
    """

    name: str
    role: Role
    layout: Layout
    value: npt.NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class Relocations:
    """Words of a constant to which the address of a buffer, the *target*, is added before a run.

    Attributes
    ----------
    buffer : str
        Name of the buffer that holds the constant.
    words : array of int
        Positions of the words in the constant, from 0. Each word is the low half of a byte offset
        within the target; the next word of the constant is the high half.
    target : str
        Name of the target.
    core : int
        The core whose program uses the addresses.
    rows : bool
        If True, each word is instead a 32-bit offset in rows, to which the number of the target's
        first row in HBM is added.
    """

    buffer: str
    words: npt.NDArray[np.int64]
    target: str
    core: int = 0
    rows: bool = False

    def offsets(self, constant: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """Return the offsets, in bytes or in rows, that ``constant`` holds at positions `words`.

        No address may have been added to these offsets yet.
        """
        flat, low = constant.reshape(-1), self.words
        if self.rows:
            return flat[low].astype(np.uint64)
        return flat[low] | flat[low + 1].astype(np.uint64) << np.uint64(32)

    def apply(self, memory: npt.NDArray[np.uint32], offsets: npt.NDArray[np.uint64],
              address: int) -> None:
        """Add an address to the words' offsets, and write the sums to the words.

        Parameters
        ----------
        memory : array of uint32
            Rows of the constant's buffer, which are changed.
        offsets : array of uint64
            Offsets that the words held before an address was added, from method `offsets`.
        address : int
            Byte address of the target; if `rows` is True, the number of its first row in HBM. May
            be negative, as long as each sum is a valid address.
        """
        flat, low = memory.reshape(-1), self.words
        sums = offsets + np.uint64(address % (1 << 64))
        flat[low] = sums.astype(np.uint32)
        if not self.rows:
            flat[low + 1] = (sums >> np.uint64(32)).astype(np.uint32)


@dataclass(frozen=True)
class Queues:
    """Queues between the host and a loop of an executable, used while the loop runs.

    The *infeed* is a set of inputs. Iteration *n* reads their elements at index *n* of the first
    dimension: *batch* *n*. The host writes batches to HBM while the loop runs. The *outfeed* is a
    set of outputs. Iteration *n* writes their elements at index *n* of the first dimension to HBM.

    Attributes
    ----------
    steps : int
        Number of iterations.
    slots : int
        Number of batches for which HBM has room, a power of two; batch *n* is in slot *n* modulo
        ``slots``.
    inputs, outputs : tuple of int
        Positions of the infeed among the executable's inputs, and of the outfeed among its outputs.
    """

    steps: int
    slots: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Executable:
    """Buffers, and programs that compute the outputs from the inputs.

    Attributes
    ----------
    config : Config
        Configuration of the chip on which it runs.
    name : str
        Name of the computation, for messages.
    buffers : tuple of BufferSpec
        The buffers, in the order in which a device allocates them.
    link : callable
        Function from the HBM addresses of the buffers, by name, to the programs, by core.
        `programs` checks the addresses and caches the results.
    array_rows : int
        Approximate number of rows that a run pushes into the arrays of all cores; a run's progress
        is measured in these rows.
    relocations : tuple of Relocations
        Words of constants to which `relocate` adds buffers' addresses.
    queues : Queues, optional
        The infeed and the outfeed of a loop, if the executable has such a loop.

    Raises
    ------
    ValueError
        If two buffers have the same name, a constant has no value, or a buffer with another role
        has a value.
    """

    config: Config
    name: str
    buffers: tuple[BufferSpec, ...]
    link: Callable[[Mapping[str, int]], Mapping[int, Program]]
    array_rows: int
    relocations: tuple[Relocations, ...] = ()
    queues: Queues | None = None

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.buffers]
        for spec in self.buffers:
            if names.count(spec.name) > 1:
                raise ValueError(f"buffers must have different names, not {spec.name!r} twice")
            if (spec.role is Role.CONSTANT) != (spec.value is not None):
                raise ValueError(f"buffer {spec.name!r} must have role constant and a value, or "
                                 f"another role and no value, not role {spec.role.value} and value "
                                 f"{spec.value!r}")

    @property
    def inputs(self) -> tuple[BufferSpec, ...]:
        """Buffers whose arrays the host passes, in order."""
        return tuple(spec for spec in self.buffers if spec.role is Role.INPUT)

    @property
    def infeed(self) -> tuple[BufferSpec, ...]:
        """Inputs in the infeed, in order; their layouts are `sim.compiler.program.arrays.Ring`."""
        return tuple(self.inputs[number] for number in self.queues.inputs) if self.queues else ()

    @property
    def arguments(self) -> tuple[BufferSpec, ...]:
        """Inputs whose arrays the host passes before the run: all that are not in the infeed."""
        return tuple(spec for spec in self.inputs if spec not in self.infeed)

    @property
    def outputs(self) -> tuple[BufferSpec, ...]:
        """Buffers whose arrays a run returns, in order."""
        return tuple(spec for spec in self.buffers if spec.role is Role.OUTPUT)

    def role(self, name: str) -> Role:
        """Return the role of the buffer with this name."""
        [role] = [spec.role for spec in self.buffers if spec.name == name]
        return role

    def programs(self, addresses: Mapping[str, int]) -> Mapping[int, Program]:
        """Link the programs of all cores that the executable uses.

        The programs of the last few sets of addresses are cached, so that equal addresses usually
        give the same `Program` objects.

        Parameters
        ----------
        addresses : mapping of str to int
            Byte address of each buffer in HBM, by name; a multiple of ``config.row_bytes``.

        Raises
        ------
        ValueError
            If an address is not a multiple of ``config.row_bytes``, or a buffer exceeds HBM.
        """
        row_bytes, size = self.config.row_bytes, self.config.hbm_bytes
        for spec in self.buffers:
            address, needed = addresses[spec.name], spec.layout.rows * row_bytes
            if address % row_bytes:
                raise ValueError(f"address of {spec.name} must be a multiple of a row's "
                                 f"{row_bytes} bytes, not {address!r}")
            if not 0 <= address <= size - needed:
                raise ValueError(f"buffer {spec.name} must lie within {size} bytes of HBM, not "
                                 f"take {needed} bytes from address {address!r} on")
        return self._linked(tuple(addresses[spec.name] for spec in self.buffers))

    def relocate(self, addresses: Mapping[str, int],
                 memory: Mapping[str, npt.NDArray[np.uint32]]) -> None:
        """Add the addresses of buffers to the constants' words that `relocations` lists.

        Parameters
        ----------
        addresses : mapping of str to int
            Byte address of each buffer in HBM, by name; a multiple of ``config.row_bytes``.
        memory : mapping of str to array of uint32
            Rows of each buffer, by name. Constants must not contain addresses from an earlier call:
            pack them again first.
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
