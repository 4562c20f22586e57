"""A product as programs: any shape, on every chip, both backends, the golden product's bits."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.chip import GoldenChip
from golden.mxu import dense, matmul
from hdl.config import Config
from sim.asm.assembler import Program
from sim.compiler.handwritten.chain import LayerChain
from sim.compiler.handwritten.layers import Dense
from sim.compiler.handwritten.matmul import Matmul
from sim.models.hbm import HbmOptions
from systolith import Device
from verif.system.random_products import compare_random, random_layers, random_operands

SEED = 11
LIMIT = 1 << 22
STALLS = HbmOptions(latency=23, stalls=25_000, seed=SEED)
# Beyond the presets: weight tiles of one register or of an odd number of pushes, the least number
# of results that an array may hold, a memory that four blocks just fit, one core.
ODD = [
    Config(array=8, sublanes=8, vmem_bytes=64 << 10, smem_words=64, imem_bundles=192,
           hbm_bytes=1 << 20, hbm_channels=2),
    Config(array=4, sublanes=4, vmem_bytes=15 * 64, smem_words=64, imem_bundles=192,
           hbm_bytes=1 << 20, hbm_channels=1),
    Config(array=8, sublanes=1, vmem_bytes=2 << 10, smem_words=64, imem_bundles=192,
           hbm_bytes=1 << 20, hbm_channels=1),
    Config(array=2, sublanes=1, vmem_bytes=1 << 10, smem_words=64, imem_bundles=192,
           hbm_bytes=1 << 18, hbm_channels=1),
    Config.preset("small", cores=1),
    Config.preset("tiny", mac_latency=6),
]


def assert_same_bits(got: np.ndarray, want: np.ndarray, note: object = "") -> None:
    assert got.shape == want.shape, note
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=str(note))


class Soiled:
    """A golden chip whose memories and registers hold what no result may show."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.chip = GoldenChip(config)
        for core in self.chip.cores:
            core.vectors[:] = 0x7F812345
            core.vmem[:] = 0x7F812345
            core.smem[:] = 0xFFFFFFFF
            core.semaphores[:] = 3
            core.semaphores[2] = 0  # by which cores meet between layers
            core.scalars[1:] = 0xDEADBEEF

    def multiply(self, job: Matmul, a: NDArray[np.float32], b: NDArray[np.float32], *, gap: int = 1,
                 turn: int = 64) -> NDArray[np.float32]:
        """The product, as `execute`."""
        return self.execute(LayerChain.link(job), a, b, gap=gap, turn=turn)[0]

    def execute(self, chain: LayerChain, *arrays: NDArray[np.float32], gap: int = 1,
                turn: int = 64) -> list[NDArray[np.float32]]:
        """Run a chain with buffers ``gap`` rows apart in HBM that is full of other data."""
        config, hbm, executable = self.config, self.chip.hbm, chain.executable
        addresses, parts, end = {}, {}, gap
        for spec in executable.buffers:
            addresses[spec.name] = end * config.row_bytes
            parts[spec.name] = hbm[end:end + spec.layout.rows]
            end += spec.layout.rows + gap
        hbm[:end] = 0x7F812345
        for spec, array in zip(executable.inputs, arrays, strict=True):
            spec.layout.pack(array, parts[spec.name])
        for spec in executable.buffers:
            if spec.value is not None:
                spec.layout.pack(spec.value, parts[spec.name])
        before = hbm[:end].copy()
        programs = executable.programs(addresses)
        for core, program in programs.items():
            assert len(program) <= sum(job.most_bundles for job in chain.jobs)
            self.chip.cores[core].load_program(program.bundles)
            self.chip.cores[core].start()
        run = self.chip.run(LIMIT, turn=turn)
        assert run.done, run
        for one in self.chip.cores:
            assert (one.loaded, one.held) == (0, 0)
        for core in programs:
            assert not self.chip.cores[core].semaphores[:3].any()
        after = hbm[:end].copy()
        for spec in executable.outputs:
            first = addresses[spec.name] // config.row_bytes
            before[first:first + spec.layout.rows] = parts[spec.name]
        np.testing.assert_array_equal(after, before)
        return [spec.layout.unpack(parts[spec.name]) for spec in executable.outputs]


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_on_the_golden_chip(preset: str) -> None:
    config = Config.preset(preset)
    rng = np.random.default_rng(SEED)
    splits = set()
    chip = Soiled(config)
    for number in range(60):
        rows, depth, columns = (int(size) for size in rng.integers(1, 6 * config.array, 3))
        transpose = bool(rng.integers(2))
        a, b = random_operands(rng, rows, depth, columns, transpose)
        job = Matmul(config, rows, depth, columns, transpose)
        got = chip.multiply(job, a, b, gap=int(rng.integers(3)), turn=int(rng.integers(1, 99)))
        note = (SEED, number, job)
        assert_same_bits(got, matmul(a, b.T if transpose else b, config.array), note)
        splits.add((len(job.shares), job.shares[0].columns < job.column_tiles))
    assert splits == {(1, False), (2, False), (2, True)}


@pytest.mark.parametrize("config", ODD, ids=lambda config: f"{config.array}x{config.sublanes}")
def test_other_chips(config: Config) -> None:
    rng = np.random.default_rng(SEED)
    chip = Soiled(config)
    for number in range(20):
        rows, depth, columns = (int(size) for size in rng.integers(1, 5 * config.array, 3))
        transpose = bool(rng.integers(2))
        a, b = random_operands(rng, rows, depth, columns, transpose)
        job = Matmul(config, rows, depth, columns, transpose)
        assert_same_bits(chip.multiply(job, a, b), matmul(a, b.T if transpose else b, config.array),
                         (SEED, number, job))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [
    (700, 9, 3),        # blocks of rows, each core half of them
    (300, 4, 20),       # one weight tile for each of many tiles of C
    (130, 70, 9),       # a depth whose rows vector memory cannot keep
    (130, 30, 9),       # and one that it can
    (3, 200, 1), (1, 1, 90), (2, 4, 4)])
def test_long_and_narrow(rows: int, depth: int, columns: int, transpose: bool) -> None:
    config = Config.preset("tiny")
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = random_operands(rng, rows, depth, columns, transpose)
    job = Matmul(config, rows, depth, columns, transpose)
    assert_same_bits(Soiled(config).multiply(job, a, b),
                     matmul(a, b.T if transpose else b, config.array))


def test_v2_on_the_golden_chip() -> None:
    config = Config.preset("v2")
    rng = np.random.default_rng(SEED)
    for rows, depth, columns, transpose in ((5, 128, 128, True), (130, 300, 200, False),
                                            (600, 130, 260, True)):
        a, b = random_operands(rng, rows, depth, columns, transpose)
        job = Matmul(config, rows, depth, columns, transpose)
        want = matmul(a, b.T if transpose else b, 128)
        assert_same_bits(Soiled(config).multiply(job, a, b), want)


def test_shares_are_balanced_and_cover_all() -> None:
    rng = np.random.default_rng(SEED)
    for number in range(300):
        config = Config.preset(["tiny", "small", "v2"][number % 3])
        rows, depth, columns = (int(size) for size in rng.integers(1, 20 * config.array, 3))
        job = Matmul(config, rows, depth, columns)
        blocks = job.padded_rows // job.block_rows
        covered = np.zeros((blocks, job.column_tiles), int)
        for share in job.shares:
            covered[share.first_block:share.first_block + share.blocks,
                    share.first_column:share.first_column + share.columns] += 1
        assert (covered == 1).all(), job
        work = [share.blocks * share.columns for share in job.shares]
        assert max(work) - min(work) <= max(blocks, job.column_tiles), job
        assert job.padded_rows >= job.rows
        if min(blocks, job.column_tiles) > 1:
            assert len(job.shares) == 2


def test_big_work_is_shared_evenly_and_read_once() -> None:
    config = Config.preset("v2")
    for sizes in ((4096, 256, 512), (8192, 256, 128), (100, 512, 2048)):
        job = Matmul(config, *sizes)
        first, second = job.shares
        assert first.blocks * first.columns == second.blocks * second.columns
        assert job.padded_rows - job.rows < 2 * config.sublanes * job.padded_rows // job.block_rows
    # Where A is read once for all of four column tiles, transfers take less time than the array.
    assert Matmul(config, 4096, 256, 512).shares[0].columns == 4
    # Few rows: blocks of them would wait for weights.
    assert Matmul(config, 100, 512, 2048).shares[0].columns == 8


def test_programs_are_as_long_for_all_shapes() -> None:
    lengths: dict[bool, set[int]] = {False: set(), True: set()}
    for preset in ("tiny", "small", "v2"):
        config = Config.preset(preset)
        sizes = (config.array, 50 * config.array)
        for rows in sizes:
            for depth in sizes:
                for columns in sizes:
                    for epilogue in (False, True):
                        job = Matmul(config, rows, depth, columns, relu=epilogue)
                        for program in _programs(job) if _fits(job) else ():
                            assert len(program) <= job.most_bundles - 8
                            lengths[epilogue].add(len(program))
    assert min(lengths[True]) > min(lengths[False])


def _programs(job: Matmul) -> Iterable[Program]:
    executable = LayerChain((job,)).executable
    return executable.programs({spec.name: 0 for spec in executable.buffers}).values()


def _fits(job: Matmul) -> bool:
    return all(layout.rows <= job.config.hbm_rows
               for layout in (job.a_layout, job.b_layout, job.c_layout))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_in_rtl_with_stalls(preset: str) -> None:
    with Device.open(preset, memory=STALLS) as device:
        outcome = compare_random(device, 100, 20, SEED, most=5 * device.config.array)
    assert (outcome.products, outcome.chains) == (100, 20)
    assert outcome.cores == {1, 2}


@pytest.mark.parametrize("memory", [
    STALLS, HbmOptions(latency=1),
    # Slower than the array by far: whatever is used before it has come is wrong.
    HbmOptions(latency=300, beats=1, cycles=7, outstanding=1, stalls=30_000, seed=3),
], ids=["stalls", "fast", "slow"])
def test_blocks_in_rtl(memory: HbmOptions) -> None:
    rng = np.random.default_rng([SEED, 2])
    with Device.open("tiny", memory=memory) as device:
        for rows, depth, columns in ((300, 5, 3), (140, 3, 14), (150, 70, 9), (150, 10, 9)):
            a, b = random_operands(rng, rows, depth, columns, False)
            assert_same_bits(device.matmul(a, b), matmul(a, b, 4), (SEED, rows, depth, columns))


def test_each_core_does_its_share() -> None:
    rng = np.random.default_rng(SEED)
    a, b = random_operands(rng, 30, 9, 10, False)
    with Device.open("tiny", memory=STALLS) as device:
        device.matmul(a, b)
        job = Matmul(device.config, 30, 9, 10)
        assert len(job.shares) == 2
        for share in job.shares:
            rows = share.blocks * share.columns * job.depth_tiles * job.block_rows
            assert device.counters(share.core)["mxu_active_cycles"] == rows


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (("tiny", 1, 1, 1), TypeError, "config must be a Config, not 'tiny'"),
    ((Config.preset("tiny"), 0, 1, 1), ValueError, "rows must be at least 1, not 0"),
    ((Config.preset("tiny"), 1, 1.0, 1), TypeError, "depth must be an integer, not 1.0"),
    ((Config.preset("tiny"), 1, 1, True), TypeError, "columns must be an integer, not True"),
    ((Config.preset("tiny"), 1, 1, 1, 1), TypeError, "transpose_b must be True or False, not 1"),
    ((Config.preset("tiny", vmem_bytes=512), 1, 1, 1), ValueError,
     "vmem_vectors must be at least 17 for a product, not 16"),
    ((Config.preset("tiny", imem_bundles=100), 1, 1, 1), ValueError,
     "imem_bundles must be at least 192 for a product, not 100"),
    ((Config.preset("tiny", smem_words=32), 1, 1, 1), ValueError,
     "smem_words must be at least 64 for a product, not 32"),
])
def test_bad_arguments_are_named(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Matmul(*arguments)


# ---- Layers

def chain_of(config: Config, rows: int, layers: Sequence[Dense]
             ) -> tuple[LayerChain, list[NDArray[np.float32]]]:
    """The chain of dense layers, and all its inputs except x."""
    jobs, depth = [], (layers[0].weights.T if layers[0].transpose else layers[0].weights).shape[0]
    for layer in layers:
        columns = layer.weights.shape[0 if layer.transpose else 1]
        jobs.append(Matmul(config, rows, depth, columns, layer.transpose,
                           bias=layer.bias is not None, relu=layer.relu))
        depth = columns
    operands = [array for layer in layers for array in (layer.weights, layer.bias)
                if array is not None]
    return LayerChain.link(*jobs), operands


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_layers_on_the_golden_chip(preset: str) -> None:
    config = Config.preset(preset)
    rng = np.random.default_rng([SEED, 4])
    chip = Soiled(config)
    kept = set()
    for number in range(30):
        x, layers, want = random_layers(rng, config.array, int(rng.integers(1, 3)),
                                        4 * config.array)
        chain, given = chain_of(config, len(x), layers)
        got = chip.execute(chain, x, *given, gap=int(rng.integers(3)),
                           turn=int(rng.integers(1, 99)))
        for result, right in zip(got, want, strict=True):
            assert_same_bits(result, right, (SEED, number, chain))
        kept |= {(len(job.shares), job.depth_tiles > 1, job.has_epilogue) for job in chain.jobs}
    assert {(2, deep, epilogue) for deep in (False, True) for epilogue in (False, True)} < kept


def test_more_layers_at_v2_on_the_golden_chip() -> None:
    config = Config.preset("v2")
    rng = np.random.default_rng(SEED)
    x, layers, want = random_layers(rng, config.array, 5, 3 * config.array)
    chain, given = chain_of(config, len(x), layers)
    for result, right in zip(Soiled(config).execute(chain, x, *given), want, strict=True):
        assert_same_bits(result, right)


def test_infinities_do_not_leak_through_padding() -> None:
    config = Config.preset("tiny")
    x = np.array([[np.inf, 1.0], [1.0, 2.0]], np.float32)
    w1, w2 = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    chain = LayerChain.link(Matmul(config, 2, 2, 3, bias=True), Matmul(config, 2, 3, 2))
    bias = np.array([1.0, -0.0, 2.0], np.float32)
    hidden, result = Soiled(config).execute(chain, x, w1, bias, w2)
    assert_same_bits(hidden, dense(x, w1, 4, bias))
    assert np.isinf(result[0]).all()
    assert_same_bits(result, matmul(hidden, w2, 4))


def test_chains_that_do_not_fit_are_named() -> None:
    config = Config.preset("tiny")
    first = Matmul(config, 4, 4, 6, relu=True)
    with pytest.raises(TypeError, match="jobs must be a tuple of Matmul, not"):
        LayerChain((first, "tiny"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="jobs must have at least one job"):
        LayerChain(())
    with pytest.raises(ValueError, match=r"jobs\[0\] must have zero_pads: 6 columns"):
        LayerChain((first, Matmul(config, 4, 6, 3)))
    with pytest.raises(ValueError, match=r"jobs\[1\] must take what jobs\[0\] makes"):
        LayerChain.link(first, Matmul(config, 4, 5, 3))
    with pytest.raises(ValueError, match="jobs must fit 512 bundles, not 3 of up to 672"):
        LayerChain.link(*[Matmul(config, 4, 4, 4, relu=True)] * 3)
    with pytest.raises(ValueError, match="panel_rows must be 0 or at least 4, not 2"):
        Matmul(config, 4, 4, 4, panel_rows=2)
