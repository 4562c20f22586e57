"""A program's code in one line, of any length: kernels, transfers and branches, with symbols.

`overlay` cuts it into segments that fit instruction memory.
"""

from collections.abc import Mapping
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
"""The high word of an address, and what is added to it; kernels' registers, as s1 to s4."""


@dataclass(frozen=True, eq=False)
class Label:
    """Names a bundle of a stream; compared by identity."""

    name: str


@dataclass(frozen=True)
class Linear:
    """Code without addresses.

    Attributes
    ----------
    words : array of uint32, shape (bundles, BUNDLE_WORDS)
    branches : array, shape (branches, 3)
        Bundle, number of its immediate, and the bundle whose address it needs.
    transfers : array, shape (started transfers, 3)
        Bundle, number of its immediate, and the descriptor whose address it needs.
    descriptors : tuple of TransferWords
    stamps : tuple of int
        The empty bundle before each kernel.
    rows : tuple of (int, int, Rows)
        Bundle, number of its immediate, and the rows the number of whose first it needs.
    reads_window : bool
        Kernels start the transfer to the window of scalar memory.
    """

    words: Words
    branches: Integers
    transfers: Integers
    descriptors: tuple[TransferWords, ...]
    stamps: tuple[int, ...] = ()
    together: tuple[tuple[int, int], ...] = ()
    """Ranges of bundles that must be in one segment, because they change a descriptor."""
    rows: tuple[tuple[int, int, Rows], ...] = ()
    reads_window: bool = True


class Stream:
    """Collects code in the order of addresses."""

    def __init__(self) -> None:
        self._words: list[Words] = []
        self._pending: list[Operations] = []
        self._length = 0
        self._fixups: list[Fixup] = []
        self._places: dict[Label, int] = {}
        self._descriptors: dict[TransferWords, int] = {}
        self._stamps: list[int] = []
        self._together: list[tuple[int, int]] = []
        self.reads_window = False
        self._numbers = count()

    @property
    def here(self) -> int:
        """Number of the next bundle."""
        return self._length

    def label(self, name: str = "") -> Label:
        """Make a label; `bind` gives it a place."""
        return Label(f"{name}{next(self._numbers)}")

    def bind(self, label: Label) -> None:
        """Put a label before the next bundle."""
        assert label not in self._places, label
        self._places[label] = self._length

    def bundle(self, *operations: tuple[Slot, str, tuple[Any, ...]]) -> None:
        """Append a bundle; labels and `TransferWords` among its operands become addresses."""
        self._pending.append(operations)
        self._length += 1

    def start(self, transfer: TransferWords) -> None:
        """Append the start of a transfer.

        One with terms is started from a copy of its descriptor, so that the addresses to which
        they are added stay as they are.
        """
        if not transfer.terms:
            self.bundle((Slot.MISC, "dma", (transfer,)))
            return
        first, copy = self._length, replace(transfer, copy=True)
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
        """Append the addition of the rows in s4 to the address in s3 and `_HIGH`."""
        self.bundle((Slot.S0, "sar", (_PART, s[4], 32 - row_bits)))
        self.bundle((Slot.S0, "add", (_HIGH, _HIGH, _PART)))
        self.bundle((Slot.S0, "shl", (s[4], s[4], row_bits)))
        self.bundle((Slot.S0, "add", (s[3], s[3], s[4])))
        self.bundle((Slot.S0, "ltu", (_PART, s[3], s[4])))
        self.bundle((Slot.S0, "add", (_HIGH, _HIGH, _PART)))

    def wait(self, semaphore: int, amount: int) -> None:
        """Append a wait."""
        self.bundle((Slot.MISC, "wait", (sem[semaphore], amount)))

    def stamp(self) -> None:
        """Append an empty bundle before a kernel, which becomes a stop for `Device.profile`."""
        self._stamps.append(self._length)
        self.bundle()

    def jump(self, label: Label) -> None:
        """Append a jump."""
        self.bundle((Slot.S1, "jump", (label,)))

    def branch(self, name: str, register: int, value: int, label: Label) -> None:
        """Append a branch (``beq``, …) that compares a scalar register with a number."""
        self.bundle((Slot.S1, name, (s[register], value, label)))

    def halt(self) -> None:
        """Append the end of the program, with 0 in `STAMP`."""
        self.bundle((Slot.S1, "halt", ()), (Slot.S0, "add", (STAMP, s[0], 0)))

    def kernel(self, code: Code, symbols: Mapping[str, Rows] | None = None) -> None:
        """Append a kernel's code; its symbols are the numbers of the first of some rows."""
        self._flush()
        words, fixups = encode(code.bundles)
        first = self._length
        labels = {**self._kernel_labels(code.labels), **(symbols or {})}
        self._fixups += [(first + bundle, immediate, labels[symbol])
                         for bundle, immediate, symbol in fixups]
        self._words.append(words)
        self._length += len(words)

    def _kernel_labels(self, labels: Mapping[str, int]) -> dict[Any, Label]:
        """Labels of the stream for those of a kernel."""
        made = {}
        for name, place in labels.items():
            made[name] = label = self.label(name)
            self._places[label] = self._length + place
        return made

    def _flush(self) -> None:
        """Encode what `bundle` took."""
        if self._pending:
            words, fixups = encode(self._pending)
            first = self._length - len(words)
            self._fixups += [(first + bundle, immediate, symbol)
                             for bundle, immediate, symbol in fixups]
            self._words.append(words)
            self._pending = []

    def finish(self) -> Linear:
        """All the code.

        Raises
        ------
        KeyError
            If a label has no place.
        """
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
                      tuple(rows), self.reads_window)


def _table(rows: list[tuple[int, int, int]]) -> Integers:
    return np.array(rows, np.int64).reshape(-1, 3)
