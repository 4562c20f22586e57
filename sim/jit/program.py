"""Compiled programs: `compile`, `load`, and what they return."""

import os
import pathlib
from collections.abc import Callable
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
from sim.jit.report import report

__all__ = ["CompiledProgram", "compile", "compile_imported", "load"]

Array = npt.NDArray[Any]


def compile(source: Any, config: str | Config = "v2", *, name: str | None = None,
            ) -> "CompiledProgram":
    """Compile a StableHLO program for one core. Needs the extra ``jax``.

    Compiled code is kept on disk, by the content of the program.

    Parameters
    ----------
    source : str, bytes, path, or jaxlib.mlir.ir.Module
        The program: text, bytecode, a portable artifact, a `pathlib.Path` of a file, or a module.
        Its entry is the function ``main``, or the only public one.
    config : str or Config
        The chip: a preset (`tiny`, `small`, `v2`) or parameters.
    name : str, optional
        Name of the program in messages; that of its entry, if not given.

    Returns
    -------
    CompiledProgram
        ``outputs = program(*arrays, device=device)``.

    Raises
    ------
    UnsupportedError
        If the program has parts that are not supported: all of them, with the user's lines.
    TypeError, ValueError
        If the source is not a program, or the configuration is wrong.
    ImportError
        If jaxlib is not installed.
    """
    chip = _chip(config)
    return compile_imported(import_stablehlo(source), chip, name)


def compile_imported(graph: Graph, config: Config, name: str | None) -> "CompiledProgram":
    """Compile a graph, which is changed, or read what an equal one gave before."""
    return CompiledProgram(compile_cached(graph, config, name=name))


def load(path: str | os.PathLike[str]) -> "CompiledProgram":
    """Read a program that `CompiledProgram.save` wrote. Does not need JAX.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds something else, or another version wrote it.
    """
    return CompiledProgram(load_compiled(pathlib.Path(path)).executable())


def _chip(config: str | Config) -> Config:
    """The configuration that a preset's name or parameters give."""
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
        Its buffers and code, which `Device.execute` takes.
    """

    executable: Executable
    _measured: dict[str, dict[int, dict[str, int]]] = field(default_factory=dict, init=False,
                                                            repr=False)

    def __repr__(self) -> str:
        return f"CompiledProgram({self.executable.name!r})"

    @property
    def config(self) -> Config:
        """The chip that it is for."""
        return self.executable.config

    def __call__(self, *arrays: npt.ArrayLike, device: Device,
                 progress: bool | Callable[[], object] = False) -> tuple[Array, ...]:
        """Run the program.

        Parameters
        ----------
        arrays : arrays
            Its inputs in order, with their shapes and types; numpy arrays, or what numpy makes
            such arrays of without a change of type (arrays of JAX).
        device : Device
            Where to run it; its configuration must be the program's.
        progress : bool or callable
            Show a progress bar; or call this now and then.

        Returns
        -------
        tuple of arrays
            Its outputs in order, as new numpy arrays.

        Raises
        ------
        TypeError, ValueError
            If an array or the device is wrong.
        MemoryError
            If the arrays do not fit in what is free of HBM.
        """
        instance("device", device, Device)
        outputs = device.execute(self.executable, *map(np.asarray, arrays), progress=progress)
        self._measured["last"] = device.last_run
        return outputs

    def report(self, *arrays: npt.ArrayLike, device: Device | None = None) -> str:
        """Say what the program does, as a table.

        Parameters
        ----------
        arrays : arrays
            Inputs for a run that is measured.
        device : Device, optional
            Where to run it. Without one, nothing runs and the table has no measured cycles; the
            golden backend, which counts none, shows how often kernels run.

        Returns
        -------
        str
            For each line of the user's source and kind of operation: kernels, how often they run,
            predicted and measured cycles of all runs, the part of the array's peak that their
            multiplications are, bytes moved between HBM and vector memory, and the longest wait.
            Without a device, each kernel counts once, also in a loop. Then totals, and the cycles
            of the last run and what they were spent on, once there was one.

        Raises
        ------
        TypeError, ValueError
            If an array or the device is wrong, or a program for two cores is to be measured.
        MemoryError
            If the arrays do not fit in what is free of HBM.
        """
        last = self._measured.get("last")
        if device is None:
            if arrays:
                raise TypeError("device must be given, to measure a run")
            return report(Report.predicted(compiled_of(self.executable)), last)
        instance("device", device, Device)
        _, costs = device.profile(self.executable, *map(np.asarray, arrays))
        return report(costs, last)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, as a whole or not at all; `load` reads it.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        save_compiled(compiled_of(self.executable), pathlib.Path(path))
