"""The 3 x 3 example on the RTL: the place of each value in each cycle, and the picture."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from amaranth.sim import SimulatorContext

from golden.mxu import tile_matmul
from hdl.config import Config
from hdl.mxu.mxu import Mxu
from tools.pictures.frames import CONFIG, NEXT_WEIGHTS, WEIGHTS, Cell, Frame, X, record
from tools.pictures.wavefront import PATH, draw
from verif.hdl.simulation.simulator import fast_simulator

W = np.array(WEIGHTS, np.float32)
V = np.array(NEXT_WEIGHTS, np.float32)
Y = W @ np.array(X, np.float32)
SIZE = 3

# The cycles in which rows start to enter: three rows of weights; then activations, the first with
# the swap; one cycle later the next weights.
W_ENTERS, X_ENTERS, V_ENTERS = 0, 3, 4
# From there to the first cell.
W_DELAY, X_DELAY = 2, 3

TIMES = "\N{MULTIPLICATION SIGN}"
DIAGONALS = ["Y11", "Y21 Y12", "Y31 Y22 Y13", "Y32 Y23", "Y33"]


def named(diagonal: str) -> list[np.float32]:
    return [Y[int(name[1]) - 1, int(name[2]) - 1] for name in diagonal.split()]


@pytest.fixture(scope="module")
def frames() -> list[Frame]:
    return record()


@pytest.fixture(scope="module")
def picture(frames: Sequence[Frame]) -> dict[int, Element]:
    root = ElementTree.fromstring(draw(frames))
    return {int(group.get("id", "").removeprefix("cycle-")): group
            for group in root if "cycle-" in group.get("id", "")}


def test_the_example_is_the_matrix_product_of_the_golden_model() -> None:
    golden = tile_matmul(np.array(X, np.float32).T, W.T).T
    assert np.array_equal(golden, Y)
    assert Y.tolist() == [[19, 49, 79], [30, 78, 126], [35, 92, 149]]


@pytest.mark.parametrize("latency", [1, 2, 3, 4, 5, 6])
def test_results_leave_the_array_on_anti_diagonals(latency: int) -> None:
    config = replace(CONFIG, mac_latency=latency)
    first = X_ENTERS + X_DELAY + config.row_skew * (SIZE - 1) + latency
    frames = record(config, first + 8)
    # From the last column of a diagonal to the first: the order in which DIAGONALS names them.
    left = {cycle: [value for value in reversed(frame.results) if value is not None]
            for cycle, frame in enumerate(frames)}
    assert {cycle: values for cycle, values in left.items() if values} == {
        first + k: named(diagonal) for k, diagonal in enumerate(DIAGONALS)}
    # And each in its column.
    for c in range(SIZE):
        column = {cycle: frame.results[c] for cycle, frame in enumerate(frames)
                  if frame.results[c] is not None}
        assert column == {first + c + b: Y[c, b] for b in range(SIZE)}


def test_first_result_leaves_the_pictured_array_in_cycle_9(frames: Sequence[Frame]) -> None:
    assert [cycle for cycle, frame in enumerate(frames) if any(frame.results)] == [
        9, 10, 11, 12, 13]


def test_cells_hold_what_the_schedule_says(frames: Sequence[Frame]) -> None:
    x_arrives = X_ENTERS + X_DELAY
    seen = 0
    for cycle, frame in enumerate(frames):
        for r in range(SIZE):
            for c in range(SIZE):
                b = cycle - x_arrives - r - c
                swap = x_arrives - 1 + r + c
                valid = 0 <= b < SIZE
                arriving = shadow = None
                for enters, matrix in ((W_ENTERS, W), (V_ENTERS, V)):
                    k = cycle - enters - W_DELAY - r - c
                    if r <= k < SIZE:
                        arriving = matrix[c, k]
                    if k > r and (matrix is V or cycle <= swap):
                        shadow = matrix[c, r]
                cell = frame.cells[r][c]
                assert cell == Cell(
                    x=X[r][b] if valid else None, swap=cycle == swap, arriving=arriving,
                    shadow=shadow, active=W[c, r] if cycle > swap else 0, p=cell.p,
                    sum=W[c, :r + 1] @ np.array(X)[:r + 1, b - 1] if 1 <= b <= SIZE else None,
                ), (cycle, r, c)
                if valid:
                    assert cell.p == W[c, :r] @ np.array(X)[:r, b]
                    seen += 1
    assert seen == SIZE ** 3


def test_lanes_queue_what_the_schedule_says(frames: Sequence[Frame]) -> None:
    for cycle, frame in enumerate(frames):
        for i, lane in enumerate(frame.lanes):
            enters = [X_ENTERS + b for b in range(SIZE)]
            assert lane.x == tuple(
                X[i][b] for b, t in enumerate(enters) if t < cycle <= t + X_DELAY - 1 + i)
            loads = [(first + k, matrix[i, k]) for first, matrix in ((W_ENTERS, W), (V_ENTERS, V))
                     for k in range(SIZE)]
            assert lane.w == tuple(
                value for t, value in loads if t < cycle <= t + W_DELAY - 1 + i)
            # A row is fetched the cycle before the output stream shows it.
            assert lane.y == tuple(
                Y[i, b] for b, t in enumerate(enters)
                if 9 + i + b < cycle <= t + CONFIG.array_latency - 1)


def test_streams_transfer_in_the_recorded_cycles(frames: Sequence[Frame]) -> None:
    unit = Mxu(CONFIG)
    simulator = fast_simulator(unit)
    simulator.add_clock(1e-6)
    rows = [(W[:, k], False) for k in range(SIZE)] + [(V[:, k], False) for k in range(SIZE)]
    batch = [(np.array(X, np.float32)[:, b], b == 0) for b in range(SIZE)]
    transferred: dict[str, dict[int, tuple[float, ...]]] = {"w": {}, "x": {}, "y": {}}

    async def streams(ctx: SimulatorContext) -> None:
        ctx.set(unit.y.ready, 1)
        for cycle in range(len(frames)):
            for name, stream, queue, flag in (("w", unit.w, rows, "transpose"),
                                              ("x", unit.x, batch, "swap")):
                ctx.set(stream.valid, bool(queue))
                if queue:
                    row, mark = queue[0]
                    data = int.from_bytes(row.tobytes(), "little")
                    ctx.set(stream.payload, {"data": data, flag: mark})
                    if ctx.get(stream.ready):
                        transferred[name][cycle] = tuple(row)
                        del queue[0]
            if ctx.get(unit.y.valid):
                words = ctx.get(unit.y.payload).to_bytes(4 * SIZE, "little")
                transferred["y"][cycle] = tuple(np.frombuffer(words, np.float32))
            await ctx.tick()

    simulator.add_testbench(streams)
    simulator.run()
    for name, expected in transferred.items():
        assert {cycle: getattr(frame, f"{name}_row") for cycle, frame in enumerate(frames)
                if getattr(frame, f"{name}_row") is not None} == expected
    assert transferred["y"] == {X_ENTERS + b + CONFIG.array_latency: tuple(Y[:, b])
                                for b in range(SIZE)}


@pytest.mark.parametrize("latency", [1, 2, 3, 4, 6])
def test_loads_chase_the_swap_through_the_array(latency: int) -> None:
    size = 4
    config = Config(array=size, sublanes=1, vmem_bytes=4 * size, mac_latency=latency)
    unit = Mxu(config)
    simulator = fast_simulator(unit)
    simulator.add_clock(1e-6)
    swaps: list[int] = []

    async def tiles_of_one_row(ctx: SimulatorContext) -> None:
        for signal in (unit.y.ready, unit.w.valid, unit.x.valid, unit.x.payload.swap):
            ctx.set(signal, 1)
        ctx.set(unit.w.payload.transpose, transpose)
        for cycle in range(100):
            if ctx.get(unit.x.ready):
                swaps.append(cycle)
            await ctx.tick()

    simulator.add_testbench(tiles_of_one_row)
    for transpose in (False, True):
        if transpose:
            simulator.reset()
        swaps.clear()
        simulator.run()
        # A straight load must not overtake a swap that takes row_skew cycles from row to row.
        period = size + 1 if transpose else max(1, config.row_skew - 1) * (size - 1) + 2
        assert len(swaps) > 5, f"transpose {transpose}"
        assert {later - earlier for earlier, later in pairwise(swaps)} == {period}, (
            f"transpose {transpose}")


def shown(group: Element) -> list[str]:
    """Numbers and names in the texts below an SVG element."""
    return [" ".join(part for part in text.itertext() if part)
            for text in group.iter("{http://www.w3.org/2000/svg}text")]


def find(picture: Mapping[int, Element], cycle: int, kind: str, r: int, c: int) -> Element:
    return next(group for group in picture[cycle] if group.get(f"data-{kind}") == f"{r},{c}")


def test_picture_shows_the_recorded_cells(frames: Sequence[Frame],
                                          picture: Mapping[int, Element]) -> None:
    assert sorted(picture) == list(range(len(frames)))
    for (cycle, frame), (_, following) in pairwise(enumerate(frames)):
        for r in range(SIZE):
            for c in range(SIZE):
                cell = frame.cells[r][c]
                inside = [f"{TIMES}+"]
                if cell.shadow is not None:
                    letter, matrix = ("w", W) if cell.shadow in W else ("v", V)
                    k = matrix[c].tolist().index(cell.shadow)
                    inside.append(f"{letter} {c + 1}{k + 1} {cell.shadow:g}")
                if cell.active:
                    inside.append(f"w {c + 1}{r + 1} {cell.active:g}")
                if cell.x is not None:
                    inside.append(f"{cell.p:g} + {cell.x:g}{TIMES}{cell.active:g} = "
                                  f" {following.cells[r][c].sum:g}")
                assert shown(find(picture, cycle, "cell", r, c)) == inside

                edges = []
                if cell.arriving is not None:
                    letter, matrix = ("w", W) if cell.arriving in W else ("v", V)
                    k = matrix[c].tolist().index(cell.arriving)
                    edges.append(f"{letter} {c + 1}{k + 1} {cell.arriving:g}")
                if r and frame.cells[r - 1][c].sum is not None:
                    edges.append(f"{cell.p:g}")
                if cell.x is not None:
                    edges.append(f"x {r + 1}{X[r].index(cell.x) + 1} {cell.x:g}")
                if cell.swap:
                    edges.append("swap")
                assert shown(find(picture, cycle, "edge", r, c)) == edges


def test_committed_picture_is_what_the_rtl_gives(frames: Sequence[Frame]) -> None:
    assert PATH.read_text(encoding="utf-8") == draw(frames), "run `make pictures`"


def test_only_arrays_of_the_pictures_size_are_recorded() -> None:
    with pytest.raises(ValueError, match=r"config must have an array of 3, not 4"):
        record(Config.preset("tiny"))
