"""Plans the clock edge of a grid: which logic is computed for which tiles, and in which order.

A bit that is the same in all tiles may choose a register's next value. Then each alternative can be
a group of its own, so that only the chosen alternative is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hdl.tiles import Chain, Each, Shared, TileGrid
from sim.kernel.ir import ALL, Graph, Node, topological
from sim.kernel.netlist.tile import Register, Tile
from sim.kernel.plan.groups import order_groups
from sim.kernel.plan.idle import idle_registers
from sim.kernel.plan.plan import RESET, Group, Input, MemoryWrite, Plan, Update, lane_for, stored
from sim.kernel.rules.rewrite import rewrite
from sim.kernel.transform import narrow, substitute

__all__ = ["plan_grid"]


def plan_grid(grid: TileGrid, tile: Tile) -> Plan:
    """Plans the clock edge of ``grid``, each of whose tiles is ``tile``.

    Raises
    ------
    ValueError
        If an output depends on an input or a memory without a register between them. If a register
        would need two values at the grid's edge.
    """
    registers = list(tile.registers)
    outputs = _outputs(grid, tile, registers)
    # A register added for an output always equals a function of other registers, so it keeps its
    # value whenever the function's value does not change. `idle_registers` uses this.
    added = {index: tile.outputs[name] for name, index in outputs.items()
             if index >= len(tile.registers)}
    inputs = _inputs(grid, tile, outputs)
    _check_edges(grid, outputs)
    updates, writes, followed = _narrowed(tile, registers, added)
    plan = Plan(tile, tile.graph, registers, tile.memories, inputs, outputs)
    plan.active, plan.activity = idle_registers(
        plan, updates, [write.enable for write in writes], followed)
    tasks: list[Update | MemoryWrite] = []
    for index, value in enumerate(updates):
        if registers[index].leaf is value:
            continue
        if plan.pure(value):
            plan.bits.append((index, value))
        else:
            enable, gated = _split(tile.graph, value, registers[index].leaf)
            tasks += [Update(index, case, chosen, registers[index].width)
                      for case, chosen in _cases(plan, enable, gated)]
    tasks += writes
    plan.groups = _groups(plan, _rewritten(
        tile.graph, [_simplified(tile.graph, task) for task in tasks]))
    enables = {group.enable for group in plan.groups}
    for group in plan.groups:
        enables |= {task.enable for task in group.tasks}
    plan.lane_enables = sorted((node for node in enables if not plan.pure(node)),
                               key=lambda node: node.index)
    return plan


def _narrowed(tile: Tile, registers: Sequence[Register], added: Mapping[int, Node]
              ) -> tuple[list[Node], list[MemoryWrite], dict[int, Node]]:
    """Remove bits that nothing uses from all values that a tile computes.

    Returns the next values of ``registers``, the memory writes, and the narrowed ``added``. A
    register that `_outputs` has added always equals an expression of other registers: ``added``
    maps the register's number to this expression. All values are narrowed together, so they still
    share nodes.
    """
    graph = tile.graph
    writes = [(index, write) for index, memory in enumerate(tile.memories)
              for write in memory.writes]
    roots = [(register.next, stored(register.width)) for register in registers]
    for index, write in writes:
        width = tile.memories[index].width
        roots += [(write.enable, 1), (write.address, ALL), (write.data, stored(width)),
                  (write.mask or graph.const(0), stored(width))]
    roots += [(value, stored(registers[index].width)) for index, value in added.items()]
    narrowed = iter(narrow(graph, roots))
    updates = [next(narrowed) for _ in registers]
    memory_writes = []
    for index, write in writes:
        enable, address, data, mask = (next(narrowed) for _ in range(4))
        memory_writes.append(MemoryWrite(index, enable, address, data,
                                         mask if write.mask else None,
                                         tile.memories[index].width))
    return updates, memory_writes, {index: next(narrowed) for index in added}


def _outputs(grid: TileGrid, tile: Tile, registers: list[Register]) -> dict[str, int]:
    """Numbers of the registers that hold the linked outputs, by output name.

    For an output that is a function of registers, appends a register that always equals it.
    """
    by_leaf = {register.leaf: index for index, register in enumerate(registers)}
    linked = {link.source if isinstance(link, Chain) else link.port for link in grid.links}
    outputs: dict[str, int] = {}
    for name, value in tile.outputs.items():
        if name not in linked:
            continue
        if value not in by_leaf:
            _check_registered(tile, name, value)
            outputs[name] = len(registers)
            registers.append(_following(tile, name, value, len(registers)))
        else:
            outputs[name] = by_leaf[value]
    return outputs


def _check_registered(tile: Tile, name: str, value: Node) -> None:
    """Checks that ``value``, the output ``name`` of the tile, depends on registers alone."""
    for node in topological([value]):
        reason = None
        if node.op == "read":
            reason = "a memory"
        elif node.op in ("leaf", "leafb") and node.origin[0] == "in":
            reason = f"input {node.origin[1]}"
        if reason is not None:
            raise ValueError(f"output {name} of module {tile.name} must be registered, but it "
                             f"depends directly on {reason}")


def _following(tile: Tile, name: str, value: Node, number: int) -> Register:
    """A new register, with number ``number``, that drives the tile output ``name``.

    It always equals ``value``, a function of the tile's registers: its next value is that function
    of their next values.
    """
    graph = tile.graph
    initial, = substitute(graph, [value], {
        register.leaf: graph.bit(register.init) if register.leaf.is_bit
        else graph.const(register.init) for register in tile.registers})
    following, = substitute(graph, [value], {register.leaf: register.next
                                             for register in tile.registers})
    width = tile.widths[name]
    return Register(name, width, initial.number, graph.leaf(("reg", number), width), following)


def _inputs(grid: TileGrid, tile: Tile, outputs: Mapping[str, int]) -> dict[str, Input]:
    inputs: dict[str, Input] = {}
    widths = tile.widths
    for link in grid.links:
        if isinstance(link, Chain):
            if link.sink is not None:
                inputs[link.sink] = Input(link.toward, widths[link.sink], link.first,
                                          outputs[link.source])
        elif isinstance(link, Shared):
            inputs[link.port] = Input("shared", widths[link.port], link.port)
        elif isinstance(link, Each) and link.port in tile.inputs:
            inputs[link.port] = Input("each", widths[link.port], link.port)
    if RESET in tile.inputs:
        inputs[RESET] = Input("shared", 1, RESET)
    return inputs


def _check_edges(grid: TileGrid, outputs: Mapping[str, int]) -> None:
    """Checks that chains of the same register and direction begin at the same port of the grid.

    Chains carry the same register if they start from the same output of a tile, or from outputs
    that the same register holds. ``outputs`` has the number of the register of each tile output.
    """
    first: dict[tuple[int, str], Chain] = {}
    for link in grid.links:
        if isinstance(link, Chain) and link.sink is not None:
            other = first.setdefault((outputs[link.source], link.toward), link)
            if other.first != link.first:
                raise ValueError(f"chains {other.sink} and {link.sink} of grid {grid.module} must "
                                 f"begin at the same port, as both carry {link.source} "
                                 f"{link.toward}ward")


def _split(graph: Graph, value: Node, hold: Node) -> tuple[Node, Node]:
    """Splits a register's next value ``value`` into an enable and a value to store.

    Where the enable is 0, ``value`` equals ``hold``, the register's present value, so nothing needs
    to be stored.
    """
    if value is hold:
        return graph.bit(0), value
    if value.op in ("sel", "selb"):
        bit, x, y = value.args
        x_enable, x_value = _split(graph, x, hold)
        y_enable, y_value = _split(graph, y, hold)
        enable = graph.selb(bit, x_enable, y_enable)
        if x is hold:
            return enable, y_value
        if y is hold:
            return enable, x_value
        choose = graph.selb if value.op == "selb" else graph.sel
        return enable, choose(bit, x_value, y_value)
    return graph.bit(1), value


_CASE_SAVING = 12
"""An update is split if this many operations or more serve only one of its two alternatives."""


def _cases(plan: Plan, enable: Node, value: Node) -> list[tuple[Node, Node]]:
    """Splits an update into parts if uniform bits choose its new value.

    ``enable`` and ``value`` are the update's. Returns the enable and the value of each part: a
    single part if the update is not split. At most one of the enables is set in any tile.
    """
    if value.op not in ("sel", "selb") or not plan.uniform(value.args[0]):
        return [(enable, value)]

    def cost(root: Node) -> set[Node]:
        return {node for node in topological([root], plan.uniform)
                if not plan.pure(node) and not plan.uniform(node)}

    bit, x, y = value.args
    if len(cost(x) ^ cost(y)) < _CASE_SAVING:
        return [(enable, value)]
    graph = plan.graph
    return [*_cases(plan, graph.andb(enable, bit), x),
            *_cases(plan, graph.andb(enable, graph.not_(bit)), y)]


def _simplified(graph: Graph, task: Update | MemoryWrite) -> Update | MemoryWrite:
    """``task`` with its values simplified under the assumption that its enable is set."""
    known: dict[Node, Node] = {}

    def assume(node: Node, value: bool) -> None:
        known[node] = graph.bit(value)
        if node.op == "notb":
            assume(node.args[0], not value)
        elif node.op == ("andb" if value else "orb"):
            for arg in node.args:
                assume(arg, value)

    if task.enable.op == "bit":
        return task
    assume(task.enable, True)
    if isinstance(task, Update):
        value, = substitute(graph, [task.value], known)
        return replace(task, value=value)
    address, data, mask = substitute(
        graph, [task.address, task.data, task.mask or graph.const(0)], known)
    return replace(task, address=address, data=data, mask=mask if task.mask else None)


def _rewritten(graph: Graph, tasks: Sequence[Update | MemoryWrite]) -> list[Update | MemoryWrite]:
    """The tasks, their values rewritten by one call of `rewrite`, so that tasks share nodes."""
    values: list[Node] = []
    for task in tasks:
        values += [task.enable, task.value] if isinstance(task, Update) else \
            [task.enable, task.address, task.data, task.mask or graph.const(0)]
    new = iter(rewrite(graph, values))
    result: list[Update | MemoryWrite] = []
    for task in tasks:
        if isinstance(task, Update):
            result.append(replace(task, enable=next(new), value=next(new)))
        else:
            enable, address, data, mask = (next(new) for _ in range(4))
            result.append(replace(task, enable=enable, address=address, data=data,
                                  mask=mask if task.mask else None))
    return result


def _groups(plan: Plan, tasks: Sequence[Update | MemoryWrite]) -> list[Group]:
    """Puts tasks of equal enable into groups, and orders the groups by `order_groups`.

    No group reads what an earlier group has overwritten. If groups must be merged for this, the
    enable of the merged group is the OR of theirs.
    """
    graph = plan.graph
    by_enable: dict[Node, Group] = {}
    for task in tasks:
        if task.enable.op == "bit" and not task.enable.attr:
            continue
        group = by_enable.setdefault(task.enable, Group(task.enable))
        if isinstance(task, Update):
            group.updates.append(task)
        else:
            group.writes.append(task)
    groups = list(by_enable.values())
    merged = []
    order, late = order_groups(plan, groups)
    for members in order:
        enable = graph.bit(0)
        whole = Group(enable, late=late.issuperset(members))
        for index in members:
            enable = graph.orb(enable, groups[index].enable)
            whole.updates += groups[index].updates
            whole.writes += groups[index].writes
        whole.enable = enable
        # Stores of several ports to one memory keep the ports' order.
        whole.writes.sort(key=tasks.index)
        whole.lane = lane_for(plan, [*whole.values()],
                              [task.width for task in whole.tasks])
        merged.append(whole)
    return merged
