"""A pass replaces maps, and bitcasts between widths, by operations on whole arrays."""

import numpy as np
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, TensorType
from sim.compiler.graph.verify import verify
from sim.compiler.passes.expand_elements import expand_elements
from sim.compiler.program.driver import compile_graph
from systolith import Device
from verif.sim.compiler.program.common import TINY, Array, Maker, f32

SEED = 20261122


def compare(m: Maker, arrays: list[Array], kind: str) -> None:
    """Run a graph after its expansion, which must remove all operations of this kind."""
    graph = m.graph
    verify(graph)
    expected = [array.view(f"u{array.itemsize}") for array in interpret(graph, arrays)]
    expand_elements(graph)
    verify(graph)
    assert all(operation.kind != kind
               or operation.operands[0].shape == operation.result.shape
               for operation in graph.operations)
    found = interpret(graph, arrays)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.view(b.dtype), b, str(SEED))
    with Device.open(TINY, "golden") as device:
        for a, b in zip(device.execute(compile_graph(graph, TINY), *arrays), expected,
                        strict=True):
            np.testing.assert_array_equal(np.ascontiguousarray(a).view(b.dtype), b, str(SEED))


def numbers(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Random numbers of a type."""
    rng = np.random.default_rng(SEED)
    if dtype.is_float:
        return np.asarray(rng.normal(size=shape) * 100).astype(array_dtype(dtype))
    info = np.iinfo(array_dtype(dtype))
    return np.asarray(rng.integers(info.min, info.max, shape, info.dtype, endpoint=True))


@pytest.mark.parametrize(("source", "target"), [
    (DType.F32, DType.BF16), (DType.F32, DType.U8), (DType.U32, DType.S16),
    (DType.S32, DType.S8), (DType.BF16, DType.U8), (DType.U16, DType.S8)],
    ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_bitcast(source: DType, target: DType, shape: tuple[int, ...]) -> None:
    ratio = source.bits // target.bits
    wide = numbers(source, shape)
    if target is DType.BF16:
        # Random halves could be subnormal.
        wide = np.full(shape, 0x3FC0C120, np.uint32).view(np.float32)
    split = Maker(TensorType(shape, source))
    split.returns(split.op("bitcast_convert", split.inputs[0],
                           to=TensorType((*shape, ratio), target)))
    narrow = interpret(split.graph, [wide])
    compare(split, [wide], "bitcast_convert")
    joined = Maker(TensorType((*shape, ratio), target))
    joined.returns(joined.op("bitcast_convert", joined.inputs[0], to=TensorType(shape, source)))
    compare(joined, narrow, "bitcast_convert")


def test_map() -> None:
    inner = Maker(f32(), f32())
    x, y = inner.inputs
    half = inner.constant(np.array(0.5, np.float32), f32())
    inner.returns(inner.op("select", inner.compare(x, y, "LT"), inner.op("multiply", x, half), y,
                           to=f32()))
    m = Maker(f32(2, 5), f32(2, 5))
    m.returns(m.graph.add("map", m.inputs, f32(2, 5), {}, [inner.graph]).result)
    rng = np.random.default_rng(SEED)
    compare(m, [rng.normal(size=(2, 5)).astype(np.float32) for _ in range(2)], "map")
