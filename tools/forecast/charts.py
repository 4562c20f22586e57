"""Charts of speed, efficiency and cost against the number of cores, and a table of the figures."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from tools.forecast.calibrate import MOST_CHIPS, STRONG_BATCH, Model
from tools.forecast.samples import Program
from tools.forecast.step import Forecast
from tools.forecast.torus import MOST_CORES

__all__ = ["CLOCK", "CORES", "Curve", "curves", "draw", "report"]

CLOCK = 700e6
"""Clock in Hz that turns cycles into seconds: that of TPU v2. No chip was made or timed."""
CORES = tuple(1 << doublings for doublings in range(MOST_CORES.bit_length()))
_COLOURS = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#bc4c00", "#6e7781", "#bf3989")
_CHARTS: Mapping[str, Callable[[Forecast], float]] = {
    "examples a second": lambda point: point.speed(CLOCK),
    "efficiency": lambda point: point.efficiency,
    "chip-seconds for a million examples": lambda point: point.cost(CLOCK),
}


@dataclass(frozen=True)
class Curve:
    """Forecasts of a program on the numbers of cores in `CORES`.

    Attributes
    ----------
    program : Program
    compiled : tuple of Forecast
        From `Model.forecast`: with sums that the compiler makes. On several chips, if the compiler
        does not stream the sums and the step was not measured, the forecast is that in ``links``.
    links : tuple of Forecast
        From `Model.at_link_rate`: on several chips, with `systolith.AllReduce` after the step.
    """

    program: Program
    compiled: tuple[Forecast, ...]
    links: tuple[Forecast, ...]


def curves(model: Model) -> list[Curve]:
    """Return the curves of all programs of the calibration."""
    return [Curve(program, tuple(model.forecast(program, cores) for cores in CORES),
                  tuple(model.at_link_rate(program, cores) for cores in CORES))
            for program in model.samples.programs]


def report(model: Model) -> str:
    """Return tables: samples with their predictions, parameters, and the forecasts of all curves.

    Examples a second and chip-seconds are those of chips with the clock `CLOCK`.
    """
    return f"{_validation(model)}\n{_table(curves(model))}\n{_strong(model)}"


def _validation(model: Model) -> str:
    """Return a table of all samples with their predictions, and the model's parameters."""
    compared = list(model.comparisons())
    worst = max(abs(each.error) for each in compared if not each.fitted)
    return "\n".join([
        f"{'chips':>6}  {'sample':44}{'in RTL':>12}{'predicted':>12}{'error':>9}",
        *map(str, compared), f"largest error on more than {MOST_CHIPS} chips: {worst:.1%}", "",
        model.parameters(), ""])


def _table(found: Sequence[Curve]) -> str:
    """Return a table of the forecasts of all curves."""
    lines = []
    for curve in found:
        program = curve.program
        lines += [f"{program.title} for each core",
                  f"{'cores':>6}{'cycles':>13}{program.unit + '/s':>16}{'efficiency':>12}"
                  f"{'chip-s a million':>18}  {'source':11}sums"]
        for point in curve.compiled:
            lines.append(
                f"{point.cores:6,}{point.cycles:13,.0f}{point.speed(CLOCK):16,.0f}"
                f"{point.efficiency:12.1%}{point.cost(CLOCK):18.4g}  "
                f"{'measured' if point.measured else 'predicted':11}"
                f"{'none' if point.cores == 1 else 'compiled' if point.compiled else 'AllReduce'}")
        lines.append("")
    return "\n".join(lines)


def _strong(model: Model) -> str:
    """Return a table of steps in which all cores together have a fixed number of examples."""
    [first] = (each for each in model.samples.strong if each.batch == STRONG_BATCH)
    lines = [f"{first.title} in all",
             f"{'cores':>6}{'cycles':>13}{first.unit + '/s':>16}{'efficiency':>12}"
             f"{'chip-s a million':>18}  {'source':11}{first.unit} a core"]
    lines += [f"{point.cores:6,}{point.cycles:13,.0f}{point.speed(CLOCK):16,.0f}"
              f"{point.efficiency:12.1%}{point.cost(CLOCK):18.4g}  "
              f"{'measured' if point.measured else 'predicted':11}{point.batch:,}"
              for point in model.strong()]
    return "\n".join([*lines, ""])


def draw(found: Sequence[Curve], path: pathlib.Path) -> None:
    """Plot all curves to ``path``: filled points are measured in RTL, hollow ones predicted."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = path.name
    figure, charts = pyplot.subplots(1, len(_CHARTS), figsize=(15, 5.5))
    for axes, (name, value) in zip(charts, _CHARTS.items(), strict=True):
        for curve, colour in zip(found, cycle(_COLOURS), strict=False):
            _plot(axes, curve, colour, value)
        axes.set(xscale="log", xlabel="cores", title=name)
        axes.set_xscale("log", base=2)
        if name == "efficiency":
            axes.set_ylim(0, 1.15)
        else:
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
    for label, style in (("measured in RTL", {"marker": "o", "ls": ""}),
                         ("predicted", {"marker": "o", "ls": "", "mfc": "white"}),
                         ("predicted, with AllReduce", {"ls": ":"})):
        charts[1].plot([], [], c="#24292f", label=label, **style)
    handles, labels = charts[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=8)
    figure.suptitle(f"Data-parallel training with a fixed batch for each core, "
                    f"at {CLOCK / 1e6:.0f} MHz")
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _plot(axes: Any, curve: Curve, colour: str, value: Callable[[Forecast], float]) -> None:
    """Plot the curves of a program."""
    axes.plot([point.cores for point in curve.links], [value(point) for point in curve.links],
         c=colour, ls=":", lw=1)
    axes.plot([point.cores for point in curve.compiled], [value(point) for point in curve.compiled],
         c=colour, lw=1, label=curve.program.title)
    for measured, face in ((True, colour), (False, "white")):
        part = [point for point in curve.compiled if point.measured is measured]
        axes.plot([point.cores for point in part], [value(point) for point in part], c=colour,
                  ls="", marker="o", ms=4, mfc=face)
