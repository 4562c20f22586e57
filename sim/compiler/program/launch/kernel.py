"""The argument of a lowering rule: places of values, scratch, constants, scalars."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler import kernels
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.lowering import Place, rule
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import IndexLike, SReg, VmemBuffer
from sim.compiler.program.code.reserved import SCALAR_READ
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.control.counted import Affine

__all__ = ["KernelLowering", "load_rules", "lower"]

Words = npt.NDArray[np.uint32]
Allocate = Callable[[str, int], VmemBuffer]
"""Allocates a buffer of that name and number of vectors for the kernel alone."""

_SOURCE_WORD = 2
"""Word of a descriptor that holds the source's address."""


class KernelLowering:
    """The `Lowering` of one operation.

    Parameters
    ----------
    config : Config
        The chip.
    places : mapping of Value to Place
        Where the operands and results lie.
    allocate : callable
        Allocates vectors for the kernel alone.
    fill : callable
        Has words, shape (vectors, sublanes, lanes), copied to a buffer before the kernel runs.
    known : mapping of Value to int, optional
        Words of operands that are constants and equal in all elements.
    reads : list of Value, optional
        Takes the operands whose first rows must lie in the window of scalar memory when the kernel
        begins, one row after the other; if not given, the kernel copies them itself.
    counters : mapping of Value to (int, Affine), optional
        Operands that follow from a word of scalar memory, with its address.
    homes : mapping of Value to Rows, optional
        Operands that the kernel may load itself, and results that it may store.

    Attributes
    ----------
    transferred : dict of str to Value
        Of these, those that the kernel does, by the symbol of the number of the first row.
    cycles : int or None
        Predicted cycles, if it waits for transfers of its own.
    is_free : callable
        Whether so many consecutive vectors are free; they always are, until it is set.
    reads_window : bool
        Whether it copies vectors to the window of scalar memory.
    """

    def __init__(self, config: Config, places: Mapping[Value, Place], allocate: Allocate,
                 fill: Callable[[VmemBuffer, Words], None],
                 known: Mapping[Value, int] | None = None,
                 reads: list[Value] | None = None,
                 counters: Mapping[Value, tuple[int, Affine]] | None = None,
                 homes: Mapping[Value, Rows] | None = None) -> None:
        self._config = config
        self._builder = Builder(config)
        self._places = places
        self._allocate = allocate
        self._fill = fill
        self._known = known or {}
        self._reads = reads
        self._counters = counters or {}
        self._homes = homes or {}
        self.is_free: Callable[[int], bool] = lambda vectors: True
        self.transferred: dict[str, Value] = {}
        self.cycles: int | None = None
        self.reads_window = False
        self._memory = ScalarMemory(config)
        self._constants: dict[bytes, VmemBuffer] = {}

    @property
    def config(self) -> Config:
        """The chip."""
        return self._config

    @property
    def builder(self) -> Builder:
        """Takes the kernel's code."""
        return self._builder

    @property
    def smem(self) -> range:
        """Words of scalar memory that the kernel may use as it likes."""
        return self._memory.kernel

    def place(self, value: Value) -> Place:
        """Where an operand or a result lies.

        Values do not overlap; only a result may share the vectors of an operand that is not used
        again.
        """
        return self._places[value]

    def can_transfer(self, value: Value) -> bool:
        """Whether the kernel may itself load an operand from HBM, or store a result there."""
        return value in self._homes

    def transfer(self, value: Value) -> SReg:
        """Take over a transfer; return the number of its first row of HBM."""
        symbol = f"home{len(self.transferred)}"
        self.transferred[symbol] = value
        return self._builder.symbol(symbol)

    def predict(self, cycles: int) -> None:
        """Say how many cycles a kernel takes that waits for transfers of its own."""
        self.cycles = cycles

    def scratch(self, vectors: int) -> VmemBuffer:
        """Allocate vectors for this kernel alone; their contents are undefined."""
        return self._allocate("scratch", vectors)

    def spare(self, vectors: int) -> VmemBuffer | None:
        """As `scratch`; None if too few vectors are free, so that no value has to leave."""
        return self.scratch(vectors) if self.is_free(vectors) else None

    def constant(self, words: npt.NDArray[Any]) -> VmemBuffer:
        """Make a buffer that holds constant ``words``, shape (vectors, sublanes, lanes).

        Equal constants share a buffer; the kernel must not write it.

        Raises
        ------
        ValueError
            If the shape is wrong.
        """
        data = np.ascontiguousarray(words, np.uint32)
        if data.ndim != 3 or data.shape[1:] != (self._config.sublanes, self._config.lanes):
            raise ValueError("words must be of shape (vectors, "
                             f"{self._config.sublanes}, {self._config.lanes}), not {data.shape!r}")
        key = data.tobytes()
        if key not in self._constants:
            buffer = self._allocate("constant", len(data))
            self._fill(buffer, data)
            self._constants[key] = buffer
        return self._constants[key]

    def scalar(self, value: Value) -> SReg:
        """Write code that reads an operand of one element into a scalar register.

        A constant is a number in the code.
        """
        if value in self._known:
            return self._builder.value(self._known[value])
        if value in self._counters:
            return self._counted(*self._counters[value])
        if self._reads is not None and (
                value in self._reads or len(self._reads) < self._memory.reads):
            if value not in self._reads:
                self._reads.append(value)
            row = self._reads.index(value)
            return self._builder.smem_load(self._memory.window.start + row * self._config.lanes)
        return self._builder.smem_load(self.scalars(self.place(value).buffer, 0))

    def _counted(self, address: int, value: Affine) -> SReg:
        """Write code that computes what follows from a loop's counter."""
        counter = self._builder.smem_load(address)
        if value.factor == 0:
            return self._builder.value(value.offset)
        if value.factor < 0:
            return self._builder.scalar("sub", self._builder.value(value.offset), counter)
        return self._builder.scalar("add", counter, value.offset) if value.offset else counter

    def scalars(self, buffer: VmemBuffer, index: IndexLike) -> int:
        """Write code that copies a vector to scalar memory, and return its address there.

        Element (sublane, lane) lies at the address plus sublane * lanes + lane, until the next
        call of this method or of `scalar` has the next vector copied. So a rule that needs both
        calls `scalar` first, and outside of loops.
        """
        # The window now holds something else.
        self._reads = None
        self.reads_window = True
        descriptor = self._memory.to_window
        self._builder.smem_store(self._builder.value(index + buffer.address),
                                 descriptor + _SOURCE_WORD)
        self._builder.dma(descriptor)
        self._builder.wait(SCALAR_READ, 1)
        return self._memory.window.start


@cache
def load_rules() -> None:
    """Import all modules of `sim.compiler.kernels`, which register their rules."""
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)


def lower(operation: Operation, at: KernelLowering) -> None:
    """Write the code of an operation.

    Raises
    ------
    NotImplementedError
        If its kind has no rule.
    """
    load_rules()
    found = rule(operation.kind)
    if found is None:
        raise NotImplementedError(f"{operation.kind} has no rule")
    found(operation, at)
