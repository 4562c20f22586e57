"""Removes what is not used: operations, carried values of loops, results of conditionals."""

from collections.abc import Sequence

from sim.compiler.graph.ir import Graph, Operation, Value

__all__ = ["drop_dead"]


def drop_dead(graph: Graph) -> None:
    """Remove operations whose results are not used, including operations in regions.

    If a loop does not change a carried value, operations after the loop use the value's operand in
    place of its result.
    """
    for operation in graph.operations:
        if operation.kind == "while":
            _bypass(operation, graph)
    live = set(graph.outputs)
    kept: list[Operation] = []
    for operation in reversed(graph.operations):
        if operation.results and not live.intersection(operation.results):
            continue
        if operation.kind == "while":
            _narrow_loop(operation, live)
        elif operation.kind == "case":
            _narrow_case(operation, live)
        else:
            for region in operation.regions:
                drop_dead(region)
        live.update(operation.operands)
        kept.append(operation)
    graph.operations = kept[::-1]


def _bypass(operation: Operation, graph: Graph) -> None:
    """Replace uses of a loop's result by the operand, if no iteration changes the carried value."""
    _, body = operation.regions
    same = {result: operand for result, operand, before, after in zip(
        operation.results, operation.operands, body.inputs, body.outputs, strict=True)
        if before is after}
    for user in graph.operations:
        user.operands = tuple(same.get(value, value) for value in user.operands)
    graph.outputs = [same.get(value, value) for value in graph.outputs]


def _reached(graph: Graph, outputs: Sequence[Value]) -> set[Value]:
    """Return all values on which ``outputs`` depend, and ``outputs`` themselves."""
    reached = set(outputs)
    for operation in reversed(graph.operations):
        if reached.intersection(operation.results):
            reached.update(operation.operands)
    return reached


def _narrow_loop(operation: Operation, live: set[Value]) -> None:
    """Drop a loop's carried values on which neither its condition nor a used result depends.

    ``live`` has the used results. A carried value also stays if, in a later iteration, another one
    that stays depends on it.
    """
    condition, body = operation.regions
    needed = _reached(condition, condition.outputs)
    keep = {i for i, (result, value) in enumerate(
        zip(operation.results, condition.inputs, strict=True))
        if result in live or value in needed}
    while True:
        needed = _reached(body, [body.outputs[i] for i in keep])
        more = {i for i, value in enumerate(body.inputs) if value in needed} - keep
        if not more:
            break
        keep |= more
    order = sorted(keep)
    operation.operands = tuple(operation.operands[i] for i in order)
    operation.results = tuple(operation.results[i] for i in order)
    body.outputs = [body.outputs[i] for i in order]
    for region in operation.regions:
        region.inputs = [region.inputs[i] for i in order]
        drop_dead(region)


def _narrow_case(operation: Operation, live: set[Value]) -> None:
    """Drop a conditional's results that are not in ``live``, and operands that no branch reads."""
    order = [i for i, value in enumerate(operation.results) if value in live]
    operation.results = tuple(operation.results[i] for i in order)
    for region in operation.regions:
        region.outputs = [region.outputs[i] for i in order]
        drop_dead(region)
    reads = [_reached(region, region.outputs) for region in operation.regions]
    taken = [i for i in range(len(operation.operands) - 1)
             if any(region.inputs[i] in read
                    for region, read in zip(operation.regions, reads, strict=True))]
    operation.operands = (operation.operands[0], *(operation.operands[i + 1] for i in taken))
    for region in operation.regions:
        region.inputs = [region.inputs[i] for i in taken]
