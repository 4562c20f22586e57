"""The report of ``make fpga``, as Markdown and as JSON: utilisation, clock, critical path, area."""

import json
import pathlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

__all__ = ["figures", "markdown", "steps", "write_report"]

_LEAST_SHARE = 0.01
"""Smallest share of the design's combinational cells with which a module appears in the table."""

_DERIVED = re.compile(
    r"_(TRELLIS_(FF|DPR16X4)|LUT4|CCU2C|PFUMX|L6MUX21|MULT18X18D|DP16KD)(_.*)?(\[\d+\])?$")
"""What Yosys appends to a signal's name when it names a cell or a net: types and ports of cells."""


def figures(routed: Mapping[str, Any], clock_hz: int, seed: int,
            tools: Mapping[str, str]) -> dict[str, Any]:
    """Figures of a routed system.

    Parameters
    ----------
    routed : mapping
        nextpnr's report.
    clock_hz : int
        The system's clock.
    seed : int
        Seed of place and route.
    tools : mapping of str to str
        Version of each tool, by the name of its package.

    Returns
    -------
    dict
        ``seed`` and ``tools``, as given.
        ``utilisation``: used, available and percent by type of cell. ``clock_mhz``, the frequency
        that the system runs at; ``achieved_mhz``, the highest that it could run at.
        ``critical_path``: ``delay_ns``; ``steps``, see `steps`; and ``hops``, each with ``kind``
        (logic, routing ...), ``delay_ns`` and ``to``, the net or cell at its end.
    """
    used = {name: {"used": count["used"], "available": count["available"],
                   "percent": round(100 * count["used"] / count["available"], 1)}
            for name, count in routed["utilization"].items() if count["used"]}
    clock, speed = min(routed["fmax"].items(), key=lambda item: item[1]["achieved"])
    paths = [path for path in routed["critical_paths"]
             if clock == path["from"].split()[-1] == path["to"].split()[-1]]
    hops = [{"kind": hop["type"], "delay_ns": round(hop["delay"], 2),
             "to": hop.get("net") or hop["to"]["cell"]}
            for path in paths[:1] for hop in path["path"]]
    return {"seed": seed, "tools": dict(tools),
            "clock_mhz": clock_hz / 1e6, "achieved_mhz": round(speed["achieved"], 2),
            "utilisation": used,
            "critical_path": {"delay_ns": round(sum(hop["delay_ns"] for hop in hops), 2),
                              "steps": steps(hops), "hops": hops}}


def steps(hops: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join successive hops of a path whose cells are named after the same signal of the source.

    Yosys names a cell without a name of its own after the nearest signal that has one, so a step
    tells which signal the path is computing. If the path comes back to a signal, that signal has
    several steps.

    Parameters
    ----------
    hops : sequence of mappings
        The path, as `figures` has it.

    Returns
    -------
    list of dict
        For each step: ``signal``, the name of its signal in the source, after the path of the
        instance; ``cells``, the number of cells that it passes through; ``logic_ns`` and
        ``routing_ns``, its delay in cells and in wires.
    """
    found = []
    for signal, joined in groupby(hops, lambda hop: _DERIVED.sub("", hop["to"])):
        group = list(joined)
        wires = [hop["delay_ns"] for hop in group if hop["kind"] == "routing"]
        found.append({"signal": signal, "cells": len(group) - len(wires),
                      "logic_ns": round(sum(hop["delay_ns"] for hop in group) - sum(wires), 2),
                      "routing_ns": round(sum(wires), 2)})
    return found


def markdown(found: Mapping[str, Any], area: Mapping[str, Counter[str]]) -> str:
    """The report as Markdown; ``found`` is from `figures`, ``area`` from `tools.fpga.area`."""
    fits = found["achieved_mhz"] >= found["clock_mhz"]
    lines = [
        "# The system on an LFE5U-85F", "",
        f"Made with seed {found['seed']}, by "
        f"{', '.join(f'{name} {version}' for name, version in found['tools'].items())}.", "",
        f"Clock: {found['clock_mhz']:g} MHz; the slowest path allows "
        f"{found['achieved_mhz']:g} MHz{'' if fits else ': TOO SLOW'}.", "",
        "| cell | used | available | % |", "|---|---|---|---|",
        *(f"| {name} | {count['used']:,} | {count['available']:,} | {count['percent']} |"
          for name, count in found["utilisation"].items()), "",
        "## Critical path", "",
        f"{found['critical_path']['delay_ns']:g} ns.", "",
        "Each row has the cells that synthesis named after a signal; `report.json` has every cell.",
        "",
        "| signal | cells | logic, ns | routing, ns |", "|---|---|---|---|",
        *(f"| `{step['signal']}` | {step['cells']} | {step['logic_ns']:.2f} | "
          f"{step['routing_ns']:.2f} |" for step in found["critical_path"]["steps"]), "",
        "## Area by module", "",
        "Cells after synthesis, with those of all modules below.",
        "COMB: combinational cells that place and route needs for them.", "",
        "| module | COMB | % | registers | block RAM | multipliers |", "|---|---|---|---|---|---|",
        *_rows(area), ""]
    return "\n".join(lines)


def _rows(area: Mapping[str, Counter[str]]) -> Iterator[str]:
    whole = area[""]["COMB"]
    for path, counts in area.items():
        if counts["COMB"] >= _LEAST_SHARE * whole:
            yield (f"| {'&nbsp;' * 2 * path.count('.')}`{path or 'all'}` | {counts['COMB']:,} | "
                   f"{100 * counts['COMB'] / whole:.1f} | {counts['TRELLIS_FF']:,} | "
                   f"{counts['DP16KD']} | {counts['MULT18X18D']} |")


def write_report(folder: pathlib.Path, found: Mapping[str, Any],
                 area: Mapping[str, Counter[str]]) -> pathlib.Path:
    """Write ``report.md`` and ``report.json`` to a folder; return the path of the former.

    The arguments are those of `markdown`.
    """
    (folder / "report.json").write_text(json.dumps({**found, "area": area}, indent=2) + "\n")
    path = folder / "report.md"
    path.write_text(markdown(found, area))
    return path
