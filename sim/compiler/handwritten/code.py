"""Bundles, labels and loops of a program that is written by hand."""

from typing import Any

from sim.asm.assembler import Assembler
from sim.asm.operands import s

__all__ = ["Code"]


class Code:
    """Writes bundles to an assembler, with a prefix for all labels.

    An operation is a tuple of slot, name and operands; strings among the operands are labels.

    Parameters
    ----------
    asm : Assembler
        Where the bundles go.
    prefix : str
        Makes the labels unique in the program.
    counter : Scalar
        Scalar register that counts the iterations of loops.
    """

    def __init__(self, asm: Assembler, prefix: str, counter: Any) -> None:
        self._asm = asm
        self._prefix = prefix
        self._counter = counter
        self._labels = 0

    def _bundle(self, *operations: tuple[Any, ...]) -> None:
        """Write a bundle."""
        with self._asm.bundle() as bundle:
            for slot, name, *operands in operations:
                bundle.operation(slot, name, *(
                    self._prefix + operand if isinstance(operand, str) else operand
                    for operand in operands))

    def _label(self, name: str) -> None:
        """Put a label before the next bundle."""
        self._asm.label(self._prefix + name)

    def _set(self, *values: tuple[Any, Any]) -> None:
        """Set scalar registers to numbers or other registers, two in a bundle."""
        for first in range(0, len(values), 2):
            self._bundle(*(
                (slot, "add", register, s[0], value)
                for slot, (register, value) in zip(("s0", "s1"), values[first:first + 2],
                                                   strict=False)))

    def _jump(self, label: str) -> None:
        """Write a bundle that jumps."""
        self._bundle(("s1", "jump", label))

    def _name(self, prefix: str) -> str:
        """Make a new label's name."""
        self._labels += 1
        return f"{prefix}_{self._labels}"

    def _repeat(self, times: int | None, body: list[list[tuple[Any, ...]]]) -> None:
        """Write a loop over bundles; the last one must leave slot s1 free.

        If ``times`` is None, the counter is already set.
        """
        if times == 0:
            return
        label = self._name("loop")
        if times != 1:
            if times is not None:
                self._set((self._counter, times))
            self._label(label)
            body[-1].append(("s1", "loop", self._counter, label))
        for bundle in body:
            if bundle:
                self._bundle(*bundle)
