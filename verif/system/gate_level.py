"""Random programs and products on the synthesised netlist of a core, and on the golden model."""

import argparse
import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Iterator
from unittest import mock

from hdl import yosys
from hdl.chip.chip import Chip
from hdl.config import PRESETS, Config
from hdl.core.core import Core
from hdl.lint import LINT_WAIVERS
from hdl.target import Target
from hdl.tiles import VerilogLibrary
from sim.driver.device import Device
from sim.models.chip import simulation
from sim.models.chip.library import chip_cpp
from sim.models.core import CoreModel, ports
from sim.models.core.library import core_cpp
from sim.verilated.build import build_model
from tools.fpga.flow import open_carries
from tools.fpga.gates import CELLS, WAIVERS, gate_level
from tools.fpga.synthesis import passes
from verif.system import random_products, random_programs

__all__ = ["chip_library", "core_library", "gate_level_core", "main", "simulated_gates"]

_TOP = "core"
_CONFIG = PRESETS["fpga"]


def gate_level_core(config: Config = _CONFIG) -> dict[str, str]:
    """Verilog of a core as a netlist of ECP5 cells, by module name; the synthesis takes minutes."""
    verilog = VerilogLibrary(Target.ECP5).write(_TOP, lambda: Core(config))
    design = json.loads(yosys.netlist("\n".join(verilog.values()), _TOP, f"{passes(_TOP)}\n"))
    netlist = design["modules"][_TOP]
    open_carries(netlist)
    return {_TOP: gate_level(netlist, _TOP), "cells": CELLS.read_text()}


def _build(top: str, verilog: dict[str, str], cpp: dict[str, str]) -> pathlib.Path:
    return build_model(top, verilog, cpp=cpp, waivers=LINT_WAIVERS + WAIVERS, optimise=False)


def core_library(config: Config = _CONFIG) -> pathlib.Path:
    """Library of a core whose netlist is simulated, for `CoreModel`; builds it unless it exists."""
    return _build(_TOP, gate_level_core(config), core_cpp())


def chip_library(config: Config = _CONFIG) -> pathlib.Path:
    """Library of a chip whose core's netlist is simulated, for `Device`; built if it is missing."""
    chip = VerilogLibrary().write("chip", lambda: Chip(config, status=True), leave_out=[_TOP])
    return _build("chip", chip | gate_level_core(config), chip_cpp())


@contextlib.contextmanager
def simulated_gates() -> Iterator[None]:
    """Within this context, models that are opened simulate the core's netlist."""
    with (mock.patch.object(ports, "core_library", lambda config, kernels: core_library(config)),
          mock.patch.object(simulation, "chip_library",
                            lambda config, kernels, trace: chip_library(config))):
        yield


def _compare_programs(bundles: int, seed: int) -> None:
    with CoreModel(_CONFIG, kernels=False) as model:
        start, first = time.monotonic(), model.model.cycle
        outcome = random_programs.compare_random(_CONFIG, model, bundles, seed, progress=True)
        seconds, cycles = time.monotonic() - start, model.model.cycle - first
    print(f"{outcome.programs} programs, {outcome.bundles} bundles, executed {outcome.executed} "
          f"times: no difference; {seconds:.0f} s, {outcome.bundles / seconds:.1f} bundles and "
          f"{cycles / seconds:.0f} cycles per second")


def _compare_products(products: int, seed: int) -> None:
    with Device.open(_CONFIG) as device:
        start = time.monotonic()
        outcome = random_products.compare_random(device, products, products // 10, seed,
                                                 most=4 * _CONFIG.array + 2, progress=True)
        seconds = time.monotonic() - start
    print(f"{outcome.products} products, {outcome.chains} pairs of dense layers: no difference; "
          f"{seconds:.0f} s")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundles", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--products", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args(arguments)
    with simulated_gates():
        try:
            if options.bundles:
                _compare_programs(options.bundles, options.seed)
            if options.products:
                _compare_products(options.products, options.seed)
        except AssertionError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
