"""The output folder and the option ``--trace`` of commands that simulate."""

import argparse
import pathlib

from sim.verilated.toolchain import build_folder

__all__ = ["parse", "print_trace"]


def parse(parser: argparse.ArgumentParser, traced: str
          ) -> tuple[argparse.Namespace, pathlib.Path, pathlib.Path | None]:
    """Add the option ``--trace``, parse the command line, and make the build folder.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command, to which the option is added.
    traced : str
        Noun phrase for the help text that says what is traced, such as "the run".

    Returns
    -------
    arguments : Namespace
        The parsed arguments.
    folder : path
        The build folder, which exists.
    trace : path, optional
        Path of the trace's files without their extensions ``.json`` and ``.vcd``; None without
        ``--trace``.
    """
    parser.add_argument("--trace", action="store_true",
                        help=f"write a trace and waveforms of {traced}")
    arguments = parser.parse_args()
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return arguments, folder, folder / "trace" if arguments.trace else None


def print_trace(trace: pathlib.Path | None) -> None:
    """Print the paths of a trace's files, and which programs open them.

    ``trace`` is the path without extensions from `parse`; if it is None, nothing is printed.
    """
    if trace is not None:
        print(f"trace:   {trace}.json (open it at https://ui.perfetto.dev)")
        print(f"waves:   {trace}.vcd (for a waveform viewer, such as GTKWave or Surfer)")
