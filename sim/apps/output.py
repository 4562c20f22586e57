"""The output folder and the option ``--trace`` of commands that simulate."""

import argparse
import pathlib

from sim.verilated.toolchain import build_folder

__all__ = ["parse", "print_trace"]


def parse(parser: argparse.ArgumentParser, traced: str
          ) -> tuple[argparse.Namespace, pathlib.Path, pathlib.Path | None]:
    """Parse the command line with an option ``--trace``; make the build folder.

    Parameters
    ----------
    parser : ArgumentParser
        Gets the option.
    traced : str
        Noun for the help: "the run".

    Returns
    -------
    arguments : Namespace
        The command line.
    folder : path
        The build folder, which exists.
    trace : path, optional
        Common prefix of the files of a trace, as in `Device.open`; None without ``--trace``.
    """
    parser.add_argument("--trace", action="store_true",
                        help=f"write a trace and waveforms of {traced}")
    arguments = parser.parse_args()
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return arguments, folder, folder / "trace" if arguments.trace else None


def print_trace(trace: pathlib.Path | None) -> None:
    """Print the paths of a trace's files, if there is one, and what opens them."""
    if trace is not None:
        print(f"trace:   {trace}.json (open it at https://ui.perfetto.dev)")
        print(f"waves:   {trace}.vcd (for a waveform viewer, such as GTKWave or Surfer)")
