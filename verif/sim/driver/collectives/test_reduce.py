"""Sums over all chips of a pod: the golden order of additions, in any order of events."""

import re
from typing import Any

import numpy as np
import pytest

from golden.torus.reduce import all_reduced
from golden.vpu import evaluate
from hdl.isa import VectorOp
from sim.driver.collectives.reduce import AllReduce
from systolith import Config, HbmOptions, Pod

STALLS = HbmOptions(latency=20, stalls=9000, seed=3)


def check_sums(pod: Pod, elements: int, arrays: int, runs: int = 1) -> AllReduce:
    """Add random arrays, and compare the bits of all results with the golden sums."""
    rng = np.random.default_rng(elements)
    with AllReduce(pod, elements, arrays) as reduction:
        plan = reduction.plan
        for _ in range(runs):
            shape = *pod.shape, arrays, elements
            values = (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(
                np.float32)
            padded = np.zeros((*shape[:3], plan.bytes // 4), np.float32)
            padded[..., :elements] = values
            first, *others = np.moveaxis(padded.view(np.uint32), 2, 0)
            for other in others:
                first = evaluate(VectorOp.FADD, first, other)
            wanted = all_reduced(first, plan.block * plan.vector_bytes // 4,
                                 plan.spread)[:elements]
            for place in np.ndindex(pod.shape):
                for number in range(arrays):
                    reduction.write(place, values[place][number], number)
            counters = reduction.run(cycles=200_000)
            assert len(counters) == 2 * plan.chips
            for place in np.ndindex(pod.shape):
                for number in range(arrays):
                    np.testing.assert_array_equal(
                        reduction.read(place, number).view(np.uint32), wanted,
                        f"chip {place}, array {number}")
    return reduction


@pytest.mark.parametrize(("shape", "elements", "arrays"), [
    ((2, 1), 777, 1), ((1, 3), 100, 2), ((3, 2), 400, 2), ((4, 4), 128, 1),
    ((2, 2), 8, 1), ((4, 2), 64, 1), ((4, 1), 2000, 1), ((2, 8), 256, 1)])
def test_golden_pods_add_in_the_golden_order(shape: tuple[int, int], elements: int,
                                             arrays: int) -> None:
    with Pod.open(shape, "tiny", "golden", seed=elements) as pod:
        free = pod[0, 0].free_bytes
        check_sums(pod, elements, arrays)
        assert pod[0, 0].free_bytes == free


@pytest.mark.parametrize(("shape", "elements", "arrays", "options"), [
    ((2, 2), 3000, 2, {"memory": STALLS, "latency": 9}), ((4, 1), 2000, 1, {"latency": 30})])
def test_chips_in_rtl_add_in_the_golden_order(shape: tuple[int, int], elements: int, arrays: int,
                                              options: dict[str, Any]) -> None:
    """The first pod needs three rounds; the second run finds the semaphores at zero."""
    with Pod.open(shape, "tiny", **options) as pod:
        reduction = check_sums(pod, elements, arrays, 2)
        assert reduction.plan.rounds == (3 if arrays == 2 else 1)


def test_wrong_arrays_are_refused() -> None:
    with Pod.open((2, 1), "tiny", "golden") as pod:
        with AllReduce(pod, 5) as reduction:
            with pytest.raises(TypeError, match="values must be an array of float32"):
                reduction.write((0, 0), np.zeros(5))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="values must have 5 elements, not 4"):
                reduction.write((0, 0), np.zeros(4, np.float32))
            with pytest.raises(ValueError, match="number must be from 0 to 0, not 1"):
                reduction.read((0, 0), 1)
            with pytest.raises(IndexError, match=re.escape("within 2 x 1, not at (2, 0)")):
                reduction.read((2, 0))
        with pytest.raises(RuntimeError, match="the reduction is closed"):
            reduction.read((0, 0))
        free = pod[0, 0].free_bytes
        with pytest.raises(MemoryError):
            AllReduce(pod, pod.config.hbm_bytes // 4)
        assert pod[0, 0].free_bytes == free
        with pytest.raises(TypeError, match="pod must be a Pod"):
            AllReduce(Config(), 5)  # type: ignore[arg-type]
