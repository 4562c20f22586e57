"""Area by module: which part of the design a cell of the flattened netlist belongs to."""

import pathlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from hdl.tiles import ModuleInterface
from tools.fpga.synthesis import comb

__all__ = ["areas", "owners"]

_OUTPUTS = {"Z", "F", "Q", "S0", "S1", "COUT", "OFX", "DO"}
"""Outputs of the cells of an ECP5; those of wider ports have a number as well: ``DOA3``."""


def _is_output(cell: Mapping[str, Any], port: str) -> bool:
    directions = cell.get("port_directions")
    if directions:
        return bool(directions[port] == "output")
    return port in _OUTPUTS


def _named(netlist: Mapping[str, Any], modules: Mapping[str, ModuleInterface]) -> dict[int, str]:
    """Path of the module that drives each bit that has a name in the source.

    A bit has a name in each module that it passes. It is an input in all of them but the module
    that drives it and those around it, so the deepest of the others is the one.
    """
    found: dict[int, str] = {}
    for name, net in netlist["netnames"].items():
        if net["hide_name"]:
            continue
        path, _, port = name.rpartition(".")
        source = net["attributes"].get("src", "").split("|")[0]
        module = pathlib.Path(source.partition(":")[0]).stem
        if module in modules and port in modules[module].inputs:
            continue
        for bit in net["bits"]:
            if isinstance(bit, int) and len(path) >= len(found.get(bit, "")):
                found[bit] = path
    return found


def owners(netlist: Mapping[str, Any], modules: Mapping[str, ModuleInterface]) -> dict[str, str]:
    """Path of the module that each cell belongs to, such as ``system.chip.node_0``.

    A cell whose output has a name in the source belongs to the module that drives the name. One
    without belongs to the module of the nearest such cell that it drives.

    Parameters
    ----------
    netlist : mapping
        A flattened module, as Yosys writes it.
    modules : mapping of str to ModuleInterface
        The modules that it was made from; module ``m`` was read from ``m.v``.
    """
    named = _named(netlist, modules)
    driver: dict[int, str] = {}
    inputs: dict[str, list[int]] = {}
    found: dict[str, str] = {}
    for name, cell in netlist["cells"].items():
        inputs[name] = []
        for port, bits in cell["connections"].items():
            wires = [bit for bit in bits if isinstance(bit, int)]
            if not _is_output(cell, port):
                inputs[name] += wires
                continue
            for bit in wires:
                driver[bit] = name
                if bit in named and len(named[bit]) >= len(found.get(name, "")):
                    found[name] = named[bit]
    waiting = deque(found)
    while waiting:
        name = waiting.popleft()
        for bit in inputs[name]:
            source = driver.get(bit)
            if source is not None and source not in found:
                found[source] = found[name]
                waiting.append(source)
    return {name: found.get(name, "") for name in netlist["cells"]}


def _prefixes(path: str) -> Iterator[str]:
    """A path and all paths above it, to the empty one."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def areas(netlist: Mapping[str, Any],
          modules: Mapping[str, ModuleInterface]) -> dict[str, Counter[str]]:
    """Cells of each module with all below it, by path; the empty path is the whole design.

    Returns
    -------
    dict of str to Counter
        Number of cells of each type, and ``COMB``, the combinational cells that they need.
    """
    cells: dict[str, Counter[str]] = {}
    for name, owner in owners(netlist, modules).items():
        cells.setdefault(owner, Counter())[netlist["cells"][name]["type"]] += 1
    totals: dict[str, Counter[str]] = {}
    for owner, counts in cells.items():
        for path in _prefixes(owner):
            totals.setdefault(path, Counter()).update(counts)
    for counts in totals.values():
        counts["COMB"] = comb(counts)
    return dict(sorted(totals.items()))
