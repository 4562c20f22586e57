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
"""A scalar source; a float is its bits."""


class Flow(ABC):
    """Base class of `Builder`: the code under construction, with loops and branches.

    Parameters
    ----------
    config : Config

    Raises
    ------
    TypeError
        If ``config`` is something else.
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
        """The chip."""
        return self._config

    def finish(self) -> MachineCode:
        """The code so far.

        Raises
        ------
        ValueError
            If a loop or branch is open.
        """
        if self._block is not self._body:
            raise ValueError("loops and branches must be closed before the code is finished")
        return MachineCode(self._config, self._body, self._count)

    @contextmanager
    def loop(self, count: int | SReg) -> Iterator[LoopVariable]:
        """A loop: ``with b.loop(count) as i``, with i from 0 to ``count`` - 1.

        Parameters
        ----------
        count : int or SReg
            Number of iterations, at least 1.

        Raises
        ------
        TypeError, ValueError
            If the count is something else.
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
        """A loop that ends by its own condition: its body calls `again` last."""
        loop = Loop(LoopVariable(self._number()), None)
        self._open.add(loop.variable)
        with self._inside(loop.body):
            yield loop
        self._open.remove(loop.variable)
        if loop.again is None:
            raise ValueError("the body of a repeat must end with a call of again")
        self._block.append(loop)

    def again(self, loop: Loop, name: str, a: ScalarValue, b: ScalarValue) -> None:
        """Repeat the loop of `repeat` if the condition holds; the last call of its body."""
        if self._block is not loop.body:
            raise ValueError("again must be called in the body of its loop")
        loop.again = self._condition(name, a, b)

    @contextmanager
    def when(self, name: str, a: ScalarValue, b: ScalarValue) -> Iterator[None]:
        """Execute what the body writes only if the condition holds.

        Parameters
        ----------
        name : str
            `eq`, `ne`, `lt`, `ge`, `ltu` or `geu`.
        a, b
            Scalars.
        """
        branch = Branch(self._condition(name, a, b))
        with self._inside(branch.then):
            yield
        self._block.append(branch)

    @contextmanager
    def unless(self, name: str, a: ScalarValue, b: ScalarValue) -> Iterator[None]:
        """Execute what the body writes only if the condition does not hold."""
        branch = Branch(self._condition(name, a, b).inverse)
        with self._inside(branch.then):
            yield
        self._block.append(branch)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other case of the `when` or `unless` that ends just before.

        Raises
        ------
        ValueError
            If there is none.
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
        """A scalar source: a register, or a word."""

    @abstractmethod
    def _register(self, source: SReg | int) -> SReg:
        """A register that holds a scalar source."""
