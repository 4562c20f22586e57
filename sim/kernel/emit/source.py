"""The C++ source of a kernel: constants, state, the step of a chunk, and the functions it exports.

The parts are modules of their own: `sim.kernel.emit.state`, `sim.kernel.emit.chunk` with the
expressions of `sim.kernel.emit.values` and `sim.kernel.emit.lanes`, and `sim.kernel.emit.step`.
`sim.kernel.emit.shim` is the Verilog that calls the functions.
"""

from collections.abc import Sequence

from hdl.tiles import TileGrid
from sim.kernel.emit.chunk import chunk_body
from sim.kernel.emit.layout import CHUNK, Port, Ports
from sim.kernel.emit.state import state_struct, tables
from sim.kernel.emit.step import outputs_body, step_body, work_estimate
from sim.kernel.emit.values import Constants, UniformValues
from sim.kernel.ir import low
from sim.kernel.plan.plan import Plan

__all__ = ["cpp_source"]


def cpp_source(grid: TileGrid, plan: Plan, *, parallel: bool) -> str:
    """C++ source of a grid's kernel, with the functions that `sim.kernel.compile.Kernel` lists.

    ``parallel``: steps may run on another thread.
    """
    ports = Ports(grid)
    uniform = UniformValues(plan)
    constants = Constants()
    chunk = chunk_body(plan, uniform, constants, partial=grid.cols % CHUNK != 0)
    chunks = -(-grid.cols // CHUNK)
    step = step_body(grid, plan, ports, uniform)
    functions = _parallel(grid, plan, ports, step, len(chunk)) if parallel else \
        _serial(grid, plan, ports, step)
    lines = [
        f"// Kernel of {grid.rows} x {grid.cols} tiles {plan.tile.name}: generated, do not edit.",
        *(['#include "pool.hpp"'] if parallel else []),
        '#include "vec.hpp"',
        "",
        "#include <new>",
        "",
        "namespace {",
        "",
        "using namespace systolith::lanes;",
        "",
        f"constexpr int ROWS = {grid.rows};",
        f"constexpr int COLS = {grid.cols};",
        f"constexpr int CHUNKS = {chunks};",
        f"constexpr int LANES_PER_ROW = {CHUNK * chunks};",
        f"constexpr uint64_t LAST_CHUNK = {low(grid.cols - CHUNK * (chunks - 1)):#x}ull;",
        "",
        "// Values of a step that are the same in all tiles.",
        "struct Uniform {",
        *(f"  uint64_t s{index};" for index in range(len(uniform.lines))),
        "};",
        "",
        *tables(plan),
        *state_struct(grid, plan, constants),
        "// Steps the tiles of one chunk of a row; returns 0 if all of them are idle afterwards.",
        "inline uint64_t step_chunk(State& g, [[maybe_unused]] const Uniform& u, ptrdiff_t row, "
        "ptrdiff_t c) {",
        "  [[maybe_unused]] const uint64_t valid = c == CHUNKS - 1 ? LAST_CHUNK : ~uint64_t(0);",
        *(f"  {line}" for line in chunk),
        "}",
        "",
        *functions,
        "",
    ]
    return "\n".join(lines)


def _input_arguments(ports: Ports) -> list[str]:
    return [f"unsigned char {port.variable}_bit" if port.is_bit
            else f"const uint32_t* {port.variable}" for port in ports.inputs.values()]


def _output_arguments(ports: Ports) -> list[str]:
    return [f"unsigned char* {port.variable}_bit" if port.is_bit
            else f"uint32_t* {port.variable}" for port in ports.outputs.values()]


def _serial(grid: TileGrid, plan: Plan, ports: Ports, step: Sequence[str]) -> list[str]:
    """C++ of the exported functions of a kernel whose calling thread runs each step."""
    module = grid.module
    return [
        "}  // namespace",
        "",
        f'extern "C" void* {module}_new() {{ return new State; }}',
        "",
        f'extern "C" void {module}_delete(void* self) {{ delete static_cast<State*>(self); }}',
        "",
        f'extern "C" unsigned char {module}_step('
        f'{", ".join(["void* self", *_input_arguments(ports)])}) {{',
        "  State& g = *static_cast<State*>(self);",
        *(f"  {line}" for line in step),
        "  return stepped;",
        "}",
        "",
        f'extern "C" void {module}_outputs('
        f'{", ".join(["void* self", *_output_arguments(ports)])}) {{',
        "  [[maybe_unused]] const State& g = *static_cast<State*>(self);",
        *(f"  {line}" for line in outputs_body(grid, plan, ports)),
        "}",
    ]


def _parallel(grid: TileGrid, plan: Plan, ports: Ports, step: Sequence[str],
              length: int) -> list[str]:
    """C++ of the exported functions of a kernel whose steps may run on another thread.

    ``{module}_post`` offers the step to the threads; ``{module}_finish`` returns when it is done.
    ``step`` lists the C++ lines that step the grid. ``length`` is the number of C++ lines that step
    a chunk, from which the cost of a step is estimated.
    """
    module = grid.module
    copies = [f"job.{port.variable}_bit = {port.variable}_bit;" if port.is_bit else
              f"std::memcpy(job.{port.variable}, {port.variable}, {4 * _port_words(port)});"
              for port in ports.inputs.values()]
    return [
        *_work_class(grid, plan, ports, step, length),
        "}  // namespace",
        "",
        f'extern "C" void* {module}_new(const char* path) {{ return new Work(path); }}',
        "",
        f'extern "C" void {module}_delete(void* self) {{ delete static_cast<Work*>(self); }}',
        "",
        f'extern "C" unsigned char {module}_posted(void* self) {{',
        "  return static_cast<Work*>(self)->posted();",
        "}",
        "",
        f'extern "C" void {module}_post({", ".join(["void* self", *_input_arguments(ports)])}) {{',
        "  Work& job = *static_cast<Work*>(self);",
        *(f"  {line}" for line in copies),
        "  job.post();",
        "}",
        "",
        f'extern "C" unsigned char {module}_finish(void* self) {{',
        "  Work& job = *static_cast<Work*>(self);",
        "  job.finish();",
        "  return job.outputs_changed;",
        "}",
        "",
        f'extern "C" void {module}_outputs('
        f'{", ".join(["void* self", *_output_arguments(ports)])}) {{',
        "  [[maybe_unused]] const State& g = static_cast<Work*>(self)->g;",
        *(f"  {line}" for line in outputs_body(grid, plan, ports)),
        "}",
    ]


def _port_words(port: Port) -> int:
    """Number of 32-bit words that hold a port's value."""
    return -(-port.width // 32)


def _work_class(grid: TileGrid, plan: Plan, ports: Ports, step: Sequence[str],
                length: int) -> list[str]:
    """C++ class of a step that any thread of the model can run: state and a copy of the inputs.

    ``step`` lists the C++ lines that step the grid. ``length`` is the number of lines that step a
    chunk, from which the work is estimated.
    """
    # Estimate: each line takes one nanosecond for 64 tiles, in which it runs on 8 vectors.
    row_cost = max(1, length * -(-grid.cols // 8) // 8)
    members = [f"unsigned char {port.variable}_bit = 0;" if port.is_bit else
               f"uint32_t {port.variable}[{_port_words(port)}] = {{}};"
               for port in ports.inputs.values()]
    return [
        "class Work final : public systolith::Job {",
        "public:",
        f'  explicit Work(const char* path) : Job("{grid.module}", path, ROWS * {row_cost}) {{}}',
        "",
        "  State g;",
        "  bool outputs_changed = true;",
        *(f"  {member}" for member in members),
        "",
        "protected:",
        "  uint64_t load() const override {",
        *(f"    {line}" for line in work_estimate(grid, plan, ports, row_cost)),
        "  }",
        "",
        "  void run() override {",
        *(f"    {line}" for line in step),
        "    outputs_changed = stepped;",
        "  }",
        "};",
        "",
    ]
