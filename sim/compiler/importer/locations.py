"""The user's source lines in MLIR's locations."""

from typing import Any

from sim.compiler.graph.ir import Location

__all__ = ["location_of"]

_PACKAGES = ("site-packages", "dist-packages")
"""Folders of what the user has installed and not written."""


def location_of(location: Any, call: Location | None) -> Location | None:
    """The place in the user's source.

    Parameters
    ----------
    location : jaxlib.mlir.ir.Location
        Of an operation. Of the frames that called each other, the innermost that is not in an
        installed package is taken, or the innermost if all are.
    call : Location or None
        Place of the call that is inlined, for an operation that has none of its own.

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
