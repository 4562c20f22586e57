"""The array's cell in Verilog against the golden arithmetic, cycle by cycle, at every depth."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.numerics import bf16_product, bits, from_bits, mac
from golden.stimulus import mac_operands
from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.cell import MacCell
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.model import Model

SEED = 20240817
DEPTHS = (1, 2, 3, 4, 5, 6)
OUTPUTS = ("x_east", "x_valid_east", "swap_east", "w_next", "w_south_valid", "w_east_valid",
           "p_south", "p_valid")
IDLE = {"rst": np.uint8, "x": np.uint16, "x_valid": np.uint8, "swap": np.uint8,
        "w_north": np.uint16, "w_north_valid": np.uint8, "w_west": np.uint16,
        "w_west_valid": np.uint8, "p": np.uint32}

F32_CORNERS = np.array([sign | magnitude for sign in (0, 0x80000000) for magnitude in (
    0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x0B800000,
    0x33800000, 0x337FFFFF, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3F810200, 0x3FFFFFFF,
    0x4B000000, 0x4B7FFFFF, 0x4C000000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF,
    0x7FC00000, 0x7FFFFFFF)], np.uint32)
BF16_CORNERS = np.array([sign | magnitude for sign in (0, 0x8000) for magnitude in (
    0x0000, 0x0001, 0x007F, 0x0080, 0x0081, 0x00FF, 0x1FFF, 0x2000, 0x3380, 0x3F7F, 0x3F80, 0x3F81,
    0x3FFF, 0x5EFF, 0x5F80, 0x5FFF, 0x7F00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF)], np.uint16)


@cache
def library(depth: int) -> pathlib.Path:
    cell = MacCell(Config.preset("tiny", mac_latency=depth))
    assert cell.latency == depth
    return build_model("mac_cell", VerilogLibrary().write("mac_cell", lambda: cell),
                       waivers=LINT_WAIVERS, optimise=None)


@pytest.fixture(params=DEPTHS)
def depth(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def cell(depth: int) -> Iterator[Model]:
    with Model(library(depth)) as model:
        model.reset()
        yield model


def row_skew(depth: int) -> int:
    return Config.preset("tiny", mac_latency=depth).row_skew


def stimulus(cycles: int, **driven: np.ndarray) -> dict[str, np.ndarray]:
    """Values of all inputs for some cycles; inputs that are not given stay idle."""
    return {name: np.ascontiguousarray(driven.pop(name, np.zeros(cycles)), dtype)
            for name, dtype in IDLE.items()} | driven


def run(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, NDArray[np.uint32]]:
    return {name: words[:, 0] for name, words in model.run(inputs, OUTPUTS).items()}


def assert_rows(name: str, got: NDArray[np.uint32], expected: np.ndarray, where: NDArray[np.bool_],
                **context: np.ndarray) -> None:
    """Checks equality in cycles in which ``where`` is set; shows the first differences."""
    rows = np.flatnonzero(where)
    assert rows.size > 0, f"nothing of {name} was checked"
    wrong = rows[got[rows] != expected[rows]]
    shown = "\n".join(
        f"  cycle {row}: {name} {got[row]:#x}, not {expected[row]:#x}; "
        + ", ".join(f"{key} {value[row]:#x}" for key, value in context.items())
        for row in wrong[:8])
    assert not wrong.size, f"{wrong.size} of {rows.size} differ, seed {SEED}\n{shown}"


def sums(model: Model, depth: int, acc: NDArray[np.uint32], x: NDArray[np.uint16],
         w: NDArray[np.uint16], valid: NDArray[np.bool_] | None = None) -> NDArray[np.uint32]:
    """Every ``acc + x * w`` with a new weight in each cycle, compared with golden."""
    count, lead, latency = len(x), 2, depth
    cycles = lead + count + latency
    valid = np.ones(count, bool) if valid is None else valid

    def at(cycle: int, values: np.ndarray) -> np.ndarray:
        row = np.zeros(cycles, values.dtype)
        row[cycle:cycle + count] = values
        return row

    # Each weight arrives with the swap of the one before, so the cell never counts as filled.
    outputs = run(model, stimulus(
        cycles, w_north=at(0, w), w_north_valid=np.ones(cycles), swap=np.ones(cycles),
        x=at(lead, x), x_valid=at(lead, valid), p=at(lead + latency - row_skew(depth), acc)))
    out = slice(lead + latency - 1, lead + latency - 1 + count)
    expected = bits(mac(from_bits(acc), from_bits(x), from_bits(w)))
    assert np.array_equal(outputs["p_valid"][out], valid)
    assert_rows("p_south", outputs["p_south"][out], expected, valid, acc=acc, x=x, w=w)
    return outputs["p_south"][out]


def test_corners_of_all_operands(cell: Model, depth: int) -> None:
    acc, x, w = (np.array(column) for column in zip(
        *product(F32_CORNERS, BF16_CORNERS, BF16_CORNERS), strict=True))
    sums(cell, depth, acc, x, w)


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_random_sums(cell: Model, depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    acc, x, w = mac_operands(rng, 60_000)
    sums(cell, depth, acc, x, w, rng.random(len(x)) < 0.8)


@pytest.mark.slow
def test_a_million_random_sums() -> None:
    with Model(library(2)) as model:
        model.reset()
        sums(model, 2, *mac_operands(np.random.default_rng(SEED), 1_000_000))


@pytest.mark.slow
def test_a_million_random_products_added_to_minus_zero() -> None:
    x, w = np.random.default_rng(SEED).integers(0, 1 << 16, (2, 1_000_000), np.uint16)
    with Model(library(2)) as model:
        model.reset()
        got = sums(model, 2, np.full(len(x), 0x80000000, np.uint32), x, w)
    assert np.array_equal(got, bits(bf16_product(from_bits(x), from_bits(w))))


class Weights:
    """A model of the cell's weights, which is stepped cycle by cycle."""

    def __init__(self) -> None:
        self.active = self.shadow = self.next = 0
        self.filled = self.south = self.east = False

    def step(self, rst: int, swap: int, north: int, north_valid: int, west: int,
             west_valid: int) -> None:
        arriving = north if north_valid else west if west_valid else None
        self.south = bool(north_valid) and self.filled
        self.east = bool(west_valid) and self.filled
        if swap:
            self.active = self.shadow
        if arriving is not None:
            self.next = arriving
            if not self.filled:
                self.shadow, self.filled = arriving, True
        if swap:
            self.filled = False
        if rst:
            self.filled = self.south = self.east = False


def random_protocol(rng: np.random.Generator, cycles: int,
                    resets: Sequence[int] = ()) -> dict[str, np.ndarray]:
    """Random traffic of every kind, with random bubbles and long pauses."""
    _, x, w = mac_operands(rng, cycles)
    busy = np.repeat(rng.random(cycles // 50 + 1) < 0.8, 50)[:cycles]
    direction = rng.integers(0, 3, cycles)
    rst = np.zeros(cycles, bool)
    rst[list(resets)] = True
    return stimulus(
        cycles, rst=rst, x=x, x_valid=busy & (rng.random(cycles) < 0.7),
        swap=busy & (rng.random(cycles) < 0.2), w_north=w, w_west=np.roll(w, 1),
        w_north_valid=busy & (direction == 1), w_west_valid=busy & (direction == 2),
        p=mac_operands(rng, cycles)[0])


def assert_protocol(model: Model, depth: int, inputs: Mapping[str, np.ndarray]) -> None:
    """Checks every output in every cycle against `Weights` and the golden arithmetic."""
    outputs = run(model, inputs)
    cycles = len(inputs["x"])
    rst = inputs["rst"].astype(bool)
    weights = Weights()
    names = ("rst", "swap", "w_north", "w_north_valid", "w_west", "w_west_valid")
    active = np.zeros(cycles, np.uint16)
    expected = {name: np.zeros(cycles, np.uint32) for name in OUTPUTS}
    for cycle, row in enumerate(zip(*(inputs[name].tolist() for name in names), strict=True)):
        active[cycle] = weights.active
        weights.step(*row)
        expected["w_next"][cycle] = weights.next
        expected["w_south_valid"][cycle] = weights.south
        expected["w_east_valid"][cycle] = weights.east
    expected["swap_east"][:] = inputs["swap"] & ~rst
    expected["x_valid_east"][:] = inputs["x_valid"] & ~rst

    # A result leaves unless a reset came while it was in the pipeline.
    latency, lag = depth, depth - row_skew(depth)
    into = np.flatnonzero(inputs["x_valid"])
    into = into[into + latency <= cycles]
    into = into[[not rst[cycle:cycle + latency].any() for cycle in into]]
    result = bits(mac(from_bits(inputs["p"][into + lag]), from_bits(inputs["x"][into]),
                      from_bits(active[into])))
    expected["p_valid"][into + latency - 1] = 1
    expected["p_south"][into + latency - 1] = result

    always = np.ones(cycles, bool)
    for name in ("x_valid_east", "swap_east", "w_south_valid", "w_east_valid", "p_valid"):
        assert_rows(name, outputs[name], expected[name], always)
    assert_rows("p_south", outputs["p_south"], expected["p_south"], expected["p_valid"] == 1)
    arrived = inputs["w_north_valid"] | inputs["w_west_valid"]
    assert_rows("w_next", outputs["w_next"], expected["w_next"], arrived == 1)
    assert_rows("x_east", outputs["x_east"], inputs["x"], inputs["x_valid"] == 1)
    for name, updated in (("p_south", expected["p_valid"]), ("w_next", arrived),
                          ("x_east", inputs["x_valid"])):
        held = np.flatnonzero((updated == 0) & ~rst)
        held = held[held > 0]
        assert held.size > 0
        assert np.array_equal(outputs[name][held], outputs[name][held - 1]), name


def with_first_weight(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Changes the first two cycles of inputs: they load and swap a weight, which is undefined."""
    inputs["w_north_valid"][:2] = 1, 0
    inputs["w_west_valid"][:2] = 0
    inputs["swap"][:2] = 0, 1
    inputs["x_valid"][:2] = 0
    return inputs


def test_random_traffic_with_bubbles(cell: Model, depth: int) -> None:
    rng = np.random.default_rng(SEED)
    assert_protocol(cell, depth, with_first_weight(random_protocol(rng, 20_000)))


def test_reset_in_the_middle(cell: Model, depth: int) -> None:
    rng = np.random.default_rng(SEED)
    resets = [300, 301, 320, 321, 322, 400, 700, 702, 704, *range(900, 910)]
    resets += rng.integers(1000, 3000, 200).tolist()
    assert_protocol(cell, depth, with_first_weight(random_protocol(rng, 3_000, resets)))


def test_holds_while_idle_inputs_change(cell: Model, depth: int) -> None:
    rng = np.random.default_rng(SEED)
    assert_protocol(cell, depth, with_first_weight(random_protocol(rng, 200)))
    noise = random_protocol(rng, 500)
    for name in ("x_valid", "swap", "w_north_valid", "w_west_valid"):
        noise[name][:] = 0
    # The pipeline empties first.
    outputs = {name: words[depth:] for name, words in run(cell, noise).items()}
    for name in ("x_east", "w_next", "p_south"):
        assert np.all(outputs[name] == outputs[name][0]), name
    for name in ("x_valid_east", "swap_east", "w_south_valid", "w_east_valid", "p_valid"):
        assert not outputs[name].any(), name


@pytest.mark.parametrize("side", ["north", "west"])
def test_keeps_the_first_weight_and_passes_on_the_rest(cell: Model, depth: int, side: str) -> None:
    """Three weights arrive before a swap: the cell keeps one, and two leave on the other side."""
    valid, passed, other = {
        "north": ("w_north_valid", "w_south_valid", "w_east_valid"),
        "west": ("w_west_valid", "w_east_valid", "w_south_valid")}[side]
    one, two, three, four = 0x3F80, 0x4000, 0x4040, 0x4080
    weights = np.array([one, two, 0, three, 0, four, 0, 0], np.uint16)
    inputs = stimulus(8 + depth, **{
        f"w_{side}": np.pad(weights, (0, depth)), valid: np.pad(weights != 0, (0, depth)),
        "swap": np.pad([0, 0, 0, 0, 1, 0, 1, 0], (0, depth)),
        "x": np.full(8 + depth, 0x3F80, np.uint16),
        "x_valid": np.pad([0, 0, 0, 0, 0, 1, 0, 1], (0, depth))})
    outputs = run(cell, inputs)
    assert outputs[passed][:8].tolist() == [0, 1, 0, 1, 0, 0, 0, 0]
    assert outputs["w_next"][[1, 3]].tolist() == [two, three]
    assert not outputs[other].any()
    results = outputs["p_south"][np.flatnonzero(outputs["p_valid"])]
    assert results.tolist() == [one << 16, four << 16]
