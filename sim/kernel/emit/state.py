"""The C++ structure of a grid's registers and memories, and the tables that all tiles share."""

from hdl.tiles import TileGrid
from sim.kernel.emit.layout import can_skip, input_index, padding, storage_type
from sim.kernel.emit.values import Constants
from sim.kernel.netlist.tile import Memory, Register
from sim.kernel.plan.plan import Plan, storage

__all__ = ["state_struct", "tables"]


def tables(plan: Plan) -> list[str]:
    """C++ tables of the memories without write ports; all tiles share them.

    Their entries have at least 32 bits, and their sizes are powers of two, so that vector code can
    gather entries by address.
    """
    lines = []
    for index, memory in enumerate(plan.memories):
        if memory.writes:
            continue
        size = 1 << memory.address_bits
        entries = [*memory.init, *[0] * (size - len(memory.init))]
        lines += [f"// {memory.name}",
                  f"alignas(64) constexpr uint{max(32, storage(memory.width))}_t "
                  f"table{index}[{size}] = {{",
                  *("  " + " ".join(f"{entry:#x}," for entry in entries[begin:begin + 8])
                    for begin in range(0, size, 8)),
                  "};", ""]
    return lines


def state_struct(grid: TileGrid, plan: Plan, constants: Constants) -> list[str]:
    """C++ structure of a grid's registers and memories; its constructor sets the initial values."""
    lines = ["// Row 0 and the entries before lane 0 of each register lie beyond the grid's edge.",
             "struct State {"]
    start: list[str] = []
    for index, register in enumerate(plan.registers):
        lines.append(f"  {_register(index, register)}  // {register.name}")
        if register.init:
            start.append(_register_start(index, register))
    for index, memory in enumerate(plan.memories):
        if memory.writes:
            lines.append(f"  alignas(64) {storage_type(memory.width)} m{index}[ROWS]"
                         f"[{1 << memory.address_bits}][LANES_PER_ROW] = {{}};  // {memory.name}")
            start += _memory_start(index, memory)
    lines += [f"  {line}" for line in _edges(plan)]
    if can_skip(grid, plan):
        # Readers load eight rows at once.
        lines.append("  // The active chunks of each row, from row -1 on: initially all.")
        lines.append("  uint8_t active[ROWS + 1];")
        start.append("for (auto& row : active) row = 0xff;")
    lines += [f"  {line}" for line in constants.members()]
    if start:
        lines += ["  State() {", *(f"    {line}" for line in start), "  }"]
    return [*lines, "};", ""]


def _register(index: int, register: Register) -> str:
    if register.width == 1:
        return f"uint64_t b{index}[ROWS + 1][CHUNKS] = {{}};"
    return (f"alignas(64) {storage_type(register.width)} r{index}[ROWS + 1]"
            f"[{padding(register.width)} + LANES_PER_ROW] = {{}};")


def _register_start(index: int, register: Register) -> str:
    if register.width == 1:
        return (f"for (int r = 1; r <= ROWS; ++r) for (int c = 0; c < CHUNKS; ++c) "
                f"b{index}[r][c] = c == CHUNKS - 1 ? LAST_CHUNK : ~uint64_t(0);")
    return (f"for (int r = 1; r <= ROWS; ++r) for (int i = 0; i < LANES_PER_ROW; "
            f"++i) r{index}[r][{padding(register.width)} + i] = {register.init:#x}ull;")


def _memory_start(index: int, memory: Memory) -> list[str]:
    return [f"for (int r = 0; r < ROWS; ++r) for (int i = 0; i < LANES_PER_ROW; "
            f"++i) m{index}[r][{address}][i] = {value:#x}ull;"
            for address, value in enumerate(memory.init) if value]


def _edges(plan: Plan) -> list[str]:
    """C++ members that hold the grid's inputs for the row that is being stepped.

    They hold the values of 1-bit registers beyond the west edge, and the slices of ports that are
    wired to each tile.
    """
    west = sorted({source.source for source in plan.inputs.values()
                   if source.kind == "east" and source.width == 1 and source.source is not None})
    lines = [f"uint64_t west{register} = 0;" for register in west]
    for name, source in plan.inputs.items():
        if source.kind == "each":
            index = input_index(plan, name)
            lines.append(f"uint64_t each_{index}[CHUNKS];" if source.width == 1 else
                         f"alignas(64) {storage_type(source.width)} each_{index}[LANES_PER_ROW];")
    return lines
