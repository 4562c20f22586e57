"""Runs functions in processes of their own, whose JAX has the chip as a platform."""

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

__all__ = ["run", "start"]

SETTINGS = {"JAX_PLATFORMS": "systolith,cpu", "SYSTOLITH_CONFIG": "tiny",
            "SYSTOLITH_BACKEND": "golden"}

LIMIT = 600
"""Seconds after which a process hangs."""


def start(function: Callable[[], None], **environment: str) -> "subprocess.Popen[str]":
    """Start a process that runs the body of a function, which must import all that it uses."""
    body = "".join(inspect.getsource(function).splitlines(keepends=True)[1:])
    unset = [name for name, value in environment.items() if not value]
    merged = {**os.environ, **SETTINGS, **environment}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(body)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in merged.items() if name not in unset})


def run(function: Callable[[], None], **environment: str) -> str:
    """Run it to its end, which must be a good one; returns what it printed."""
    process = start(function, **environment)
    try:
        output, errors = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert process.returncode == 0, output + errors
    return output
