"""Draws the block diagram of the chip and its simulation: docs/block_diagram.svg."""

import pathlib
import re
from collections.abc import Sequence
from itertools import pairwise

from hdl.axi.interface import CONTROL_PREFIX, hbm_prefix
from hdl.config import PRESETS
from hdl.dma.interface import QUEUE_DEPTH
from hdl.isa import BUNDLE_BITS, MASKS, SCALAR_REGISTERS, SEMAPHORES, VECTOR_REGISTERS
from hdl.mxu.mac import STEPS
from tools.pictures.svg import Picture

__all__ = ["PATH", "draw"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "block_diagram.svg"
"""Path of the picture."""

_WIDTH, _HEIGHT = 1120, 1876
_CONFIG = PRESETS["v2"]
_ARRAY = _CONFIG.array
_HOST, _CHIP, _CORE, _UNIT, _SIMULATION = 78, 316, 804, 1206, 1614
"""Y coordinates of the top edges of the picture's panels."""
_CHIP_WIDTH, _CHIP_HEIGHT = 838, 436
_HBM_LEFT, _HBM_RIGHT = 962, _WIDTH - 24
_NODE_LEFT, _NODE_RIGHT = 214, 850
_NODES = (40, 104), (208, 212)
"""For each core: (distance of its box from the top of the chip's panel, height of its box)."""
_IN_NODE = (226, 154), (408, 124), (560, 146), (742, 96)
"""(left edge, width) of the boxes of a core, its arbiters, its DMA engine and its HBM port."""
_TIMES = "\N{MULTIPLICATION SIGN}"
# Steps of one stage of the datapath, such as the coarse and the fine shift, share a box.
STAGES = tuple(dict.fromkeys(
    re.sub("(Coarse|Medium|Fine)$", "", step.__name__).lower() for step in STEPS))


def _box(picture: Picture, x: float, y: float, width: float, height: float, title: str,
         lines: Sequence[str] = (), kind: str = "") -> None:
    """Draw a box with a title and lines of small text in its middle.

    ``kind`` is the CSS class for its colours, one of `svg.KINDS`; without one, it is a plain box.
    """
    with picture.group(kind):
        picture.rect(x, y, width, height, "" if kind else "box", radius=6)
        middle = y + height / 2 - 8 * len(lines)
        picture.text(x + width / 2, middle + 5, title, "head")
        for k, line in enumerate(lines):
            if line:
                picture.text(x + width / 2, middle + 22 + 16 * k, line, "tiny")


def _panel(picture: Picture, y: float, height: float, title: str, where: str,
           width: float = _WIDTH - 48) -> None:
    picture.rect(24, y, width, height, "panel", radius=8)
    picture.text(40, y + 22, title, "head left")
    picture.text(width + 8, y + 22, where, "tiny muted right")


def _both_ways(picture: Picture, points: Sequence[tuple[float, float]], kind: str = "") -> None:
    """Draw a wire through ``points`` with an arrow at each end, in the colour of ``kind``.

    ``kind`` is one of `svg.KINDS`, or empty for the colour of other wires.
    """
    half = len(points) // 2
    (x0, y0), (x1, y1) = points[half - 1:half + 1]
    middle = (x0 + x1) / 2, (y0 + y1) / 2
    for way in (points[half:], points[half - 1::-1]):
        picture.wire([middle, *way], kind, arrow=True)


def _tag(picture: Picture, x: float, y: float, text: str) -> None:
    """Draw ``text``, a small label that says how a block is simulated."""
    with picture.group("sim"):
        picture.rect(x, y, 92, 18, radius=9)
        picture.text(x + 46, y + 13, text, "tiny")


def draw() -> str:
    """Draw the block diagram; return it as SVG."""
    picture = Picture(
        _WIDTH, _HEIGHT, "Block diagram of the chip and its simulation",
        "The host has arrays and programs. It drives the chip through registers; the HBM holds "
        "the arrays. The chip has two cores, each with a DMA engine and AXI masters to that "
        "memory. A core's sequencer issues bundles of operations to a vector unit, a cross-lane "
        "unit and a matrix unit, which has a controller, lanes with FIFOs, and a grid of "
        "multiply-accumulate cells. In simulation, repeated blocks run in tile kernels, which are "
        "called once a cycle, and everything else in Verilator.")
    picture.text(24, 40, "From a program to the cells and back", "title left")
    picture.text(24, 62, "Sizes are those of the v2 configuration.", "muted left")
    _host(picture)
    _chip(picture)
    _memory_outside(picture)
    _core(picture)
    _unit(picture)
    _simulation(picture)
    return picture.svg()


def _host(picture: Picture) -> None:
    _panel(picture, _HOST, 194, "Host", "Python: sim/driver, sim/compiler, sim/asm")
    upper, lower = _HOST + 38, _HOST + 120
    _box(picture, 44, upper, 290, 58, "golden chip", [
        "the same state, no cycles:", "golden/chip.py"])
    _box(picture, 44, lower, 290, 58, "ChipModel", [
        "the chip in RTL, driven by its pins:", "sim/models/chip/"])
    _both_ways(picture, [(189, upper + 58), (189, lower)])
    picture.text(198, upper + 75, "=", "head left")
    _box(picture, 410, upper, 290, 140, "Device", [
        "numpy arrays in, numpy arrays out;", "buffers, programs, semaphores,",
        "faults, counters"])
    _box(picture, 786, upper, 290, 58, "compiler", [
        "products and dense layers become", "executables: sim/compiler/"])
    _box(picture, 786, lower, 290, 58, "assembler", [
        "programs, from Python or text:", "sim/asm/assembler.py"])
    picture.wire([(931, upper + 58), (931, lower)], arrow=True)
    picture.text(939, upper + 75, "a program for each core", "tiny muted left")
    for wire, backend, way in ((upper + 29, "golden", "shapes"), (lower + 29, "rtl", "programs")):
        _both_ways(picture, [(334, wire), (410, wire)])
        picture.text(372, wire - 6, backend, "tiny muted")
        ends = (700, 786) if way == "shapes" else (786, 700)
        picture.wire([(ends[0], wire), (ends[1], wire)], arrow=True)
        picture.text(743, wire - 6, way, "tiny muted")


def _chip(picture: Picture) -> None:
    y = _CHIP
    _panel(picture, y, _CHIP_HEIGHT, "Chip", "RTL: hdl/chip, hdl/dma, hdl/axi", _CHIP_WIDTH)
    # The host's pins.
    picture.wire([(101, _HOST + 178), (101, y + 40)], arrow=True)
    picture.wire([(117, y + 40), (117, _HOST + 178)], arrow=True)
    picture.text(93, y - 17, f"{CONTROL_PREFIX}_*", "tiny muted right")
    picture.text(125, y - 17, "answers, interrupt", "tiny muted left")
    bottom = sum(_NODES[-1])
    _box(picture, 44, y + 40, 130, bottom - 40, "Control slave", [
        "AXI4-Lite:", "registers of the chip", "and of each core", "",
        "start, stop, reset;", "state, counters;", "words of memories,", "semaphores;",
        "transfers"])
    _tag(picture, 63, y + 54, "Verilator")
    for core, (top, height) in enumerate(_NODES):
        picture.rect(_NODE_LEFT, y + top, _NODE_RIGHT - _NODE_LEFT, height, "panel", radius=6)
        middle = y + top + height / 2
        picture.wire([(174, middle - 10), (_NODE_LEFT, middle - 10)], "swap", arrow=True)
        picture.wire([(_NODE_LEFT, middle + 10), (174, middle + 10)], "swap", arrow=True)
        _masters(picture, core, y + top + 12, height - 24)
    _first_node(picture, y + _NODES[0][0] + 12, _NODES[0][1] - 24)
    _second_node(picture, y + _NODES[1][0] + 12, _NODES[1][1] - 24)
    _between_cores(picture, y + _NODES[0][0] + _NODES[0][1], y + _NODES[1][0])


def _masters(picture: Picture, core: int, y: float, height: float) -> None:
    """Draw a core's port to the HBM, and the wires of its AXI4 masters."""
    left, width = _IN_NODE[3]
    count = _CONFIG.hbm_channels
    _box(picture, left, y, width, height, "HBM port", [
        f"{count} AXI4 masters", f"of {_CONFIG.channel_bytes} bytes"])
    for channel in range(count):
        wire = y + height * (channel + 0.5) / count + 4
        _both_ways(picture, [(left + width, wire), (_HBM_LEFT, wire)], "sim")
        picture.text((24 + _CHIP_WIDTH + _HBM_LEFT) / 2, wire - 5,
                     f"{hbm_prefix(core, channel)}_*", "tiny sim")


def _first_node(picture: Picture, y: float, height: float) -> None:
    """Draw core 0 with its arbiters and its DMA engine, without details."""
    for (left, width), title, lines in zip(_IN_NODE, ("Core 0", "arbiters", "DMA engine"), (
            ["as core 1"], ["requests, signals,", "rows"], []), strict=False):
        _box(picture, left, y, width, height, title, lines)
    for (left, width), (right, _) in pairwise(_IN_NODE):
        _both_ways(picture, [(left + width, y + height / 2), (right, y + height / 2)], "sim")


def _second_node(picture: Picture, y: float, height: float) -> None:
    """Draw core 1 with its arbiters, its DMA engine and its port to the HBM."""
    (core, core_width), (arbiters, arbiters_width), (engine, engine_width), (port, _) = _IN_NODE
    _box(picture, core, y, core_width, height, "Core 1", ["in detail below"])
    picture.rect(arbiters, y, arbiters_width, 156, "box", radius=6)
    _box(picture, engine, y, engine_width, height, "DMA engine", [
        f"{QUEUE_DEPTH} transfers, in order;", f"a row of {_CONFIG.row_bytes} bytes", "each cycle:",
        "HBM, memories of the", "core, vector memory", "of the other; at the",
        "end adds to semaphores"])
    _tag(picture, engine + engine_width / 2 - 46, y + 164, "Verilator")
    # The core has one port for each of these; several requesters share it.
    ends = (core + core_width, arbiters), (arbiters + arbiters_width, engine)
    for k, (name, line, kind) in enumerate((
            ("request arbiter", "words: host, engine", ""),
            ("signal arbiter", "host, both cores", "swap"),
            ("vector port", "rows: both engines", "sim"))):
        _part(picture, arbiters + 5, y + 6 + 50 * k, arbiters_width - 10, name, line)
        wire = y + 28 + 50 * k
        for left, right in ends:
            if kind == "swap":
                picture.wire([(right, wire), (left, wire)], kind, arrow=True)
            else:
                _both_ways(picture, [(left, wire), (right, wire)], kind)
    picture.wire([(core + core_width, y + 177), (engine, y + 177)], "swap", arrow=True)
    picture.text(arbiters + arbiters_width / 2, y + 171, "dma: descriptors", "tiny swap")
    for k, (name, way) in enumerate((("read", -1), ("write", 1))):
        wire = y + 84 + 34 * k
        points = [(engine + engine_width, wire), (port, wire)]
        picture.wire(points[::way], "sim", arrow=True)
        picture.text((engine + engine_width + port) / 2, wire - 6, name, "tiny sim")


def _between_cores(picture: Picture, top: float, bottom: float) -> None:
    """Draw the wires for signals and rows between the two cores."""
    high, low = top + 22, top + 42
    above, below = top - 12, bottom + 12
    for kind, first, second, up, down in (
            ("swap", 330, 350, 426, 446), ("sim", 610, 590, 514, 494)):
        for points in ([(first, above), (first, low), (down, low), (down, below)],
                       [(second, below), (second, high), (up, high), (up, above)]):
            if kind == "sim":  # rows that are read return
                _both_ways(picture, points, kind)
            else:
                picture.wire(points, kind, arrow=True)
    for k, (left, right) in enumerate((
            ("signals of programs", "rows of the other vector memory,"),
            ("to semaphores", "signals at the end of transfers"))):
        picture.text(322, top + 27 + 16 * k, left, "tiny swap right")
        picture.text(618, top + 27 + 16 * k, right, "tiny sim left")


def _memory_outside(picture: Picture) -> None:
    """Draw the HBM, next to the chip."""
    middle, width = (_HBM_LEFT + _HBM_RIGHT) / 2, _HBM_RIGHT - _HBM_LEFT
    _box(picture, _HBM_LEFT, _CHIP, width, _CHIP_HEIGHT, "HBM", [
        f"{_CONFIG.hbm_bytes >> 30} GiB, one space", "for all cores", "",
        f"{_CONFIG.row_bytes} bytes a cycle to", "and from each core", "",
        "settable latency and", "bandwidth; random", "stalls, errors:", "sim/models/hbm.py"], "sim")
    _tag(picture, middle - 46, _CHIP + 14, "C++ model")
    # The host accesses it in place.
    turn = _CHIP - 22
    _both_ways(picture, [(555, _HOST + 178), (555, turn), (middle, turn), (middle, _CHIP)])
    picture.text(middle - 8, turn + 15, "arrays, in place", "tiny muted right")


def _core(picture: Picture) -> None:
    y = _CORE
    _panel(picture, y, 360, "Core", "RTL: hdl/core, hdl/vpu, hdl/xlu")
    # To and from the rest of the chip.
    above = _CHIP + sum(_NODES[-1]) - 12
    picture.wire([(236, above), (236, y + 52)], arrow=True)
    picture.wire([(252, y + 52), (252, above)], arrow=True)
    picture.text(228, y - 26, "start, stop,", "tiny muted right")
    picture.text(228, y - 11, "words, signals", "tiny muted right")
    picture.text(260, y - 26, "state, words,", "tiny muted left")
    picture.text(260, y - 11, "dma, signals", "tiny muted left")
    picture.wire([(358, above), (358, y + 52)], "sim", arrow=True)
    picture.wire([(374, y + 52), (374, above)], "sim", arrow=True)
    picture.text(382, y - 18, "rows of vector memory, registers, masks", "tiny sim left")

    _sequencer(picture, 44, y + 52)
    _vector_unit(picture, 352, y + 52)
    _cross_lane_unit(picture, 836, y + 52)
    _feeders(picture, 340, y + 292)
    # From the sequencer to the units.
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
    """Draw a box for a memory."""
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
    _memory(picture, x + 284, y + 116, 112, "memory", f"{_CONFIG.vmem_vectors:,} words")
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
    """Draw the feeders of weights and activations, and the collector of results, side by side."""
    for kind, left, width, name in (("w", x, 74, "w feeder"), ("x", x + 82, 74, "x feeder"),
                                    ("sum", x + 172, 74, "collector")):
        with picture.group(kind):
            picture.rect(left, y, width, 52)
            picture.text(left + width / 2, y + 23, name, "small")
            picture.text(left + width / 2, y + 39, "row by row", "tiny")
    picture.text(x + 262, y + 22, "They shift the chains by one row for", "tiny muted left")
    picture.text(x + 262, y + 37, "each row that a stream transfers.", "tiny muted left")


def _unit(picture: Picture) -> None:
    y = _UNIT
    above = _CORE + 344
    _panel(picture, y, 390, "Matrix unit", "RTL: hdl/mxu")
    # From the chains to the streams, and from the streams to the lanes.
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
        ("swap", "holds back a row with swap until", "the load is complete"),
        ("sum", "holds back rows until there is", "room for their results (credits)"),
        ("x", "starts each row with a token that", "the lanes pass on"),
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
    # Registers of a cell of depth 2: after the multiplier, and at the output, as in every cell.
    for at in (top + 33, end + 8):
        picture.wire([(left - 4, at), (left + width + 12, at)], "swap dashed")
        picture.text(left + width + 16, at + 4, "register", "tiny swap left")
    picture.wire([(left + width / 2, end), (left + width / 2, y + 356)], "sum", arrow=True)


def _simulation(picture: Picture) -> None:
    y = _SIMULATION
    _panel(picture, y, 236, "Simulation", "sim/verilated, sim/kernel, sim/models")
    _box(picture, 44, y + 38, 160, 90, "HBM", ["every port is stepped", "in each cycle"], "sim")
    _both_ways(picture, [(204, y + 83), (290, y + 83)], "sim")
    picture.text(247, y + 76, "AXI pins", "tiny sim")
    _box(picture, 290, y + 38, 194, 90, "Verilator model", [
        "control, engines, sequencers,", "and shims with the ports", "of the grids"], "sim")
    picture.wire([(484, y + 72), (684, y + 72)], "sim", arrow=True)
    picture.wire([(684, y + 94), (484, y + 94)], "sim", arrow=True)
    picture.text(584, y + 65, "DPI: inputs, at the falling edge", "tiny sim")
    picture.text(584, y + 109, "registered outputs, at the rising", "tiny sim")
    _kernels(picture, 684, y + 38)
    _build(picture, y + 160)
    _box(picture, 906, y + 38, 170, 90, "pure Verilog", [
        "the same model without", "shims: the reference", "in tests"])
    for k, line in enumerate((
            "Both models are libraries", "called in process. Results", "and cycles are the same.")):
        picture.text(906, y + 172 + 17 * k, line, "small muted left")


def _kernels(picture: Picture, x: float, y: float) -> None:
    """Draw the kernels of each core, and the threads that run them."""
    with picture.group("sim"):
        picture.rect(x, y, 190, 90, radius=6)
        picture.text(x + 95, y + 20, "tile kernels", "head")
        width = 174 / _CONFIG.cores
        for core in range(_CONFIG.cores):
            picture.rect(x + 10 + width * core, y + 30, width - 4, 24, "plain")
            picture.text(x + 8 + width * (core + 0.5), y + 46, f"of core {core}", "tiny")
        picture.text(x + 95, y + 68, "a pool with a thread for each", "tiny")
        picture.text(x + 95, y + 82, "core; idle tiles are skipped", "tiny")


def _build(picture: Picture, y: float) -> None:
    """Draw the steps of the build, from the RTL to the model and its kernels."""
    _box(picture, 44, y, 160, 58, "Verilog", ["of hdl/, one module", "per distinct block"])
    picture.wire([(204, y + 16), (330, y + 16), (330, y - 32)], arrow=True)
    picture.text(212, y + 10, "top", "tiny muted left")
    picture.wire([(204, y + 42), (380, y + 42)], arrow=True)
    picture.text(212, y + 36, "tiles", "tiny muted left")
    _box(picture, 380, y, 170, 58, "netlist of one tile", ["Yosys, from its Verilog"])
    picture.wire([(550, y + 29), (580, y + 29)], arrow=True)
    _box(picture, 580, y, 170, 58, "kernel compiler", ["one SIMD lane per tile"])
    picture.wire([(750, y + 29), (800, y + 29), (800, y - 32)], arrow=True)
    picture.text(758, y + 23, "C++", "tiny muted left")


def main() -> None:
    """Write the picture to `PATH`."""
    PATH.write_text(draw(), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
