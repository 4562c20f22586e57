"""Sums over all chips of a pod: the golden order of additions, in any order of events."""

import re
from typing import Any

import numpy as np
import pytest

from golden.torus.reduce import all_reduced
from golden.vpu import evaluate
from hdl.isa import VectorOp
from sim.asm.text import assemble
from sim.driver.collectives.reduce import AllReduce
from systolith import Config, DeviceTimeoutError, HbmOptions, Pod

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
            assert not any(device.read_semaphores(core).any()
                           for device in pod.devices for core in range(2))
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
    """The all-reduce of the first pod has three rounds; every run leaves all semaphores at 0."""
    with Pod.open(shape, "tiny", **options) as pod:
        reduction = check_sums(pod, elements, arrays, 2)
        assert reduction.plan.rounds == (3 if arrays == 2 else 1)


def test_runs_that_fail_leave_no_program_running() -> None:
    with Pod.open((2, 1), "tiny", "golden") as pod, AllReduce(pod, 777) as reduction:
        with pytest.raises(DeviceTimeoutError):
            reduction.run(cycles=50)
        assert not any(device.running(core) for device in pod.devices for core in range(2))
        reduction.close()
        check_sums(pod, 777, 1)


def test_stale_semaphores_are_reset() -> None:
    with Pod.open((2, 1), "tiny", "golden") as pod:
        for semaphore in range(8):
            pod[1, 0].signal(1, semaphore)
        check_sums(pod, 777, 1)
        assert not pod[1, 0].read_semaphores(1).any()


def test_running_programs_are_left_alone() -> None:
    with Pod.open((2, 1), "tiny", "golden") as pod, AllReduce(pod, 8) as reduction:
        pod[1, 0].write_smem(1, 0, np.full(4, 7, np.uint32))
        pod[1, 0].load(1, assemble("{ misc.wait sem9, 1 } { s1.halt }"))
        pod[1, 0].start(1)
        for method in (reduction.run, reduction.load):
            with pytest.raises(RuntimeError, match="a program is running on core 1"):
                method()
        assert pod[1, 0].read_smem(1, 0, 4).tolist() == [7] * 4
        assert pod[1, 0].running(1)


def test_closed_reductions() -> None:
    pod = Pod.open((2, 1), "tiny", "golden")
    reduction, other = AllReduce(pod, 8), AllReduce(pod, 8)
    reduction.close()
    for method in (reduction.run, reduction.load):
        with pytest.raises(RuntimeError, match="the reduction is closed"):
            method()
    pod.close()
    other.close()
    other.close()


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
            for place in ([[0], 0], (0, 0, 0), 0):
                with pytest.raises(TypeError, match="place must be a pair of integers, not "):
                    reduction.read(place)  # type: ignore[arg-type]
            reduction.write([1, 0], np.arange(5, dtype=np.float32))
            np.testing.assert_array_equal(reduction.read([1, 0]), np.arange(5))
        with pytest.raises(RuntimeError, match="the reduction is closed"):
            reduction.read((0, 0))
        free = pod[0, 0].free_bytes
        with pytest.raises(MemoryError):
            AllReduce(pod, pod.config.hbm_bytes // 4)
        assert pod[0, 0].free_bytes == free
        with pytest.raises(TypeError, match="pod must be a Pod"):
            AllReduce(Config(), 5)  # type: ignore[arg-type]
