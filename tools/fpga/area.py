"""Area by module: assigns the cells of the flattened netlist to the instances of the design."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from hdl.tiles import ModuleInterface
from tools.fpga.synthesis import comb

__all__ = ["areas", "owners"]

_MEMORIES = {"DP16KD", "TRELLIS_DPR16X4"}
"""Types of the cells that memories become; such a cell's name begins with the memory's path."""
_SCOPE = "$scopeinfo"
"""Type of the cell that Yosys's ``flatten`` leaves for each instance. The cell's name is the path
of the instance, and an attribute of the cell is the name of the instance's module."""


def _is_output(cell: Mapping[str, Any], port: str) -> bool:
    return bool(cell["port_directions"][port] == "output")


def _named(netlist: Mapping[str, Any], modules: Mapping[str, ModuleInterface],
           instances: Mapping[str, str]) -> dict[int, str]:
    """Find, for each bit that has a name in the source, the path of the instance that drives it.

    ``instances`` maps the path of each instance to its module. A bit has a name in every instance
    that it passes through. In an instance that only reads the bit, this name is an input port. The
    other instances are the driver and those that contain the driver, so the driver is the one of
    them with the longest path.
    """
    found: dict[int, str] = {}
    for name, net in netlist["netnames"].items():
        path, _, port = name.rpartition(".")
        # Nets without a source location have names that Yosys derived from adjacent nets.
        if net["hide_name"] or "src" not in net["attributes"] or path not in instances:
            continue
        if port not in modules[instances[path]].inputs:
            for bit in net["bits"]:
                if isinstance(bit, int) and len(path) >= len(found.get(bit, "")):
                    found[bit] = path
    return found


def owners(netlist: Mapping[str, Any], top: str,
           modules: Mapping[str, ModuleInterface]) -> dict[str, str]:
    """Map each cell's name to the path of its instance, such as ``system.chip.node_0``.

    A memory belongs to the instance in which it is declared. A cell whose output has a name in the
    source belongs to the instance that drives this name. Any other cell belongs to the same
    instance as the nearest named cell that it drives.

    Parameters
    ----------
    netlist : mapping
        The top module of the design, flattened, as Yosys writes it.
    top : str
        Name of the top module; the path of its own cells is empty.
    modules : mapping of str to ModuleInterface
        All modules of the design.
    """
    instances = {"": top, **{name: cell["attributes"]["module"]
                             for name, cell in netlist["cells"].items() if cell["type"] == _SCOPE}}
    named = _named(netlist, modules, instances)
    driver: dict[int, str] = {}
    inputs: dict[str, list[int]] = {}
    found: dict[str, str] = {}
    cells = {name: cell for name, cell in netlist["cells"].items() if cell["type"] != _SCOPE}
    for name, cell in cells.items():
        inputs[name] = []
        places = []
        for port, bits in cell["connections"].items():
            wires = [bit for bit in bits if isinstance(bit, int)]
            if _is_output(cell, port):
                driver |= dict.fromkeys(wires, name)
                places += [named[bit] for bit in wires if bit in named]
            else:
                inputs[name] += wires
        if cell["type"] in _MEMORIES:
            places = [next(path for path in _prefixes(name) if path in instances)]
        if places:
            found[name] = max(places, key=len)
    waiting = deque(found)
    while waiting:
        name = waiting.popleft()
        for bit in inputs[name]:
            source = driver.get(bit)
            if source is not None and source not in found:
                found[source] = found[name]
                waiting.append(source)
    return {name: found.get(name, "") for name in cells}


def _prefixes(path: str) -> Iterator[str]:
    """Yield a path and the paths of all instances that contain it, up to the empty path."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def areas(netlist: Mapping[str, Any], owner: Mapping[str, str]) -> dict[str, Counter[str]]:
    """Count, by path, the cells of each instance, including those of the instances in it.

    Parameters
    ----------
    netlist : mapping
        As of `owners`.
    owner : mapping of str to str
        The path of each cell's instance, from `owners`.

    Returns
    -------
    dict of str to Counter
        Number of cells of each type, and ``COMB``, the combinational cells that they need.
    """
    cells: dict[str, Counter[str]] = {}
    for name, path in owner.items():
        cells.setdefault(path, Counter())[netlist["cells"][name]["type"]] += 1
    totals: dict[str, Counter[str]] = {}
    for owning, counts in cells.items():
        for path in _prefixes(owning):
            totals.setdefault(path, Counter()).update(counts)
    for counts in totals.values():
        counts["COMB"] = comb(counts)
    return dict(sorted(totals.items()))
