"""Streams: operations on blocks of operands that lie in HBM."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import Graph, TensorType, Value
from sim.compiler.graph.verify import GraphError, verify
from sim.compiler.program.driver import compile_graph
from systolith import Device
from verif.sim.compiler.program.common import TINY, Array, Maker, arrays_for, check, f32


def block(kinds: Sequence[TensorType], write: Callable[[Graph], Sequence[Value]]) -> Graph:
    region = Graph([Value(kind) for kind in kinds], name="block")
    region.outputs = list(write(region))
    return region


def stream(m: Maker, operands: Sequence[Value], results: Sequence[TensorType],
           regions: Sequence[Graph], **attributes: object) -> Graph:
    operation = m.graph.add("stream", operands, results, attributes, regions)
    graph = m.returns(*operation.results)
    verify(graph)
    return graph


def added(a: TensorType, along: int) -> Callable[[Graph], Sequence[Value]]:
    del along
    return lambda region: [region.add("add", region.inputs, a).result]


@pytest.mark.parametrize(("shape", "along", "size", "rest"), [
    ((40, 32), 0, 8, 0), ((40, 32), 0, 12, 4), ((12, 100), 1, 32, 4), ((10, 6, 8), 0, 3, 1),
    ((4, 30, 12), 1, 8, 6), ((6, 5, 40), 2, 16, 8), ((3, 8, 5, 8), 1, 3, 2), ((1000,), 0, 300, 100),
    ((50, 50), 0, 6, 2),
])
def test_blocks_along_any_dimension(golden: Device, shape: tuple[int, ...], along: int, size: int,
                                    rest: int) -> None:
    graph = additions(shape, along, size, rest)
    rng = np.random.default_rng(4)
    arrays = [rng.integers(-9, 9, shape).astype(np.float32) for _ in range(2)]
    assert np.array_equal(interpret(graph, arrays)[0], arrays[0] + arrays[1])
    check(graph, golden, arrays)


def additions(shape: tuple[int, ...], along: int, size: int, rest: int) -> Graph:
    def cut(size: int) -> TensorType:
        return f32(*shape[:along], size, *shape[along + 1:])

    m = Maker(f32(*shape), f32(*shape))
    sizes = [size, rest] if rest else [size]
    count = shape[along] // size
    assert count * size + rest == shape[along]
    regions = [block([cut(size)] * 2, added(cut(size), along)) for size in sizes]
    return stream(m, m.inputs, [f32(*shape)], regions, counts=(count, 1)[:len(sizes)],
                  operand_dimensions=(along, along), result_dimensions=(along,),
                  starts=((0, 0), (count * size,) * 2)[:len(sizes)],
                  steps=((size, size), (0, 0))[:len(sizes)])


def test_golden_and_rtl(device: Device) -> None:
    check(additions((40, 32), 0, 12, 4), device)


def test_windows_held_and_carried_values(device: Device) -> None:
    """Blocks overlap; an operand is not divided; a result is carried; another has blocks."""
    m = Maker(f32(31, 9), f32(9), f32(6, 9))

    def write(region: Graph) -> Sequence[Value]:
        x, whole, carried = region.inputs
        spread = region.add("broadcast_in_dim", (whole,), x.type,
                            {"broadcast_dimensions": (1,)}).result
        both = region.add("add", (x, spread), x.type).result
        return [both, region.add("subtract", (both, carried), x.type).result]

    region = block([f32(6, 9), f32(9), f32(6, 9)], write)
    graph = stream(m, m.inputs, [f32(36, 9), f32(6, 9)], [region], counts=(6,),
                   operand_dimensions=(0, -1), result_dimensions=(0, -1), starts=((0, 0),),
                   steps=((5, 0),))
    check(graph, device)


def test_results_that_no_kernel_writes(golden: Device) -> None:
    """The results are an input, the same value twice, and a constant."""
    def write(region: Graph) -> Sequence[Value]:
        [x] = region.inputs
        twice = region.add("add", (x, x), x.type).result
        same = region.add("constant", (), x.type, {"value": np.full(x.shape, 7, np.float32)}).result
        return [x, twice, twice, same]

    m = Maker(f32(40, 9))
    graph = stream(m, m.inputs, [f32(40, 9)] * 4, [block([f32(4, 9)], write)], counts=(10,),
                   operand_dimensions=(0,), result_dimensions=(0,) * 4, starts=((0,),),
                   steps=((4,),))
    check(graph, golden)


def test_stream_in_a_stream(golden: Device) -> None:
    """The outer stream's blocks are columns; the inner stream's blocks are rows of these."""
    def inner(region: Graph) -> Sequence[Value]:
        rows = block([f32(8, 16)] * 2, added(f32(8, 16), 0))
        return region.add("stream", region.inputs, [f32(40, 16)], {
            "counts": (5,), "operand_dimensions": (0, 0), "result_dimensions": (0,),
            "starts": ((0, 0),), "steps": ((8, 8),)}, [rows]).results

    m = Maker(f32(40, 64), f32(40, 64))
    graph = stream(m, m.inputs, [f32(40, 64)], [block([f32(40, 16)] * 2, inner)], counts=(4,),
                   operand_dimensions=(1, 1), result_dimensions=(1,), starts=((0, 0),),
                   steps=((16, 16),))
    check(graph, golden)


def test_blocks_outside_of_operands_are_refused() -> None:
    graph = additions((40, 32), 0, 8, 0)
    graph.operations[0].attributes["steps"] = ((8, 9),)
    with pytest.raises(GraphError, match="blocks must lie in operands"):
        verify(graph)


# ---- places in HBM


def run_at(graph: Graph, device: Device, addresses: Sequence[int | None],
           arrays: Sequence[Array]) -> list[Array]:
    """Run a program with buffers at given addresses, inputs first; None: at any address."""
    executable = compile_graph(graph, device.config, standard_inputs=True)
    resident = device.place(executable)
    specs = [*executable.inputs, *executable.outputs]
    buffers = []
    for address, spec in zip(addresses, specs, strict=True):
        fillers = []
        if address is not None:
            fillers.append(device.allocate(1))
            fillers.append(device.allocate(address - fillers[0].address - device.config.row_bytes))
        buffers.append(device.allocate(spec.layout.rows * device.config.row_bytes))
        assert address in (None, buffers[-1].address)
        for filler in fillers:
            device.free(filler)
    given, made = buffers[:len(arrays)], buffers[len(arrays):]
    for buffer, spec, array in zip(given, executable.inputs, arrays, strict=True):
        device.pack(buffer, spec.layout, array)
    device.run_placed(resident, [given], [made])
    results = [device.unpack(buffer, spec.layout)
               for buffer, spec in zip(made, executable.outputs, strict=True)]
    for buffer in buffers:
        device.free(buffer)
    device.displace(resident)
    return results


def windows() -> Graph:
    """A stream of blocks of 7 rows; the last block's vectors reach beyond the operand's end."""
    def write(region: Graph) -> Sequence[Value]:
        total = region.add("add", region.inputs, f32(7, 20)).result
        return [region.add("slice", (total,), f32(6, 20), {
            "start_indices": (1, 0), "limit_indices": (7, 20), "strides": (1, 1)}).result]

    m = Maker(f32(38, 20), f32(38, 20))
    return stream(m, m.inputs, [f32(42, 20)], [block([f32(7, 20)] * 2, write)], counts=(7,),
                  operand_dimensions=(0, 0), result_dimensions=(0,), starts=((1, 1),),
                  steps=((5, 5),))


def test_operands_at_the_end_of_the_heap(golden: Device) -> None:
    """The rows after such an operand are the staging rows, which hold other data."""
    graph = windows()
    arrays = arrays_for(graph)
    expected = interpret(graph, arrays)[0]
    last = golden.free_bytes - 38 * 5 * golden.config.row_bytes
    [result] = run_at(graph, golden, (last, None, None), arrays)
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("across", range(3))
def test_blocks_across_4_gib(across: int) -> None:
    """An operand or the result begins below 4 GiB, and some of its blocks begin above."""
    graph = windows()
    addresses: list[int | None] = [None, None, None]
    arrays = arrays_for(graph)
    expected = interpret(graph, arrays)[0]
    with Device.open(replace(TINY, hbm_bytes=1 << 33), "golden") as device:
        addresses[across] = (1 << 32) - 16 * device.config.row_bytes
        [result] = run_at(graph, device, addresses, arrays)
    assert np.array_equal(result, expected)
