"""Functions with `jax.shard_map` over all devices of a pod: the cores of all chips of a torus."""

import pathlib
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from golden.torus.reduce import pod_sum
from hdl import store
from hdl.dma.format import pack_remote
from sim.asm.text import assemble
from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.streamed import Form
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.torus import CORES, Torus
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.importer.sharding import collectives as module
from sim.compiler.importer.sharding import rings
from sim.compiler.importer.sharding.collectives import LARGE
from sim.compiler.pod import PodExecutable
from sim.compiler.program import cache, driver
from sim.compiler.program.code.reserved import EXCHANGED
from sim.compiler.program.driver import compile_graph, compile_pod
from sim.compiler.program.launch.exchange import NearExchange
from sim.compiler.program.launch.sums import PodSums, Running
from sim.compiler.program.order import _Scheduler
from sim.compiler.program.places.places import Places
from sim.compiler.tiling import standard
from sim.driver import pod as pods
from sim.errors import CoreFaultError
from sim.models.chip.torus import ChipTorus
from systolith import Config, HbmOptions, Pod, UnsupportedError

Function = Callable[..., Any]
TINY = Config.preset("tiny", link_bytes=16)
V2 = Config.preset("v2", link_bytes=16)
STALLS = HbmOptions(latency=3, beats=1, cycles=3, outstanding=1, stalls=45_000, seed=6)


def on_pod(function: Function, devices: int, outputs: Any = None) -> Function:
    return jax.shard_map(function, mesh=AbstractMesh((devices,), ("x",)), in_specs=P("x"),
                         out_specs=P("x") if outputs is None else outputs, check_vma=False)


def lower(function: Function, *arrays: Any) -> Any:
    stage = jax.jit(function, keep_unused=True).trace(*arrays)
    return stage.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo")


def compiled(function: Function, torus: Torus, *arrays: Any) -> PodExecutable:
    return compile_pod(import_stablehlo(lower(function, *arrays), torus), TINY)


def bits(arrays: Any) -> list[Any]:
    return [np.asarray(array).view(np.uint32) for array in arrays]


def collectives(x: Any) -> Any:
    """All collectives of values of shape (2, devices)."""
    count = jax.lax.axis_size("x")
    far = [(device, (5 * device + 1) % count) for device in range(count - 1)]
    return (jax.lax.psum(x, "x"), jax.lax.pmax(x[:1, 0], "x"),
            jax.lax.all_gather(x, "x", axis=1, tiled=True),
            jax.lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
            jax.lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True),
            jax.lax.ppermute(x, "x", far),
            x + jax.lax.axis_index("x").astype(x.dtype))


def expected(x: Any, count: int) -> list[Any]:
    """What `collectives` returns for integers, without the compiler."""
    parts = np.split(x, count)
    total = sum(parts)
    moved = [np.zeros_like(parts[0])] * count
    for device in range(count - 1):
        moved[(5 * device + 1) % count] = parts[device]
    return [np.concatenate(one) for one in (
        [total] * count, [np.max([part[:1, 0] for part in parts], 0)] * count,
        [np.concatenate(parts, 1)] * count, np.split(total, count, 1),
        [np.concatenate([part[:, n:n + 1] for part in parts]) for n in range(count)],
        moved, [part + part.dtype.type(n) for n, part in enumerate(parts)])]


@pytest.mark.parametrize(("torus", "large"), [(Torus(2, 2), LARGE), (Torus(1, 3), 1)])
def test_collectives(torus: Torus, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device gets what it should, for each order of events that a seed chooses."""
    monkeypatch.setattr(module, "LARGE", large)
    count = torus.devices
    x = np.random.default_rng(4).integers(-99, 100, (2 * count, count)).astype(np.int32)
    function = on_pod(collectives, count)
    wanted = expected(x, count)
    for one, other in zip(interpret(import_stablehlo(lower(function, x), torus), [x]), wanted,
                          strict=True):
        np.testing.assert_array_equal(one, other)
    executable = compiled(function, torus, x)
    for seed in range(3):
        with Pod.open((torus.width, torus.height), TINY, "golden", seed=seed) as pod:
            for _ in range(2):
                for one, other in zip(pod.execute(executable, x), wanted, strict=True):
                    np.testing.assert_array_equal(one, other, f"seed {seed}")


@pytest.mark.parametrize(("torus", "orders"), [
    (Torus(2, 1), list(permutations(range(4)))), (Torus(2, 2), [(5, 6, 0, 2, 1, 4, 3, 7)])])
def test_permutations_within_chips_and_between_them(torus: Torus,
                                                    orders: list[tuple[int, ...]]) -> None:
    """Of two devices that send, one may send to the other core of its chip, one to another chip."""
    count = torus.devices
    x = np.arange(count, dtype=np.int32)
    with Pod.open((torus.width, torus.height), TINY, "golden") as pod:
        for order in orders:
            moved, = pod.execute(compiled(on_pod(
                lambda x, order=order: jax.lax.ppermute(x, "x", list(enumerate(order))), count),
                torus, x), x)
            assert moved.tolist() == np.argsort(order).tolist(), order


@pytest.mark.parametrize(("function", "large"), [
    (lambda x: jax.lax.psum(x, "x"), LARGE), (lambda x: jax.lax.psum(x, "x"), 1),
    (lambda x: x + jax.lax.axis_index("x").astype(np.float32), LARGE)])
def test_devices_share_two_plans(function: Function, large: int,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each core number; the programs of the chips differ in constants at most."""
    monkeypatch.setattr(module, "LARGE", large)
    plan, made = driver._plan, []

    def counted(*given: Any) -> Any:
        made.append(given)
        return plan(*given)

    monkeypatch.setattr(driver, "_plan", counted)
    x = np.random.default_rng(1).integers(-9, 10, (64, 4)).astype(np.float32)
    executable = compiled(on_pod(function, 8), Torus(2, 2), x)
    assert len(made) == 2
    [wanted] = interpret(import_stablehlo(lower(on_pod(function, 8), x), Torus(2, 2)), [x])
    with Pod.open((2, 2), TINY, "golden") as pod:
        np.testing.assert_array_equal(pod.execute(executable, x)[0], wanted)


@pytest.mark.parametrize("torus", [Torus(4, 1), Torus(1, 6)])
def test_devices_of_a_ring_get_the_same_bits(torus: Torus) -> None:
    count = torus.devices
    x = np.random.default_rng(6).normal(size=(3 * count, 4)).astype(np.float32)
    function = on_pod(lambda x: jax.lax.psum(x, "x"), count)
    with Pod.open((torus.width, torus.height), TINY, "golden") as pod:
        [found] = pod.execute(compiled(function, torus, x), x)
    np.testing.assert_array_equal(bits([found])[0], np.tile(bits([found[:3]])[0], (count, 1)))
    np.testing.assert_allclose(found[:3], sum(np.split(x, count)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("torus", "shape"), [
    (Torus(2, 2), (32, 8)), (Torus(2, 2), (5, 16)), (Torus(4, 2), (8, 32)), (Torus(1, 3), (12, 8))])
def test_large_sums_go_round_all_rings_both_ways(torus: Torus, shape: tuple[int, int],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of integers, which are not streamed; each device gets them, whatever arrives first."""
    monkeypatch.setattr(module, "LARGE", 1)
    monkeypatch.setattr(rings, "_TILE", (TINY.sublanes, TINY.lanes))
    count, axes = torus.devices, [(axis, way) for axis, side in (
        ("x", torus.width), ("y", torus.height)) if side > 1 for way in (1, -1)]
    x = np.random.default_rng(7).integers(-99, 100, (count * shape[0], shape[1]), np.int32)
    graph = import_stablehlo(lower(on_pod(lambda x: jax.lax.psum(x, "x"), count), x), torus)
    ways = {(kind, way) for operation in graph.walk() if operation.kind == "exchange"
            for way in [operation.attributes.get("way", 1)]
            if (kind := torus.ring(operation.attributes["sources"], way)) != "core"}
    assert ways == {*axes}
    wanted = np.tile(sum(np.split(x, count)), (count, 1))
    np.testing.assert_array_equal(interpret(graph, [x])[0], wanted)
    executable = compile_pod(graph, TINY)
    for seed in range(2):
        with Pod.open((torus.width, torus.height), TINY, "golden", seed=seed) as pod:
            np.testing.assert_array_equal(pod.execute(executable, x)[0], wanted)


@pytest.mark.parametrize(("torus", "shapes", "config"), [
    (Torus(2, 1), [(8, 4)], TINY), (Torus(2, 2), [(16, 8), (3, 5), ()], TINY),
    (Torus(4, 2), [(33, 8)], replace(TINY, smem_words=1024)), (Torus(1, 3), [(24, 4)], TINY),
    (Torus(3, 4), [(64, 4)], TINY)])
def test_large_sums_of_floats_are_joined_and_streamed(
        torus: Torus, shapes: list[tuple[int, ...]], config: Config,
        monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the golden bits, whatever arrives first, with one descriptor and with several."""
    monkeypatch.setattr(module, "LARGE", 32)
    count, rng = torus.devices, np.random.default_rng(8)
    arrays = [rng.normal(size=(count, *shape)).astype(np.float32) for shape in shapes]

    def function(*arrays: Any) -> list[Any]:
        return [jax.lax.psum(array[0], "x") for array in arrays]

    graph = import_stablehlo(lower(jax.shard_map(
        function, mesh=AbstractMesh((count,), ("x",)), in_specs=(P("x"),) * len(arrays),
        out_specs=[P()] * len(arrays), check_vma=False), *arrays), torus)
    executable = compile_pod(graph, config)
    assert [operation.kind for operation in graph.walk()].count("pod_sum") == 1
    packed = [np.stack([standard(shape, config).pack(item.view(np.uint32)).reshape(-1)
                        for item in array]) for shape, array in zip(shapes, arrays, strict=True)]
    words = np.concatenate(packed, 1).reshape(torus.height, torus.width, CORES, -1).swapaxes(0, 1)
    size = config.sublanes * config.lanes
    shares = SumShares.of(config, (torus.width, torus.height), words.shape[-1] // size)
    blocks = [quarter.block * size for quarter in shares.quarters(0)]
    sums = pod_sum(words, (blocks[0], blocks[1]))
    parts = np.split(sums, np.cumsum([part.shape[1] for part in packed])[:-1])
    wanted = [standard(shape, config).unpack(part.reshape(-1, config.sublanes, config.lanes))
              for shape, part in zip(shapes, parts, strict=True)]
    for seed in range(2):
        with Pod.open((torus.width, torus.height), config, "golden", seed=seed) as pod:
            for _ in range(2):
                for one, other in zip(bits(pod.execute(executable, *arrays)), wanted, strict=True):
                    np.testing.assert_array_equal(one, other)


def noted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[bool]:
    """Return a list to which each call of a method appends whether its result is true."""
    method, made = getattr(owner, name), list[bool]()

    def record(*arguments: Any) -> Any:
        result = method(*arguments)
        made.append(bool(result))
        return result

    monkeypatch.setattr(owner, name, record)
    return made


@pytest.mark.parametrize(("torus", "silent"), [
    (Torus(2, 1), 0), (Torus(4, 2), 0), (Torus(2, 1), 100)])
def test_kernels_run_between_the_steps_of_an_early_sum(
        torus: Torus, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps within a product, and after a kernel; the rest when a kernel needs the sum.

    With ``silent``, all kernels but the last run while the first blocks are under way. The last one
    follows the last steps. Numbers are integers, so the sums are exact in any order.
    """
    monkeypatch.setattr(module, "LARGE", 32)
    monkeypatch.setattr(sys.modules["sim.compiler.passes.join_sums"], "_STEPS", 0)
    monkeypatch.setattr(_Scheduler, "_LEAST", 0)
    monkeypatch.setattr(sys.modules["sim.compiler.program.launch.sums"], "_URGENT", 1)
    monkeypatch.setattr(sys.modules["sim.compiler.program.launch.sums"], "_SILENT", silent)
    if silent:
        # Blocks have two pieces.
        monkeypatch.setattr(sys.modules["sim.compiler.collectives.shares"], "_MOST_APART", 3)
    written: list[tuple[str, int]] = []
    taken = {name: noted(monkeypatch, owner, name)
             for owner, name in ((PodSums, "store"), (Places, "extend"))}

    def recorded(name: str, write: Function) -> Function:
        def record(run: Running, b: Any, number: int) -> None:
            run.period = 60
            written.append((name, run.done))
            write(run, b, number)
        return record

    for name in ("write", "write_within"):
        monkeypatch.setattr(Running, name, recorded(name, getattr(Running, name)))

    def function(x: Any, y: Any) -> Any:
        one = jax.lax.psum(x, "x")
        other = jax.lax.psum(jax.nn.relu((x + 1) @ (y - 1)) - 1.0, "x")
        return 2 * one, 3 * other

    rng = np.random.default_rng(10)
    x, y = (rng.integers(-4, 5, (torus.devices * rows, columns)).astype(np.float32)
            for rows, columns in ((24, 16), (16, 16)))
    graph = import_stablehlo(lower(on_pod(function, torus.devices, (P(), P())), x, y), torus)
    config = replace(TINY, smem_words=1024, vmem_bytes=32 << 10)
    executable = compile_pod(graph, config)
    first = sum(np.split(x, torus.devices))
    second = sum(np.maximum((one + 1) @ (other - 1), 0) - 1 for one, other in zip(
        np.split(x, torus.devices), np.split(y, torus.devices), strict=True))
    for seed in range(2):
        with Pod.open((torus.width, torus.height), config, "golden", seed=seed) as pod:
            for _ in range(2):
                one, other = pod.execute(executable, x, y)
                np.testing.assert_array_equal(one, 2 * first)
                np.testing.assert_array_equal(other, 3 * second)
    assert any(taken["store"]), "a result leaves to HBM during the second sum"
    assert any(taken["extend"]), "the second sum's operand is not copied to the workspace"
    half = written[:len(written) // 2]
    assert written == half * CORES, written
    names = [name for name, _ in half]
    if silent:
        assert [number for _, number in half] == [0, 2, 0, 2, 3, 4, 5]
        return
    assert names[0] == "write"
    assert names.count("write_within") >= 2
    assert names.count("write") >= 3


def led_kernel(torus: Torus, rows: int, monkeypatch: pytest.MonkeyPatch
               ) -> tuple[PodExecutable, list[Any], list[Any]]:
    """Return a program whose last kernel follows the last steps of a sum, inputs, and results.

    Numbers are integers, so the sums are exact in any order.
    """
    monkeypatch.setattr(module, "LARGE", 32)
    monkeypatch.setattr(sys.modules["sim.compiler.passes.join_sums"], "_STEPS", 0)
    monkeypatch.setattr(_Scheduler, "_LEAST", 0)
    led = noted(monkeypatch, PodSums, "completed")

    def function(x: Any, y: Any, weights: Any, rate: Any) -> Any:
        one = jax.lax.psum(x, "x")
        other = jax.lax.psum(jax.nn.relu((x + 1) @ (y - 1)) - 1.0, "x")
        return 2 * one, weights - rate * other

    count, rng = torus.devices, np.random.default_rng(rows)
    x, y, weights = (rng.integers(-4, 5, shape).astype(np.float32)
                     for shape in ((count * rows, 16), (count * 16, 16), (rows, 16)))
    arrays = [x, y, weights, np.array(3, np.float32)]
    mapped = jax.shard_map(function, mesh=AbstractMesh((count,), ("x",)), check_vma=False,
                           in_specs=(P("x"), P("x"), P(), P()), out_specs=(P(), P()))
    executable = compile_pod(import_stablehlo(lower(mapped, *arrays), torus),
                             replace(TINY, smem_words=1024, vmem_bytes=32 << 10))
    assert any(led)
    other = sum(np.maximum((one + 1) @ (other - 1), 0) - 1 for one, other in zip(
        np.split(x, count), np.split(y, count), strict=True))
    return executable, arrays, [2 * sum(np.split(x, count)), weights - 3 * other]


@pytest.mark.parametrize(("torus", "rows"), [
    (Torus(2, 1), 24), (Torus(1, 3), 24), (Torus(3, 1), 50), (Torus(2, 2), 29), (Torus(4, 2), 24),
    (Torus(2, 3), 37)])
def test_last_kernel_follows_the_last_steps_of_a_sum(torus: Torus, rows: int,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Each core stores the vectors of its own half; some sums have padding."""
    executable, arrays, wanted = led_kernel(torus, rows, monkeypatch)
    for seed in range(2):
        with Pod.open((torus.width, torus.height), executable.config, "golden", seed=seed) as pod:
            for _ in range(2):
                for one, other in zip(pod.execute(executable, *arrays), wanted, strict=True):
                    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("torus", "rows"), [
    (Torus(2, 1), 29), (Torus(2, 2), 24), (Torus(4, 2), 24), (Torus(2, 3), 37)])
def test_last_kernel_in_rtl_on_random_wires(torus: Torus, rows: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Each direction has a wire of its own latency, and memories stall most of the time.

    On tori of up to four chips, also with wires of equal latency and memories that never stall.
    """
    executable, arrays, wanted = led_kernel(torus, rows, monkeypatch)
    latencies = np.random.default_rng(rows).integers(5, 80, (torus.chips, 4))
    for latency, memory in ((latencies, STALLS), (64, None))[:1 if torus.chips > 4 else 2]:
        with Pod.open((torus.width, torus.height), executable.config, latency=latency,
                      memory=memory) as pod:
            for one, other in zip(pod.execute(executable, *arrays), wanted, strict=True):
                np.testing.assert_array_equal(one, other)


def test_only_the_last_sum_leads_the_last_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel also reads an early sum, whose halves have other sizes."""
    monkeypatch.setattr(module, "LARGE", 32)
    monkeypatch.setattr(sys.modules["sim.compiler.passes.join_sums"], "_STEPS", 0)
    monkeypatch.setattr(_Scheduler, "_LEAST", 0)
    made: list[tuple[Form, SumShares]] = []
    prepare = PodSums.prepare

    def recorded(sums: PodSums, operation: Any, **options: Any) -> None:
        prepare(sums, operation, **options)
        made.extend((item.form, item.shares) for item in [*sums._prepared.values()][-1:])

    monkeypatch.setattr(PodSums, "prepare", recorded)

    def function(x: Any, y: Any, z: Any, weights: Any) -> Any:
        return weights - jax.lax.psum(jax.nn.relu(x @ y), "x") - jax.lax.psum(z, "x")

    torus, rng = Torus(2, 1), np.random.default_rng(9)
    x, y, z, weights = arrays = [rng.integers(-4, 5, shape).astype(np.float32) for shape in (
        (4 * 14, 48), (4 * 48, 52), (4 * 14, 52), (14, 52))]
    mapped = jax.shard_map(function, mesh=AbstractMesh((4,), ("x",)), check_vma=False,
                           in_specs=(P("x"), P("x"), P("x"), P()), out_specs=P())
    executable = compile_pod(import_stablehlo(lower(mapped, *arrays), torus), replace(
        TINY, link_bytes=4, smem_words=1024, vmem_bytes=64 << 10))
    other = sum(np.maximum(one @ other, 0) for one, other in zip(
        np.split(x, 4), np.split(y, 4), strict=True))
    with Pod.open((2, 1), executable.config, "golden") as pod:
        [found] = pod.execute(executable, *arrays)
    np.testing.assert_array_equal(found, weights - other - sum(np.split(z, 4)))
    assert [form for form, _ in made] == [Form.STEPS, Form.LEADS] * CORES
    assert made[0][1].half != made[1][1].half


@pytest.mark.parametrize(("config", "apart"), [
    (V2, True), (replace(V2, sublanes=1, smem_words=1024), False)])
def test_image_of_a_sum_fills_only_words_that_kernels_do_not_use(
        config: Config, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer loads whole rows, which are longer than the image."""
    monkeypatch.setattr(module, "LARGE", 32)
    monkeypatch.setattr(sys.modules["sim.compiler.passes.join_sums"], "_STEPS", 0)
    monkeypatch.setattr(_Scheduler, "_LEAST", 0)
    torus, loaded = Torus(2, 1), []
    prepare = PodSums.prepare

    def recorded(sums: PodSums, operation: Any, **options: Any) -> None:
        prepare(sums, operation, **options)
        made = sums._prepared.get(operation.attributes["device"].number)
        if made is None:
            return
        memory = sums._context.memory
        rows = -(-len(made.room) // config.lanes)
        divided = made.form is not Form.WHOLE
        loaded.append(divided)
        assert made.room.start + rows * config.lanes <= memory.to_window
        assert not divided or memory.kernel.stop <= made.room.start

    monkeypatch.setattr(PodSums, "prepare", recorded)

    def function(x: Any, y: Any) -> Any:
        one = jax.lax.psum(x, "x")
        other = jax.lax.psum(jax.nn.relu((x + 1) @ (y - 1)) - 1.0, "x")
        return 2 * one, 3 * other

    shapes = [(torus.devices * 512, 512)] * 2
    compile_pod(import_stablehlo(lower(on_pod(function, torus.devices, (P(), P())), *(
        np.zeros(shape, np.float32) for shape in shapes)), torus), config)
    assert apart in loaded


@pytest.mark.parametrize("words", [384, 448])
def test_sums_in_little_scalar_memory(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image overlaps another one, nor is it overwritten before its sum.

    Kernels may run during the second sum only, and with 384 words, there is no room for its table.
    """
    monkeypatch.setattr(module, "LARGE", 32)
    monkeypatch.setattr(_Scheduler, "_LEAST", 0)
    torus, ready = Torus(2, 1), list[bool]()
    write = PodSums.write

    def record(sums: PodSums, *arguments: Any, **options: Any) -> None:
        write(sums, *arguments, **options)
        ready.append(sums.running)

    monkeypatch.setattr(PodSums, "write", record)

    def function(x: Any) -> Any:
        first = jax.lax.psum(x, "x")
        product = jnp.clip(first.T @ x, -4, 4)
        return first, 2 * jax.lax.psum(jax.nn.relu(first + x), "x"), product @ product

    x = np.random.default_rng(2).integers(-2, 3, (torus.devices * 24, 16)).astype(np.float32)
    graph = import_stablehlo(
        lower(on_pod(function, torus.devices, (P(), P(), P("x"))), x), torus)
    wanted = interpret(graph.copy(), [x])
    config = replace(TINY, smem_words=words, vmem_bytes=64 << 10)
    executable = compile_pod(graph, config)
    assert ready == [False, words > 384] * CORES
    with Pod.open((2, 1), config, "golden") as pod:
        for one, other in zip(pod.execute(executable, x), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_too_little_scalar_memory_for_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 1)
    x = np.zeros((4, 16), np.float32)
    graph = import_stablehlo(
        lower(on_pod(lambda x: jax.lax.psum(x, "x"), 4, P()), x), Torus(2, 1))
    with pytest.raises(MemoryError, match="must have 23 words for kernels, not 20"):
        compile_pod(graph, replace(TINY, smem_words=160))


def test_a_value_returned_whole_and_in_parts() -> None:
    """Each core of a chip writes half of the first output, and all of its part of the second."""
    def function(x: Any) -> Any:
        total = 2 * jax.lax.psum(x, "x")
        return total, total

    x = np.random.default_rng(5).integers(-9, 10, (4 * 24, 16)).astype(np.float32)
    executable = compiled(on_pod(function, 4, (P(), P("x"))), Torus(2, 1), x)
    total = 2 * sum(np.split(x, 4))
    with Pod.open((2, 1), TINY, "golden") as pod:
        whole, parts = pod.execute(executable, x)
    np.testing.assert_array_equal(whole, total)
    np.testing.assert_array_equal(parts, np.tile(total, (4, 1)))


def test_products_send_nothing_while_a_sum_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange between the cores of a chip uses a semaphore with which the sum counts."""
    monkeypatch.setattr(module, "LARGE", 32)
    monkeypatch.setattr(sys.modules["sim.compiler.passes.join_sums"], "_STEPS", 0)
    monkeypatch.setattr(_Scheduler, "_LEAST", 0)
    torus = Torus(2, 1)
    places = {torus.place(device): device for device in range(torus.devices)}
    pairs = [(device, places[1 - core, x, y]) for (core, x, y), device in places.items()]
    write, begin, started = PodSums.write, NearExchange.start, list[bool]()
    sums: set[PodSums] = set()

    def record(self: PodSums, *arguments: Any, **options: Any) -> None:
        sums.add(self)
        write(self, *arguments, **options)

    def start(self: NearExchange, *arguments: Any) -> None:
        started.append(any(one.running for one in sums))
        begin(self, *arguments)

    monkeypatch.setattr(PodSums, "write", record)
    monkeypatch.setattr(NearExchange, "start", start)

    def function(x: Any, y: Any, z: Any) -> Any:
        other = jax.nn.relu((x + 1) @ (y - 1)) - 1.0
        return (2 * jax.lax.psum(x, "x"), 3 * jax.lax.psum(other, "x"),
                jax.lax.ppermute(z @ y, "x", pairs))

    rng = np.random.default_rng(10)
    x, y, z = (rng.integers(-4, 5, (torus.devices * rows, 16)).astype(np.float32)
               for rows in (24, 16, 40))
    graph = import_stablehlo(
        lower(on_pod(function, torus.devices, (P(), P(), P("x"))), x, y, z), torus)
    config = replace(TINY, smem_words=1024, vmem_bytes=32 << 10)
    executable = compile_pod(graph, config)
    assert started
    assert not any(started)
    with Pod.open((2, 1), config, "golden") as pod:
        moved = pod.execute(executable, x, y, z)[2]
    products = [one @ other for one, other in zip(np.split(z, torus.devices),
                                                  np.split(y, torus.devices), strict=True)]
    for source, target in pairs:
        np.testing.assert_array_equal(np.split(moved, torus.devices)[target], products[source])


def test_a_sum_between_exchanges_may_need_all_of_vector_memory(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """No vectors are reserved for the second exchange until the sum is complete.

    Vector memory has no room for the values of the sum, its workspace, and the exchanged value.
    """
    monkeypatch.setattr(module, "LARGE", 32)
    torus = Torus(2, 1)
    places = {torus.place(device): device for device in range(torus.devices)}
    across = [(device, places[core, 1 - x, y]) for (core, x, y), device in places.items()]

    def function(a: Any, b: Any) -> Any:
        a = jax.lax.ppermute(a, "x", across)
        return jax.lax.ppermute(2 * a, "x", across), jax.lax.psum(b, "x")

    rng = np.random.default_rng(9)
    a, b = (rng.integers(-99, 100, shape).astype(np.float32) for shape in ((64, 4), (8, 368)))
    vectors = standard((2, 368), TINY).vectors
    shares = SumShares.of(TINY, (2, 1), vectors)
    left = TINY.vmem_vectors - vectors - shares.workspace
    assert 0 <= left < standard((16, 4), TINY).vectors
    executable = compiled(on_pod(function, torus.devices, (P("x"), P())), torus, a, b)
    with Pod.open((2, 1), TINY, "golden") as pod:
        doubled, total = pod.execute(executable, a, b)
    np.testing.assert_array_equal(doubled, 2 * a)
    np.testing.assert_array_equal(total, sum(np.split(b, torus.devices)))


@pytest.mark.parametrize(("torus", "shape"), [(Torus(), (100, 10)), (Torus(2, 1), (10, 100))])
def test_narrow_values_are_transposed_for_links_only(torus: Torus, shape: tuple[int, int]) -> None:
    """Between the cores of a chip, a transposition would take longer than the padding."""
    x = np.zeros((torus.devices * 100, 10), np.float32)
    graph = import_stablehlo(
        lower(on_pod(lambda x: jax.lax.psum(x, "x"), torus.devices), x), torus)
    assert {operation.result.shape for operation in graph.walk()
            if operation.kind == "exchange"} == {shape}


@pytest.mark.parametrize("rows", [1, 8, 31])
def test_sums_of_few_rows_send_little_padding(rows: int,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """All exchanges together have at most eight times the elements of the value."""
    monkeypatch.setattr(module, "LARGE", 1)
    x = np.zeros((16 * rows, 512), np.float32)
    graph = import_stablehlo(lower(on_pod(lambda x: jax.lax.psum(x, "x"), 16), x), Torus(4, 2))
    sent = sum(operation.result.type.size for operation in graph.walk()
               if operation.kind == "exchange")
    assert 0 < sent <= 8 * rows * 512


def sums(x: Any) -> Any:
    """Sums whose order and rounding shows, over all devices and in other groups."""
    count = jax.lax.axis_size("x")
    crossed = [[device, count - 1 - device] for device in range(count // 2)]
    neighbours = [[device, device + 1] for device in range(0, count, 2)]
    total = jax.lax.psum(x, "x")
    return (total, jax.lax.psum(total * x, "x", axis_index_groups=crossed),
            jax.lax.psum(x * 0.37, "x", axis_index_groups=neighbours), jax.lax.psum(x[0], "x"))


def test_bits_in_rtl_do_not_depend_on_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices get the same bits of a sum, whatever wires and memories do."""
    monkeypatch.setattr(module, "LARGE", 24)
    x = np.random.default_rng(6).normal(size=(16, 8)).astype(np.float32)
    executable = compiled(on_pod(sums, 4), Torus(2, 1), x)
    with Pod.open((2, 1), TINY, "golden") as pod:
        golden = pod.execute(executable, x)
    np.testing.assert_array_equal(bits(golden[:1])[0], np.tile(bits(golden[:1])[0][:4], (4, 1)))
    np.testing.assert_allclose(golden[0][:4], sum(np.split(x, 4)), rtol=1e-5, atol=1e-5)
    for latency, memory in ((1, None), (37, STALLS)):
        with Pod.open((2, 1), TINY, latency=latency, memory=memory) as pod:
            found = pod.execute(executable, x)
            assert set(pod.last_run) == {(x, 0, core) for x in range(2) for core in range(2)}
        for one, other in zip(bits(found), bits(golden), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (4, 2), (4, 4)])
def test_collectives_in_rtl_on_random_wires(shape: tuple[int, int],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """All collectives with a wire of its own latency in each direction, and memories that stall.

    All devices send at the same time. On tori of up to four chips, memories stall most of the
    time, and the cycles do not depend on the quantum of the simulation.
    """
    monkeypatch.setattr(module, "LARGE", 24)
    torus = Torus(*shape)
    count = torus.devices
    rng = np.random.default_rng(count)
    x = rng.integers(-99, 100, (2 * count, count)).astype(np.int32)
    y = rng.normal(size=(count * count, 3)).astype(np.float32)
    executable = compiled(on_pod(lambda x, y: (*collectives(x), jax.lax.psum(y, "x")), count),
                          torus, x, y)
    with Pod.open(shape, TINY, "golden") as pod:
        golden = pod.execute(executable, x, y)
    for one, other in zip(golden, expected(x, count), strict=False):
        np.testing.assert_array_equal(one, other)
    latencies = rng.integers(5, 80, (count // 2, 4))
    runs = []
    # Most of the time of a large torus is simulation, so it is simulated once, and faster.
    large = torus.chips > 4
    memory = replace(STALLS, cycles=1, stalls=20_000) if large else STALLS
    for quantum, threads in ((None, None), (1, 1))[:1 if large else 2]:
        monkeypatch.setattr(pods, "ChipTorus", partial(ChipTorus, quantum=quantum,
                                                       threads=threads))
        with Pod.open(shape, TINY, latency=latencies, memory=memory) as pod:
            found = pod.execute(executable, x, y)
            runs.append((pod.last_run, pod.link_counters()))
        for one, other in zip(bits(found), bits(golden), strict=True):
            np.testing.assert_array_equal(one, other)
    assert all(run == runs[0] for run in runs)


def test_meshes_with_several_axes() -> None:
    """Parts along two dimensions, replicas, and sums along one axis of the mesh."""
    def function(x: Any, y: Any) -> Any:
        return jax.lax.psum(x, "model") + y, jax.lax.psum(y, "data")

    mapped = jax.shard_map(function, mesh=AbstractMesh((2, 4), ("data", "model")),
                           in_specs=(P("data", "model"), P("data")),
                           out_specs=(P("data"), P()), check_vma=False)
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-9, 10, shape).astype(np.int32) for shape in ((6, 8), (6, 2)))
    with Pod.open((2, 2), TINY, "golden") as pod:
        first, second = pod.execute(compiled(mapped, Torus(2, 2), x, y), x, y)
    np.testing.assert_array_equal(first, x.reshape(6, 4, 2).sum(1) + y)
    np.testing.assert_array_equal(second, y[:3] + y[3:])


def test_wrong_programs_are_refused() -> None:
    x = np.zeros((8, 4), np.float32)
    function = on_pod(lambda x: jax.lax.psum(x, "x"), 4)
    with pytest.raises(UnsupportedError, match="a mesh of 4 devices: use a mesh of all 8 devices"):
        import_stablehlo(lower(function, x), Torus(2, 2))
    partial = jax.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P(),
                            mesh=AbstractMesh((2, 2), ("data", "model")), axis_names={"data"},
                            check_vma=False)
    with pytest.raises(UnsupportedError, match=r"some axes of a mesh \(data\): use"):
        import_stablehlo(lower(partial, x), Torus(2, 1))
    graph = import_stablehlo(lower(function, x), Torus(2, 1))
    with pytest.raises(ValueError, match="must be compiled for a pod, by compile_pod"):
        compile_graph(graph.copy(), TINY)
    with pytest.raises(ValueError, match="chips with links: link_bytes must not be 0"):
        compile_pod(graph.copy(), Config.preset("tiny"))
    with pytest.raises(UnsupportedError, match=r"plus, which is not divided between the devices of "
                       r"a pod: use jax\.shard_map over a mesh of all its devices"):
        compile_pod(import_stablehlo(lower(lambda x: x + 1, x), Torus(2, 1)), TINY, name="plus")
    executable = compile_pod(graph, TINY)
    with Pod.open((1, 2), TINY, "golden") as pod:
        with pytest.raises(ValueError, match=re.escape("pod of shape (1, 2), not (2, 1)")):
            pod.execute(executable, x)
        with pytest.raises(TypeError, match="executable must be"):
            pod.execute(executable.chips[0], x)  # type: ignore[arg-type]
    with Pod.open((2, 1), "tiny", "golden") as pod:
        with pytest.raises(ValueError, match=re.escape("must be given 1 arrays (input0), not 0")):
            pod.execute(executable)
        with pytest.raises(ValueError, match="input0 must be of shape"):
            pod.execute(executable, x[1:])


def test_a_fault_names_chip_and_core_and_leaves_the_pod_usable() -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    good = compiled(on_pod(lambda x: jax.lax.psum(x, "x"), 4), Torus(2, 1), x)
    [first, second] = good.chips
    fails = {1: assemble("{ misc.signal_remote sem3, s0, 9 }")}
    bad = replace(good, chips=(first, replace(
        second, link=lambda addresses: {**second.link(addresses), **fails})))
    with Pod.open((2, 1), TINY, "golden") as pod:
        free = pod[1, 0].free_bytes
        with pytest.raises(CoreFaultError, match=re.escape(
                "chip (1, 0), core 1, stopped with fault DMA_RANGE at bundle 0")):
            pod.execute(bad, x)
        assert pod[1, 0].free_bytes == free
        assert not pod.last_run
        [found] = pod.execute(good, x)
    np.testing.assert_array_equal(found, np.tile(sum(np.split(x, 4)), (4, 1)))


def test_signals_of_earlier_programs_do_not_reach_an_executable() -> None:
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    executable = compiled(on_pod(lambda x: jax.lax.psum(x, "x"), 4, P()), Torus(2, 1), x)
    signals = assemble(f"{{ s0.add s1, s0, {pack_remote(1, 0, 0)} }} "
                       f"{{ misc.signal_remote sem{EXCHANGED}, s1, 4 }} {{ s1.halt }}")
    stays = assemble("{ s1.jump 0 }")
    for seed in (1, 2):
        with Pod.open((2, 1), TINY, "golden", seed=seed) as pod:
            def check() -> None:
                for _ in range(2):
                    np.testing.assert_array_equal(pod.execute(executable, x)[0],
                                                  sum(np.split(x, 4)))

            pod.run({(0, 0, 0): signals})
            check()
            # The packet may still be under way when the device's program has ended.
            pod[0, 0].run({0: signals})
            assert (pod[1, 0].matmul(x[:2, :2], x[:2, :2]) == x[:2, :2] @ x[:2, :2]).all()
            assert not pod[1, 0].read_semaphores(0)[EXCHANGED]
            check()
            pod[1, 0].load(1, stays)
            pod[1, 0].start(1)
            with pytest.raises(RuntimeError, match="a program is running on core 1"):
                pod.execute(executable, x)
            assert pod[1, 0].running(1)


def test_programs_are_cached(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path))
    monkeypatch.delenv("SYSTOLITH_DUMP", raising=False)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    text = lower(on_pod(lambda x: jax.lax.psum(x, "x"), 4), x)

    def outputs() -> Any:
        executable = cache.compile_pod_cached(import_stablehlo(text, Torus(2, 1)), TINY)
        with Pod.open((2, 1), TINY, "golden") as pod:
            return pod.execute(executable, x)[0]

    wanted = np.tile(sum(np.split(x, 4)), (4, 1))
    np.testing.assert_array_equal(outputs(), wanted)
    [folder] = (path for path in (store.cache_folder() / "programs").glob("pod-*") if path.is_dir())
    assert len(list(folder.iterdir())) == 2
    compile_pod = cache.compile_pod
    monkeypatch.setattr(cache, "compile_pod", None)
    np.testing.assert_array_equal(outputs(), wanted)
    # A damaged file is made anew.
    (folder / "chip1.npz").write_bytes(b"damaged")
    monkeypatch.setattr(cache, "compile_pod", compile_pod)
    np.testing.assert_array_equal(outputs(), wanted)
    assert not folder.exists()
