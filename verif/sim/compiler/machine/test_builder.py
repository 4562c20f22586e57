"""Machine code from the builder computes the right results on the golden core."""

from collections.abc import Callable

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl.config import Config
from sim.compiler.machine import Builder, SReg, VmemBuffer, emit
from verif.sim.compiler.machine.harness import run, stimulus

TINY = Config.preset("tiny")
X, Y, Z = VmemBuffer("x", 0, 64), VmemBuffer("y", 64, 64), VmemBuffer("z", 128, 64)


def before() -> GoldenCore:
    core = GoldenCore(TINY)
    stimulus(core)
    return core


def execute(write: Callable[[Builder], None]) -> GoldenCore:
    b = Builder(TINY)
    write(b)
    code = b.finish()
    scheduled, naive = run(emit(code, TINY)), run(emit(code, TINY, schedule=False))
    assert (scheduled.vmem == naive.vmem).all()
    assert (scheduled.smem == naive.smem).all()
    return scheduled


def test_loop_over_vectors() -> None:
    def write(b: Builder) -> None:
        with b.loop(40) as i:
            b.store(b.vector("add", b.load(X, i), b.load(Y, i + 3)), Z, 2 + i)

    old, new = before(), execute(write)
    assert (new.vmem[130:170] == old.vmem[0:40] + old.vmem[67:107]).all()
    assert (new.vmem[:130] == old.vmem[:130]).all()
    assert (new.vmem[170:] == old.vmem[170:]).all()


def test_nested_loops_with_affine_indexes() -> None:
    def write(b: Builder) -> None:
        with b.loop(3) as i:
            with b.loop(4) as j, b.loop(2) as k:
                b.store(b.load(X, 12 * k + i * 4 + j), Y, i + j * 3 + 12 * k + 1)
            b.store(b.splat(i), Z, i)

    old, new = before(), execute(write)
    source = old.vmem[:24].reshape(2, 3, 4, 2, 4)
    assert (new.vmem[65:89].reshape(2, 4, 3, 2, 4) == source.transpose(0, 2, 1, 3, 4)).all()
    assert (new.vmem[128:131] == np.arange(3)[:, None, None]).all()


def test_indexes_from_scalars() -> None:
    """Indices use scalars of outer loops, scalars of the same block, and variables."""
    def write(b: Builder) -> None:
        base = b.smem_load(5)
        changing = b.scalar_variable(7)
        with b.loop(4) as i:
            inner = b.smem_load(i + 8)
            b.store(b.load(X, base * 2 + i), Y, inner * 4 + i)
            b.scalar("add", changing, 2, into=changing)
            b.store(b.load(X, changing + 1), Z, i)
            with b.loop(3) as j:
                b.store(b.load(X, base + inner + j), Z, 3 * i + j + 20)
                b.smem_store(changing + j, 100 + 3 * i + j)

    old, new = before(), execute(write)
    expected = old.vmem.copy()
    base = int(old.smem[5])
    for i in range(4):
        inner = int(old.smem[8 + i])
        expected[64 + inner * 4 + i] = old.vmem[base * 2 + i]
        expected[128 + i] = old.vmem[7 + 2 * (i + 1) + 1]
        for j in range(3):
            expected[128 + 3 * i + j + 20] = old.vmem[base + inner + j]
            assert new.smem[100 + 3 * i + j] == 7 + 2 * (i + 1) + j
    assert (new.vmem == expected).all()


def test_variables_live_through_loops() -> None:
    def write(b: Builder) -> None:
        total = b.variable(0)
        with b.loop(10) as i:
            b.assign(total, b.vector("add", total, b.load(X, i)))
        b.store(total, Z, 0)
        flag = b.variable(b.all_ones)
        with b.loop(5) as i:
            b.mask("mand", flag, b.compare("lt", b.load(Y, i), 500), into=flag)
        b.store(b.vector("select", total, 1, flag), Z, 1)
        b.store(3, Z, 2, mask=flag)

    old, new = before(), execute(write)
    total = old.vmem[:10].sum(axis=0, dtype=np.uint32)
    flag = (old.vmem[64:69].view(np.int32) < 500).all(axis=0)
    assert (new.vmem[128] == total).all()
    assert (new.vmem[129] == np.where(flag, total, 1)).all()
    assert (new.vmem[130] == np.where(flag, 3, old.vmem[130])).all()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_dynamic_loop_counts(count: int) -> None:
    def write(b: Builder) -> None:
        n = b.value(count)
        with b.loop(n) as i:
            b.store(b.vector("add", b.load(X, i), 1), Y, i)

    old, new = before(), execute(write)
    assert (new.vmem[64:64 + count] == old.vmem[:count] + 1).all()
    assert (new.vmem[64 + count:] == old.vmem[64 + count:]).all()


def test_branches_and_conditional_loops() -> None:
    def write(b: Builder) -> None:
        with b.loop(6) as i:
            value = b.value(i)
            with b.when("lt", value, 2):
                b.smem_store(10, i)
            with b.otherwise():
                b.smem_store(20, i)
                with b.unless("eq", value, 4):
                    b.smem_store(30, i + 50)
        x = b.scalar_variable(3)
        with b.repeat() as loop:
            b.scalar("mul", x, 3, into=x)
            b.again(loop, "lt", x, 100)
        b.smem_store(x, 99)

    old, new = before(), execute(write)
    assert new.smem[:6].tolist() == [10, 10, 20, 20, 20, 20]
    assert new.smem[50:56].tolist() == [*old.smem[50:52], 30, 30, old.smem[54], 30]
    assert new.smem[99] == 243


def test_operands_are_put_in_order() -> None:
    def write(b: Builder) -> None:
        x = b.load(X, 0)
        results = [b.vector("sub", 5, x), b.vector("add", 5, x), b.vector("add", x, b.value(9)),
                   b.vector("select", 1, 2, b.compare("lt", 5, x)),
                   b.vector("select", 1, 2, b.compare("geu", 5, x)),
                   b.splat(1.5), b.vector("lane"), b.cross("rotate_lanes", x, 1),
                   b.splat(b.scalar("sub", 3, b.value(10))), b.splat(b.scalar("add", 3, 4))]
        for number, result in enumerate(results):
            b.store(result, Z, number)

    old, new = before(), execute(write)
    x = old.vmem[0]
    for number, expected in enumerate([
            5 - x, x + 5, x + 9, np.where(x.view(np.int32) > 5, 1, 2), np.where(x <= 5, 1, 2),
            np.float32(1.5).view(np.uint32), np.arange(4), np.roll(x, 1, axis=1),
            np.uint32(2**32 - 7), 7]):
        assert (new.vmem[128 + number] == expected).all(), number


def test_array_and_transposer() -> None:
    def write(b: Builder) -> None:
        with b.loop(TINY.tile_vregs) as i:
            b.push("weights", b.load(X, i))
            b.transpose_in(b.load(X, i), i)
        b.push("rows_swap", b.load(X, 8))
        b.push("rows", b.load(X, 9))
        with b.loop(2) as i:
            b.store(b.pop(), Z, i)
            b.store(b.transpose_out(i), Z, i + 2)

    core = before()
    rng = np.random.default_rng(1)
    core.vmem[:] = rng.integers(-8, 8, core.vmem.shape).astype(np.float32).view(np.uint32)
    old = core.vmem.view(np.float32).copy()
    b = Builder(TINY)
    write(b)
    new = run(emit(b.finish(), TINY), core).vmem.view(np.float32)
    tile = old[:2].reshape(4, 4)
    assert (new[128:130].reshape(4, 4) == old[8:10].reshape(4, 4) @ tile).all()
    assert (new[130:132].reshape(4, 4) == tile.T).all()


def test_cut_points_exclude_loops() -> None:
    b = Builder(TINY)
    a = b.value(4)
    with b.loop(3) as i:
        b.store(b.load(X, i + a), Y, i)
    b.smem_store(a, 0)
    code = emit(b.finish(), TINY, schedule=False)
    [(first, end)] = code.atoms
    assert 0 < first < end < len(code)
    assert [(loop.first, loop.end, loop.count) for loop in code.loops] == [(first, end, 3)]
    assert len(code.live) == len(code) + 1
    assert code.live[0] == code.live[-1] == frozenset()
    assert len(code.live[end]) == 1


@pytest.mark.parametrize(("write", "message"), [
    (lambda b: b.vector("fadds", 1.0, 2.0), "vector operation must be one of"),
    (lambda b: b.vector("fadd", 1.0), "fadd must have 2 sources, not 1"),
    (lambda b: b.load(X, 64), "index must be from 0 to 63"),
    (lambda b: b.scalar("add", 0, 1, into=b.zero), "into must be a SReg that can be written"),
    (lambda b: b.loop(0).__enter__(), "count must be from 1"),
    (lambda b: b.otherwise().__enter__(), "otherwise must follow a when"),
    (lambda b: b.when("gt", 1, 2).__enter__(), "condition must be one of eq"),
])
def test_mistakes_are_refused(write: Callable[[Builder], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        write(Builder(TINY))


def test_loop_variable_is_refused_after_its_loop() -> None:
    b = Builder(TINY)
    with b.loop(3) as i:
        assert isinstance(b.value(i), SReg)
    with pytest.raises(ValueError, match="index must use variables of open loops"):
        b.load(X, i)
