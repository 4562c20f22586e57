"""Collective operations between devices, written with ``exchange``.

In this module, a *team* says which devices execute a collective operation together. It has groups
of devices, each in the order of its replica group in StableHLO. Where a result joins the values of
a group, the first device's value comes first. If a group consists of whole rings of the
torus, the devices exchange values ring by ring: first the cores of each chip, then the chips along
X, then those along Y. The order of all additions depends only on the groups, the shapes and the
torus, so all devices of a group get the same bits. Functions append operations to the graph of
their parameter ``at``.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.graph.semantics.reductions import reducer_kind
from sim.compiler.graph.torus import CORES, RINGS, Division, Torus
from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.positions import chosen, device_scalar, part_of, sent
from sim.compiler.importer.sharding.rings import ring_sum
from sim.compiler.passes.expansion import Expansion

__all__ = ["COLLECTIVES", "LARGE", "PAIR", "Groups", "Team", "all_reduced", "assembled",
           "device_groups", "device_number", "divided", "is_reducer", "joined", "part", "swapped"]

Groups = tuple[tuple[int, ...], ...]
"""Groups of equally many devices; each device is in exactly one group."""
_HANDLE = re.compile(r"handle = (\d+)")
LARGE = 1 << 13
"""Least number of elements that a value must have for an all-reduce to divide it between the
devices of a ring (`_scattered`).
"""
_NARROW = 64
"""A value of two dimensions is transposed before an all-reduce between chips if it has more rows,
and fewer columns, than this number.
"""
_CHIP = Torus()


@dataclass(frozen=True)
class Team:
    """Groups of devices that execute a collective operation, each group on its own.

    Attributes
    ----------
    groups : Groups
        The groups.
    torus : Torus
        The torus of chips to which the devices belong.
    """

    groups: Groups
    torus: Torus = _CHIP

    @property
    def size(self) -> int:
        """Number of devices in each group."""
        return len(self.groups[0])

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The position of each device in its group."""
        return tuple(position for _, position in sorted(
            (device, position) for group in self.groups for position, device in enumerate(group)))

    def sources(self, steps: int = 1) -> tuple[int, ...]:
        """Return, for each device, the device ``steps`` positions before it in its group.

        The last device of a group counts as the one before the first.
        """
        found = {device: group[position - steps] for group in self.groups
                 for position, device in enumerate(group)}
        return tuple(found[device] for device in sorted(found))

    def rings(self) -> "list[Team]":
        """Return teams whose groups are rings of the torus, within the groups of this team.

        There is a team for each kind of ring that connects several devices, in this order: the
        cores of a chip, chips along X, chips along Y. Together, these rings connect all devices of
        a group. If the groups do not consist of such rings, return only this team.
        """
        found = []
        for axis in range(len(RINGS)):
            groups = [ring for group in self.groups for ring in self._along(group, axis)]
            if len({len(ring) for ring in groups}) != 1:
                return [self]
            found.append(Team(tuple(groups), self.torus))
        if any(np.prod([ring.size for ring in found]) != len(group)
               or not self._is_grid(group) for group in self.groups):
            return [self]
        return [ring for ring in found if ring.size > 1] or [self]

    def whole_rings(self) -> list[str]:
        """Return the kinds of rings that connect the devices of each group.

        The list is empty if a group has only some of the devices of a ring.
        """
        sides = CORES, self.torus.width, self.torus.height
        sizes = {kind: {len(ring) for group in self.groups for ring in self._along(group, axis)}
                 for axis, kind in enumerate(RINGS)}
        found = [kind for kind, side in zip(RINGS, sides, strict=True)
                 if side > 1 and sizes[kind] == {side}]
        whole = math.prod(side for kind, side in zip(RINGS, sides, strict=True) if kind in found)
        return found if whole == self.size else []

    def _along(self, group: tuple[int, ...], axis: int) -> list[tuple[int, ...]]:
        """Divide a group into rings: devices whose places differ only in item ``axis``.

        Each ring has its devices in the order of the group.
        """
        rings: dict[tuple[int, ...], list[int]] = {}
        for device in group:
            place = self.torus.place(device)
            rings.setdefault((*place[:axis], *place[axis + 1:]), []).append(device)
        return [tuple(ring) for ring in rings.values()]

    def _is_grid(self, group: tuple[int, ...]) -> bool:
        places = {self.torus.place(device) for device in group}
        return places == set(product(*map(set, zip(*places, strict=True))))


PAIR = Team(((0, 1),))
"""Both cores of a chip."""


def joined(at: Expansion, value: Value, dimension: int, team: Team = PAIR) -> Value:
    """Concatenate the values of a group's devices along a dimension, in the order of the group."""
    return at.concatenate(_gathered(at, value, team), dimension)


def part(at: Expansion, value: Value, dimension: int, team: Team = PAIR) -> Value:
    """Return the part of a value, along a dimension, that belongs to the executing device.

    The value is divided into one part for each device of a group, in the order of the group.
    """
    return _part(at, value, dimension, team.size, team.positions)


def swapped(at: Expansion, value: Value, split: int, along: int, team: Team = PAIR) -> Value:
    """Exchange parts between the devices of a group: StableHLO's ``all_to_all``.

    Each device splits its value in parts along dimension ``split``; part number n belongs to
    device number n of the group. That device's result is the parts number n of all devices' values,
    concatenated along dimension ``along``.
    """
    size, places = team.size, team.positions

    def own(steps: int) -> Value:
        return _part(at, value, split, size, [(place + steps) % size for place in places])

    mine = [own(0), *(sent(at, own(steps), team.sources(steps)) for steps in range(1, size))]
    return at.concatenate([chosen(at, [mine[(place - n) % size] for place in places], mine)
                           for n in range(size)], along)


def all_reduced(at: Expansion, region: Graph, value: Value, team: Team = PAIR) -> Value:
    """Apply ``region``, a function of two scalars, to the values of a group, elementwise.

    A sum of fp32 over all devices of a pod becomes the operation ``pod_sum``, with a region that
    computes the same sum by exchanges. All other values are combined by exchanges
    (`_all_exchanged`).
    """
    if team.torus.chips > 1 and len(value.shape) == 2 and value.shape[1] < _NARROW < value.shape[0]:
        # Rows that fill a small share of a vector's lanes would cross the links with their padding.
        across = all_reduced(at, region, at.transpose(value, (1, 0)), team)
        return at.transpose(across, (1, 0))
    if (team.torus.chips > 1 and team.size == team.torus.devices and value.type.size
            and value.dtype is DType.F32 and reducer_kind(region) == "add"):
        exchanged = Graph([Value(value.type)])
        exchanged.outputs = [_all_exchanged(Expansion(exchanged, at.location), region,
                                            exchanged.inputs[0], team)]
        return at.add("pod_sum", (value,), value.type, (exchanged,),
                      large=value.type.size >= LARGE)
    return _all_exchanged(at, region, value, team)


def _all_exchanged(at: Expansion, region: Graph, value: Value, team: Team) -> Value:
    """Do what `all_reduced` does, by exchanges.

    The values are combined ring by ring (`_total`). Values of `LARGE` elements or more are divided
    where that is possible: less data then crosses the links, but in more steps. Over whole rings
    of chips, `ring_sum` divides them. In other cases, `_scattered` divides them between the devices
    of one ring, if the size of a dimension is a multiple of the ring's size. The remaining rings
    then reduce only the parts, and the ring that divided the value gathers them in the end.
    """
    if value.type.size >= LARGE and reducer_kind(region) is not None:
        kinds = team.whole_rings()
        if {*kinds} & {"x", "y"}:
            found = ring_sum(at, lambda one, other: _apply(at, region, (one, other)), value,
                             team.torus, kinds)
            if found is not None:
                return found
    return _reduced(at, region, value, team.rings())


def _reduced(at: Expansion, region: Graph, value: Value, rings: Sequence[Team]) -> Value:
    if not rings:
        return value
    ring, *rest = rings
    dimension = next((number for number, size in enumerate(value.shape)
                      if size % ring.size == 0), None)
    if dimension is not None and value.type.size >= LARGE and (rest or ring.size > 2):
        part = _scattered(at, region, value, dimension, ring)
        return joined(at, _reduced(at, region, part, rest), dimension, ring)
    return _reduced(at, region, _total(at, region, value, ring), rest)


def _total(at: Expansion, region: Graph, value: Value, ring: Team) -> Value:
    """Combine the values of all devices of a ring by ``region``; each device gets the result.

    If the order of the operands of ``region`` matters (`reducer_kind`), or the ring's size is odd,
    the values are combined in the order of the group. Otherwise, each device combines its value
    with that of the device on the opposite side of the ring. These two then hold the same value. So
    a ring of half the size is left, in which the values are combined in the same way.
    """
    if reducer_kind(region) is None:
        return _in_order(at, region, _gathered(at, value, ring))
    values = [value]
    while len(values) < ring.size:
        values.append(sent(at, values[-1], ring.sources()))
    while len(values) % 2 == 0:
        half = len(values) // 2
        values = [_apply(at, region, pair) for pair in zip(values, values[half:], strict=False)]
    size = len(values)
    return _in_order(at, region, [
        chosen(at, [values[(place - number) % size] for place in ring.positions], values)
        for number in range(size)] if size > 1 else values)


def _in_order(at: Expansion, region: Graph, values: Sequence[Value]) -> Value:
    made, *others = values
    for other in others:
        made = _apply(at, region, [made, other])
    return made


def divided(at: Expansion, value: Value, division: Division) -> Value:
    """Return the executing device's part of ``value``, a whole value, as ``division`` says."""
    shape = division.part_shape(value.shape)
    starts = [tuple(number * size for number, size in zip(index, shape, strict=True))
              for index in division.parts]
    return part_of(at, value, starts, shape)


def assembled(at: Expansion, value: Value, division: Division, torus: Torus) -> Value:
    """Return the whole of a value that ``division`` divides; ``value`` is this device's part."""
    devices = range(torus.devices)
    values = dict(zip(reversed(division.parts), reversed(
        _gathered(at, value, Team((tuple(devices),), torus))), strict=True))
    for dimension in reversed(range(len(division.counts))):
        lines: dict[tuple[int, ...], list[Value]] = {}
        for index, found in sorted(values.items(), key=lambda item: item[0]):
            lines.setdefault(index[:dimension], []).append(found)
        values = {index: at.concatenate(line, dimension) for index, line in lines.items()}
    return values[()]


def device_number(at: Expansion, devices: int) -> Value:
    """Return the number of the executing device, one of ``devices``, as a scalar of type u32."""
    return device_scalar(at, range(devices), DType.U32)


def device_groups(operation: Any, partitions: int, replicas: int) -> Groups | None:
    """Return the groups in which the devices execute a collective.

    Without a channel, groups consist of replicas. With a channel they consist of partitions, of
    replicas with all their partitions, or of device numbers, as the StableHLO specification defines
    for each operation.

    Parameters
    ----------
    operation : jaxlib.mlir.ir.Operation
        The collective.
    partitions, replicas : int
        Numbers of partitions and of replicas; one of them is 1.

    Returns
    -------
    Groups or None
        None if the collective names devices that do not exist, or its groups do not contain each
        device once, or differ in size.
    """
    attributes, devices = operation.attributes, partitions * replicas
    name = "replica_groups" if "replica_groups" in attributes else "source_target_pairs"
    table, whole = np.array(attributes[name]), (tuple(range(devices)),)
    if table.size and table.max() >= devices:
        return None
    channel = _HANDLE.search(str(attributes["channel_handle"])) if (
        "channel_handle" in attributes) else None
    crossing = channel is not None and int(channel[1]) > 0
    if name == "source_target_pairs":
        return whole if crossing or partitions == 1 else None
    if not crossing and partitions > 1:
        # The groups consist of replicas, and there is only one replica.
        return tuple((device,) for device in range(devices))
    found = tuple(tuple(int(device) for device in group if device >= 0) for group in table)
    numbered = operation.name == "stablehlo.all_to_all" or "use_global_device_ids" in attributes
    if crossing and partitions > 1 and not numbered and found == ((0,),):
        # The group is all partitions of the only replica.
        return whole
    found = found or whole
    complete = sorted(device for group in found for device in group) == list(range(devices))
    return found if complete and len({len(group) for group in found}) == 1 else None


def is_reducer(region: Graph) -> bool:
    """Return whether a region contains only elementwise operations and constants.

    Such a region can be applied to whole arrays.
    """
    return all(operation.kind in ELEMENTWISE or operation.kind == "constant"
               for operation in region.operations)


# ---- the collectives; each takes (at, operation, operands, team, regions)

_Rule = Callable[[Expansion, Any, list[Value], Team, Sequence[Graph]], Sequence[Value]]


def _all_reduce(at: Expansion, operation: Any, operands: list[Value], team: Team,
                regions: Sequence[Graph]) -> Sequence[Value]:
    if team.size == 1:
        return operands
    return [all_reduced(at, regions[0], value, team) for value in operands]


def _all_gather(at: Expansion, operation: Any, operands: list[Value], team: Team,
                regions: Sequence[Graph]) -> Sequence[Value]:
    dimension = python(operation.attributes["all_gather_dim"])
    return [joined(at, value, dimension, team) for value in operands]


def _reduce_scatter(at: Expansion, operation: Any, operands: list[Value], team: Team,
                    regions: Sequence[Graph]) -> Sequence[Value]:
    if team.size == 1:
        return operands
    [value] = operands
    dimension = python(operation.attributes["scatter_dimension"])
    return [_scattered(at, regions[0], value, dimension, team)]


def _all_to_all(at: Expansion, operation: Any, operands: list[Value], team: Team,
                regions: Sequence[Graph]) -> Sequence[Value]:
    split = python(operation.attributes["split_dimension"])
    along = python(operation.attributes["concat_dimension"])
    return [swapped(at, value, split, along, team) for value in operands]


def _collective_permute(at: Expansion, operation: Any, operands: list[Value], team: Team,
                        regions: Sequence[Graph]) -> Sequence[Value]:
    pairs = {int(target): int(source) for source, target
             in np.array(operation.attributes["source_target_pairs"]).reshape(-1, 2)}
    devices = range(team.size)
    # Devices without a source get zeros; they receive from devices without a target.
    unused = iter(sorted(set(devices) - set(pairs.values()), reverse=True))
    sources = tuple(pairs[device] if device in pairs else next(unused) for device in devices)
    crossing = any(source != target for target, source in pairs.items())
    found = []
    for value in operands:
        other, zeros = sent(at, value, sources) if crossing else value, _zeros(at, value.type)
        found.append(chosen(at, [other if device in pairs else zeros for device in devices]))
    return found


COLLECTIVES: dict[str, _Rule] = {
    "all_gather": _all_gather, "all_reduce": _all_reduce, "all_to_all": _all_to_all,
    "collective_permute": _collective_permute, "reduce_scatter": _reduce_scatter,
}
"""Functions that write the collectives, by the operations' names without the dialect."""


# ---- helpers

def _gathered(at: Expansion, value: Value, team: Team) -> list[Value]:
    """Return the arrays that ``value`` has on the devices of a group, in the order of the group.

    The devices of each ring of the group pass them on round the ring.
    """
    if team.size == 1:
        return [value]
    devices = range(len(team.positions))
    # For each value that a device holds, the devices from which it has come.
    held = [(value, tuple(devices))]
    for ring in team.rings():
        sources, last = ring.sources(), held
        for _ in range(1, ring.size):
            last = [(sent(at, found, sources), tuple(origins[source] for source in sources))
                    for found, origins in last]
            held = [*held, *last]
    group_of = {device: group for group in team.groups for device in group}
    return [chosen(at, [next(found for found, origins in held
                             if origins[device] == group_of[device][position])
                        for device in devices], [found for found, _ in held])
            for position in range(team.size)]


def _scattered(at: Expansion, region: Graph, value: Value, dimension: int, team: Team) -> Value:
    """Reduce the values of a group; return the executing device's part of the result.

    For each device, a partial result goes round the group, and each device on its way combines its
    own value with it. The way to a device begins at the device after it, and ends at the device
    itself.
    """
    size, places = team.size, team.positions

    def own(steps: int) -> Value:
        return _part(at, value, dimension, size, [(place - steps) % size for place in places])

    made = own(1)
    for step in range(2, size + 1):
        made = _combined(at, region, sent(at, made, team.sources()), own(step), team)
    return made


def _combined(at: Expansion, region: Graph, received: Value, own: Value, team: Team) -> Value:
    """Apply ``region`` to this device's ``own`` value and one ``received`` from the device before.

    In a group of two devices, the operands are in the order of the group if their order matters.
    """
    both = own, received
    if team.size == 2 and reducer_kind(region) is None:
        both = (chosen(at, [both[place] for place in team.positions], both),
                chosen(at, [both[1 - place] for place in team.positions], both))
    return _apply(at, region, both)


def _part(at: Expansion, value: Value, dimension: int, count: int,
          numbers: Sequence[int]) -> Value:
    """Return, on device d, part ``numbers[d]`` of ``count`` equal parts along a dimension."""
    shape = tuple(length // count if along == dimension else length
                  for along, length in enumerate(value.shape))
    starts = [tuple(number * length if along == dimension else 0
                    for along, length in enumerate(shape)) for number in numbers]
    return part_of(at, value, starts, shape)


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
