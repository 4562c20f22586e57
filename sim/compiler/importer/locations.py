"""Extracts the user's source lines from MLIR's locations."""

from typing import Any

from sim.compiler.graph.ir import Location

__all__ = ["location_of"]

_PACKAGES = ("site-packages", "dist-packages")
"""Names of folders of installed packages, which the user did not write."""


def location_of(location: Any, call: Location | None) -> Location | None:
    """Convert an operation's MLIR location to a line of the user's source.

    The result is the innermost frame of the location's call stack that is not in an installed
    package. If all frames are in installed packages, it is the innermost frame.

    Parameters
    ----------
    location : jaxlib.mlir.ir.Location
        Location of the operation.
    call : Location or None
        Location of the inlined call around the operation; used if ``location`` has no line of the
        user's.

    Returns
    -------
    Location or None
        None if nothing is known.
    """
    from jaxlib.mlir import ir

    names: list[str] = []
    frames: list[tuple[str, int]] = []

    def walk(at: Any, outer: bool) -> None:
        if isinstance(at, ir.NameLoc):
            if outer:
                names.append(at.name_str)
            walk(at.child_loc, False)
        elif isinstance(at, ir.CallSiteLoc):
            walk(at.callee, outer)
            walk(at.caller, False)
        elif isinstance(at, ir.FusedLoc):
            for part in at.locations:
                walk(part, outer)
        elif isinstance(at, ir.FileLineColLoc):
            frames.append((str(at.filename), at.start_line))

    walk(location, True)
    own = [frame for frame in frames if not any(package in frame[0] for package in _PACKAGES)]
    name = "/".join([*([call.name] if call and call.name else []), *names[:1]])
    if own or (frames and not call):
        file, line = (own or frames)[0]
        return Location(file, line, name)
    if call:
        return Location(call.file, call.line, name)
    return Location(name=name) if name else None
