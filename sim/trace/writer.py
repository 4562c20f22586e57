"""The files of a trace, and the writer of events."""

import json
import os
import pathlib
from dataclasses import dataclass
from typing import Any

from hdl.config import Config

__all__ = ["Place", "TraceWriter", "trace_paths"]

_MIDDLE = 0.5
"""Position in a cycle, from 0 to 1, at which arrows begin and end: inside the slice."""
_TIME = "1 us is 1 clock cycle, counted from the first one of the simulation"


def trace_paths(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the paths of a trace's files: the trace of the units (.json), the waveforms (.vcd).

    Parameters
    ----------
    path : path
        Path of both files without the suffix; a suffix ``.json`` or ``.vcd`` is removed.

    Raises
    ------
    TypeError
        If ``path`` is not a path.
    ValueError
        If the path has no file name, or is a folder.
    FileNotFoundError
        If the path's folder does not exist.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"trace must be a path, not {path!r}")
    base = pathlib.Path(os.fsdecode(path))
    if base.suffix in (".json", ".vcd"):
        base = base.with_suffix("")
    if not base.name or base.is_dir():
        raise ValueError(f"trace must be a path that ends in a file name, not {str(path)!r}")
    if not base.parent.is_dir():
        raise FileNotFoundError(f"trace must lie in a folder that exists, not {str(base.parent)!r}")
    return base.with_name(f"{base.name}.json"), base.with_name(f"{base.name}.vcd")


@dataclass(frozen=True)
class Place:
    """Place in a trace: a cycle on a track, given as numbers of process, track and cycle."""

    pid: int
    tid: int
    cycle: int


class TraceWriter:
    """Writes events one by one to a file in Chrome's trace event format (a JSON object).

    The format's processes (``pid``) are the cores and the host, its threads (``tid``) are tracks.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    config : Config
        Parameters of the chip, some of which are written to the file.

    Raises
    ------
    OSError
        If the file cannot be written.
    """

    def __init__(self, path: pathlib.Path, config: Config) -> None:
        self._file = path.open("w")
        self._flows = 0
        parameters = {"array": config.array, "sublanes": config.sublanes, "cores": config.cores}
        self._file.write(f'{{"displayTimeUnit": "ns",\n'
                         f'"otherData": {json.dumps({"time": _TIME, **parameters})},\n'
                         f'"traceEvents": [')
        self._between = "\n"

    def event(self, kind: str, pid: int, **members: Any) -> None:
        """Writes an event of process ``pid``, with ``members``.

        ``kind`` is the event's member ``ph``, such as ``X``.
        """
        self._file.write(self._between + json.dumps({"ph": kind, "pid": pid, **members},
                                                    separators=(",", ":")))
        self._between = ",\n"

    def track(self, pid: int, tid: int, name: str) -> None:
        """Names track ``tid`` of process ``pid``."""
        self.event("M", pid, tid=tid, name="thread_name", args={"name": name})
        self.event("M", pid, tid=tid, name="thread_sort_index", args={"sort_index": tid})

    def process(self, pid: int, name: str) -> None:
        """Names process ``pid``; the trace format calls a set of tracks a process."""
        self.event("M", pid, name="process_name", args={"name": name})
        self.event("M", pid, name="process_sort_index", args={"sort_index": pid})

    def slice(self, pid: int, tid: int, name: str, begin: int, end: int,
              args: dict[str, Any] | None = None) -> None:
        """Writes a slice from cycle ``begin`` up to, but not including, cycle ``end``.

        The slice is on track ``tid`` of process ``pid``. ``args`` are names and values that the
        viewer shows for it.
        """
        self.event("X", pid, tid=tid, name=name, ts=begin, dur=end - begin,
                   **({"args": args} if args else {}))

    def mark(self, pid: int, tid: int, name: str, at: int, args: dict[str, Any]) -> None:
        """Writes mark ``name`` at the start of cycle ``at``; other parameters are as in `slice`."""
        self.event("i", pid, tid=tid, name=name, ts=at, s="t", args=args)

    def arrow(self, name: str, start: Place, end: Place, category: str = "semaphore") -> None:
        """Writes an arrow from the slice at ``start`` to the slice at ``end``."""
        self._flows += 1
        common = {"cat": category, "name": name, "id": self._flows}
        self.event("s", start.pid, tid=start.tid, ts=start.cycle + _MIDDLE, **common)
        self.event("f", end.pid, tid=end.tid, ts=end.cycle + _MIDDLE, bp="e", **common)

    def close(self) -> None:
        """Completes the file; closing twice does nothing."""
        if not self._file.closed:
            try:
                self._file.write("\n]}\n")
            finally:
                self._file.close()
