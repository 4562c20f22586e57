"""Runs functions in separate processes, in which JAX has the chip as a platform."""

import atexit
import contextlib
import functools
import inspect
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable

__all__ = ["run", "start"]

SETTINGS = {"JAX_PLATFORMS": "systolith,cpu", "SYSTOLITH_CONFIG": "tiny",
            "SYSTOLITH_BACKEND": "golden"}

LIMIT = 600
"""Seconds after which a process is killed, because it seems to wait for ever."""

_SERVER = """
import json, os, sys, warnings

# What all programs import. None of it starts a thread, opens the chip or reads the variables that
# a request may set.
import jax.numpy, pytest, sim.pjrt.platform, sim.pjrt.rules

for line in sys.stdin:
    with warnings.catch_warnings():
        # JAX warns of each fork; here it has no threads yet.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
request = json.loads(line)
os.environ.clear()
os.environ.update(request["environment"])
files = [os.open(path, os.O_RDWR) for path in (os.devnull, request["output"], request["errors"])]
for number, file in enumerate(files):
    os.dup2(file, number)
    os.close(file)
exec(request["body"], {"__name__": "__main__"})
"""


class _Server:
    """A process that has imported JAX and the driver, and forks a process for each program."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _SERVER], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, **SETTINGS},
            start_new_session=True)
        atexit.register(self._close)

    def run(self, body: str, environment: dict[str, str]) -> tuple[int, str, str]:
        """Run a program with these environment variables; return status, output and errors."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            output, errors = (pathlib.Path(folder, name) for name in ("output", "errors"))
            output.touch()
            errors.touch()
            request = {"body": body, "environment": environment, "output": str(output),
                       "errors": str(errors)}
            status = ""
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                with selectors.DefaultSelector() as selector:
                    selector.register(process.stdout, selectors.EVENT_READ)
                    status = process.stdout.readline() if selector.select(LIMIT) else ""
            finally:
                if not status:
                    # Too late, dead or interrupted: its next answer would be that of this request.
                    _server.cache_clear()
                    self._close()
            return int(status or -signal.SIGKILL), output.read_text(), errors.read_text()

    def _close(self) -> None:
        """End the process and its child, and close the pipes to it."""
        with self._process, contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@functools.cache
def _server() -> _Server:
    return _Server()


def start(function: Callable[[], None], **environment: str) -> "subprocess.Popen[str]":
    """Start a process that runs the body of a function, which must import all that it uses."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", _body(function)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=_merged(environment))


def _merged(environment: dict[str, str]) -> dict[str, str]:
    """Return a program's environment variables; "" in ``environment`` removes a variable."""
    merged = {**os.environ, **SETTINGS, **environment}
    return {name: value for name, value in merged.items() if environment.get(name) != ""}


def run(function: Callable[[], None], **environment: str) -> str:
    """Run the body of a function; it must end without an error. Return what it printed.

    The process is a fork of one that has imported JAX, unless ``environment`` has variables that
    JAX reads when it is imported.
    """
    if any(name.startswith(("JAX_", "KERAS_")) for name in environment):
        process = start(function, **environment)
        try:
            output, errors = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
        status = process.returncode
    else:
        status, output, errors = _server().run(_body(function), _merged(environment))
    assert status == 0, output + errors
    return output


def _body(function: Callable[[], None]) -> str:
    """The text of a function's body."""
    lines = inspect.getsource(function).splitlines(keepends=True)
    return textwrap.dedent("".join(lines[1:]))
