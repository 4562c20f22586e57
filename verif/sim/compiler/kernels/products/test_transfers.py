"""Products whose kernels load operands from HBM and store results there themselves."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from golden.mxu import matmul
from hdl.config import Config
from hdl.dma.interface import QUEUE_DEPTH
from sim.compiler.executable import Executable
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Sharding, TensorType, Value
from sim.compiler.kernels.products.dot import Dots, _ways
from sim.compiler.kernels.products.product import Product
from sim.compiler.kernels.products.transfers import Plan, plan_transfers
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.driver import compile_graph
from sim.compiler.tiling import standard
from systolith import Device
from verif.sim.compiler.kernels import harness

CONFIG = Config.preset("tiny", imem_bundles=8192, vmem_bytes=64 << 10, smem_words=8192)
V2 = Config.preset("v2")

SHAPES = ((24, 20, 7), (34, 32, 4), (14, 3, 29), (64, 70, 36), (3, 39, 33), (40, 40, 40),
          (2, 64, 40), (36, 17, 8), (80, 64, 13), (64, 90, 5), (8, 100, 3))


def f32(*shape: int) -> TensorType:
    return TensorType(shape, DType.F32)


def graph(rows: int, depth: int, columns: int, *, transposed: bool = False,
          sharding: Sharding | None = None, dtype: DType = DType.F32) -> Graph:
    weights = (columns, depth) if transposed else (depth, columns)
    made = Graph([Value(f32(rows, depth)), Value(TensorType(weights, dtype))], sharding=sharding)
    x, w = made.inputs
    made.outputs = [product(made, x, w, transposed)]
    return made


def product(made: Graph, x: Value, w: Value, transposed: bool = False) -> Value:
    return made.add(
        "dot_general", (x, w), f32(x.shape[0], w.shape[0 if transposed else 1]), {
            "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (1,),
            "rhs_contracting_dimensions": (1 if transposed else 0,),
            "precision_config": ("DEFAULT", "DEFAULT")}).result


def transfers(executable: Executable) -> int:
    """Number of values that the kernels of core 0 transfer themselves."""
    return len(compiled_of(executable).cores[0].overlays.row_numbers)


def check(device: Device, shape: tuple[int, int, int], transposed: bool,
          dtype: DType = DType.F32) -> int:
    rng = np.random.default_rng(sum(shape))
    rows, depth, columns = shape
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((depth, columns)).astype(array_dtype(dtype))
    executable = compile_graph(graph(*shape, transposed=transposed, dtype=dtype), device.config)
    for _ in range(2):
        [found] = device.execute(executable, a, np.ascontiguousarray(b.T) if transposed else b)
        wanted = matmul(a, b, device.config.array)
        assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32)), (shape, transposed)
    return transfers(executable)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("transposed", [False, True])
def test_golden_bits(transposed: bool, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if transfers that do not overlap with the array took very long.
    monkeypatch.setattr("sim.compiler.kernels.products.transfers._LATENCY", 1 << 20)
    with Device.open(CONFIG, "golden") as device:
        found = [check(device, shape, transposed, dtype) for shape in SHAPES]
    assert set(found) >= {2, 3}
    assert found.count(0) <= 2


def test_buffers_across_4_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each of the program's buffers, a run in which that buffer crosses 4 GiB."""
    monkeypatch.setattr("sim.compiler.kernels.products.transfers._LATENCY", 1 << 20)
    config, shape = replace(CONFIG, hbm_bytes=1 << 33), (24, 20, 7)
    buffers = compile_graph(graph(*shape), config).buffers
    before = 0
    for spec in buffers:
        rows = spec.layout.rows
        with Device.open(config, "golden") as device:
            device.allocate((1 << 32) - (before + rows // 2) * config.row_bytes)
            assert check(device, shape, False) == 3
        before += rows


def test_rtl_bits() -> None:
    # With scalar memory for fewer chunks, as the tests of other kernels, whose simulation it is.
    with Device.open(harness.CONFIG) as device:
        assert [check(device, *arguments) for arguments in (
            ((24, 20, 9), False), ((36, 17, 8), True), ((24, 21, 9), False, DType.BF16),
            ((36, 17, 10), True, DType.BF16))] == [3, 3, 3, 3]


def planned(rows: int, depth: int, columns: int, transposed: bool, packed: bool,
            config: Config) -> Product:
    """The plan of a product of these sizes, computed by depth."""
    operation = graph(rows, depth, columns, transposed=transposed).operations[0]
    tilings = [standard(value.shape, config) for value in operation.operands]
    tilings[1] = replace(tilings[1], packed=packed)
    sizes = [tiling.vectors for tiling in (*tilings, standard((rows, columns), config))]
    x, w, y = (VmemBuffer(name, 0, size) for name, size in zip("xwy", sizes, strict=True))
    [dot] = [dot for copies, dot in _ways(Dots.of(operation), tilings, config)
             if not copies and not dot.rows]
    return replace(dot.product(config, (x, w), y, [DType.F32, DType.F32], "DEFAULT"),
                   by_depth=True)


def vectors(plan: Plan, weights: bool) -> list[tuple[int, int]]:
    """For each vector of an operand that is loaded: its number, and the step that needs it."""
    return [(chunk.first + run * chunk.stride + number, chunk.step)
            for chunk in plan.chunks if chunk.weights is weights
            for run in range(chunk.runs) for number in range(chunk.run)]


def check_waits(plan: Plan) -> None:
    """Checks that each chunk's load starts before the wait for it, which precedes its use."""
    assert list(plan.waiting_steps) == sorted(set(plan.waiting_steps))
    started, arrived = plan.started_first, plan.early
    waits = dict(zip(plan.waiting_steps, plan.waits, strict=True))
    for step in sorted({*plan.waiting_steps, *((plan.half_step,) if plan.halves else ())}):
        if step == plan.half_step:
            assert plan.chunks[arrived].late
            assert plan.chunks[arrived].step == step
            arrived += 1
        started += len(plan.started[step])
        # The DMA engine's queue has room.
        assert arrived <= started <= arrived + QUEUE_DEPTH
        for chunk in plan.chunks[arrived:arrived + waits.get(step, 0)]:
            assert step < chunk.step
            assert not chunk.late
        arrived += waits.get(step, 0)
        assert arrived <= started
    assert started == arrived == len(plan.chunks)


@pytest.mark.parametrize("config", [CONFIG, V2], ids=["tiny", "v2"])
def test_all_vectors_are_loaded_once_and_in_time(config: Config) -> None:
    scale, checked, halved = config.array // 4, 0, 0
    for (rows, depth, columns), transposed, packed in itertools.product(
            SHAPES, (False, True), (False, True)):
        made = planned(rows * scale, depth * scale + 1, columns * scale, transposed, packed, config)
        plan = plan_transfers(made, (True, True), range(4096))
        if plan is None:
            continue
        plan = replace(plan, fast=checked % 2 == 0, halves=False)
        plan = replace(plan, halves=plan.can_halve)
        halved += plan.halves
        checked += 1
        check_waits(plan)
        # The levels of the product, followed step by step.
        needed: dict[bool, dict[int, int]] = {False: {}, True: {}}
        steps = itertools.product(range(plan.depths), range(plan.columns), range(plan.blocks))
        for step, (tile, column, block) in enumerate(steps):
            size, [level], [across] = made.block_rows, made.sums, made.others
            first = tile * level.rows + block * size
            for vector in range(first, first + size):
                needed[False].setdefault(vector, step)
            inner = tile * level.weight_row + column * across.weight_row
            first = tile * level.weights + column * across.weights + inner
            run = min(made.tile_vectors, made.weight_vectors - inner)
            for vector in range(first, first + run):
                needed[True].setdefault(vector, max(0, step - 1))
        for weights, buffer in ((False, made.rows), (True, made.weights)):
            loaded = vectors(plan, weights)
            assert sorted(vector for vector, _ in loaded) == list(range(buffer.vectors))
            assert all(step <= needed[weights][vector] for vector, step in loaded)
    assert checked > 2 * len(SHAPES)
    assert halved


def test_segments_have_the_addresses() -> None:
    """In a program of several segments, the code in HBM contains the buffers' addresses."""
    made = graph(24, 20, 24)
    value = made.outputs[0]
    for _ in range(3):
        made.inputs.append(Value(f32(24, 24)))
        value = product(made, value, made.inputs[-1])
    made.outputs.append(value)
    config = Config.preset("tiny", imem_bundles=1024, vmem_bytes=64 << 10, smem_words=8192)
    executable = compile_graph(made, config)
    assert compiled_of(executable).overlays.segments > 1
    assert transfers(executable) > 3
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(shape).astype(np.float32)
              for shape in ((24, 20), (20, 24), *[(24, 24)] * 3)]
    wanted = [matmul(arrays[0], arrays[1], config.array)]
    wanted.append(wanted[0])
    for array in arrays[2:]:
        wanted[1] = matmul(wanted[1], array, config.array)
    with Device.open(config, "golden") as device:
        for padding in (0, 4096):
            # Other buffers, other addresses.
            held = device.allocate(padding) if padding else None
            results = device.execute(executable, *arrays)
            assert all(map(np.array_equal, results, wanted))
            if held is not None:
                device.free(held)


def test_inputs_that_are_in_hbm_are_not_transferred() -> None:
    """The kernels do not load such inputs, whose addresses change while the code stays."""
    assert transfers(compile_graph(graph(40, 40, 40), CONFIG, standard_inputs=True)) == 0


def test_code_that_contains_addresses_does_not_stay_in_hbm() -> None:
    executable = compile_graph(graph(40, 40, 40), CONFIG)
    assert transfers(executable) > 0
    with (Device.open(CONFIG, "golden") as device,
          pytest.raises(ValueError, match="must be compiled with standard_inputs")):
        device.place(executable)


@pytest.mark.slow
def test_both_cores_keep_their_arrays_busy() -> None:
    sharding = Sharding((None, 1), (1,))
    executable = compile_graph(graph(128, 1024, 512, sharding=sharding), V2)
    a = np.ones((128, 1024), np.float32)
    b = np.full((1024, 1024), 0.5, np.float32)
    with Device.open(V2) as device:
        [found] = device.execute(executable, a, b)
        cycles = max(counts["cycles"] for counts in device.last_run.values())
    assert (found == 512).all()
    # Vector memory takes 5,120 rows, one a cycle.
    assert 128 * 1024 * 1024 / (2 * 128 * 128) / cycles > 0.6
