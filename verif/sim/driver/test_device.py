"""The driver: any shape, both backends, the same bits; bad input is named."""

import _thread
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from golden.mxu import matmul
from hdl.config import Config
from hdl.isa import Fault
from sim.asm.assembler import Program
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.compiler.matmul import Matmul
from sim.driver.backend import BACKENDS
from sim.models.hbm import HbmOptions
from sim.models.mxu import MxuModel
from systolith import Buffer, CoreFaultError, CoreStoppedError, Device, DeviceTimeoutError

SEED = 7
TINY = Config.preset("tiny")
FREE = TINY.hbm_bytes - 1024 * TINY.row_bytes
"""What can be allocated."""
SPIN = assemble("again: { s1.jump again }", TINY)
HALT = assemble("{ s1.halt }", TINY)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Device]:
    with Device.open("tiny") as device:
        yield device


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with Device.open("tiny", backend=request.param) as opened:
        yield opened


def check_product(device: Device, rows: int = 9, depth: int = 7, columns: int = 10) -> None:
    """That the device still works."""
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = operands(rng, rows, depth, columns, False)
    assert_same_bits(device.matmul(a, b), matmul(a, b, device.config.array))


def operands(rng: np.random.Generator, rows: int, depth: int, columns: int,
             transpose: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if transpose else (depth, columns)).astype(np.float32)
    return a, b


def assert_same_bits(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_equal_golden(preset: str) -> None:
    rng = np.random.default_rng(SEED)
    with Device.open(preset) as device, Device.open(preset, backend="golden") as golden:
        for _ in range(60):
            rows, depth, columns = rng.integers(1, 5 * device.config.array, 3)
            transpose = bool(rng.integers(2))
            a, b = operands(rng, rows, depth, columns, transpose)
            if rng.integers(2):
                a = a.astype(ml_dtypes.bfloat16)
            if rng.integers(2):
                b = b.astype(ml_dtypes.bfloat16)
            got = device.matmul(a, b, transpose_b=transpose)
            assert_same_bits(got, golden.matmul(a, b, transpose_b=transpose))
            assert_same_bits(got, matmul(a, b.T if transpose else b, device.config.array))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "depth", "columns", "transpose"), [
    (1, 1, 1, False), (5, 128, 128, True), (130, 300, 200, False), (129, 129, 129, True)])
def test_v2_equals_golden(rows: int, depth: int, columns: int, transpose: bool) -> None:
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = operands(rng, rows, depth, columns, transpose)
    a.flat[rng.integers(a.size)] = np.inf
    b.flat[rng.integers(b.size)] = np.nan
    with Device.open("v2") as device:
        got = device.matmul(a, b, transpose_b=transpose)
        assert_same_bits(got, matmul(a, b.T if transpose else b, 128))
        counters = device.counters()
    job = Matmul(device.config, rows, depth, columns, transpose)
    tiles = -(-depth // 128) * -(-columns // 128)
    assert job.array_rows == job.padded_rows * tiles
    assert rows <= job.padded_rows < rows + 2 * 2 * 8  # whole registers, in pairs, on each core
    assert counters["mxu_active_cycles"] == job.array_rows


@pytest.mark.slow
@pytest.mark.parametrize("mac_latency", [1, 3, 6])
def test_results_do_not_depend_on_the_cell_depth(mac_latency: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 11, 13, 9, False)
    with Device.open(Config.preset("tiny", mac_latency=mac_latency)) as device:
        assert_same_bits(device.matmul(a, b), matmul(a, b, 4))


def test_special_values_pass_through_padding(tiny: Device) -> None:
    rng = np.random.default_rng(SEED)
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1e-20, 1],
                      np.float32)
    a, b = rng.choice(values, (50, 7)), rng.choice(values, (7, 50))
    got = tiny.matmul(a, b)
    assert_same_bits(got, matmul(a, b, 4))
    assert np.isnan(got).any()
    assert np.isinf(got).any()


def test_a_negative_zero_sum_survives_padding(tiny: Device) -> None:
    # 2^-126 - 1.5 * 2^-126 is subnormal, so it becomes -0, and padding must not turn it into +0.
    a = np.array([[1, -1]], np.float32) * np.float32(2.0**-63)
    b = np.array([[1], [1.5]], np.float32) * np.float32(2.0**-63)
    assert tiny.matmul(a, b).view(np.uint32).item() == 0x8000_0000


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)])
@pytest.mark.parametrize("backend", ["rtl", "golden"])
def test_empty_operands_give_empty_or_zero(rows: int, depth: int, columns: int,
                                           backend: str) -> None:
    with Device.open("tiny", backend=backend) as device:
        got = device.matmul(np.ones((rows, depth), np.float32),
                            np.ones((depth, columns), np.float32))
    assert_same_bits(got, np.zeros((rows, columns), np.float32))


def test_counters_add_up_and_count_on(tiny: Device) -> None:
    a = np.ones((9, 4), np.float32)
    before = tiny.counters()
    tiny.matmul(a, np.ones((4, 4), np.float32))
    after = tiny.counters()
    rows = Matmul(TINY, 9, 4, 4).array_rows
    assert rows == 16  # 5 registers of 2 rows: 4 for each core
    assert after["mxu_active_cycles"] - before["mxu_active_cycles"] == rows
    assert after["cycles"] - before["cycles"] > rows
    # A core counts on between two looks at it, so the sum over the cores is within these.
    first = [tiny.counters(core) for core in (0, 1)]
    total = tiny.counters()
    last = [tiny.counters(core) for core in (0, 1)]
    for counters in (after, *first, total, *last):
        assert len(counters) == 8
        parts = sum(count for name, count in counters.items() if name != "cycles")
        # Halves and names are read one after the other.
        assert abs(counters["cycles"] - parts) < 500
    for name, count in total.items():
        assert sum(part[name] for part in first) <= count <= sum(part[name] for part in last)


def test_counters_go_on_after_a_reset(device: Device) -> None:
    check_product(device)
    before = [device.counters(core) for core in (0, 1)]
    assert all(counters["mxu_active_cycles"] for counters in before) == (device.backend == "rtl")
    for reset in (device.reset, lambda: device.reset(1)):
        reset()
        for core in (0, 1):
            after = device.counters(core)
            assert all(after[name] >= count for name, count in before[core].items())
            assert after["mxu_active_cycles"] == before[core]["mxu_active_cycles"]


PRODUCT = """{ push.weights v1 } { push.weights v1 } { push.rows_swap v1 } { pop.pop v1 }
             { s1.halt }"""


def test_a_run_tells_what_its_cycles_were_spent_on(device: Device) -> None:
    def spin(loops: int) -> Program:
        return assemble(f"{{ s0.add s1, s0, {loops} }} a: {{ s1.loop s1, a }} {{ misc.wait sem0, 1 "
                        "| s1.halt }", TINY)

    device.signal(0, 0)
    device.signal(1, 0)
    device.run({0: spin(900), 1: spin(4000)})
    # What was before does not count, and both count from about the same moment on.
    device.signal(1, 0)
    seen = device.run({1: spin(2000), 0: assemble(PRODUCT, TINY)})
    assert list(seen) == [1, 0]
    assert all(counters.keys() == device.counters().keys() for counters in seen.values())
    if device.backend == "golden":
        assert {count for counters in seen.values() for count in counters.values()} == {0}
        return
    for counters in seen.values():
        assert 2000 < counters["cycles"] < 2200
        assert counters["cycles"] == sum(counters.values()) - counters["cycles"]
    assert (seen[0]["mxu_active_cycles"], seen[1]["mxu_active_cycles"]) == (2, 0)
    assert (seen[0]["weight_load_cycles"], seen[1]["weight_load_cycles"]) == (4, 0)
    assert seen[1]["idle_cycles"] >= 2000
    waits = device.run({0: assemble("{ s1.halt }", TINY)})
    assert waits.keys() == {0}
    assert 0 < waits[0]["cycles"] < 200


def test_a_run_that_fails_can_be_run_again(device: Device) -> None:
    bad = assemble("{ pop.pop v1 }", TINY)
    with pytest.raises(CoreFaultError, match="core 1 stopped with fault FIFO_UNDERFLOW"):
        device.run({0: HALT, 1: bad}, cycles=9000)
    assert device.run({0: HALT, 1: HALT}, cycles=9000).keys() == {0, 1}
    assert device.run({}) == {}
    with pytest.raises(ValueError, match="core must be from 0 to 1, not 2"):
        device.run({0: SPIN, 2: HALT})
    assert not device.running(0)


def test_golden_backend_has_no_clock() -> None:
    with Device.open("tiny", backend="golden") as device:
        device.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
        assert set(device.counters().values()) == {0}


def test_two_devices_do_not_disturb_each_other(tiny: Device) -> None:
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 6, 6, 6, False)
    c, d = operands(rng, 6, 6, 6, False)
    with Device.open("tiny") as other:
        for _ in range(3):
            assert_same_bits(tiny.matmul(a, b), matmul(a, b, 4))
            assert_same_bits(other.matmul(c, d), matmul(c, d, 4))


def test_interrupt_leaves_the_model_usable() -> None:
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((1, 4, 4)).astype(np.float32)
    x = rng.standard_normal((1, 9000, 4)).astype(np.float32)
    with MxuModel(Config.preset("tiny")) as model:
        calls = []

        def interrupt(rows: int) -> None:
            calls.append(rows)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.multiply(weights, x, [(0, 0)], progress=interrupt)
        assert len(calls) == 1
        assert 0 < calls[0] < 9000
        assert model.counters()["mxu_active_cycles"] == 0
        assert_same_bits(model.multiply(weights, x, [(0, 0)])[0], matmul(x[0], weights[0], 4))


@pytest.mark.parametrize("transpose", [False, True])
def test_a_matrix_unit_alone_gives_the_same_products(transpose: bool) -> None:
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((6, 4, 4)).astype(np.float32)
    x = rng.standard_normal((3, 50, 4)).astype(np.float32)
    steps = [(int(rng.integers(3)), int(rng.integers(6))) for _ in range(20)]
    with MxuModel(TINY) as model:
        parts = model.multiply(weights, x, steps, transpose=transpose)
    for (strip, tile), part in zip(steps, parts, strict=True):
        weight = weights[tile].T if transpose else weights[tile]
        assert_same_bits(part, matmul(x[strip], weight, 4))


def test_closing_twice_is_fine_and_use_after_close_is_not() -> None:
    device = Device.open("tiny")
    device.close()
    device.close()
    one = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError, match="device is closed"):
        device.matmul(one, one)
    with pytest.raises(RuntimeError, match="device is closed"):
        device.counters()


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"config": "v3"}, ValueError, "preset must be one of tiny, small, v2, not 'v3'"),
    ({"config": 128}, TypeError, "config must be a preset's name or a Config, not 128"),
    ({"backend": "fpga"}, ValueError, "backend must be one of rtl, golden, not 'fpga'"),
    ({"backend": None}, TypeError, "backend must be a string, not None"),
])
def test_open_names_a_bad_argument(arguments: Mapping[str, Any], error: type[Exception],
                                   message: str) -> None:
    with pytest.raises(error, match=message):
        Device.open(**arguments)


@pytest.mark.parametrize(("a", "b", "error", "message"), [
    ([[1.0]], np.ones((1, 1), np.float32), TypeError, "a must be a numpy array, not list"),
    (np.ones((1, 1)), np.ones((1, 1), np.float32), TypeError,
     "a must be of dtype float32 or bfloat16, not float64"),
    (np.ones((1, 1), np.float32), np.ones((1, 1), int), TypeError,
     "b must be of dtype float32 or bfloat16, not int64"),
    (np.ones(3, np.float32), np.ones((3, 1), np.float32), ValueError,
     r"a must have two dimensions, not shape \(3,\)"),
    (np.ones((2, 3), np.float32), np.ones((4, 5), np.float32), ValueError,
     r"b must have as many rows as a has columns, but a has shape \(2, 3\) and b \(4, 5\)"),
])
def test_matmul_names_a_bad_operand(tiny: Device, a: Any, b: Any, error: type[Exception],
                                    message: str) -> None:
    with pytest.raises(error, match=message):
        tiny.matmul(a, b)


def test_threads_may_share_a_device(tiny: Device) -> None:
    rng = np.random.default_rng(SEED)
    work = [operands(rng, 3000, 8, 8, False) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pair: tiny.matmul(*pair), work))
    for (a, b), got in zip(work, results, strict=True):
        assert_same_bits(got, matmul(a, b, 4))


def test_work_is_cut_where_memory_ends(tiny: Device) -> None:
    # Far more rows than vector memory holds, and a depth whose rows it cannot keep.
    check_product(tiny, 600, 5, 3)
    check_product(tiny, 80, 130, 6)


@pytest.mark.parametrize("options", [{"transpose_b": "no"}, {"progress": 1}])
def test_matmul_names_a_bad_option(tiny: Device, options: Any) -> None:
    one = np.ones((1, 1), np.float32)
    with pytest.raises(TypeError, match=r"must be True or False, not ('no'|1)"):
        tiny.matmul(one, one, **options)


def test_masked_array_is_refused(tiny: Device) -> None:
    one = np.ones((1, 1), np.float32)
    with pytest.raises(TypeError, match="a must be a numpy array, not MaskedArray"):
        tiny.matmul(np.ma.masked_array(one, mask=True), one)


# Memory


def test_buffers_hold_what_is_copied(device: Device) -> None:
    rng = np.random.default_rng(SEED)
    first, second = device.allocate(100), device.allocate(17)
    assert (first.size, second.size) == (100, 17)
    assert (first.address % TINY.row_bytes, second.address % TINY.row_bytes) == (0, 0)
    one = rng.standard_normal((5, 5)).astype(np.float32)
    two = rng.integers(0, 256, 17, np.uint8)
    device.copy_in(first, one.T)
    device.copy_in(second, two)
    np.testing.assert_array_equal(device.copy_out(first, np.float32, (5, 5)), one.T)
    np.testing.assert_array_equal(device.copy_out(second, np.uint8, 17), two)
    device.copy_in(first, two, offset=83)
    np.testing.assert_array_equal(device.copy_out(first, np.uint8, (17,), offset=83), two)
    np.testing.assert_array_equal(device.copy_out(first, np.float32, 20), one.T.ravel()[:20])


def test_memory_is_given_out_once_and_taken_back(device: Device) -> None:
    rng = np.random.default_rng(SEED)
    live: list[Buffer] = []
    for number in range(300):
        if live and rng.integers(2):
            device.free(live.pop(int(rng.integers(len(live)))))
        else:
            live.append(device.allocate(int(rng.integers(1, 5000))))
        places = sorted((buffer.address, buffer.address + buffer.size) for buffer in live)
        assert all(end <= start for (_, end), (start, _) in
                   itertools.pairwise(places)), (SEED, number)
    for buffer in live:
        device.free(buffer)
    device.free(device.allocate(FREE))


def test_free_memory_is_counted(device: Device) -> None:
    assert device.free_bytes == FREE
    buffers = [device.allocate(size) for size in (1, 17, 4000)]
    assert device.free_bytes == FREE - 16 - 32 - 4000
    device.free(buffers[1])
    assert device.free_bytes == FREE - 16 - 4000
    with Device.open(Config.preset("tiny", hbm_bytes=8192), "golden") as small:
        assert small.free_bytes == 8192 * 3 // 4
        check_product(small, 1, 1, 1)
    with pytest.raises(ValueError, match="hbm_bytes must be at least 8192 for a host to reach"):
        Device.open(Config(array=256, sublanes=8, hbm_bytes=4096, hbm_channels=8), "golden")


def test_too_much_memory_is_named(device: Device) -> None:
    device.allocate(FREE - 160)
    with pytest.raises(MemoryError, match=r"HBM must have 176 bytes in one piece, but only 160 of "
                                          r"160 that are free are in one"):
        device.allocate(161)
    one = np.ones((4, 4), np.float32)
    with pytest.raises(MemoryError, match=r"a product of \(4, 4\) and \(4, 4\) needs 192 bytes of "
                                          r"HBM, 160 of 1048576 are free"):
        device.matmul(one, one)
    assert device.allocate(160)


def test_products_leave_buffers_alone_and_give_memory_back(device: Device) -> None:
    kept = device.allocate(5000)
    data = np.random.default_rng(SEED).integers(0, 256, 5000, np.uint8)
    device.copy_in(kept, data)
    for _ in range(2):
        check_product(device, 40, 9, 9)
    np.testing.assert_array_equal(device.copy_out(kept, np.uint8, 5000), data)
    device.free(kept)
    device.free(device.allocate(FREE))


def test_results_do_not_change_with_memory(device: Device) -> None:
    one = np.ones((4, 4), np.float32)
    result = device.matmul(one, one)
    device.matmul(3 * one, one)
    assert_same_bits(result, 4 * one)


def test_bad_buffers_are_refused(device: Any) -> None:
    buffer = device.allocate(64)
    with Device.open("tiny", backend="golden") as other:
        foreign = other.allocate(64)
    for bad in (foreign, device.allocate(8)):
        if bad is not foreign:
            device.free(bad)
        for use in (device.free, lambda bad: device.copy_in(bad, np.zeros(1)),
                    lambda bad: device.copy_out(bad, np.uint8, 1)):
            with pytest.raises(ValueError, match="buffer must be one that this device allocated"):
                use(bad)
    with pytest.raises(TypeError, match="buffer must be a Buffer, not 64"):
        device.free(64)
    with pytest.raises(ValueError, match="array must fit 64 bytes of buffer, not have 72 from 0"):
        device.copy_in(buffer, np.zeros(9))
    with pytest.raises(ValueError, match="array must fit 64 bytes of buffer, not have 8 from 60"):
        device.copy_out(buffer, np.float64, 1, offset=60)
    with pytest.raises(TypeError, match="array must be a numpy array of numbers"):
        device.copy_in(buffer, [1])
    with pytest.raises(TypeError, match="dtype must be one of numbers"):
        device.copy_out(buffer, object, 1)
    with pytest.raises(ValueError, match="size must be from 1"):
        device.allocate(0)


# Programs


def test_programs_of_both_cores_move_data(device: Device) -> None:
    """Each core doubles its half of a buffer; the descriptors come through scalar memory."""
    rows = np.random.default_rng(SEED).standard_normal((8, 4)).astype(np.float32)
    buffer = device.allocate(rows.nbytes)
    device.copy_in(buffer, rows)
    text = """
        { misc.dma 0 } { misc.wait sem3, 1 } { ld.load v1, s0 } { ld.load v2, s0, 1 }
        { v0.fadd v1, v1, v1 } { v0.fadd v2, v2, v2 } { st.store v1, s0 } { st.store v2, s0, 1 }
        { misc.dma 10 } { misc.wait sem3, 1 | s0.store s0, s0, 20 | s1.halt }"""
    for core in (0, 1):
        place = hbm(buffer.address + core * 64)
        device.load(core, assemble(text, TINY))
        device.write_smem(core, 0, [
            *descriptor(TINY, place, vmem(0), rows=4, semaphore=sem[3]),
            *descriptor(TINY, vmem(0), place, rows=4, semaphore=sem[3]), 77])
        assert device.read_smem(core, 20, 1).tolist() == [77]
        device.start(core)
    device.wait(cycles=100_000)
    np.testing.assert_array_equal(device.copy_out(buffer, np.float32, (8, 4)), rows + rows)
    assert [device.read_smem(core, 20, 1).item() for core in (0, 1)] == [0, 0]
    check_product(device)


COUNTING = """
    again: { misc.dma 0 } { misc.wait sem3, 1 | s0.add s2, s0, 0 }
    each: { ld.load v1, s2 } { v0.add v1, v1, 1 } { st.store v1, s2 }
    { s0.add s2, s2, 1 } { s0.sub s3, s2, 32 } { s1.bne s3, s0, each }
    { misc.dma 10 } { misc.wait sem3, 1 | s0.add s4, s4, 1 | s1.loop s1, again } { s1.halt }"""


@pytest.mark.parametrize("memory", [None, HbmOptions(latency=9, stalls=9000, seed=SEED)],
                         ids=["fast", "stalls"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_host_and_programs_may_use_memory_at_the_same_time(backend: str,
                                                           memory: HbmOptions | None) -> None:
    """Core 1 counts in the last rows that can be allocated, while the host reaches core 0."""
    rng = np.random.default_rng(SEED)
    rounds = 150
    with Device.open("tiny", backend, memory=memory) as device:
        buffer = device.allocate(device.free_bytes)
        counted = rng.integers(0, 1 << 32, (64, 4), np.uint32)
        first = buffer.size - counted.nbytes
        device.copy_in(buffer, counted, first)
        place = hbm(buffer.address + first)
        device.load(1, assemble(COUNTING, TINY))
        device.write_smem(1, 0, [
            *descriptor(TINY, place, vmem(0), rows=64, semaphore=sem[3]),
            *descriptor(TINY, vmem(0), place, rows=64, semaphore=sem[3])])
        device.write_scalars(1, 1, [rounds])
        device.start(1)
        looks = 0
        while device.running(1):
            bundles = [int.from_bytes(rng.bytes(36), "little") for _ in range(200)]
            device.load(0, bundles)
            for number in (0, int(rng.integers(200)), 199):
                assert device._backend is not None
                assert device._backend.bundle(0, number) == bundles[number]
            words = rng.integers(0, 1 << 32, (TINY.vmem_vectors, 2, 4), np.uint32)
            device.write_vmem(0, 0, words)
            np.testing.assert_array_equal(device.read_vmem(0, 0, TINY.vmem_vectors), words)
            looks += 1
            if device.running(1):
                with contextlib.suppress(DeviceTimeoutError):
                    device.wait([1], cycles=500)
        device.wait([1])
        assert looks > 3
        assert device.read_scalars(1)[4] == rounds
        got = device.copy_out(buffer, np.uint32, counted.shape, first)
        np.testing.assert_array_equal(got, counted + np.uint32(rounds))


def test_programs_go_where_they_are_put(device: Device) -> None:
    device.load(0, assemble("{ s0.store s0, s0 | s1.jump 7 }", TINY), at=5)
    device.load(0, HALT, at=7)
    device.write_smem(0, 0, [9])
    device.start(0, 5)
    device.wait([0], cycles=10_000)
    assert device.read_smem(0, 0, 1).item() == 0
    assert device.state(0).pc == 7


@pytest.mark.parametrize("poll", [False, True])
def test_an_endless_program_is_a_timeout(device: Device, poll: bool) -> None:
    device.load(0, SPIN)
    device.load(1, HALT)
    device.start(0)
    device.start(1)
    with pytest.raises(DeviceTimeoutError, match="programs have not ended in time: core 0 runs at "
                                                 "bundle 0; core 1 is stopped") as raised:
        device.wait(cycles=3000, poll=poll)
    assert not raised.value.stuck
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        device.wait([0], seconds=0.05, poll=poll)
    assert time.monotonic() - began < 20
    device.wait([1], cycles=0, poll=poll)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError, match="a program runs on core 0, at bundle 0: wait for"):
        device.matmul(one, one)
    with pytest.raises(RuntimeError, match="a program runs on core 0"):
        device.load(0, HALT)
    with pytest.raises(RuntimeError, match="a program runs on core 0"):
        device.start(0)
    device.stop(0)
    assert not device.running(0)
    device.wait(cycles=0, poll=poll)
    check_product(device)
    device.load(1, SPIN)
    device.start(1)
    device.reset()
    check_product(device)


@pytest.mark.parametrize("poll", [False, True])
def test_a_wait_that_nothing_ends_is_told_at_once_and_the_host_can_end_it(device: Device,
                                                                          poll: bool) -> None:
    device.load(1, assemble("{ misc.wait sem2, 3 } { s1.halt }", TINY))
    device.start(1)
    with pytest.raises(DeviceTimeoutError, match="for semaphores to which nothing adds: core 0 "
                                                 "is stopped; core 1 waits at bundle 0") as raised:
        device.wait(poll=poll)
    assert raised.value.stuck
    assert raised.value.states[1].waiting
    device.signal(1, 2, 2)
    with pytest.raises(DeviceTimeoutError):
        device.wait(poll=poll)
    device.signal(1, 2)
    device.wait(poll=poll)


def test_a_watchdog_ends_a_wait_on_either_backend(device: Device) -> None:
    wait = assemble("{ } { misc.wait sem2, 1 } { s1.halt }", TINY)
    for core in (0, 1):
        device.load(core, wait)
    device.set_watchdog(1, 4000)
    device.start(0)
    device.start(1)
    with pytest.raises(CoreFaultError, match="core 1 stopped with fault WATCHDOG at bundle 1: "
                                             r"\{ misc\.wait sem2, 1") as raised:
        device.wait(cycles=20_000)
    assert raised.value.cause is Fault.WATCHDOG
    assert (device.fault(0), device.fault(1)) == (Fault.NONE, Fault.WATCHDOG)
    assert device.running(0)
    # The other core has none: its wait is for ever.
    with pytest.raises(DeviceTimeoutError, match="core 0 waits at bundle 1") as stuck:
        device.wait([0])
    assert stuck.value.stuck
    # It outlives a reset, and bundles keep it quiet.
    device.reset()
    check_product(device)
    device.load(1, assemble("{ s0.add s1, s0, 9000 } a: { s1.loop s1, a } { s1.halt }", TINY))
    device.start(1)
    device.wait([1])
    device.load(1, wait)
    device.start(1)
    with pytest.raises(CoreFaultError, match="WATCHDOG"):
        device.wait([1], cycles=20_000)
    device.set_watchdog(1, 0)
    device.start(1)
    with pytest.raises(DeviceTimeoutError) as stuck:
        device.wait([1], cycles=20_000)
    assert stuck.value.stuck
    device.signal(1, 2)
    device.wait([1], cycles=20_000)
    assert device.fault(1) is Fault.NONE


@pytest.mark.parametrize("memory", [None, HbmOptions(latency=17, stalls=20_000, seed=SEED)],
                         ids=["fast", "stalls"])
def test_both_backends_show_the_same_of_a_core(memory: HbmOptions | None) -> None:
    """Vector memory, registers, semaphores: as they are written, and as a program leaves them."""
    rng = np.random.default_rng(SEED)
    words = rng.integers(0, 1 << 32, (TINY.vmem_vectors, 2, 4), np.uint32)
    floats = rng.standard_normal((3, 2, 4)).astype(np.float32)
    scalars = rng.integers(0, 1 << 32, 32, np.uint32)
    program = assemble("""{ ld.load v1, s0, 250 } { v0.fadd v1, v1, v1 } { st.store v1, s0, 7 }
                          { s0.add s4, s5, s6 | misc.signal sem9, 77 } { s1.halt }""", TINY)
    seen = []
    for backend in BACKENDS:
        with Device.open("tiny", backend=backend, memory=memory) as device:
            buffer = device.allocate(20_000)
            device.copy_in(buffer, words.reshape(-1)[:5000 // 4])
            for core in (0, 1):
                device.write_vmem(core, 0, words[::1 - 2 * core])
                device.write_vmem(core, 250, floats[core:])
                device.write_scalars(core, 0, scalars)
                device.write_scalars(core, 5, [3 + core, 4])
                device.signal(core, 9, 5)
            device.run(dict.fromkeys((0, 1), program))
            for core in (0, 1):
                shown = [device.read_vmem(core, 0, TINY.vmem_vectors), device.read_scalars(core),
                         device.read_semaphores(core), device.read_vmem(core, 256, 0)]
                expected = words[::1 - 2 * core].copy()
                expected[250:253 - core] = floats[core:].view(np.uint32)
                expected[7] = (floats[core] + floats[core]).view(np.uint32)
                np.testing.assert_array_equal(shown[0], expected)
                assert shown[1].tolist() == [0, *scalars[1:4], 7 + core, 3 + core, 4, *scalars[7:]]
                assert shown[2].tolist() == [0] * 9 + [82] + [0] * 6
                assert shown[3].shape == (0, 2, 4)
                np.testing.assert_array_equal(device.read_vmem(core, 251, 5), expected[251:])
                assert all(array.dtype == np.uint32 for array in shown)
                seen += shown
            copy = device.read_vmem(1, 255, 1)
            copy[:] = 0
            assert device.read_vmem(1, 255, 1).any()
            np.testing.assert_array_equal(device.copy_out(buffer, np.uint32, 1250),
                                          words.reshape(-1)[:1250])
    for one, other in zip(seen[:8], seen[8:], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_running_core_shows_its_memory_but_not_its_registers(device: Device) -> None:
    device.load(0, assemble("""again: { s0.add s1, s1, 1 | misc.signal sem3, 1 }
                               { st.store v1, s0, 9 } { s1.jump again }""", TINY))
    ones = np.ones((2, 2, 4), np.float32)
    device.start(0)
    device.write_vmem(0, 9, ones)
    with pytest.raises(DeviceTimeoutError):
        device.wait(cycles=2000)
    assert device.read_semaphores(0)[3] > 100
    np.testing.assert_array_equal(device.read_vmem(0, 9, 2).view(np.float32), ones * [[[0]], [[1]]])
    with pytest.raises(RuntimeError, match="a program runs on core 0"):
        device.read_scalars(0)
    with pytest.raises(RuntimeError, match="a program runs on core 0"):
        device.write_scalars(0, 1, [1])
    assert device.fault(0) is Fault.NONE
    device.stop(0)
    assert device.read_scalars(0)[1] > 100


FAULTS = [
    ("{ } place: { ld.load v1, s0, 0x1000 }", Fault.VMEM_RANGE, 1, "ld.load v1, s0, 4096"),
    ("{ } { } { pop.pop v3 }", Fault.FIFO_UNDERFLOW, 2, "pop.pop v3"),
    ("{ s1.jump 0x200 }", Fault.PC_RANGE, 0x200, ""),
    ("{ s0.add s1, s0, 4 } { misc.dma s1 }", Fault.DMA_ALIGNMENT, 1, "misc.dma s1"),
]


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize(("text", "cause", "pc", "bundle"), FAULTS,
                         ids=[cause.name for _, cause, _, _ in FAULTS])
def test_faults_say_where_and_why(device: Device, poll: bool, text: str, cause: Fault, pc: int,
                                  bundle: str) -> None:
    program = assemble(text, TINY)
    words = list(descriptor(TINY, hbm(0), vmem(0), rows=2))
    words[2] = 8  # not a row's address
    device.write_smem(1, 4, words)
    device.load(0, SPIN)
    device.load(1, program)
    device.start(0)
    device.start(1)
    with pytest.raises(CoreFaultError) as raised:
        device.wait(cycles=100_000, poll=poll)
    error = raised.value
    assert (error.core, error.cause, error.pc) == (1, cause, pc)
    assert error.bundle == (program[pc] if bundle else None)
    assert bundle in error.text
    message = str(error)
    assert message.startswith(f"core 1 stopped with fault {cause.name} at bundle {pc}")
    assert bundle in message
    assert device.running(0)
    # It stays until the next start.
    with pytest.raises(CoreFaultError):
        device.wait([1], cycles=0)
    device.load(1, HALT)
    device.start(1)
    device.wait([1], cycles=10_000)
    device.reset()
    check_product(device)


def test_branches_of_a_fault_are_shown_with_their_labels(device: Device) -> None:
    device.load(0, assemble("{ } there: { pop.pop v3 | s1.jump there }", TINY))
    device.start(0)
    with pytest.raises(CoreFaultError, match=r"s1\.jump there"):
        device.wait()
    bundles = assemble("{ } { pop.pop v3 | s1.jump 1 }", TINY).bundles
    device.load(0, Program(bundles, {}))
    device.start(0)
    with pytest.raises(CoreFaultError, match=r"s1\.jump 1") as raised:
        device.wait()
    assert raised.value.bundle == bundles[1]


def test_what_a_program_leaves_in_the_array_does_not_reach_a_product(device: Device) -> None:
    # Half a load of weights, transposed ones, and semaphores.
    device.load(0, assemble("{ push.weights_t v1 | misc.signal sem0, 5 } { s1.halt }", TINY))
    device.start(0)
    device.wait()
    device.signal(1, 1, 9)
    check_product(device)


@pytest.mark.parametrize("reads", [True, False])
def test_a_bus_error_is_a_fault_and_is_over_after_a_reset(reads: bool) -> None:
    with Device.open("tiny", memory=HbmOptions(latency=9, stalls=9000, seed=SEED)) as device:
        assert device.model is not None
        check_product(device)
        device.model.memory.fail(0, TINY.hbm_bytes // 4, 2, reads=reads, writes=not reads)
        with pytest.raises(CoreFaultError, match="BUS_ERROR near bundle") as raised:
            check_product(device, 30, 30, 30)
        assert raised.value.cause is Fault.BUS_ERROR
        device.model.memory.heal()
        check_product(device, 30, 30, 30)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_product_that_is_interrupted_leaves_the_device_usable(device: Any,
                                                                monkeypatch: pytest.MonkeyPatch,
                                                                calls: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 300, 20, 20, False)
    advance, count = device._backend.advance, []

    def interrupted(steps: int, interrupt: bool) -> bool:
        count.append(steps)
        if len(count) == calls:
            advance(17, interrupt)
            raise KeyboardInterrupt
        return advance(steps, interrupt)

    monkeypatch.setattr(device._backend, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.matmul(a, b)
    assert len(count) == calls
    monkeypatch.undo()
    assert not device.running(0)
    assert not device.running(1)
    assert_same_bits(device.matmul(a, b), matmul(a, b, 4))
    device.free(device.allocate(FREE))


def test_a_product_whose_cleaning_up_is_interrupted_keeps_its_buffers(
        device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that still run must not write what was allocated since."""
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 300, 20, 20, False)

    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(device._backend, "advance", interrupted)
    monkeypatch.setattr(device._backend, "reset_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.matmul(a, b)
    monkeypatch.undo()
    assert device.running(0)
    free = device.free_bytes
    assert free < FREE
    buffer = device.allocate(free)
    zeros = np.zeros(free, np.uint8)
    device.copy_in(buffer, zeros)
    device.wait()
    assert not device.copy_out(buffer, np.uint8, free).any()
    device.free(buffer)
    # The next product, or a reset, ends all that.
    assert_same_bits(device.matmul(a[:20], b), matmul(a[:20], b, 4))
    device.free(device.allocate(FREE))


def test_ctrl_c_ends_a_wait(device: Device) -> None:
    device.load(0, SPIN)
    device.start(0)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        device.wait()
    timer.join()
    device.reset()
    assert not device.running(0)
    check_product(device)


def test_another_thread_can_end_what_is_waited_for(device: Device) -> None:
    device.load(0, SPIN)
    device.start(0)
    for end in (device.stop, device.reset, lambda: device.reset(0)):
        for work in (lambda: device.wait(seconds=60), lambda: device.run({0: SPIN}, seconds=60)):
            timer = threading.Timer(0.1, end)
            timer.start()
            with pytest.raises(CoreStoppedError, match="core 0 was stopped or reset") as raised:
                work()
            timer.join()
            assert (raised.value.core, raised.value.pc) == (0, device.state(0).pc)
            assert not device.running(0)
        check_product(device)
        device.load(0, SPIN)
        device.start(0)
    device.stop()
    device.start(0, device.state(0).pc)
    device.stop(0)
    device.wait()  # nobody has waited when it was stopped
    device.start(0)
    timer = threading.Timer(0.1, device.close)
    timer.start()
    with pytest.raises(RuntimeError, match="device is closed"):
        device.wait(seconds=60)
    timer.join()


def test_two_devices_run_at_once() -> None:
    with (Device.open("tiny") as first, Device.open("tiny") as second,
          Device.open("tiny", backend="golden") as third):
        for device in (first, second, third):
            device.load(0, SPIN)
            device.start(0)
        second.stop()
        check_product(second)
        assert first.running(0)
        assert third.running(0)
        first.close()
        third.reset()
        check_product(third)
        check_product(second)


def test_progress_is_told(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []
    device.load(0, assemble("{ s0.add s1, s0, 9000 } again: { s1.loop s1, again } { s1.halt }",
                            TINY))
    device.start(0)
    device.wait(progress=lambda: calls.append(0))
    assert 2 < len(calls) < 100
    a, b = operands(np.random.default_rng(SEED), 2000, 8, 8, False)
    assert_same_bits(device.matmul(a, b, progress=True), matmul(a, b, 4))
    assert "row" in capsys.readouterr().err


USES = {
    "allocate": lambda device: device.allocate(1),
    "load": lambda device: device.load(0, HALT),
    "start": lambda device: device.start(0),
    "wait": lambda device: device.wait(),
    "stop": lambda device: device.stop(),
    "reset": lambda device: device.reset(),
    "signal": lambda device: device.signal(0, 0),
    "state": lambda device: device.state(0),
    "read_smem": lambda device: device.read_smem(0, 0, 1),
    "write_smem": lambda device: device.write_smem(0, 0, [1]),
    "read_vmem": lambda device: device.read_vmem(0, 0, 1),
    "write_vmem": lambda device: device.write_vmem(0, 0, np.zeros((1, 2, 4), np.uint32)),
    "read_scalars": lambda device: device.read_scalars(0),
    "write_scalars": lambda device: device.write_scalars(0, 1, [1]),
    "read_semaphores": lambda device: device.read_semaphores(0),
    "set_watchdog": lambda device: device.set_watchdog(0, 1),
    "fault": lambda device: device.fault(0),
    "model": lambda device: device.model,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_nothing_works_after_close(use: Callable[..., Any]) -> None:
    with Device.open("tiny", backend="golden") as device:
        pass
    with pytest.raises(RuntimeError, match="device is closed"):
        use(device)


@pytest.mark.parametrize(("use", "error", "message"), [
    (lambda d: d.start(2), ValueError, "core must be from 0 to 1, not 2"),
    (lambda d: d.start(0, 512), ValueError, "pc must be from 0 to 511, not 512"),
    (lambda d: d.load(0, [0] * 2, 511), ValueError, "program must lie within 512 bundles, not 2 "),
    (lambda d: d.load(0, [1 << 288]), ValueError, "bundle must be from 0"),
    (lambda d: d.load(0, ["nop"]), TypeError, "bundle must be an integer, not 'nop'"),
    (lambda d: d.signal(0, 16), ValueError, "semaphore must be from 0 to 15, not 16"),
    (lambda d: d.signal(0, 0, 1 << 28), ValueError, "amount must be from 0 to 268435455"),
    (lambda d: d.wait(cycles=-1), ValueError, "cycles must be from 0"),
    (lambda d: d.wait(seconds="1"), ValueError, "seconds must be a number that is not negative"),
    (lambda d: d.wait(poll=1), TypeError, "poll must be True or False, not 1"),
    (lambda d: d.read_smem(0, 250, 7), ValueError, "words must lie within 256 words of scalar"),
    (lambda d: d.write_smem(0, 0, [-1]), ValueError, r"words must be from 0 to 2\*\*32 - 1"),
    (lambda d: d.write_smem(0, 0, [0.5]), TypeError, "words must be a list of integers"),
    (lambda d: d.read_vmem(0, 250, 7), ValueError, "vectors must lie within 256 vectors of vector"),
    (lambda d: d.read_vmem(2, 0, 1), ValueError, "core must be from 0 to 1, not 2"),
    (lambda d: d.write_vmem(0, 256, np.zeros((1, 2, 4), np.uint32)), ValueError,
     "vectors must lie within 256 vectors of vector memory, not 1 from 256 on"),
    (lambda d: d.write_vmem(0, 0, np.zeros((1, 2, 4))), TypeError,
     "vectors must be an array of float32 or uint32, not float64"),
    (lambda d: d.write_vmem(0, 0, [1]), TypeError, r"of float32 or uint32, not \[1\]"),
    (lambda d: d.write_vmem(0, 0, np.zeros((2, 4), np.uint32)), ValueError,
     r"vectors must have shape \(count, 2, 4\), not \(2, 4\)"),
    (lambda d: d.write_scalars(0, 31, [1, 2]), ValueError, "lie within 32 words of scalar regis"),
    (lambda d: d.write_scalars(0, 0, [1 << 32]), ValueError, r"words must be from 0 to 2\*\*32"),
    (lambda d: d.read_scalars(True), TypeError, "core must be an integer, not True"),
    (lambda d: d.read_semaphores(-1), ValueError, "core must be from 0 to 1, not -1"),
    (lambda d: d.set_watchdog(0, 1 << 32), ValueError, "cycles must be from 0 to 4294967295, not"),
    (lambda d: d.set_watchdog(0, 0.5), TypeError, "cycles must be an integer, not 0.5"),
    (lambda d: d.fault(2), ValueError, "core must be from 0 to 1, not 2"),
    (lambda d: d.counters(2), ValueError, "core must be from 0 to 1, not 2"),
])
def test_bad_arguments_are_named(use: Callable[..., Any], error: type[Exception],
                                 message: str) -> None:
    with (Device.open("tiny", backend="golden") as device, pytest.raises(error, match=message)):
        use(device)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_chips_can_be_opened(backend: str) -> None:
    with pytest.raises(ValueError, match="array must be a power of two, not 6"):
        Device.open(Config(array=6, sublanes=2, vmem_bytes=4800), backend=backend)
    with pytest.raises(ValueError, match="hbm_channels must not be 8"):
        Device.open(Config.preset("tiny", hbm_channels=8), backend=backend)
