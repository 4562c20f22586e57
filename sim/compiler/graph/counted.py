"""Recognises loops with a counter, and values that are affine functions of the counter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sim.compiler.graph.ir import DType, Graph, Operation, Value
from sim.compiler.words import signed, to_words

__all__ = ["Affine", "Counted", "counted", "counted_loops"]


@dataclass(frozen=True)
class Affine:
    """The affine function ``factor * counter + offset``; ``factor`` is -1, 0 or 1."""

    factor: int
    offset: int


@dataclass(frozen=True)
class Counted:
    """A loop with a counter: a carried value that counts by 1 from ``first`` to ``limit - 1``.

    Attributes
    ----------
    number : int
        Position of the counter among the carried values of the loop, from 0.
    first, limit : int
        First value of the counter, and the value at which the loop ends.
    values : dict of Value to Affine
        Scalar values of type S32 in the body that are affine functions of the counter, including
        the counter itself.
    """

    number: int
    first: int
    limit: int
    values: Mapping[Value, Affine]


def counted(operation: Operation, known: Callable[[Value], int | None]) -> Counted | None:
    """Recognise a ``while`` that counts by 1 between two constants.

    Parameters
    ----------
    operation : Operation
        The ``while``.
    known : callable
        Returns an operand's value, as a word, if the operand is a constant; otherwise None.

    Returns
    -------
    Counted or None
        None if the loop does not have this form.
    """
    condition, body = operation.regions
    bound = _bound(condition)
    if bound is None:
        return None
    number, limit = bound
    word = known(operation.operands[number])
    if word is None:
        return None
    first = signed(word)
    if first >= limit:
        return None
    values = _Values(first, limit - 1).follow(body, {body.inputs[number]: Affine(1, 0)})
    if values.get(body.outputs[number]) != Affine(1, 1):
        return None
    return Counted(number, first, limit, values)


def counted_loops(graph: Graph) -> list[tuple[Operation, Counted]]:
    """Return the counted loops of a graph, in order, but not those within its regions."""
    constants = {operation.result: to_words(np.asarray(operation.attributes["value"]))
                 for operation in graph.operations if operation.kind == "constant"}

    def known(value: Value) -> int | None:
        return int(constants[value].flat[0]) if value in constants else None

    return [(operation, loop) for operation in graph.operations if operation.kind == "while"
            and (loop := counted(operation, known)) is not None]


def _bound(condition: Graph) -> tuple[int, int] | None:
    """Analyse a condition of the form ``carried value < constant``.

    Return the position of the carried value, from 0, and the constant; None for other conditions.
    """
    [wanted], inputs, graph = condition.outputs, dict(enumerate(condition.inputs)), condition
    makers = {value: op for op in graph.operations for value in op.results}
    maker = makers.get(wanted)
    names = {value: number for number, value in inputs.items()}
    if maker is not None and maker.kind == "fusion":
        [inner] = maker.regions
        wanted = inner.outputs[maker.results.index(wanted)]
        names = {value: names[given] for value, given
                 in zip(inner.inputs, maker.operands, strict=True) if given in names}
        makers |= {value: op for op in inner.operations for value in op.results}
        outer = dict(zip(inner.inputs, maker.operands, strict=True))
        maker = makers.get(wanted)
    else:
        outer = {}
    if (maker is None or maker.kind != "compare"
            or maker.attributes["comparison_direction"] != "LT"):
        return None
    value, limit = maker.operands
    constant = makers.get(outer.get(limit, limit))
    if (value not in names or value.dtype is not DType.S32 or value.shape or constant is None
            or constant.kind != "constant"):
        return None
    return names[value], int(np.asarray(constant.attributes["value"]).reshape(-1)[0])


class _Values:
    """Finds values that are affine functions of a counter.

    The counter runs from ``low`` to ``high``, both included.
    """

    def __init__(self, low: int, high: int) -> None:
        self._range = low, high

    def follow(self, graph: Graph, given: Mapping[Value, Affine]) -> dict[Value, Affine]:
        """Return the values of a graph that are affine functions of the counter.

        ``given`` has the inputs of the graph that are such functions; the result includes them.
        """
        values, truths = dict(given), dict[Value, bool]()
        for operation in graph.operations:
            if operation.kind == "fusion":
                [region] = operation.regions
                inner = self.follow(region, {
                    value: values[operand] for value, operand
                    in zip(region.inputs, operation.operands, strict=True) if operand in values})
                values.update((result, inner[value]) for result, value
                              in zip(operation.results, region.outputs, strict=True)
                              if value in inner)
            elif operation.kind == "compare":
                truth = self._compare(operation, values)
                if truth is not None:
                    truths[operation.result] = truth
            elif len(operation.results) == 1:
                found = self._evaluate(operation, values, truths)
                if found is not None:
                    values[operation.result] = found
        return values

    def _evaluate(self, operation: Operation, values: Mapping[Value, Affine],
                  truths: Mapping[Value, bool]) -> Affine | None:
        """Return an operation's result as an affine function of the counter, or None.

        ``values`` has the affine values found so far, and ``truths`` the results of comparisons
        that are the same in all iterations.
        """
        result = operation.result
        if result.shape or result.dtype is not DType.S32:
            return None
        if operation.kind == "constant":
            return Affine(0, int(np.asarray(operation.attributes["value"]).reshape(())))
        if operation.kind == "select" and operation.operands[0] in truths:
            return values.get(operation.operands[1 if truths[operation.operands[0]] else 2])
        if operation.kind not in ("add", "subtract") or not all(
                value in values for value in operation.operands):
            return None
        a, b = (values[value] for value in operation.operands)
        sign = 1 if operation.kind == "add" else -1
        made = Affine(a.factor + sign * b.factor, a.offset + sign * b.offset)
        fits = all(-1 << 31 <= end < 1 << 31 for end in (*self._ends(made), made.offset))
        return made if abs(made.factor) <= 1 and fits else None

    def _compare(self, operation: Operation, values: Mapping[Value, Affine]) -> bool | None:
        """Return the result of a comparison if it is the same in all iterations, otherwise None.

        ``values`` has the affine values found so far.
        """
        if operation.attributes["comparison_direction"] != "LT" or not all(
                value in values for value in operation.operands):
            return None
        a, b = (values[value] for value in operation.operands)
        difference = self._ends(Affine(a.factor - b.factor, a.offset - b.offset))
        if max(difference) < 0:
            return True
        return False if min(difference) >= 0 else None

    def _ends(self, value: Affine) -> tuple[int, int]:
        """Return the values of an affine function at the counter's lowest and highest value."""
        low, high = self._range
        return value.factor * low + value.offset, value.factor * high + value.offset
