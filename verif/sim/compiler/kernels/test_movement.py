"""Movement of elements: exactly the bits that numpy gives, on random shapes and attributes."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hdl.config import Config
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels.lowering import Choice
from sim.compiler.kernels.moving.transposer import swap_tiled
from sim.compiler.machine.estimate import estimate
from sim.compiler.tiling import Tiling, standard
from verif.sim.compiler.kernels.harness import CONFIG, build_as, execute, run

Array = npt.NDArray[Any]
SEED = 20261122
SIZES = (1, 2, 3, 4, 5, 7, 11)
"""Sizes around those of a vector of `tiny`."""


def values(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Words of any bits, as signed integers."""
    return rng.integers(-2**31, 2**31, shape).astype(np.int32)


def operation(kind: str, operands: Sequence[Array], shape: Sequence[int],
              **attributes: Any) -> Operation:
    found = [Value(TensorType(array.shape, DType.S32)) for array in operands]
    return Operation(kind, tuple(found), (Value(TensorType(tuple(shape), DType.S32)),), attributes)


def check(kind: str, operands: Sequence[Array], expected: Array, **attributes: Any) -> None:
    op = operation(kind, operands, expected.shape, **attributes)
    [result] = run(op, operands)
    assert np.array_equal(result, expected), (kind, [a.shape for a in operands], attributes)


def random_shape(rng: np.random.Generator, rank: int, most: int = 150) -> tuple[int, ...]:
    while True:
        shape = tuple(int(size) for size in rng.choice(SIZES, rank))
        if np.prod(shape) <= most:
            return shape


def cases(rng: np.random.Generator, count: int, ranks: Sequence[int] = (1, 2, 3, 4)) -> Any:
    for number in range(count):
        yield random_shape(rng, ranks[number % len(ranks)])


@pytest.mark.parametrize("seed", range(4))
def test_slice(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    for shape in cases(rng, 12):
        starts = tuple(int(rng.integers(size)) for size in shape)
        limits = tuple(int(rng.integers(start + 1, size + 1))
                       for start, size in zip(starts, shape, strict=True))
        strides = tuple(int(rng.choice([1, 1, 1, 2, 3])) for _ in shape)
        x = values(shape, rng)
        check("slice", [x], x[tuple(map(slice, starts, limits, strides))],
              start_indices=starts, limit_indices=limits, strides=strides)


def padded(x: Array, fill: Array, low: Sequence[int], high: Sequence[int],
           interior: Sequence[int]) -> Array:
    """`pad` by its definition, element by element."""
    shape = tuple(lo + hi + max(0, (size - 1) * (inner + 1) + 1) for size, lo, hi, inner
                  in zip(x.shape, low, high, interior, strict=True))
    result = np.full(shape, fill, x.dtype)
    for index in np.ndindex(*x.shape):
        at = tuple(lo + i * (inner + 1) for lo, i, inner in zip(low, index, interior, strict=True))
        if all(0 <= i < size for i, size in zip(at, shape, strict=True)):
            result[at] = x[index]
    return result


@pytest.mark.parametrize("seed", range(4))
def test_pad(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    done = 0
    for shape in cases(rng, 16):
        interior = tuple(int(rng.choice([0, 0, 0, 1, 2])) for _ in shape)
        low, high = (tuple(int(rng.integers(-2, 4)) for _ in shape) for _ in range(2))
        sizes = [lo + hi + (size - 1) * (inner + 1) + 1 for size, lo, hi, inner
                 in zip(shape, low, high, interior, strict=True)]
        if min(sizes) < 1 or np.prod(sizes) > 400:
            continue
        x, fill = values(shape, rng), values((), rng)
        check("pad", [x, fill], padded(x, fill, low, high, interior),
              edge_padding_low=low, edge_padding_high=high, interior_padding=interior)
        done += 1
    assert done > 3


@pytest.mark.parametrize("seed", range(4))
def test_concatenate(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    for shape in cases(rng, 8):
        dimension = int(rng.integers(len(shape)))
        parts = []
        for _ in range(int(rng.integers(1, 4))):
            part = list(shape)
            part[dimension] = int(rng.choice(SIZES))
            parts.append(values(part, rng))
        check("concatenate", parts, np.concatenate(parts, dimension), dimension=dimension)


@pytest.mark.parametrize("seed", range(3))
def test_reverse(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    for shape in cases(rng, 8):
        dimensions = tuple(d for d in range(len(shape)) if rng.integers(2))
        x = values(shape, rng)
        check("reverse", [x], np.flip(x, dimensions), dimensions=dimensions)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_transpose(rank: int) -> None:
    rng = np.random.default_rng([SEED, rank])
    for permutation in permutations(range(rank)):
        x = values(random_shape(rng, rank), rng)
        check("transpose", [x], x.transpose(permutation), permutation=permutation)


@pytest.mark.parametrize("seed", range(4))
def test_broadcast_in_dim(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    for shape in cases(rng, 12):
        kept = sorted(rng.choice(len(shape), int(rng.integers(len(shape) + 1)), replace=False))
        dimensions = tuple(int(d) for d in kept)
        x = values([shape[d] if rng.integers(4) else 1 for d in dimensions], rng)
        spread = x.reshape([x.shape[dimensions.index(d)] if d in dimensions else 1
                            for d in range(len(shape))])
        check("broadcast_in_dim", [x], np.broadcast_to(spread, shape),
              broadcast_dimensions=dimensions)


@pytest.mark.parametrize(("old", "new"), [
    ((), (1, 1)), ((1,), ()), ((12,), (12, 1)), ((12, 1), (12,)), ((3, 4), (12,)), ((12,), (3, 4)),
    ((6, 4), (4, 6)), ((4, 6), (3, 8)), ((5, 7), (7, 5)), ((2, 3, 4), (4, 3, 2)),
    ((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((2, 12), (2, 3, 4)), ((2, 3, 10), (10, 6)),
    ((3, 5, 2, 2), (3, 20)), ((3, 20), (3, 5, 2, 2)), ((3, 2, 2, 1), (3, 4)),
    ((3, 4), (3, 2, 2, 1)), ((2, 8, 8), (8, 16)), ((12, 12), (9, 16)), ((1, 5, 1), (5,)),
    ((24,), (2, 1, 3, 1, 4)), ((6, 8), (8, 6)), ((2, 5, 3, 3), (30, 3)), ((30, 3), (2, 5, 3, 3)),
    ((5, 7, 3), (35, 3)), ((3, 2, 17, 2), (102, 2)),
])
def test_reshape(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = values(old, np.random.default_rng(SEED))
    check("reshape", [x], x.reshape(new))


@pytest.mark.parametrize("seed", range(4))
def test_dynamic_slice(seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    for shape in cases(rng, 8):
        sizes = tuple(int(rng.integers(1, size + 1)) for size in shape)
        starts = [np.array(rng.integers(-3, size + 3), np.int32) for size in shape]
        x = values(shape, rng)
        clamped = [min(max(int(start), 0), whole - part)
                   for start, whole, part in zip(starts, shape, sizes, strict=True)]
        cut = tuple(slice(at, at + part) for at, part in zip(clamped, sizes, strict=True))
        check("dynamic_slice", [x, *starts], x[cut], slice_sizes=sizes)
        update, expected = values(sizes, rng), x.copy()
        expected[cut] = update
        check("dynamic_update_slice", [x, update, *starts], expected)


def test_unsigned_starts() -> None:
    x = np.arange(30, dtype=np.int32).reshape(5, 6)
    for start in (0, 2, 2**31, 2**32 - 1):
        types = [TensorType((5, 6), DType.S32)] + [TensorType((), DType.U32)] * 2
        op = Operation("dynamic_slice", tuple(map(Value, types)),
                       (Value(TensorType((2, 3), DType.S32)),), {"slice_sizes": (2, 3)})
        [result] = run(op, [x, np.array(start, np.uint32), np.array(start, np.uint32)])
        row, column = min(start, 3), min(start, 3)
        assert np.array_equal(result, x[row:row + 2, column:column + 3])


def tilings(shape: tuple[int, ...]) -> list[Tiling]:
    """All tilings of a shape."""
    return [Tiling(shape, order, lanes, CONFIG.sublanes, CONFIG.lanes)
            for order in permutations(range(len(shape))) for lanes in (False, True)
            if shape or not lanes]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (9,), (1, 1), (3, 5), (9, 2), (5, 1), (2, 3, 5),
                                   (5, 4, 1)])
def test_relayout(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    x = values(shape, rng)
    for old in tilings(shape):
        for new in tilings(shape):
            if len(shape) == 3 and standard(shape, CONFIG) not in (old, new) and rng.integers(4):
                continue
            kernel = build_as(operation("relayout", [x], shape), Choice((old,), (new,)))
            [result] = execute(kernel, [x])
            assert np.array_equal(result, x), (old, new)


@pytest.mark.parametrize("numbers", [(), (0,), (3,), (0, 2, 5)])
def test_other_code_runs_between_the_squares_of_a_relayout(
        numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, called = CONFIG.lanes, list[int]()
    x = values((2 * lanes + 1, 3 * lanes + 1), np.random.default_rng(SEED))

    def choose(count: int, _: int) -> dict[int, Callable[[], None]]:
        assert count == 6, "partial squares do not count"
        return {number: partial(called.append, number) for number in numbers}

    monkeypatch.setattr(sys.modules["sim.compiler.kernels.moving.copy"], "swap_tiled",
                        lambda b, source, destination, _: swap_tiled(
                            b, source, destination, choose))
    old = standard(x.shape, CONFIG)
    for source, new in ((old, replace(old, order=(1, 0))), (replace(old, order=(1, 0)), old)):
        called.clear()
        kernel = build_as(operation("relayout", [x], x.shape), Choice((source,), (new,)))
        [result] = execute(kernel, [x])
        assert np.array_equal(result, x)
        assert called == [*numbers]


@pytest.mark.parametrize("shape", [(9, 2, 17, 3), (5, 1, 8, 33), (8, 3, 3, 1), (16, 2, 16, 4)])
@pytest.mark.parametrize("order", [(2, 1, 0, 3), (1, 2, 0, 3), (0, 2, 1, 3)])
def test_exchange_of_rows_rotates_merged_vectors(shape: tuple[int, ...],
                                                 order: tuple[int, ...]) -> None:
    config = Config.preset("small")
    x = values(shape, np.random.default_rng(SEED))
    old, new = standard(shape, config), replace(standard(shape, config), order=order)
    for source, destination in ((old, new), (new, old)):
        kernel = build_as(operation("relayout", [x], shape), Choice((source,), (destination,)),
                          config)
        [result] = execute(kernel, [x])
        assert np.array_equal(result, x)
        if not any(size % config.sublanes for size in (shape[0], shape[2])) and order[2] == 0:
            assert kernel.code is not None
            assert estimate(kernel.code) < 3 * config.sublanes * old.vectors


@pytest.mark.parametrize("shape", [(5,), (3, 6), (5, 1), (3, 2, 5)])
def test_other_tilings(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    x, rank = values(shape, rng), len(shape)
    zeros, ones = (0,) * rank, (1,) * rank
    scalar = standard((), CONFIG)
    for old in tilings(shape):
        def given(kind: str, operands: list[Array], expected: Array, others: list[Tiling],
                  tiling: Tiling = old, **attributes: Any) -> None:
            op = operation(kind, operands, expected.shape, **attributes)
            [result] = run(op, operands, tilings=[tiling, *others])
            assert np.array_equal(result, expected), (kind, tiling)

        given("pad", [x, np.array(3, np.int32)], np.pad(x, 1, constant_values=3), [scalar],
              edge_padding_low=ones, edge_padding_high=ones, interior_padding=zeros)
        given("reverse", [x], np.flip(x, 0), [], dimensions=(0,))
        given("concatenate", [x, x], np.concatenate([x, x]), [old], dimension=0)
        given("concatenate", [x, x], np.concatenate([x, x]), [standard(shape, CONFIG)],
              dimension=0)
        given("broadcast_in_dim", [x], np.broadcast_to(x, (3, *shape)), [],
              broadcast_dimensions=tuple(range(1, rank + 1)))
        given("transpose", [x], x.T, [], permutation=tuple(reversed(range(rank))))
        given("slice", [x], x[1:] if shape[0] > 1 else x, [], limit_indices=shape, strides=ones,
              start_indices=(int(shape[0] > 1), *zeros[1:]))
        for new in ((*shape, 1), (1, *shape), (shape[0], 1, *shape[1:]), (x.size,)):
            given("reshape", [x], x.reshape(new), [])
