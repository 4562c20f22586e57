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

    JAX traces some functions of its own only once, for instance that of `jax.random.split`. In
    every later call, their operations have the call stack of the first call, which may be in
    another program. If that stack lacks the function that ``call`` calls, the result is the line
    of ``call``.

    Parameters
    ----------
    location : jaxlib.mlir.ir.Location
        Location of the operation.
    call : Location or None
        Location of the inlined call around the operation; used if ``location`` has no line of the
        user's source.

    Returns
    -------
    Location or None
        None if nothing is known.
    """
    foreign = call is not None and _is_foreign(location, call)
    own_name = _name(location, frames=not foreign)
    name = "/".join([*([call.name] if call and call.name else []),
                     *([] if own_name is None else [own_name])])
    innermost = own = None
    for file, line, _ in () if foreign else _frames(location):
        innermost = innermost or (file, line)
        if not any(package in file for package in _PACKAGES):
            own = file, line
            break
    if innermost and (own or not call):
        return Location(*(own or innermost), name)
    if call:
        return Location(call.file, call.line, name)
    return Location(name=name) if name else None


def _is_foreign(location: Any, call: Location) -> bool:
    """Return whether ``location`` lies outside the function that ``call`` calls.

    The name of ``call``, such as ``jit(main)/jit(split)``, has the program as its first part. If
    `jax.jit` made the function, the last part names the function; a location lies outside if its
    call stack lacks that name. For a function of another origin, return False.
    """
    functions = [part[4:-1] for part in call.name.split("/")[1:] if part.startswith("jit(")]
    return bool(functions) and not any(
        functions[-1] in function.split(".") for _, _, function in _frames(location))


def _name(at: Any, *, frames: bool = True) -> str | None:
    """Return the name of the operation itself at a location, not of a call around it.

    For an operation without a name, return the name of the innermost function of its call stack,
    or None if ``frames`` is False.
    """
    from jaxlib.mlir import ir

    if isinstance(at, ir.NameLoc):
        return at.name_str if frames or not isinstance(at.child_loc, ir.FileLineColLoc) else None
    parts = ([at.callee] if isinstance(at, ir.CallSiteLoc) else
             at.locations if isinstance(at, ir.FusedLoc) else [])
    return next((name for part in parts if (name := _name(part, frames=frames)) is not None), None)


def _frames(at: Any) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and function of each frame of a location's call stack, the innermost first.

    A function that is not known has an empty name. Most stacks have dozens of frames, of which the
    first one or two are needed.
    """
    from jaxlib.mlir import ir

    left = [(at, "")]
    while left:
        at, function = left.pop()
        if isinstance(at, ir.FileLineColLoc):
            yield str(at.filename), at.start_line, function
        elif isinstance(at, ir.CallSiteLoc):
            left += [(at.caller, ""), (at.callee, "")]
        elif isinstance(at, ir.NameLoc):
            left.append((at.child_loc, at.name_str))
        elif isinstance(at, ir.FusedLoc):
            left += [(part, "") for part in reversed(at.locations)]
