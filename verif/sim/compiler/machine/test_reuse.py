"""Code for buffers at other addresses is what emission would make, often without emission."""

import gc
import random
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.machine import Builder, MachineCode, VmemBuffer, emit, overlap
from sim.compiler.machine.emit import JOINED, LADDER, Code, forget
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.ir import Fence, VReg
from sim.compiler.machine.join import join
from sim.compiler.machine.layout import Options
from sim.compiler.machine.registers.coloring import COLORS, RegisterPressureError
from sim.compiler.machine.schedule.dependences import Graph
from sim.compiler.machine.schedule.modulo import Modulo
from verif.sim.compiler.machine.programs import SIZE, Writer

module = sys.modules["sim.compiler.machine.emit"]
TINY = Config.preset("tiny", imem_bundles=4096)
WAYS = (LADDER, (JOINED[0], replace(LADDER[-1], joined=True)))


def written(seed: int, addresses: Sequence[int]) -> MachineCode:
    """Random code of up to 40 operations, with buffers at these addresses."""
    writer = Writer(TINY, seed, 10 + seed % 30)
    writer.buffers = [VmemBuffer(f"b{number}", address, SIZE)
                      for number, address in enumerate(addresses)]
    return writer.code()


def places(rng: random.Random) -> list[int]:
    """Addresses of four buffers: apart in any order, or anywhere near a number that matters.

    Some overlap always in the same way.
    """
    if rng.random() < 0.3:
        first = 5000 + rng.randrange(4000)
        return [first, first + 3, first + 500, first + 500 + SIZE // 2]
    if rng.random() < 0.6:
        return [5000 + 100 * number + rng.randrange(20) for number in rng.sample(range(50), 4)]
    near = rng.choice((0, 12345 - SIZE, (1 << 31) - 2 * SIZE, (1 << 32) - 2 * SIZE))
    return [near + rng.randrange(3 * SIZE) for _ in range(4)]


def check(code: MachineCode, ladder: Sequence[Options] = LADDER) -> Code:
    """Emit code, also with nothing to reuse: the result must be the same. Return it."""
    found = emit(code, TINY, ladder=ladder)
    cycles = estimate(found)
    forget()
    anew = emit(code, TINY, ladder=ladder)
    assert found == anew
    assert cycles == estimate(anew)
    return found


@pytest.mark.parametrize("ladder", WAYS)
def test_random_code_at_other_addresses(ladder: Sequence[Options]) -> None:
    reused = 0
    for seed in range(16):
        rng = random.Random(seed)
        for _ in range(3):
            code = emit(written(seed, places(rng)), TINY, ladder=ladder)
            reused += check(written(seed, places(rng)), ladder).cycles is code.cycles
    assert reused > 5


def test_joined_code_at_other_addresses() -> None:
    reused = 0
    for seed in range(8):
        rng = random.Random(seed)
        before, after = (join([written(seed, addresses), written(seed + 1, addresses)])
                         for addresses in (places(rng), places(rng)))
        code = emit(before, TINY, ladder=WAYS[1])
        reused += check(after, WAYS[1]).cycles is code.cycles
    assert reused


def sums(x: int, y: int, *, word: int = 1000, count: int = 4, first: int = 0, stride: int = 1
         ) -> MachineCode:
    """Code that adds ``word`` to ``count`` vectors from ``x`` on; the results go to ``y``."""
    b = Builder(TINY)
    with b.loop(count) as i:
        b.store(b.vector("add", b.load(VmemBuffer("x", x, 8), i * stride + first), word),
                VmemBuffer("y", y, 8), i)
    return b.finish()


@pytest.mark.parametrize(("one", "other", "reused"), [
    # Apart, in any order, however far.
    (sums(100, 200), sums(100, 200), True),
    (sums(100, 200), sums((1 << 31) - 8, 50), True),
    # Buffers that overlap, by as much or not.
    (sums(100, 104), sums(300, 304), True),
    (sums(100, 104), sums(100, 105), False),
    (sums(100, 104), sums(100, 108), False),
    # Offsets that need no immediate, also negative ones; counters of loops.
    (sums(100, 200), sums(15, 200), False),
    (sums(100, 200), sums((1 << 32) - 8, 200), False),
    (sums(100, 200, first=-3), sums(17, 200, first=-3), False),
    (sums(100, 200, first=-3), sums(19, 200, first=-3), True),
    (sums(300, 200, count=90), sums(300, 90, count=90), False),
    # An offset that equals another word, or not.
    (sums(100, 200), sums(1000, 200), False),
    (sums(100, 200), sums(993, 200), False),
    (sums(100, 200), sums(992, 200), True),
    (sums(100, 200), sums(100, 200, word=1001), False),
])
def test_code_is_reused_where_addresses_make_no_other_difference(
        one: MachineCode, other: MachineCode, reused: bool) -> None:
    code = emit(one, TINY)
    assert (check(other).cycles is code.cycles) == reused


def test_fences_are_compared_by_number() -> None:
    """What matters is which buffer a wait follows, not where it lies."""
    def code(x: int, y: int, waits: str) -> MachineCode:
        b, buffers = Builder(TINY), {"x": VmemBuffer("x", x, 8), "y": VmemBuffer("y", y, 8)}
        b.store(b.load(buffers["x"], 1), buffers["y"], 1)
        b.wait(3, 1, fence=Fence((buffers[waits],)))
        return b.finish()

    for (x, y), waits in product(((100, 200), (400, 300)), "xy"):
        found = emit(code(100, 200, "x"), TINY)
        assert (check(code(x, y, waits)).cycles is found.cycles) == (waits == "x")


def test_a_loop_is_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its schedule is also that of the loop in joined kernels, at other addresses."""
    schedule, made = overlap.modulo_schedule, list[int]()

    def count(graph: Graph, interval: int) -> Modulo | None:
        made.append(interval)
        return schedule(graph, interval)

    monkeypatch.setattr(overlap, "modulo_schedule", count)
    forget()
    emit(sums(100, 200, count=40), TINY)
    [interval] = made
    joined = emit(join([sums(300, 500, count=40), sums(500, 700, count=40)]), TINY, ladder=JOINED)
    assert made == [interval]
    assert [loop.unroll > 0 for loop in joined.loops] == [True, True]
    emit(sums(100, 200, count=40, stride=2), TINY)
    assert len(made) > 1


def test_words_beyond_32_bits_equal_offsets() -> None:
    """Modulo 2**32, a word is the offset at the first address, but not at the second one."""
    def code(x: int) -> MachineCode:
        b = Builder(TINY)
        p, q, word = b.splat(1000), b.splat(2000), b.value((1 << 32) + 100)
        b.store(b.vector("add", p, q), VmemBuffer("y", 500, 8), word)
        b.store(b.load(VmemBuffer("x", x, 8), 0), VmemBuffer("y", 500, 8), 1)
        return b.finish()

    found = emit(code(100), TINY)
    assert check(code(200)).cycles is not found.cycles


def too_large(x: int) -> MachineCode:
    """Code that needs too many vector registers, with its buffer at address ``x``."""
    b, buffer = Builder(TINY), VmemBuffer("x", x, 80)
    vectors = [b.load(buffer, number) for number in range(40)]
    for number, vector in enumerate(reversed(vectors)):
        b.store(b.vector("add", vector, vectors[number]), buffer, number + 40)
    return b.finish()


def test_an_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that needs too many registers does so at other addresses, and is not tried there."""
    tried = list[MachineCode]()
    original = module.lay_out

    def counted(code: MachineCode, *arguments: Any) -> Any:
        tried.append(code)
        return original(code, *arguments)

    monkeypatch.setattr(module, "lay_out", counted)
    forget()

    for x in (100, 200):
        for _ in range(2):
            with pytest.raises(RegisterPressureError, match="vector registers must be at most 32"):
                emit(too_large(x), TINY, ladder=(Options(ahead=False),))
    assert len(tried) == 1


@pytest.mark.parametrize(("spills", "fewer"), [
    (False, ()), (True, module._FEWER), (True, (60, 50))],
    ids=["refused", "spilled", "spilled in vain"])
def test_failed_attempts_are_freed_at_once(spills: bool, fewer: tuple[int, ...],
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """No collection of garbage is needed. A program has many attempts, each with its operations."""
    made = list[weakref.ref[Any]]()
    original = module.lay_out

    def noted(*arguments: Any) -> Any:
        layout = original(*arguments)
        made.append(weakref.ref(layout))
        return layout

    def attempt() -> None:
        """Emit code while another error is handled, to which new errors then refer."""
        unrelated = np.zeros(4)
        made.append(weakref.ref(unrelated))
        try:
            raise LookupError
        except LookupError:
            emit(too_large(100), TINY, allocate=(
                lambda vectors: VmemBuffer("spilled", 200, vectors)) if spills else None)

    monkeypatch.setattr(module, "lay_out", noted)
    monkeypatch.setattr(module, "_FEWER", fewer)
    forget()
    gc.disable()
    try:
        if spills and fewer[0] < len(COLORS[VReg]):
            attempt()
        else:
            with pytest.raises(RegisterPressureError, match="at most 32, not 4") as raised:
                attempt()
            del raised
        assert len(made) > len(fewer)
        assert all(thing() is None for thing in made)
    finally:
        gc.enable()


def test_error_says_whether_registers_are_missing() -> None:
    assert str(RegisterPressureError(VReg, 33)) == "vector registers must be at most 32, not 33"
    assert str(RegisterPressureError(VReg, 31)) == (
        "32 vector registers do not suffice, although at most 31 are live at once")
