"""Draws the block diagram of the matrix unit and its simulation: docs/block_diagram.svg."""

import pathlib
import re
from collections.abc import Sequence

from hdl.config import PRESETS
from hdl.mxu.mac import STEPS
from sim.svg import Picture

__all__ = ["PATH", "draw"]

PATH = pathlib.Path(__file__).resolve().parents[1] / "docs" / "block_diagram.svg"
"""The picture's place."""

_WIDTH, _HEIGHT = 1120, 884
_ARRAY = PRESETS["v2"].array
_TIMES = "\N{MULTIPLICATION SIGN}"
_MINUS = "\N{MINUS SIGN}"
# Steps of one stage of the datapath, such as the coarse and the fine shift, share a box.
STAGES = tuple(dict.fromkeys(
    re.sub("(Coarse|Medium|Fine)$", "", step.__name__).lower() for step in STEPS))


def _box(picture: Picture, x: float, y: float, width: float, height: float, title: str,
         lines: Sequence[str] = (), kind: str = "") -> None:
    """A box with a title and lines of small text in its middle."""
    with picture.group(kind):
        picture.rect(x, y, width, height, "" if kind else "box", radius=6)
        middle = y + height / 2 - 8 * len(lines)
        picture.text(x + width / 2, middle + 5, title, "head")
        for k, line in enumerate(lines):
            picture.text(x + width / 2, middle + 22 + 16 * k, line, "tiny")


def _panel(picture: Picture, y: float, height: float, title: str, where: str) -> None:
    picture.rect(24, y, _WIDTH - 48, height, "panel", radius=8)
    picture.text(40, y + 22, title, "head left")
    picture.text(_WIDTH - 40, y + 22, where, "tiny muted right")


def _tag(picture: Picture, x: float, y: float, text: str) -> None:
    """How a block is simulated."""
    with picture.group("sim"):
        picture.rect(x, y, 92, 18, radius=9)
        picture.text(x + 46, y + 13, text, "tiny")


def draw() -> str:
    """The picture, as SVG."""
    picture = Picture(
        _WIDTH, _HEIGHT, "Block diagram of the matrix unit and its simulation",
        "The host cuts matrices into tiles and streams them to the matrix unit: a controller, "
        "lanes with FIFOs, and a grid of multiply-accumulate cells. In simulation, the controller "
        "runs in Verilator, and lanes and cells in tile kernels that it calls once a cycle.")
    picture.text(24, 40, "From a numpy array to the cells and back", "title left")
    picture.text(24, 62, "Sizes are those of the v2 configuration.", "muted left")
    _host(picture)
    _unit(picture)
    _simulation(picture)
    return picture.svg()


def _host(picture: Picture) -> None:
    _panel(picture, 78, 118, "Host", "Python: sim/device.py, sim/mxu.py")
    top = 116
    _box(picture, 44, top, 112, 62, "numpy", [f"a (M{_TIMES}K), b (K{_TIMES}N)"])
    picture.wire([(156, top + 31), (178, top + 31)], arrow=True)
    _box(picture, 178, top, 156, 62, "cut into tiles",
         [f"{_ARRAY}{_TIMES}{_ARRAY} weights; K padded", f"with x = +0, w = {_MINUS}0"])
    picture.wire([(334, top + 31), (356, top + 31)], arrow=True)
    _box(picture, 356, top, 106, 62, "run steps", ["(x tile, w tile),", "back to back"])
    _box(picture, 486, top, 106, 62, "add tiles", ["along K, fp32,", "in order"])
    picture.wire([(592, top + 31), (614, top + 31)], arrow=True)
    _box(picture, 614, top, 112, 62, "numpy", [f"M{_TIMES}N float32"])
    _box(picture, 836, top, 240, 62, "golden backend", ["numpy model, golden/mxu.py:",
                                                        "the same bits, no cycles"])


def _unit(picture: Picture) -> None:
    y = 238
    _panel(picture, y, 390, "Matrix unit", "RTL: hdl/mxu")
    # The streams, between the host and the lanes.
    picture.wire([(384, 178), (384, y + 46)], "w")
    picture.wire([(430, 178), (430, y + 46)], "x")
    picture.wire([(539, y + 46), (539, 178)], "sum", arrow=True)
    picture.text(376, 212, f"w: {_ARRAY} fp32", "tiny w right")
    picture.text(376, 227, "transpose", "tiny w right")
    picture.text(438, 212, f"x: {_ARRAY} fp32", "tiny x left")
    picture.text(438, 227, "swap", "tiny x left")
    picture.text(547, 212, f"y: {_ARRAY} fp32", "tiny sum left")
    picture.text(547, 227, "a row of each every cycle, with valid and ready", "tiny muted left")

    _controller(picture, 44, y + 46)
    _lanes(picture, 344, y + 46)
    _grid(picture, 624, y + 78)
    _cell(picture, 836, y + 34)


def _controller(picture: Picture, x: float, y: float) -> None:
    picture.rect(x, y, 262, 288, "box", radius=6)
    picture.text(x + 14, y + 24, "Controller", "head left")
    _tag(picture, x + 158, y + 9, "Verilator")
    rules = (
        ("w", "takes a load of weights when the", "shadow is free"),
        ("w", "lets it chase the swap through the", "array, never overtake it"),
        ("swap", "holds a row with swap back until", "the load is complete"),
        ("sum", "holds rows back unless there is", "room for their results (credits)"),
        ("x", "starts each row by one token, which", "the lanes hand on"),
        ("", "counts cycles: active, weight load", ""),
    )
    y += 50
    for kind, first, second in rules:
        with picture.group(kind):
            picture.circle(x + 20, y - 4, 4, "" if kind else "box")
        picture.text(x + 34, y, first, "small left")
        picture.text(x + 34, y + 16, second, "small left")
        y += 41
    for k, (kind, name) in enumerate((("w", "w token"), ("x", "x token"), ("swap", "swap"))):
        wire = y - 232 + 40 * k
        picture.wire([(x + 262, wire), (x + 300, wire)], kind, arrow=True)
        picture.text(x + 281, wire - 6, name.split()[0], f"tiny {kind}")


def _lanes(picture: Picture, x: float, y: float) -> None:
    # Two more lanes, behind.
    picture.rect(x + 12, y + 12, 220, 288, "box", radius=6)
    picture.rect(x + 6, y + 6, 220, 288, "box", radius=6)
    picture.rect(x, y, 220, 288, "box", radius=6)
    picture.text(x + 14, y + 268, f"{_ARRAY} lanes", "head left")
    _tag(picture, x + 120, y + 255, "tile kernel")
    entries = {"w": [(x + 40, y), (x + 40, y + 34)],
               "x": [(x + 86, y), (x + 86, y + 22), (x + 94, y + 22), (x + 94, y + 91),
                     (x + 47, y + 91), (x + 47, y + 108)]}
    for kind, name, top in (("w", "w FIFO", 34), ("x", "x FIFO", 108)):
        with picture.group(kind):
            picture.rect(x + 14, y + top, 66, 40, radius=6)
            picture.text(x + 47, y + top + 17, "round", "small")
            picture.text(x + 47, y + top + 32, "to bf16", "small")
        picture.wire([(x + 80, y + top + 20), (x + 106, y + top + 20)], kind, arrow=True)
        _fifo(picture, x + 106, y + top, kind, name)
        picture.wire(entries[kind], kind, arrow=True)
    _fifo(picture, x + 106, y + 194, "sum", "result FIFO")
    picture.wire([(x + 186, y + 204), (x + 195, y + 204), (x + 195, y)], "sum")
    picture.text(x + 14, y + 168, "the next lane follows", "tiny muted left")
    picture.text(x + 14, y + 183, "row_skew cycles later", "tiny muted left")


def _fifo(picture: Picture, x: float, y: float, kind: str, name: str) -> None:
    with picture.group(kind):
        picture.rect(x, y, 80, 40, radius=6)
        picture.text(x + 40, y + 17, name, "small")
        for k in range(5):
            picture.rect(x + 12 + 12 * k, y + 23, 8, 10, "plain", radius=1)


def _grid(picture: Picture, x: float, y: float) -> None:
    step, size, count = 42, 28, 4
    side = step * (count - 1) + size
    for k in range(count):
        at = k * step
        picture.wire([(x - 16, y + at + 18), (x + side, y + at + 18)], "x")
        picture.wire([(x + at + 9, y), (x + at + 9, y + side + 22)], "sum", arrow=True)
        picture.wire([(x + at + 21, y - 14), (x + at + 21, y + side)], "w")
    for r in range(count):
        for c in range(count):
            with picture.group("x" if (r, c) == (1, 3) else ""):
                picture.rect(x + c * step, y + r * step, size, size,
                             "plain" if (r, c) == (1, 3) else "box", radius=4)
    # Buses to the lanes, whose boxes end at x - 48.
    left = x - 94
    picture.wire([(left, y + 22), (x - 30, y + 22), (x - 30, y - 14),
                  (x + side + 2, y - 14)], "w")
    picture.wire([(left, y + 96), (x - 16, y + 96)], "x")
    picture.wire([(x - 16, y + 18), (x - 16, y + 18 + 3 * step)], "x")
    picture.wire([(x + side + 2, y + side + 22), (x - 30, y + side + 22), (x - 30, y + 182),
                  (left, y + 182)], "sum", arrow=True)
    picture.text(x + side / 2, y + side + 46, "Grid", "head")
    picture.text(x + side / 2, y + side + 63, f"{_ARRAY}{_TIMES}{_ARRAY} cells", "small")
    _tag(picture, x + side / 2 - 46, y + side + 72, "tile kernel")
    # The inset's rays.
    corner = (x + 3 * step + size, y + step)
    picture.wire([corner, (836, y - 44)], "dashed x")
    picture.wire([(corner[0], corner[1] + size), (836, y + 298)], "dashed x")


def _cell(picture: Picture, x: float, y: float) -> None:
    with picture.group("x"):
        picture.rect(x, y, 240, 342, "plain", radius=8)
    picture.text(x + 46, y + 24, "Cell", "head left")
    # Weights to the right, the datapath to the left.
    right = x + 176
    picture.wire([(right + 21, y), (right + 21, y + 40)], "w", arrow=True)
    picture.text(right + 14, y + 20, "w", "small w right")
    with picture.group("w"):
        picture.rect(right - 14, y + 40, 68, 24, "dashed")
        picture.text(right + 20, y + 56, "shadow", "small")
        picture.rect(right - 14, y + 86, 68, 24)
        picture.text(right + 20, y + 102, "active", "small")
    picture.wire([(right + 21, y + 64), (right + 21, y + 86)], "swap", arrow=True)
    picture.text(right + 30, y + 79, "swap", "tiny swap left")
    picture.wire([(right + 54, y + 52), (right + 60, y + 52), (right + 60, y + 342)], "w",
                 arrow=True)
    picture.text(right + 50, y + 262, "later", "tiny w right")
    picture.text(right + 50, y + 276, "weights", "tiny w right")
    picture.text(right + 50, y + 290, "pass", "tiny w right")

    step, height, width = 43, 26, 116
    top = y + 86
    left = x + 22
    for k, stage in enumerate(STAGES):
        at = top + k * step - (0 if k == 0 else 4)
        with picture.group("sum"):
            picture.rect(left, at, width, height)
            picture.text(left + width / 2, at + 16.5, stage, "small")
        if k:
            picture.wire([(left + width / 2, at - step + height + (4 if k == 1 else 0)),
                          (left + width / 2, at)], "sum", arrow=True)
    picture.wire([(right - 14, top + 12), (left + width, top + 12)], "w", arrow=True)
    picture.wire([(x - 14, top + 12), (left, top + 12)], "x", arrow=True)
    picture.text(x - 8, top + 6, "x", "small x")
    picture.wire([(x + 12, y), (x + 12, top + step + 8), (left, top + step + 8)], "sum", arrow=True)
    picture.text(x + 20, y + 16, "p", "small sum left")
    end = top + (len(STAGES) - 1) * step - 4 + height
    # The cuts of a cell of depth 2: after the multiplier, and the one that every cell has.
    for at in (top + 33, end + 8):
        picture.wire([(left - 4, at), (left + width + 12, at)], "swap dashed")
        picture.text(left + width + 16, at + 4, "register", "tiny swap left")
    picture.wire([(left + width / 2, end), (left + width / 2, y + 356)], "sum", arrow=True)


def _simulation(picture: Picture) -> None:
    y = 646
    _panel(picture, y, 214, "Simulation", "sim/build.py, sim/kernel, sim/mxu.cpp")
    _box(picture, 44, y + 44, 128, 62, "Verilog", ["of hdl/, one module", "per distinct block"])
    picture.wire([(172, y + 62), (218, y + 62)], arrow=True)
    picture.text(195, y + 56, "top", "tiny muted")
    picture.wire([(108, y + 106), (108, y + 162), (218, y + 162)], arrow=True)
    picture.text(116, y + 156, "cell, lane", "tiny muted left")
    _box(picture, 218, y + 36, 190, 72, "Verilator model",
         ["controller, and shims with the", "ports of the grid and the lanes"], "sim")
    _box(picture, 218, y + 134, 190, 56, "netlist of one tile", ["Yosys, from its Verilog"])
    picture.wire([(408, y + 162), (454, y + 162)], arrow=True)
    _box(picture, 454, y + 134, 190, 56, "kernel compiler", ["one SIMD lane per tile"])
    picture.wire([(644, y + 162), (760, y + 162), (760, y + 108)], arrow=True)
    picture.text(652, y + 156, "C++", "tiny muted left")
    picture.wire([(412, y + 62), (630, y + 62)], "sim", arrow=True)
    picture.wire([(630, y + 82), (412, y + 82)], "sim", arrow=True)
    picture.text(521, y + 54, "DPI: inputs, one call a clock cycle", "tiny sim")
    picture.text(521, y + 98, "registered outputs", "tiny sim")
    _box(picture, 630, y + 36, 190, 72, "tile kernels",
         [f"{_ARRAY}{_TIMES}{_ARRAY} cells, {_ARRAY} lanes", "idle ones are skipped, exactly"],
         "sim")
    _box(picture, 876, y + 36, 200, 72, "pure Verilog",
         ["the same model without shims:", "the reference in tests"])
    for k, line in enumerate((
            "Both models are libraries that the", "host calls in process; results and",
            "cycles are the same in both.")):
        picture.text(876, y + 138 + 17 * k, line, "small muted left")


def main() -> None:
    """Writes the picture."""
    PATH.write_text(draw(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
