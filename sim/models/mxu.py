"""The verilated matrix unit, driven in this process."""

import ctypes
import pathlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.grid import mac_grid
from hdl.mxu.lane import mxu_lanes
from hdl.mxu.mxu import Mxu
from sim.closing import Closeable
from sim.models.kernels import ModelSources, with_kernels, worth_optimising
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

__all__ = ["MxuModel", "mxu_library"]

_DRIVER = pathlib.Path(__file__).with_name("cpp") / "mxu.cpp"
_TOP = "mxu"
_CYCLES_PER_CALL = 4096
"""Number of cycles that one call of C++ simulates. They are few, so that Ctrl-C and progress
reports take effect soon, but enough that the overhead of a call is negligible."""


def _sources(config: Config, kernels: bool) -> ModelSources:
    grids = (mac_grid(config), mxu_lanes(config)) if kernels else ()
    return with_kernels(_TOP, lambda: Mxu(config), grids)


def mxu_library(config: Config, *, kernels: bool = True) -> pathlib.Path:
    """Returns the shared library of the matrix unit of ``config``; builds it unless it exists.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the array and its lanes by tile kernels. Otherwise everything is pure Verilog: a
        reference that is fast to build and slow to run. Each row of the array is then verilated
        separately, as a hierarchical block of Verilator.

    Raises
    ------
    RuntimeError
        If a tool is missing or fails.
    """
    name = f"mxu-{'kernels' if kernels else 'verilog'}"
    sources = cached_json(name, asdict(config), lambda: _sources(config, kernels))
    blocks = [] if kernels else [mac_grid(config).row_module]
    cpp = sources["cpp"] | {_DRIVER.name: _DRIVER.read_text()}
    return build_model(_TOP, sources["verilog"], cpp=cpp, waivers=LINT_WAIVERS,
                       hierarchical=blocks,
                       optimise=worth_optimising(config, kernels) if kernels else None)


class _Job(ctypes.Structure):
    """Products to compute, and the progress of the computation; mirrors ``Job`` in mxu.cpp."""

    _fields_ = (*((name, ctypes.c_void_p) for name in (
                    "weights", "activations", "results", "weight_tile", "activation_tile")),
                *((name, ctypes.c_uint64) for name in (
                    "steps", "rows", "lanes", "transpose",
                    "weight_rows", "activation_rows", "result_rows")))


class MxuModel(Closeable):
    """A simulated matrix unit.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the array and its lanes by tile kernels; otherwise everything is pure Verilog.
    """

    def __init__(self, config: Config, *, kernels: bool = True) -> None:
        self._config = config
        # One job at a time: other threads run during calls into the library.
        self._lock = threading.RLock()
        self._model = Model(mxu_library(config, kernels=kernels))
        self._run = self._model.library.systolith_mxu_run
        self._run.restype = ctypes.c_int
        self._run.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Job), ctypes.c_uint64)
        self.reset()

    def reset(self) -> None:
        """Resets the matrix unit and its counters."""
        with self._lock:
            self._model.reset()

    def counters(self) -> dict[str, int]:
        """Returns the cycle counts since the last reset, as `hdl.mxu.mxu.Mxu` defines them."""
        with self._lock:
            cycles, active, weights = (self._model.peek(name) for name in (
                "cycles", "mxu_active_cycles", "weight_load_cycles"))
        return {"cycles": cycles, "mxu_active_cycles": active, "weight_load_cycles": weights,
                "idle_cycles": cycles - active - weights}

    def multiply(self, weights: npt.NDArray[np.float32], activations: npt.NDArray[np.float32],
                 steps: Sequence[tuple[int, int]], *, transpose: bool = False,
                 progress: Callable[[int], object] | None = None) -> npt.NDArray[np.float32]:
        """Multiplies activation tiles by weight tiles, one product directly after another.

        Parameters
        ----------
        weights : array of float32, shape (weight tiles, array, array)
            Weight tiles W; with ``transpose``, their transposes.
        activations : array of float32, shape (activation tiles, M, array)
            Activation tiles of M rows each.
        steps : sequence of (int, int)
            Index of the activation tile and index of the weight tile of each product.
        transpose : bool
            Transpose each weight tile as the array loads it.
        progress : callable, optional
            Called now and then with the number of result rows read since its last call.

        Returns
        -------
        array of float32, shape (len(steps), M, array)
            The product of each step.

        Raises
        ------
        RuntimeError
            If the unit stops returning results. It is then reset, as after every exception.
        """
        size = self._config.array
        rows = activations.shape[1]
        weights = np.ascontiguousarray(weights, np.float32)
        activations = np.ascontiguousarray(activations, np.float32)
        order = np.array(steps, np.uint32).reshape(-1, 2)
        activation_tile, weight_tile = np.ascontiguousarray(order.T)
        results = np.empty((len(order), rows, size), np.float32)
        job = _Job(*(array.ctypes.data for array in (
                       weights, activations, results, weight_tile, activation_tile)),
                   len(order), rows, size, transpose, 0, 0, 0)
        with self._lock:
            self._work(job, progress)
        return results

    def _work(self, job: _Job, progress: Callable[[int], object] | None) -> None:
        """Runs ``job`` to its end; calls ``progress`` with numbers of new rows of results."""
        total = job.steps * job.rows
        try:
            while job.result_rows < total:
                before = (job.weight_rows, job.activation_rows, job.result_rows)
                self._model.check(self._run(self._model.handle, job, self._cycles_per_call))
                if (job.weight_rows, job.activation_rows, job.result_rows) == before:
                    raise RuntimeError("the matrix unit does not advance after "
                                       f"{job.result_rows} of {total} result rows")
                if progress is not None:
                    progress(job.result_rows - before[2])
        except BaseException:
            self.reset()
            raise

    @property
    def _cycles_per_call(self) -> int:
        # If nothing has moved within a call, nothing ever will.
        return max(_CYCLES_PER_CALL, 4 * self._config.array_latency)

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing."""
        with self._lock:
            self._model.close()
