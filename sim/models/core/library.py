"""Builds the shared library of a simulated core."""

import pathlib
from dataclasses import asdict

from hdl.config import Config
from hdl.core.core import Core
from hdl.lint import LINT_WAIVERS
from hdl.mxu.grid import mac_grid
from hdl.mxu.lane import mxu_lanes
from hdl.tiles import TileGrid
from hdl.vpu.element import vpu_grid
from hdl.xlu.reduce import reduce_nodes
from hdl.xlu.transpose import transpose_banks
from sim.models.kernels import BLOCK_WAIVERS, ModelSources, with_kernels, worth_optimising
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json

__all__ = ["core_cpp", "core_grids", "core_library", "core_sources"]

_TOP = "core"
_CPP = pathlib.Path(__file__).resolve().parents[1] / "cpp"


def core_grids(config: Config) -> list[TileGrid]:
    """Returns the tile grids of a core that kernels can simulate."""
    return [make(config) for make in (mac_grid, mxu_lanes, vpu_grid, reduce_nodes,
                                      transpose_banks)]


def core_sources(config: Config, kernels: bool) -> ModelSources:
    """Returns the sources of module ``core``, for the models of all designs that contain it.

    Writing them takes most of the time of writing a chip, so they are kept in the cache.

    Parameters
    ----------
    config : Config
        Parameters of the core or of its chip.
    kernels : bool
        Replace the grids by tile kernels whose steps several threads can divide between them
        (`with_kernels` with ``parallel``).
    """
    found: ModelSources = cached_json(
        f"core-{'kernels' if kernels else 'verilog'}", asdict(config.core_config),
        lambda: with_kernels(_TOP, lambda: Core(config), core_grids(config) if kernels else [],
                             parallel=True))
    return found


def core_cpp() -> dict[str, str]:
    """Return the C++ files of a simulated core by name, except those of tile kernels."""
    return {name: (_CPP / name).read_text() for name in ("core.cpp", "watch.hpp")}


def core_library(config: Config, *, kernels: bool = True) -> pathlib.Path:
    """Returns the shared library of the core of ``config``; builds it unless it exists.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the grids (array, the array's lanes, vector unit, cross-lane unit) by tile kernels.
        Otherwise everything is pure Verilog: a reference for small configurations. Rows of the
        array and vector-unit elements are then verilated separately, as hierarchical blocks of
        Verilator.

    Raises
    ------
    RuntimeError
        If a tool is missing or fails.
    """
    sources = core_sources(config, kernels)
    blocks = [] if kernels else [mac_grid(config).row_module, vpu_grid(config).tile_module]
    return build_model(_TOP, sources["verilog"], cpp=core_cpp() | sources["cpp"],
                       waivers=LINT_WAIVERS + (BLOCK_WAIVERS if blocks else ""),
                       hierarchical=blocks, optimise=worth_optimising(config, kernels))
