"""Finds the tests of a unit: ``python -m verif.units UNIT`` prints their folders and files."""

import pathlib
import sys

__all__ = ["UNITS", "main", "paths"]

_HERE = pathlib.Path(__file__).resolve().parent
_ROOT = _HERE.parent
_FOLDERS = ("hdl", "sim")

UNITS = sorted(folder.parent.name for kind in _FOLDERS
               for folder in (_HERE / kind).glob("*/__init__.py"))
"""Names of the folders of `hdl` and `sim` for which there are folders of tests."""


def paths(unit: str) -> list[str]:
    """Paths of a unit's tests, relative to the repository's root.

    They are folders, and for a unit of the hardware also the test file of its golden model.

    Raises
    ------
    ValueError
        If there is no such unit.
    """
    if unit not in UNITS:
        raise ValueError(f"UNIT must be one of {', '.join(UNITS)}, not {unit!r}")
    found = [_HERE / kind / unit for kind in _FOLDERS]
    # A unit of the hardware has a golden model of its name; parts of `sim` have none.
    if found[0].is_dir():
        found.append(_HERE / "golden" / f"test_{unit}.py")
    return [str(path.relative_to(_ROOT)) for path in found if path.exists()]


def main() -> int:
    """Run the command; return the exit status."""
    try:
        print(*(path for unit in sys.argv[1:] for path in paths(unit)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
