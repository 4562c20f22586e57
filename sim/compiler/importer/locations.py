"""Extracts the user's source lines from MLIR's locations."""

from collections.abc import Iterator
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
    own_name = _name(location)
    name = "/".join([*([call.name] if call and call.name else []),
                     *([] if own_name is None else [own_name])])
    innermost = own = None
    for frame in _frames(location):
        innermost = innermost or frame
        if not any(package in frame[0] for package in _PACKAGES):
            own = frame
            break
    if innermost and (own or not call):
        return Location(*(own or innermost), name)
    if call:
        return Location(call.file, call.line, name)
    return Location(name=name) if name else None


def _name(at: Any) -> str | None:
    """The name that a location gives its operation, as opposed to one of the calls around it."""
    from jaxlib.mlir import ir

    if isinstance(at, ir.NameLoc):
        return at.name_str
    parts = ([at.callee] if isinstance(at, ir.CallSiteLoc) else
             at.locations if isinstance(at, ir.FusedLoc) else [])
    return next((name for part in parts if (name := _name(part)) is not None), None)


def _frames(at: Any) -> Iterator[tuple[str, int]]:
    """Files and lines of a location's call stack, the innermost first.

    Most stacks have dozens of frames, of which the first one or two are needed.
    """
    from jaxlib.mlir import ir

    left = [at]
    while left:
        at = left.pop()
        if isinstance(at, ir.FileLineColLoc):
            yield str(at.filename), at.start_line
        elif isinstance(at, ir.CallSiteLoc):
            left += [at.caller, at.callee]
        elif isinstance(at, ir.NameLoc):
            left.append(at.child_loc)
        elif isinstance(at, ir.FusedLoc):
            left += reversed(at.locations)
