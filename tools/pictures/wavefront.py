"""Draws docs/wavefront.svg: a multiplication in the array, with every value read from the RTL.

Each frame of the animated picture is the state of a matrix unit of 3 x 3 cells in one cycle
(`tools.pictures.frames`).
"""

import pathlib
from collections.abc import Sequence

from tools.pictures.frames import (
    NEXT_WEIGHTS,
    WEIGHTS,
    Cell,
    Frame,
    Lane,
    Matrix,
    X,
    columns,
    record,
)
from tools.pictures.svg import Picture, label

__all__ = ["PATH", "draw"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "wavefront.svg"
"""Path of the picture."""

# The picture, in user units.
_WIDTH, _HEIGHT = 1010, 800
_LEFT, _TOP = 206, 168          # of the first cell
_PITCH_X, _PITCH_Y = 182, 142   # from cell to cell
_CELL_W, _CELL_H = 158, 112
_P_PORT, _W_PORT = 48, 118      # where partial sums and weights cross a cell's upper side
_X_PORT, _SWAP_PORT = 66, 34    # where activations and the swap bit cross its left side
_LANE_X, _LANE_W = 24, 128
_PANEL_X = 762
_STRIP_Y = 676
_SECONDS = 1.3                  # per frame
_GLIDE = 0.3                    # part of a frame in which things move
_TIMES = "\N{MULTIPLICATION SIGN}"
_STILL = 9                      # the frame for viewers that do not animate

_Y: Matrix = tuple(tuple(sum(a * b for a, b in zip(row, column, strict=True))
                         for column in columns(X)) for row in WEIGHTS)


def _named(value: float, **matrices: Matrix) -> str:
    """The name of the matrix element that equals ``value``, such as "x12"; empty if none does."""
    for letter, matrix in matrices.items():
        for i, row in enumerate(matrix):
            if value in row:
                return f"{letter}{i + 1}{row.index(value) + 1}"
    return ""


def _x(value: float) -> str:
    return label(_named(value, x=X), value)


def _w(value: float) -> str:
    return label(_named(value, w=WEIGHTS, v=NEXT_WEIGHTS), value)


def _y(column: int, value: float) -> str:
    return label(f"Y{column + 1}{_Y[column].index(int(value)) + 1}", value)


def _style(frames: int) -> str:
    """CSS rules that show one frame after the other, and animate moving values."""
    share = 100 / frames
    glides = {"east": (-_PITCH_X, 0), "enter": (-96, 0), "south": (0, -_PITCH_Y), "drop": (0, -56)}
    lines = [
        f".f,.f .g{{animation:{frames * _SECONDS:g}s infinite}}",
        ".f{visibility:hidden;animation-name:show;animation-timing-function:step-end}",
        f".c{_STILL}{{visibility:visible}}",
        f"@keyframes show{{0%{{visibility:visible}}{share:g}%,100%{{visibility:hidden}}}}",
    ]
    for name, (dx, dy) in glides.items():
        lines += [
            f".f .{name}{{animation-name:{name}}}",
            f"@keyframes {name}{{0%{{transform:translate({dx}px,{dy}px)}}"
            f"{share * _GLIDE:g}%,100%{{transform:none}}}}"]
    lines += [f".c{k},.c{k} .g{{animation-delay:{-(frames - k) * _SECONDS:g}s}}"
              for k in range(frames)]
    lines.append("@media (prefers-reduced-motion:reduce){.f,.f .g{animation:none}}")
    return "\n".join(lines) + "\n"


def draw(frames: Sequence[Frame]) -> str:
    """Return the animated picture as SVG; ``frames`` must be from `record` with `CONFIG`."""
    picture = Picture(
        _WIDTH, _HEIGHT, "A 3 by 3 systolic array computes Y = W X",
        "Animation, one frame a clock cycle, of weights, activations and partial sums in the cells "
        "of a weight-stationary systolic array. Results leave at the bottom on anti-diagonals: "
        "Y11; Y21, Y12; Y31, Y22, Y13; Y32, Y23; Y33.", _style(len(frames)))
    _background(picture)
    _strip(picture, frames)
    for cycle in range(len(frames)):
        with picture.group(f"f c{cycle}", id=f"cycle-{cycle}"):
            _draw_frame(picture, frames, cycle)
    return picture.svg()


def _background(picture: Picture) -> None:
    """Draw the parts of the picture that do not change."""
    _lanes_and_wires(picture)
    _matrices(picture)
    _legend(picture)


def _lanes_and_wires(picture: Picture) -> None:
    picture.text(24, 40, f"A 3 {_TIMES} 3 systolic array computes Y = W X", "title left")
    picture.text(24, 64, "Every value is the state of the RTL in that clock cycle. Column i of the "
                 "array holds row i of W.", "muted left")
    bottom = _TOP + 3 * _PITCH_Y
    for k in range(3):
        y = _TOP + k * _PITCH_Y
        x = _LEFT + k * _PITCH_X
        for port in (_X_PORT, _SWAP_PORT):
            picture.wire([(_LANE_X + _LANE_W, y + port), (_LEFT + 3 * _PITCH_X - 24, y + port)])
        picture.wire([(x + _P_PORT, _TOP), (x + _P_PORT, bottom + 24)])
        picture.wire([(x + _W_PORT, 130), (x + _W_PORT, bottom - 30)])
        picture.rect(_LANE_X, y + 22, _LANE_W, 58, "panel")
        picture.text(_LANE_X + 8, y + 39, f"lane {k + 1}: activations", "tiny muted left")
        picture.rect(x, 84, _CELL_W, 46, "panel")
        picture.text(x + 8, 99, f"lane {k + 1}: weights", "tiny muted left")
        picture.rect(x, bottom + 24, _CELL_W, 46, "panel")
        picture.text(x + 8, bottom + 62, f"lane {k + 1}: results", "tiny muted left")
        picture.text(_LEFT - 2, y - 8, f"row {k + 1}", "tiny muted right")


def _matrices(picture: Picture) -> None:
    """Draw the matrices W and X, and empty cells for the elements of Y."""
    x = _PANEL_X
    for letter, matrix, kind, y in (("W", WEIGHTS, "w", 168), ("X", X, "x", 262),
                                    ("Y", _Y, "sum", 356)):
        picture.text(x + 16, y + 5, f"{letter} =", f"head {kind}")
        for dx, dy in ((44, 8), (214, -8)):
            picture.wire([(x + dx + dy, y - 38), (x + dx, y - 38), (x + dx, y + 38),
                          (x + dx + dy, y + 38)])
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                at = (x + 76 + 53 * j, y - 20 + 25 * i)
                if letter == "Y":
                    picture.text(*at, label(f"Y{i + 1}{j + 1}"), "muted")
                else:
                    picture.text(*at, label(f"{letter.lower()}{i + 1}{j + 1}", value), kind)


def _legend(picture: Picture) -> None:
    """Draw the legend of the colours."""
    x, y = _PANEL_X, 420
    for kind, sample, meaning, dashed in (
            ("x", label("x", 5), "activation, moves east", False),
            ("w", label("w", 8), "weight, on its way or active", False),
            ("w", label("v", 18), "shadow: the next weight", True),
            ("sum", label("", 78), "partial sum, moves south", False),
            ("swap", "swap", "shadow becomes active", False)):
        with picture.group(kind):
            picture.rect(x + 2, y - 11, 54, 22, "dashed" if dashed else "",
                         radius=4 if dashed else 11)
            picture.text(x + 29, y + 4.5, sample)
        picture.text(x + 66, y + 4.5, meaning, "small left")
        y += 29
    for line in ("The swap bit runs one cycle ahead of the",
                 "activations; the next weights v follow it",
                 "while the array still multiplies by w."):
        picture.text(x + 2, y + 2, line, "tiny muted left")
        y += 16


def _strip(picture: Picture, frames: Sequence[Frame]) -> None:
    """Draw the time strip: the cycles in which each row enters and each result leaves."""
    step = (_WIDTH - 48 - 96) / len(frames)
    rows = (("weights in", 18), ("activations in", 18), ("results leave", 50))
    picture.text(24, _STRIP_Y + 12, "cycle", "tiny muted left")
    y = _STRIP_Y + 20
    for name, height in rows:
        picture.text(24, y + 13, name, "tiny muted left")
        y += height + 2
    loads = {value: f"{letter}{k + 1}" for letter, matrix in (("w", WEIGHTS), ("v", NEXT_WEIGHTS))
             for k, value in enumerate(matrix[0])}
    for cycle, frame in enumerate(frames):
        x = 120 + cycle * step
        picture.text(x + step / 2, _STRIP_Y + 12, str(cycle), "tiny muted")
        y = _STRIP_Y + 20
        results = [label(f"Y{c + 1}{_Y[c].index(int(value)) + 1}")
                   for c, value in enumerate(frame.results) if value is not None]
        contents = (("w", [label(loads[int(frame.w_row[0])])] if frame.w_row else []),
                    ("x", [label(f"x{X[0].index(int(frame.x_row[0])) + 1}")] if frame.x_row
                     else []),
                    ("sum", results[::-1]))
        for (kind, lines), (_, height) in zip(contents, rows, strict=True):
            with picture.group(kind if lines else ""):
                picture.rect(x + 1, y, step - 2, height, "" if lines else "panel", radius=3)
                middle = y + height / 2 + 4 - 8 * (len(lines) - 1)
                for k, line in enumerate(lines):
                    picture.text(x + step / 2, middle + 16 * k - 1, line, "small")
            y += height + 2


def _draw_frame(picture: Picture, frames: Sequence[Frame], cycle: int) -> None:
    """Draw the changing parts of the picture, as they are in ``cycle``."""
    frame = frames[cycle]
    picture.text(_WIDTH - 24, 44, f"cycle {cycle}", "title right")
    step = (_WIDTH - 48 - 96) / len(frames)
    picture.rect(120 + cycle * step - 0.5, _STRIP_Y - 2, step + 1, 116, "frame", radius=4)

    for r, row in enumerate(frame.cells):
        for c, cell in enumerate(row):
            later = frames[cycle + 1].cells[r][c].sum if cycle + 1 < len(frames) else None
            with picture.group(at=(_LEFT + c * _PITCH_X, _TOP + r * _PITCH_Y),
                               data_cell=f"{r},{c}"):
                _draw_cell(picture, cell, later)
    # After all cells, since these values lie across cell edges.
    for r, row in enumerate(frame.cells):
        for c in range(len(row)):
            with picture.group(at=(_LEFT + c * _PITCH_X, _TOP + r * _PITCH_Y),
                               data_edge=f"{r},{c}"):
                _draw_edges(picture, frame, r, c)
    for c, value in enumerate(frame.results):
        if value is not None:
            picture.pill(_LEFT + c * _PITCH_X + _P_PORT, _TOP + 3 * _PITCH_Y - 4, "sum",
                         _y(c, value), width=66, glide="g south")
    _draw_lanes(picture, frame.lanes)
    _draw_results(picture, frames[:cycle + 1])


def _draw_lanes(picture: Picture, lanes: Sequence[Lane]) -> None:
    """Draw the contents of the lanes' FIFOs."""
    for i, lane in enumerate(lanes):
        for k, value in enumerate(lane.x):
            picture.text(_LANE_X + _LANE_W - 22 - 40 * k, _TOP + i * _PITCH_Y + _X_PORT + 5,
                         _x(value), "x")
        for k, value in enumerate(lane.w):
            picture.text(_LEFT + i * _PITCH_X + _W_PORT - 4 - 42 * k, 120, _w(value), "w")
        for k, value in enumerate(lane.y):
            picture.text(_LEFT + i * _PITCH_X + 46 + 62 * k, _TOP + 3 * _PITCH_Y + 46,
                         _y(i, value), "sum")


def _draw_results(picture: Picture, frames: Sequence[Frame]) -> None:
    """Draw the elements of Y that have left the array in ``frames``."""
    for frame in frames:
        for c, value in enumerate(frame.results):
            if value is not None:
                j = _Y[c].index(int(value))
                x, y = _PANEL_X + 76 + 53 * j, 336 + 25 * c
                with picture.group("sum"):
                    picture.rect(x - 21, y - 16, 42, 22, radius=11)
                    picture.text(x, y, label("", value))


def _draw_cell(picture: Picture, cell: Cell, later: float | None) -> None:
    """Draw the contents of a cell; ``later`` is the partial sum that the cell is computing."""
    busy = cell.x is not None
    kind = "swap" if cell.swap else "x" if busy else ""
    with picture.group(kind):
        picture.rect(0, 0, _CELL_W, _CELL_H, "box" if not kind else "plain", radius=8)
    on = "sum" if busy else ""
    picture.wire([(0, _X_PORT), (_P_PORT - 13, _X_PORT)], "x" if busy else "", arrow=True)
    picture.wire([(_P_PORT, 0), (_P_PORT, _X_PORT - 13)], on, arrow=True)
    picture.wire([(_P_PORT, _X_PORT + 13), (_P_PORT, _CELL_H)], on)
    picture.wire([(90, _X_PORT), (_P_PORT + 13, _X_PORT)], "w" if busy else "", arrow=True)
    with picture.group(on):
        picture.circle(_P_PORT, _X_PORT, 13, "" if on else "box")
        picture.text(_P_PORT, _X_PORT + 4.5, f"{_TIMES}+", "small")

    picture.wire([(_W_PORT, 0), (_W_PORT, 20)])
    picture.wire([(_W_PORT, 42), (_W_PORT, 55)], "swap" if cell.swap else "", arrow=True)
    with picture.group("w"):
        picture.rect(90, 20, 58, 22, "dashed", radius=4)
        if cell.shadow is not None:
            picture.text(_W_PORT + 1, 35.5, _w(cell.shadow))
        # Before its first swap, a cell has no weight that was loaded.
        loaded = _named(cell.active, w=WEIGHTS, v=NEXT_WEIGHTS)
        picture.rect(90, 55, 58, 22, "" if loaded else "plain", radius=4)
        if loaded:
            picture.text(_W_PORT + 1, 70.5, _w(cell.active))
    if cell.x is not None and later is not None:
        picture.text(_P_PORT + 8, 99, f"{cell.p:g} + {cell.x:g}{_TIMES}{cell.active:g} = "
                     f'<tspan class="v">{later:g}</tspan>', "small left sum")


def _draw_edges(picture: Picture, frame: Frame, r: int, c: int) -> None:
    """Draw the values that arrive at the cell in row ``r`` and column ``c``."""
    cell = frame.cells[r][c]
    sideways, down = "g east" if c else "g enter", "g south" if r else "g drop"
    if cell.arriving is not None:
        picture.pill(_W_PORT, -4, "w", _w(cell.arriving), glide=down)
    if r and frame.cells[r - 1][c].sum is not None:
        picture.pill(_P_PORT, -4, "sum", label("", cell.p), width=40, glide=down)
    if cell.x is not None:
        picture.pill(-8, _X_PORT, "x", _x(cell.x), width=46, glide=sideways)
    if cell.swap:
        picture.pill(-8, _SWAP_PORT, "swap", "swap", width=46, glide=sideways)


def main() -> None:
    """Write the picture to `PATH`."""
    PATH.write_text(draw(record()), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
