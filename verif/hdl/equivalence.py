"""Formal proofs that a component's variant for a target behaves like its generic variant."""

import pathlib
import tempfile
from collections.abc import Collection

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl import yosys
from hdl.target import Target
from hdl.tiles import VerilogLibrary, port_widths

__all__ = ["prove", "verilog_of"]


def verilog_of(component: type[wiring.Component], *arguments: object,
               target: Target = Target.GENERIC) -> str:
    """Verilog of ``component(*arguments)`` for ``target``, as module ``subject``."""
    library = VerilogLibrary(target)
    sources = library.write("subject", lambda: component(*arguments))
    text = "\n".join(sources.values())
    # A component that writes its own Verilog chooses the name.
    module = getattr(component, "module", None)
    return text if module is None else text.replace(
        f"module {module(*arguments)} ", "module subject ")


def _proof_of(component: wiring.Component, output: str, held: Collection[str]) -> str:
    """Verilog of a module ``proof``: ``equal`` compares an output of ``wanted`` and ``found``.

    The modules ``wanted`` and ``found`` have the ports of ``component``, and get the same inputs.
    Inputs in ``held`` keep their first value; the others can change in every cycle.
    """
    inputs, widths = port_widths(component, In), port_widths(component, Out)
    lines = ["module proof (", ",\n".join(
        ["  input clk", "  input rst",
         *(f"  input [{width - 1}:0] {name}" for name, width in inputs.items()),
         "  output equal"]), ");", "  reg started = 0;", "  always @(posedge clk) started <= 1;"]
    clocked = not getattr(component, "combinational", False)
    used = {"clk": "clk", "rst": "rst"} if clocked else {}
    for name, width in inputs.items():
        used[name] = name
        if name in held:
            used[name] = f"used_{name}"
            lines += [f"  reg [{width - 1}:0] held_{name};",
                      f"  wire [{width - 1}:0] used_{name} = started ? held_{name} : {name};",
                      f"  always @(posedge clk) held_{name} <= used_{name};"]
    for side in ("wanted", "found"):
        lines.append(f"  wire [{widths[output] - 1}:0] {side}_{output};")
        ports = [*(f".{name}({value})" for name, value in used.items()),
                 f".{output}({side}_{output})"]
        lines.append(f"  {side} {side} ({', '.join(ports)});")
    equal = f"wanted_{output} == found_{output}"
    return "\n".join([*lines, f"  assign equal = {equal};", "endmodule", ""])


def prove(component: wiring.Component, wanted: str, found: str, *,
          held: Collection[str] = ()) -> None:
    """Prove by induction over time that two modules have equal outputs in every cycle.

    Parameters
    ----------
    component : Component
        A component with the same ports as both modules.
    wanted, found : str
        Verilog of the modules, each named ``subject``.
    held : collection of str
        Inputs that keep their first value. They may only select which part of the state is output,
        so the proof loses no generality: a check ensures that they reach no register, and no memory
        except as a read address. The induction is then short: the output at one address depends
        only on the output there in the previous cycle, and on the writes.

    Raises
    ------
    RuntimeError
        If there is no proof, or a held input reaches a register.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        script = []
        for side, text in (("wanted", wanted), ("found", found)):
            (folder / f"{side}.v").write_text(text)
            # One design at a time: both may use the same names for their parts.
            script += ["design -reset", f"read_verilog -sv {side}.v", "hierarchy -top subject",
                       "proc", "flatten", "memory -nordff", "opt_clean",
                       *(f"select -assert-count 1 subject/i:{name}" for name in held),
                       *(f"select -assert-none subject/i:{name} %co* subject/t:$*dff* %i"
                         for name in held),
                       f"rename subject {side}",
                       f"design -stash {side}"]
        # One output at a time: the solver then sees no more than what this one depends on.
        for output in port_widths(component, Out):
            (folder / f"{output}.v").write_text(_proof_of(component, output, held))
            script += ["design -reset", f"read_verilog -sv {output}.v",
                       *(f"design -copy-from {side} {side}" for side in ("wanted", "found")),
                       "hierarchy -check -top proof", "proc", "flatten", "opt -fast",
                       "sat -verify -tempinduct -prove equal 1 proof"]
        yosys.run("\n".join(script), cwd=folder)
