"""Schedules of sequences of operations."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdl import isa
from hdl.config import Config
from hdl.encoding import unpack
from hdl.isa import Kind, MiscOp, Operation, PushOp, Slot, Unit
from verif.system.programs.draft import Draft

__all__ = ["schedule"]


@dataclass
class _Resource:
    """The last bundle that wrote a resource, and the last that read it."""

    written: int = -1
    read: int = -1


@dataclass(frozen=True)
class _Step:
    """The operation of a bundle: its fields, its immediates, and what it reads and writes."""

    operation: Operation
    fields: dict[str, int]
    imm: tuple[int, ...]
    reads: frozenset
    writes: frozenset


def _step(bundle: int) -> _Step:
    """Returns the step of a bundle, which has one operation."""
    slots, imm, _ = unpack(bundle)
    [(slot, fields)] = [(slot, fields) for slot, fields in slots.items() if fields["op"]]
    operation = isa.operation(slot, fields["op"])
    assert operation is not None
    reads: set = set()
    writes: set = set()
    for operand in operation.operands:
        value, kind = fields[operand.field], operand.kind
        file = {"s": "s", "v": "v", "m": "m"}.get(kind.name[0].lower(), "")
        if kind is Kind.SOURCE:
            reads.add(("s", value))
        elif kind is Kind.VECTOR_SOURCE:
            flagged = value & isa.VECTOR_FLAG
            reads.add(("v", value ^ isa.VECTOR_FLAG) if flagged else ("s", value))
        elif kind in (Kind.SCALAR_OUT, Kind.VECTOR_OUT, Kind.MASK_OUT):
            writes.add((file, value))
        elif kind in (Kind.SCALAR_IN, Kind.VECTOR_IN, Kind.MASK_IN):
            reads.add((file, value))
        elif kind is Kind.SEMAPHORE:
            writes.add(("semaphores",))
        else:
            raise ValueError(f"an operation to be scheduled must be no branch, not "
                             f"{operation.name}")
    if operation.unit in (Unit.SMEM, Unit.VMEM):
        store = operation.name == "store"
        (writes if store else reads).add((operation.unit,))
    elif operation.unit is Unit.MXU:
        writes.add((slot,))
    elif operation.op in (MiscOp.TRANSPOSE_IN, MiscOp.TRANSPOSE_OUT) and slot is Slot.MISC:
        (writes if operation.op == MiscOp.TRANSPOSE_IN else reads).add(("transposer",))
    return _Step(operation, fields, imm, frozenset(reads), frozenset(writes - {("s", 0)}))


def schedule(bundles: Sequence[int], config: Config, rng: np.random.Generator,
             slack: float) -> list[int]:
    """Packs a sequence of operations into bundles, in an equivalent order.

    Parameters
    ----------
    bundles : sequence of int
        Bundles of one operation each, without branches.
    config : Config
        Determines how many results the array can hold.
    rng : numpy Generator
        Chooses slots and delays.
    slack : float
        Probability that an operation is put one bundle later than necessary; applied repeatedly.

    Returns
    -------
    list of int
        Bundles; some may be empty.
    """
    drafts: list[Draft] = []
    resources: dict = {}
    pushed: list[int] = []
    popped: list[int] = []
    for step in map(_step, bundles):
        earliest = 0
        for name in step.reads | step.writes:
            earliest = max(earliest, resources.setdefault(name, _Resource()).written + 1)
        for name in step.writes:
            earliest = max(earliest, resources[name].read)
        rows = step.operation.op in (PushOp.ROWS, PushOp.ROWS_SWAP) and (
            step.operation.slots == (Slot.PUSH,))
        if rows and len(pushed) >= config.result_vregs:
            earliest = max(earliest, popped[len(pushed) - config.result_vregs] + 1)
        if step.operation.slots == (Slot.POP,):
            earliest = max(earliest, pushed[len(popped)] + 1)
        while rng.random() < slack:
            earliest += 1
        place = _place(drafts, step, earliest, rng)
        for name in step.reads:
            resources[name].read = max(resources[name].read, place)
        for name in step.writes:
            resources[name].written = place
        if rows:
            pushed.append(place)
        if step.operation.slots == (Slot.POP,):
            popped.append(place)
    return [draft.bundle() for draft in drafts]


def _place(drafts: list[Draft], step: _Step, earliest: int, rng: np.random.Generator) -> int:
    """Puts a step into the first draft from ``earliest`` on that has room; returns its index."""
    place = earliest
    while True:
        while len(drafts) <= place:
            drafts.append(Draft())
        draft = drafts[place]
        free = [slot for slot in step.operation.slots if slot not in draft.fields]
        renumbered = dict(step.fields)
        attempt = list(draft.imm)
        fits = bool(free)
        for operand in step.operation.operands:
            number = step.fields[operand.field] - isa.FIRST_IMMEDIATE
            if operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE) and 0 <= number < isa.IMMEDIATES:
                wanted = draft.immediate(step.imm[number])
                if wanted is None:
                    fits = False
                    break
                renumbered[operand.field] = isa.FIRST_IMMEDIATE + wanted
        if fits:
            draft.fields[free[int(rng.integers(len(free)))]] = renumbered
            return place
        draft.imm = attempt
        place += 1
