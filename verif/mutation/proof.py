"""Proves that modules of Verilog behave as they did before a change.

A module is compared with its original as combinational logic. For this, each register becomes an
input, its value, and an output, its next value. Modules that it instantiates are cut out in the
same way. If both have the same outputs for all inputs, and the registers have the same initial
values, they behave alike in every design. The converse does not hold, because the inputs include
those that never occur: without a proof, modules may behave alike nevertheless.

Words of a memory that do not exist read as 0, as in Verilator's models.
"""

import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from hdl import yosys

__all__ = ["behave_alike"]

_SECONDS = 60
"""Time limit of a module's proof."""

_CUT = """\
read_verilog -sv {side}.v
blackbox =A:blackbox %n {module} %d
hierarchy -check -top {module}
proc
memory_map
setundef -undriven -zero
setundef -zero
opt_clean
dffunmap
techmap
select -assert-none t:$*ff* t:$*latch* t:$_*FF* t:$_*LATCH* %u t:$_DFF_P_ %d
splitnets -ports
opt_clean
write_json {side}.json
expose -dff -evert -evert-dff
opt_clean
rename {module} {side}
design -stash {side}
"""
"""Yosys script that makes a module combinational, and writes it before registers are cut.

`techmap` reduces it to gates of one bit, so that bits that nothing uses are removed."""

_COMPARE = """\
design -copy-from original -as original original
design -copy-from changed -as changed changed
miter -equiv -flatten original changed miter
hierarchy -top miter
opt_expr -fine
opt_merge -share_all
opt_expr -fine
opt_clean
sat -verify -prove trigger 0 miter
"""
"""Yosys script that fails unless both modules have the same ports, and outputs that are equal."""


def _state(path: pathlib.Path, module: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Initial values of registers, and instances, each by name."""
    found = json.loads(path.read_text(encoding="utf-8"))["modules"][module]
    initial = {name: net["attributes"]["init"] for name, net in found["netnames"].items()
               if "init" in net["attributes"]}
    instances = {name: cell for name, cell in found["cells"].items()
                 if not cell["type"].startswith("$")}
    return initial, instances


def _alike(module: str, original: Mapping[str, str], changed: Mapping[str, str]) -> bool:
    sides = {"original": original, "changed": changed}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for side, sources in sides.items():
            (folder / f"{side}.v").write_text("\n".join(sources.values()), encoding="utf-8")
        try:
            yosys.run("".join(_CUT.format(side=side, module=module) for side in sides) + _COMPARE,
                      cwd=folder, seconds=_SECONDS)
        except RuntimeError:
            return False
        states = [_state(folder / f"{side}.json", module) for side in sides]
    initial, instances = zip(*states, strict=True)
    modules = [{name: cell["type"] for name, cell in found.items()} for found in instances]
    # Parameters may change the widths of an instance's ports, so only some of their bits would be
    # compared.
    return initial[0] == initial[1] and modules[0] == modules[1] and not any(
        cell["parameters"] for found in instances for cell in found.values())


def behave_alike(original: Mapping[str, str], changed: Mapping[str, str]) -> bool:
    """Whether there is a proof that two designs behave alike.

    The proof is sought module by module. Yosys takes half a second for most modules that differ,
    ten seconds for a large one, and gives up after a minute.

    Parameters
    ----------
    original, changed : mapping of str to str
        The Verilog of each module, by its name.
    """
    return original.keys() == changed.keys() and all(
        original[module] == changed[module] or _alike(module, original, changed)
        for module in original)
