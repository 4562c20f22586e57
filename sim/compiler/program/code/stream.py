"""A program's code as one stream of any number of bundles, with symbols in place of addresses.

`overlay` splits the stream into segments that fit instruction memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl.isa import BUNDLE_WORDS, Slot
from sim.asm.operands import s, sem
from sim.compiler.machine.emit import Code
from sim.compiler.program.code.encode import Fixup, Operations, encode
from sim.compiler.program.code.reserved import STAMP
from sim.compiler.program.code.transfers import Rows, TransferWords

__all__ = ["Label", "Linear", "Stream"]

Words: TypeAlias = npt.NDArray[np.uint32]
Integers: TypeAlias = npt.NDArray[np.int64]

_HIGH, _PART = s[7], s[8]
"""Scalar registers for the high word of an address, and for a number that is added to this word.
Like s1 to s4, they are also used by kernels, so they keep their values only until the transfer has
started."""


@dataclass(frozen=True, eq=False)
class Label:
    """Label of a bundle of a stream; labels are compared by identity, not by name."""

    name: str


@dataclass(frozen=True)
class Linear:
    """A program's encoded bundles, before they have addresses.

    Attributes
    ----------
    words : array of uint32, shape (bundles, BUNDLE_WORDS)
        The bundles; immediates that need an address are 0.
    branches : array of int64, shape (branches, 3)
        Number of a bundle, number of an immediate in it, and the bundle whose address goes there.
    transfers : array of int64, shape (references, 3)
        Number of a bundle, number of an immediate in it, and the number of the descriptor whose
        address goes there.
    descriptors : tuple of TransferWords
        All different descriptors.
    stamps : tuple of int
        Number of the empty bundle before each kernel.
    rows : tuple of (int, int, Rows)
        Number of a bundle, number of an immediate in it, and HBM rows; the number of the first of
        these rows goes there.
    reads_window : bool
        Whether kernels start the transfer to the window of scalar memory.
    """

    words: Words
    branches: Integers
    transfers: Integers
    descriptors: tuple[TransferWords, ...]
    stamps: tuple[int, ...] = ()
    together: tuple[tuple[int, int], ...] = ()
    """Ranges of bundles, (first, end) without ``end``. All bundles of a range must be in the same
    segment, because they change a descriptor in that segment's scalar image."""
    rows: tuple[tuple[int, int, Rows], ...] = ()
    reads_window: bool = True
    fine: tuple[tuple[int, int], ...] = ()
    """Ranges of bundles, (first, end) without ``end``, in which segments are to be short.

    Transfers that these bundles start wait until the next segment is loaded; short segments are
    loaded sooner."""
    begins: tuple[int, ...] = ()
    """Numbers of bundles with which a segment is to begin."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Ranges of bundles, (first, end) without ``end``, in which a load of code delays little.

    If code after ``end`` is not in the same segment, a segment is to begin with bundle ``end``, and
    its load before bundle ``first``."""


class Stream:
    """Collects a program's code, bundle after bundle."""

    def __init__(self) -> None:
        self._words: list[Words] = []
        self._pending: list[Operations] = []
        self._length = 0
        self._fixups: list[Fixup] = []
        self._places: dict[Label, int] = {}
        self._descriptors: dict[TransferWords, int] = {}
        self._stamps: list[int] = []
        self._together: list[tuple[int, int]] = []
        self._fine: list[tuple[int, int]] = []
        self._begins: list[int] = []
        self._gaps: list[tuple[int, int]] = []
        self.reads_window = False
        self._numbers = count()
        self._deferred: Callable[[], None] | None = None

    def defer(self, write: Callable[[], None]) -> None:
        """Postpone a call of ``write``, which may append code, until right before further code."""
        self._write_deferred()
        self._deferred = write

    @property
    def is_deferring(self) -> bool:
        """Whether the function given to `defer` is still to be called."""
        return self._deferred is not None

    def _write_deferred(self) -> None:
        if self._deferred is not None:
            write, self._deferred = self._deferred, None
            write()

    @property
    def here(self) -> int:
        """Index that the next appended bundle will have in the code."""
        self._write_deferred()
        return self._length

    def label(self, name: str = "") -> Label:
        """Return a new label whose name begins with ``name``; `bind` gives it a bundle later."""
        return Label(f"{name}{next(self._numbers)}")

    def bind(self, label: Label) -> None:
        """Bind a label to the next bundle."""
        assert label not in self._places, label
        self._write_deferred()
        self._places[label] = self._length

    def bundle(self, *operations: tuple[Slot, str, tuple[Any, ...]]) -> None:
        """Append a bundle; a label or `TransferWords` as operand is replaced by its address."""
        self._write_deferred()
        self._pending.append(operations)
        self._length += 1

    def start(self, transfer: TransferWords) -> None:
        """Append code that starts a transfer.

        If the transfer has terms (`TransferWords.terms`), the code adds them to a copy of the
        descriptor and starts the transfer from the copy; the original stays unchanged.
        """
        if not transfer.terms:
            self.bundle((Slot.MISC, "dma", (transfer,)))
            return
        first, copy = self.here, replace(transfer, copy=True)
        self.bundle((Slot.S0, "add", (s[1], s[0], transfer)), (Slot.S1, "add", (s[2], s[0], copy)))
        for word in sorted({word for word, _, _ in transfer.terms}):
            wide = word in transfer.wide_words
            self.bundle((Slot.S0, "load", (s[3], s[1], word)))
            if wide:
                self.bundle((Slot.S0, "load", (_HIGH, s[1], word + 1)))
            for at, address, factor in transfer.terms:
                if at == word:
                    self.bundle((Slot.S0, "load", (s[4], s[0], address)))
                    self.bundle((Slot.S0, "mul", (s[4], s[4], factor)))
                    if wide:
                        self._add_rows(transfer.row_bits)
                    else:
                        self.bundle((Slot.S0, "add", (s[3], s[3], s[4])))
            self.bundle((Slot.S0, "store", (s[3], s[2], word)))
            if wide:
                self.bundle((Slot.S0, "store", (_HIGH, s[2], word + 1)))
        self.bundle((Slot.MISC, "dma", (s[2],)))
        self._together.append((first, self._length))

    def _add_rows(self, row_bits: int) -> None:
        """Append code that adds s4 * 2**row_bits bytes to an address of 64 bits.

        The low word of the address is in s3, and the high word in `_HIGH`.
        """
        self.bundle((Slot.S0, "sar", (_PART, s[4], 32 - row_bits)))
        self.bundle((Slot.S0, "add", (_HIGH, _HIGH, _PART)))
        self.bundle((Slot.S0, "shl", (s[4], s[4], row_bits)))
        self.bundle((Slot.S0, "add", (s[3], s[3], s[4])))
        self.bundle((Slot.S0, "ltu", (_PART, s[3], s[4])))
        self.bundle((Slot.S0, "add", (_HIGH, _HIGH, _PART)))

    def wait(self, semaphore: int, amount: int) -> None:
        """Append a bundle that waits for a semaphore and subtracts ``amount`` from it."""
        self.bundle((Slot.MISC, "wait", (sem[semaphore], amount)))

    def stamp(self) -> None:
        """Append an empty bundle before a kernel; `Device.profile` replaces it by a halt."""
        self._stamps.append(self.here)
        self.bundle()

    def divide_finely(self, first: int) -> None:
        """Let segments be short (`Linear.fine`) from bundle number ``first`` to the last one."""
        self._fine.append((first, self.here))

    def begin_segment(self) -> None:
        """Let a segment begin with the next bundle (`Linear.begins`)."""
        self._begins.append(self.here)

    def end_gap(self, first: int) -> None:
        """Record a gap from bundle ``first`` to the last one (`Linear.gaps`)."""
        self._gaps.append((first, self.here))

    def jump(self, label: Label) -> None:
        """Append a bundle that jumps to a label."""
        self.bundle((Slot.S1, "jump", (label,)))

    def branch(self, name: str, register: int, value: int, label: Label) -> None:
        """Append a branch, such as ``beq``, that compares a scalar register with a value.

        Parameters
        ----------
        name : str
            Name of the branch operation.
        register : int
            Number of the scalar register.
        value : int
            Right-hand side of the comparison.
        label : Label
            Target of the branch.
        """
        self.bundle((Slot.S1, name, (s[register], value, label)))

    def halt(self) -> None:
        """Append the halt that ends the program; it also sets register `STAMP` to 0."""
        self.bundle((Slot.S1, "halt", ()), (Slot.S0, "add", (STAMP, s[0], 0)))

    def kernel(self, code: Code, symbols: Mapping[str, Rows | TransferWords] | None = None) -> None:
        """Append a kernel's code.

        ``symbols`` maps each symbol in the code to HBM rows or to a descriptor. The number of the
        first row, or the address of the descriptor, replaces the symbol.
        """
        self._write_deferred()
        self._flush()
        words, fixups = encode(code.bundles)
        first = self._length
        labels = {**self._kernel_labels(code.labels), **(symbols or {})}
        self._fixups += [(first + bundle, immediate, labels[symbol])
                         for bundle, immediate, symbol in fixups]
        self._words.append(words)
        self._length += len(words)

    def _kernel_labels(self, labels: Mapping[str, int]) -> dict[Any, Label]:
        """Make a bound label of the stream for each label of a kernel; return them by name."""
        made = {}
        for name, place in labels.items():
            made[name] = label = self.label(name)
            self._places[label] = self._length + place
        return made

    def _flush(self) -> None:
        """Encode the bundles that `bundle` has collected."""
        if self._pending:
            words, fixups = encode(self._pending)
            first = self._length - len(words)
            self._fixups += [(first + bundle, immediate, symbol)
                             for bundle, immediate, symbol in fixups]
            self._words.append(words)
            self._pending = []

    @property
    def longest_loop(self) -> int:
        """Number of bundles of the longest loop so far: from a target to a branch back to it."""
        self._write_deferred()
        self._flush()
        return max((bundle + 1 - self._places[symbol] for bundle, _, symbol in self._fixups
                    if isinstance(symbol, Label) and symbol in self._places), default=0)

    def finish(self) -> Linear:
        """Encode what is not yet encoded, and return the whole program's code.

        Raises
        ------
        KeyError
            If a label that is used has not been bound.
        """
        self._write_deferred()
        self._flush()
        branches, transfers, rows = [], [], []
        for bundle, immediate, symbol in self._fixups:
            if isinstance(symbol, Label):
                branches.append((bundle, immediate, self._places[symbol]))
            elif isinstance(symbol, Rows):
                rows.append((bundle, immediate, symbol))
            else:
                assert isinstance(symbol, TransferWords), symbol
                number = self._descriptors.setdefault(symbol, len(self._descriptors))
                transfers.append((bundle, immediate, number))
        empty = np.empty((0, BUNDLE_WORDS), np.uint32)
        return Linear(np.concatenate([empty, *self._words]), _table(branches), _table(transfers),
                      tuple(self._descriptors), tuple(self._stamps), tuple(self._together),
                      tuple(rows), self.reads_window, tuple(self._fine),
                      tuple(self._begins), tuple(self._gaps))


def _table(rows: list[tuple[int, int, int]]) -> Integers:
    return np.array(rows, np.int64).reshape(-1, 3)
