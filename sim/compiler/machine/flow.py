"""Control flow of the builder: loops and branches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from hdl.checks import instance
from hdl.config import Config
from sim.compiler.machine.ir import (
    Block,
    Branch,
    Condition,
    Index,
    Loop,
    LoopVariable,
    MachineCode,
    SReg,
)

__all__ = ["Flow", "ScalarValue"]

ScalarValue: TypeAlias = SReg | LoopVariable | Index | int | float
"""A scalar source; a float means its 32 bits as fp32."""


class Flow(ABC):
    """Base class of `Builder`: the code under construction, with loops and branches.

    Parameters
    ----------
    config : Config

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        self._body: Block = []
        self._block = self._body
        self._open: set[LoopVariable] = set()
        self._count = 0

    @property
    def config(self) -> Config:
        """Configuration of the chip."""
        return self._config

    def finish(self) -> MachineCode:
        """Return the code that has been written.

        Raises
        ------
        ValueError
            If a loop or branch is still open.
        """
        if self._block is not self._body:
            raise ValueError("loops and branches must be closed before the code is finished")
        return MachineCode(self._config, self._body, self._count)

    @contextmanager
    def loop(self, count: int | SReg) -> Iterator[LoopVariable]:
        """Open a loop: ``with b.loop(count) as i`` runs its body with i from 0 to ``count`` - 1.

        Parameters
        ----------
        count : int or SReg
            Number of iterations, at least 1.

        Raises
        ------
        TypeError
            If the count is neither an integer nor a scalar register.
        ValueError
            If an integer count is not from 1 to 2**31 - 1.
        """
        if not isinstance(count, SReg):
            if isinstance(count, bool) or not hasattr(count, "__index__"):
                raise TypeError(f"count must be an integer or a scalar register, not {count!r}")
            count = count.__index__()
            if not 1 <= count < 1 << 31:
                raise ValueError(f"count must be from 1 to 2**31 - 1, not {count!r}")
        loop = Loop(LoopVariable(self._number()), count)
        self._open.add(loop.variable)
        with self._inside(loop.body):
            yield loop.variable
        self._open.remove(loop.variable)
        self._block.append(loop)

    @contextmanager
    def repeat(self) -> Iterator[Loop]:
        """Open a loop that repeats as long as the condition of `again` holds.

        `again` must be the last call in the body of the loop.
        """
        loop = Loop(LoopVariable(self._number()), None)
        self._open.add(loop.variable)
        with self._inside(loop.body):
            yield loop
        self._open.remove(loop.variable)
        if loop.again is None:
            raise ValueError("the body of a repeat must end with a call of again")
        self._block.append(loop)

    def again(self, loop: Loop, name: str, a: ScalarValue, b: ScalarValue) -> None:
        """Set the condition under which the loop of `repeat` runs its body again.

        ``name`` is the comparison of ``a`` with ``b``, as in `when`. This must be the last call in
        the body of the loop.
        """
        if self._block is not loop.body:
            raise ValueError("again must be called directly in the body of its repeat")
        loop.again = self._condition(name, a, b)

    @contextmanager
    def when(self, name: str, a: ScalarValue, b: ScalarValue) -> Iterator[None]:
        """Open a branch: the code written in its body runs only if the condition holds.

        Parameters
        ----------
        name : str
            The comparison of ``a`` with ``b``: `eq`, `ne`, `lt`, `ge`, `ltu` or `geu`.
        a, b
            Scalar sources.
        """
        branch = Branch(self._condition(name, a, b))
        with self._inside(branch.then):
            yield
        self._block.append(branch)

    @contextmanager
    def unless(self, name: str, a: ScalarValue, b: ScalarValue) -> Iterator[None]:
        """Open a branch: the code written in its body runs only if the condition does not hold.

        The parameters are those of `when`.
        """
        branch = Branch(self._condition(name, a, b).inverse)
        with self._inside(branch.then):
            yield
        self._block.append(branch)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Open the other case of the `when` or `unless` that has just ended.

        Raises
        ------
        ValueError
            If the last item written is not a `when` or `unless`.
        """
        branch = self._block[-1] if self._block else None
        if not isinstance(branch, Branch) or branch.otherwise:
            raise ValueError("otherwise must follow a when or unless")
        with self._inside(branch.otherwise):
            yield

    @contextmanager
    def _inside(self, block: Block) -> Iterator[None]:
        outer, self._block = self._block, block
        yield
        assert self._block is block
        self._block = outer

    def _condition(self, name: str, a: ScalarValue, b: ScalarValue) -> Condition:
        names = ("eq", "ne", "lt", "ge", "ltu", "geu")
        if name not in names:
            raise ValueError(f"condition must be one of {', '.join(names)}, not {name!r}")
        return Condition(name, self._register(self._source(a)), self._source(b))

    def _number(self) -> int:
        self._count += 1
        return self._count

    @abstractmethod
    def _source(self, value: ScalarValue) -> SReg | int:
        """Convert a scalar operation's source to a register or a word; write code if needed."""

    @abstractmethod
    def _register(self, source: SReg | int) -> SReg:
        """Return a scalar register that holds ``source``; write code if it is a number."""
