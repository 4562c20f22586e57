"""The largest chips that fit an Artix-7 or an UltraScale+; ``python -m tools.fpga.estimate``.

A chip fits if it takes at most `LIMIT` of each resource of the FPGA. For each FPGA and each number
of cores, the module finds the largest array of a chip that fits and, with this array, the most
sublanes. Yosys synthesises the design unit by unit; it is not placed and routed.
"""

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hdl.chip.chip import Chip
from hdl.config import Config
from hdl.mxu.cell import MacCell
from hdl.target import Target
from hdl.vpu.element import VectorElement
from tools.fpga.units import UNITS, Unit, synthesise_units, total

__all__ = ["LIMIT", "PARTS", "Part", "fits", "largest", "main", "resources", "xilinx_passes"]

LIMIT = 0.8
"""Share of each resource that a chip may take: more can rarely be placed and routed."""
_ARRAYS = (256, 128, 64, 32, 16, 8, 4, 2)
_SUBLANES = (8, 4, 2, 1)
_TILES = {"mac_cell": MacCell, "vpu_element": VectorElement}
_VECTORS = 1024
"""Vectors in vector memory: a block RAM of 36 Kbit for each element."""
_LUTS = ({f"LUT{inputs}": 1 for inputs in range(1, 7)}
         | {"INV": 1, "SRL16E": 1, "SRLC32E": 1, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4,
            "RAM256X1D": 8, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8,
            "RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8})
_RESOURCES: dict[str, dict[str, float]] = {
    "luts": dict(_LUTS),
    "registers": dict.fromkeys(("FDRE", "FDSE", "FDCE", "FDPE"), 1),
    "block_rams": {"RAMB18E1": 0.5, "RAMB18E2": 0.5, "RAMB36E1": 1, "RAMB36E2": 1},
    "multipliers": {"DSP48E1": 1, "DSP48E2": 1}}
"""For each resource: how much of it a cell of the netlist takes, by the cell's type."""
_FREE = {"CARRY4", "CARRY8", "MUXF7", "MUXF8", "MUXF9", "VCC", "GND"}
"""Types of cells that take none of the counted resources: they come with the lookup tables. A
lookup table that only passes a signal into a carry chain is not counted."""


@dataclass(frozen=True)
class Part:
    """An FPGA.

    Attributes
    ----------
    family : str
        Its family, as ``synth_xilinx`` names it.
    available : dict of str to int
        Number of its ``luts`` (lookup tables with six inputs), ``registers``, ``block_rams`` (of
        36 Kbit) and ``multipliers``.
    """

    family: str
    available: dict[str, int]


PARTS = {
    "xc7a200t": Part("xc7", {"luts": 134_600, "registers": 269_200, "block_rams": 365,
                             "multipliers": 740}),
    "xcvu9p": Part("xcup", {"luts": 1_182_240, "registers": 2_364_480, "block_rams": 2_160,
                            "multipliers": 6_840})}
"""FPGAs by name: Artix-7 200T and UltraScale+ VU9P."""


def xilinx_passes(family: str, top: str) -> str:
    """Yosys commands that flatten module ``top`` and map it to a family of Xilinx FPGAs.

    These are the steps of ``synth_xilinx`` without ``share``, as in `tools.fpga.synthesis.passes`.
    """
    steps = f"synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top {top} -run"
    return f"""\
{steps} begin:coarse
techmap -map +/cmp2lut.v -map +/cmp2lcu.v -D LUT_WIDTH=6
alumacc
opt
memory -nomap
opt_clean
{steps} map_memory:"""


def resources(cells: Mapping[str, int]) -> dict[str, float]:
    """Resources that a netlist takes; ``cells`` has the number of its cells of each type.

    Every lookup table of the netlist counts as a whole table of the FPGA, with six inputs. In fact,
    two small ones can share one.

    Raises
    ------
    ValueError
        If the type of a cell is unknown.
    """
    for kind in cells:
        if kind not in _FREE and not any(kind in weights for weights in _RESOURCES.values()):
            raise ValueError(f"type of cell must be known, not {kind!r}")
    return {name: sum(weight * cells.get(kind, 0) for kind, weight in weights.items())
            for name, weights in _RESOURCES.items()}


def _config(array: int, sublanes: int, cores: int) -> Config:
    """Return preset `fpga` with these sizes, and with a memory channel for each 32 lanes."""
    return Config.preset("fpga", array=array, sublanes=sublanes, cores=cores,
                         vmem_bytes=_VECTORS * array * sublanes * 4,
                         hbm_channels=max(1, array // 32))


def _units(part: Part, config: Config) -> Iterator[tuple[str, Unit]]:
    """Synthesise the chip of ``config``; yield the name and the cells of each unit."""
    return synthesise_units("chip", lambda: Chip(config), {*UNITS, *_TILES}, Target.XILINX,
                            functools.partial(xilinx_passes, part.family))


def _tiles(part: Part, config: Config) -> dict[str, Unit]:
    """The units that are tiles of the chip's grids; most of a large chip consists of them."""
    number = {"mac_cell": config.array**2, "vpu_element": config.sublanes * config.lanes}
    units = {}
    for name, make in _TILES.items():
        ((_, unit),) = synthesise_units(name, functools.partial(make, config), (), Target.XILINX,
                                        functools.partial(xilinx_passes, part.family))
        units[name] = replace(unit, instances=config.cores * number[name])
    return units


def fits(part: Part, units: Mapping[str, Unit]) -> bool:
    """Whether ``units`` take at most `LIMIT` of each resource of ``part``."""
    used = resources(total(units))
    return all(used[name] <= LIMIT * number for name, number in part.available.items())


def _add_units(part: Part, config: Config, units: dict[str, Unit]) -> bool:
    """Add the chip's other units to ``units``, which has its tiles; return whether all of them fit.

    After the first unit with which ``units`` do not fit ``part``, no others are synthesised.
    """
    if fits(part, units):
        for name, unit in _units(part, config):
            units[name] = unit
            if not fits(part, units):
                return False
        return True
    return False


def largest(part: Part, cores: int) -> tuple[Config, dict[str, Unit]]:
    """Find the largest chip with ``cores`` cores that fits ``part``: array first, then sublanes.

    Returns
    -------
    tuple of Config and dict of str to Unit
        The chip, and its units by name.

    Raises
    ------
    ValueError
        If even the smallest chip does not fit.
    RuntimeError
        If Yosys fails.
    """
    for array in _ARRAYS:
        for sublanes in _SUBLANES:
            if array % sublanes == 0:
                config = _config(array, sublanes, cores)
                units = _tiles(part, config)
                if _add_units(part, config, units):
                    return config, units
    raise ValueError(f"a chip of {cores} cores does not fit a part with {part.available}")


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.fpga.estimate", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part",
                        help=f"{' or '.join(PARTS)}; all by default")
    parser.add_argument("--cores", type=int, choices=(1, 2), help="both by default")
    arguments = parser.parse_args()
    for name in arguments.parts or PARTS:
        if name not in PARTS:
            parser.error(f"part must be one of {', '.join(PARTS)}, not {name!r}")
        for cores in (arguments.cores,) if arguments.cores else (1, 2):
            config, units = largest(PARTS[name], cores)
            print(f"{name}: array {config.array}, sublanes {config.sublanes}, cores {cores}")
            used = resources(total(units))
            for resource, number in PARTS[name].available.items():
                print(f"  {resource:12} {used[resource]:11,.0f}"
                      f" {100 * used[resource] / number:6.1f} %")
            for unit, found in units.items():
                print(f"  {found.instances:6,} x {unit:14}"
                      f" {resources(found.cells)['luts']:8,.0f} lookup tables each", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
