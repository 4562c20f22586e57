"""Moves the first weights of a product in front of a loop that pushes nothing to the array.

In code of several kernels, such a loop often lies between two products. Weights that do not depend
on the loop are then pushed before it, while the array computes the last results of the earlier
product.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import count

from hdl.isa import Unit
from sim.compiler.machine.ir import (
    Block,
    Branch,
    Loop,
    LoopVariable,
    MachineCode,
    Op,
    Register,
    SReg,
    operations,
)
from sim.compiler.machine.schedule.dependences import is_barrier

__all__ = ["weights_ahead"]

_PURE = (Unit.SCALAR, Unit.SIMPLE, Unit.FLOAT, Unit.MXU)


def weights_ahead(code: MachineCode) -> MachineCode:
    """Return the code with weights pushed before a loop, instead of after it, where that is safe.

    Loops within other loops stay as they are. The moved operations keep their order, and so do all
    operations of the array except pops.
    """
    writes = Counter(register for op in operations(code.body) for register in op.writes)
    body: Block = []
    at, numbers = 0, count(code.registers + 1)
    while at < len(code.body):
        item = code.body[at]
        at += 1
        if not isinstance(item, Loop) or not _lets_pass(item):
            body.append(item)
            continue
        straight: list[Op] = []
        while at < len(code.body) and isinstance(found := code.body[at], Op):
            straight.append(found)
            at += 1
        moved = _movable(item, straight, writes)
        if moved:
            # Scheduled together with earlier pushes, their loads would fill the registers early.
            first = _after_pushes(body)
            body[first:] = [Loop(LoopVariable(next(numbers)), 1, [
                *body[first:], *(straight[number] for number in sorted(moved))], apart=True)]
        body += [item, *(op for number, op in enumerate(straight) if number not in moved)]
    return MachineCode(code.config, body, next(numbers))


def _after_pushes(body: Block) -> int:
    """Return the position after the last push, loop or branch of a block."""
    return next((at for at in range(len(body), 0, -1)
                 if not isinstance(item := body[at - 1], Op) or _pushes(item)), 0)


def _lets_pass(loop: Loop) -> bool:
    """Return whether a loop neither pushes to the array nor contains a barrier or a fence."""
    return not any(is_barrier(op) or op.fence is not None or _pushes(op)
                   for op in operations([loop]))


def _movable(loop: Loop, straight: list[Op], writes: "Counter[Register]") -> set[int]:
    """Return the numbers of the operations of ``straight`` that may move to before ``loop``.

    ``straight`` are the operations after the loop. Pushes of weights may move, together with the
    operations that they need, up to the first barrier or the first array operation that must stay.
    ``writes`` counts the writes of each register in the whole code.
    """
    moved: set[int] = set()
    makers = {register: number for number, op in enumerate(straight) for register in op.writes}
    fixed = {register for register, number in writes.items() if number > 1}
    fixed.update(register for op in operations([loop]) for register in op.writes)
    fixed.update(_advanced([loop]))
    stores = [op for op in operations([loop]) if _stores(op)]
    for number, op in enumerate(straight):
        if is_barrier(op) or (op.fence is not None and op.fence.before):
            break
        if _stores(op):
            stores.append(op)
        elif op.operation.unit is Unit.MXU:
            needed = _needed(number, straight, makers)
            if "weights" not in op.name or not all(
                    _is_free(straight[other], fixed, stores) for other in needed):
                break
            moved |= needed
    return moved


def _advanced(block: Block) -> Iterator[SReg]:
    """Yield the registers that the loops of a block advance, those of nested loops included."""
    for item in block:
        if isinstance(item, Loop):
            yield from (register for register, _ in item.steps)
            yield from _advanced(item.body)
        elif isinstance(item, Branch):
            yield from _advanced(item.then)
            yield from _advanced(item.otherwise)


def _needed(last: int, straight: list[Op], makers: dict[Register, int]) -> set[int]:
    """Return the numbers of the operations in ``straight`` that compute the operands of ``last``.

    They include ``last``, and the operations that compute the operands of these operations in turn.

    ``makers`` has the number of the operation that writes a register.
    """
    found, pending = {last}, [last]
    while pending:
        new = {makers[register] for register in _read(straight[pending.pop()])
               if register in makers} - found
        found |= new
        pending.extend(new)
    return found


def _is_free(op: Op, fixed: set[Register], stores: list[Op]) -> bool:
    """Return whether an operation may be executed before the loop.

    It may if none of its registers is in ``fixed``, and it loads no vector to which ``stores``
    write.
    """
    if op.operation.unit is Unit.VMEM:
        return not _stores(op) and fixed.isdisjoint((*op.writes, *_read(op))) and not any(
            op.access is not None and store.access is not None
            and op.access.vectors.overlaps(store.access.vectors) for store in stores)
    return op.operation.unit in _PURE and fixed.isdisjoint((*op.writes, *_read(op)))


def _read(op: Op) -> list[Register]:
    """Return the registers that an operation reads, with those in its address."""
    terms = () if op.access is None else op.access.index.terms
    return [*op.reads, *(term for term in terms if isinstance(term, SReg))]


def _stores(op: Op) -> bool:
    return op.operation.unit is Unit.VMEM and not op.writes


def _pushes(op: Op) -> bool:
    return op.operation.unit is Unit.MXU and not op.writes
