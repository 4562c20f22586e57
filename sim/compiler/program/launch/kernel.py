"""The object that a lowering rule receives: places of values, scratch, constants, scalars."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler import kernels
from sim.compiler.graph.counted import Affine
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.lowering import Meanwhile, Place, rule
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.emit import Code, emit
from sim.compiler.machine.ir import IndexLike, MachineCode, RangeAt, SReg, VmemBuffer
from sim.compiler.machine.registers.coloring import RegisterPressureError
from sim.compiler.machine.text import dump_kernel
from sim.compiler.passes import dump_folder
from sim.compiler.program.code.reserved import SCALAR_READ
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.transfers import Rows
from sim.errors import Unsupported, UnsupportedError

__all__ = ["KernelLowering", "emit_kernel", "load_rules", "lower"]

Words = npt.NDArray[np.uint32]
Allocate = Callable[[str, int], VmemBuffer]
"""Allocates a kernel's scratch buffer, from its name and its number of vectors."""

_SOURCE_WORD = 2
"""Number of the descriptor's word that holds the source address."""


class KernelLowering:
    """The `Lowering` with which a lowering rule writes the kernel of one operation.

    Parameters
    ----------
    config : Config
        The chip.
    places : mapping of Value to Place
        Buffer and tiling of each operand and result.
    allocate : callable
        Allocates a scratch buffer of the kernel (`Allocate`).
    fill : callable
        Takes a buffer and words, shape (vectors, sublanes, lanes), and has the words copied to the
        buffer before the kernel runs.
    known : mapping of Value to int, optional
        The word of each operand that is a constant with equal elements.
    reads : list of Value, optional
        An empty list, to which `scalar` appends operands. When the kernel begins, the window of
        scalar memory must hold the first row of each of them, in the order of the list. If
        ``reads`` is not given, the kernel copies vectors to the window itself.
    counters : mapping of Value to (int, Affine), optional
        For each operand that is an affine function of a loop counter: the address of the counter in
        scalar memory, and the function.
    homes : mapping of Value to Rows, optional
        HBM rows of operands that the kernel may load itself, and of results that it may store.

    Attributes
    ----------
    transferred : dict of str to Value
        The values of ``homes`` that the kernel loads or stores itself. Keys are the symbols that
        the code uses for the numbers of their first rows.
    cycles : int or None
        Predicted cycles of a kernel that waits for transfers of its own; None: not predicted.
    is_free : callable
        Returns whether a given number of consecutive vectors is free; by default always true.
    reads_window : bool
        Whether the kernel copies vectors to the window of scalar memory.
    section : range, RangeAt or None
        The vectors of the results to compute; None for all.
    send : callable or None
        Writes code that starts to send the first vectors of a product's result (`Lowering.send`).
    memory : ScalarMemory
        Address map of scalar memory.
    meanwhile : callable or None
        Chooses where a product lets other code run (`Lowering.meanwhile`).
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
        self.section: range | RangeAt | None = None
        self.send: Callable[[], None] | None = None
        self.meanwhile: Meanwhile | None = None
        self.memory = ScalarMemory(config)
        self._constants: dict[bytes, VmemBuffer] = {}

    @property
    def config(self) -> Config:
        """The chip."""
        return self._config

    @property
    def builder(self) -> Builder:
        """The builder that receives the kernel's code."""
        return self._builder

    @property
    def smem(self) -> range:
        """Addresses of the words of scalar memory that the kernel may use freely."""
        return self.memory.kernel

    def place(self, value: Value) -> Place:
        """Return the buffer and tiling of an operand or result.

        Buffers of different values do not overlap, except that a result may have the buffer of an
        operand that is not used again.
        """
        return self._places[value]

    def can_transfer(self, value: Value) -> bool:
        """Return whether the kernel may load ``value`` from HBM, or store it there, itself."""
        return value in self._homes

    def transfer(self, value: Value) -> SReg:
        """Let the kernel itself transfer a value that satisfies `can_transfer`.

        Return a scalar register that holds the number of the value's first HBM row.
        """
        symbol = f"home{len(self.transferred)}"
        self.transferred[symbol] = value
        return self._builder.symbol(symbol)

    def predict(self, cycles: int) -> None:
        """Set the predicted cycles of a kernel that waits for transfers of its own."""
        self.cycles = cycles

    def scratch(self, vectors: int) -> VmemBuffer:
        """Allocate a scratch buffer of ``vectors`` vectors; its contents are undefined."""
        return self._allocate("scratch", vectors)

    def spare(self, vectors: int) -> VmemBuffer | None:
        """Allocate a scratch buffer of ``vectors`` vectors, unless that would evict values.

        In that case, allocate nothing and return None.
        """
        return self.scratch(vectors) if self.is_free(vectors) else None

    def constant(self, words: npt.NDArray[Any]) -> VmemBuffer:
        """Return a buffer that holds constant ``words``, shape (vectors, sublanes, lanes).

        Equal constants share a buffer, so the kernel must not write to it.

        Raises
        ------
        ValueError
            If ``words`` does not have this shape.
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
        """Write code that reads a one-element operand; return the scalar register that gets it.

        For a constant, the code contains the number itself.
        """
        if value in self._known:
            return self._builder.value(self._known[value])
        if value in self._counters:
            return self._counted(*self._counters[value])
        if self._reads is not None and (
                value in self._reads or len(self._reads) < self.memory.reads):
            if value not in self._reads:
                self._reads.append(value)
            row = self._reads.index(value)
            return self._builder.smem_load(self.memory.window.start + row * self._config.lanes)
        return self._builder.smem_load(self.scalars(self.place(value).buffer, 0))

    def _counted(self, address: int, value: Affine) -> SReg:
        """Write code that computes ``value`` from a counter; return the register with the result.

        ``value`` is an affine function of the counter that is at ``address`` in scalar memory.
        """
        counter = self._builder.smem_load(address)
        if value.factor == 0:
            return self._builder.value(value.offset)
        if value.factor < 0:
            return self._builder.scalar("sub", self._builder.value(value.offset), counter)
        return self._builder.scalar("add", counter, value.offset) if value.offset else counter

    def scalars(self, buffer: VmemBuffer, index: IndexLike) -> int:
        """Write code that copies vector ``index`` of ``buffer`` to scalar memory.

        Return the address in scalar memory: element (sublane, lane) is the word at this address
        plus ``sublane * lanes + lane``. The words are valid until the next call of this method or
        of `scalar`: both may overwrite them. The code of this method also overwrites words that the
        code of earlier calls of `scalar` reads. So a rule that uses both methods must call `scalar`
        first, and outside of loops, which would repeat these reads.
        """
        # From now on, the window does not hold the operands that `scalar` has put there.
        self._reads = None
        self.reads_window = True
        descriptor = self.memory.to_window
        self._builder.smem_store(self._builder.value(index + buffer.address),
                                 descriptor + _SOURCE_WORD)
        self._builder.dma(descriptor)
        self._builder.wait(SCALAR_READ, 1)
        return self.memory.window.start


@cache
def load_rules() -> None:
    """Import all modules of `sim.compiler.kernels`, which register their rules."""
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)


def lower(operation: Operation, at: KernelLowering) -> None:
    """Write the code of an operation to ``at``, by the lowering rule of the operation's kind.

    Raises
    ------
    NotImplementedError
        If the kind has no rule.
    """
    load_rules()
    found = rule(operation.kind)
    if found is None:
        raise NotImplementedError(f"{operation.kind} has no lowering rule")
    found(operation, at)


def emit_kernel(config: Config, operation: Operation, builder: Builder,
                allocate: Callable[[int], VmemBuffer] | None) -> tuple[MachineCode, Code]:
    """Schedule a kernel and assign its registers.

    ``allocate``, if given, allocates the buffers to which vector registers are spilled.

    Return the kernel on virtual registers, and its final code.

    Raises
    ------
    UnsupportedError
        If the core has too few registers; the message names the user's source line.
    """
    machine = builder.finish()
    try:
        code = emit(machine, config, allocate=allocate)
    except RegisterPressureError as error:
        raise UnsupportedError([Unsupported(
            f"{operation.kind} whose kernel needs too many registers ({error})",
            str(operation.location or ""),
            "compute fewer values in one expression, or reduce fewer arrays at once")
        ]) from error
    if (folder := dump_folder()) is not None:
        dump_kernel(folder / "kernels", operation.kind, machine, code)
    return machine, code
