"""The picture of ``make fpga``: for each tile of the FPGA, the module whose cells it has."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tools.pictures.svg import Picture

__all__ = ["draw", "parts", "tiles"]

_LARGE, _LEAST = 0.25, 0.02
"""Shares of the design's combinational cells. A module whose share is at least `_LARGE` has no
colour of its own. A smaller module directly in such a module has a colour if its share is at least
`_LEAST`."""
_SUFFIX = re.compile(r"\$(?:CCU2_COMB|DPRAM_COMB|RAMW_SLICE|RAMW_BLOCK)[0-9]*$")
"""If nextpnr splits a cell of the netlist, each part has the cell's name with such a suffix."""
_PLACE = re.compile(r"X([0-9]+)/Y([0-9]+)/")
_SLICE_CELLS = ("TRELLIS_COMB", "TRELLIS_FF")
"""A tile of the FPGA has eight cells of each of these types, and one or few of each other type."""
_PER_TILE = 8
_SHADES = 4
_COLUMNS, _ROWS = 127, 96
"""Size of an LFE5U-85F in tiles."""
_TILE, _LEFT, _TOP, _LEGEND, _LINE = 7, 20, 52, 240, 22
"""Lengths in the picture, in user units."""
_COLOURS = ("#2f6fb0", "#d1731a", "#2c8a72", "#b8405e", "#7a5ab5", "#a8871d", "#3f9bb8", "#7d9b2b",
            "#a35f9d", "#8c6246", "#4553b8", "#c2564a")
_REST = "#8b949e"


def tiles(placed: Mapping[str, Any],
          owner: Mapping[str, str]) -> dict[tuple[int, int], dict[str, Counter[str]]]:
    """Count the cells in each tile of the FPGA, by module and type.

    Parameters
    ----------
    placed : mapping
        The top module of the placed design, as nextpnr writes it.
    owner : mapping of str to str
        The instance of each cell of the netlist, from `tools.fpga.area.owners`. The cells that
        nextpnr adds belong to the top module.

    Returns
    -------
    dict of tuple of int to dict of str to Counter
        Number of cells of each type, by (column, row) of the tile and then by the path of the
        instance.
    """
    found: dict[tuple[int, int], dict[str, Counter[str]]] = {}
    for name, cell in placed["cells"].items():
        place = _PLACE.match(cell["attributes"].get("NEXTPNR_BEL", ""))
        if place:
            path = owner.get(_SUFFIX.sub("", name), "")
            tile = found.setdefault((int(place[1]), int(place[2])), {})
            tile.setdefault(path, Counter())[cell["type"]] += 1
    return found


def parts(area: Mapping[str, Counter[str]]) -> list[str]:
    """Paths of the modules with a colour, the module with the most combinational cells first.

    ``area`` is from `tools.fpga.area.areas`.
    """
    whole = area[""]["COMB"]
    large = {path for path, counts in area.items() if counts["COMB"] >= _LARGE * whole} | {""}
    found = [path for path, counts in area.items() if path not in large
             and path.rpartition(".")[0] in large and counts["COMB"] >= _LEAST * whole]
    return sorted(found, key=lambda path: (-area[path]["COMB"], path))


def _part(path: str, coloured: Iterable[str]) -> str:
    """Return the module in ``coloured`` that contains instance ``path``; ``""`` if none does."""
    return next((part for part in coloured if f"{path}.".startswith(f"{part}.")), "")


def _shade(counts: Counter[str]) -> int:
    """Return how full a tile is, from 1 to `_SHADES`."""
    if any(kind not in _SLICE_CELLS for kind in counts):
        return _SHADES
    return -(-max(counts.values()) * _SHADES // _PER_TILE)


def draw(placed: Mapping[str, Any], owner: Mapping[str, str],
         area: Mapping[str, Counter[str]]) -> str:
    """Return the picture as SVG; the arguments are those of `tiles` and `parts`.

    A tile has the colour of the module to which most of its cells belong. The more of its eight
    combinational cells or registers are used, the darker the colour is.
    """
    coloured = parts(area)
    squares: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for place, modules in sorted(tiles(placed, owner).items()):
        cells = Counter[str]()
        for path, counts in modules.items():
            cells[_part(path, coloured)] += counts.total()
        shade = _shade(sum(modules.values(), Counter[str]()))
        squares.setdefault((cells.most_common(1)[0][0], shade), []).append(place)
    colours = {part: _COLOURS[number % len(_COLOURS)] for number, part in enumerate(coloured)}
    colours[""] = _REST
    style = "".join(f".p{number}{{fill:{colour}}}" for number, colour in enumerate(colours.values())
                    ) + "".join(f".s{shade}{{fill-opacity:{shade / _SHADES:g}}}"
                                for shade in range(1, _SHADES + 1))
    picture = Picture(_LEFT + _COLUMNS * _TILE + _LEGEND, _TOP + _ROWS * _TILE + _LEFT,
                      "The system on an LFE5U-85F, placed",
                      "The tiles of the FPGA, in the colours of the modules.", style)
    picture.text(_LEFT, 34, "The system on an LFE5U-85F, placed", "title left")
    picture.rect(_LEFT, _TOP, _COLUMNS * _TILE, _ROWS * _TILE, "panel", radius=0)
    numbers = {part: number for number, part in enumerate(colours)}
    for (part, shade), places in squares.items():
        picture.squares([(_LEFT + _TILE * x, _TOP + _TILE * y) for x, y in places], _TILE - 1,
                        f"p{numbers[part]} s{shade}")
    shares = {part: area[part]["COMB"] for part in coloured}
    shares[""] = area[""]["COMB"] - sum(shares.values())
    for part, number in numbers.items():
        x, y = _LEFT + _COLUMNS * _TILE + 16, _TOP + _LINE * number
        picture.squares([(x, y)], 12, f"p{number}")
        name = ".".join(part.split(".")[-2:]) or "rest"
        picture.text(x + 20, y + 11, f"{name} {100 * shares[part] / area['']['COMB']:.1f} %",
                     "small left")
    return picture.svg()
