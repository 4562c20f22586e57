"""Synthesis unit by unit: the cells of a large design, without a netlist of the whole.

A unit is a module that is synthesised alone, flattened, down to the units that it instantiates.
Its cells are counted once for each instance. Logic is not optimised across the borders of units, so
the totals are an upper bound.
"""

import json
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from amaranth.lib import wiring

from hdl import yosys
from hdl.store import digest, keep_text, kept_text
from hdl.target import Target
from hdl.tiles import ModuleInterface, VerilogLibrary

__all__ = ["UNITS", "Unit", "synthesise_units", "total"]

UNITS = ("control_slave", "core", "core_node", "dma_engine", "hbm_port", "mac_cell", "mxu",
         "sequencer", "vpu", "xlu")
"""Modules of a chip that are small enough to be synthesised as units."""


@dataclass(frozen=True)
class Unit:
    """Cells of a unit.

    Attributes
    ----------
    instances : int
        Number of its instances in the whole design.
    cells : Counter
        Number of cells of each type in one instance, without the units in it.
    """

    instances: int
    cells: Counter[str]


def synthesise_units(top: str, make: Callable[[], wiring.Component], units: Collection[str],
                     target: Target, passes: Callable[[str], str]) -> Iterator[tuple[str, Unit]]:
    """Synthesise the design ``make()`` unit by unit; yield the name and the cells of each unit.

    Results are kept in the cache.

    Parameters
    ----------
    top : str
        Name of the design's top module, which is a unit, too.
    make : callable returning a Component
        Builds the design.
    units : collection of str
        Names of the other units; those that the design does not have are ignored.
    target : Target
        The technology for which the Verilog is written.
    passes : callable
        Returns the Yosys commands that map the module with the given name to the technology.

    Raises
    ------
    RuntimeError
        If Yosys fails.
    """
    library = VerilogLibrary(target)
    sources = library.write(top, make)
    modules = library.modules
    for name, instances in _instances(top, modules).items():
        if name == top or name in units:
            inner = _inner(name, units, modules)
            text = [sources[module] for module in inner]
            text += [_black_box(child, modules[child]) for child in sorted(
                {child for module in inner for child in modules[module].instances} - set(inner))]
            cells = _synthesise(name, "\n".join(text), passes(name))
            for child in modules:
                del cells[child]
            yield name, Unit(instances, cells)


def total(units: Mapping[str, Unit]) -> Counter[str]:
    """Return the number of cells of each type in the whole design, given its ``units`` by name."""
    cells: Counter[str] = Counter()
    for unit in units.values():
        for kind, number in unit.cells.items():
            cells[kind] += unit.instances * number
    return cells


def _instances(top: str, modules: Mapping[str, ModuleInterface]) -> Counter[str]:
    """Return the number of instances of each of ``modules`` in the design ``top``."""
    found: Counter[str] = Counter()

    def visit(name: str, times: int) -> None:
        found[name] += times
        for child, number in modules[name].instances.items():
            visit(child, times * number)

    visit(top, 1)
    return found


def _inner(name: str, units: Collection[str],
           modules: Mapping[str, ModuleInterface]) -> list[str]:
    """Return the modules that are flattened into unit ``name``, sorted, itself included."""
    found = {name}
    waiting = [name]
    while waiting:
        for child in modules[waiting.pop()].instances:
            if child not in units and child not in found:
                found.add(child)
                waiting.append(child)
    return sorted(found)


def _black_box(name: str, module: ModuleInterface) -> str:
    """Return a Verilog module with ports but without contents, which synthesis leaves as it is."""
    ports = [f"{kind} [{width - 1}:0] {port}"
             for kind, widths in (("input", module.inputs), ("output", module.outputs))
             for port, width in widths.items()]
    return f"(* blackbox *) module {name} ({', '.join(ports)});\nendmodule\n"


def _synthesise(top: str, verilog: str, passes: str) -> Counter[str]:
    """Return the number of cells of each type in module ``top`` of ``verilog`` after ``passes``."""
    script = (f"read_verilog -sv {top}.v\nhierarchy -top {top}\n{passes}\n"
              f"tee -q -o {top}.stat stat -json -top {top}\n")
    key = digest([yosys.version(), script, verilog])
    text = kept_text("cells", f"{top}.json", key)
    if text is None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / f"{top}.v").write_text(verilog)
            yosys.run(script, cwd=folder)
            text = (folder / f"{top}.stat").read_text()
        keep_text("cells", f"{top}.json", key, text)
    counts = json.loads(text)["design"]["num_cells_by_type"]
    return Counter({kind: number for kind, number in counts.items() if kind != "$scopeinfo"})
