"""Tabulates how busy the units of a traced chip were.

    python -m sim.trace.summary build/trace.json
"""

import argparse
import json
import os
import pathlib
import sys
from collections import Counter

from sim.trace.tracks import CAUSES, CYCLES, PROGRAM, TRACKS

__all__ = ["summary"]


def summary(path: str | os.PathLike[str]) -> str:
    """Returns a table of the trace in file ``path``.

    It has, for each core that ran, the cycles of each cause and the busy cycles of each unit.

    Percentages are of the core's cycles from the first to the last in which it has a bundle.
    """
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    names = {(event["pid"], event.get("tid")): event["args"]["name"]
             for event in events if event["name"] in ("process_name", "thread_name")}
    lines: list[str] = []
    for pid, title in [(pid, name) for (pid, tid), name in names.items() if tid is None]:
        slices = [(names[pid, event["tid"]], event["name"], event["ts"], event["ts"] + event["dur"])
                  for event in events if event["ph"] == "X" and event["pid"] == pid]
        ran = [(begin, end) for track, _, begin, end in slices if track == PROGRAM]
        if not ran:
            continue
        first, last = ran[0][0], ran[-1][1]
        cycles: Counter[str] = Counter()
        for track, name, begin, end in slices:
            cycles[name if track == CYCLES else track] += max(0, min(end, last) - max(begin, first))
        lines.append(f"{title}, cycles {first:,} to {last:,}:{last - first:10,}")
        for name in [*CAUSES, *(track for track in TRACKS if track not in (CYCLES, PROGRAM))]:
            if cycles[name]:
                lines.append(f"  {name:28}{cycles[name]:10,}{cycles[name] / (last - first):8.1%}")
    return "\n".join(lines)


def main() -> int:
    """Runs the command ``python -m sim.trace.summary``; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m sim.trace.summary",
                                     description="How busy the units of a trace were.")
    parser.add_argument("file", type=pathlib.Path, help="a trace, such as build/trace.json")
    print(summary(parser.parse_args().file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
