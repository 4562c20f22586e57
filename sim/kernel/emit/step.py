"""C++ statements around the chunks: uniform values, inputs, which chunks to step, and outputs.

Rows are stepped from the last to the first, and chunks from right to left. So a tile's neighbours
to the north and the west still show their registers as they were before the clock edge.

A kernel that skips idle chunks keeps a flag for each chunk: whether the chunk has active tiles
(`Plan.active`). A chunk is stepped if its flag is set, if the flag of its neighbour to the north or
the west is set, or if an input wakes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hdl.tiles import Chain, Link, TileGrid
from sim.kernel.emit.layout import (
    CHUNK,
    Port,
    Ports,
    can_skip,
    input_index,
    linked_port,
    linked_register,
    padding,
    wakers,
)
from sim.kernel.emit.values import UniformValues
from sim.kernel.ir import low, topological
from sim.kernel.netlist.tile import Read
from sim.kernel.plan.plan import Input, Plan, storage

__all__ = ["outputs_body", "step_body", "work_estimate"]

_LARGE_MEMORY = 1 << 20
"""Minimum size in bytes, over all tiles, of the memories that `step_body` prefetches."""


def step_body(grid: TileGrid, plan: Plan, ports: Ports, uniform: UniformValues) -> list[str]:
    """C++ statements that step the grid whose state is ``g``.

    They set the C++ variable ``stepped`` if any tile was stepped. If it is not set, the outputs
    have not changed.
    """
    loads = _loads(plan, ports)
    rows = _step_active(grid, plan, ports, loads) if can_skip(grid, plan) else _step_all(loads)
    prefetches = _prefetches(grid, plan, uniform)
    return [
        "Uniform u;",
        *(f"const uint32_t {port.variable}[] = {{{port.variable}_bit}};"
          for port in ports.inputs.values() if port.is_bit),
        *(f"[[maybe_unused]] const uint64_t port{input_index(plan, name)} = "
          f"get_bits({ports.inputs[name].variable}, 0, {ports.inputs[name].width});"
          for name, source in plan.inputs.items() if source.kind == "shared"),
        *uniform.lines,
        "(void)u;",
        *prefetches,
        *loads.north_bits,
        *rows,
    ]


def _prefetches(grid: TileGrid, plan: Plan, uniform: UniformValues) -> list[str]:
    """C++ statements that request the memory entries that all tiles read at the same address.

    The requests of all rows overlap, so the processor waits about once in a step. Small memories
    are left out: they are mostly in its caches.
    """
    lines: dict[str, None] = {}
    for group in plan.groups:
        if not plan.uniform(group.enable):
            continue
        roots = [value for value, _ in group.values()]
        for node in topological(roots, lambda node: plan.pure(node) or plan.uniform(node)):
            if not isinstance(node.attr, Read) or not plan.uniform(node.args[0]):
                continue
            memory = node.attr.memory
            entry = grid.cols * storage(memory.width) // 8
            if memory.writes and grid.rows * entry << memory.address_bits >= _LARGE_MEMORY:
                place = f"g.m{plan.memories.index(memory)}[row][{uniform.name(node.args[0])}]"
                lines[f"if ({uniform.name(group.enable)}) for (int row = 0; row < ROWS; ++row) "
                      f"prefetch({place}, {entry});"] = None
    return list(lines)


# Inputs

@dataclass(frozen=True)
class _Loads:
    """C++ statements that copy the grid's inputs to the arrays from which tiles read them.

    Attributes
    ----------
    north_bits : list of str
        Values of 1-bit registers beyond the north edge: copied once, before any row is stepped.
    north : list of str
        Values of wider registers beyond the north edge: copied just before row 0, the last row to
        be stepped.
    west : list of str
        Values of registers beyond the west edge: copied before each row is stepped.
    slices : list of str
        The slices of ports that are wired to each tile: copied before each row is stepped.
    """

    north_bits: list[str]
    north: list[str]
    west: list[str]
    slices: list[str]


def _loads(plan: Plan, ports: Ports) -> _Loads:
    north_bits, north, west = [], [], []
    for register, port, width in _edge_registers(plan, ports, "south"):
        if width == 1:
            north_bits.append(f"unpack_bits(g.b{register}[0], {port.variable}, 0, COLS);")
        else:
            north.append(f"unpack(g.r{register}[0] + {padding(width)}, {port.variable}, 0, COLS, "
                         f"{width});")
    for register, port, width in _edge_registers(plan, ports, "east"):
        target = f"g.west{register}" if width == 1 else \
            f"g.r{register}[row + 1][{padding(width)} - 1]"
        west.append(f"{target} = get_bits({port.variable}, size_t(row) * {width}, {width});")
    slices = []
    for name, source in plan.inputs.items():
        if source.kind == "each":
            unpack, tail = _packing("unpack", source.width)
            slices.append(f"{unpack}(g.each_{input_index(plan, name)}, "
                          f"{ports.inputs[source.port or ''].variable}, size_t(row) * COLS, "
                          f"COLS{tail});")
    return _Loads(north_bits, north, west, slices)


def _edge_registers(plan: Plan, ports: Ports,
                    toward: str) -> Iterable[tuple[int | None, Port, int]]:
    """Registers whose values beyond one edge of the grid come from a port of the grid.

    ``toward`` is the direction in which the values enter: ``east`` from the west edge, ``south``
    from the north edge. Each register is yielded once, as (its number, the port, its width).
    """
    return dict.fromkeys((source.source, ports.inputs[source.port], source.width)
                         for source in plan.inputs.values()
                         if source.kind == toward and source.port is not None)


def _packing(function: str, width: int) -> tuple[str, str]:
    """Name and last argument of the C++ function that packs or unpacks elements of ``width`` bits.

    ``function`` is the name of the function for elements of several bits; for these, the argument
    is a comma and the width. The function for elements of one bit has another name and takes no
    width, so the argument is empty.
    """
    return (f"{function}_bits", "") if width == 1 else (function, f", {width}")


def _row_0(loads: _Loads) -> list[str]:
    if not loads.north:
        return []
    return ["  if (row == 0) {", *(f"    {line}" for line in loads.north), "  }"]


# Rows

def _step_all(loads: _Loads) -> list[str]:
    """C++ statements that step all chunks of all rows."""
    return ["bool stepped = true;",
            "for (int row = ROWS - 1; row >= 0; --row) {",
            *(f"  {line}" for line in [*loads.slices, *loads.west]),
            *_row_0(loads),
            "  for (int c = CHUNKS - 1; c >= 0; --c) step_chunk(g, u, row, c);", "}"]


def _step_active(grid: TileGrid, plan: Plan, ports: Ports, loads: _Loads) -> list[str]:
    """C++ statements that step only the chunks that can change.

    Where eight adjacent rows are idle, one test skips all of them.
    """
    west = [ports.inputs[source.port].variable
            for source in _waking(plan, "east") if source.port is not None]
    slices = [name for name in plan.activity if plan.inputs[name].kind == "each"]
    quiet = ["!everything", *(["!any_west"] if west else [])]
    lines = _wake_up(grid, plan, west)
    lines.append("for (int row = ROWS - 1; row >= 0; --row) {")
    if not slices and grid.rows >= 8:
        lines += [f"  while ({' && '.join(quiet)} && row >= 7) {{",
                  "    uint64_t eight;",
                  "    std::memcpy(&eight, &g.active[row - 6], 8);",
                  "    if (eight | g.active[row - 7]) break;",
                  "    row -= 8;",
                  "  }",
                  "  if (row < 0) break;"]
    if slices:
        lines += [f"  {line}" for line in loads.slices]
    lines += ["  const unsigned own = g.active[row + 1];",
              "  unsigned due = own | own << 1 | g.active[row];"]
    if west:
        lines.append("  due |= west[row / 32] >> (row % 32) & 1;")
    if slices:
        bits = " | ".join(f"g.each_{input_index(plan, name)}[c]" for name in slices)
        lines.append(f"  for (int c = 0; c < CHUNKS; ++c) due |= unsigned(({bits}) != 0) << c;")
    lines += ["  due = everything ? ALL_CHUNKS : due & ALL_CHUNKS;", "  if (!due) continue;",
              "  stepped = true;"]
    if not slices:
        lines += [f"  {line}" for line in loads.slices]
    return [*lines,
            *(f"  {line}" for line in loads.west),
            *_row_0(loads),
            "  unsigned after = 0;",
            "  while (due) {",
            "    const int c = 31 - __builtin_clz(due);",
            "    due ^= 1u << c;",
            "    after |= unsigned(step_chunk(g, u, row, c) != 0) << c;",
            "  }",
            "  g.active[row + 1] = uint8_t(after);",
            "}"]


def _wake_up(grid: TileGrid, plan: Plan, west: list[str]) -> list[str]:
    """C++ statements that find which chunks the grid's inputs wake.

    A shared input wakes all chunks. An input at the north edge has a bit for each tile of row 0,
    and wakes the chunks of the tiles whose bits are set. An input at the west edge has a bit for
    each row, and wakes the first chunk of each row whose bit is set. ``west`` lists the C++ names
    of the ports at the west edge.
    """
    shared = [f"port{input_index(plan, name)}" for name, source in plan.inputs.items()
              if source.kind == "shared" and name in wakers(plan)]
    north = [source.source for source in _waking(plan, "south") if source.port is not None]
    lines = ["bool stepped = false;",
             f"constexpr unsigned ALL_CHUNKS = {low(-(-grid.cols // CHUNK)):#x};",
             f"const bool everything = {' | '.join(shared) or '0'};",
             "unsigned north = 0;"]
    if north:
        bits = " | ".join(f"g.b{register}[0][c]" for register in north)
        lines.append(f"for (int c = 0; c < CHUNKS; ++c) north |= unsigned(({bits}) != 0) << c;")
    lines.append("g.active[0] = uint8_t(north);")
    if west:
        words = -(-grid.rows // 32)
        any_port = " | ".join(f"{variable}[i]" for variable in west)
        lines += [f"uint32_t west[{words}];", "uint32_t any_west = 0;",
                  f"for (int i = 0; i < {words}; ++i) any_west |= west[i] = {any_port};"]
    return lines


def _waking(plan: Plan, kind: str) -> list[Input]:
    """Activity inputs (`Plan.activity`) whose `Input.kind` is ``kind``."""
    return [plan.inputs[name] for name in plan.activity if plan.inputs[name].kind == kind]


def work_estimate(grid: TileGrid, plan: Plan, ports: Ports, row_cost: int) -> list[str]:
    """C++ statements that return the estimated cost of a step: ``row_cost`` for each row to step.

    If an input wakes all tiles, all rows are counted; otherwise, only rows with an active tile
    before the step are.
    """
    full = f"return ROWS * {row_cost};"
    if not can_skip(grid, plan):
        return [full]
    moving = [ports.inputs[source.port or name] for name, source in plan.inputs.items()
              if source.kind == "shared" and name in wakers(plan)]
    lines = [f"if ({port.variable}_bit) {full}" if port.is_bit else
             f"if (get_bits({port.variable}, 0, {port.width})) {full}" for port in moving]
    return [*lines,
            "uint64_t rows = 0;",
            "for (int row = 1; row <= ROWS; ++row) rows += g.active[row] != 0;",
            f"return rows * {row_cost};"]


# Outputs

def outputs_body(grid: TileGrid, plan: Plan, ports: Ports) -> list[str]:
    """C++ statements that copy the grid's outputs from the registers of state ``g``."""
    lines = []
    for link in grid.links:
        name = linked_port(link)
        if name in ports.outputs:
            port = ports.outputs[name]
            lines += _output(grid, plan, link, port)
            if port.is_bit:
                lines.append(f"*{port.variable}_bit = {port.variable}[0];")
    return lines


def _output(grid: TileGrid, plan: Plan, link: Link, port: Port) -> list[str]:
    register = linked_register(plan, link)
    width = plan.registers[register].width
    toward = link.toward if isinstance(link, Chain) else None
    lines = []
    if port.is_bit:
        lines.append(f"uint32_t {port.variable}[1];")
    if width != storage(width) or toward == "east":
        # The elements are packed one by one: the function ORs their bits into zeroed words.
        lines.append(f"std::memset({port.variable}, 0, {4 * -(-port.width // 32)});")
    pack, tail = _packing("pack", width)

    def elements(row: str) -> str:
        return f"g.b{register}[{row}]" if width == 1 else \
            f"g.r{register}[{row}] + {padding(width)}"

    if toward == "south":
        lines.append(f"{pack}({port.variable}, 0, {elements('ROWS')}, COLS{tail});")
    elif toward == "east":
        value = f"g.b{register}[row + 1][CHUNKS - 1] >> {(grid.cols - 1) % CHUNK} & 1" \
            if width == 1 else f"g.r{register}[row + 1][{padding(width)} + COLS - 1]"
        lines.append(f"for (int row = 0; row < ROWS; ++row) put_bits({port.variable}, "
                     f"size_t(row) * {width}, {width}, {value});")
    else:
        lines.append(f"for (int row = 0; row < ROWS; ++row) {pack}({port.variable}, "
                     f"size_t(row) * COLS, {elements('row + 1')}, COLS{tail});")
    return lines
