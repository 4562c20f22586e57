"""The harness of kernels detects faulty kernels."""

from collections.abc import Callable

import numpy as np
import pytest

from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels import lowering
from sim.compiler.kernels.lowering import Lowering, lowers
from verif.sim.compiler.kernels.harness import CONFIG, run

ADD = "add_of_test"


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "_RULES", {})


def operation(shape: tuple[int, ...] = (5, 6), operands: int = 2) -> Operation:
    kind = TensorType(shape, DType.F32)
    return Operation(ADD, tuple(Value(kind) for _ in range(operands)), (Value(kind),))


def arrays(of: Operation) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(value.shape).astype(np.float32) for value in of.operands]


def add(of: Operation, at: Lowering) -> None:
    b = at.builder
    left, right = (at.place(value).buffer for value in of.operands)
    result = at.place(of.result).buffer
    with b.loop(result.vectors) as i:
        b.store(b.vector("fadd", b.load(left, i), b.load(right, i)), result, i)


@pytest.mark.parametrize("shape", [(), (3,), (4,), (9,), (5, 6), (2, 3, 4), (2, 1, 3, 5)])
def test_kernel_runs(shape: tuple[int, ...]) -> None:
    lowers(ADD)(add)
    given = operation(shape)
    a, b = arrays(given)
    [result] = run(given, [a, b])
    assert np.array_equal(result, a + b)


def test_constants_scratch_and_scalars() -> None:
    def rule(of: Operation, at: Lowering) -> None:
        b = at.builder
        shape = (1, CONFIG.sublanes, CONFIG.lanes)
        constant = at.constant(np.full(shape, np.float32(2.5).view(np.uint32)))
        assert at.constant(np.full(shape, np.float32(2.5).view(np.uint32))) is constant
        scratch = at.scratch(1)
        b.store(b.vector("fadd", b.load(constant, 0), at.scalar(of.operands[0])), scratch, 0)
        b.store(b.load(scratch, 0), at.place(of.result).buffer, 0)

    lowers(ADD)(rule)
    [result] = run(operation((), 1), [np.array(1.25, np.float32)])
    assert result == np.float32(3.75)


def stray(of: Operation, at: Lowering) -> None:
    at.builder.store(0, at.place(of.operands[0]).buffer, 1)
    add(of, at)


def full(of: Operation, at: Lowering) -> None:
    add(of, at)
    for _ in range(CONFIG.tile_vregs):
        at.builder.push("weights", at.builder.splat(0))


def signalled(of: Operation, at: Lowering) -> None:
    add(of, at)
    at.builder.signal(3, 1)


def unequal(of: Operation, at: Lowering) -> None:
    at.builder.store(at.builder.vector("lane"), at.place(of.result).buffer, 0)


@pytest.mark.parametrize(("rule", "shape", "message"), [
    (stray, (5, 6), "must not change"), (full, (5, 6), "array must be empty"),
    (signalled, (5, 6), "semaphores must be 0"), (unequal, (), "lanes of a result must be equal")])
def test_misbehaviour_is_found(rule: Callable[[Operation, Lowering], None],
                               shape: tuple[int, ...], message: str) -> None:
    lowers(ADD)(rule)
    given = operation(shape)
    with pytest.raises(AssertionError, match=message):
        run(given, arrays(given))
