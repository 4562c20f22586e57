"""Executables that stay in HBM and run on buffers."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from sim.compiler.executable import Executable
from sim.compiler.graph.ir import STACKED, Sharding
from sim.compiler.program.driver import compile_graph
from sim.driver.heap import Buffer
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, f32

Float32 = npt.NDArray[np.float32]


@pytest.fixture(params=["golden", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with Device.open("tiny", request.param) as opened:
        yield opened


def sums_and_products() -> Executable:
    m = Maker(f32(3, 5), f32(3, 5))
    a, b = m.inputs
    return compile_graph(m.returns(m.op("add", a, b), m.op("multiply", a, b)), TINY)


def put(device: Device, executable: Executable, arrays: Sequence[Float32]) -> list[Buffer]:
    """Allocates buffers, and writes an executable's inputs to them."""
    buffers = []
    for spec, array in zip(executable.inputs, arrays, strict=True):
        buffers.append(device.allocate(spec.layout.rows * TINY.row_bytes))
        device.pack(buffers[-1], spec.layout, array)
    return buffers


def room(device: Device, executable: Executable) -> list[Buffer]:
    return [device.allocate(spec.layout.rows * TINY.row_bytes) for spec in executable.outputs]


def array(value: float) -> Float32:
    return value + np.arange(15, dtype=np.float32).reshape(3, 5)


def test_outputs_are_inputs_of_the_next_run_on_either_core(device: Device) -> None:
    executable = sums_and_products()
    before = device.free_bytes
    for core in (0, 1):
        resident = device.place(executable, core)
        a, b = put(device, executable, [array(1), array(2)])
        expected = array(1), array(2)
        for _ in range(3):
            results = room(device, executable)
            device.run_placed(resident, [[a, b]], [results])
            assert set(device.last_run) == {core}
            expected = expected[0] + expected[1], expected[0] * expected[1]
            device.free(a)
            device.free(b)
            a, b = results
        for spec, buffer, wanted in zip(executable.outputs, (a, b), expected, strict=True):
            np.testing.assert_array_equal(device.unpack(buffer, spec.layout), wanted)
            device.free(buffer)
        device.displace(resident)
    assert device.free_bytes == before


def test_two_executables_take_turns(device: Device) -> None:
    m = Maker(f32(3, 5))
    negate = compile_graph(m.returns(m.op("negate", m.inputs[0])), TINY)
    both = sums_and_products()
    first, second = device.place(negate), device.place(both)
    [x] = put(device, negate, [array(3)])
    for _ in range(2):
        [y] = room(device, negate)
        device.run_placed(first, [[x]], [[y]])
        total, product = room(device, both)
        device.run_placed(second, [[x, y]], [[total, product]])
        layout = both.outputs[0].layout
        np.testing.assert_array_equal(device.unpack(total, layout), np.zeros((3, 5)))
        np.testing.assert_array_equal(device.unpack(product, layout), -array(3) ** 2)
        x = y
    # `execute` may come between.
    [result] = device.execute(negate, array(5))
    np.testing.assert_array_equal(result, -array(5))
    device.run_placed(first, [[x]], [[y]])


def test_each_core_has_its_own_parts(device: Device) -> None:
    m = Maker(f32(3, 5), f32(3, 5))
    a, b = m.inputs
    graph = m.returns(m.op("exchange", a, b), m.op("add", a, b))
    graph.sharding = Sharding((STACKED, STACKED), (STACKED, STACKED))
    executable = compile_graph(graph, TINY)
    resident = device.place(executable)
    assert resident.cores == (0, 1)
    part = sums_and_products().inputs[0].layout
    given, wanted = [], []
    for core in (0, 1):
        row = []
        for value in (10 * core, 10 * core + 1):
            row.append(device.allocate(part.rows * TINY.row_bytes))
            device.pack(row[-1], part, array(value))
        given.append(row)
        wanted.append([device.allocate(part.rows * TINY.row_bytes) for _ in range(2)])
    device.run_placed(resident, given, wanted)
    # Core 0 gets what core 1 sends, its second value, and core 1 the first of core 0.
    for buffer, sent in zip((wanted[0][0], wanted[1][0]), (array(11), array(0)), strict=True):
        np.testing.assert_array_equal(device.unpack(buffer, part), sent)
    for core in (0, 1):
        np.testing.assert_array_equal(device.unpack(wanted[core][1], part),
                                      array(10 * core) + array(10 * core + 1))


def test_an_executable_that_is_refused_keeps_no_memory() -> None:
    m = Maker(f32(3, 5), f32(3, 5))
    a, b = m.inputs
    graph = m.returns(m.op("exchange", a, b), m.op("add", a, b))
    graph.sharding = Sharding((STACKED, None), (STACKED, STACKED))
    executable = compile_graph(graph, TINY)
    with Device.open("tiny", "golden") as device:
        before = device.free_bytes
        with pytest.raises(ValueError, match="must have a part of input1 for each core"):
            device.place(executable)
        assert device.free_bytes == before


def test_what_does_not_fit_is_refused() -> None:
    executable = sums_and_products()
    with Device.open("tiny", "golden") as device:
        resident = device.place(executable)
        a, b = put(device, executable, [array(1), array(2)])
        results = room(device, executable)
        with pytest.raises(ValueError, match=r"inputs must be 2 buffers for each of 1 cores"):
            device.run_placed(resident, [[a]], [results])
        with pytest.raises(ValueError, match=r"outputs must be 2 buffers for each of 1 cores"):
            device.run_placed(resident, [[a, b]], [results, results])
        small = device.allocate(1)
        with pytest.raises(ValueError, match="buffer of input1 must have"):
            device.run_placed(resident, [[a, small]], [results])
        with pytest.raises(ValueError, match="buffer must have"):
            device.pack(small, executable.inputs[0].layout, array(0))
        device.free(b)
        with pytest.raises(ValueError, match="buffer must be one that this device allocated"):
            device.run_placed(resident, [[a, b]], [results])
        device.displace(resident)
        with pytest.raises(ValueError, match="resident must not be displaced"):
            device.run_placed(resident, [[a, a]], [results])
        with pytest.raises(ValueError, match="core must be"):
            device.place(executable, 2)
        everything = []
        while device.largest_free_bytes:
            everything.append(device.allocate(device.largest_free_bytes))
        with pytest.raises(MemoryError, match=r"a buffer needs .* contiguous bytes of HBM"):
            device.place(executable)
        for piece in everything:
            device.free(piece)
        device.run_placed(device.place(executable), [[a, a]], [results])


def test_an_exception_of_progress_ends_the_run() -> None:
    executable = sums_and_products()

    def stop() -> None:
        raise InterruptedError("enough")

    with Device.open("tiny", "golden") as device:
        resident = device.place(executable)
        buffers, results = put(device, executable, [array(1), array(2)]), room(device, executable)
        with pytest.raises(InterruptedError, match="enough"):
            device.run_placed(resident, [buffers], [results], stop)
        device.run_placed(resident, [buffers], [results])
        np.testing.assert_array_equal(
            device.unpack(results[0], executable.outputs[0].layout), array(1) + array(2))
