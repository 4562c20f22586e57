"""Compiled programs: `compile`, `load`, and `CompiledProgram`, which they return."""

import os
import pathlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.checks import instance
from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import Graph
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.program.cache import compile_cached
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.compiled import load as load_compiled
from sim.compiler.program.compiled import save as save_compiled
from sim.compiler.program.report import Report
from sim.driver.device import Device
from sim.driver.queues import Batches, Outfeed
from sim.jit.report import report

__all__ = ["CompiledProgram", "compile", "compile_imported", "load"]

Array = npt.NDArray[Any]


def compile(source: Any, config: str | Config = "v2", *, name: str | None = None,
            ) -> "CompiledProgram":
    """Compile a StableHLO program. Needs the extra ``jax``.

    Compiled code is cached on disk, by the content of the program.

    Parameters
    ----------
    source : str, bytes, pathlib.Path, or jaxlib.mlir.ir.Module
        The program: text, bytecode, a portable artifact, the path of a file, or a module. Its entry
        is the function ``main``, or else the only public function.
    config : str or Config
        The chip: the name of a preset (`tiny`, `small`, `v2`), or its parameters.
    name : str, optional
        Name of the program in messages; by default the name of its entry.

    Returns
    -------
    CompiledProgram
        The program. Run it with ``outputs = program(*arrays, device=device)``.

    Raises
    ------
    UnsupportedError
        If the program has unsupported parts; the message lists all of them, with the user's source
        lines.
    MemoryError
        If the program does not fit the chip's memories.
    TypeError, ValueError
        If the source is not a program, or the configuration is wrong.
    ImportError
        If jaxlib is not installed.
    """
    chip = _chip(config)
    return compile_imported(import_stablehlo(source), chip, name)


def compile_imported(graph: Graph, config: Config, name: str | None, *,
                     fed: Collection[int] = (), outfeed: bool = False) -> "CompiledProgram":
    """Compile ``graph``, or read the cached program of an equal graph. May modify ``graph``.

    ``name`` is the program's name in messages; None for the graph's name. ``fed`` lists the indices
    of the inputs that come from the infeed, and ``outfeed`` tells whether there is an outfeed, as
    in `sim.compiler.program.driver.compile_graph`.
    """
    return CompiledProgram(compile_cached(graph, config, name=name, fed=fed, outfeed=outfeed))


def load(path: str | os.PathLike[str]) -> "CompiledProgram":
    """Read a program that `CompiledProgram.save` wrote. Does not need JAX.

    Parameters
    ----------
    path : str or path
        Path of the file.

    Returns
    -------
    CompiledProgram
        The program.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file is not a compiled program, or has another format version.
    """
    return CompiledProgram(load_compiled(pathlib.Path(path)).executable())


def _chip(config: str | Config) -> Config:
    """Return the configuration for a preset's name; return a `Config` unchanged."""
    if isinstance(config, str):
        return Config.preset(config)
    instance("config", config, Config)
    return config


@dataclass(frozen=True, eq=False, repr=False)
class CompiledProgram:
    """A compiled program. Returned by `compile` and `load`.

    Attributes
    ----------
    executable : Executable
        The program's buffers and code, the argument of `Device.execute`.
    """

    executable: Executable
    _measured: dict[str, dict[int, dict[str, int]]] = field(default_factory=dict, init=False,
                                                            repr=False)

    def __repr__(self) -> str:
        return f"CompiledProgram({self.executable.name!r})"

    @property
    def config(self) -> Config:
        """The chip for which the program was compiled."""
        return self.executable.config

    def __call__(self, *arrays: npt.ArrayLike, device: Device,
                 progress: bool | Callable[[], object] = False, infeed: Batches | None = None,
                 outfeed: Outfeed | None = None) -> tuple[Array, ...]:
        """Run the program.

        Parameters
        ----------
        arrays : arrays
            The program's inputs that are not in the infeed, in order; each must have the input's
            shape and type. They may be numpy arrays, or objects that ``numpy.asarray`` converts,
            such as JAX arrays.
        device : Device
            The device to run on; its configuration must be that of the program.
        progress : bool or callable
            True: show a progress bar. A function is called repeatedly while the program runs.
        infeed, outfeed
            As in `Device.execute`, for a program that was compiled with an infeed or an outfeed.

        Returns
        -------
        tuple of arrays
            The program's outputs, in order, as new numpy arrays.

        Raises
        ------
        TypeError, ValueError
            If an array or the device is wrong.
        MemoryError
            If the arrays do not fit the free HBM.
        """
        instance("device", device, Device)
        outputs = device.execute(self.executable, *map(np.asarray, arrays), progress=progress,
                                 infeed=infeed, outfeed=outfeed)
        self._measured["last"] = device.last_run
        return outputs

    def report(self, *arrays: npt.ArrayLike, device: Device | None = None) -> str:
        """Return a table of the program's kernels and their cost.

        Parameters
        ----------
        arrays : arrays
            Inputs for a run that is measured; only with ``device``.
        device : Device, optional
            The device that runs the program for the measurement. Without it, nothing runs and the
            table contains predictions only. With the golden backend, the table has the number of
            runs, but no measured cycles.

        Returns
        -------
        str
            The table. Kernels of one kind of operation share a line if they come from the same line
            of the user's source. The columns are: number of kernels; number of their runs;
            predicted and measured cycles of all runs; fraction of the array's peak that their
            multiplications reach; bytes moved between HBM and vector memory; and the longest wait.
            Without a device, each kernel counts once, even in a loop. Totals follow, and the
            counters of the program's last run, if there was one.

        Raises
        ------
        TypeError, ValueError
            If an array or the device is wrong, or a program for two cores is to be measured.
        MemoryError
            If the arrays do not fit the free HBM.
        """
        last = self._measured.get("last")
        if device is None:
            if arrays:
                raise TypeError("device must be given if arrays are given, not None")
            return report(Report.predicted(compiled_of(self.executable)), last)
        instance("device", device, Device)
        _, costs = device.profile(self.executable, *map(np.asarray, arrays))
        return report(costs, last)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, which `load` reads; on failure, no partial file remains.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        save_compiled(compiled_of(self.executable), pathlib.Path(path))
