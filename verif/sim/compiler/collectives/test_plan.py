"""How an all-reduce divides its array."""

import re

import pytest

from hdl.config import Config
from sim.compiler.collectives.plan import RingPlan
from sim.compiler.collectives.program import reduce_program

V2 = Config.preset("v2", link_bytes=128)
TINY = Config.preset("tiny", link_bytes=16)


@pytest.mark.parametrize(("shape", "size", "arrays", "wanted"), [
    ((2, 2), 1 << 20, 1, (1, 16, 2)), ((2, 2), 16 << 20, 1, (1, 256, 8)),
    ((4, 4), 1 << 20, 1, (1, 4, 2)), ((16, 16), 1 << 20, 1, (1, 1, 1)),
    ((2, 1), 64 << 20, 2, (7, 296, 8))])
def test_rounds_fit_vector_memory(shape: tuple[int, int], size: int, arrays: int,
                                  wanted: tuple[int, int, int]) -> None:
    plan = RingPlan.of(V2, shape, size, arrays)
    assert (plan.rounds, plan.block, plan.piece) == wanted
    assert plan.bytes >= size
    assert not plan.block % plan.piece
    for core in range(2):
        assert len(reduce_program(plan, core)) < 400


def test_a_torus_with_one_row_has_one_axis() -> None:
    plan = RingPlan.of(TINY, (1, 3), 100)
    assert [plan.axes(core) for core in range(2)] == [(1, 0), (1, 0)]
    assert [plan.sides(core) for core in range(2)] == [(3, 1), (3, 1)]


@pytest.mark.parametrize(("config", "shape", "size", "message"), [
    (Config.preset("tiny"), (2, 2), 1, "chips must have two cores and links"),
    (TINY, (1, 1), 1, "shape must have at least two chips, not (1, 1)"),
    (TINY, (2, 33), 1, "side of the torus must be from 1 to 32, not 33"),
    (TINY, (2, 2), 0, "size must be at least 1, not 0")])
def test_wrong_sizes_are_refused(config: Config, shape: tuple[int, int], size: int,
                                 message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        RingPlan.of(config, shape, size)


def test_too_many_chips_are_refused() -> None:
    with pytest.raises(MemoryError, match="at least 400 vectors, not 256"):
        RingPlan.of(TINY, (10, 10), 1 << 16)
