"""Normaliser: steps that shift out leading zeros become one count and one shift.

**Pattern.** Successive steps on a number w of N bits, which shift it by distances s = 2**k, ...,
2**j, each half of the one before, where 2**k < N::

    w = w                  if one of the s highest of the N bits is one
        w << s             if none is

**Replacement.** c = `clz` (w; N, 2**(k+1) - 1), the number of zeros above the highest one, at most
2**(k+1) - 1; after each step, the number is ``w << (c & m)``, and each step's condition is
``(c & s) == 0``, where m has the bits of the distances up to that step.

**Proof.** Let z be the number of zeros above the highest one among the N lowest bits of w, infinite
if there is none, and c = min(z, 2**(k+1) - 1). By induction over the steps, before the step with
distance s the number is w << d. Here d has those bits of c that are at least 2s, so c - d is less
than 2s.

- It holds before the first step, where d = 0 and c < 2**(k+1) = 2s.
- The number w << d has z - d zeros above its highest one, since d <= z. The step shifts if and only
  if z - d >= s. As c - d < 2s, bit s of c is one if and only if c - d >= s. If z = c, these two
  conditions are the same. If z > c = 2**(k+1) - 1, all bits of c are ones, and z - d > c - d >= s,
  so the step does shift.

Shifts add up modulo 2**64 whatever lies above the N bits, so the numbers are equal in all 64 bits.
If a step keeps only the N lowest bits of what it shifts, w must have no bits above these N: then a
step drops only zeros, because it shifts by s only if the s highest of the N bits are zeros.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.kernel.ir import Graph, Node, low

__all__ = ["normalisers"]

_FEWEST_STEPS = 3
"""Minimum number of steps to replace; fewer steps are at least as fast as a count."""


def normalisers(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
    """Find the normalisers among ``nodes``; return the replacements of their nodes.

    In a normaliser, the number after each step and the condition of each step are replaced.

    Parameters
    ----------
    graph : Graph
        Builds the new nodes.
    nodes : sequence of Node
        Operands first.
    """
    found: dict[Node, Node] = {}
    known = set(nodes)
    # Final steps are tried first, so that a series is found as a whole before its parts.
    for node in reversed(nodes):
        if node not in found and (series := _series(graph, node)) is not None:
            found |= series.replacements(graph, known)
    return found


@dataclass(frozen=True)
class _Step:
    """One step of a normaliser.

    Attributes
    ----------
    before, after : Node
        The number before and after the step.
    test : Node
        The condition under which the step does not shift.
    distance : int
        Number of bits by which it shifts.
    masked : bool
        Whether it drops the bits above the normaliser's width.
    """

    before: Node
    after: Node
    test: Node
    distance: int
    masked: bool


@dataclass(frozen=True)
class _Series:
    """Steps of a normaliser of ``width`` bits, the last one first."""

    steps: list[_Step]
    width: int

    def replacements(self, graph: Graph, known: set[Node]) -> dict[Node, Node]:
        """Map `_Step.after` and `_Step.test` of each step to their replacements.

        Only nodes in ``known`` are replaced.
        """
        word = self.steps[-1].before
        most = 2 * self.steps[-1].distance - 1
        count = graph.clz(word, self.width, most)
        result = {}
        for step in self.steps:
            taken = graph.and_(count, graph.const(most & -step.distance))
            result[step.after] = graph.shlv(word, taken)
            result[step.test] = graph.not_(graph.test(count, step.distance))
        # A further step may test the number but shift another value: replace its condition, too.
        last = self.steps[0]
        if last.distance > 1:
            spare = graph.test(last.after, _top(self.width, last.distance // 2))
            if spare in known:
                result[spare] = graph.not_(graph.test(count, last.distance // 2))
        return result


def _series(graph: Graph, node: Node) -> _Series | None:
    """The longest series of steps that ends with a node."""
    if node.op != "sel" or node.args[0].op != "test":
        return None
    width = node.args[0].number.bit_length()
    steps: list[_Step] = []
    while (step := _step(graph, node, width)) is not None:
        if steps and step.distance != 2 * steps[-1].distance:
            break
        steps.append(step)
        node = step.before
    # If bit ``width`` - 1 of the number can be one, lanes wide enough for it also hold the count.
    fits = node.bits & low(width) & ~low(width - 1) and steps and steps[-1].distance < width
    if len(steps) < _FEWEST_STEPS or not fits:
        return None
    if any(step.masked for step in steps) and node.bits & ~low(width):
        return None
    return _Series(steps, width)


def _step(graph: Graph, node: Node, width: int) -> _Step | None:
    """The step of a normaliser of ``width`` bits that a node computes; None if it is no step."""
    if node.op != "sel":
        return None
    bit, before, shifted = node.args
    masked = shifted.op == "and" and shifted.args[1].op == "const"
    inner = shifted.args[0] if masked else shifted
    if inner.op != "shl":
        return None
    distance = inner.number
    if distance & (distance - 1) or bit is not graph.test(before, _top(width, distance)):
        return None
    moved = graph.shl(before, distance)
    if shifted is moved:
        return _Step(before, node, bit, distance, False)
    if not masked or shifted is not graph.and_(moved, shifted.args[1]) \
            or low(width) & moved.bits & ~shifted.args[1].number:
        return None
    return _Step(before, node, bit, distance, True)


def _top(width: int, count: int) -> int:
    """Mask of the ``count`` highest of ``width`` bits."""
    return low(width) & ~low(max(width - count, 0))
