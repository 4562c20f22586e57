"""Operands of the assembler: registers, immediates, and numbers as 32-bit words."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from hdl import isa
from hdl.checks import integer

__all__ = [
    "REGISTERS", "Immediate", "Mask", "Number", "Register", "Scalar", "Semaphore", "SlotMethods",
    "Source", "Target", "Vector", "VectorSource", "imm", "m", "s", "sem", "v", "word",
]


@dataclass(frozen=True)
class Register:
    """A register of a register bank.

    Parameters
    ----------
    number : int
        Number of the register, from 0.

    Raises
    ------
    TypeError
        If the number is not an integer.
    ValueError
        If the bank has no such register.
    """

    number: int
    prefix: ClassVar[str]
    count: ClassVar[int]
    noun: ClassVar[str]

    def __post_init__(self) -> None:
        number = integer(f"{self.noun} number", self.number, 0, self.count - 1)
        object.__setattr__(self, "number", number)

    def __str__(self) -> str:
        return f"{self.prefix}{self.number}"

    def __repr__(self) -> str:
        return f"{self.prefix}[{self.number}]"


class Scalar(Register):
    """A scalar register."""

    prefix, count, noun = "s", isa.SCALAR_REGISTERS, "scalar register"


class Vector(Register):
    """A vector register."""

    prefix, count, noun = "v", isa.VECTOR_REGISTERS, "vector register"


class Mask(Register):
    """A mask register."""

    prefix, count, noun = "m", isa.MASKS, "mask register"


class Semaphore(Register):
    """A semaphore."""

    prefix, count, noun = "sem", isa.SEMAPHORES, "semaphore"


class Immediate(Register):
    """An immediate of the bundle, for programs that assign immediates themselves."""

    prefix, count, noun = "imm", isa.IMMEDIATES, "immediate"


REGISTERS: dict[str, type[Register]] = {
    kind.prefix: kind for kind in (Scalar, Vector, Mask, Semaphore, Immediate)}
"""Classes of registers and of immediates, by the prefix of the registers' names."""

_R = TypeVar("_R", bound=Register)


class _Bank(Generic[_R]):
    """The registers of one kind: indexing by a number returns the register."""

    def __init__(self, kind: type[_R]) -> None:
        self._kind = kind

    def __getitem__(self, number: "int | np.integer[Any]") -> _R:
        return self._kind(int(number) if isinstance(number, np.integer) else number)

    def __len__(self) -> int:
        return self._kind.count


s = _Bank(Scalar)
"""Scalar registers: ``s[3]``."""
v = _Bank(Vector)
"""Vector registers: ``v[3]``."""
m = _Bank(Mask)
"""Mask registers: ``m[3]``."""
sem = _Bank(Semaphore)
"""Semaphores: ``sem[3]``."""
imm = _Bank(Immediate)
"""Immediates of the bundle: ``imm[3]``."""

Number: TypeAlias = "int | float | np.integer[Any] | np.floating[Any]"
"""A signed or unsigned integer of 32 bits, or a float, which is rounded to fp32."""
Source: TypeAlias = "Scalar | Immediate | Number | str"
"""A scalar source; a string is a label, whose address is the value."""
VectorSource: TypeAlias = "Vector | Source"
"""A vector source; a scalar source is broadcast to every element."""
Target: TypeAlias = "Immediate | int | str"
"""The target of a branch: an address, a label, or an immediate that holds the address."""


def word(value: Number) -> int:
    """Return the 32-bit word that encodes a number.

    An integer is encoded modulo 2**32. A float becomes the bits of the nearest fp32 number, ties to
    even; NaN becomes 7FC00000.

    Raises
    ------
    TypeError
        If the value is neither an integer nor a float.
    ValueError
        If an integer is not from -2**31 to 2**32 - 1, or a finite float rounds to infinity.
    """
    if isinstance(value, (float, np.floating)):
        if math.isnan(value):
            return 0x7FC00000
        with np.errstate(over="ignore", under="ignore"):
            rounded = np.float32(value)
        if np.isinf(rounded) and not math.isinf(value):
            raise ValueError(f"a float must be within the range of fp32, not {value!r}")
        return int(rounded.view(np.uint32))
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"a number must be an integer or a float, not {value!r}")
    value = operator.index(value)
    if not -1 << 31 <= value < 1 << 32:
        raise ValueError(f"an integer must be from -2**31 to 2**32 - 1, not {value!r}")
    return value & 0xFFFFFFFF


class SlotMethods:
    """Base class for `sim.asm.slots`: a slot whose methods are its operations.

    Parameters
    ----------
    put : callable
        Adds an operation to the slot, given its code and its operands in the order of the text
        form.
    """

    def __init__(self, put: Callable[..., None]) -> None:
        self.__put = put

    def _put(self, op: IntEnum, *operands: Any) -> None:
        self.__put(op, *operands)
