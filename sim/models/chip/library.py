"""Builds the shared library of a simulated chip."""

import pathlib
from dataclasses import asdict

from hdl.chip.chip import Chip
from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.grid import mac_grid
from hdl.tiles import VerilogLibrary
from hdl.vpu.element import vpu_grid
from sim.models.core.library import core_grids, core_sources
from sim.models.hbm import HBM_SOURCES
from sim.models.kernels import BLOCK_WAIVERS, ModelSources, worth_optimising
from sim.trace.probes import Probes, hide
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json

__all__ = ["chip_cpp", "chip_library"]

_TOP = "chip"
_ARRIVED = 'public_flat_rd -module "arrivals" -var "write__payload"\n'
"""Statement that makes Verilator keep a variable for the row that arrives for a core over links.
Its value changes only with the clock of the links. Without the statement, the logic that chooses
the row would be repeated wherever the row is used, and evaluated in every cycle."""
_CPP = pathlib.Path(__file__).resolve().parents[1] / "cpp"


def _sources(config: Config, kernels: bool, trace: bool) -> ModelSources:
    core = core_sources(config, kernels)
    around = VerilogLibrary().write(
        _TOP, lambda: Chip(config, status=True, link_clock=kernels,
                           probes=Probes(config, _TOP) if trace else None),
        leave_out=["core"])
    return {"verilog": dict(sorted({**around, **core["verilog"]}.items())), "cpp": core["cpp"]}


def chip_cpp() -> dict[str, str]:
    """Return the C++ files of a simulated chip by name, except those of tile kernels."""
    return {name: (_CPP / name).read_text() for name in (
        "chip.cpp", "torus.hpp", "watch.hpp", "wire.hpp")} | HBM_SOURCES


def chip_library(config: Config, *, kernels: bool = True, trace: bool = False,
                 quick: bool = False) -> pathlib.Path:
    """Returns the shared library of the chip of ``config``; builds it unless it exists.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the grids of all cores by tile kernels, on two threads where that pays. Otherwise
        everything is pure Verilog: a reference for small configurations.
    trace : bool
        Add outputs that show what each unit does, and code that writes waveforms of everything
        except the grids. Requires ``kernels``.
    quick : bool
        Build in the least time: do not optimise the C++ code outside of the kernels.

    Raises
    ------
    ValueError
        If a chip cannot have this configuration, or ``trace`` is set without ``kernels``.
    RuntimeError
        If a tool is missing or fails.
    """
    if trace and not kernels:
        raise ValueError("kernels must be True for a trace, not False")
    name = f"chip-{'traced' if trace else 'kernels' if kernels else 'verilog'}"
    sources = cached_json(name, asdict(config), lambda: _sources(config, kernels, trace))
    blocks = [] if kernels else [mac_grid(config).row_module, vpu_grid(config).tile_module]
    waivers = LINT_WAIVERS + (BLOCK_WAIVERS if blocks else "")
    if kernels and config.link_bytes:
        waivers += _ARRIVED
    if trace:
        waivers += hide(sources["verilog"], (
            Probes.module, *(grid.module for grid in core_grids(config))))
    return build_model(_TOP, sources["verilog"], cpp=chip_cpp() | sources["cpp"], waivers=waivers,
                       hierarchical=blocks, trace=trace,
                       optimise=None if quick else worth_optimising(config, kernels))
