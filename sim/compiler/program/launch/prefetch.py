"""Prefetch: transfers that start before a kernel and overlap with it.

They load operands of the following operations, and save values that will be evicted from vector
memory. To find out whether there will be room, the values of the following operations are allocated
on a copy of the map of vector memory (`Trial`).
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from hdl.config import Config
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.elements import table
from sim.compiler.kernels.products.dot import loads_itself
from sim.compiler.kernels.products.phases import PhaseConvolution
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.context import Context
from sim.compiler.program.places.trial import Trial
from sim.compiler.program.tilings import CONTROL, HELD, Tilings

__all__ = ["AHEAD", "IN_PLACE", "Prefetch", "Upcoming"]

AHEAD = 10
"""Number of following operations whose operands are loaded while a kernel runs."""

IN_PLACE = frozenset({"dynamic_update_slice", "fusion", *table.KINDS})
"""Kinds of operations whose result may take the vectors of an operand."""

_SAVED = 4
"""Number of following operations to look ahead for evictions: a value that one of them will evict
is copied to HBM while a kernel runs.
"""
_SMALL = 32
"""A value smaller than 1 / ``_SMALL`` of vector memory is copied to HBM only when it is evicted."""
_LARGE = 4
"""An operand of at least 1 / _LARGE of vector memory is not prefetched if the product that uses it
can load it itself."""
_PATIENCE = 100
"""Maximum number of cycles for which the start of a transfer may hold the core."""
_RUNS = 2
"""A value is tried in this number of the smallest free runs, and of the largest ones."""


@dataclass(frozen=True)
class Upcoming:
    """An operation that follows the one whose kernel is written now.

    Attributes
    ----------
    operation : Operation
        The operation.
    dying : set of Value
        Operands of the operation that no later operation uses.
    distance : callable
        Maps a value to the index, in the graph, of the first operation that uses it: this one or a
        later one; to 2**30 if there is none.
    """

    operation: Operation
    dying: Set[Value]
    distance: Callable[[Value], int]

    def scratch(self, config: Config, tilings: Tilings) -> int:
        """Return how many scratch vectors the operation's kernel allocates; 0 if not known."""
        if self.operation.kind != "phase_convolution":
            return 0
        way = PhaseConvolution(self.operation, config, tilings[self.operation.operands[1]])
        return 0 if way.is_direct else way.vectors


class Prefetch:
    """Starts transfers right before a kernel, so that they overlap with the kernel.

    Parameters
    ----------
    context : Context
        Receives the code; knows the places of values.
    following : sequence of Upcoming
        The operations that come after the kernel.
    own : sequence of VmemBuffer
        Buffers that the kernel frees.
    dying : set of Value
        Values that are not used after the kernel.
    results : sequence of Value
        Results of the kernel, which cannot be saved before it has computed them.
    """

    def __init__(self, context: Context, following: Sequence[Upcoming],
                 own: Sequence[VmemBuffer], dying: Set[Value], results: Sequence[Value]) -> None:
        self._context = context
        self._places = context.places
        self._tilings = context.tilings
        self._own, self._dying, self._results = own, dying, results
        straight = next((number for number, item in enumerate(following)
                         if item.operation.kind in CONTROL), len(following))
        self._following = [item for item in following[:straight]
                           if item.operation.kind not in HELD
                           and not item.operation.attributes.get("in_hbm")]

    def write(self) -> None:
        """Write code that starts transfers which overlap with the kernel: loads, then saves."""
        if self._load():
            self._save()

    def _load(self) -> bool:
        """Start to load operands, in the order of their use.

        Returns False if the start of another transfer would hold the core for too long.
        """
        places = self._places
        for number, item in enumerate(self._following):
            for value in dict.fromkeys(item.operation.operands):
                if not places.can_prefetch(value) or self._is_left(item.operation, value):
                    continue
                first = self._address_for(value, number)
                if places.memory.clock.hold > _PATIENCE:
                    return False
                if first is None:
                    return True  # operands of later operations must not take the room
                places.prefetch(value, first)
        return True

    def _is_left(self, operation: Operation, value: Value) -> bool:
        """Return whether to leave the load of ``value`` to ``operation``, a product that reads it.

        The vectors that the operand needs then stay free until the product begins.
        """
        config = self._context.config
        return (self._context.own_transfers and operation.kind == "dot_general"
                and self._tilings[value].vectors * _LARGE >= config.vmem_vectors
                and loads_itself(operation, value, self._tilings, config,
                                 self._context.memory.kernel))

    def _address_for(self, value: Value, number: int) -> int | None:
        """Choose the address of vector memory at which to load a value; None if there is none.

        The value is an operand of operation ``number`` after the kernel, counted from 0. The load
        must not cause evictions up to that operation. The method tries several addresses and
        chooses the one with which all operations after the kernel evict the fewest vectors.
        """
        vectors, free = self._tilings[value].vectors, self._places.memory.free
        places = self._candidates(vectors)
        if number == 0 or free.largest >= vectors + self._most:
            return next(places, None)
        best: tuple[int, int] | None = None
        for first in places:
            early, late = self._leaving((value, first), number + 1)
            if early == 0 and (best is None or late < best[0]):
                best = late, first
            if best is not None and best[0] == 0:
                break
        return None if best is None else best[1]

    def _leaving(self, loaded: tuple[Value, int], number: int) -> tuple[int, int]:
        """Count the evictions that follow if a value is loaded; ``loaded`` is (value, address).

        Return two numbers: of values that are evicted by the first ``number`` operations after the
        kernel, and of vectors that are evicted by all operations after the kernel. The second
        number is valid only if the first is 0.
        """
        trial = self._trial(loaded)
        for item in self._following[:number]:
            self._try(trial, item)
        early = len(trial.evicted)
        for item in self._following[number:] if not early else ():
            self._try(trial, item)
        return early, sum(self._tilings[value].vectors for value in trial.evicted)

    def _candidates(self, vectors: int) -> Iterator[int]:
        """Yield the addresses of free vectors to try, that of `Places.next_address` first."""
        fitting = self._places.memory.free.fitting(vectors)
        if not fitting:
            return
        usual = self._places.next_address(vectors)
        yield usual
        for first, end in dict.fromkeys((*fitting[:_RUNS], *fitting[-_RUNS:])):
            yield from (at for at in dict.fromkeys((end - vectors, first)) if at != usual)

    @cached_property
    def _most(self) -> int:
        """Return how many vectors all following operations need if none is freed."""
        return sum(sum(self._tilings[value].vectors for value in dict.fromkeys(
            (*item.operation.operands, *item.operation.results)))
            + item.scratch(self._context.config, self._tilings) for item in self._following)

    def _trial(self, loaded: tuple[Value, int] | None = None) -> Trial:
        """Return a `Trial` with the values in vector memory after the kernel.

        ``loaded`` is (value, address) of one more value, which is in vector memory as well.
        """
        trial = self._places.trial()
        if loaded is not None:
            trial.put(*loaded)
        trial.release(self._own)
        trial.drop(self._dying)
        return trial

    def _try(self, trial: Trial, item: Upcoming) -> None:
        """Allocate on ``trial`` what the operation of ``item`` needs; free its dying values."""
        operation, able = item.operation, list[Value]()
        trial.distance = item.distance
        trial.locked = {*operation.operands, *operation.results}
        for value in dict.fromkeys(operation.operands):
            if not trial.has(value):
                trial.make(value, loaded=True)
            if operation.kind in IN_PLACE and value in item.dying and trial.has(value):
                able.append(value)
        for result in operation.results:
            fitting = [value for value in able if self._tilings[value] == self._tilings[result]]
            if fitting:
                trial.inherit(fitting[0], result)
                able.remove(fitting[0])
            elif not trial.has(result):
                trial.make(result)
        trial.scratch(item.scratch(self._context.config, self._tilings))
        trial.drop(item.dying)

    def _save(self) -> None:
        """Start copies of values that will be evicted soon, so that eviction takes no time."""
        places, clock = self._places, self._places.memory.clock
        smallest = self._context.config.vmem_vectors // _SMALL
        if places.memory.free.largest >= self._most:
            return
        trial = self._trial()
        for item in self._following[:_SAVED]:
            self._try(trial, item)
        for value in trial.evicted:
            if (value not in places.homes and value not in self._results
                    and places.has_arrived(value)
                    and self._tilings[value].vectors >= smallest and clock.hold <= _PATIENCE):
                places.save(value)
