"""Devices: products of any shape have the same bits on both backends; errors name bad input."""

import gc
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from golden.chip import GoldenChip
from golden.mxu import matmul
from hdl.config import Config
from sim.asm.text import assemble
from sim.driver.backend import SIMULATED, golden_backend, rtl_backend
from sim.models.chip import ChipModel, chip_library
from systolith import Dense, Device, HbmOptions
from verif.sim.driver.common import HALT, SEED, TINY, assert_same_bits, check_product, operands


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_equal_golden(preset: str) -> None:
    rng = np.random.default_rng(SEED)
    with Device.open(preset) as device, Device.open(preset, backend="golden") as golden:
        for _ in range(20):
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
    tiles = -(-depth // 128) * -(-columns // 128)
    # Whole registers on each of two cores.
    assert rows * depth * columns <= counters["mxu_active_cycles"] * 128 ** 2
    assert counters["mxu_active_cycles"] <= (rows + 2 * 8) * tiles


@pytest.mark.slow
# The chip for an FPGA has depth 3: test_serial.py.
@pytest.mark.parametrize("mac_latency", [1, 6])
def test_results_do_not_depend_on_the_cell_depth(mac_latency: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 11, 13, 9, False)
    config = Config.preset("tiny", cores=1, mac_latency=mac_latency)
    chip = ChipModel(config, library=chip_library(config, quick=True))
    with Device(rtl_backend(chip), "rtl") as device:
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


def test_two_devices_do_not_disturb_each_other(tiny: Device) -> None:
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 6, 6, 6, False)
    c, d = operands(rng, 6, 6, 6, False)
    with Device.open("tiny") as other:
        for _ in range(3):
            assert_same_bits(tiny.matmul(a, b), matmul(a, b, 4))
            assert_same_bits(other.matmul(c, d), matmul(c, d, 4))


def test_closing_twice_is_fine_and_use_after_close_is_not() -> None:
    device = Device.open("tiny")
    device.close()
    device.close()
    one = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError, match="device is closed"):
        device.matmul(one, one)
    with pytest.raises(RuntimeError, match="device is closed"):
        device.counters()


def test_a_closed_golden_device_keeps_no_decoded_bundle() -> None:
    """Without a collection of garbage: until the next one, they would fill the memory."""
    chip = GoldenChip(TINY)
    backend = golden_backend(chip, lambda bundles: (0, False))
    core = chip.cores[0]
    core.load_program(assemble("{ s0.add s1, s0, 1 }\n{ s1.halt }", TINY).bundles)
    core.start()
    core.run(100)
    [first, _] = core._cache.values()
    assert core._decoder is not None
    kept: list[weakref.ref[Any]] = [weakref.ref(core._decoder), *map(weakref.ref, first.computes)]
    del first, _
    assert len(kept) > 1
    gc.disable()
    try:
        backend.close()
        assert all(reference() is None for reference in kept)
    finally:
        gc.enable()


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"config": "v3"}, ValueError, "preset must be one of tiny, small, v2, fpga, not 'v3'"),
    ({"config": 128}, TypeError, "config must be a preset's name or a Config, not 128"),
    ({"backend": "fpga"}, ValueError, "backend must be one of rtl, golden, serial, not 'fpga'"),
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


DOUBLES: Any = np.ones(2)


@pytest.mark.parametrize(("columns", "layers", "error", "message"), [
    (3, 5, TypeError, "layers must be a sequence of Dense, not 5"),
    (3, iter([]), TypeError, "layers must be a sequence of Dense, not <"),
    (3, [], ValueError, r"layers must have at least one Dense, not \[\]"),
    (3, [5], TypeError, r"layers\[0\] must be a Dense, not 5"),
    (0, [Dense(np.ones((0, 2), np.float32))], ValueError,
     "x must have one column or more, not 0"),
    (3, [Dense(np.ones((4, 2), np.float32))], ValueError,
     r"layers\[0\].weights must have 3 rows, .* not shape \(4, 2\)"),
    (3, [Dense(np.ones((3, 2), np.float32), DOUBLES)], TypeError,
     r"layers\[0\].bias must be of dtype float32, not float64"),
    (3, [Dense(np.ones((3, 2), np.float32), DOUBLES.tolist())], TypeError,
     r"layers\[0\].bias must be a numpy array, not list"),
])
def test_dense_names_a_bad_layer(tiny: Device, columns: int, layers: Any, error: type[Exception],
                                 message: str) -> None:
    with pytest.raises(error, match=message):
        tiny.dense(np.ones((3, columns), np.float32), layers)


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


def test_results_do_not_change_with_memory(device: Device) -> None:
    one = np.ones((4, 4), np.float32)
    result = device.matmul(one, one)
    device.matmul(3 * one, one)
    assert_same_bits(result, 4 * one)


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
    (lambda d: d.load(0, [0] * 2, 511), ValueError, "program must lie within 512 bundles of "),
    (lambda d: d.load(0, [0, 1 << 288]), ValueError,
     r"bundle 1 must be from 0 to 2\*\*288 - 1, not 0x10{72}$"),
    (lambda d: d.load(0, [-1]), ValueError, r"bundle 0 must be from 0 to .*, not -0x1$"),
    (lambda d: d.load(0, "{ s1.halt }"), TypeError,
     "program must be a Program or a sequence of bundles, not '{ s1.halt }'"),
    (lambda d: d.load(0, None), TypeError, "program must be a Program or .* bundles, not None"),
    (lambda d: d.load(0, ["nop"]), TypeError, "bundle 0 must be an integer, not 'nop'"),
    (lambda d: d.signal(0, 16), ValueError, "semaphore must be from 0 to 15, not 16"),
    (lambda d: d.signal(0, 0, 1 << 28), ValueError, "amount must be from 0 to 268435455"),
    (lambda d: d.wait(0), TypeError, "cores must be a sequence of cores, not 0"),
    (lambda d: d.wait(cycles=-1), ValueError, "cycles must be from 0"),
    (lambda d: d.wait(seconds="1"), ValueError, "seconds must be a number of at least 0"),
    (lambda d: d.wait(poll=1), TypeError, "poll must be True or False, not 1"),
    (lambda d: d.read_smem(0, 250, 7), ValueError, "words must lie within 256 words of scalar"),
    (lambda d: d.write_smem(0, 0, [-1]), ValueError, r"words must be from 0 to 2\*\*32 - 1"),
    (lambda d: d.write_smem(0, 0, [0.5]), TypeError, "words must be a list of integers"),
    (lambda d: d.read_vmem(0, 250, 7), ValueError, "vectors must lie within 256 vectors of vector"),
    (lambda d: d.read_vmem(2, 0, 1), ValueError, "core must be from 0 to 1, not 2"),
    (lambda d: d.write_vmem(0, 256, np.zeros((1, 2, 4), np.uint32)), ValueError,
     "vectors must lie within 256 vectors of vector memory, not take 1 from "
     "address 256 on"),
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


@pytest.mark.parametrize("backend", SIMULATED)
def test_only_chips_can_be_opened(backend: str) -> None:
    with pytest.raises(ValueError, match="array must be a power of two, not 6"):
        Device.open(Config(array=6, sublanes=2, vmem_bytes=4800), backend=backend)
    with pytest.raises(ValueError, match="hbm_channels must not be 8"):
        Device.open(Config.preset("tiny", hbm_channels=8), backend=backend)
    for size, preset in ((32, "tiny"), (1 << 30, "small")):
        with pytest.raises(ValueError, match="vmem_bytes must be from 2 to 65536 times"):
            Device.open(Config.preset(preset, vmem_bytes=size), backend=backend)


@pytest.mark.parametrize(("backend", "options", "message"), [
    ("serial", {}, "port must be the name of a serial port, such as /dev/ttyUSB0, not None"),
    ("serial", {"port": "p", "baud": 0}, "baud must be from 1 to 2147483647, not 0"),
    ("serial", {"port": "p", "baud": 1 << 31}, "baud must be from 1 to 2147483647, not 2147483648"),
    ("serial", {"port": "p", "trace": "t"}, "trace must be None for the serial backend"),
    ("serial", {"port": "p", "memory": HbmOptions()}, "memory must be None for the serial backend"),
    ("golden", {"port": "p"}, "port must be None for the golden backend, not 'p'")])
def test_options_are_those_of_the_backend(backend: str, options: dict[str, Any],
                                          message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Device.open("tiny", backend, **options)
