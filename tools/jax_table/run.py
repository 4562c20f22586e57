"""Runs JAX's functions in worker processes, with a time limit for each function."""

import importlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator

from tools.jax_table.arguments import names

__all__ = ["MODULES", "functions", "run"]

MODULES = ("jax.numpy", "jax.numpy.linalg", "jax.lax", "jax.nn")
"""Modules whose functions are run."""


def functions() -> list[str]:
    """Full names of all public functions of `MODULES`."""
    return [f"{title}.{name}" for title in MODULES
            for name in names(importlib.import_module(title))]


def run(wanted: list[str], limit: float) -> Iterator[tuple[str, str, str]]:
    """Run functions on the golden chip.

    Parameters
    ----------
    wanted : list of str
        Full names of the functions.
    limit : float
        Time limit of a function, in seconds.

    Yields
    ------
    (str, str, str)
        The function's name, its outcome, and the reason. Outcomes: "works"; "differs" from the
        CPU's result; "refused", by an error or without a result in time; "types", with a result of
        a type that the chip does not have; "host", with a result that is no array; "untried", since
        no arguments are known that it accepts on the CPU.
    """
    left = list(wanted)
    while left:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tools.jax_table.worker", *left], stdout=subprocess.PIPE,
            # Unbuffered, because `select` does not see a line that waits in a buffer.
            bufsize=0, stderr=subprocess.DEVNULL, env={
                **os.environ, "JAX_PLATFORMS": "systolith,cpu", "SYSTOLITH_CONFIG": "tiny",
                "SYSTOLITH_BACKEND": "golden",
                "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")
                             + " --xla_force_host_platform_device_count=2"})
        assert worker.stdout is not None
        with worker, selectors.DefaultSelector() as ready:
            ready.register(worker.stdout, selectors.EVENT_READ)
            while left and ready.select(limit):
                line = worker.stdout.readline()
                if not line:
                    break
                name, status, reason = json.loads(line)
                asked = left.pop(0)
                assert name == asked
                yield name, status, reason
            worker.kill()
        if left:
            code = worker.returncode
            yield left.pop(0), "refused", (f"no result in {limit:g} s" if code == -9 else
                                           f"the process ended with {code}")
