"""The order of groups that read each other's registers.

Each group (`sim.kernel.plan.plan.Group`) reads the state before the clock edge and overwrites it.
So a group that reads a register is executed before the group that writes the register. Where these
dependencies form a cycle, it is broken by groups that *store late*, after all others. A group that
writes a memory cannot store late. All groups of a cycle are merged instead if none of them has an
enable that is the same in all tiles, or if each of them writes a memory.
"""

from collections.abc import Sequence

from sim.kernel.ir import topological
from sim.kernel.netlist.tile import Read
from sim.kernel.plan.plan import Group, Plan

__all__ = ["order_groups"]


_Storage = tuple[str, int | None]
"""A register or a memory of a tile: ``reg`` or ``mem``, and its number."""


def order_groups(plan: Plan, groups: Sequence[Group]) -> tuple[list[list[int]], set[int]]:
    """Orders groups so that each reads registers before another one overwrites them.

    Returns
    -------
    list of list of int
        Numbers of the groups in order; those in one list must be merged.
    set of int
        Numbers of the groups that store late, after all others.
    """
    reads = [_reads(plan, group) for group in groups]
    stores: list[set[_Storage]] = [{("reg", update.register) for update in group.updates}
                                 | {("mem", write.memory) for write in group.writes}
                                 for group in groups]
    late: set[int] = set()
    order = _components(_successors(reads, stores, late))
    while circles := [circle for circle in order if len(circle) > 1
                      and any(plan.uniform(groups[index].enable) for index in circle)]:
        candidates = [index for circle in circles for index in circle
                      if index not in late and not groups[index].writes]
        if not candidates:
            break

        def cost(index: int) -> tuple[int, int, int]:
            """Cost of storing group ``index`` late: the number of groups that are then in circles.

            Ties are broken by the number of registers of the group, then by the group's number.
            """
            remaining = _components(_successors(reads, stores, late | {index}))
            return (sum(len(one) for one in remaining if len(one) > 1),
                    len(groups[index].updates), index)

        late.add(min(candidates, key=cost))
        order = _components(_successors(reads, stores, late))
    return order, late


def _reads(plan: Plan, group: Group) -> set[_Storage]:
    """Registers and memories that a group reads in the row of tiles that it computes.

    One-bit registers are left out, because they are read before all groups.
    """
    found: set[_Storage] = set()
    for node in topological([value for value, _ in group.values()], plan.pure):
        if node.op == "read":
            assert isinstance(node.attr, Read)
            found.add(("mem", plan.memories.index(node.attr.memory)))
        elif node.op == "leaf":
            kind, name = node.origin
            if kind == "reg":
                found.add(("reg", name))
            elif plan.inputs[name].kind == "east":
                found.add(("reg", plan.inputs[name].source))
    return found


def _successors(reads: Sequence[set[_Storage]], stores: Sequence[set[_Storage]],
                late: set[int]) -> list[int]:
    """Return, for each group, a mask of the groups that must be executed after it.

    ``reads`` and ``stores`` list the registers and memories that each group reads and stores.
    A group in ``late`` stores only after all groups have read, so it need not follow any reader.
    """
    result = []
    for reader, seen in enumerate(reads):
        after = 0
        for writer, written in enumerate(stores):
            if reader == writer:
                continue
            # Write ports of one memory keep their order.
            ports = writer > reader and any(kind == "mem" for kind, _ in stores[reader] & written)
            if ports or (seen & written and writer not in late):
                after |= 1 << writer
        result.append(after)
    return result


def _components(later: Sequence[int]) -> list[list[int]]:
    """Return a graph's strongly connected components in topological order.

    ``later[i]`` is a mask of the nodes to which node i has an edge. No edge leads to an earlier
    component.
    """
    count = len(later)
    reach = list(later)
    for middle in range(count):
        for begin in range(count):
            if reach[begin] >> middle & 1:
                reach[begin] |= reach[middle]
    pending = list(range(count))
    result = []
    while pending:
        # The first node that no pending node outside its component can reach.
        chosen = next(one for one in pending
                      if all(not reach[other] >> one & 1 or reach[one] >> other & 1
                             for other in pending))
        component = [other for other in pending
                     if other == chosen or (reach[chosen] >> other & reach[other] >> chosen & 1)]
        result.append(component)
        pending = [other for other in pending if other not in component]
    return result
