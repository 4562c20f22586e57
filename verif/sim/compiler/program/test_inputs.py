"""Reshapes and transposes of inputs, and results that take the vectors of their operands."""

import pathlib

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.program.arrays import TiledArray
from sim.compiler.program.cache import compile_cached
from sim.compiler.program.compiled import compiled_of, load, save
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.inputs import absorb, packable
from sim.compiler.tiling import standard
from systolith import Device

CONFIG = Config.preset("tiny")


def moved(used_twice: bool = False) -> Graph:
    """A graph that negates an input after a transpose and a reshape."""
    graph = Graph([Value(TensorType((2, 3, 5), DType.F32))])
    value = graph.add("transpose", graph.inputs, TensorType((5, 2, 3), DType.F32),
                      {"permutation": (2, 0, 1)}).result
    value = graph.add("reshape", (value,), TensorType((10, 3), DType.F32)).result
    graph.outputs = [graph.add("negate", (value,), value.type).result]
    if used_twice:
        graph.outputs.append(graph.inputs[0])
    return graph


def test_the_host_moves_inputs(tmp_path: pathlib.Path) -> None:
    executable = compile_graph(moved(), CONFIG)
    compiled = compiled_of(executable)
    assert [kernel.kind for kernel in compiled.kernels] == ["negate"]
    path = tmp_path / "program"
    save(compiled, path)
    x = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    with Device.open(CONFIG, "golden") as device:
        for program in (executable, load(path).executable()):
            [result] = device.execute(program, x)
            np.testing.assert_array_equal(result, -x.transpose(2, 0, 1).reshape(10, 3))


def test_an_input_that_is_used_as_it_is_stays() -> None:
    assert absorb(moved(used_twice=True)) == ((),)


def test_rows_of_an_input_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a slice along the outermost dimension, only its rows are loaded; others have kernels."""
    monkeypatch.setattr("sim.compiler.program.launch.joiner._CYCLES", 0)
    graph = Graph([Value(TensorType((4, 5, 6), DType.F32))])
    [x] = graph.inputs
    parts = [graph.add("slice", (x,), TensorType(shape, DType.F32), {
        "start_indices": start, "limit_indices": tuple(map(sum, zip(start, shape, strict=True))),
        "strides": (1, 1, 1)}).result for shape, start in (
            ((2, 5, 6), (1, 0, 0)), ((1, 5, 6), (3, 0, 0)), ((4, 2, 6), (0, 1, 0)),
            ((4, 5, 2), (0, 0, 1)))]
    graph.outputs = [graph.add("negate", (part,), part.type).result for part in parts] + parts[:1]
    executable = compile_graph(graph, CONFIG)
    assert sorted(kernel.kind for kernel in compiled_of(executable).kernels) == [
        "negate", "negate", "negate", "negate", "slice", "slice"]
    array = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    with Device.open(CONFIG, "golden") as device:
        results = device.execute(executable, array)
    for result, wanted in zip(results, (-array[1:3], -array[3:], -array[:, 1:3],
                                        -array[:, :, 1:3], array[1:3]), strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_weights_in_bf16_are_packed(tmp_path: pathlib.Path) -> None:
    """They are not packed if other operations than products use them, or if they are rows."""
    shapes = (9, 7), (8, 9), (2, 9, 5), (9, 9), (9, 6), (9, 4), (2, 9)
    graph = Graph([Value(TensorType((6, 9), DType.F32)), Value(TensorType((2, 3, 9), DType.F32)),
                   *(Value(TensorType(shape, DType.BF16)) for shape in shapes)])

    def product(x: Value, w: Value, contracted: int = 0, batch: tuple[int, ...] = (),
                precision: str = "DEFAULT") -> Value:
        depth, shape = x.type.rank - 1, (*x.shape[:-1], w.shape[-1 - contracted])
        return graph.add("dot_general", (x, w), TensorType(shape, DType.F32), {
            "lhs_batching_dimensions": batch, "rhs_batching_dimensions": batch,
            "lhs_contracting_dimensions": (depth,),
            "rhs_contracting_dimensions": (len(batch) + contracted,),
            "precision_config": (precision, precision)}).result

    x, xs, plain, transposed, several, both, returned, added, short = graph.inputs
    graph.outputs = [
        product(x, plain, precision="HIGHEST"), product(x, transposed, 1),
        product(xs, several, batch=(0,)), product(x, both), product(both, returned),
        product(x, returned), returned, product(x, added),
        graph.add("negate", (added,), added.type).result, product(x, short, 1)]
    rng = np.random.default_rng(20261122)
    for table in (rng.integers(-9, 10, (9, 8)), np.full((9, 8), 3)):
        graph.outputs.append(product(x, graph.add("constant", (), TensorType(
            table.shape, DType.BF16), {"value": table.astype(array_dtype(DType.BF16))}).result))
    arrays = [rng.integers(-9, 10, value.shape).astype(array_dtype(value.dtype))
              for value in graph.inputs]
    wanted = interpret(graph, arrays)
    assert [len(packable(graph, CONFIG, inputs=inputs)) for inputs in (True, False)] == [5, 1]
    copy, there = graph.copy(), compile_graph(graph.copy(), CONFIG, standard_inputs=True)
    executable = compile_graph(graph, CONFIG)
    compiled = compiled_of(executable)
    assert compiled.packed == (False, False, True, True, True, True, False, False, False)
    assert compiled_of(there).packed == (False,) * len(arrays)
    assert [kernel.kind for kernel in compiled.kernels].count("relayout") == 1
    assert [spec.layout.rows for spec in executable.inputs[2:4]] == [
        2 * 3 * CONFIG.sublanes, 3 * 2 * CONFIG.sublanes]
    save(compiled, tmp_path / "program")
    with Device.open(CONFIG, "golden") as device:
        for program in (executable, load(tmp_path / "program").executable(), there,
                        compile_cached(copy, CONFIG)):
            for result, right in zip(device.execute(program, *arrays), wanted, strict=True):
                np.testing.assert_array_equal(result, right)


def test_a_view_is_undone() -> None:
    view = (("transpose", (2, 0, 1)), ("reshape", (10, 3)))
    layout = TiledArray((2, 3, 5), np.dtype(np.float32), standard((10, 3), CONFIG), view)
    memory = np.zeros((layout.rows, CONFIG.lanes), np.uint32)
    x = np.arange(30, dtype=np.float32).reshape(2, 3, 5)
    layout.pack(x, memory)
    np.testing.assert_array_equal(layout.unpack(memory), x)


def test_a_result_takes_the_vectors_of_an_operand() -> None:
    # Two of them fit vector memory, three do not.
    rows = CONFIG.vmem_vectors * CONFIG.sublanes * 2 // 5
    kind = TensorType((rows, CONFIG.lanes), DType.F32)
    graph = Graph([Value(kind), Value(kind)])
    a, b = graph.inputs
    total = graph.add("multiply", (a, b), kind).result
    graph.outputs = [graph.add("subtract", (total, b), kind).result]
    rng = np.random.default_rng(20261122)
    arrays = [rng.standard_normal(kind.shape).astype(np.float32) for _ in range(2)]
    with Device.open(CONFIG, "golden") as device:
        [result] = device.execute(compile_graph(graph, CONFIG), *arrays)
    np.testing.assert_allclose(result, arrays[0] * arrays[1] - arrays[1], rtol=1e-5, atol=1e-6)
