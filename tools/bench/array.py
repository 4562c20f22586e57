"""Simulation speed of the bare systolic array: with tile kernels, and in pure Verilog."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.mxu import tile_matmul
from golden.numerics import bits, to_bf16
from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.grid import mac_grid
from sim.models.kernels import ModelSources, with_kernels
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model
from sim.verilated.toolchain import compile_for
from tools.bench.machine import AVX2, has_avx2

__all__ = ["Grid", "array_figures"]

RUNS = 5
KERNEL_CYCLES = 10_000
LOADING_CYCLES = 5_000
IDLE_CYCLES = 1_000_000
VERILATOR_CYCLES = 300

Words = npt.NDArray[np.uint32]


def _grid_sources(config: Config, kernels: bool) -> ModelSources:
    grid = mac_grid(config)
    return with_kernels(grid.module, lambda: mac_grid(config), [grid] if kernels else [])


class Grid:
    """A model of the bare systolic array, with tile kernels or in pure Verilog.

    In pure Verilog, Verilator compiles the module of an array row separately (``hier_block``).

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Use tile kernels instead of pure Verilog.
    optimise : bool or None
        How far to optimise the C++ outside of the kernels, as in
        `sim.verilated.build.build_model`.
    """

    def __init__(self, config: Config, *, kernels: bool, optimise: bool | None = True) -> None:
        sources = cached_json(f"mac_grid-{kernels}", asdict(config),
                              lambda: _grid_sources(config, kernels))
        rows = [] if kernels else [mac_grid(config).row_module]
        self._size = config.array
        self._skew = config.row_skew
        self._latency = config.mac_latency
        self.model = Model(build_model("mac_grid", sources["verilog"], cpp=sources["cpp"],
                                       waivers=LINT_WAIVERS, hierarchical=rows,
                                       optimise=optimise))
        self.model.reset()

    def load(self, weights: npt.NDArray[np.float32]) -> None:
        """Shift ``weights``, shape (array, array), into the array, and swap them to active."""
        size = self._size
        cycles = size * (self._skew + 2)
        tokens = np.zeros((cycles, size), np.uint16)
        valid = np.zeros((cycles, size), bool)
        for column in range(size):
            # Row r enters column c in cycle r + c, as a load does in the matrix unit.
            tokens[column:column + size, column] = bits(to_bf16(weights[:, column]))
            valid[column:column + size, column] = True
        swap = np.zeros((cycles + size * self._skew, size), bool)
        for row in range(size):
            swap[cycles - 1 + row * self._skew, row] = True
        self.model.run({"w_north": _words(tokens), "w_north_valid": _bit_words(valid)}, [])
        self.model.poke("w_north_valid", np.zeros(self.model.ports["w_north_valid"].words,
                                                  np.uint32))
        self.model.run({"swap": _bit_words(swap)}, [])
        self.model.tick(size)

    def stream(self, x: npt.NDArray[np.float32]) -> dict[str, Words]:
        """Return the values of the input ports, by port and cycle, while the rows of ``x`` enter.

        A new row of ``x`` begins in each cycle; its element for row r of the array enters r times
        the skew later. After the last element, the inputs are idle until the last sum has left.
        """
        count, size = x.shape
        cycles = count + (self._skew + 1) * (size - 1) + self._latency
        data = np.zeros((cycles, size), np.uint16)
        valid = np.zeros((cycles, size), bool)
        for row in range(size):
            start = row * self._skew
            data[start:start + count, row] = bits(to_bf16(x[:, row]))
            valid[start:start + count, row] = True
        return {"x": _words(data), "x_valid": _bit_words(valid)}

    def results(self, p: Words, count: int) -> Words:
        """Bits of the fp32 results of ``count`` rows, shape (count, array).

        ``p`` is the array's output of the same name, shape (cycles, array), recorded while the
        inputs were those that `stream` returned.
        """
        first = self._skew * (self._size - 1) + self._latency - 1
        return np.stack([p[first + column:, column][:count] for column in range(self._size)],
                        axis=1)


def _words(values: npt.NDArray[np.uint16]) -> Words:
    """Pack rows of 16-bit elements into rows of 32-bit words, the first element lowest."""
    spare = -values.shape[1] % 2
    return np.ascontiguousarray(np.pad(values, ((0, 0), (0, spare)))).view(np.uint32)


def _bit_words(values: npt.NDArray[np.bool_]) -> Words:
    """Pack rows of bits into rows of 32-bit words, the first bit lowest."""
    spare = -values.shape[1] % 32
    packed = np.packbits(np.pad(values, ((0, 0), (0, spare))), axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)


def _rate(cycles: int, run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return cycles / (time.perf_counter() - started)


def _check(grids: Mapping[str, Grid], rows: npt.NDArray[np.float32],
           weights: npt.NDArray[np.float32]) -> None:
    """Multiply ``rows`` by the loaded ``weights`` in all ``grids``; check the results' bits.

    Raises
    ------
    RuntimeError
        If a bit differs between two models, or between the first model and the golden model.
    """
    (first, kernel), *_ = grids.items()
    short = kernel.stream(rows)
    recorded = {name: grid.model.run(short, ["p", "p_valid"]) for name, grid in grids.items()}
    for name, record in recorded.items():
        for port in ("p", "p_valid"):
            if not np.array_equal(recorded[first][port], record[port]):
                raise RuntimeError(f"{first} and {name} differ in port {port}")
    if not np.array_equal(kernel.results(recorded[first]["p"], len(rows)),
                          bits(tile_matmul(rows, weights))):
        raise RuntimeError(f"results of {first} and of the golden model differ")


def _speed(grid: Grid, x: Words) -> float:
    """Simulated cycles a second while ``x``, the values of the port of this name, keeps it busy."""
    return _rate(len(x), lambda: grid.model.run({"x": x}, []))


def array_figures(config: Config) -> dict[str, float]:
    """Measure the simulation speed of the busy and of the idle array, in cycles a second.

    All models are first checked against the golden model. On a machine with AVX2, the busy array is
    also measured with kernels compiled for AVX2.

    Raises
    ------
    RuntimeError
        If a bit differs from the golden model.
    """
    size = config.array
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((size, size)).astype(np.float32)
    kernel, verilator = Grid(config, kernels=True), Grid(config, kernels=False)
    grids = {"kernel": kernel, "verilator": verilator}
    if has_avx2():
        with compile_for(AVX2):
            grids["avx2"] = Grid(config, kernels=True)
    rows = rng.standard_normal((VERILATOR_CYCLES, size)).astype(np.float32)
    for grid in grids.values():
        grid.load(weights)
    _check(grids, rows, weights)

    # From here on every cell is busy in every cycle.
    everything = np.full(kernel.model.ports["x_valid"].words, 0xFFFF_FFFF, np.uint32)
    if size % 32:
        everything[-1] >>= np.uint32(32 - size % 32)
    data = _words(bits(to_bf16(rng.standard_normal((KERNEL_CYCLES, size)).astype(np.float32))))
    for grid in grids.values():
        grid.model.poke("x_valid", everything)
        grid.model.run({"x": data[:size] if grid is verilator else data[:2 * size]}, [])
    speeds: dict[str, list[float]] = {name: [] for name in (*grids, "loading", "idle")}
    for _ in tqdm(range(RUNS), "array", unit="run", leave=False):
        for name, grid in grids.items():
            speeds[name].append(_speed(grid, data[:VERILATOR_CYCLES] if grid is verilator
                                       else data))
    # If weights enter in every cycle, they pass through the whole array: the most expensive load.
    kernel.model.poke("w_north_valid", everything)
    for _ in range(RUNS):
        speeds["loading"].append(_rate(LOADING_CYCLES, lambda: kernel.model.run(
            {"x": data[:LOADING_CYCLES], "w_north": data[-LOADING_CYCLES:]}, [])))
    for port in ("x_valid", "w_north_valid"):
        kernel.model.poke(port, np.zeros_like(everything))
    kernel.model.tick(4 * size)
    for _ in range(RUNS):
        speeds["idle"].append(_rate(IDLE_CYCLES, lambda: kernel.model.tick(IDLE_CYCLES)))
    median = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = [a / b for a, b in zip(speeds["kernel"], speeds["verilator"], strict=True)]
    avx2 = {"array_kernel_avx2_cycles_per_second": median["avx2"]} if "avx2" in median else {}
    return {
        "array_kernel_cycles_per_second": median["kernel"],
        **avx2,
        "array_verilator_cycles_per_second": median["verilator"],
        "array_kernel_ratio": statistics.median(ratios),
        "array_loading_cycles_per_second": median["loading"],
        "array_idle_cycles_per_second": median["idle"],
        "array_kernel_mmac_per_second": median["kernel"] * size * size / 1e6,
    }
