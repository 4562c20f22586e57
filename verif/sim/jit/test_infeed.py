"""Queues between the host and a loop: batches arrive, and results leave, while it runs."""

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402

import systolith  # noqa: E402
from sim.compiler.passes.streaming import queues  # noqa: E402
from systolith import Device, Infeed, UnsupportedError  # noqa: E402

MESH = jax.sharding.AbstractMesh((2,), ("x",))
PART = jax.sharding.PartitionSpec
W = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


@pytest.fixture(scope="module", params=["golden", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with Device.open("tiny", request.param) as opened:
        yield opened


@pytest.fixture(scope="module")
def golden() -> Iterator[Device]:
    with Device.open("tiny", "golden") as opened:
        yield opened


def train(w: Any, batches: Any) -> Any:
    """A loop of gradient descent, whose batches have matrices, vectors and numbers."""
    def step(w: Any, batch: Any) -> Any:
        def loss(w: Any) -> Any:
            return ((batch["x"] @ w - batch["y"][:, None]) ** 2).sum() * batch["scale"]

        value, gradient = jax.value_and_grad(loss)(w)
        return w - gradient, {"loss": value, "gradient": gradient}

    return lax.scan(step, w, batches)


def arrays(steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(steps)
    return {"x": rng.standard_normal((steps, 6, 5)).astype(np.float32),
            "y": rng.standard_normal((steps, 6)).astype(np.float32),
            "scale": np.full(steps, 0.01, np.float32)}


def batches(steps: int) -> Iterator[dict[str, Any]]:
    given = arrays(steps)
    for number in range(steps):
        yield {name: array[number] for name, array in given.items()}


def same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


def check(function: Any, steps: int, device: Device) -> None:
    """Compare a run with infeed and outfeed with a run without them, also each outfed batch."""
    shown: list[tuple[int, Any]] = []
    expected = systolith.jit(function)(W, arrays(steps), device=device)
    found = systolith.jit(function)(W, Infeed(batches(steps), steps), device=device,
                                    outfeed=lambda *given: shown.append(given))
    same(found, expected)
    assert [step for step, _ in shown] == list(range(steps))
    for step, (state, stacked) in shown:
        assert state is None
        same(stacked, jax.tree.map(lambda array, step=step: array[step], expected[1]))


@pytest.mark.parametrize(("steps", "slots"), [(1, 8), (2, 8), (20, 8), (20, 2)])
def test_training(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                  steps: int, slots: int) -> None:
    """With two slots, the program waits for the host; with eight, the host for the program."""
    monkeypatch.setattr(queues, "_SLOTS", slots)
    if slots == 2:
        # Otherwise the cache has the program with eight slots.
        monkeypatch.setenv("SYSTOLITH_DUMP", str(tmp_path))
    check(train, steps, device)


@pytest.mark.parametrize(("step", "steps"), [
    (lambda w, batch: (w * batch["scale"], batch["y"].sum()), 9),
    (lambda w, batch: (w + batch["x"][:5, :4], batch["x"].sum()), 9),
    (lambda w, batch: (w + batch["x"][:5, :4], batch["x"].sum()), 1),
])
def test_batches_may_have_arrays_that_no_step_uses(golden: Device, step: Any, steps: int) -> None:
    def function(w: Any, batches: Any) -> Any:
        return lax.scan(step, w, batches)

    same(systolith.jit(function)(W, Infeed(batches(steps), steps), device=golden),
         systolith.jit(function)(W, arrays(steps), device=golden))


@pytest.mark.parametrize("steps", [9, 1])
def test_outfeed_may_return_batches(golden: Device, steps: int) -> None:
    check(lambda w, given: lax.scan(lambda w, batch: (w * batch["scale"], (batch["y"], batch)),
                                    w, given), steps, golden)


def test_outfeed_may_return_batches_after_another_loop(golden: Device) -> None:
    """Both loops have the same number of iterations."""
    def function(w: Any, given: Any) -> Any:
        w, _ = lax.scan(lambda w, _: (w * 0.5 + 1, None), w, length=9)
        return lax.scan(lambda w, batch: (w * batch["scale"], batch), w, given)

    check(function, 9, golden)


def test_batches_may_be_random_keys(golden: Device) -> None:
    def function(w: Any, keys: Any) -> Any:
        return lax.scan(lambda w, key: (w + 1, jax.random.bits(key)), w, keys)

    keys = jax.random.split(jax.random.key(7), 9)
    same(systolith.jit(function)(W, Infeed(keys, 9), device=golden),
         systolith.jit(function)(W, keys, device=golden))


def test_both_cores(device: Device) -> None:
    def part(w: Any, batches: Any) -> Any:
        def step(w: Any, batch: Any) -> Any:
            total = lax.psum(batch["x"].T @ (batch["x"] @ w), "x")
            return w - 0.01 * total, lax.psum((batch["y"] * batch["scale"]).sum(), "x")

        return lax.scan(step, w, batches)

    specs = {"x": PART(None, "x"), "y": PART(None, "x"), "scale": PART()}
    check(jax.shard_map(part, mesh=MESH, in_specs=(PART(), specs), out_specs=PART(),
                        check_vma=False), 9, device)


def test_host_holds_few_batches(golden: Device, tmp_path: pathlib.Path) -> None:
    """HBM holds eight batches; a saved program keeps its infeed and outfeed."""
    program = systolith.jit(train).compile(W, Infeed(batches(40), 40), config="tiny")
    program.save(tmp_path / "program")
    loaded = systolith.load(tmp_path / "program")
    assert [spec.layout.shape for spec in loaded.executable.infeed] == [(8,), (8, 6, 5), (8, 6)]
    given = [[np.asarray(batch[name]) for name in ("scale", "x", "y")] for batch in batches(40)]
    left, counts = list(given), list[int]()
    w, *_ = loaded(W, device=golden, infeed=(left.pop(0) for _ in given),
                   progress=lambda: counts.append(len(left)))
    assert counts[0] >= 20
    assert counts[-1] == 0
    same(w, systolith.jit(train)(W, arrays(40), device=golden)[0])
    # An array of batches has no truth value.
    same(w, loaded(W, device=golden, infeed=np.fromiter(given, object))[0])
    with pytest.raises(ValueError, match="without infeed and outfeed, to be profiled"):
        golden.profile(loaded.executable, W)
    with pytest.raises(ValueError, match="must be compiled without infeed and outfeed"):
        golden.place(loaded.executable)
    with pytest.raises(ValueError, match="infeed must be given: train is compiled with an infeed"):
        loaded(W, device=golden)
    with pytest.raises(ValueError, match=r"outfeed must be None: .* compiled without an outfeed"):
        loaded(W, device=golden, infeed=given, outfeed=print)


class StopError(Exception):
    pass


def failing(steps: int, how: Any) -> Iterator[Any]:
    yield from list(batches(20))[:steps]
    if isinstance(how, BaseException):
        raise how
    yield from how


@pytest.mark.parametrize(("how", "message"), [
    ([], r"infeed of train must have 20 batches, not \d+"),
    (StopError("the iterator's own"), "the iterator's own"),
    (KeyboardInterrupt("of Ctrl-C"), "Ctrl-C"),
    ([{"x": W, "y": W, "scale": W}], r"must be of shape \(\), not \(5, 4\)"),
    ([{"x": W}], "batches must have the structure of the first one"),
])
def test_device_is_usable_after_an_error(device: Device, how: Any, message: str) -> None:
    """The error comes before the run, or during it."""
    jitted = systolith.jit(train, device=device)
    for steps in (1, 12):
        with pytest.raises((ValueError, StopError, KeyboardInterrupt), match=message):
            jitted(W, Infeed(failing(steps, how), 20))
    same(jitted(W, Infeed(batches(20), 20)), jitted(W, arrays(20)))


def test_outfeed_may_raise(golden: Device) -> None:
    def show(step: int, results: Any) -> None:
        if step == 3:
            raise StopError

    jitted = systolith.jit(train, device=golden)
    with pytest.raises(StopError):
        jitted(W, arrays(20), outfeed=show)
    seen: list[float] = []
    _, stacked = jitted(W, arrays(20), outfeed=lambda step, given: seen.append(given[1]["loss"]))
    same(np.array(seen), stacked["loss"])


def test_device_runs_nothing_else_meanwhile(golden: Device) -> None:
    """While an infeed runs, another program is refused, because it would use the same memories."""
    def batches_of_device() -> Iterator[Any]:
        for batch in batches(20):
            yield {**batch, "x": golden.matmul(batch["x"], np.eye(5, dtype=np.float32))}

    jitted = systolith.jit(train, device=golden)
    for infeed in (batches_of_device(), failing(12, batches_of_device())):
        with pytest.raises(RuntimeError, match="must not run another executable in a function"):
            jitted(W, Infeed(infeed, 20))
    with pytest.raises(RuntimeError, match="must not run another executable in a function"):
        jitted(W, arrays(20), outfeed=lambda *_: golden.matmul(W, W.T))
    assert golden.matmul(W, W.T).shape == (5, 5)


@pytest.mark.parametrize("function", [
    lambda w, xs: (w, lax.scan(lambda w, x: (w + x, None), w, xs, reverse=True)),
    lambda w, xs: (w + xs[0], lax.scan(lambda w, x: (w + x, None), w, xs)),
    lambda w, xs: w + xs.sum(axis=0),
    lambda w, xs: lax.scan(lambda w, x: (w + w, None), w, xs),
])
def test_infeed_must_be_the_xs_of_a_scan(golden: Device, function: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"must be the xs of one lax\.scan"):
        systolith.jit(function)(W, Infeed([W] * 9, 9), device=golden)


def test_outfeed_needs_stacked_results(golden: Device) -> None:
    with pytest.raises(UnsupportedError, match="an outfeed needs ys"):
        systolith.jit(lambda w: w + 1)(W, device=golden, outfeed=print)


def test_infeeds_that_are_wrong(golden: Device) -> None:
    with pytest.raises(TypeError, match="batches must be iterable, not 3"):
        Infeed(3, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps"):
        Infeed([], 0)
    with pytest.raises(ValueError, match="infeed must have at least one batch"):
        systolith.jit(train)(W, Infeed([], 5), device=golden)
    feed = Infeed(batches(20), 5)
    with pytest.raises(ValueError, match="an Infeed must be passed once, not as several"):
        systolith.jit(lambda w, *both: lax.scan(lambda w, two: (w + two[0]["scale"]
                                                                - two[1]["scale"], None),
                                                w, both))(W, feed, feed, device=golden)
    drifting = [{**batch, "scale": np.int32(number)} if number else batch
                for number, batch in enumerate(batches(5))]
    with pytest.raises(TypeError, match="types of the first batch, float32, not int32"):
        systolith.jit(train)(W, Infeed(drifting, 5), device=golden)
