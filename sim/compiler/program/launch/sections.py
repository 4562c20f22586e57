"""Divides the vectors of an elementwise kernel's results between parts of the kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.elementwise import is_flat
from sim.compiler.machine import RangeAt
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.context import Context
from sim.compiler.program.launch.exchange import common
from sim.compiler.program.launch.kernel import KernelLowering
from sim.compiler.program.launch.sums import PodSums

__all__ = ["Sections", "divide"]

_STORED, _GROWTH = 3, 3
"""Number of parts of a program's last kernel, and how many times larger each is than the one before
it: while the rows of a part go to HBM, the next part is computed, in less time."""
_LEAST = 64
"""Least number of vectors of such a kernel."""


@dataclass(frozen=True)
class Sections:
    """The parts of a kernel.

    Attributes
    ----------
    vectors : sequence of range or RangeAt
        For each part, in order, the vectors of the results that it computes; empty if one kernel
        computes all vectors.
    early : int
        How many parts, from the first one on, need only the first parts of the exchanges that still
        move operands: none, if the exchanges are divided at different vectors.
    stored : Rows or None
        HBM rows of the result if each part is copied there as soon as it is computed.
    behind : frozenset of int
        Numbers, from 0, of the parts that follow a step of the sum in progress (`PodSums.follow`).
    """

    vectors: Sequence[range | RangeAt] = ()
    early: int = 0
    stored: Rows | None = None
    behind: frozenset[int] = frozenset()


def divide(context: Context, sums: PodSums, operation: Operation, lowering: KernelLowering
           ) -> Sections:
    """Divide the kernel of an operation.

    If a sum over the pod is in progress, a long kernel is divided, so that steps of the sum run
    between its parts. The last kernel of a program is divided if this core writes only some vectors
    of its result to HBM: then the first of these are copied while the kernel computes the others.
    If the sum in progress leads it, its parts follow the last steps of the sum.
    Vectors that are not `Context.needed` are in no part.
    """
    if groups := sums.completed():
        return Sections([part for group in groups for part in group],
                        stored=context.ends[operation.result],
                        behind=frozenset(accumulate(map(len, groups), initial=0)))
    places, tilings = context.places, context.tilings
    parts = {tuple(found) for value in operation.operands
             if (found := places.memory.parts(lowering.place(value).buffer))}
    whole = range(tilings[operation.results[0]].vectors)
    needed = {context.needed.get(value, (whole,)) for value in operation.results}
    wanted = needed.pop() if len(needed) == 1 else (whole,)
    if len(parts) == 1 and is_flat(operation, lowering):
        first, second = parts.pop()
        early, late = common([first], wanted), common([second], wanted)
        return Sections(early + late, len(early) if late else 0)
    sections = [section for each in wanted for section in sums.divided(each)]
    stored = None
    if not parts and len(sections) == len(operation.results) == 1:
        [vectors], rows = sections, context.ends.get(operation.result)
        if rows is not None and rows.is_plain and len(vectors) >= _LEAST:
            sections, stored = _growing(vectors), rows
    if sections == [whole] or not is_flat(operation, lowering):
        return Sections()
    return Sections(sections, stored=stored)


def _growing(vectors: range) -> list[range]:
    """Divide vectors into `_STORED` parts; each is `_GROWTH` times larger than the one before."""
    unit = sum(_GROWTH ** number for number in range(_STORED))
    ends = [len(vectors) * sum(_GROWTH ** number for number in range(count)) // unit
            for count in range(_STORED + 1)]
    return [vectors[first:end] for first, end in pairwise(ends)]
