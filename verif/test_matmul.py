"""A product as programs: any shape, on every chip, both backends, the golden product's bits."""

import numpy as np
import pytest

from golden.chip import GoldenChip
from golden.mxu import matmul
from hdl.config import Config
from sim import Device
from sim.hbm import HbmOptions
from sim.matmul import Matmul

SEED = 11
LIMIT = 1 << 22
STALLS = HbmOptions(latency=23, stalls=25_000, seed=SEED)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, 1e-20, -1e-20],
                   np.float32)
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


def operands(rng, rows, depth, columns, transpose):
    a = rng.standard_normal((rows, depth)).astype(np.float32)
    b = rng.standard_normal((columns, depth) if transpose else (depth, columns)).astype(np.float32)
    for matrix in (a, b):
        if rng.integers(3) == 0:
            matrix.flat[rng.integers(0, matrix.size, 3)] = rng.choice(SPECIAL, 3)
    return a, b


def assert_same_bits(got, want, note=""):
    assert got.shape == want.shape, note
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32), err_msg=str(note))


class Soiled:
    """A golden chip whose memories and registers hold what no result may show."""

    def __init__(self, config):
        self.config = config
        self.chip = GoldenChip(config)
        for core in self.chip.cores:
            core.vectors[:] = 0x7F812345
            core.vmem[:] = 0x7F812345
            core.smem[:] = 0xFFFFFFFF
            core.semaphores[:] = 3
            core.scalars[1:] = 0xDEADBEEF

    def multiply(self, job, a, b, *, gap=1, turn=64):
        """The product, with HBM filled but for the operands, which lie ``gap`` rows apart."""
        config, hbm = self.config, self.chip.hbm
        counts = [panels * rows for panels, rows, _ in (job.a_shape, job.b_shape, job.c_shape)]
        starts = np.cumsum([gap, *(count + gap for count in counts)]).tolist()
        hbm[:starts[-1]] = 0x7F812345
        job.put_a(a, hbm[starts[0]:starts[0] + counts[0]])
        job.put_b(b, hbm[starts[1]:starts[1] + counts[1]])
        before = hbm[:starts[-1]].copy()
        programs = job.programs(*(start * config.row_bytes for start in starts[:3]))
        for core, program in programs.items():
            self.chip.cores[core].load_program(program.bundles)
            self.chip.cores[core].start()
        run = self.chip.run(LIMIT, turn=turn)
        assert run.done, run
        for core in self.chip.cores:
            assert (core.loaded, core.held) == (0, 0)
        for core in programs:
            assert not self.chip.cores[core].semaphores[:2].any()
        c = slice(starts[2], starts[2] + counts[2])
        result = job.get_c(hbm[c])
        before[c] = hbm[c]
        np.testing.assert_array_equal(hbm[:starts[-1]], before)
        return result


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_on_the_golden_chip(preset):
    config = Config.preset(preset)
    rng = np.random.default_rng(SEED)
    splits = set()
    chip = Soiled(config)
    for number in range(60):
        rows, depth, columns = (int(size) for size in rng.integers(1, 6 * config.array, 3))
        transpose = bool(rng.integers(2))
        a, b = operands(rng, rows, depth, columns, transpose)
        job = Matmul(config, rows, depth, columns, transpose)
        got = chip.multiply(job, a, b, gap=int(rng.integers(3)), turn=int(rng.integers(1, 99)))
        note = (SEED, number, job)
        assert_same_bits(got, matmul(a, b.T if transpose else b, config.array), note)
        splits.add((len(job.shares), job.shares[0].columns < job.column_tiles))
    assert splits == {(1, False), (2, False), (2, True)}


@pytest.mark.parametrize("config", ODD, ids=lambda config: f"{config.array}x{config.sublanes}")
def test_other_chips(config):
    rng = np.random.default_rng(SEED)
    chip = Soiled(config)
    for number in range(20):
        rows, depth, columns = (int(size) for size in rng.integers(1, 5 * config.array, 3))
        transpose = bool(rng.integers(2))
        a, b = operands(rng, rows, depth, columns, transpose)
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
def test_long_and_narrow(rows, depth, columns, transpose):
    config = Config.preset("tiny")
    rng = np.random.default_rng([SEED, rows, depth, columns])
    a, b = operands(rng, rows, depth, columns, transpose)
    job = Matmul(config, rows, depth, columns, transpose)
    assert_same_bits(Soiled(config).multiply(job, a, b),
                     matmul(a, b.T if transpose else b, config.array))


def test_v2_on_the_golden_chip():
    config = Config.preset("v2")
    rng = np.random.default_rng(SEED)
    for rows, depth, columns, transpose in ((5, 128, 128, True), (130, 300, 200, False),
                                            (600, 130, 260, True)):
        a, b = operands(rng, rows, depth, columns, transpose)
        job = Matmul(config, rows, depth, columns, transpose)
        want = matmul(a, b.T if transpose else b, 128)
        assert_same_bits(Soiled(config).multiply(job, a, b), want)


def test_shares_are_balanced_and_cover_all():
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


def test_big_work_is_shared_evenly_and_read_once():
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


def test_panels_of_a_result_are_those_of_an_operand():
    job = Matmul(Config.preset("tiny"), 20, 11, 11)
    assert job.a_shape == job.c_shape
    matrix = np.random.default_rng(SEED).standard_normal((20, 11)).astype(np.float32)
    memory = np.full(job.a_shape, 0x7F812345, np.uint32)
    job.put_a(matrix, memory)
    assert_same_bits(job.get_c(memory), matrix)
    panels = memory.view(np.float32)
    assert_same_bits(panels[1, :20], matrix[:, 4:8])
    assert not memory[:, 20:].any()
    assert not memory[2, :, 3:].any()


def test_programs_are_as_long_for_all_shapes():
    lengths = {}
    for preset in ("tiny", "small", "v2"):
        config = Config.preset(preset)
        sizes = (config.array, 50 * config.array)
        for rows in sizes:
            for depth in sizes:
                for columns in sizes:
                    job = Matmul(config, rows, depth, columns)
                    for program in job.programs(0, 0, 0).values() if _fits(job) else ():
                        lengths[preset, rows, depth, columns] = len(program)
    assert len(lengths) > 12
    assert max(lengths.values()) < 180


def _fits(job):
    return all(panels * rows <= job.config.hbm_rows
               for panels, rows, _ in (job.a_shape, job.b_shape, job.c_shape))


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_random_shapes_in_rtl_with_stalls(preset):
    rng = np.random.default_rng([SEED, 1])
    with Device.open(preset, memory=STALLS) as device:
        array = device.config.array
        for number in range(100):
            rows, depth, columns = (int(size) for size in rng.integers(1, 5 * array, 3))
            transpose = bool(rng.integers(2))
            a, b = operands(rng, rows, depth, columns, transpose)
            assert_same_bits(device.matmul(a, b, transpose_b=transpose),
                             matmul(a, b.T if transpose else b, array),
                             (SEED, number, rows, depth, columns, transpose))


@pytest.mark.parametrize("memory", [
    STALLS, HbmOptions(latency=1),
    # Slower than the array by far: whatever is used before it has come is wrong.
    HbmOptions(latency=300, beats=1, cycles=7, outstanding=1, stalls=30_000, seed=3),
], ids=["stalls", "fast", "slow"])
def test_blocks_in_rtl(memory):
    rng = np.random.default_rng([SEED, 2])
    with Device.open("tiny", memory=memory) as device:
        for rows, depth, columns in ((300, 5, 3), (140, 3, 14), (150, 70, 9), (150, 10, 9)):
            a, b = operands(rng, rows, depth, columns, False)
            assert_same_bits(device.matmul(a, b), matmul(a, b, 4), (SEED, rows, depth, columns))


def test_each_core_does_its_share():
    rng = np.random.default_rng(SEED)
    a, b = operands(rng, 30, 9, 10, False)
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
     "vmem_words must be at least 17 for a product, not 16"),
    ((Config.preset("tiny", imem_bundles=100), 1, 1, 1), ValueError,
     "imem_bundles must be at least 192 for a product, not 100"),
    ((Config.preset("tiny", smem_words=32), 1, 1, 1), ValueError,
     "smem_words must be at least 48 for a product, not 32"),
])
def test_bad_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        Matmul(*arguments)


def test_places_beyond_hbm_are_named():
    job = Matmul(Config.preset("tiny"), 4, 4, 4)
    with pytest.raises(ValueError, match="b must be a multiple of a row's 16 bytes, not 8"):
        job.programs(0, 8, 0)
    with pytest.raises(ValueError, match="c must lie within 1048576 bytes of HBM, not 64 bytes "
                                         "from 1048528 on"):
        job.programs(0, 0, (1 << 20) - 48)
