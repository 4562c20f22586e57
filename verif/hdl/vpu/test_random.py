"""Random words in Verilog against the golden generator."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.vpu import evaluate
from hdl.isa import TRANSCENDENTAL_LATENCY, VectorOp
from hdl.vpu import random
from hdl.vpu.random import STAGES, IterativeRandom, Random
from sim.verilated.model import Model
from verif.hdl.vpu.units import assert_same, corner_pairs, held, in_python, model_of, through

SEED = 20250312


@pytest.fixture
def model() -> Iterator[Model]:
    with model_of("vpu_random", Random) as model:
        model.reset()
        yield model


def words(seed: int, count: int) -> NDArray[np.uint32]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 32, (2, count), np.uint32)


def check(model: Model, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    got = through(model, STAGES, {"a": a, "b": b}, "y")
    assert_same("RANDOM", SEED, got, evaluate(VectorOp.RANDOM, a, b), a=a, b=b)
    return got


def test_latency() -> None:
    # A cycle for the reads, and one for the write.
    assert Random().latency == STAGES == TRANSCENDENTAL_LATENCY - 2


def test_the_published_vector_of_zeros(model: Model) -> None:
    # Known answer of the generator's authors: threefry2x32, 20 rounds, counter and key zero.
    zero = np.zeros(1, np.uint32)
    assert through(model, STAGES, {"a": zero, "b": zero}, "y")[0] == 0x6B200159


def test_corners(model: Model) -> None:
    check(model, *corner_pairs())


def test_random_operands(model: Model) -> None:
    got = check(model, *words(SEED, 300_000))
    # Each bit of the result is even to about six standard deviations.
    ones = np.unpackbits(got.view(np.uint8)).reshape(-1, 32).mean(axis=0)
    assert np.abs(ones - 0.5).max() < 0.006


def test_counters_in_a_row(model: Model) -> None:
    count = np.arange(100_000, dtype=np.uint32)
    got = check(model, count, np.full(len(count), 42, np.uint32))
    # One counter is one word: about count**2 / 2**33 of them are equal.
    assert len(count) - len(np.unique(got)) < 10


def test_stages_hold_unless_enabled_and_are_not_reset(model: Model) -> None:
    a, b = words(SEED + 1, 3000)
    rng = np.random.default_rng(SEED + 1)
    enables = rng.integers(0, 1 << STAGES, len(a)).astype(np.uint8)
    expected, known = held(enables, evaluate(VectorOp.RANDOM, a, b), STAGES)
    got = model.run({"a": a, "b": b, "enable": enables,
                     "rst": rng.integers(0, 2, len(a)).astype(np.uint8)}, ["y"])["y"][:, 0]
    assert_same("RANDOM", SEED + 1, got[known], expected[known], a=a[known], b=b[known])
    assert known.sum() > 2900


def test_in_the_python_simulator() -> None:
    a, b = words(SEED + 2, 300)
    enables = np.random.default_rng(SEED + 2).choice(
        np.array([5, 10, 15, 15, 15, 15], np.uint8), len(a))
    expected, known = held(enables, evaluate(VectorOp.RANDOM, a, b), STAGES)
    got = in_python(Random, {"a": a, "b": b, "enable": enables}, "y")
    assert_same("RANDOM", SEED + 2, got[known], expected[known], a=a[known], b=b[known])
    assert known.sum() > 250


def iterate(count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Results of `IterativeRandom` for ``count`` pairs of words, and the expected results.

    The operands change in each cycle, and there are up to two idle cycles before each enable.
    """
    rng = np.random.default_rng(SEED + 3)
    enables = [enable for _ in range(count) for bit in range(IterativeRandom.latency)
               for enable in [*[0] * int(rng.integers(3)), 1 << bit]]
    enable = np.array(enables, np.uint8)
    a, b = words(SEED + 3, len(enable))
    y = in_python(IterativeRandom, {"a": a, "b": b, "enable": enable}, "y")
    first, last = enable == 1, enable == 1 << IterativeRandom.latency - 1
    return y[last], evaluate(VectorOp.RANDOM, a[first], b[first])


def test_iterations_are_the_golden_generator() -> None:
    got, expected = iterate(300)
    assert (got == expected).all()


def test_wrong_rotations_of_the_iterations_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "ROTATIONS", (*random.ROTATIONS[:-1], 23))
    got, expected = iterate(10)
    assert (got != expected).all()
