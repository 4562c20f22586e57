"""The driver: any shape, both backends, the same bits; bad input is named."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from golden.mxu import matmul
from hdl.config import Config
from sim import Device
from sim import device as device_module
from sim.mxu import MxuModel

SEED = 7


@pytest.fixture(scope="module")
def tiny():
    with Device.open("tiny") as device:
        yield device


def operands(rng, rows, depth, columns, transpose):
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if transpose else (depth, columns)).astype(np.float32)
    return a, b


def assert_same_bits(got, want):
    assert got.dtype == want.dtype == np.float32
    assert got.shape == want.shape
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_equal_golden(preset):
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


@pytest.mark.parametrize(("rows", "depth", "columns", "transpose"), [
    (1, 1, 1, False), (5, 128, 128, True), (130, 300, 200, False), (129, 129, 129, True)])
def test_v2_equals_golden(rows, depth, columns, transpose):
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = operands(rng, rows, depth, columns, transpose)
    a.flat[rng.integers(a.size)] = np.inf
    b.flat[rng.integers(b.size)] = np.nan
    with Device.open("v2") as device:
        got = device.matmul(a, b, transpose_b=transpose)
        assert_same_bits(got, matmul(a, b.T if transpose else b, 128))
        counters = device.counters()
    tiles = -(-depth // 128) * -(-columns // 128)
    assert counters["mxu_active_cycles"] == rows * tiles


@pytest.mark.parametrize("mac_latency", [1, 3, 6])
def test_results_do_not_depend_on_the_cell_depth(mac_latency):
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 11, 13, 9, False)
    with Device.open(Config.preset("tiny", mac_latency=mac_latency)) as device:
        assert_same_bits(device.matmul(a, b), matmul(a, b, 4))


def test_special_values_pass_through_padding(tiny):
    rng = np.random.default_rng(SEED)
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1e-20, 1],
                      np.float32)
    a, b = rng.choice(values, (50, 7)), rng.choice(values, (7, 50))
    got = tiny.matmul(a, b)
    assert_same_bits(got, matmul(a, b, 4))
    assert np.isnan(got).any()
    assert np.isinf(got).any()


def test_a_negative_zero_sum_survives_padding(tiny):
    # 2^-126 - 1.5 * 2^-126 is subnormal, so it becomes -0, and padding must not turn it into +0.
    a = np.array([[1, -1]], np.float32) * np.float32(2.0**-63)
    b = np.array([[1], [1.5]], np.float32) * np.float32(2.0**-63)
    assert tiny.matmul(a, b).view(np.uint32).item() == 0x8000_0000


@pytest.mark.parametrize(("rows", "depth", "columns"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)])
@pytest.mark.parametrize("backend", ["rtl", "golden"])
def test_empty_operands_give_empty_or_zero(rows, depth, columns, backend):
    with Device.open("tiny", backend=backend) as device:
        got = device.matmul(np.ones((rows, depth), np.float32),
                            np.ones((depth, columns), np.float32))
    assert_same_bits(got, np.zeros((rows, columns), np.float32))


def test_counters_add_up_and_count_on(tiny):
    a = np.ones((9, 4), np.float32)
    before = tiny.counters()
    tiny.matmul(a, np.ones((4, 4), np.float32))
    after = tiny.counters()
    assert after["mxu_active_cycles"] - before["mxu_active_cycles"] == 9
    assert after["cycles"] - before["cycles"] > 9
    parts = ("mxu_active_cycles", "weight_load_cycles", "idle_cycles")
    assert after["cycles"] == sum(after[name] for name in parts)


def test_golden_backend_has_no_clock():
    with Device.open("tiny", backend="golden") as device:
        device.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))
        assert set(device.counters().values()) == {0}


def test_two_devices_do_not_disturb_each_other(tiny):
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 6, 6, 6, False)
    c, d = operands(rng, 6, 6, 6, False)
    with Device.open("tiny") as other:
        for _ in range(3):
            assert_same_bits(tiny.matmul(a, b), matmul(a, b, 4))
            assert_same_bits(other.matmul(c, d), matmul(c, d, 4))


def test_interrupt_leaves_the_model_usable():
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((1, 4, 4)).astype(np.float32)
    x = rng.standard_normal((1, 9000, 4)).astype(np.float32)
    with MxuModel(Config.preset("tiny")) as model:
        calls = []

        def interrupt(rows):
            calls.append(rows)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.multiply(weights, x, [(0, 0)], progress=interrupt)
        assert len(calls) == 1
        assert 0 < calls[0] < 9000
        assert model.counters()["mxu_active_cycles"] == 0
        assert_same_bits(model.multiply(weights, x, [(0, 0)])[0], matmul(x[0], weights[0], 4))


def test_closing_twice_is_fine_and_use_after_close_is_not():
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
def test_open_names_a_bad_argument(arguments, error, message):
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
def test_matmul_names_a_bad_operand(tiny, a, b, error, message):
    with pytest.raises(error, match=message):
        tiny.matmul(a, b)


def test_threads_may_share_a_device(tiny):
    rng = np.random.default_rng(SEED)
    work = [operands(rng, 3000, 8, 8, False) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pair: tiny.matmul(*pair), work))
    for (a, b), got in zip(work, results, strict=True):
        assert_same_bits(got, matmul(a, b, 4))


def test_work_is_cut_where_memory_ends(tiny, monkeypatch):
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 10, 30, 20, False)
    # Room for two steps at a time: batches begin and end amid the sums along K.
    monkeypatch.setattr(device_module, "_RESULT_BYTES", 2 * 10 * 4 * 4)
    assert_same_bits(tiny.matmul(a, b), matmul(a, b, 4))


@pytest.mark.parametrize("options", [{"transpose_b": "no"}, {"progress": 1}])
def test_matmul_names_a_bad_option(tiny, options):
    one = np.ones((1, 1), np.float32)
    with pytest.raises(TypeError, match=r"must be True or False, not ('no'|1)"):
        tiny.matmul(one, one, **options)


def test_masked_array_is_refused(tiny):
    one = np.ones((1, 1), np.float32)
    with pytest.raises(TypeError, match="a must be a numpy array, not MaskedArray"):
        tiny.matmul(np.ma.masked_array(one, mask=True), one)
