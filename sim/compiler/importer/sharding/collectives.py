"""Collective operations between two devices, written with ``exchange`` and ``by_device``.

In this module, a *group* is a replica group: the devices that take part, in order. A collective in
a group of one device is a copy. In a group of both devices, values are ordered by the group: on
either device, the value of the group's first device comes first. Functions append operations to the
graph of their parameter ``at``.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.importer.attributes import python
from sim.compiler.passes.expansion import Expansion

__all__ = ["COLLECTIVES", "Group", "all_reduced", "device_group", "device_number", "is_reducer",
           "joined", "part", "swapped"]

Group = tuple[int, ...]
"""Devices in the order of a group: (0, 1) or (1, 0); (0,) if each device is a group of its own."""
_HANDLE = re.compile(r"handle = (\d+)")


def joined(at: Expansion, value: Value, dimension: int, group: Group = (0, 1)) -> Value:
    """Concatenate the values of both devices along a dimension, in the order of the group."""
    return at.concatenate(_both(at, value, group), dimension)


def part(at: Expansion, value: Value, dimension: int, group: Group = (0, 1)) -> Value:
    """Return the half of a value, along a dimension, that belongs to the executing device.

    The first half belongs to the first device of ``group``.
    """
    return _by_position(at, "by_device", *_halves(at, value, dimension), group)


def swapped(at: Expansion, value: Value, split: int, along: int, group: Group = (0, 1)) -> Value:
    """Exchange halves between the devices: StableHLO's ``all_to_all``.

    Each device splits its value in halves along dimension ``split``; half number n belongs to
    device number n of the group. The result is the executing device's halves of both values,
    concatenated along dimension ``along``.
    """
    first, second = _halves(at, value, split)
    mine = _by_position(at, "by_device", first, second, group)
    other = _by_position(at, "exchange", second, first, group)
    return at.concatenate(_in_order(at, mine, other, group), along)


def all_reduced(at: Expansion, region: Graph, value: Value, group: Group = (0, 1)) -> Value:
    """Apply ``region``, a function of two scalars, to the values of both devices, elementwise.

    The operands are in the order of the group.
    """
    return _apply(at, region, _both(at, value, group))


def device_number(at: Expansion) -> Value:
    """Return the number of the executing device, as a scalar of type u32."""
    return at.add("by_device", [at.constant(device, DType.U32) for device in (0, 1)],
                  TensorType((), DType.U32))


def device_group(operation: Any, partitions: int, replicas: int) -> Group | None:
    """Return the group in which the devices execute a collective.

    Without a channel, groups consist of replicas. With a channel they consist of partitions, of
    replicas with all their partitions, or of device numbers, as the StableHLO specification defines
    for each operation.

    Parameters
    ----------
    operation : jaxlib.mlir.ir.Operation
        The collective.
    partitions, replicas : int
        Numbers of partitions and of replicas; one of them is 1, and the product is at most 2.

    Returns
    -------
    Group or None
        None if the collective names devices that do not exist, or its groups are neither one group
        of both devices nor a group for each device.
    """
    attributes, devices = operation.attributes, partitions * replicas
    name = "replica_groups" if "replica_groups" in attributes else "source_target_pairs"
    table = np.array(attributes[name])
    if table.size and table.max() >= devices:
        return None
    found = [tuple(int(device) for device in group if device >= 0) for group in table]
    channel = _HANDLE.search(str(attributes["channel_handle"])) if (
        "channel_handle" in attributes) else None
    crossing = channel is not None and int(channel[1]) > 0
    if name == "source_target_pairs":
        return tuple(range(devices)) if crossing or partitions == 1 else None
    if not crossing and partitions == 2:
        # The groups consist of replicas, and there is only one replica.
        return (0,)
    whole = operation.name != "stablehlo.all_to_all" and "use_global_device_ids" not in attributes
    if crossing and partitions == 2 and whole and found == [(0,)]:
        # The group is all partitions of the only replica.
        return (0, 1)
    found = found or [tuple(range(devices))]
    return found[0] if len(found) == 1 and len(found[0]) == devices else (
        (0,) if sorted(found) == [(0,), (1,)] else None)


def is_reducer(region: Graph) -> bool:
    """Return whether a region contains only elementwise operations and constants.

    Such a region can be applied to whole arrays.
    """
    return all(operation.kind in ELEMENTWISE or operation.kind == "constant"
               for operation in region.operations)


# ---- the collectives; each takes (at, operation, operands, group, regions)

_Rule = Callable[[Expansion, Any, list[Value], Group, Sequence[Graph]], Sequence[Value]]


def _all_reduce(at: Expansion, operation: Any, operands: list[Value], group: Group,
                regions: Sequence[Graph]) -> Sequence[Value]:
    if len(group) == 1:
        return operands
    return [all_reduced(at, regions[0], value, group) for value in operands]


def _all_gather(at: Expansion, operation: Any, operands: list[Value], group: Group,
                regions: Sequence[Graph]) -> Sequence[Value]:
    if len(group) == 1:
        return operands
    dimension = python(operation.attributes["all_gather_dim"])
    return [joined(at, value, dimension, group) for value in operands]


def _reduce_scatter(at: Expansion, operation: Any, operands: list[Value], group: Group,
                    regions: Sequence[Graph]) -> Sequence[Value]:
    if len(group) == 1:
        return operands
    [value] = operands
    dimension = python(operation.attributes["scatter_dimension"])
    first, second = _halves(at, value, dimension)
    mine = _by_position(at, "by_device", first, second, group)
    other = _by_position(at, "exchange", second, first, group)
    return [_apply(at, regions[0], _in_order(at, mine, other, group))]


def _all_to_all(at: Expansion, operation: Any, operands: list[Value], group: Group,
                regions: Sequence[Graph]) -> Sequence[Value]:
    if len(group) == 1:
        return operands
    split = python(operation.attributes["split_dimension"])
    along = python(operation.attributes["concat_dimension"])
    return [swapped(at, value, split, along, group) for value in operands]


def _collective_permute(at: Expansion, operation: Any, operands: list[Value], group: Group,
                        regions: Sequence[Graph]) -> Sequence[Value]:
    pairs = {int(target): int(source) for source, target
             in np.array(operation.attributes["source_target_pairs"]).reshape(-1, 2)}
    found = []
    for value in operands:
        # The value that each device receives; a device that no pair targets receives zeros.
        got = []
        crossing = any(source != target for target, source in pairs.items())
        other = at.add("exchange", (value, value), value.type) if crossing else value
        for device in range(len(group)):
            source = pairs.get(device)
            got.append(_zeros(at, value.type) if source is None else
                       value if source == device else other)
        found.append(got[0] if got[0] is got[-1] else at.add("by_device", got, value.type))
    return found


COLLECTIVES: dict[str, _Rule] = {
    "all_gather": _all_gather, "all_reduce": _all_reduce, "all_to_all": _all_to_all,
    "collective_permute": _collective_permute, "reduce_scatter": _reduce_scatter,
}
"""Functions that write the collectives, by the operations' names without the dialect."""


# ---- helpers

def _by_position(at: Expansion, kind: str, first: Value, second: Value, group: Group) -> Value:
    """Append an operation of kind ``by_device`` or ``exchange``.

    ``first`` and ``second`` are the operands for the first and second device of the group.
    """
    values = (first, second) if group == (0, 1) else (second, first)
    return at.add(kind, values, first.type)


def _in_order(at: Expansion, mine: Value, other: Value, group: Group) -> list[Value]:
    """Return two values in the order of the group.

    ``mine`` belongs to the executing device, and ``other`` to the other device.
    """
    return [_by_position(at, "by_device", mine, other, group),
            _by_position(at, "by_device", other, mine, group)]


def _both(at: Expansion, value: Value, group: Group) -> list[Value]:
    """Return a value's instances on both devices, in the order of the group."""
    return _in_order(at, value, at.add("exchange", (value, value), value.type), group)


def _halves(at: Expansion, value: Value, dimension: int) -> tuple[Value, Value]:
    half = value.shape[dimension] // 2
    return (at.slice(value, dimension, 0, half), at.slice(value, dimension, half, half))


def _zeros(at: Expansion, type: TensorType) -> Value:
    return at.add("constant", (), type,
                  value=np.broadcast_to(np.zeros((), array_dtype(type.dtype)), type.shape))


def _apply(at: Expansion, region: Graph, operands: Sequence[Value]) -> Value:
    """Apply ``region``, a function of scalars, to all elements of ``operands``.

    These are arrays of one shape, one for each input of the region.
    """
    shape = operands[0].shape
    known = dict(zip(region.inputs, operands, strict=True))
    for operation in region.operations:
        known[operation.result] = _spread(at, operation, known, shape)
    return known[region.outputs[0]]


def _spread(at: Expansion, operation: Operation, known: dict[Value, Value],
            shape: tuple[int, ...]) -> Value:
    kind = operation.result.type
    if operation.kind == "constant":
        scalar = at.add("constant", (), kind, **operation.attributes)
        return at.broadcast(scalar, shape, ()) if shape else scalar
    return at.add(operation.kind, [known[value] for value in operation.operands],
                  TensorType(shape, kind.dtype), **operation.attributes)
