"""Architectural state of a core, and those changes to it that take more than an assignment.

Specifies the memories and registers of hdl/core, the weights and results that hdl/mxu holds, and
the effect of a transfer of hdl/dma on a core. `golden.execute` defines how operations use this
state.
"""

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golden import dma
from golden.dma import Descriptor
from golden.mxu import tile_matmul
from golden.numerics import bf16, to_bf16
from golden.torus.egress import Egress
from hdl import isa
from hdl.checks import instance, integer
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.isa import BUNDLE_PITCH, Fault

__all__ = ["WORD_MASK", "ArchitecturalState"]

WORD_MASK = 0xFFFFFFFF
"""All bits of a word."""
_CACHED_DESCRIPTORS = 256
"""Maximum number of descriptors whose decoded form and fault are cached."""

# Arrays of uint32. Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]


@dataclass
class _Result:
    """The rows of one push, not rounded yet, their weights, and their product once computed."""

    rows: NDArray[np.float32]
    weights: NDArray[Any]
    value: _Words | None = None


def _check_hbm(hbm: object, config: Config) -> None:
    if not isinstance(hbm, np.ndarray) or hbm.dtype != np.uint32:
        raise TypeError(f"hbm must be an array of uint32, not {hbm!r}")
    shape = config.hbm_rows, config.lanes
    if hbm.shape != shape:
        raise ValueError(f"hbm must have shape {shape}, not {hbm.shape}")
    if not hbm.flags.c_contiguous:
        raise ValueError(f"hbm must be contiguous, not have strides {hbm.strides}")


class ArchitecturalState:
    """All state of a core that a program can observe.

    Initially everything is zero, except m0. Between bundles, the arrays may be read and written in
    place, except for s0 and m0. Callers must not assign to attributes that are numbers, such as
    ``pc``.

    Parameters
    ----------
    config : Config
        Parameters of the core.
    hbm : array of uint32, shape (hbm_rows, lanes), or None
        The memory that the cores of a chip share. If it is None, the core has a memory of its own,
        which is allocated at its first use.

    Attributes
    ----------
    scalars : array of uint32, shape (32,)
        Scalar registers.
    vectors : array of uint32, shape (32, sublanes, lanes)
        Vector registers.
    masks : array of bool, shape (8, sublanes, lanes)
        Mask registers.
    vmem : array of uint32, shape (vmem_vectors, sublanes, lanes)
        Vector memory.
    smem : array of uint32, shape (smem_words,)
        Scalar memory.
    semaphores : array of uint32, shape (16,)
        Semaphores.
    program : list of int
        Instruction memory: a bundle for each address.
    transposer : array of uint32, shape (lanes, lanes)
        Tile of the cross-lane unit's transposer.
    next_weights : array of float32, shape (lanes, lanes)
        The weight tile that is being loaded, not rounded yet. Only rows (of a transposed load:
        columns) that have been pushed are defined.
    loaded : int
        Number of pushes to ``next_weights`` so far, 0 to ``config.tile_vregs``.
    transposed : bool
        Whether ``next_weights`` is loaded transposed; undefined while ``loaded`` is 0.
    weights : array of bfloat16, shape (lanes, lanes)
        The active weight tile.
    active : bool
        Whether there has been a swap since the last reset; if not, ``weights`` is undefined.
    pc : int
        Address of the next bundle to execute; after a halt, that of the halting bundle; after a
        fault, that of the faulting one.
    running : bool
        Whether the core has been started and has neither halted nor stopped since.
    waiting : bool
        Whether the bundle at ``pc`` was tried, but the semaphore that it waits for is too low.
    fault : Fault
        The fault that stopped the core, or `Fault.NONE`.
    egress : Egress
        Remote transfers and signals that have not left the core yet.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`, or ``hbm`` is not an array of uint32.
    ValueError
        If ``hbm`` has another shape, or is not contiguous.
    """

    def __init__(self, config: Config, hbm: _Words | None = None) -> None:
        instance("config", config, Config)
        if hbm is not None:
            _check_hbm(hbm, config)
        self._config = config
        self._hbm = hbm
        lanes, shape = config.lanes, (config.sublanes, config.lanes)
        self.scalars: _Words = np.zeros(isa.SCALAR_REGISTERS, np.uint32)
        self.vectors: _Words = np.zeros((isa.VECTOR_REGISTERS, *shape), np.uint32)
        self.masks = np.zeros((isa.MASKS, *shape), np.bool_)
        self.masks[0] = True
        self.vmem: _Words = np.zeros((config.vmem_vectors, *shape), np.uint32)
        self.smem: _Words = np.zeros(config.smem_words, np.uint32)
        self.semaphores: _Words = np.zeros(isa.SEMAPHORES, np.uint32)
        self.program: list[int] = [0] * config.imem_bundles
        self.transposer: _Words = np.zeros((lanes, lanes), np.uint32)
        self.next_weights = np.zeros((lanes, lanes), np.float32)
        self.loaded = 0
        self.transposed = False
        self.weights: NDArray[Any] = np.zeros((lanes, lanes), bf16)
        self.active = False
        self.pc = 0
        self.running = False
        self.waiting = False
        self.fault = Fault.NONE
        self._results: deque[_Result] = deque()
        self._peer: ArchitecturalState | None = None
        self._descriptors: dict[bytes, tuple[Descriptor, Fault]] = {}
        self.egress = Egress()
        self._torus = 1, 1

    @property
    def config(self) -> Config:
        """The core's parameters."""
        return self._config

    @property
    def hbm(self) -> _Words:
        """HBM, which the cores of a chip share: uint32, shape (hbm_rows, lanes). May be written."""
        if self._hbm is None:
            self._hbm = dma.allocate_hbm(self._config)
        return self._hbm

    @property
    def peer(self) -> "ArchitecturalState | None":
        """The other core of the chip, if any."""
        return self._peer

    @property
    def cores(self) -> int:
        """Number of cores of the chip."""
        return 1 if self._peer is None else 2

    def set_peer(self, peer: "ArchitecturalState") -> None:
        """Make ``peer`` the other core of this core's chip; ``peer`` itself does not change."""
        self._peer = peer
        # The faults of the cached descriptors were determined for a chip of one core.
        self._descriptors.clear()

    @property
    def torus(self) -> tuple[int, int]:
        """Size of the torus of the core's chip, in chips along X and along Y."""
        return self._torus

    @torus.setter
    def torus(self, shape: tuple[int, int]) -> None:
        self._torus = shape
        # The faults of the cached descriptors were determined for another torus.
        self._descriptors.clear()

    # Stops and semaphores

    def stop(self, fault: Fault = Fault.NONE) -> None:
        """Stop before the next bundle; `GoldenCore.start` at ``pc`` continues the program.

        If the core already has a fault since its last start, that one is kept.

        Parameters
        ----------
        fault : Fault
            The reason for the stop, if it is a fault, such as `Fault.WATCHDOG`, which the golden
            core itself cannot detect because it has no clock.

        Raises
        ------
        TypeError
            If ``fault`` is not a `Fault`.
        """
        instance("fault", fault, Fault)
        if self.fault is Fault.NONE:
            self.fault = fault
        self.running = False
        self.waiting = False

    def signal(self, index: int, amount: int = 1) -> None:
        """Add to a semaphore from outside the program.

        On overflow the semaphore keeps its value, and the core stops with `Fault.SEMAPHORE` before
        its next bundle. A stopped core gets the fault too, unless it has one already.

        Parameters
        ----------
        index : int
            Number of the semaphore.
        amount : int
            A word of 32 bits.

        Raises
        ------
        TypeError, ValueError
            If an argument is not an integer, or out of range.
        """
        integer("index", index, 0, isa.SEMAPHORES - 1)
        integer("amount", amount, 0, WORD_MASK)
        total = int(self.semaphores[index]) + int(amount)
        if total > WORD_MASK:
            self.stop(Fault.SEMAPHORE)
        else:
            self.semaphores[index] = total

    # The array

    @property
    def held(self) -> int:
        """Number of pushes of rows whose results were not popped yet."""
        return len(self._results)

    @property
    def results(self) -> list[NDArray[np.uint32]]:
        """Copies of the result vectors in the array, oldest first; shape (sublanes, lanes) each."""
        while any(result.value is None for result in self._results):
            self._multiply()
        return [result.value.copy() for result in self._results if result.value is not None]

    def push_weights(self, rows: NDArray[np.float32], transposed: bool) -> None:
        """Append ``rows`` to the next weight tile: as rows, or as columns if ``transposed``."""
        first = self.loaded * self._config.sublanes
        part = slice(first, first + self._config.sublanes)
        if transposed:
            self.next_weights[:, part] = rows.T
        else:
            self.next_weights[part] = rows
        self.transposed = transposed
        self.loaded += 1

    def push_rows(self, rows: NDArray[np.float32], swap: bool) -> None:
        """Queue products of ``rows`` and the active tile; if ``swap``, first activate the next."""
        if swap:
            # A new array: results that are still to be computed refer to the previous weights.
            self.weights = to_bf16(self.next_weights)
            self.loaded = 0
            self.active = True
        self._results.append(_Result(rows, self.weights))

    def oldest_result(self) -> _Words:
        """Return the result vector that the next pop takes, shape (sublanes, lanes)."""
        if self._results[0].value is None:
            self._multiply()
        value = self._results[0].value
        assert value is not None
        return value

    def drop_result(self) -> None:
        """Remove the oldest result vector from the array."""
        self._results.popleft()

    def clear_array(self) -> None:
        """Drop all results and weights."""
        self.active = self.transposed = False
        self.loaded = 0
        self._results.clear()

    def _multiply(self) -> None:
        """Compute the oldest result that has no value yet, and all others with the same weights.

        Each result depends only on its rows and weights; one product for all of them is faster.
        """
        first = next(result for result in self._results if result.value is None)
        batch = [result for result in self._results
                 if result.value is None and result.weights is first.weights]
        product = tile_matmul(np.concatenate([result.rows for result in batch]), first.weights)
        parts = product.view(np.uint32).reshape(len(batch), *first.rows.shape)
        for result, part in zip(batch, parts, strict=True):
            result.value = part

    # Transfers

    def read_descriptor(self, address: int) -> tuple[Descriptor, Fault]:
        """Return the descriptor at ``address`` of scalar memory, and its fault."""
        words = self.smem[address:address + DESCRIPTOR_WORDS]
        key = words.tobytes()
        found = self._descriptors.get(key)
        if found is None:
            if len(self._descriptors) >= _CACHED_DESCRIPTORS:
                self._descriptors.clear()
            descriptor = Descriptor.unpack(words)
            found = descriptor, descriptor.check(self._config, self.cores, self._torus)
            self._descriptors[key] = found
        return found

    def execute_transfer(self, descriptor: Descriptor) -> None:
        """Copy the rows of ``descriptor``, which must have no fault, then signal.

        A transfer to another chip is only appended to `egress`.
        """
        if descriptor.is_remote:
            source, destination = (
                side.indices(descriptor.rows, self._config).tolist()
                for side in (descriptor.source, descriptor.destination))
            self.egress.put(descriptor.remote, zip(source, destination, strict=True),
                            descriptor.remote_semaphore, descriptor.signal_remote,
                            partial(self._complete, descriptor))
            return
        memories: dict[DmaSpace, _Words] = {
            side.space: self._memory(side.space)
            for side in (descriptor.source, descriptor.destination)
            if side.space is not DmaSpace.IMEM}
        if descriptor.destination.space is DmaSpace.IMEM:
            # Only the bundles that are written.
            first = descriptor.destination_address // BUNDLE_PITCH
            last = first + -(-descriptor.rows * self._config.lanes // BUNDLE_PITCH)
            memories[DmaSpace.IMEM] = dma.read_bundles(self.program[first:last])
            dma.copy(replace(descriptor, destination_address=0), self._config, memories)
            self.program[first:last] = dma.write_bundles(memories[DmaSpace.IMEM])
        else:
            dma.copy(descriptor, self._config, memories)
        self._complete(descriptor)

    def _complete(self, descriptor: Descriptor) -> None:
        """Add 1 to the semaphores of this chip that the transfer of ``descriptor`` signals."""
        if descriptor.signal:
            self.signal(descriptor.semaphore)
        if descriptor.signal_other:
            assert self._peer is not None
            self._peer.signal(descriptor.semaphore)

    def _memory(self, space: DmaSpace) -> _Words:
        if space is DmaSpace.HBM:
            return self.hbm
        if space is DmaSpace.OTHER_VMEM:
            assert self._peer is not None
            return self._peer.vmem
        if space is DmaSpace.MASK:
            bits = self.masks.astype(np.uint32) << np.arange(isa.MASKS,
                                                             dtype=np.uint32)[:, None, None]
            return np.bitwise_or.reduce(bits, axis=0)[None]
        return {DmaSpace.VMEM: self.vmem, DmaSpace.SMEM: self.smem,
                DmaSpace.VREG: self.vectors}[space]
