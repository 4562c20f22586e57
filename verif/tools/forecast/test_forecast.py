"""The timing model of pods: its formulas, its fit, and its stored calibration."""

import json
import math
import pathlib
import re
from dataclasses import replace

import pytest

from hdl.config import Config
from sim.apps.pod import SIZES
from sim.compiler.collectives.plan import RingPlan
from sim.compiler.collectives.schedule import ticks
from sim.compiler.collectives.shares import SumShares
from sim.compiler.program.compiled import SumRecord
from sim.driver.pod import with_links
from tools.forecast import __main__ as command
from tools.forecast.calibrate import MOST_CHIPS, STRONG_BATCH, Model
from tools.forecast.charts import CORES, curves, draw, report
from tools.forecast.fit import non_negative
from tools.forecast.links import LinkModel, parts
from tools.forecast.replay.rings import Times, replayed
from tools.forecast.replay.streamed import streamed
from tools.forecast.replay.work import tick_cycles
from tools.forecast.samples import (
    COMPILED,
    LINKS,
    Plan,
    Program,
    Samples,
    StepSample,
    SumSample,
    load,
    save,
)
from tools.forecast.step import Forecast, StepModel
from tools.forecast.sums import SumModel, streams
from tools.forecast.torus import LINK_RATE, shape_of

V2 = Config.preset("v2")
SHAPES = (1, 1), (2, 1), (4, 1), (2, 2)
EARLY = SumRecord(vectors=265, kernels=16596, apart=True, leads=False)
LATE = SumRecord(vectors=392, kernels=1274, apart=True, leads=False)
PROGRAM = Program("large", "perceptron", 256, "digits", (1605632, 1048576, 20480), 55000, "RTL")


@pytest.fixture(scope="module")
def stored() -> Model:
    return Model.fitted(load())


def ring_loads(shape: tuple[int, int], size: float) -> list[float]:
    """Number of bytes on a link of each axis: the sum over all phases and quarters of an array."""
    loads = [0.0, 0.0]
    for first in (0, 1):  # of two cores, each with a quarter for each direction of a link
        axes = (first, 1 - first) if shape[first] > 1 else (1 - first, first)
        held = size / 4
        for axis in axes:
            part = held / shape[axis]
            loads[axis] += 2 * (shape[axis] - 1) * part  # scatter, and gather
            held = part
    return loads


@pytest.mark.parametrize(("shape", "arrays"), [
    ((2, 1), 1), ((1, 2), 1), ((2, 2), 1), ((4, 2), 1), ((8, 2), 1), ((8, 8), 1), ((2, 1), 2)])
def test_replay_approaches_the_rate_of_the_links(shape: tuple[int, int], arrays: int) -> None:
    plan = RingPlan.of(with_links(V2), shape, 4 << 20, arrays)
    least = max(ring_loads(shape, plan.bytes)) / LINK_RATE
    # Without latency, only the first and the last pieces take longer.
    cycles = replayed(plan, Times(0, 0, 0))
    assert least < cycles < least + 2500 * arrays
    turned = RingPlan.of(with_links(V2), shape[::-1], 4 << 20, arrays)
    assert replayed(turned, Times(0, 0, 0)) == pytest.approx(cycles, rel=0.01)


def test_replay_of_two_arrays_waits_for_vector_memory() -> None:
    plan = RingPlan.of(with_links(V2), (2, 2), 4 << 20, 2)
    cycles = replayed(plan, Times(0, 0, 0))
    # Each core loads its half of both arrays, a row a cycle, and stores it. Meanwhile, its vector
    # memory takes more than half as many rows from links as it loads for one array.
    half = plan.bytes / 2 / V2.row_bytes
    assert cycles > 4 * half + half
    assert cycles > 1.25 * max(ring_loads((2, 2), plan.bytes)) / LINK_RATE


@pytest.mark.parametrize("size", [1 << 20, 64 << 10])
def test_latency_counts_once_for_each_chip_on_the_way(size: int) -> None:
    """Each of 4 phases has 7 steps on 8 x 8 chips; segments are too short to hide latency."""
    hops = 4 * 7
    plan = RingPlan.of(with_links(V2), (8, 8), size)
    one, two = (replayed(plan, Times(0, latency, 0)) for latency in (10000, 20000))
    assert (plan.spread > 1) is (size < 1 << 20)
    # With spread blocks, both ways wait for each other.
    waits = 2 * (plan.spread - 2) * (8 // plan.spread) if plan.spread > 1 else 0
    assert hops <= (two - one) / 10000 <= hops + waits + 0.01


def test_sums_without_room_for_their_blocks_are_made_in_parts() -> None:
    size = 16 << 20
    with pytest.raises(MemoryError):
        RingPlan.of(with_links(V2), (32, 32), size, 2)
    number, plan = parts(V2, (32, 32), size, 2)
    assert plan.bytes * number >= size
    assert plan.spread > 1
    model = LinkModel(V2, Times(200, 80, 0))
    assert model.cycles((32, 32), size, 2) == number * model.cycles((32, 32), size // number, 2)
    assert parts(V2, (16, 16), size, 2)[0] == 1


def test_shapes_have_as_many_chips_as_pairs_of_cores() -> None:
    assert [shape_of(cores) for cores in (1, 2, 4, 8, 16, 32, 2048)] == [
        (1, 1), (1, 1), (2, 1), (2, 2), (4, 2), (4, 4), (32, 32)]
    for cores in 0, 3, 4096:
        with pytest.raises(ValueError, match=f"cores must be a power of two from 1 to 2048, not "
                                             f"{cores}"):
            shape_of(cores)


def test_fit_finds_coefficients_and_keeps_them_from_being_negative() -> None:
    rows = [[1, 0], [1, 1], [1, 2]]
    assert non_negative(rows, [3, 5, 7], [1, 1, 1]) == pytest.approx([3, 2])
    assert non_negative(rows, [3, 2, 1], [1, 1, 1]) == pytest.approx([2, 0])
    # An equation with a weight of 0 does not count.
    assert non_negative([[1], [1]], [3, 100], [1, 0]) == pytest.approx([3])
    with pytest.raises(ValueError, match="samples must determine all 2 parameters"):
        non_negative([[1, 1], [2, 2]], [1, 2], [1, 1])
    with pytest.raises(ValueError, match="samples must determine all parameters, but"):
        non_negative([], [], [])


def shares_of(shape: tuple[int, int], size: int) -> SumShares:
    return SumShares.of(with_links(V2), shape, size // (V2.row_bytes * V2.sublanes))


@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 4)])
def test_ticks_approach_the_rate_of_the_links(shape: tuple[int, int]) -> None:
    shares = shares_of(shape, 4 << 20)
    vector = V2.row_bytes * V2.sublanes / LINK_RATE
    least = max(shares.loads()) * vector
    cycles = streamed(with_links(V2), shares, 0)
    # On large tori, a block is short, and a core waits for it twice on its way round each ring.
    blocks = sum(2 * side * quarter.block for quarter in shares.quarters(0)
                 for side in quarter.sides)
    assert least < cycles < least + 1500 + blocks * vector
    # Latency is hidden, but not at the ends of phases.
    assert cycles < streamed(with_links(V2), shares, 60)


@pytest.mark.parametrize("shape", [(2, 1), (4, 2), (4, 4)])
def test_cycles_of_ticks_are_those_of_the_compilers_code(shape: tuple[int, int]) -> None:
    """An addition takes two cycles or more, and each piece some bundles."""
    shares = shares_of(shape, 1 << 20)
    found = tick_cycles(with_links(V2), shares)
    assert [*found] == [tick for _, tick in ticks(shares.quarters(0))]
    for tick, cycles in found.items():
        adds = sum(shares.sizes[number] for number, event in tick.events if event.goes)
        least = 2 * adds + 7 * len(tick.events)
        assert least * shares.pieces <= cycles <= (2 * least + 40) * shares.pieces


def test_parameters_are_found_from_their_own_samples() -> None:
    model = SumModel(V2, latency=60, near_start=500, near=3, start=300, local=2)
    samples = [SumSample(COMPILED, shape, sizes, 2, round(model.cycles(shape, sizes)))
               for shape in SHAPES for sizes in ((1 << 16,), (1 << 20,), (1 << 20, 1 << 12))]
    found = SumModel.fitted(V2, 60, samples)
    for sample in samples:
        assert found.cycles(sample.shape, sample.sizes) == pytest.approx(sample.cycles, rel=1e-3)
    assert (found.near_start, found.near, found.start, found.local) == pytest.approx(
        (500, 3, 300, 2), rel=0.02)
    assert model.ticks((1, 1), LATE) == 0


def test_times_are_found_from_their_own_samples() -> None:
    model = LinkModel(V2, Times(start=300, latency=90, transfer=3))
    samples = [SumSample(LINKS, shape, (size,), arrays,
                         round(model.cycles(shape, size, arrays)))
               for shape in SHAPES[1:] for arrays in (1, 2) for size in (1 << 16, 1 << 20)]
    found = LinkModel.fitted(V2, samples)
    for sample in samples:
        assert found.cycles(sample.shape, sample.sizes[0], sample.contributions) == pytest.approx(
            sample.cycles, rel=0.02)
    assert found.times.latency == pytest.approx(model.times.latency, rel=0.2)
    with pytest.raises(ValueError, match="number of AllReduce samples must be at least 3, not 2"):
        LinkModel.fitted(V2, samples[:2])


def plans_of(name: str, alone: int) -> list[Plan]:
    """Plans of a program on one core, on 4 cores, and on 16 cores, on which no sum leads."""
    return [Plan(name, 1, alone, ()),
            Plan(name, 4, alone - 2000, (EARLY, replace(LATE, leads=True))),
            Plan(name, 16, alone - 1000, (EARLY, LATE))]


def test_steps_are_fitted_and_predicted() -> None:
    sums = SumModel(V2, latency=60, near_start=0, near=3, start=0, local=2)
    programs = {"large": PROGRAM, "more": replace(PROGRAM, name="more", cycles=170000)}
    plans = plans_of("large", 52000) + plans_of("more", 166000)
    model = StepModel(sums, {"large": 54000}, plans, start=400, led=0.5)
    samples = [StepSample(name, cores, round(model.cycles(programs[name], cores)))
               for name in programs for cores in ((1, 2, 4, 16) if name == "large" else (4,))]
    found = StepModel.fitted(sums, programs, samples, plans)
    assert found.chips == model.chips
    assert (found.start, found.led) == pytest.approx((400, 0.5), rel=0.01)
    assert model.cycles(PROGRAM, 1) == PROGRAM.cycles
    assert model.cycles(PROGRAM, 2) == 54000
    assert model.cycles(programs["more"], 2) == 170000
    # The kernels hide the early sum. The program takes 3,000 cycles besides its kernels.
    assert model.cycles(PROGRAM, 4) == pytest.approx(
        50000 + 3000 + sums.ticks((2, 1), LATE) + 400 - 0.5 * LATE.vectors * V2.sublanes)
    late = sums.ticks((4, 2), LATE) + 400
    assert model.cycles(PROGRAM, 16) == pytest.approx(51000 + 3000 + late)
    # Kernels hide no sum that takes longer than they do, and none that is not in steps.
    for item in replace(EARLY, kernels=900), replace(EARLY, apart=False):
        bare = replace(model, plans=[plans[0], Plan("large", 4, 50000, (item,))])
        assert bare.cycles(PROGRAM, 4) == pytest.approx(
            50000 + 3000 + sums.ticks((2, 1), item) + 400)
    with pytest.raises(ValueError, match=r"there must be a plan of other on 1 core$"):
        model.cycles(replace(PROGRAM, name="other"), 4)
    with pytest.raises(ValueError, match="there must be a plan of large on 32 cores"):
        model.cycles(PROGRAM, 32)


def test_sums_that_do_not_fit_vector_memory_are_predicted_with_all_reduce(stored: Model) -> None:
    large = replace(PROGRAM, name="unmeasured", sizes=(V2.vmem_bytes,))
    assert streams(V2, (16, 8), PROGRAM.sizes)
    assert stored.forecast(PROGRAM, 256).compiled
    for program, cores in ((large, 16), (PROGRAM, 2048)):
        assert not streams(V2, shape_of(cores), program.sizes)
        point = stored.forecast(program, cores)
        assert point == stored.at_link_rate(program, cores)
        assert not point.compiled
        assert point.cycles == pytest.approx(program.cycles + stored.links.cycles(
            shape_of(cores), sum(program.sizes), 2))


def test_fixed_number_of_examples_is_divided_by_more_and_more_cores(stored: Model) -> None:
    points = stored.strong()
    assert [point.cores for point in points] == [1 << each for each in range(len(points))]
    assert {point.cores * point.batch for point in points} == {STRONG_BATCH}
    assert points[0].efficiency == 1
    # All examples on one core take as long as the speed of several says.
    for point in points:
        speed = point.speed(1) / points[0].speed(1)
        assert point.efficiency == pytest.approx(speed / point.cores)
    assert {2, 8} <= {point.cores for point in points if point.measured}


def test_speed_efficiency_and_cost() -> None:
    point = Forecast(cores=8, cycles=2000, measured=False, batch=10, one=1500)
    assert point.efficiency == 0.75
    assert point.speed(1e6) == 40000
    assert point.cost(1e6) == 100  # four chips, 25 seconds each
    # The second core of a chip is paid for.
    assert replace(point, cores=1).cost(1e6) == replace(point, cores=2).cost(1e6) * 2


def test_samples_are_kept_and_bad_files_are_named(tmp_path: pathlib.Path) -> None:
    samples = Samples("v2", {"steps": "abc"}, (PROGRAM,),
                      (SumSample(LINKS, (2, 1), (4096,), 1, 700),),
                      (StepSample("large", 2, 56000),), (replace(PROGRAM, batch=64),),
                      (Plan("large", 4, 48000, (EARLY, LATE)),))
    path = tmp_path / "samples.json"
    save(samples, path)
    assert load(path) == samples
    told = json.loads(path.read_text())
    del told["sums"][0]["cycles"]
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=re.escape(f"{path} must have samples: ")):
        load(path)


def test_stored_calibration_predicts_more_chips_than_it_was_fitted_to(stored: Model) -> None:
    compared = list(stored.comparisons())
    chips = {math.prod(each.shape) for each in compared if not each.fitted}
    assert {8, 16, 32, 64, 256} <= chips
    assert {math.prod(each.shape) for each in compared if each.fitted} == {1, 2, MOST_CHIPS}
    text = report(stored)
    assert all(str(each) in text for each in compared)
    for each in compared:
        most = 0.07
        if "cores" in each.what and math.prod(each.shape) > 16:
            most = 0.10
        elif each.shape == (16, 16) and "256 KiB" in each.what:
            most = 0.20  # A block for every 16th chip only: the model's waits are too short.
        assert abs(each.error) < most, str(each)


def test_stored_plan_is_that_of_the_compiler(stored: Model) -> None:
    pytest.importorskip("jax")
    from tools.forecast.measure import GROUPS, perceptron_plan

    assert set(GROUPS) == set(command._GROUPS) == set(stored.samples.revisions)
    # It has an early sum, and one that leads the last kernel.
    found = perceptron_plan("large", SIZES[1], 256, 4, V2)
    assert [(item.apart, item.leads) for item in found.sums] == [(True, False), (True, True)]
    assert found in stored.samples.plans, (
        "the plans and steps of the calibration must be measured again")


def test_measured_points_are_those_of_the_calibration(stored: Model) -> None:
    for curve in curves(stored):
        program = curve.program
        cycles = {step.cores: step.cycles for step in stored.samples.steps
                  if step.program == program.name}
        if program.source == "RTL":
            cycles[1] = program.cycles
        assert {point.cores: point.cycles for point in curve.compiled
                if point.measured} == cycles
        assert not any(point.measured for point in curve.links if point.cores > 2)
        assert tuple(point.cores for point in curve.compiled) == CORES
    assert CORES[0] == 1
    assert CORES[-1] == 2048


def test_table_and_charts_show_all_points(stored: Model, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    found = curves(stored)
    text = report(stored)
    for word, wanted in (("measured", True), ("predicted", False)):
        # The tables of samples have "predicted" as a heading.
        for last, points in (
                ("compiled|AllReduce|none", [point for each in found for point in each.compiled]),
                (r"[0-9,]+", stored.strong())):
            row = re.compile(rf"^ *[0-9,]+ .* {word} *(?:{last})$", re.MULTILINE)
            assert len(row.findall(text)) == sum(point.measured is wanted for point in points)
    draw(found, tmp_path / "scaling.svg")
    picture = (tmp_path / "scaling.svg").read_text()
    # matplotlib draws letters as paths, and keeps the text in comments.
    for curve in found:
        assert f"<!-- {curve.program.title} -->" in picture


def test_page_has_the_figures_of_the_stored_calibration(
        stored: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    page = command.PAGE.read_text(encoding="utf-8")
    written, drawn = tmp_path / "scaling.md", list[pathlib.Path]()
    written.write_text(re.sub(r"```text\n.*?```", "```text\n```", page, flags=re.DOTALL),
                       encoding="utf-8")
    assert written.read_text(encoding="utf-8") != page
    monkeypatch.setattr(command, "PAGE", written)
    monkeypatch.setattr(Model, "fitted", lambda samples: stored)
    monkeypatch.setattr(command, "draw", lambda found, path: drawn.append(path))
    monkeypatch.setattr("sys.argv", ["make scaling", "--docs"])
    assert command.main() == 0
    assert written.read_text(encoding="utf-8") == page, (
        "`make docs` must be run after a calibration")
    assert drawn == [tmp_path / "scaling.svg"]


def test_command_writes_charts_table_and_figures(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
        tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["make scaling"])
    assert command.main() == 0
    assert "largest error on more than 4 chips" in capsys.readouterr().out
    [told] = [json.loads(path.read_text()) for path in tmp_path.rglob("scaling.json")]
    assert [point["cores"] for point in told["curves"][0]["compiled_sums"]] == list(CORES)
    assert told["validation"]
    assert [*tmp_path.rglob("scaling.svg")]
