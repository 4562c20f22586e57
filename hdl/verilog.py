"""Exports the design as Verilog: one module per distinct component, byte-identical on every run."""

import json
from collections import Counter
from dataclasses import asdict, dataclass

from .chip.chip import Chip
from .config import Config
from .target import Target
from .tiles import ModuleInterface, VerilogLibrary

__all__ = ["TOP", "Export", "export"]

TOP = "chip"
"""Name of the top module."""


@dataclass(frozen=True)
class Export:
    """The exported Verilog of a design.

    Attributes
    ----------
    config : Config
        Parameters of the design.
    sources : dict of str to str
        Verilog text, by module name.
    modules : dict of str to ModuleInterface
        Ports and instances, by module name.
    target : Target
        The technology for which the Verilog was written.
    """

    config: Config
    sources: dict[str, str]
    modules: dict[str, ModuleInterface]
    target: Target = Target.GENERIC

    def totals(self) -> dict[str, int]:
        """Return the number of instances of each module in the whole design, over all levels."""
        totals: Counter[str] = Counter()

        def visit(name: str, times: int) -> None:
            totals[name] += times
            for child, count in self.modules[name].instances.items():
                visit(child, times * count)

        visit(TOP, 1)
        return dict(sorted(totals.items()))

    def description(self) -> str:
        """Describe the design as JSON: its parameters, and each module's file, ports, instances."""
        totals = self.totals()
        # The generic target is not named, so that its description does not change.
        target = {} if self.target is Target.GENERIC else {"target": self.target}
        return json.dumps({
            "top": TOP, **target,
            "parameters": asdict(self.config),
            "modules": {
                name: {"file": f"{name}.v", "total_instances": totals[name], **asdict(module)}
                for name, module in self.modules.items()
            },
        }, indent=2) + "\n"

    def stub(self, name: str) -> str:
        """Return a Verilog module with the ports of ``name`` but no body, to lint its parents."""
        module = self.modules[name]
        ports = [f"{kind} [{width - 1}:0] {port}" if width > 1 else f"{kind} {port}"
                 for kind, widths in (("input", module.inputs), ("output", module.outputs))
                 for port, width in widths.items()]
        return f"module {name} ({', '.join(ports)});\nendmodule\n"


def export(config: Config, target: Target = Target.GENERIC) -> Export:
    """Write the chip of ``config`` as Verilog for ``target``.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not valid for a chip, or ``target`` not a `Target`.
    """
    library = VerilogLibrary(target)
    sources = library.write(TOP, lambda: Chip(config))
    return Export(config, sources, library.modules, target)
