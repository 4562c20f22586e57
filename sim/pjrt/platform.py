"""JAX's platform: opens the chips, and starts the threads that execute and compile programs.

Environment variables select the chips, like the arguments of `Device.open` and `Pod.open`:

``SYSTOLITH_CONFIG``
    The name of a preset. Default: ``v2``.
``SYSTOLITH_BACKEND``
    ``rtl``, ``golden`` or ``serial``. Default: ``rtl``.
``SYSTOLITH_POD``
    The chips of a pod along X and along Y, such as ``2x2``. Default: one chip.
``SYSTOLITH_PORT``
    The serial port of the board, for ``serial``. Default: no port.
``SYSTOLITH_TRACE``
    Prefix of the files of a trace; not with ``SYSTOLITH_POD``. Default: no trace.
"""

import atexit
import ctypes
import functools
import os
import re
import threading
from importlib import metadata
from typing import Any

from hdl.config import Config
from sim.compiler.graph.torus import CORES, Torus
from sim.driver.device import Device
from sim.driver.pod import Pod
from sim.pjrt.chips import Chips
from sim.pjrt.compiler import compile_program
from sim.pjrt.library import CHIP, COMPILER, Job, Library, build
from sim.pjrt.types import status_of

__all__ = ["is_open", "register"]


def register(name: str) -> None:
    """Register the platform with JAX under a name."""
    from jax._src import xla_bridge
    from jax._src.interpreters import mlir

    from sim.pjrt.rules import register_rules

    # JAX has no public interface by which a platform declares that it supports donated arguments.
    if name not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(name)
    os.register_at_fork(after_in_child=_keep_clients)
    xla_bridge.register_backend_factory(name, functools.partial(_open, name), priority=-1,
                                        fail_quietly=False)
    register_rules(name)


def is_open() -> bool:
    """Return whether JAX has opened the chips in this process."""
    return _worker.cache_info().currsize > 0


def _keep_clients() -> None:
    """Prevent the destruction of JAX's clients in the child of a fork.

    The destruction would wait for threads that exist only in the parent, so the child would never
    end. Afterwards, a process that has used JAX may fork children that do not use it.
    """
    from jax._src import xla_bridge

    for client in xla_bridge._backends.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def _open(name: str) -> Any:
    """Open the chip; return JAX's client for it. ``name`` is the platform's name.

    Raises
    ------
    RuntimeError, ValueError, OSError
        If there is no C++ compiler, or an environment variable is wrong.
    """
    from jaxlib import xla_client

    path = build()
    _worker(path)
    if not xla_client.pjrt_plugin_loaded(name):
        xla_client.load_pjrt_plugin_dynamically(name, str(path))
    if not xla_client.pjrt_plugin_initialized(name):
        xla_client.initialize_pjrt_plugin(name)
    return xla_client.make_c_api_client(name, {}, None)


@functools.cache
def _worker(path: Any) -> "Worker":
    """Return the only worker of this process; its chip stays open until the process ends.

    ``path`` is the path of the plugin's library.
    """
    return Worker(Library(path), _open_machine())


def _open_machine() -> Device | Pod:
    """Open the chip or the pod that the environment variables select."""
    config = os.environ.get("SYSTOLITH_CONFIG") or "v2"
    backend = os.environ.get("SYSTOLITH_BACKEND") or "rtl"
    pod = os.environ.get("SYSTOLITH_POD")
    trace = os.environ.get("SYSTOLITH_TRACE") or None
    port = os.environ.get("SYSTOLITH_PORT") or None
    if not pod:
        return Device.open(config, backend, trace=trace, port=port)
    sides = re.fullmatch(r"(\d+)x(\d+)", pod)
    if sides is None:
        raise ValueError(f"SYSTOLITH_POD must be like 2x2, not {pod!r}")
    if trace is not None:
        raise ValueError("SYSTOLITH_TRACE must not be set with SYSTOLITH_POD: JAX programs on a "
                         "pod cannot be traced")
    if (cores := Config.preset(config).cores) != CORES:
        raise ValueError(f"SYSTOLITH_CONFIG must name a chip with {CORES} cores if SYSTOLITH_POD "
                         f"is set, not {config}, which has {cores}")
    return Pod.open((int(sides[1]), int(sides[2])), config, backend)


class Worker:
    """The threads that do JAX's jobs: one simulates, one compiles.

    Parameters
    ----------
    library : Library
        The plugin's library, which provides the jobs.
    machine : Device or Pod
        The chips; the worker closes them at the end of the process.
    """

    def __init__(self, library: Library, machine: Device | Pod) -> None:
        self._library, self._machine = library, machine
        self._process = os.getpid()
        self.chips = Chips(machine, library.note_memory)
        shape = machine.shape if isinstance(machine, Pod) else (1, 1)
        self._torus = Torus(*shape)
        preset = os.environ.get("SYSTOLITH_CONFIG") or "v2"
        library.describe(shape, machine.config.cores, f"Systolith {preset}",
                         f"PJRT C API\nsystolith {metadata.version('systolith')} "
                         f"({machine.backend})")
        self._threads = [
            threading.Thread(target=target, name=f"systolith-{what}", daemon=True)
            for what, target in (("chip", self._simulate), ("compiler", self._compile))]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the chips' thread, even if a program is running, and close the chips.

        The compiler's thread is not awaited: it ends with the process.
        """
        if os.getpid() != self._process:
            return  # In a forked child, the chips belong to the parent.
        self._library.close("the process is exiting")
        self.chips.end()
        self._threads[0].join()
        self._machine.close()

    def _simulate(self) -> None:
        job = Job()
        while self._library.next(CHIP, job):
            self._library.finish(job, *self.chips.work(job))

    def _compile(self) -> None:
        job = Job()
        while self._library.next(COMPILER, job):
            try:
                program = compile_program(job.data, job.more, self._machine.config,
                                          self._torus)
                self.chips.add(job.target, program)
                self._library.answer(job, program.numbers(job.target), program.texts())
            except Exception as error:  # noqa: BLE001 - JAX raises it where the program is
                self._library.finish(job, *status_of(error))
            else:
                self._library.finish(job)
