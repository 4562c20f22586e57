"""The transcendental unit: its table, the golden model against float64, and the RTL against it."""

import hashlib
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from amaranth.sim import SimulatorContext
from numpy.typing import NDArray

import verif.accuracy.transcendental as error_sweep
from golden import transcendental
from golden.numerics import F32_INF, F32_NAN, bits, from_bits
from golden.transcendental import evaluate
from hdl.lint import LINT_WAIVERS
from hdl.tiles import Each, Shared, TileGrid
from hdl.vpu.tables import (
    C0_BITS,
    C1_BITS,
    C2_BITS,
    ENTRIES,
    Block,
    Function,
    coefficients,
    words,
)
from hdl.vpu.transcendental import Transcendental
from sim.models.kernels import with_kernels
from sim.verilated.build import build_model
from sim.verilated.model import Model
from verif.hdl.simulation.simulator import fast_simulator
from verif.sim.kernel.lockstep import packed

SEED = 20250917
DOCUMENT = Path(__file__).parents[3] / "docs" / "transcendentals.md"
LATENCY = Transcendental.latency
COLS = 64
GARBAGE = (5, 6, 7)
SIGN = 0x80000000
ONE = 0x3F800000
LIMITS = {Function.RECIPROCAL: 0.86, Function.RSQRT: 0.68, Function.EXP2: 0.82,
          Function.LOG2: 0.64, Function.TANH: 0.92}

CORNERS = np.array([sign | magnitude for sign in (0, SIGN) for magnitude in (
    0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x20000000,
    0x31FFFFFF, 0x32000000, 0x327FFFFF, 0x32800000, 0x33800000, 0x38FFFFFF, 0x39000000, 0x3E800000,
    0x3EFFFFFF, 0x3F000000, 0x3F000001, 0x3F3FFFFF, 0x3F400000, 0x3F7FFFFE, 0x3F7FFFFF, 0x3F800000,
    0x3F800001, 0x3F800002, 0x3FBFFFFF, 0x3FC00000, 0x3FC00001, 0x3FFFFFFF, 0x40000000, 0x40000001,
    0x407FFFFF, 0x40800000, 0x40FFFFFF, 0x41000000, 0x41102CB2, 0x41102CB3, 0x417FFFFF, 0x41800000,
    0x42F9FFFF, 0x42FA0000, 0x42FBFFFF, 0x42FC0000, 0x42FC0001, 0x42FDFFFF, 0x42FE0000, 0x42FFFFFF,
    0x43000000, 0x43160000, 0x437FFFFF, 0x43800000, 0x7E7FFFFF, 0x7E800000, 0x7E800001, 0x7EFFFFFF,
    0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF)], np.uint32)


def operands(rng: np.random.Generator, count: int) -> NDArray[np.uint32]:
    """Patterns: uniform, of moderate exponents, near integers, near the ends of segments."""
    uniform = rng.integers(0, 1 << 32, count, np.uint32)
    signs = rng.integers(0, 2, count, np.uint32) << np.uint32(31)
    moderate = rng.integers(0x31000000, 0x43900000, count, np.uint32) | signs
    nudges = rng.integers(-3, 4, count).astype(np.int32).view(np.uint32)
    whole = rng.integers(-160, 161, count).astype(np.float32).view(np.uint32) + nudges
    segment = (rng.integers(0x3000, 0x4400, count, np.uint32) << np.uint32(16)) + nudges | signs
    return np.select([rng.integers(0, 4, count) == index for index in range(3)],
                     [uniform, moderate, whole], segment)


# The table


def test_functions_and_blocks_have_three_bits() -> None:
    assert [function.value for function in Function] == [0, 1, 2, 3, 4]
    assert [block.value for block in Block] == list(range(8))


def test_table_is_the_same_on_every_machine() -> None:
    digest = hashlib.sha256(struct.pack(f"<{ENTRIES}Q", *words())).hexdigest()
    assert digest == \
        "eab9cb9b19b1b7dd3969efee6223c43bedb148e8f4f5b74470fea5c9e46d4458"


def test_coefficients_fit_their_fields() -> None:
    assert len(coefficients()) == len(words()) == ENTRIES
    for entry, word in zip(coefficients(), words(), strict=True):
        assert 0 <= entry.c0 < 1 << C0_BITS
        assert 0 <= entry.c1 < 1 << C1_BITS
        assert -(1 << (C2_BITS - 1)) <= entry.c2 < 1 << (C2_BITS - 1)
        assert word < 1 << 64
        c2 = word >> (C0_BITS + C1_BITS) & ((1 << C2_BITS) - 1)
        assert (word & ((1 << C0_BITS) - 1), word >> C0_BITS & ((1 << C1_BITS) - 1),
                c2 - (c2 >> (C2_BITS - 1) << C2_BITS), word >> 63) == (
                    entry.c0, entry.c1, entry.c2, entry.falling)


def approximated(block: Block, half: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """The function that a block of the table (or half a block) approximates on [0, 1)."""
    def log2_ratio(u: NDArray[np.float64]) -> NDArray[np.float64]:
        f = np.where(u < 0.5, u, (u - 1) / 2)
        return np.log1p(f) / (f * np.log(2))

    tanh_4 = (lambda u: np.tanh(4 + 4 * u), lambda u: np.tanh(8 + 8 * u))[half]
    return {Block.RECIPROCAL: lambda u: 1 / (1 + u), Block.LOG2: log2_ratio,
            Block.RSQRT_EVEN: lambda u: (1 + u) ** -0.5,
            Block.RSQRT_ODD: lambda u: (2 + 2 * u) ** -0.5,
            Block.FIXED: (lambda u: 2**u, lambda u: np.tanh(u) / u)[half],
            Block.TANH_1: lambda u: np.tanh(1 + u), Block.TANH_2: lambda u: np.tanh(2 + 2 * u),
            Block.TANH_4: tanh_4}[block]


@pytest.mark.parametrize("block", Block)
def test_table_approximates_its_functions(block: Block) -> None:
    halves = 2 if block in (Block.FIXED, Block.TANH_4) else 1
    segments = 128 // halves
    t = np.linspace(0, 1, 65)[1:]
    for index in range(128):
        half, segment = divmod(index, segments)
        entry = coefficients()[128 * block + index]
        sign = -1 if entry.falling else 1
        got = entry.c0 * 2.0**-27 + sign * t * (entry.c1 * 2.0**-27 + t * entry.c2 * 2.0**-25)
        exact = approximated(block, half)((segment + t * (1 - 1e-9)) / segments)
        assert np.all(np.abs(got - exact) < 0.5 * 2.0**-24), (block, index)


def test_a_position_never_turns_round_nor_leaves_the_range() -> None:
    """The sums in stage 1 have no sign, and its result is below 2 and above 1/4."""
    position = np.arange(0, 1 << 20, 61)
    for address in range(ENTRIES):
        value = transcendental._quadratic(np.full(position.shape, address), position)
        entry = coefficients()[address]
        change = entry.c1 * position + (entry.c2 * ((position >> 4)**2 >> 16) << 6)
        assert change.min() >= 0
        assert value.min() > 1 << 26
        assert value.max() < 1 << 29


def test_last_word_is_one() -> None:
    """For operands from 16 on, tanh is the table's last word, which must be 1."""
    last = coefficients()[-1]
    assert (last.c0, last.c1, last.c2) == (1 << 27, 0, 0)


# The golden model


NAN, INF = F32_NAN, F32_INF
SPECIALS = {
    Function.RECIPROCAL: {
        0: INF, SIGN: INF | SIGN, 0x007FFFFF: INF, 0x80000001: INF | SIGN, INF: 0,
        INF | SIGN: SIGN, 0x7F7FFFFF: 0, 0xFF7FFFFF: SIGN, 0x7E800000: 0x00800000,
        0x7E800001: 0, 0x00800000: 0x7E800000},
    Function.RSQRT: {
        0: INF, SIGN: INF, 0x007FFFFF: INF, 0x80000001: INF, INF: 0, INF | SIGN: NAN,
        0x80800000: NAN, ONE | SIGN: NAN, 0x00800000: 0x5F000000},
    Function.EXP2: {
        0: ONE, SIGN: ONE, 1: ONE, INF: INF, INF | SIGN: 0, 0x42FFFFFF: 0x7F7FFFA7,
        0x43000000: INF, 0xC2FC0000: 0x00800000, 0xC2FC0001: 0, 0x7F7FFFFF: INF, 0xFF7FFFFF: 0},
    Function.LOG2: {
        0: INF | SIGN, SIGN: INF | SIGN, 0x007FFFFF: INF | SIGN, 0x80000001: INF | SIGN, ONE: 0,
        INF: INF, INF | SIGN: NAN, 0x80800000: NAN, ONE | SIGN: NAN, 0x7F7FFFFF: 0x43000000,
        0x00800000: 0xC2FC0000},
    Function.TANH: {
        0: 0, SIGN: SIGN, 1: 0, 0x807FFFFF: SIGN, INF: ONE, INF | SIGN: ONE | SIGN,
        0x41800000: ONE, 0x7F7FFFFF: ONE, 0x00800000: 0x00800000, 0x80800000: 0x80800000},
}


@pytest.mark.parametrize("function", Function)
def test_special_values(function: Function) -> None:
    table = SPECIALS[function] | dict.fromkeys(
        (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF), NAN)
    got = bits(evaluate(function, from_bits(np.array(list(table), np.uint32))))
    assert [f"{y:08X}" for y in got] == [f"{y:08X}" for y in table.values()]


def test_exact_results_are_exact() -> None:
    powers = np.arange(-126, 128)
    two = np.ldexp(np.float32(1), powers).astype(np.float32)
    assert np.array_equal(transcendental.log2(two), powers.astype(np.float32))
    assert np.array_equal(transcendental.exp2(powers.astype(np.float32)), two)
    normal = two[:-1]
    assert np.array_equal(transcendental.reciprocal(normal), 1 / normal)
    assert np.array_equal(transcendental.reciprocal(-normal), -1 / normal)
    four = two[powers % 2 == 0]
    assert np.array_equal(transcendental.rsqrt(four), 1 / np.sqrt(four))


@pytest.mark.parametrize("function", [Function.RECIPROCAL, Function.TANH])
def test_odd_functions_are_odd(function: Function) -> None:
    x = operands(np.random.default_rng(SEED), 50_000)
    x = x[(x & 0x7FFFFFFF) <= F32_INF]
    assert np.array_equal(bits(evaluate(function, from_bits(x ^ SIGN))),
                          bits(evaluate(function, from_bits(x))) ^ SIGN)


def test_tanh_never_exceeds_one() -> None:
    x = np.arange(0x3F800000, 0x41900000, 37, dtype=np.uint32)
    assert bits(transcendental.tanh(from_bits(x))).max() == ONE


def in_domain(function: Function, rng: np.random.Generator, count: int) -> NDArray[np.uint32]:
    """Random operands within the function's sweep."""
    sweep = error_sweep.SWEEPS[function]
    x = rng.integers(sweep.first + 127 << 23, sweep.last + 128 << 23, count, np.uint32)
    signs = rng.integers(0, 2, count, np.uint32) << np.uint32(31)
    return np.asarray(x | signs if sweep.negative else x)


@pytest.mark.parametrize("function", Function)
def test_errors_on_random_operands(function: Function) -> None:
    x = in_domain(function, np.random.default_rng(SEED), 400_000)
    error = error_sweep.errors(function, x, evaluate(function, from_bits(x)))
    assert np.abs(error).max() <= LIMITS[function], f"seed {SEED}"
    # The measure itself must see errors.
    assert np.abs(error).max() > 0.5
    assert np.mean(np.abs(error) <= 0.5) > 0.8


@pytest.mark.parametrize("function", Function)
def test_operands_outside_the_sweeps_are_no_worse(function: Function) -> None:
    x = operands(np.random.default_rng(SEED), 200_000)
    if function in (Function.RSQRT, Function.LOG2):
        x &= 0x7FFFFFFF
    x = x[((x & 0x7FFFFFFF) >= 0x00800000) & ((x & 0x7FFFFFFF) < F32_INF)]
    error = error_sweep.errors(function, x, evaluate(function, from_bits(x)))
    assert np.abs(error).max() <= LIMITS[function], f"seed {SEED}"


def test_a_wrong_result_is_an_error() -> None:
    x = np.array([0x40400000], np.uint32)
    third = np.float32(1 / 3)
    for wrong, ulps in ((third, 0.33), (np.nextafter(third, np.float32(1)), 1.33)):
        (error,) = error_sweep.errors(Function.RECIPROCAL, x, np.array([wrong]))
        assert error == pytest.approx(ulps, abs=0.01)
    flushed = np.array([0xC2FE0000], np.uint32)
    (error,) = error_sweep.errors(Function.EXP2, flushed, np.array([2.0**-127], np.float32))
    assert error == np.inf


@pytest.mark.parametrize("function", Function)
def test_monotonic_across_segments(function: Function) -> None:
    """Results are monotonic at eight operands around the end of each segment of some binades."""
    ends = np.arange(0x3D80, 0x4300, dtype=np.uint32) << np.uint32(16)
    x = (ends[:, np.newaxis] + np.arange(-4, 4, dtype=np.int32).view(np.uint32)).ravel()
    y = evaluate(function, from_bits(x))
    steps = -np.diff(y) if function in (Function.RECIPROCAL, Function.RSQRT) else np.diff(y)
    assert steps.min() >= 0
    assert steps.max() > 0


def test_shapes_and_functions_by_name() -> None:
    x = np.linspace(0.5, 2, 60, dtype=np.float32).reshape(3, 4, 5)
    for function in Function:
        named = getattr(transcendental, function.name.lower())
        whole = named(x)
        assert whole.shape == x.shape
        assert whole.dtype == np.float32
        assert np.array_equal(whole, evaluate(function, x))
        assert np.array_equal(named(x[::2, ::-1].T), whole[::2, ::-1].T)
        assert named(x[0, 0, 0]).shape == ()
        assert named(np.empty((0, 3), np.float32)).shape == (0, 3)
        large = np.resize(x, 50_001)
        assert np.array_equal(named(large), np.resize(whole, 50_001))


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="x must be an array of float32, not of float64"):
        transcendental.exp2(np.zeros(3))
    with pytest.raises(TypeError, match="function must be a Function, not 2"):
        evaluate(2, np.zeros(3, np.float32))  # type: ignore[arg-type]


# The text


def test_documented_errors_are_the_measured_ones() -> None:
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.]+) ulp \| `([0-9A-F]{8})` \|",
                      DOCUMENT.read_text(), re.MULTILINE)
    assert [name for name, *_ in rows] == [function.name for function in Function]
    for name, count, worst, at in rows:
        function = Function[name]
        sweep = error_sweep.SWEEPS[function]
        x = np.array([int(at, 16)], np.uint32)
        (error,) = error_sweep.errors(function, x, evaluate(function, from_bits(x)))
        assert f"{abs(error):.4f}" == worst
        assert abs(error) <= LIMITS[function]
        assert int(count.replace(",", "")) == (
            (sweep.last - sweep.first + 1 << 23) << sweep.negative)


def test_documented_examples() -> None:
    rows = re.findall(r"^\| (\w+) \| `([0-9A-F]{8})`[^|]*\| `([0-9A-F]{8})`", DOCUMENT.read_text(),
                      re.MULTILINE)
    assert len(rows) >= 20
    for name, x, y in rows:
        got = bits(evaluate(Function[name], from_bits(np.array([int(x, 16)], np.uint32))))
        assert f"{got[0]:08X}" == y, (name, x)


@pytest.mark.slow
@pytest.mark.parametrize("function", [Function.RECIPROCAL, Function.RSQRT])
def test_sweep_of_everything(function: Function) -> None:
    found = error_sweep.measure(function, error_sweep.SWEEPS[function])
    assert f"| {function.name} | {found.operands:,} | {found.worst:.4f} ulp | `{found.at:08X}` |" \
        in DOCUMENT.read_text()
    assert found.reversals == 0


# The RTL


def grid(module: str) -> TileGrid:
    return TileGrid(module, "transcendental", Transcendental, 1, COLS,
                    [Each("x"), Shared("enable"), Shared("functions"), Each("y")])


@cache
def library(kernel: bool) -> Path:
    units = grid("transcendentals")
    top = units.module if kernel else units.tile_module
    sources = with_kernels(top, Transcendental, [units] if kernel else [])
    return build_model(top, sources["verilog"], cpp=sources["cpp"], waivers=LINT_WAIVERS,
                       optimise=None)


@pytest.fixture(params=[False, True], ids=["verilog", "kernel"])
def unit(request: pytest.FixtureRequest) -> Iterator[tuple[Model, int]]:
    """A model with one or several units, and their number."""
    with Model(library(request.param)) as model:
        model.reset()
        yield model, COLS if request.param else 1


def run(unit: tuple[Model, int], x: NDArray[np.uint32], functions: NDArray[np.int64],
        valid: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Results by cycle of their operands' entry; the test supplies the control pipeline.

    Parameters
    ----------
    x : array of uint32, shape (cycles, units)
    functions, valid : array, shape (cycles,)
    """
    model, units = unit
    cycles = len(x)
    total = cycles + LATENCY
    enable = np.zeros(total, np.uint32)
    codes = np.zeros(total, np.uint32)
    rng = np.random.default_rng(SEED)
    for stage in range(LATENCY):
        taken = np.zeros(total, bool)
        taken[stage:stage + cycles] = valid
        own = rng.choice(GARBAGE, total)
        own[stage:stage + cycles][valid] = functions[valid]
        enable |= taken.astype(np.uint32) << np.uint32(stage)
        codes |= own.astype(np.uint32) << np.uint32(3 * stage)
    padded = np.concatenate([x, rng.integers(0, 1 << 32, (LATENCY, units), np.uint32)])
    result = model.run({"x": packed(padded, 32), "enable": enable, "functions": codes}, ["y"])
    return result["y"][LATENCY - 1:LATENCY - 1 + cycles]


def check(unit: tuple[Model, int], x: NDArray[np.uint32], functions: NDArray[np.int64],
          valid: NDArray[np.bool_] | None = None) -> None:
    """Checks that results have the golden bits and stay until new ones arrive."""
    valid = np.ones(len(x), bool) if valid is None else valid
    got = run(unit, x, functions, valid)
    expected = np.zeros_like(x)
    for function in Function:
        rows = functions == function
        expected[rows] = bits(evaluate(function, from_bits(x[rows])))
    wrong = np.argwhere((got != expected) & valid[:, np.newaxis])
    shown = "\n".join(
        f"  {Function(functions[row]).name} {x[row, unit_]:08X}: {got[row, unit_]:08X}, not "
        f"{expected[row, unit_]:08X}" for row, unit_ in wrong[:8])
    assert valid.any()
    assert not wrong.size, f"{len(wrong)} differ, seed {SEED}\n{shown}"
    held = np.flatnonzero(~valid)
    held = held[held > np.flatnonzero(valid)[0]]
    assert np.array_equal(got[held], got[held - 1])


@pytest.mark.parametrize("function", Function)
def test_corners_in_rtl(unit: tuple[Model, int], function: Function) -> None:
    units = unit[1]
    x = np.resize(CORNERS, (-(-len(CORNERS) // units), units))
    check(unit, x, np.full(len(x), function))


@pytest.mark.parametrize("function", Function)
def test_random_operands_in_rtl(unit: tuple[Model, int], function: Function) -> None:
    units = unit[1]
    rng = np.random.default_rng([SEED, function])
    count = 220_000 if units > 1 else 20_000
    x = operands(rng, -(-count // units) * units).reshape(-1, units)
    check(unit, x, np.full(len(x), function))


def test_every_segment_in_rtl(unit: tuple[Model, int]) -> None:
    """The first, a middle and the last operand of each segment, for all functions."""
    units = unit[1]
    tops = np.arange(0x3D00, 0x4300, dtype=np.uint32) << np.uint32(16)
    x = np.concatenate([tops, tops | 0x8123, tops | 0xFFFF])
    x = np.resize(np.concatenate([x, x | SIGN]), (-(-2 * len(x) // units), units))
    for function in Function:
        check(unit, x, np.full(len(x), function))


@pytest.mark.parametrize("density", [0.9, 0.3])
def test_mixed_functions_with_bubbles(unit: tuple[Model, int], density: float) -> None:
    units = unit[1]
    rng = np.random.default_rng(SEED)
    cycles = 2000
    x = operands(rng, cycles * units).reshape(cycles, units)
    check(unit, x, rng.integers(0, len(Function), cycles), rng.random(cycles) < density)


def test_the_python_simulator_agrees() -> None:
    dut = Transcendental()
    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    rng = np.random.default_rng(SEED)
    count = 400
    x = np.concatenate([CORNERS, operands(rng, count - len(CORNERS))])
    functions = rng.integers(0, len(Function), count)
    seen = []

    async def bench(ctx: SimulatorContext) -> None:
        for cycle in range(count + LATENCY - 1):
            ctx.set(dut.x, int(x[min(cycle, count - 1)]))
            ctx.set(dut.enable, (1 << LATENCY) - 1)
            ctx.set(dut.functions, sum(
                int(functions[np.clip(cycle - stage, 0, count - 1)]) << 3 * stage
                for stage in range(LATENCY)))
            await ctx.tick()
            if cycle >= LATENCY - 1:
                seen.append(ctx.get(dut.y))

    simulator.add_testbench(bench)
    simulator.run()
    expected = [int(bits(evaluate(Function(function), from_bits(x[index:index + 1])))[0])
                for index, function in enumerate(functions.tolist())]
    assert [f"{y:08X}" for y in seen] == [f"{y:08X}" for y in expected]
