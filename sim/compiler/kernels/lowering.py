"""The table of lowering rules, and the interface that a rule uses.

A rule writes the machine code of one operation:

    @lowers("negate")
    def negate(operation: Operation, at: Lowering) -> None:
        ...

The operation's operands and results lie in vector memory. A second function, next to the rule, may
say which tilings the rule accepts:

    @chooses("negate")
    def negate_tilings(operation, operands, config) -> Choice:
        return Choice(operands, (operands[0],))

Without that function, all operands and results have their standard tilings. If an operand has
another tiling, the compiler copies it (``relayout``) first.

A third function says which operations the rule does not support. A program with such an operation
is refused before any kernel is written:

    @refuses("negate")
    def negate_refused(operation) -> Refusal | None:
        ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.machine import RangeAt
from sim.compiler.tiling import Tiling, standard

__all__ = ["Choice", "Chooser", "Lowering", "Meanwhile", "Place", "Refusal", "Rule", "choose",
           "chooses", "lowers", "refusal", "refuses", "rule"]


@dataclass(frozen=True)
class Place:
    """The location of a value while a kernel runs.

    Attributes
    ----------
    buffer : VmemBuffer
        The value's vectors in vector memory.
    tiling : Tiling
        How the value's elements lie in the vectors.
    """

    buffer: Any
    tiling: Tiling


class Lowering(Protocol):
    """Interface that a rule uses to write the code of an operation."""

    @property
    def config(self) -> Config:
        """Configuration of the chip."""

    @property
    def builder(self) -> Any:
        """The `Builder` to which the rule writes the code."""

    @property
    def smem(self) -> range:
        """Addresses of the words of scalar memory that the kernel may use freely."""

    @property
    def section(self) -> range | RangeAt | None:
        """The vectors of the results, by number, that the kernel must compute; None means all.

        Only elementwise kernels without nested loops (`is_flat`) have a section.
        """

    @property
    def send(self) -> Callable[[], None] | None:
        """Writes code that starts to send the first vectors of a product's result to another core.

        `sim.compiler.kernels.products.dot.sent_early` returns how many vectors these are. A kernel
        calls the function at most once. None if the kernel must not send.
        """

    @property
    def meanwhile(self) -> "Meanwhile | None":
        """Function that chooses the steps of a kernel before which other code runs, or None.

        It returns functions that write this code. A kernel must call each of them once, in order.
        """

    def place(self, value: Value) -> Place:
        """Return the location of an operand or a result.

        Values do not overlap, except that a result may share the vectors of an operand that no
        later operation uses.
        """

    def can_transfer(self, value: Value) -> bool:
        """Whether the kernel itself may load the operand, or store the result, ``value``."""

    def transfer(self, value: Value) -> Any:
        """Let the kernel itself transfer an operand or a result between HBM and its place.

        `can_transfer` must be true for the value. Returns a scalar register with the number of the
        value's first row of HBM; its other rows follow in the order of its vectors. The kernel must
        wait for the transfers that it starts.
        """

    def predict(self, cycles: int) -> None:
        """Report the estimated cycles of this kernel, its waits for its own transfers included.

        A kernel that calls `transfer` must call this, too.
        """

    def scratch(self, vectors: int) -> Any:
        """Allocate a `VmemBuffer` of ``vectors`` undefined vectors, for this kernel only."""

    def spare(self, vectors: int) -> Any:
        """Allocate like `scratch`, but return None if the allocation would evict a value."""

    def constant(self, words: npt.NDArray[np.uint32]) -> Any:
        """Return a `VmemBuffer` that holds constant ``words``, shape (vectors, sublanes, lanes)."""

    def scalar(self, value: Value) -> Any:
        """Write code that reads a one-element operand; return the scalar register that gets it."""

    def scalars(self, buffer: Any, index: Any) -> int:
        """Write code that copies vector ``index`` of ``buffer`` to scalar memory.

        Returns the address, in scalar memory, of the element at sublane 0 and lane 0. The element
        at (sublane, lane) is sublane * lanes + lane words after it. The elements stay there until
        the next call of this method or of `scalar`.
        """


Meanwhile = Callable[[int, int], Mapping[int, Callable[[], None]]]
"""Chooses the iterations of a loop before which other code runs.

Its arguments are the loop's number of iterations and the cycles of one iteration. It returns
functions, by the number of an iteration: each writes the code that runs before this iteration. That
code changes no register of the loop, and uses neither the array, nor the cross-lane unit, nor the
vectors of the kernel."""


@dataclass(frozen=True)
class Choice:
    """Tilings of an operation's operands and results, as its rule expects them.

    Attributes
    ----------
    operands, results : tuple of Tiling
        One for each operand and result, in order.
    """

    operands: tuple[Tiling, ...]
    results: tuple[Tiling, ...]


@dataclass(frozen=True)
class Refusal:
    """The reason why no kernel can be written for an operation.

    Attributes
    ----------
    what : str
        The operation or property that is not supported.
    advice : str
        What to write instead.
    """

    what: str
    advice: str


Rule = Callable[[Operation, Lowering], None]
Chooser = Callable[[Operation, tuple[Tiling, ...], Config], Choice]
"""Function that returns the `Choice` for an operation, given its operands' current tilings."""
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
    """Register the function that chooses tilings for kinds of operations.

    Raises
    ------
    ValueError
        If a kind has such a function already.
    """
    return _register(_CHOOSERS, kinds)


def refuses(*kinds: str) -> Callable[[_F], _F]:
    """Register the function that refuses unsupported operations of these kinds.

    Raises
    ------
    ValueError
        If a kind has such a function already.
    """
    return _register(_REFUSERS, kinds)


_T = TypeVar("_T")


def _register(table: dict[str, Any], kinds: tuple[str, ...]) -> Callable[[_T], _T]:
    def register(function: _T) -> _T:
        for kind in kinds:
            if kind in table:
                raise ValueError(f"{kind} must have only one rule; a second one was registered")
            table[kind] = function
        return function

    return register


def rule(kind: str) -> Rule | None:
    """Return the lowering rule for operations of kind ``kind``; None if there is no rule."""
    return _RULES.get(kind)


def refusal(operation: Operation) -> Refusal | None:
    """Return why no kernel can be written for ``operation``; None if a kernel can be written."""
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
        The current tilings of the operands.
    config : Config
        Configuration of the chip.
    """
    chooser = _CHOOSERS.get(operation.kind)
    if chooser is not None:
        return chooser(operation, operands, config)
    return Choice(tuple(standard(value.shape, config) for value in operation.operands),
                  tuple(standard(value.shape, config) for value in operation.results))
