"""What one clock edge of a grid of tiles does, cut into parts that are computed only when needed.

Bits that depend on nothing but bits are computed 64 instances at a time. Everything else belongs to
a group: the registers and memory writes that share an enable, with the logic that only they use.
Each group reads the state before the edge and stores in place, so a group that reads a register
comes before the one that writes it. Where groups read each other's registers, in a circle, some
store late, after all others; if all enables of the circle differ between tiles, its groups are
merged instead. Where a register's next value is chosen by bits that are the same in all tiles, each
choice can be a group of its own, so that what it does not need is not computed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hdl.tiles import Chain, Each, Shared, TileGrid
from sim.kernel.ir import ALL, Graph, Node, demands, lane_bits, low, topological
from sim.kernel.netlist import Memory, Read, Register, Tile

__all__ = ["RESET", "Group", "Input", "MemoryWrite", "Plan", "Update", "lane_for", "plan_grid",
           "storage"]

RESET = "rst"


def storage(width: int) -> int:
    """Bits in memory of a word of ``width`` bits."""
    return 16 if width <= 16 else 32 if width <= 32 else 64


def stored(width: int) -> int:
    """Bits that matter of a word to be stored: those above its width must be zero."""
    return low(storage(width))


@dataclass(frozen=True)
class Input:
    """Where a tile input comes from.

    Attributes
    ----------
    kind : str
        ``shared``: the grid's port ``port``. ``each``: the tile's slice of it. ``east``, ``south``:
        register ``source`` of the tile to the west or the north; at the grid's edge the tile's row
        or column of ``port``, or zero if there is none.
    """

    kind: str
    width: int
    port: str | None
    source: int | None = None


@dataclass(frozen=True)
class Update:
    """Register number ``register``, of ``width`` bits, takes ``value`` where ``enable`` is set."""

    register: int
    enable: Node
    value: Node
    width: int


@dataclass(frozen=True)
class MemoryWrite:
    """Memory number ``memory``, of ``width`` bits: ``data`` goes to ``address`` where ``enable``.

    Only bits under ``mask``, unless it is None.
    """

    memory: int
    enable: Node
    address: Node
    data: Node
    mask: Node | None
    width: int


@dataclass
class Group:
    """Updates and writes that are done together where ``enable`` is set, on lanes of ``lane``.

    If ``late``, the updates are stored after all groups, and there are no writes.
    """

    enable: Node
    updates: list[Update] = field(default_factory=list)
    writes: list[MemoryWrite] = field(default_factory=list)
    lane: int = 0
    late: bool = False

    @property
    def tasks(self) -> list[Update | MemoryWrite]:
        """Updates and writes."""
        return [*self.updates, *self.writes]

    def words(self) -> Iterator[tuple[Node, int]]:
        """Values to be computed, and which of their bits are used."""
        for update in self.updates:
            yield update.value, stored(update.width)
        for write in self.writes:
            yield write.address, ALL
            yield write.data, stored(write.width)
            if write.mask is not None:
                yield write.mask, stored(write.width)


@dataclass
class Plan:
    """One clock edge.

    Attributes
    ----------
    registers : list of Register
        The tile's, and one for each output that is computed from registers.
    inputs : dict of str to Input
        By tile input.
    outputs : dict of str to int
        Number of the register that holds each linked tile output.
    bits : list of (int, Node)
        Registers computed from bits alone, with their next values.
    lane_enables : list of Node
        Enables of groups that need words: to be computed before the groups.
    groups : list of Group
        In the order in which they are to be done.
    active : list of int or None
        Registers of which one is not zero in every tile that could change without one of its
        `activity` inputs being set; None if there are no such registers.
    activity : list of str
        1-bit tile inputs.
    """

    tile: Tile
    graph: Graph
    registers: list[Register]
    memories: list[Memory]
    inputs: dict[str, Input]
    outputs: dict[str, int]
    bits: list[tuple[int, Node]]
    lane_enables: list[Node]
    groups: list[Group]
    active: list[int] | None
    activity: list[str]

    def uniform(self, node: Node) -> bool:
        """Whether a value is the same in all tiles."""
        return self._flags(node)[0]

    def pure(self, node: Node) -> bool:
        """Whether a bit can be computed without words that differ between tiles."""
        return self._flags(node)[1]

    def __post_init__(self) -> None:
        self._known: dict[Node, tuple[bool, bool]] = {}

    def _flags(self, root: Node) -> tuple[bool, bool]:
        known = self._known
        if root not in known:
            for node in topological([root], lambda node: node in known):
                if node not in known:
                    known[node] = self._flags_of(node)
        return known[root]

    def _flags_of(self, node: Node) -> tuple[bool, bool]:
        if node.op in ("leaf", "leafb"):
            kind, name = node.origin
            shared = kind == "in" and self.inputs[name].kind == "shared"
            return shared, node.is_bit
        if node.op == "read":
            return False, False
        uniform = all(self._known[arg][0] for arg in node.args)
        pure = node.is_bit and (uniform or all(self._known[arg][1] for arg in node.args))
        return uniform, pure


def plan_grid(grid: TileGrid, tile: Tile) -> Plan:
    """Plans the clock edge of ``grid``, each of whose tiles is ``tile``.

    Raises
    ------
    ValueError
        If an output depends on an input or a memory without a register between them, or a register
        would need two values at the grid's edge.
    """
    registers = list(tile.registers)
    outputs = _outputs(grid, tile, registers)
    # A register added for an output always equals a function of others: it holds when that does.
    added = {index: tile.outputs[name] for name, index in outputs.items()
             if index >= len(tile.registers)}
    inputs = _inputs(grid, tile, outputs)
    _check_edges(grid, outputs)
    graph = tile.graph

    writes = [(index, write) for index, memory in enumerate(tile.memories)
              for write in memory.writes]
    roots = [(register.next, stored(register.width)) for register in registers]
    for memory_index, write in writes:
        width = tile.memories[memory_index].width
        roots += [(write.enable, 1), (write.address, ALL), (write.data, stored(width)),
                  (write.mask or graph.const(0), stored(width))]
    roots += [(value, stored(registers[index].width)) for index, value in added.items()]
    narrowed = graph.narrow(roots)
    updates = narrowed[:len(registers)]
    rest = iter(narrowed[len(registers):])
    memory_writes = []
    for index, write in writes:
        enable, address, data, mask = (next(rest) for _ in range(4))
        memory_writes.append(MemoryWrite(index, enable, address, data,
                                         mask if write.mask else None,
                                         tile.memories[index].width))

    plan = Plan(tile, graph, registers, tile.memories, inputs, outputs, [], [], [], None, [])
    followed = {index: next(rest) for index in added}
    plan.active, plan.activity = _idle_proof(plan, updates, memory_writes, followed)
    tasks: list[Update | MemoryWrite] = []
    for index, value in enumerate(updates):
        if registers[index].leaf is value:
            continue
        if plan.pure(value):
            plan.bits.append((index, value))
        else:
            enable, gated = _split(graph, value, registers[index].leaf)
            tasks += [Update(index, case, chosen, registers[index].width)
                      for case, chosen in _cases(plan, enable, gated)]
    tasks += memory_writes
    plan.groups = _groups(plan, [_simplified(graph, task) for task in tasks])
    enables = {group.enable for group in plan.groups}
    for group in plan.groups:
        enables |= {task.enable for task in group.tasks}
    plan.lane_enables = sorted((node for node in enables if not plan.pure(node)),
                               key=lambda node: node.index)
    return plan


def _outputs(grid: TileGrid, tile: Tile, registers: list[Register]) -> dict[str, int]:
    """Registers that hold the linked outputs; adds some that follow others through logic."""
    graph = tile.graph
    by_leaf = {register.leaf: index for index, register in enumerate(registers)}
    linked = {link.source if isinstance(link, Chain) else link.port for link in grid.links}
    outputs: dict[str, int] = {}
    for name, value in tile.outputs.items():
        if name not in linked:
            continue
        if value not in by_leaf:
            for node in topological([value]):
                if node.op == "read":
                    raise ValueError(f"output {name} of module {tile.name} must be registered, but "
                                     "it depends directly on a memory")
                if node.op in ("leaf", "leafb") and node not in by_leaf:
                    raise ValueError(f"output {name} of module {tile.name} must be registered, but "
                                     f"it depends directly on input {node.origin[1]}")
            own = list(by_leaf)
            initial, = graph.substitute([value], {
                leaf: graph.bit(registers[by_leaf[leaf]].init) if leaf.is_bit
                else graph.const(registers[by_leaf[leaf]].init) for leaf in own})
            following, = graph.substitute([value], {leaf: registers[by_leaf[leaf]].next
                                                    for leaf in own})
            width = tile.widths[name]
            leaf = graph.leaf(("reg", len(registers)), width)
            registers.append(Register(name, width, initial.number, leaf, following))
            outputs[name] = len(registers) - 1
        else:
            outputs[name] = by_leaf[value]
    return outputs


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
    """A register has one place for the value beyond the edge of the grid."""
    first: dict[tuple[int, str], Chain] = {}
    for link in grid.links:
        if isinstance(link, Chain) and link.sink is not None:
            other = first.setdefault((outputs[link.source], link.toward), link)
            if other.first != link.first:
                raise ValueError(f"chains {other.sink} and {link.sink} of grid {grid.module} must "
                                 f"begin at the same port, as both carry {link.source} "
                                 f"{link.toward}ward")


def _split(graph: Graph, value: Node, hold: Node) -> tuple[Node, Node]:
    """When a register changes, and to what: ``value`` is ``hold`` otherwise."""
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
"""Operations on words that must be saved for a choice to become two groups."""


def _cases(plan: Plan, enable: Node, value: Node) -> list[tuple[Node, Node]]:
    """Enables and values of an update, apart where a bit that all tiles share decides.

    At most one of the enables is set in any tile.
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
    """The task with what it computes simplified under its enable."""
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
        value, = graph.substitute([task.value], known)
        return replace(task, value=value)
    address, data, mask = graph.substitute(
        [task.address, task.data, task.mask or graph.const(0)], known)
    return replace(task, address=address, data=data, mask=mask if task.mask else None)


def _groups(plan: Plan, tasks: Sequence[Update | MemoryWrite]) -> list[Group]:
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
    order, late = _ordered(plan, groups)
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
        whole.lane = lane_for(plan, [*whole.words()],
                              [task.width for task in whole.tasks])
        merged.append(whole)
    return merged


def lane_for(plan: Plan, roots: Sequence[tuple[Node, int]], widths: Sequence[int] = ()) -> int:
    """Width of the lanes that values, and words in memory of ``widths`` bits, need."""
    needed = demands(roots, lambda node: plan.pure(node) or plan.uniform(node))
    widths = [*widths]
    for node in needed:
        if node.op == "leaf" and not plan.uniform(node):
            widths.append(node.bits.bit_length())
        elif isinstance(node.attr, Read):
            widths.append(node.attr.memory.width)
    return max([lane_bits(needed), *map(storage, widths)])


def _ordered(plan: Plan, groups: Sequence[Group]) -> tuple[list[list[int]], set[int]]:
    """Groups in order, with those that must be merged together; and those that store late."""
    reads: list[set[tuple[str, int | None]]] = []
    stores: list[set[tuple[str, int | None]]] = []
    for group in groups:
        seen: set[tuple[str, int | None]] = set()
        for node in topological([word for word, _ in group.words()], plan.pure):
            if node.op == "read":
                assert isinstance(node.attr, Read)
                seen.add(("mem", plan.memories.index(node.attr.memory)))
            elif node.op == "leaf":
                kind, name = node.origin
                if kind == "reg":
                    seen.add(("reg", name))
                elif plan.inputs[name].kind == "east":
                    seen.add(("reg", plan.inputs[name].source))
        reads.append(seen)
        stores.append({("reg", update.register) for update in group.updates}
                      | {("mem", write.memory) for write in group.writes})

    def later(late: set[int]) -> list[int]:
        """For each group, as bits, those that come after it."""
        result = []
        for reader, seen in enumerate(reads):
            after = 0
            for writer, written in enumerate(stores):
                if reader == writer:
                    continue
                # Write ports of one memory go in the order of its ports.
                ports = writer > reader and any(
                    kind == "mem" for kind, _ in stores[reader] & written)
                if ports or (seen & written and writer not in late):
                    after |= 1 << writer
            result.append(after)
        return result

    late: set[int] = set()
    order = _components(later(late))
    while circles := [circle for circle in order if len(circle) > 1
                      and any(plan.uniform(groups[index].enable) for index in circle)]:
        candidates = [index for circle in circles for index in circle
                      if index not in late and not groups[index].writes]
        if not candidates:
            break

        def left(index: int) -> tuple[int, int, int]:
            """Groups that would still be in circles, and registers that would be stored late."""
            remaining = _components(later(late | {index}))
            return (sum(len(one) for one in remaining if len(one) > 1),
                    len(groups[index].updates), index)

        late.add(min(candidates, key=left))
        order = _components(later(late))
    return order, late


def _components(later: Sequence[int]) -> list[list[int]]:
    """Strongly connected components of a graph, each before those that its edges lead to.

    Edges from a node are given as the bits of a number.
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
        # The first that no pending node leads to, unless it leads back there.
        chosen = next(one for one in pending
                      if all(not reach[other] >> one & 1 or reach[one] >> other & 1
                             for other in pending))
        component = [other for other in pending
                     if other == chosen or (reach[chosen] >> other & reach[other] >> chosen & 1)]
        result.append(component)
        pending = [other for other in pending if other not in component]
    return result


def _idle_proof(plan: Plan, updates: Sequence[Node], writes: Sequence[MemoryWrite],
                followed: Mapping[int, Node]) -> tuple[list[int] | None, list[str]]:
    """Finds the registers whose being zero, with the 1-bit inputs, makes a tile hold its state.

    First those that become zero because inputs and registers found before are zero; then, of those
    that are still missing, such that stay zero once they are.
    """
    graph = plan.graph
    registers = plan.registers
    targets = [*updates, *(write.enable for write in writes)]
    activity = [name for name, source in plan.inputs.items()
                if source.width == 1 and name != RESET]
    while True:
        assumed = [plan.tile.inputs[name] for name in activity]
        if RESET in plan.tile.inputs:
            assumed.append(plan.tile.inputs[RESET])

        def under(active: Iterable[int], assumed: Sequence[Node] = assumed,
                  values: Sequence[Node] = targets) -> list[Node]:
            zero = {leaf: graph.bit(0) if leaf.is_bit else graph.const(0)
                    for leaf in (*assumed, *(registers[index].leaf for index in active))}
            return graph.substitute(values, zero)

        def changing(values: Sequence[Node], active: Iterable[int]) -> list[int]:
            return [index for index, register in enumerate(registers)
                    if index not in active and values[index] is not register.leaf
                    and not constant(index)
                    and not (index in followed
                             and under(active, values=[followed[index]])[0] is values[index])]

        def constant(index: int) -> bool:
            value = updates[index]
            return value.op in ("const", "bit") and value.attr == registers[index].init

        def cleared(value: Node) -> bool:
            return value.op in ("bit", "const") and not value.attr

        active: list[int] = []
        while True:
            values = under(active)
            found = [index for index in changing(values, active) if cleared(values[index])]
            if not found:
                break
            active += found
        sources = {plan.inputs[name].source for name in activity}
        wanted = [index for index in range(len(registers)) if index not in active
                  and (index in sources or index in changing(values, active))]
        if wanted:
            active += wanted
            while True:
                values = under(active)
                kept = [index for index in active if cleared(values[index])]
                if kept == active:
                    break
                active = kept
        if changing(values, active) or not all(cleared(v) for v in values[len(updates):]):
            return None, []
        # An input says nothing if what drives it can be set in a tile that counts as idle.
        silent = [name for name in activity
                  if plan.inputs[name].source is None or plan.inputs[name].source in active]
        if silent == activity:
            return sorted(active), activity
        activity = silent
