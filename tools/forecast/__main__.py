"""``make scaling``: speed, efficiency and cost of training on 1 to 2,048 cores.

The timing model is fitted to cycles in RTL of up to four chips, and compared with those of more
chips. Then it predicts steps of training that were not measured. The table and the charts are
written to ``build/``.
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict

from sim.verilated.toolchain import build_folder
from tools.forecast.calibrate import Model
from tools.forecast.charts import CLOCK, Curve, curves, draw, report
from tools.forecast.samples import load, save
from tools.forecast.step import Forecast

__all__ = ["PAGE", "main"]

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
"""The page that shows a `report`; its charts are in the same folder."""
_BLOCK = re.compile(r"```text\n.*?```", re.DOTALL)
_GROUPS = ("links", "compiled", "programs", "resnet50", "steps", "strong", "plans",
           "more-links", "more-compiled", "more-steps")


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="make scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--measure", nargs="*", choices=_GROUPS, metavar="GROUP",
                        help="first measure these samples in RTL, or all: " + ", ".join(_GROUPS))
    parser.add_argument("--docs", action="store_true",
                        help="write table and charts into docs/ instead of build/")
    given = parser.parse_args()
    samples = load()
    if given.measure is not None:
        from tools.forecast.measure import measured  # imports JAX

        samples = measured(given.measure or _GROUPS, samples, save)
    model = Model.fitted(samples)
    found = curves(model)
    text = report(model)
    if given.docs:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_BLOCK.sub(lambda _: f"```text\n{text}```", page), encoding="utf-8")
        draw(found, PAGE.with_suffix(".svg"))
        return 0
    print(text)
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scaling.txt").write_text(text, encoding="utf-8")
    (folder / "scaling.json").write_text(json.dumps({
        "clock": CLOCK, "revisions": dict(samples.revisions),
        "validation": [asdict(each) | {"error": each.error} for each in model.comparisons()
                       if not each.fitted],
        "curves": [_told(curve) for curve in found],
        "strong": _points(model.strong())}, indent=1) + "\n", encoding="utf-8")
    draw(found, folder / "scaling.svg")
    print(f"charts: {folder / 'scaling.svg'}\ntable: {folder / 'scaling.txt'}\n"
          f"figures: {folder / 'scaling.json'}")
    return 0


def _told(curve: Curve) -> dict[str, object]:
    """Return the contents of a curve as dictionaries and lists, for JSON."""
    return {"program": asdict(curve.program), "compiled_sums": _points(curve.compiled),
            "all_reduce": _points(curve.links)}


def _points(points: Sequence[Forecast]) -> list[dict[str, object]]:
    return [{"cores": point.cores, "cycles": point.cycles, "efficiency": point.efficiency,
             "examples_per_second": point.speed(CLOCK), "chip_seconds_per_million":
             point.cost(CLOCK), "source": "measured in RTL" if point.measured else "predicted",
             "sums": "compiled" if point.compiled else "AllReduce"} for point in points]


if __name__ == "__main__":
    sys.exit(main())
