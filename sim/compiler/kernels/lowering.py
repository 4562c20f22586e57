"""The table of lowering rules, and what a rule is given.

A rule writes the machine code of one operation:

    @lowers("negate")
    def negate(operation: Operation, at: Lowering) -> None:
        ...

Its operands and results lie in vector memory. Next to it, a rule may say which tilings it takes:

    @chooses("negate")
    def negate_tilings(operation, operands, config) -> Choice:
        return Choice(operands, (operands[0],))

Without that, all operands and results have their standard tilings. The compiler copies an operand
that has another tiling (``relayout``) first.

What a rule does not support, it says next to it, too; the program is refused before any kernel is
written:

    @refuses("negate")
    def negate_refused(operation) -> Refusal | None:
        ...
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.tiling import Tiling, standard

__all__ = ["Choice", "Chooser", "Lowering", "Place", "Refusal", "Rule", "choose", "chooses",
           "lowers", "refusal", "refuses", "rule"]


@dataclass(frozen=True)
class Place:
    """Where a value lies while a kernel runs.

    Attributes
    ----------
    buffer : VmemBuffer
        Its vectors in vector memory.
    tiling : Tiling
        How its elements lie in them.
    """

    buffer: Any
    tiling: Tiling


class Lowering(Protocol):
    """Services for a rule that writes the code of an operation."""

    @property
    def config(self) -> Config:
        """The chip."""

    @property
    def builder(self) -> Any:
        """The `Builder` that takes the code."""

    @property
    def smem(self) -> range:
        """Words of scalar memory that the kernel may use as it likes."""

    def place(self, value: Value) -> Place:
        """Where an operand or a result lies.

        Values do not overlap; only a result may share the vectors of an operand that is not used
        again.
        """

    def can_transfer(self, value: Value) -> bool:
        """Whether the kernel may itself load an operand from HBM, or store a result there."""

    def transfer(self, value: Value) -> Any:
        """Take over the transfer of such a value between HBM and its place.

        Returns a scalar register with the number of its first row of HBM; its rows lie there in the
        order of its vectors. The kernel waits for the transfers that it starts.
        """

    def predict(self, cycles: int) -> None:
        """Say how many cycles a kernel takes that waits for transfers of its own."""

    def scratch(self, vectors: int) -> Any:
        """Allocate vectors (a `VmemBuffer`) for this kernel alone; their contents are undefined."""

    def spare(self, vectors: int) -> Any:
        """As `scratch`; None if too few vectors are free, so that no value has to leave."""

    def constant(self, words: npt.NDArray[np.uint32]) -> Any:
        """Make a `VmemBuffer` that holds constant ``words``, shape (vectors, sublanes, lanes)."""

    def scalar(self, value: Value) -> Any:
        """Write code that reads an operand of one element into a scalar register, and return it."""

    def scalars(self, buffer: Any, index: Any) -> int:
        """Write code that copies a vector to scalar memory, and return its address there.

        Element (sublane, lane) lies at the address plus sublane * lanes + lane, until the next
        call of this method or of `scalar` has the next vector copied.
        """


@dataclass(frozen=True)
class Choice:
    """Tilings that a rule takes and makes.

    Attributes
    ----------
    operands, results : tuple of Tiling
        One for each operand and result, in order.
    """

    operands: tuple[Tiling, ...]
    results: tuple[Tiling, ...]


@dataclass(frozen=True)
class Refusal:
    """Why no kernel can be written for an operation.

    Attributes
    ----------
    what : str
        What is not supported.
    advice : str
        What to write instead.
    """

    what: str
    advice: str


Rule = Callable[[Operation, Lowering], None]
Chooser = Callable[[Operation, tuple[Tiling, ...], Config], Choice]
"""Takes the operation, the tilings that its operands have, and the chip."""
Refuser = Callable[[Operation], Refusal | None]

_RULES: dict[str, Rule] = {}
_CHOOSERS: dict[str, Chooser] = {}
_REFUSERS: dict[str, Refuser] = {}
_R = TypeVar("_R", bound=Rule)
_C = TypeVar("_C", bound=Chooser)
_F = TypeVar("_F", bound=Refuser)


def lowers(*kinds: str) -> Callable[[_R], _R]:
    """Register a rule for kinds of operations.

    Raises
    ------
    ValueError
        If a kind has a rule already.
    """
    return _register(_RULES, kinds)


def chooses(*kinds: str) -> Callable[[_C], _C]:
    """Register what chooses tilings for kinds of operations.

    Raises
    ------
    ValueError
        If a kind has one already.
    """
    return _register(_CHOOSERS, kinds)


def refuses(*kinds: str) -> Callable[[_F], _F]:
    """Register what says which operations of these kinds have no kernel.

    Raises
    ------
    ValueError
        If a kind has one already.
    """
    return _register(_REFUSERS, kinds)


_T = TypeVar("_T")


def _register(table: dict[str, Any], kinds: tuple[str, ...]) -> Callable[[_T], _T]:
    def register(function: _T) -> _T:
        for kind in kinds:
            if kind in table:
                raise ValueError(f"{kind} must have one rule, not two")
            table[kind] = function
        return function

    return register


def rule(kind: str) -> Rule | None:
    """The rule for a kind of operation, or None."""
    return _RULES.get(kind)


def refusal(operation: Operation) -> Refusal | None:
    """Why no kernel can be written for an operation, or None if one can."""
    if rule(operation.kind) is None:
        return Refusal(operation.kind, "use operations that have a kernel")
    refuser = _REFUSERS.get(operation.kind)
    return refuser(operation) if refuser is not None else None


def choose(operation: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Choose the tilings of an operation's operands and results.

    Parameters
    ----------
    operation : Operation
    operands : tuple of Tiling
        The tilings that its operands have.
    config : Config
        The chip.
    """
    chooser = _CHOOSERS.get(operation.kind)
    if chooser is not None:
        return chooser(operation, operands, config)
    return Choice(tuple(standard(value.shape, config) for value in operation.operands),
                  tuple(standard(value.shape, config) for value in operation.results))
