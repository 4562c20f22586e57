"""Programs for both cores of a chip: exchanges, shards, control flow, and memory."""

import importlib
import pathlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from sim.compiler.graph.ir import STACKED, Graph, Sharding, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import MachineCode, VmemBuffer
from sim.compiler.machine.text import code_text
from sim.compiler.program.code.reserved import LINKS
from sim.compiler.program.compiled import compiled_of, load, save
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.launch.exchange import NearExchange
from sim.compiler.program.order import hoist, overlap
from sim.compiler.program.places.memory import exchange_parts
from systolith import Config, Device
from verif.sim.compiler.program.common import TINY, Maker, check, f32, s32


def exchanged(*shape: int) -> Graph:
    """Each device returns what the other one has, plus its own number."""
    at = Maker(f32(*shape))
    [x] = at.inputs
    other = at.op("exchange", x, x)
    number = at.op("by_device", *(at.constant(np.full(shape, n, np.float32), f32(*shape))
                                  for n in (0, 1)))
    graph = at.returns(at.op("add", other, number), x)
    graph.sharding = Sharding((0,), (0, 0))
    return graph


@pytest.mark.parametrize("backend", ["golden", "rtl"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (9, 4), (2, 3, 11)])
def test_devices_exchange_values(backend: str, shape: tuple[int, ...]) -> None:
    with Device.open("tiny", backend) as device:
        executable = check(exchanged(*shape), device, [
            np.random.default_rng(1).normal(size=(2 * shape[0], *shape[1:])).astype(np.float32)])
        assert len(compiled_of(executable).cores) == 2
        assert set(device.last_run) == {0, 1}


def test_each_device_has_a_scalar() -> None:
    at = Maker(f32())
    [x] = at.inputs
    graph = at.returns(at.op("exchange", x, x))
    graph.sharding = Sharding((STACKED,), (STACKED,))
    with Device.open("tiny", "golden") as device:
        check(graph, device)


@pytest.mark.parametrize("backend", ["golden", "rtl"])
def test_a_large_exchange_has_two_parts(backend: str) -> None:
    """Elementwise kernels compute most of their results during the second transfer."""
    shape = 11, 4 * TINY.sublanes, TINY.lanes
    at = Maker(f32(*shape), f32(*shape), f32())
    x, y, rate = at.inputs
    other, another = at.op("exchange", x, y), at.op("exchange", y, x)
    rates = at.op("broadcast_in_dim", rate, to=f32(*shape), broadcast_dimensions=())
    step = at.op("multiply", at.op("add", other, x), rates)
    region = Maker(f32(), f32())
    most = region.returns(region.op("maximum", *region.inputs))
    [line] = at.graph.add("reduce", (another, at.constant(np.array(0, np.float32), f32())),
                          [f32(*shape[:2])], {"dimensions": (2,)}, [most]).results
    graph = at.returns(step, line, at.op("add", another, step))
    graph.sharding = Sharding((0, 0, None), (0, 0, 0))
    with Device.open("tiny", backend) as device:
        [kernels, _] = [core.kernels for core in compiled_of(check(graph, device)).cores]
    assert [kernel.kind for kernel in kernels].count("fusion") == 2


@pytest.mark.parametrize(("backend", "alike"), [("golden", True), ("rtl", True), ("golden", False)])
def test_a_product_sends_its_first_results(backend: str, alike: bool,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """It does only if the cores execute the same operations, and thus divide the exchange alike."""
    started: list[int] = []
    start = NearExchange.start

    def note(exchange: NearExchange, builder: Builder, source: VmemBuffer, end: int) -> None:
        started.append(end - len(exchange.symbols))
        start(exchange, builder, source, end)

    monkeypatch.setattr(NearExchange, "start", note)
    rows, depth, columns = 7 * TINY.sublanes, 2 * TINY.lanes, 6 * TINY.lanes
    at = Maker(f32(rows, depth), f32(depth, columns), f32(rows, columns))
    x, w, velocity = at.inputs
    slope = at.op("dot_general", x, w, to=f32(rows, columns), lhs_contracting_dimensions=(1,),
                  rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(),
                  rhs_batching_dimensions=(), precision_config=("DEFAULT", "DEFAULT"))
    total = at.op("add", slope, at.op("exchange", slope, slope))
    scale = at.op("by_device", at.op("negate", velocity),
                  at.op("negate" if alike else "abs", velocity))
    graph = at.returns(at.op("add", total, scale))
    graph.sharding = Sharding((0, 0, 0), (0,))
    with Device.open("tiny", backend) as device:
        check(graph, device)
    # One part by the product, and the other one after it, on each core.
    assert started == ([1, 1, 1, 1] if alike else [2, 2])


@pytest.mark.parametrize("flat", [True, False])
def test_only_a_kernel_without_nested_loops_is_divided(flat: bool) -> None:
    shape = 9, 4 * TINY.sublanes, TINY.lanes
    at = Maker(f32(*shape), f32(shape[1]))
    x, line = at.inputs
    other = at.op("exchange", x, x)
    lines = at.op("broadcast_in_dim", line, to=f32(*shape), broadcast_dimensions=(1,))
    graph = at.returns(at.op("negate", other) if flat else at.op("add", other, lines))
    graph.sharding = Sharding((0, None), (0,))
    with Device.open("tiny", "golden") as device:
        [kernels, _] = [core.kernels for core in compiled_of(check(graph, device)).cores]
    kinds = [kernel.kind for kernel in kernels]
    assert kinds.count("negate") == 2 if flat else kinds.count("fusion") == 1


@pytest.mark.parametrize("sent", [True, False])
def test_a_scalar_of_an_exchange_is_an_index(sent: bool) -> None:
    """Its transfer may still run when scalar memory needs it."""
    at = Maker(s32(1), f32(6, 5))
    x, table = at.inputs
    index = at.op("reshape", x, to=s32())
    index = at.op("minimum", index, at.constant(np.array(4, np.int32), s32()))
    other = at.op("exchange", index, index)
    zero = at.constant(np.array(0, np.int32), s32())
    part = at.op("dynamic_slice", table, index if sent else other, zero, to=f32(2, 5),
                 slice_sizes=(2, 5))
    graph = at.returns(part, at.op("add", other, index))
    graph.sharding = Sharding((0, None), (0, None))
    with Device.open("tiny", "golden") as device:
        check(graph, device, [np.array([1, 3], np.int32),
                              np.arange(30, dtype=np.float32).reshape(6, 5)])


@pytest.mark.parametrize("backend", ["golden", "rtl"])
def test_a_loop_whose_result_one_device_does_not_use(backend: str) -> None:
    """Both execute its exchanges."""
    body, condition = Maker(s32(), f32(3)), Maker(s32(), f32(3))
    number, x = body.inputs
    one = body.constant(np.array(1, np.int32), s32())
    body.returns(body.op("add", number, one), body.op("add", body.op("exchange", x, x), x))
    number, x = condition.inputs
    limit = condition.constant(np.array(3, np.int32), s32())
    condition.returns(condition.compare(number, limit, "LT"))
    at = Maker(f32(3))
    [x] = at.inputs
    _, result = at.control("while", [at.constant(np.array(0, np.int32), s32()), x],
                           [condition.graph, body.graph], [s32(), f32(3)])
    zero = at.constant(np.zeros(3, np.float32), f32(3))
    graph = at.returns(at.op("by_device", zero, at.op("negate", result)))
    graph.sharding = Sharding((STACKED,), (STACKED,))
    with Device.open("tiny", backend) as device:
        check(graph, device)


def test_kernels_of_both_cores_are_emitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package's attribute of this name is the function.
    module = importlib.import_module("sim.compiler.machine.emit")
    emit_one, emitted = module._emitted, []

    def count(code: MachineCode, ladder: Sequence[object], buffers: object) -> object:
        emitted.append((code_text(code), *ladder))
        return emit_one(code, ladder, buffers)

    at = Maker(f32(3))
    [x] = at.inputs
    for number in range(70):
        # Each kernel is emitted alone, before it is joined with an exchange.
        factor = at.constant(np.full(3, number + 2, np.float32), f32(3))
        product = at.op("multiply", x, factor)
        x = at.op("exchange", product, product)
    graph = at.returns(x)
    graph.sharding = Sharding((0,), (0,))
    monkeypatch.setattr(module, "_emitted", count)
    executable = compile_graph(graph, TINY)
    assert len(compiled_of(executable).cores) == 2
    assert len(emitted) == len(set(emitted)) >= 70
    assert not module._EMITTED


def test_a_value_both_devices_have_is_written_once() -> None:
    at = Maker(f32(2, 3), f32(2, 3))
    x, y = at.inputs
    graph = at.returns(at.op("add", at.op("exchange", x, x), x), y)
    graph.sharding = Sharding((0, None), (None, None))
    with Device.open("tiny", "golden") as device:
        executable = check(graph, device)
    shapes = {spec.name: spec.layout.shape for spec in (*executable.inputs, *executable.outputs)}
    assert shapes == {"input0": (4, 3), "input1": (2, 3), "output0": (2, 3), "output1": (2, 3)}


def test_cores_share_the_writes_of_outputs_that_both_compute() -> None:
    """Each core writes about half of their rows; it writes its part of any other output."""
    shapes = (2, 3), (3 * TINY.sublanes, 3), (5 * TINY.sublanes, 3), (2, 2)
    at = Maker(*(f32(*shape) for shape in shapes))
    graph = at.returns(*(at.op("negate", x) for x in at.inputs))
    graph.sharding = Sharding((None, None, None, 0), (None, None, None, 0))
    with Device.open("tiny", "golden") as device:
        written = [core.times.written for core in compiled_of(check(graph, device)).cores]
    # An output that a core does not write counts as written at the end.
    assert [[time < max(times) for time in times] for times in written] == [
        [False, False, True, True], [True, True, False, True]]


def test_kernels_overlap_with_the_start_of_an_exchange() -> None:
    """The kernel before the start is one piece of code with it."""
    at = Maker(f32(9))
    [x] = at.inputs
    mine = at.op("negate", x)
    graph = at.returns(at.op("exchange", mine, mine))
    graph.sharding = Sharding((0,), (0,))
    with Device.open("tiny", "golden") as device:
        executable = check(graph, device)
    for core in compiled_of(executable).cores:
        assert [kernel.kind for kernel in core.kernels] == ["negate+exchange"]


def test_saved_programs_run_on_both_cores(tmp_path: pathlib.Path) -> None:
    graph = exchanged(3, 5)
    array = np.arange(30, dtype=np.float32).reshape(6, 5)
    compiled = compiled_of(compile_graph(graph, TINY))
    save(compiled, tmp_path / "program")
    read = load(tmp_path / "program")
    assert read.sharding == Sharding((0,), (0, 0))
    assert [core.times for core in read.cores] == [core.times for core in compiled.cores]
    with Device.open("tiny", "golden") as device:
        one = device.execute(compiled.executable(), array)
        other = device.execute(read.executable(), array)
    assert all(map(np.array_equal, one, other))
    assert np.array_equal(one[0], np.concatenate([array[3:], array[:3] + 1]))


def test_a_chip_with_one_core_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a chip with 2 cores, not 1"):
        compile_graph(exchanged(2), replace(TINY, cores=1))


def test_programs_of_two_cores_are_not_profiled() -> None:
    with (Device.open("tiny", "golden") as device,
          pytest.raises(ValueError, match="must run on one core")):
        device.profile(compile_graph(exchanged(2), TINY), np.zeros(4, np.float32))


def test_values_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(MemoryError, match="exchange needs"):
        compile_graph(exchanged(TINY.vmem_vectors, TINY.sublanes, TINY.lanes), TINY)


def test_only_exchanges_of_a_chip_alone_do_not_share_a_semaphore() -> None:
    """A wait for a small exchange is not one for the first part of a large one, if it can be."""
    [[whole, _]], parts = exchange_parts(8, 1), exchange_parts(64, 1)
    assert whole not in [semaphore for semaphore, _ in parts]
    assert whole in LINKS.values()
    [[whole, _]], parts = exchange_parts(8, 2), exchange_parts(64, 2)
    assert whole not in LINKS.values()
    assert not {semaphore for semaphore, _ in parts} & {*LINKS.values()}


def test_exchanges_start_early_and_the_largest_first() -> None:
    """What no exchange needs comes last; operations keep their order otherwise."""
    at = Maker(f32(2), f32(9, 9))
    small, large = at.inputs
    first = at.op("exchange", at.op("negate", small), small)
    late = at.op("add", first, small)
    twice = at.op("add", large, large)
    second = at.op("exchange", twice, twice)
    graph = at.returns(late, second)
    graph.sharding = Sharding((0, 0), (0, 0))
    hoist(graph, TINY)
    assert [operation.kind for operation in graph.operations] == [
        "add", "exchange", "negate", "exchange", "add"]
    assert graph.operations[0].result is twice
    assert graph.operations[-1].result is late


def _product(at: Maker, lhs: Value, rhs: Value) -> Value:
    return at.op("dot_general", lhs, rhs, to=f32(lhs.shape[0], rhs.shape[1]),
                 lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
                 lhs_batching_dimensions=(), rhs_batching_dimensions=())


@pytest.mark.parametrize(("size", "moves"), [(4, True), (40, False)])
def test_a_short_product_moves_in_front_of_an_earlier_one(size: int, moves: bool) -> None:
    """A long product would delay the largest exchange."""
    at = Maker(f32(size, 9), f32(9, size), f32(64, 64))
    lhs, rhs, large = at.inputs
    square = _product(at, large, large)
    result = _product(at, square, large)
    exchanged = at.op("exchange", result, result)
    short = _product(at, lhs, rhs)
    graph = at.returns(exchanged, at.op("exchange", short, short))
    graph.sharding = Sharding((0, 0, 0), (0, 0))
    hoist(graph, TINY)
    products = [operation.result for operation in graph.operations
                if operation.kind == "dot_general"]
    assert graph.operations[-1].operands[0] is short
    assert products == ([short, square, result] if moves else [square, result, short])


def test_kernels_of_a_pod_run_while_values_cross_links() -> None:
    """The value that travels furthest leaves first; what waits for it comes last."""
    torus = Torus(2, 1)
    there = tuple(torus.neighbour(device, "x", 1) for device in range(torus.devices))
    at = Maker(f32(64, 64), f32(64, 64))
    one, two = at.inputs
    product = at.op("dot_general", two, two, to=f32(64, 64), lhs_contracting_dimensions=(1,),
                    rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(),
                    rhs_batching_dimensions=())
    came = at.op("exchange", *[at.op("negate", one)] * torus.devices, sources=there)
    back = at.op("exchange", *[came] * torus.devices, sources=there)
    graph = at.returns(product, back)
    overlap(graph, torus, Config.preset("tiny", link_bytes=16))
    assert [operation.kind for operation in graph.operations] == [
        "negate", "exchange", "dot_general", "exchange"]


def test_operations_follow_the_exchanges_that_they_need() -> None:
    at = Maker(f32(2), f32(9, 9))
    small, large = at.inputs
    early = at.op("add", at.op("exchange", small, small), small)
    use = at.op("add", at.op("exchange", large, large), large)
    free = at.op("negate", small)
    graph = at.returns(early, use, free)
    graph.sharding = Sharding((0, 0), (0, 0, 0))
    hoist(graph, TINY)
    assert [operation.result for operation in graph.operations[2:]] == [free, use, early]
