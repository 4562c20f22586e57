"""Scalar values that the code of a sum keeps, in registers or in scalar memory."""

from dataclasses import dataclass

from sim.compiler.machine.builder import Builder, ScalarValue
from sim.compiler.machine.ir import SReg

__all__ = ["KEPT_WORDS", "Kept", "Variable"]

KEPT_WORDS = 24
"""Maximum number of values."""


class Kept:
    """Keeps values for later code of a sum.

    If the sum is written in steps (`StreamedSum.steps`), they are in scalar memory, because other
    code uses the registers between the steps.

    Parameters
    ----------
    b : Builder
        Receives the code.
    room : range
        Words of scalar memory for the values; no words if they are to be in registers.

    Attributes
    ----------
    b : Builder
    count : int
        Number of values so far.
    """

    def __init__(self, b: Builder, room: range) -> None:
        self.b, self.count, self._room = b, 0, room

    def new(self, value: ScalarValue) -> "Variable":
        """Write code that keeps ``value``."""
        address = self._room[self.count] if self._room else None
        self.count += 1
        made = Variable(self, self.b.value(value), address)
        if address is not None:
            self.b.smem_store(made.register, address)
        return made


@dataclass(frozen=True)
class Variable:
    """A value that is kept.

    Attributes
    ----------
    kept : Kept
    register : SReg
        The register that holds the value, if it is not in scalar memory.
    address : int or None
        Its address in scalar memory.
    """

    kept: Kept
    register: SReg
    address: int | None

    @property
    def value(self) -> SReg:
        """A register that holds the value."""
        return self.register if self.address is None else self.kept.b.smem_load(self.address)

    def assign(self, value: ScalarValue) -> SReg:
        """Write code that changes the value; return a register that holds it."""
        b = self.kept.b
        if self.address is None:
            b.assign(self.register, b.value(value) if isinstance(value, int) else value)
            return self.register
        register = b.value(value)
        b.smem_store(register, self.address)
        return register

    def add(self, value: int) -> SReg:
        """Write code that adds a number to the value; return a register that holds the sum."""
        return self.assign(self.value + value)
