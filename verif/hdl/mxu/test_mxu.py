"""The matrix unit in pure RTL: any traffic on its streams gives the golden rows, in order."""

from dataclasses import asdict, dataclass

import numpy as np
import pytest

from golden.mxu import tile_matmul
from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.grid import mac_grid
from hdl.mxu.mxu import Mxu
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

TIMEOUT = 20_000
SIZES = [(2, 2), (3, 1), (4, 3), (5, 6), (8, 4)]
"""Sides of the array, and depths of its cells."""


@dataclass
class Tile:
    x: np.ndarray
    w: np.ndarray
    transpose: bool


@dataclass
class StreamRates:
    """Share of cycles in which each of the three streams is valid or ready."""

    x: float = 1.0
    w: float = 1.0
    y: float = 1.0


def small_config(array: int, mac_latency: int) -> Config:
    return Config(array=array, sublanes=1, vmem_bytes=4 * array, mac_latency=mac_latency)


def open_mxu(config: Config) -> Model:
    sources = cached_json("mxu", asdict(config),
                          lambda: VerilogLibrary().write("mxu", lambda: Mxu(config)))
    # The code of one row takes less time to compile than that of all rows.
    rows = [mac_grid(config).row_module] if config.array > 4 else []
    return Model(build_model("mxu", sources, waivers=LINT_WAIVERS, optimise=None,
                             hierarchical=rows))


def words(row: np.ndarray, flag: bool) -> np.ndarray:
    return np.append(np.ascontiguousarray(row, np.float32).view(np.uint32), np.uint32(flag))


def stream(model: Model, tiles: list[Tile], rates: StreamRates, rng: np.random.Generator,
           abandon_after: int | None = None) -> tuple[np.ndarray, list[int], list[int]]:
    """Runs tiles; returns result rows, their cycles, and the cycles of the activation rows.

    With ``abandon_after``, it stops after this number of cycles, before all results have come, and
    leaves the streams as they are.
    """
    # Only the first row's flag counts; behind it there is noise.
    weights = [words(row, bool(rng.integers(2)) if index else tile.transpose) for tile in tiles
               for index, row in enumerate(tile.w.T if tile.transpose else tile.w)]
    rows = [words(row, index == 0) for tile in tiles for index, row in enumerate(tile.x)]
    results, came, went = [], [], []
    w_next = x_next = 0
    for cycle in range(TIMEOUT if abandon_after is None else abandon_after):
        w_valid = w_next < len(weights) and rng.random() < rates.w
        x_valid = x_next < len(rows) and rng.random() < rates.x
        y_ready = rng.random() < rates.y
        model.poke("w__valid", int(w_valid))
        model.poke("x__valid", int(x_valid))
        model.poke("y__ready", int(y_ready))
        if w_valid:
            model.poke("w__payload", weights[w_next])
        if x_valid:
            model.poke("x__payload", rows[x_next])
        w_next += w_valid and model.peek("w__ready")
        if x_valid and model.peek("x__ready"):
            x_next += 1
            went.append(cycle)
        if y_ready and model.peek("y__valid"):
            results.append(model.peek_words("y__payload"))
            came.append(cycle)
        model.tick()
        if len(results) == len(rows):
            break
    assert (len(results) == len(rows) > 0) == (abandon_after is None)
    return np.array(results), came, went


def random_tiles(rng: np.random.Generator, size: int, count: int) -> list[Tile]:
    return [Tile(rng.standard_normal((rng.integers(1, 3 * size), size)).astype(np.float32),
                 rng.standard_normal((size, size)).astype(np.float32),
                 bool(rng.integers(2))) for _ in range(count)]


def expected(tiles: list[Tile]) -> np.ndarray:
    return np.concatenate([tile_matmul(tile.x, tile.w) for tile in tiles]).view(np.uint32)


def assert_rows(got: np.ndarray, want: np.ndarray, what: object = "") -> None:
    """Compares result rows; names the first element that differs, and both its values."""
    assert got.shape == want.shape, f"{what}: results have shape {got.shape}, not {want.shape}"
    wrong = np.argwhere(got != want)
    if len(wrong):
        row, column = wrong[0]
        raise AssertionError(
            f"{what}: row {row}, column {column} is {got[row, column]:08x}, not "
            f"{want[row, column]:08x}; {len(wrong)} of {want.size} elements differ")


@pytest.mark.parametrize(("array", "mac_latency"), SIZES)
def test_random_traffic_gives_golden_rows_in_order(array: int, mac_latency: int) -> None:
    rng = np.random.default_rng([array, mac_latency])
    with open_mxu(small_config(array, mac_latency)) as model:
        for rates in (StreamRates(), StreamRates(0.7, 0.6, 0.5), StreamRates(1, 0.2, 1),
                      StreamRates(1, 1, 0.2)):
            model.reset()
            tiles = random_tiles(rng, array, 10)
            got, _, _ = stream(model, tiles, rates, rng)
            assert_rows(got, expected(tiles), rates)
            assert model.peek("mxu_active_cycles") == len(got)
            cycles = model.peek("cycles")
            assert model.peek("mxu_active_cycles") + model.peek("weight_load_cycles") < cycles


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("size", "mac_latency"), SIZES)
def test_a_tile_takes_its_rows_and_its_latency_and_no_more(size: int, mac_latency: int,
                                                           transpose: bool) -> None:
    tiles = 6
    config = small_config(size, mac_latency)
    rng = np.random.default_rng(3)
    # A straight load keeps row_skew - 1 cycles of distance to the swap, row by row.
    lag = 0 if transpose else (config.row_skew - 1) * (size - 1)
    rows = size + lag + 1
    work = [Tile(rng.standard_normal((rows, size)).astype(np.float32),
                 rng.standard_normal((size, size)).astype(np.float32), transpose)
            for _ in range(tiles)]
    with open_mxu(config) as model:
        model.reset()
        got, came, went = stream(model, work, StreamRates(), rng)
    assert_rows(got, expected(work))
    assert came[0] - went[0] == config.array_latency
    # One row a cycle in and one out, while the next tile's weights load.
    assert went == list(range(went[0], went[0] + rows * tiles))
    assert came == list(range(came[0], came[0] + rows * tiles))


def test_nan_and_infinity_reach_the_results_they_belong_to() -> None:
    size = 4
    rng = np.random.default_rng(4)
    specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 1.0], np.float32)
    tiles = [Tile(rng.choice(specials, (12, size)), rng.choice(specials, (size, size)), bool(t % 2))
             for t in range(20)]
    with open_mxu(small_config(size, 2)) as model:
        model.reset()
        got, _, _ = stream(model, tiles, StreamRates(), rng)
    want = expected(tiles)
    assert_rows(got, want)
    assert (want == 0x7FC0_0000).any()
    assert (want == 0x7F80_0000).any()


@pytest.mark.parametrize(("size", "mac_latency"), [(3, 1), (4, 3)])
def test_reset_in_the_middle_forgets_everything(size: int, mac_latency: int) -> None:
    resets = 60
    rng = np.random.default_rng([5, mac_latency])
    shares = (StreamRates(), StreamRates(0.7, 0.6, 0.5), StreamRates(1, 0.4, 1),
              StreamRates(1, 1, 0.2))
    rows_in = rows_out = 0
    with open_mxu(small_config(size, mac_latency)) as model:
        model.reset()
        for index in range(resets):
            # Their loads alone take longer than they are given.
            abandoned = random_tiles(rng, size, 20)
            got, _, went = stream(model, abandoned, shares[index % 4], rng,
                                  abandon_after=int(rng.integers(1, 20 * size)))
            assert_rows(got, expected(abandoned)[:len(got)].reshape(got.shape), "abandoned")
            rows_in += len(went)
            rows_out += len(got)
            # One cycle of reset in the middle of the traffic: the streams still offer and take.
            model.poke("rst", 1)
            model.tick()
            model.poke("rst", 0)
            for counter in ("cycles", "mxu_active_cycles", "weight_load_cycles"):
                assert model.peek(counter) == 0
            tiles = random_tiles(rng, size, 3)
            got, _, _ = stream(model, tiles, shares[index // 4 % 4], rng)
            assert_rows(got, expected(tiles), f"after reset {index}")
            assert model.peek("mxu_active_cycles") == len(got)
            assert model.peek("weight_load_cycles") <= 3 * size
    # Rows were on their way at the resets, and others had come before.
    assert rows_in - rows_out > resets
    assert rows_out > resets


def test_results_wait_for_a_slow_taker_without_loss() -> None:
    size = 4
    config = small_config(size, 2)
    rng = np.random.default_rng(6)
    tiles = [Tile(rng.standard_normal((4 * config.result_depth, size)).astype(np.float32),
                  rng.standard_normal((size, size)).astype(np.float32), False)]
    with open_mxu(config) as model:
        model.reset()
        rows = [words(row, index == 0) for index, row in enumerate(tiles[0].x)]
        taken = 0
        for row in tiles[0].w:
            model.poke("w__valid", 1)
            model.poke("w__payload", words(row, False))
            model.tick()
        model.poke("w__valid", 0)
        model.poke("x__valid", 1)
        for _ in range(3 * config.result_depth):
            model.poke("x__payload", rows[taken])
            taken += model.peek("x__ready")
            model.tick()
        # The unit has stopped taking rows: every one that it took has a place.
        assert config.result_depth <= taken <= config.result_depth + 1
        got: list[np.ndarray] = []
        model.poke("y__ready", 1)
        while len(got) < len(rows):
            model.poke("x__valid", int(taken < len(rows)))
            if taken < len(rows):
                model.poke("x__payload", rows[taken])
                taken += model.peek("x__ready")
            if model.peek("y__valid"):
                got.append(model.peek_words("y__payload"))
            model.tick()
            assert model.cycle < TIMEOUT
    assert_rows(np.array(got), expected(tiles))


def test_activations_wait_for_the_first_swap_after_a_reset() -> None:
    rng = np.random.default_rng(8)
    with open_mxu(small_config(4, 2)) as model:
        for _ in range(2):
            model.reset()
            model.poke("x__valid", 1)
            model.poke("x__payload", words(rng.standard_normal(4), False))
            for _ in range(20):
                assert not model.peek("x__ready")
                model.tick()
            model.poke("x__valid", 0)
            tiles = random_tiles(rng, 4, 2)
            got, _, _ = stream(model, tiles, StreamRates(), rng)
            assert_rows(got, expected(tiles))


def test_config_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 'v2'"):
        Mxu("v2")  # type: ignore[arg-type]
