"""Draws the block diagram of the core and its simulation: docs/block_diagram.svg."""

import pathlib
import re
from collections.abc import Sequence

from hdl.config import PRESETS
from hdl.isa import BUNDLE_BITS, MASKS, SCALAR_REGISTERS, SEMAPHORES, VECTOR_REGISTERS
from hdl.mxu.mac import STEPS
from sim.svg import Picture

__all__ = ["PATH", "draw"]

PATH = pathlib.Path(__file__).resolve().parents[1] / "docs" / "block_diagram.svg"
"""The picture's place."""

_WIDTH, _HEIGHT = 1120, 1276
_CONFIG = PRESETS["v2"]
_ARRAY = _CONFIG.array
_HOST, _CORE, _UNIT, _SIMULATION = 78, 228, 630, 1038
"""Where the panels begin."""
_TIMES = "\N{MULTIPLICATION SIGN}"
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
        _WIDTH, _HEIGHT, "Block diagram of the core and its simulation",
        "The host loads programs and data into a core. Its sequencer issues bundles of operations "
        "to a vector unit, a cross-lane unit and a matrix unit, which has a controller, lanes with "
        "FIFOs, and a grid of multiply-accumulate cells. In simulation, whatever stands many times "
        "runs in tile kernels, which are called once a cycle, and all else in Verilator.")
    picture.text(24, 40, "From a program to the cells and back", "title left")
    picture.text(24, 62, "Sizes are those of the v2 configuration.", "muted left")
    _host(picture)
    _core(picture)
    _unit(picture)
    _simulation(picture)
    return picture.svg()


def _host(picture: Picture) -> None:
    _panel(picture, _HOST, 118, "Host", "Python: sim/core.py, sim/device.py")
    top = _HOST + 38
    _box(picture, 44, top, 150, 62, "program", ["from Python or text:", "sim/assembler.py"])
    picture.wire([(194, top + 31), (216, top + 31)], arrow=True)
    _box(picture, 216, top, 300, 62, "CoreModel", ["loads memories, starts, waits;",
                                                   "reads state, faults, counters"])
    _box(picture, 560, top, 216, 62, "golden machine", ["golden/machine.py:",
                                                        "the same state, no cycles"])
    picture.wire([(538, top + 31), (560, top + 31)], arrow=True)
    picture.wire([(538, top + 31), (516, top + 31)], arrow=True)
    picture.text(538, top + 23, "=", "head")
    _box(picture, 836, top, 240, 62, "Device.matmul",
         [f"{_ARRAY}{_TIMES}{_ARRAY} tiles, added along K;", "a matrix unit without a core"])


def _core(picture: Picture) -> None:
    y = _CORE
    _panel(picture, y, 360, "Core", "RTL: hdl/core, hdl/vpu, hdl/xlu")
    # The host's ports.
    picture.wire([(236, _HOST + 100), (236, y + 52)], arrow=True)
    picture.wire([(252, y + 52), (252, _HOST + 100)], arrow=True)
    picture.text(228, y - 12, "start, stop, words of memories", "tiny muted right")
    picture.text(260, y - 12, "pc, fault, counters", "tiny muted left")
    picture.wire([(452, _HOST + 100), (452, y + 52)], arrow=True)
    picture.wire([(468, y + 52), (468, _HOST + 100)], arrow=True)
    picture.text(476, y - 12, "rows of vector memory", "tiny muted left")

    _sequencer(picture, 44, y + 52)
    _vector_unit(picture, 352, y + 52)
    _cross_lane_unit(picture, 836, y + 52)
    _feeders(picture, 340, y + 292)
    # What the sequencer says to the units.
    picture.wire([(264, y + 104), (364, y + 104)], "swap", arrow=True)
    picture.text(308, y + 98, "v0, v1, ld, st", "tiny swap")
    picture.wire([(352, y + 134), (264, y + 134)], "swap", arrow=True)
    picture.text(308, y + 128, "written", "tiny swap")
    picture.wire([(264, y + 318), (340, y + 318)], "swap", arrow=True)
    picture.text(302, y + 312, "push, pop", "tiny swap")
    picture.wire([(264, y + 72), (316, y + 72), (316, y + 38), (956, y + 38), (956, y + 52)],
                 "swap", arrow=True)
    picture.text(640, y + 32, "misc", "tiny swap")
    # Rows between vector unit and cross-lane unit.
    for k, (name, ends) in enumerate((("rows", (764, 836)), ("results", (836, 764)))):
        wire = y + 214 + 30 * k
        picture.wire([(ends[0], wire), (ends[1], wire)], "sim", arrow=True)
        picture.text(800, wire - 6, name, "tiny sim")
    _box(picture, 836, y + 292, 240, 52, "counters", ["every cycle has one cause"])


def _sequencer(picture: Picture, x: float, y: float) -> None:
    picture.rect(x, y, 220, 292, "box", radius=6)
    picture.text(x + 14, y + 24, "Sequencer", "head left")
    _tag(picture, x + 116, y + 10, "Verilator")
    left, right, half, whole = x + 12, x + 114, 94, 196
    _memory(picture, left, y + 40, whole, "instruction memory",
            f"{_CONFIG.imem_bundles:,} bundles of {BUNDLE_BITS} bits")
    picture.wire([(x + 110, y + 84), (x + 110, y + 102)], "swap", arrow=True)
    with picture.group("swap"):
        picture.rect(left, y + 102, whole, 58)
        picture.text(x + 110, y + 120, "one bundle a cycle", "small")
        picture.text(x + 110, y + 136, "all of it or nothing: scoreboard,", "tiny")
        picture.text(x + 110, y + 151, "ledger of the array, faults", "tiny")
    picture.wire([(x + 58, y + 160), (x + 58, y + 178)], "swap", arrow=True)
    picture.wire([(x + 162, y + 160), (x + 162, y + 178)], "swap", arrow=True)
    _part(picture, left, y + 178, half, "scalar unit", f"{SCALAR_REGISTERS} registers")
    _part(picture, right, y + 178, half, "semaphores", f"{SEMAPHORES}")
    picture.wire([(x + 58, y + 222), (x + 58, y + 238)], arrow=True)
    picture.wire([(x + 72, y + 238), (x + 72, y + 222)], arrow=True)
    _memory(picture, left, y + 238, whole, "scalar memory", f"{_CONFIG.smem_words:,} words")


def _part(picture: Picture, x: float, y: float, width: float, name: str, line: str) -> None:
    picture.rect(x, y, width, 44, "panel")
    picture.text(x + width / 2, y + 18, name, "small")
    picture.text(x + width / 2, y + 34, line, "tiny muted")


def _memory(picture: Picture, x: float, y: float, width: float, name: str, line: str) -> None:
    """A part that holds words."""
    _part(picture, x, y, width, name, line)
    for k in range(3):
        picture.rect(x + 8, y + 10 + 9 * k, 10, 6, "box", radius=1)


def _vector_unit(picture: Picture, x: float, y: float) -> None:
    elements = _CONFIG.sublanes * _CONFIG.lanes
    picture.rect(x, y, 424, 232, "box", radius=6)
    picture.text(x + 12, y + 24, "Vector unit", "head left")
    picture.rect(x + 12, y + 36, 388, 32, "panel")
    picture.text(x + 24, y + 57, "control: enables, registers, addresses", "small left")
    _tag(picture, x + 300, y + 43, "Verilator")
    picture.wire([(x + 200, y + 68), (x + 200, y + 82)], "swap", arrow=True)
    # Two more elements, behind.
    for shift in (8, 4, 0):
        picture.rect(x + 12 + shift, y + 82 + shift, 392, 134, "box", radius=6)
    picture.text(x + 24, y + 104, f"{elements:,} elements", "head left")
    picture.text(x + 160, y + 104, f"{_CONFIG.sublanes} sublanes of {_CONFIG.lanes} lanes",
                 "tiny muted left")
    _tag(picture, x + 302, y + 90, "tile kernel")
    _part(picture, x + 24, y + 116, 112, "registers",
          f"{VECTOR_REGISTERS} words, {MASKS} masks")
    _part(picture, x + 144, y + 116, 62, "ALU", "v0")
    _part(picture, x + 214, y + 116, 62, "ALU", "v1")
    _memory(picture, x + 284, y + 116, 112, "memory", f"{_CONFIG.vmem_words:,} words")
    picture.text(x + 24, y + 186, "chains, a", "tiny muted left")
    picture.text(x + 24, y + 201, "word of each", "tiny muted left")
    for at, kind, name in ((128, "w", "w"), (176, "x", "x"), (230, "sum", "pop"),
                           (290, "sim", "xlu"), (348, "sim", "result")):
        with picture.group(kind):
            picture.rect(x + at - 18, y + 176, 44 if name == "result" else 36, 26)
            picture.text(x + at + (4 if name == "result" else 0), y + 193, name, "small")


def _cross_lane_unit(picture: Picture, x: float, y: float) -> None:
    picture.rect(x, y, 240, 232, "box", radius=6)
    picture.text(x + 14, y + 24, "Cross-lane unit", "head left")
    for k, (name, line, tag) in enumerate((
            ("rotator", "steps of two bits", "Verilator"),
            ("tree", "sum or maximum", "tile kernel"),
            ("transposer", f"{_CONFIG.lanes} banks", "tile kernel"))):
        _part(picture, x + 12, y + 44 + 60 * k, 112, name, line)
        _tag(picture, x + 134, y + 57 + 60 * k, tag)


def _feeders(picture: Picture, x: float, y: float) -> None:
    """The boxes between vector unit and streams: w, x and y at 384, 430 and 539."""
    for kind, left, width, name in (("w", x, 74, "w feeder"), ("x", x + 82, 74, "x feeder"),
                                    ("sum", x + 172, 74, "collector")):
        with picture.group(kind):
            picture.rect(left, y, width, 52)
            picture.text(left + width / 2, y + 23, name, "small")
            picture.text(left + width / 2, y + 39, "row by row", "tiny")
    picture.text(x + 262, y + 22, "They move the chains by a row for each", "tiny muted left")
    picture.text(x + 262, y + 37, "that a stream takes or gives.", "tiny muted left")


def _unit(picture: Picture) -> None:
    y = _UNIT
    above = _CORE + 344
    _panel(picture, y, 390, "Matrix unit", "RTL: hdl/mxu")
    # From the chains to the streams, and from these to the lanes.
    chains = _CORE + 254, _CORE + 292
    picture.wire([(480, chains[0]), (480, chains[0] + 20), (384, chains[0] + 20),
                  (384, chains[1])], "w", arrow=True)
    picture.wire([(528, chains[0]), (528, chains[0] + 28), (430, chains[0] + 28),
                  (430, chains[1])], "x", arrow=True)
    picture.wire([(582, chains[1]), (582, chains[0])], "sum", arrow=True)
    picture.wire([(384, above), (384, y + 46)], "w")
    picture.wire([(430, above), (430, y + 46)], "x")
    picture.wire([(539, y + 46), (539, above)], "sum", arrow=True)
    picture.text(376, y - 26, f"w: {_ARRAY} fp32", "tiny w right")
    picture.text(376, y - 11, "transpose", "tiny w right")
    picture.text(438, y - 26, f"x: {_ARRAY} fp32", "tiny x left")
    picture.text(438, y - 11, "swap", "tiny x left")
    picture.text(547, y - 26, f"y: {_ARRAY} fp32", "tiny sum left")
    picture.text(547, y - 11, "a row of each every cycle, with valid and ready", "tiny muted left")
    # The driver of matrix products goes past the core.
    picture.wire([(1076, _HOST + 69), (1086, _HOST + 69), (1086, y - 15), (812, y - 15)], "dashed",
                 arrow=True)
    picture.text(1076, y - 21, "Device: these streams, without a core", "tiny muted right")

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
    y = _SIMULATION
    _panel(picture, y, 214, "Simulation", "sim/build.py, sim/kernel, sim/core.cpp")
    _box(picture, 44, y + 44, 128, 62, "Verilog", ["of hdl/, one module", "per distinct block"])
    picture.wire([(172, y + 62), (218, y + 62)], arrow=True)
    picture.text(195, y + 56, "top", "tiny muted")
    picture.wire([(108, y + 106), (108, y + 162), (218, y + 162)], arrow=True)
    picture.text(116, y + 156, "tiles", "tiny muted left")
    _box(picture, 218, y + 36, 190, 72, "Verilator model",
         ["sequencer, controls, and shims", "with the ports of the grids"], "sim")
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
         ["cells, lanes, elements, nodes,", "banks; idle ones are skipped"],
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
