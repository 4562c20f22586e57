"""Products and dense layers of any shape, on every chip, have the golden product's bits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.chip import GoldenChip
from golden.mxu import dense, matmul
from hdl.config import Config
from sim.compiler.dense.graph import Division
from sim.compiler.dense.layers import Dense, LayerKind
from sim.compiler.dense.program import compile_layers, divisions
from sim.models.hbm import HbmOptions
from systolith import Device
from verif.system.random_products import compare_random, random_layers, random_operands

SEED = 11
LIMIT = 1 << 22
STALLS = HbmOptions(latency=23, stalls=25_000, seed=SEED)
TINY = Config.preset("tiny")
# Beyond the presets: weight tiles of one register or of an odd number of pushes, the least number
# of results that an array may hold, a memory of 15 vectors, little instruction memory, one core.
ODD = [
    Config(array=8, sublanes=8, vmem_bytes=64 << 10, smem_words=256, imem_bundles=192,
           hbm_bytes=1 << 20, hbm_channels=2),
    Config(array=4, sublanes=4, vmem_bytes=15 * 64, smem_words=256, imem_bundles=192,
           hbm_bytes=1 << 20, hbm_channels=1),
    Config(array=8, sublanes=1, vmem_bytes=2 << 10, smem_words=256, imem_bundles=192,
           hbm_bytes=1 << 20, hbm_channels=1),
    Config(array=2, sublanes=1, vmem_bytes=1 << 10, smem_words=256, imem_bundles=192,
           hbm_bytes=1 << 18, hbm_channels=1),
    Config.preset("small", cores=1),
    Config.preset("tiny", mac_latency=6),
]


def assert_same_bits(got: np.ndarray, want: np.ndarray, note: object = "") -> None:
    assert got.shape == want.shape, note
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=str(note))


class Soiled:
    """A golden chip with NaN and other values in all memories, which no result may contain."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.chip = GoldenChip(config)
        self.divisions: Counter[Division] = Counter()
        for core in self.chip.cores:
            core.vectors[:] = 0x7F812345
            core.vmem[:] = 0x7F812345
            core.smem[:] = 0xFFFFFFFF
            core.scalars[1:] = 0xDEADBEEF

    def multiply(self, a: NDArray[np.float32], b: NDArray[np.float32], transpose: bool = False, *,
                 gap: int = 1, turn: int = 64) -> NDArray[np.float32]:
        """Return the product of two matrices, which `execute` computes."""
        return self.execute(a, [Dense(b, transpose=transpose)], gap=gap, turn=turn)[0]

    def execute(self, x: NDArray[np.float32], layers: Sequence[Dense], *, gap: int = 1,
                turn: int = 64) -> list[NDArray[np.float32]]:
        """Run layers with buffers ``gap`` rows apart in HBM that is full of other data."""
        config, hbm = self.config, self.chip.hbm
        program = compile_layers(config, *x.shape, tuple(layer.kind for layer in layers))
        executable = program.executable
        self.divisions[program.division] += 1
        addresses, parts, end = {}, {}, gap
        for spec in executable.buffers:
            addresses[spec.name] = end * config.row_bytes
            parts[spec.name] = hbm[end:end + spec.layout.rows]
            end += spec.layout.rows + gap
        hbm[:end] = 0x7F812345
        arrays = program.arrays(x, layers)
        for spec, array in zip(executable.inputs, arrays, strict=True):
            spec.layout.pack(array, parts[spec.name])
        for spec in executable.buffers:
            if spec.value is not None:
                spec.layout.pack(spec.value, parts[spec.name])
        executable.relocate(addresses, parts)
        before = hbm[:end].copy()
        programs = executable.programs(addresses)
        assert len(programs) == (1 if program.division is Division.NONE else 2)
        for core, code in programs.items():
            self.chip.cores[core].load_program(code.bundles)
            self.chip.cores[core].start()
        run = self.chip.run(LIMIT, turn=turn)
        assert run.done, run
        for one in self.chip.cores:
            assert (one.loaded, one.held) == (0, 0)
            assert not one.semaphores.any()
        after = hbm[:end].copy()
        for spec in executable.buffers:
            if spec in executable.outputs or spec.name.startswith("scratch"):
                first = addresses[spec.name] // config.row_bytes
                before[first:first + spec.layout.rows] = parts[spec.name]
        np.testing.assert_array_equal(after, before)
        return program.results([spec.layout.unpack(parts[spec.name])
                                for spec in executable.outputs])


def random_product(rng: np.random.Generator, array: int
                   ) -> tuple[NDArray[np.float32], NDArray[np.float32], bool]:
    """Operands of up to five tiles in each dimension; whether the second one is transposed."""
    rows, depth, columns = (int(size) for size in rng.integers(1, 5 * array, 3))
    transpose = bool(rng.integers(2))
    return *random_operands(rng, rows, depth, columns, transpose), transpose


@pytest.mark.parametrize("config", [TINY, Config.preset("small"), *ODD],
                         ids=lambda config: f"{config.array}x{config.sublanes}x{config.cores}")
def test_random_shapes_on_the_golden_chip(config: Config) -> None:
    rng = np.random.default_rng(SEED)
    chip = Soiled(config)
    for number in range(12):
        a, b, transpose = random_product(rng, config.array)
        got = chip.multiply(a, b, transpose, gap=int(rng.integers(3)),
                            turn=int(rng.integers(1, 99)))
        assert_same_bits(got, matmul(a, b.T if transpose else b, config.array),
                         (SEED, number, a.shape, b.shape, transpose))
    if config.cores > 1:
        assert min(chip.divisions[way] for way in (Division.ROWS, Division.COLUMNS)) > 0


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [
    (1400, 9, 3),       # a stream of rows
    (300, 4, 20),       # one weight tile for each of many tiles of C
    (130, 270, 9),      # a depth whose rows and weights vector memory cannot keep
    (130, 30, 9),       # and one that it can
    (3, 900, 2), (1, 1, 90), (2, 4, 4), (1, 1, 1)])
def test_long_and_narrow(rows: int, depth: int, columns: int, transpose: bool) -> None:
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = random_operands(rng, rows, depth, columns, transpose)
    assert_same_bits(Soiled(TINY).multiply(a, b, transpose),
                     matmul(a, b.T if transpose else b, TINY.array))


def test_negative_zero_sums_survive_a_stream() -> None:
    # 2^-126 - 1.5 * 2^-126 is subnormal, so the sum of each tile is -0.
    a = np.tile(np.array([0, 0, 1, -1], np.float32), (40, 175)) * np.float32(2.0**-63)
    b = np.tile(np.array([[0], [0], [1], [1.5]], np.float32), (175, 20)) * np.float32(2.0**-63)
    want = matmul(a, b, TINY.array)
    assert (want.view(np.uint32) == 0x8000_0000).all()
    assert_same_bits(Soiled(TINY).multiply(a, b), want)


def test_v2_on_the_golden_chip() -> None:
    config = Config.preset("v2")
    rng = np.random.default_rng(SEED)
    for rows, depth, columns, transpose in ((5, 128, 129, True), (130, 300, 200, False)):
        a, b = random_operands(rng, rows, depth, columns, transpose)
        want = matmul(a, b.T if transpose else b, 128)
        assert_same_bits(Soiled(config).multiply(a, b, transpose), want)


@pytest.mark.parametrize(("rows", "depth", "columns", "division"), [
    (1024, 1024, (1024,), Division.COLUMNS), (128, 1024, (1024,), Division.COLUMNS),
    (49, 4608, (512,), Division.COLUMNS), (450, 64, (128, 10), Division.ROWS),
    (1, 1024, (1024, 1024), Division.COLUMNS), (1, 784, (1,), Division.NONE)])
def test_cores_share_the_larger_dimension(rows: int, depth: int, columns: tuple[int, ...],
                                          division: Division) -> None:
    kinds = [LayerKind(size, False, True, True) for size in columns]
    assert divisions(Config.preset("v2"), rows, depth, kinds)[0] is division
    assert divisions(Config.preset("v2", cores=1), rows, depth, kinds) == [Division.NONE]


def test_equal_layers_give_the_same_program() -> None:
    kinds = (LayerKind(6, False, True, True), LayerKind(3, True, False, False))
    one = compile_layers(TINY, 5, 7, kinds)
    assert compile_layers(Config.preset("tiny"), 5, 7, tuple(kinds)) is one
    assert compile_layers(TINY, 5, 8, kinds) is not one
    assert one.division is Division.ROWS
    assert [spec.layout.shape for spec in one.executable.inputs] == [(6, 7), (7, 6), (6,), (3, 6)]
    assert one.executable.name == ("a product of (5, 7) and (7, 6) and "
                                   "a product of (5, 6) and (6, 3)")


@pytest.mark.parametrize("words", [64, 100])
def test_a_chip_with_too_little_scalar_memory_is_named(words: int) -> None:
    config = Config(array=8, sublanes=8, vmem_bytes=64 << 10, smem_words=words, imem_bundles=192,
                    hbm_bytes=1 << 20, hbm_channels=2)
    with pytest.raises(MemoryError, match=r"a product of \(9, 9\) and \(9, 9\) cannot .* choose a "
                                          "chip with larger instruction and scalar memory"):
        compile_layers(config, 9, 9, (LayerKind(9, False, False, False),))


@pytest.mark.parametrize(("memory", "rows", "message"), [
    # What a stream holds finds no room; no kernel does.
    *(({"vmem_bytes": 64}, rows, " must fit vector memory, which has 2 vectors: choose a chip with "
                                 "more vector memory") for rows in (5, 4)),
    ({"hbm_bytes": 4096}, 300, r": a program's \w+ must fit HBM, which has 4096 bytes: .*"
                               "a chip with more HBM")])
def test_a_product_that_does_not_fit_is_named(memory: dict[str, int], rows: int,
                                              message: str) -> None:
    name = rf"a product of \({rows}, 7\) and \(7, 3\)"
    with (Device.open(replace(TINY, **memory), "golden") as device,
          pytest.raises(MemoryError, match=f"^{name}{message}$")):
        device.matmul(np.ones((rows, 7), np.float32), np.ones((7, 3), np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_in_rtl_with_stalls(preset: str) -> None:
    with Device.open(preset, memory=STALLS) as device:
        outcome = compare_random(device, 60, 12, SEED, most=5 * device.config.array)
    assert (outcome.products, outcome.chains) == (60, 12)
    assert 2 in outcome.cores


@pytest.mark.parametrize("memory", [
    STALLS, HbmOptions(latency=1),
    # Slower than the array by far: whatever is used before it has come is wrong.
    HbmOptions(latency=300, beats=1, cycles=7, outstanding=1, stalls=30_000, seed=3),
], ids=["stalls", "fast", "slow"])
def test_blocks_in_rtl(memory: HbmOptions) -> None:
    rng = np.random.default_rng([SEED, 2])
    with Device.open("tiny", memory=memory) as device:
        for rows, depth, columns in ((300, 5, 3), (140, 3, 14), (150, 70, 9), (150, 10, 9),
                                     (1, 30, 1)):
            a, b = random_operands(rng, rows, depth, columns, False)
            assert_same_bits(device.matmul(a, b), matmul(a, b, 4), (SEED, rows, depth, columns))
            assert len(device.last_run) == (1 if rows == 1 else 2)


@pytest.mark.parametrize(("rows", "columns"), [(30, 9), (1, 90)])
def test_each_core_does_its_share(rows: int, columns: int) -> None:
    rng = np.random.default_rng(SEED)
    a, b = random_operands(rng, rows, 9, columns, False)
    with Device.open("tiny", memory=STALLS) as device:
        assert_same_bits(device.matmul(a, b), matmul(a, b, 4))
        first, second = (device.counters(core)["mxu_active_cycles"] for core in (0, 1))
    # Whole registers; registers at the end of a core's share may hold fewer rows.
    registers = -(-rows // TINY.sublanes)
    needed = registers * TINY.sublanes * -(-9 // TINY.array) * -(-columns // TINY.array)
    assert first == second
    assert needed <= first + second <= needed * 5 // 4


# ---- Layers

@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_layers_on_the_golden_chip(preset: str) -> None:
    config = Config.preset(preset)
    rng = np.random.default_rng([SEED, 32])
    chip = Soiled(config)
    drawn = set()
    for number in range(10):
        x, layers, want = random_layers(rng, config.array, int(rng.integers(1, 4)),
                                        4 * config.array)
        before = chip.divisions.copy()
        got = chip.execute(x, layers, gap=int(rng.integers(3)), turn=int(rng.integers(1, 99)))
        for result, right in zip(got, want, strict=True):
            assert_same_bits(result, right, (SEED, number, len(layers)))
        [division] = chip.divisions - before
        drawn |= {(division, layer.bias is not None or layer.relu) for layer in layers}
    assert drawn == {(division, epilogue) for division in Division for epilogue in (False, True)}


@pytest.mark.parametrize("columns", [(61, 62, 63), (64, 64, 64, 64)])
def test_cores_exchange_halves_of_columns(columns: tuple[int, ...]) -> None:
    rng = np.random.default_rng([SEED, *columns])
    x = rng.standard_normal((1, 30)).astype(np.float32)
    layers, want, depth = [], [x], 30
    for size in columns:
        weights = rng.standard_normal((depth, size)).astype(np.float32)
        bias = rng.standard_normal(size).astype(np.float32)
        # What a padded column gives, must not reach the next layer.
        bias[-1] = np.inf
        layers.append(Dense(weights, bias, relu=True))
        want.append(dense(want[-1], weights, TINY.array, bias, relu=True))
        depth = size
    chip = Soiled(TINY)
    for result, right in zip(chip.execute(x, layers), want[1:], strict=True):
        assert_same_bits(result, right)
    assert chip.divisions == {Division.COLUMNS: 1}


def test_infinities_do_not_leak_through_padding() -> None:
    x = np.array([[np.inf, 1.0], [1.0, 2.0]], np.float32)
    w1, w2 = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    bias = np.array([1.0, -0.0, 2.0], np.float32)
    hidden, result = Soiled(TINY).execute(x, [Dense(w1, bias), Dense(w2)])
    assert_same_bits(hidden, dense(x, w1, 4, bias))
    assert np.isinf(result[0]).all()
    assert_same_bits(result, matmul(hidden, w2, 4))
