"""The Verilog module that replaces a grid in a simulation and calls its kernel."""

from collections.abc import Iterable

from hdl.tiles import TileGrid
from sim.kernel.emit.layout import Port, Ports, linked_port, linked_register
from sim.kernel.plan.plan import Plan

__all__ = ["verilog_shim"]

_COMMA = ",\n"


def verilog_shim(grid: TileGrid, plan: Plan, *, parallel: bool) -> str:
    """Verilog of a module that has the grid's name and ports, and calls the kernel's functions.

    ``parallel``: the kernel's steps may run on another thread.
    """
    ports = Ports(grid)
    inputs, outputs = ports.inputs.values(), ports.outputs.values()
    name = grid.module
    start = _initial_outputs(grid, plan, ports)
    functions, clocked, step = (_parallel if parallel else _serial)(name, ports)
    path = '$sformatf("%m")' if parallel else ""
    header = ["input clk",
              *(f"input {_range(port)}{port.name}" for port in inputs),
              *(f"output reg {_range(port)}{port.name}" for port in outputs)]
    gives = [f"output bit {_range(port)}{port.variable}" for port in outputs]
    taken = [port.variable for port in outputs]
    lines = [
        f"// Replaces grid {name} in simulations: calls its kernel at each clock edge.",
        f"module {name} (",
        _COMMA.join(f"  {line}" for line in header),
        ");",
        *functions,
        *_import(name, "outputs", ["input chandle self", *gives]),
        f'  import "DPI-C" function void {name}_delete(input chandle self);',
        "  chandle self;",
        *(f"  bit {_range(port)}{port.variable};" for port in outputs),
        "  initial begin",
        f"    self = {name}_new({path});",
        *(f"    {port} = {value};" for port, value in start.items()),
        "  end",
        f"  final {name}_delete(self);",
        *clocked,
        f"    if ({step}) begin",
        f"      {_call(name, 'outputs', taken)};",
        *(f"      {port.name} <= {port.variable};" for port in outputs),
        "    end",
        "  end",
        "endmodule",
        "",
    ]
    return "\n".join(lines)


def _initial_outputs(grid: TileGrid, plan: Plan, ports: Ports) -> dict[str, str]:
    """Verilog values of the outputs before the first clock edge, by port name."""
    start = {}
    for link in grid.links:
        port = linked_port(link)
        if port in ports.outputs:
            register = plan.registers[linked_register(plan, link)]
            count = ports.outputs[port].width // register.width
            start[port] = f"{{{count}{{{register.width}'h{register.init:x}}}}}"
    return start


def _serial(name: str, ports: Ports) -> tuple[list[str], list[str], str]:
    """Three parts of the shim of grid ``name`` if the kernel steps at the rising edge of the clock.

    These are the imports of C functions, the beginning of the clocked block, and the call that
    steps the kernel and returns whether the outputs can have changed.
    """
    functions = [*_import(name, "new", [], "chandle"),
                 *_import(name, "step", ["input chandle self", *_taken(ports)], "bit")]
    return functions, ["  always @(posedge clk) begin"], _call(name, "step", ports.inputs)


def _parallel(name: str, ports: Ports) -> tuple[list[str], list[str], str]:
    """Like `_serial`, for a parallel kernel.

    The shim passes the inputs at the falling edge; the kernel may step until the rising edge.
    """
    functions = [*_import(name, "new", ["input string path"], "chandle"),
                 *_import(name, "posted", ["input chandle self"], "bit"),
                 *_import(name, "post", ["input chandle self", *_taken(ports)]),
                 *_import(name, "finish", ["input chandle self"], "bit")]
    post = _call(name, "post", ports.inputs)
    # If the clock is low at first, the first rising edge comes before any falling edge.
    clocked = [f"  always @(negedge clk) {post};",
               "  always @(posedge clk) begin",
               f"    if (!{_call(name, 'posted')}) {post};"]
    return functions, clocked, _call(name, "finish")


def _taken(ports: Ports) -> list[str]:
    """Declarations of the grid's inputs as arguments, for the Verilog import of a C function."""
    return [f"input bit {_range(port)}{port.variable}" for port in ports.inputs.values()]


def _range(port: Port) -> str:
    return "" if port.is_bit else f"[{port.width - 1}:0] "


def _import(name: str, suffix: str, arguments: Iterable[str], result: str = "void") -> list[str]:
    return [f'  import "DPI-C" function {result} {name}_{suffix}(',
            _COMMA.join(f"    {line}" for line in arguments), "  );"]


def _call(name: str, suffix: str, arguments: Iterable[str] = ()) -> str:
    return f"{name}_{suffix}({', '.join(['self', *arguments])})"
