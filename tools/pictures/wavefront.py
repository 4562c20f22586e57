"""Draws how the array multiplies: docs/wavefront.svg, with every value read from the RTL.

A matrix unit of 3 x 3 cells computes Y = W X, the usual example of a systolic array. Its RTL runs
in Amaranth's simulator; the state of each cycle becomes a frame of an animated picture.
"""

import io
import pathlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amaranth.sim import Simulator, SimulatorContext

from hdl.config import Config
from hdl.mxu.mxu import Mxu
from tools.pictures.svg import Picture, label

__all__ = ["CONFIG", "CYCLES", "NEXT_WEIGHTS", "PATH", "WEIGHTS", "Cell", "Frame", "Lane", "X",
           "draw", "record"]

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "wavefront.svg"
"""Path of the picture."""

CONFIG = Config(array=3, sublanes=1, cores=1, vmem_bytes=12, mac_latency=1)
"""The picture's array: one cycle from cell to cell in both directions."""

Matrix = tuple[tuple[int, ...], ...]

# The picture finds the name of a value by searching its matrix, so the values of a matrix differ.
WEIGHTS: Matrix = ((2, 7, 1), (5, 8, 3), (9, 4, 6))
NEXT_WEIGHTS: Matrix = ((12, 17, 11), (15, 18, 13), (19, 14, 16))
X: Matrix = ((1, 4, 7), (2, 5, 8), (3, 6, 9))

CYCLES = 16
"""Frames of the picture: until the last row of results has been taken."""


@dataclass(frozen=True)
class Cell:
    """A cell during a cycle: its inputs and its registers.

    Attributes
    ----------
    x : float or None
        Activation from the west, if valid.
    swap : bool
        The swap bit from the west.
    arriving : float or None
        Next weight from the north, if valid.
    shadow : float or None
        The next weight that the cell holds, if any.
    active : float
        The weight that the cell multiplies by; 0 before its first swap.
    p : float
        Partial sum from the north.
    sum : float or None
        Partial sum leaving to the south, if valid.
    """

    x: float | None
    swap: bool
    arriving: float | None
    shadow: float | None
    active: float
    p: float
    sum: float | None


@dataclass(frozen=True)
class Lane:
    """A lane during a cycle: the contents of its FIFOs, oldest first.

    Attributes
    ----------
    x, w, y : tuple of float
        Activations for its row, weights for its column, results of its column.
    """

    x: tuple[float, ...]
    w: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Frame:
    """The matrix unit during a cycle.

    Attributes
    ----------
    cells : tuple of tuple of Cell
        Row by row.
    lanes : tuple of Lane
    results : tuple of (float or None)
        Output of each column at the bottom of the array (the grid's ``p``), if ``p_valid`` is set.
    w_row, x_row, y_row : tuple of float, or None
        Rows that the streams transfer at the end of the cycle.
    """

    cells: tuple[tuple[Cell, ...], ...]
    lanes: tuple[Lane, ...]
    results: tuple[float | None, ...]
    w_row: tuple[float, ...] | None
    x_row: tuple[float, ...] | None
    y_row: tuple[float, ...] | None


def _float(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def _bf16(bits: int) -> float:
    return _float(bits << 16)


def _pack(row: Sequence[int]) -> int:
    return int.from_bytes(struct.pack(f"<{len(row)}f", *row), "little")


def _columns(matrix: Matrix) -> list[tuple[int, ...]]:
    return list(zip(*matrix, strict=True))


def _waveforms(config: Config, loads: Sequence[Matrix], batch: Matrix, cycles: int) -> str:
    """The value change dump of a matrix unit that loads matrices and multiplies by the first.

    Rows are offered as early as possible; results are always accepted.
    """
    unit = Mxu(config)
    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    # Column i of the array holds row i of a matrix, so that an activation row x gives W x.
    weight_rows = [row for matrix in loads for row in _columns(matrix)]
    activation_rows = _columns(batch)

    async def drive(ctx: SimulatorContext) -> None:
        weights = activations = 0
        ctx.set(unit.y.ready, 1)
        for _ in range(cycles):
            w_valid = weights < len(weight_rows)
            x_valid = activations < len(activation_rows)
            ctx.set(unit.w.valid, w_valid)
            ctx.set(unit.x.valid, x_valid)
            if w_valid:
                ctx.set(unit.w.payload, {"data": _pack(weight_rows[weights]), "transpose": 0})
            if x_valid:
                ctx.set(unit.x.payload, {"data": _pack(activation_rows[activations]),
                                         "swap": activations == 0})
            weights += w_valid and ctx.get(unit.w.ready)
            activations += x_valid and ctx.get(unit.x.ready)
            await ctx.tick()

    simulator.add_testbench(drive)
    dump = io.StringIO()
    with simulator.write_vcd(dump):
        simulator.run()
    return dump.getvalue()


def _samples(dump: str) -> list[dict[str, int]]:
    """Values of all signals, by hierarchical name, just before each rising edge of the clock."""
    header, _, changes = dump.partition("$enddefinitions $end")
    names: dict[str, list[str]] = {}
    scope: list[str] = []
    for line in header.splitlines():
        match line.split():
            case ["$scope", _, name, "$end"]:
                scope.append(name)
            case ["$upscope", "$end"]:
                scope.pop()
            case ["$var", "wire", _, code, name, "$end"]:
                names.setdefault(code, []).append(".".join([*scope[2:], name.lstrip("\\")]))

    values: dict[str, int] = {}
    samples: list[dict[str, int]] = []
    for moment in changes.split("\n#"):
        before = dict(values)
        for change in moment.splitlines()[1:]:  # after the time
            if change.startswith("b"):
                bits, code = change[1:].split()
            else:
                bits, code = change[:1], change[1:]
            if bits.isdecimal():
                values |= dict.fromkeys(names.get(code, ()), int(bits, 2))
        if before.get("clk") == 0 and values["clk"] == 1:
            samples.append(before)
    return samples


def _row(payload: int, size: int) -> tuple[float, ...]:
    return struct.unpack(f"<{size}f", (payload & ((1 << 32 * size) - 1)).to_bytes(4 * size,
                                                                                 "little"))


def _frame(config: Config, at: Mapping[str, int]) -> Frame:
    size = config.array

    def cell(r: int, c: int) -> Cell:
        tile = f"grid.row_{r}.tile_{c}"

        def port(name: str) -> int:
            return at[f"{tile}.tile_{c}__{name}"]

        return Cell(
            x=_bf16(port("x")) if port("x_valid") else None,
            swap=bool(port("swap")),
            arriving=_bf16(port("w_north")) if port("w_north_valid") else None,
            shadow=_bf16(at[f"{tile}.shadow"]) if at[f"{tile}.filled"] else None,
            active=_bf16(at[f"{tile}.active"]),
            p=_float(port("p")),
            sum=_float(port("p_south")) if port("p_valid") else None)

    def queue(memory: str, depth: int, first: int, end: int) -> list[int]:
        return [at[f"{memory}.words[{(first + k) % depth}]"] for k in range((end - first) % depth)]

    def lane(i: int) -> Lane:
        tile = f"lanes.tile_{i}"
        operands, results = config.operand_depth, config.result_depth
        return Lane(
            x=tuple(map(_bf16, queue(f"{tile}.x_buffer", operands, at[f"{tile}.x_head"],
                                     at["x_address"]))),
            w=tuple(map(_bf16, queue(f"{tile}.w_buffer", operands, at[f"{tile}.w_head"],
                                     at["w_address"]))),
            y=tuple(map(_float, queue(f"{tile}.y_buffer", results, at["y_address"],
                                      at[f"{tile}.y_tail"]))))

    def transferred(stream: str) -> tuple[float, ...] | None:
        moves = at[f"{stream}__valid"] and at[f"{stream}__ready"]
        return _row(at[f"{stream}__payload"], size) if moves else None

    bottom = _row(at["grid.grid__p"], size)
    return Frame(
        cells=tuple(tuple(cell(r, c) for c in range(size)) for r in range(size)),
        lanes=tuple(lane(i) for i in range(size)),
        results=tuple(bottom[c] if at["grid.grid__p_valid"] >> c & 1 else None
                      for c in range(size)),
        w_row=transferred("w"), x_row=transferred("x"), y_row=transferred("y"))


def record(config: Config = CONFIG, cycles: int = CYCLES) -> list[Frame]:
    """Runs the example on the RTL: loads `WEIGHTS`, multiplies `X`, meanwhile loads `NEXT_WEIGHTS`.

    Parameters
    ----------
    config : Config
        Parameters, with an array of 3 x 3.
    cycles : int
        Length of the run.

    Returns
    -------
    list of Frame
        The state during each cycle.

    Raises
    ------
    ValueError
        If the array has another size.
    """
    if config.array != len(X):
        raise ValueError(f"config must have an array of {len(X)}, not {config.array!r}")
    return [_frame(config, at)
            for at in _samples(_waveforms(config, (WEIGHTS, NEXT_WEIGHTS), X, cycles))]


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
                         for column in _columns(X)) for row in WEIGHTS)


def _named(value: float, **matrices: Matrix) -> str:
    """The letter and the indices of a value."""
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
    """Rules that show one frame after the other, and let moving values glide to their place."""
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
    """The animated picture, as SVG, of the frames that `record` returns for `CONFIG`."""
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
    """The parts of the picture that do not change."""
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

    y = 420
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
    """The time strip: when each row enters and each result leaves."""
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
    """The parts of the picture that change, as they are in one cycle."""
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
    """The contents of the lanes' FIFOs."""
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
    """The elements of Y that have left the array so far."""
    for frame in frames:
        for c, value in enumerate(frame.results):
            if value is not None:
                j = _Y[c].index(int(value))
                x, y = _PANEL_X + 76 + 53 * j, 336 + 25 * c
                with picture.group("sum"):
                    picture.rect(x - 21, y - 16, 42, 22, radius=11)
                    picture.text(x, y, label("", value))


def _draw_cell(picture: Picture, cell: Cell, later: float | None) -> None:
    """The inside of a cell; ``later`` is the partial sum that it computes from its inputs."""
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
    """The values that arrive at a cell."""
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
    """Writes the picture."""
    PATH.write_text(draw(record()), encoding="utf-8")
    print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
