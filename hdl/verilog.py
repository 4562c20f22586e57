"""The design as Verilog: one module per distinct block, byte for byte the same on every run."""

import json
from collections import Counter
from dataclasses import asdict, dataclass

from .chip.chip import Chip
from .config import Config
from .tiles import ModuleInterface, VerilogLibrary

__all__ = ["LINT_WAIVERS", "TOP", "Export", "export"]

TOP = "chip"
"""Name of the top module."""

LINT_WAIVERS = """\
// Amaranth gives every register an initial value, also where it has no reset: FPGAs load it, and an
// ASIC flow ignores it, for no result depends on it (the first activations wait for a swap).
lint_off -rule PROCASSINIT
// An addition keeps its carry bit although the register it goes to drops it, and a memory has the
// reset port that every clocked module has.
lint_off -rule UNUSEDSIGNAL
// Yosys leaves it to Verilog to extend the operands of an arithmetic operator to its result.
lint_off -rule WIDTHEXPAND
// Yosys writes "word equals zero" as the logical negation of the word.
lint_off -rule WIDTHTRUNC -file "*" -match "*LOGNOT*"
// It writes a choice of one among many as a function of a, b and s, with a case whose patterns look
// at one bit each.
lint_off -rule CASEOVERLAP
lint_off -rule VARHIDDEN
// What C++ keeps for itself may be the name of a port.
lint_off -rule SYMRSVDWORD
"""
"""Verilator's warnings that the exported Verilog does raise, each with why it is harmless."""


@dataclass(frozen=True)
class Export:
    """A design written out.

    Attributes
    ----------
    config : Config
        Its parameters.
    sources : dict of str to str
        Verilog text by module name.
    modules : dict of str to ModuleInterface
        Ports and instances by module name.
    """

    config: Config
    sources: dict[str, str]
    modules: dict[str, ModuleInterface]

    def totals(self) -> dict[str, int]:
        """How often each module stands in the whole design, all levels together."""
        totals: Counter[str] = Counter()

        def visit(name: str, times: int) -> None:
            totals[name] += times
            for child, count in self.modules[name].instances.items():
                visit(child, times * count)

        visit(TOP, 1)
        return dict(sorted(totals.items()))

    def description(self) -> str:
        """The design as JSON: parameters, and of each module its file, ports and instances."""
        totals = self.totals()
        return json.dumps({
            "top": TOP,
            "parameters": asdict(self.config),
            "modules": {
                name: {"file": f"{name}.v", "total_instances": totals[name], **asdict(module)}
                for name, module in self.modules.items()
            },
        }, indent=2) + "\n"

    def stub(self, name: str) -> str:
        """An empty Verilog module with the ports of module ``name``, to check others against it."""
        module = self.modules[name]
        ports = [f"{kind} [{width - 1}:0] {port}" if width > 1 else f"{kind} {port}"
                 for kind, widths in (("input", module.inputs), ("output", module.outputs))
                 for port, width in widths.items()]
        return f"module {name} ({', '.join(ports)});\nendmodule\n"


def export(config: Config) -> Export:
    """Writes the chip of ``config`` as Verilog.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not one of a chip.
    """
    library = VerilogLibrary()
    sources = library.write(TOP, lambda: Chip(config))
    return Export(config, sources, library.modules)
