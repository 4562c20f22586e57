"""The frames of the wavefront picture: the state of a 3 x 3 matrix unit in each cycle, from RTL.

The unit computes Y = W X, the usual example of a systolic array. The RTL runs in Amaranth's
simulator.
"""

import io
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amaranth.sim import Simulator, SimulatorContext

from hdl.config import Config
from hdl.mxu.mxu import Mxu

__all__ = ["CONFIG", "CYCLES", "NEXT_WEIGHTS", "WEIGHTS", "Cell", "Frame", "Lane", "Matrix", "X",
           "columns", "record"]

CONFIG = Config(array=3, sublanes=1, cores=1, vmem_bytes=12, mac_latency=1)
"""Configuration of the picture's array: values move one cell a cycle in both directions."""

Matrix = tuple[tuple[int, ...], ...]
"""A matrix, row by row."""

# The picture finds the name of a value by searching its matrix, so the values of a matrix differ.
WEIGHTS: Matrix = ((2, 7, 1), (5, 8, 3), (9, 4, 6))
NEXT_WEIGHTS: Matrix = ((12, 17, 11), (15, 18, 13), (19, 14, 16))
X: Matrix = ((1, 4, 7), (2, 5, 8), (3, 6, 9))

CYCLES = 16
"""Number of frames of the picture; in the final one, the last row of results leaves."""


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
        Activations for the lane's array row, weights for its column, results of its column.
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
        The cells, row by row.
    lanes : tuple of Lane
        The lanes, lane 0 first.
    results : tuple of (float or None)
        Output of each column at the bottom of the array (the grid's output ``p``); None in a column
        whose ``p_valid`` is 0.
    w_row, x_row, y_row : tuple of float, or None
        Rows that the streams of weights, activations and results transfer at the end of the cycle.
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


def columns(matrix: Matrix) -> list[tuple[int, ...]]:
    """The columns of ``matrix``, from left to right."""
    return list(zip(*matrix, strict=True))


def _waveforms(config: Config, loads: Sequence[Matrix], batch: Matrix, cycles: int) -> str:
    """Simulate a matrix unit for ``cycles`` cycles; return its value change dump (VCD).

    The unit loads all matrices of ``loads``, and multiplies ``batch`` by the first of them. Rows
    are offered as early as possible; results are always accepted.
    """
    unit = Mxu(config)
    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    # Column i of the array holds row i of a matrix, so that an activation row x gives W x.
    weight_rows = [row for matrix in loads for row in columns(matrix)]
    activation_rows = columns(batch)

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
    """Values of all signals by hierarchical name, just before each rising edge of the clock."""
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
    """Run the example on the RTL: load `WEIGHTS`, multiply `X`, and meanwhile load `NEXT_WEIGHTS`.

    Parameters
    ----------
    config : Config
        Parameters, with an array of 3 x 3.
    cycles : int
        Number of simulated cycles.

    Returns
    -------
    list of Frame
        The state during each cycle.

    Raises
    ------
    ValueError
        If the size of the array is not 3 x 3.
    """
    if config.array != len(X):
        raise ValueError(f"config must have an array of {len(X)}, not {config.array!r}")
    return [_frame(config, at)
            for at in _samples(_waveforms(config, (WEIGHTS, NEXT_WEIGHTS), X, cycles))]
