"""Pods: programs on all chips, faults and waits that name chip and core."""

import os
import re
import signal
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from hdl.core.interface import Space
from hdl.dma.format import pack_remote
from hdl.isa import Fault
from hdl.link.format import Direction
from sim.asm.descriptor import descriptor, remote_vmem, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.driver.backend import SIMULATED
from sim.driver.pod import Pod
from sim.errors import CoreFaultError, DeviceTimeoutError
from sim.models.chip.torus import WireFaults
from verif.models.ring import ring_program

VECTORS = 2
HALT = assemble("{ s1.halt }")
SENDS = assemble(f"{{ s0.add s1, s0, {pack_remote(1, 0, 0)} }} "
                 "{ misc.signal_remote sem3, s1, 9 } { s1.halt }")


@pytest.fixture(scope="module", params=SIMULATED)
def shared(request: pytest.FixtureRequest) -> Iterator[Pod]:
    with Pod.open((2, 2), "tiny", backend=request.param, latency=9) as pod:
        yield pod


@pytest.fixture
def pod(shared: Pod) -> Pod:
    shared.reset()
    return shared


def reduce(pod: Pod, seed: int) -> None:
    """Add random vectors over all chips, and check what each core gets."""
    rng = np.random.default_rng(seed)
    programs = {}
    wanted: dict[int, Any] = {}
    for core in range(pod.config.cores):
        made = ring_program(pod.config, pod.shape, VECTORS, core)
        programs[core] = assemble(made.text, pod.config)
        for x in range(pod.shape[0]):
            for y in range(pod.shape[1]):
                shape = VECTORS, pod.config.sublanes, pod.config.lanes
                data = rng.integers(0, 1 << 32, shape, np.uint32)
                wanted[core] = wanted.get(core, 0) + data
                pod[x, y].write_vmem(core, 0, data)
                pod[x, y].write_smem(core, 0, made.smem)
    counters = pod.run(programs, cycles=100_000)
    assert len(counters) == pod.shape[0] * pod.shape[1] * pod.config.cores
    for x, y, core in counters:
        np.testing.assert_array_equal(pod[x, y].read_vmem(core, 0, VECTORS), wanted[core],
                                      f"seed {seed}, chip {x, y}, core {core}")


def test_chips_reduce_vectors_over_rings(pod: Pod) -> None:
    reduce(pod, 1)
    reduce(pod, 2)
    assert (pod.shape, pod.config.link_bytes) == ((2, 2), 16)
    assert (pod.model is None) == (pod.backend == "golden")


def exchange(pod: Pod, seed: int) -> list[np.ndarray]:
    """Run random transfers and signals between all cores; return all memories and semaphores.

    For each of its routes, a sender has its own part of every vector memory, because packets on
    different routes have no common order. It changes its source when the transfers have left.
    """
    rng = np.random.default_rng(seed)
    places = [(x, y, core) for x in range(2) for y in range(2) for core in range(2)]
    programs = {}
    for sender, (x, y, core) in enumerate(places):
        ways = [(int(dx), int(dy), int(rng.integers(2)))
                for dx, dy in rng.permutation([(1, 0), (0, -1), (-1, 1)])]
        lines, words, left = [], [], 0
        for step in range(6):
            number = int(rng.integers(3))
            semaphore = int(rng.integers(1, 16))
            if rng.random() < 0.3:
                lines += [f"{{ s0.add s1, s0, {pack_remote(*ways[number])} }}",
                          f"{{ misc.signal_remote sem{semaphore}, s1, {int(rng.integers(99))} }}"]
                continue
            count = int(rng.integers(1, 4))
            made = descriptor(
                pod.config, vmem(200), remote_vmem(
                    6 * (3 * sender + number) + int(rng.integers(4)), *ways[number],
                    run=1, stride=int(rng.integers(-1, 2)) if count < 2 else 1),
                rows=2 * count, semaphore=sem[0], remote_semaphore=sem[semaphore])
            words += [*made, *[0] * (16 - len(made))]
            lines.append(f"{{ misc.dma {len(words) - 16} | s0.add s2, s2, {step} }}")
            left += 1
            if rng.random() < 0.6:
                lines += [f"{{ misc.wait sem0, {left} }}", "{ ld.load v1, s0, 200 }",
                          "{ v0.add v1, v1, s2 }", "{ st.store v1, s0, 200 }"]
                left = 0
        data = rng.integers(0, 1 << 32, (256, 2, 4), np.uint32)
        pod[x, y].write_vmem(core, 0, data)
        pod[x, y].write_smem(core, 0, np.array(words, np.uint32))
        programs[x, y, core] = assemble("{ s0.add s2, s0, 1 }" + "\n".join(lines) + "{ s1.halt }")
    pod.run(programs, cycles=20_000)
    return [pod[x, y].read_vmem(core, 0, 256) for x, y, core in places] + [
        pod[x, y].read_semaphores(core) for x, y, core in places]


@pytest.mark.parametrize("seed", range(3))
def test_random_exchanges_do_not_depend_on_the_order_of_events(pod: Pod, seed: int) -> None:
    """Golden pods with other orders give the same state, and so does the hardware."""
    got = exchange(pod, seed)
    with Pod.open((2, 2), "tiny", "golden", seed=seed + 1) as golden:
        for one, other in zip(got, exchange(golden, seed), strict=True):
            np.testing.assert_array_equal(one, other, f"seed {seed}")


def test_all_cores_start_in_the_same_cycle(distant: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    torus = distant.model
    assert torus is not None
    seen = []

    def passed(cycles: int) -> None:
        seen.append({chip.running(core) for chip in torus.chips for core in range(2)})

    with monkeypatch.context() as watched:
        watched.setattr(torus, "room", lambda: 1)  # stop after every cycle
        watched.setattr(torus, "passed", passed)
        for place in np.ndindex(distant.shape):
            for core in range(2):
                distant[place].load(core, assemble("{ s1.jump 0 }"))
        torus.start([(chip, core) for chip in range(2) for core in range(2)])
    assert seen[-1] == {True}
    assert all(states in ({True}, {False}) for states in seen)
    distant.reset()


def test_runs_that_are_equal_have_equal_cycles(distant: Pod) -> None:
    """Counted cycles end when the last core rests, even if the host notices it later."""
    loop = assemble("{ s0.add s1, s0, 200 } { s1.loop s1, 1 } { s1.halt }")
    found = []
    for _ in range(3):
        counts = distant.run({0: HALT, (1, 0, 1): loop})
        assert set(counts) == {(0, 0, 0), (1, 0, 0), (1, 0, 1)}
        for count in counts.values():
            assert count["cycles"] == counts[0, 0, 0]["cycles"]
            assert sum(count.values()) == 2 * count["cycles"]
            assert count["idle_cycles"] > 100
        found.append(counts[0, 0, 0]["cycles"])
    assert len(set(found)) == 1
    assert 200 < found[0] < 230, "the loop's cycles, not those in which the host looks"


def test_one_device_waits_while_all_chips_run(pod: Pod) -> None:
    """`Device.wait` on one chip also runs its neighbour, for whose signal the chip waits."""
    pod[0, 1].load(1, assemble("{ misc.wait sem3, 9 } { s1.halt }"))
    pod[0, 0].load(0, assemble(f"{{ s0.add s1, s0, {pack_remote(0, -1, 1)} }} "
                               "{ misc.signal_remote sem3, s1, 9 } { s1.halt }"))
    pod[0, 1].start(1)
    pod[0, 0].start(0)
    pod[0, 1].wait([1], cycles=10_000)
    assert not pod[0, 1].running(1)
    pod.wait()


def test_a_fault_names_chip_and_core(pod: Pod) -> None:
    bad = assemble("{ } { misc.signal_remote sem3, s0, 9 }")
    with pytest.raises(CoreFaultError, match=re.escape(
            "chip (1, 0), core 1, stopped with fault DMA_RANGE at bundle 1: ")) as error:
        pod.run({0: HALT, (1, 0, 1): bad})
    assert (error.value.chip, error.value.core, error.value.cause) == (
        (1, 0), 1, Fault.DMA_RANGE)
    with pytest.raises(CoreFaultError, match=re.escape("chip (1, 0), core 1, stopped")):
        pod[1, 0].wait()


def test_waits_that_never_end_name_chips_and_cores(pod: Pod) -> None:
    waits = assemble("{ misc.wait sem1, 1 | s0.add s1, s0, 1 } { s1.halt }")
    with pytest.raises(DeviceTimeoutError, match=re.escape(
            "programs wait for semaphores that only the host can signal: "
            "chip (0, 1) core 0 waits at bundle 0; chip (1, 1) core 1 waits at bundle 0")) as error:
        pod.run({0: HALT, (0, 1, 0): waits, (1, 1, 1): waits})
    assert error.value.stuck
    assert set(error.value.states) == {(0, 1, 0), (1, 1, 1)}
    pod[0, 1].signal(0, 1)
    # Only the chip of a watched core knows its watchdog.
    pod[1, 1].set_watchdog(1, 1000)
    with pytest.raises(CoreFaultError, match=re.escape("chip (1, 1), core 1, stopped with fault "
                                                       "WATCHDOG")):
        pod.wait()
    pod[1, 1].set_watchdog(1, 0)


def test_a_program_that_runs_for_ever_is_named(pod: Pod) -> None:
    for limit in ({"cycles": 3000}, {"seconds": 0.0}):
        with pytest.raises(DeviceTimeoutError, match=re.escape(
                "programs have not ended in time: chip (1, 1) core 0 runs at bundle 0")) as error:
            pod.run({(1, 1, 0): assemble("{ s1.jump 0 }")}, **limit)
        assert not error.value.stuck
        pod.reset()


def test_no_packet_survives_a_reset(pod: Pod) -> None:
    """This holds for packets under way, and for those of chips that are reset a little later."""
    sends = assemble(f"{{ s0.add s1, s0, {pack_remote(1, 0, 1)} }} "
                     "{ misc.signal_remote sem3, s1, 1 | s1.jump 1 }")
    with pytest.raises(DeviceTimeoutError):
        pod.run({0: sends}, cycles=2000)
    pod.reset()
    for place in np.ndindex(pod.shape):
        assert not pod[place].read_semaphores(1).any()


@pytest.fixture
def distant() -> Iterator[Pod]:
    """A pod in RTL whose wires have the largest possible latency."""
    with Pod.open((2, 1), "tiny", latency=504) as pod:
        yield pod


def test_a_wait_ends_when_all_packets_have_arrived(distant: Pod) -> None:
    distant[0, 0].load(0, SENDS)
    distant[0, 0].start(0)
    distant[0, 0].wait([0])
    model = distant[1, 0].model
    assert model is not None
    with pytest.raises(RuntimeError, match="a chip on a torus must not be reset by its pin"):
        model.reset()
    assert model.read_words(0, Space.SEMAPHORE, 3, 1) == [0]
    distant.wait(cycles=0)
    assert model.read_words(0, Space.SEMAPHORE, 3, 1) == [9]

    assert distant.model is not None
    distant.model.set_faults({(0, Direction.X_PLUS): WireFaults(dead=(0, 1 << 62))})
    for _ in range(2):
        with pytest.raises(CoreFaultError, match=re.escape(
                "chip (0, 0), core 0, stopped with fault LINK near bundle ")):
            distant.run({(0, 0, 0): SENDS})
        distant.reset()
        distant[0, 0].load(0, SENDS)


def test_the_child_of_a_fork_may_close_a_pod(distant: Pod) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and some versions of Python warn of forks
        child = os.fork()
    if not child:
        try:
            distant.close()
            os._exit(0)
        finally:
            os._exit(1)
    ends = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < ends:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
    distant.run({0: HALT})


def test_other_chips_learn_of_a_watchdog_that_ends(distant: Pod) -> None:
    waits = assemble("{ misc.wait sem1, 1 } { s1.halt }")
    distant[1, 0].set_watchdog(0, 1 << 20)
    with pytest.raises(DeviceTimeoutError, match="not ended in time"):
        distant.run({(1, 0, 0): waits}, cycles=1)
    with pytest.raises(DeviceTimeoutError, match=re.escape("time: chip (1, 0) core 0 waits")):
        distant[1, 0].wait([0], cycles=100)
    distant[1, 0].set_watchdog(0, 0)
    with pytest.raises(DeviceTimeoutError, match="only the host can signal"):
        distant.wait(cycles=10_000)


def test_chips_compute_as_devices_do(pod: Pod) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((5, 5)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(pod[0, 0].matmul(a, b), pod[1, 1].matmul(a, b))


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"shape": 4}, TypeError, "shape must be a pair of integers, not 4"),
    ({"shape": (2, 33)}, ValueError, "side of the torus must be from 1 to 32, not 33"),
    ({"config": "v9"}, ValueError, "preset must be one of"),
    ({"config": Config(array=6, sublanes=2, vmem_bytes=48 * 8, hbm_channels=1)}, ValueError,
     "array must be a power of two, not 6"),
    ({"backend": "serial"}, ValueError, "backend must be one of rtl, golden, not 'serial'"),
    ({"seed": 1.5}, TypeError, r"seed must be an integer, not 1\.5"),
    ({"latency": 0}, ValueError, "latency must be from 1 to 504, not 0"),
    ({"latency": 505, "backend": "golden"}, ValueError, "latency must be from 1 to 504, not 505"),
    ({"latency": 2.5, "backend": "golden"}, TypeError, r"latency must be an integer, not 2\.5"),
    ({"latency": [1, 2]}, ValueError, r"latencies must have the shape \(2, 4\), not \(2,\)"),
    ({"latency": [0] * 4, "backend": "golden"}, ValueError,
     r"latencies must be from 1 to 504, not \[0, 0, 0, 0\]"),
])
def test_pods_that_cannot_be(options: dict[str, Any], error: type[Exception],
                             message: str) -> None:
    with pytest.raises(error, match=message):
        Pod.open(**{"shape": (2, 1), "config": "tiny", **options})


def test_wrong_places_are_named(pod: Pod) -> None:
    with pytest.raises(IndexError, match=re.escape("chip must be within 2 x 2, not at (2, 0)")):
        pod[2, 0]
    for key in ((2, 0, 0), (0, 0)):
        with pytest.raises(ValueError, match=re.escape(f"not for {key!r}")):
            pod.run({key: HALT})
    with pytest.raises(ValueError, match="core must be from 0 to 1, not 2"):
        pod.run({2: HALT})
    with pytest.raises(TypeError, match="programs must map cores to programs, not 5"):
        pod.run(5)  # type: ignore[arg-type]


def test_a_closed_pod() -> None:
    pod = Pod.open((1, 2), Config.preset("tiny", link_bytes=4, cores=1), "golden")
    assert pod.config.link_bytes == 4
    pod.close()
    pod.close()
    for call in (pod.wait, pod.reset, lambda: pod.run({0: HALT})):
        with pytest.raises(RuntimeError, match="pod is closed"):
            call()


@pytest.mark.slow
def test_golden_pod_of_1024_chips() -> None:
    """Each core sends a vector to the next chips along X and Y, and waits for vectors."""
    words = descriptor(Config.preset("tiny", link_bytes=16), vmem(0), remote_vmem(1, 1, 1, 0),
                       rows=2, semaphore=sem[0], remote_semaphore=sem[1])
    program = assemble("{ misc.dma 0 } { misc.wait sem0, 1 } { misc.wait sem1, 1 } { s1.halt }")
    with Pod.open((32, 32), "tiny", "golden") as pod:
        for x, y in pod.places:
            pod[x, y].write_smem(0, 0, np.array(words, np.uint32))
            pod[x, y].write_vmem(0, 0, np.full((1, 2, 4), 100 * x + y, np.uint32))
        pod.run({0: program})
        for x, y in pod.places:
            assert (pod[x, y].read_vmem(0, 1, 1) == 100 * ((x - 1) % 32) + (y - 1) % 32).all()


def test_counters_of_links_count_flits_repeats_and_stalls() -> None:
    """100 vectors of two flits cross a wire that is too long for the receiver's buffer."""
    words = descriptor(Config.preset("tiny", link_bytes=16), vmem(0), remote_vmem(0, 1, 0),
                       rows=200)
    with Pod.open((2, 1), "tiny", latency=504) as pod:
        assert pod.model is not None
        way = 0, 0, Direction.X_PLUS
        repeats = []
        for lose in (0, 0.05):
            pod.model.set_faults({(0, Direction.X_PLUS): WireFaults(lose)})
            before = pod.link_counters()
            pod[0, 0].write_smem(0, 0, np.array(words, np.uint32))
            counts = pod.run({(0, 0, 0): assemble("{ misc.dma 0 } { s1.halt }")}, cycles=50_000)
            after = pod.link_counters()
            used = {place: {name: count - before[place][name] for name, count in counters.items()}
                    for place, counters in after.items()}
            assert used[way]["cycles"] >= counts[0, 0, 0]["cycles"]
            assert {place: links["flits"] for place, links in used.items()} == {
                place: 200 if place == way else 0 for place in used}
            repeats.append(used[way]["repeated_flits"])
            assert used[way]["frames"] >= 200 + repeats[-1]
            assert 500 < used[way]["credit_stall_cycles"] < used[way]["cycles"]
            # The other end acknowledges, with frames without flits.
            assert used[1, 0, Direction.X_MINUS]["frames"] > 0
        assert repeats[0] == 0 < repeats[1]
        assert after[1, 0, Direction.X_MINUS]["credit_stall_cycles"] == 0
    with pytest.raises(RuntimeError, match="pod is closed"):
        pod.link_counters()
    with Pod.open((2, 1), "tiny", "golden") as golden:
        assert not any(any(counts.values()) for counts in golden.link_counters().values())
