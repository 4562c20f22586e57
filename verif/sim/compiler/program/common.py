"""Graphs, and their comparison with the reference semantics, for tests of whole programs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.graph.arrays import unsharded_shape
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.program.driver import compile_graph
from systolith import Device

Array = npt.NDArray[Any]
TINY = Config.preset("tiny")


def f32(*shape: int) -> TensorType:
    return TensorType(shape, DType.F32)


def s32(*shape: int) -> TensorType:
    return TensorType(shape, DType.S32)


def pred(*shape: int) -> TensorType:
    return TensorType(shape, DType.PRED)


class Maker:
    """Builds a graph; each call of a method appends operations."""

    def __init__(self, *inputs: TensorType) -> None:
        self.graph = Graph([Value(kind) for kind in inputs])

    @property
    def inputs(self) -> list[Value]:
        return self.graph.inputs

    def op(self, kind: str, *operands: Value, to: TensorType | None = None,
           **attributes: Any) -> Value:
        """Append an operation; return its result, of type ``to`` or the first operand's type."""
        return self.graph.add(kind, operands, to or operands[0].type, attributes).result

    def constant(self, array: Array, kind: TensorType) -> Value:
        return self.op("constant", to=kind, value=array)

    def compare(self, a: Value, b: Value, direction: str) -> Value:
        return self.op("compare", a, b, to=pred(*a.shape), comparison_direction=direction,
                       compare_type="SIGNED")

    def control(self, kind: str, operands: Sequence[Value], regions: Sequence[Graph],
                results: Sequence[TensorType]) -> tuple[Value, ...]:
        return self.graph.add(kind, operands, results, {}, regions).results

    def returns(self, *values: Value) -> Graph:
        self.graph.outputs = list(values)
        return self.graph


def arrays_for(graph: Graph, seed: int = 3) -> list[Array]:
    """Arrays for a graph's inputs: small integers, so that sums are exact."""
    rng = np.random.default_rng(seed)
    kinds = {DType.F32: np.float32, DType.S32: np.int32}
    cuts = graph.sharding.inputs if graph.sharding else [None] * len(graph.inputs)
    return [rng.integers(-9, 10, unsharded_shape(value.shape, cut)).astype(kinds[value.dtype])
            for value, cut in zip(graph.inputs, cuts, strict=True)]


def check(graph: Graph, device: Device, arrays: Sequence[Array] | None = None,
          runs: int = 2) -> Any:
    """Compile and run a graph, and compare with the interpreter; return the executable."""
    given = arrays_for(graph) if arrays is None else list(arrays)
    wanted = interpret(graph, given)
    executable = compile_graph(graph, device.config)
    for _ in range(runs):
        results = device.execute(executable, *given)
        assert len(results) == len(wanted)
        for result, expected in zip(results, wanted, strict=True):
            assert result.dtype == expected.dtype
            assert np.array_equal(result, expected), (result, expected)
    return executable
