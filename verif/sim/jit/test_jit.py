"""`systolith.jit`, `compile` and `load`, from a function to results on a device."""

import functools
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import AbstractMesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import systolith  # noqa: E402
from sim.compiler.program.compiled import compiled_of  # noqa: E402
from systolith import Device, Pod, UnsupportedError  # noqa: E402

X = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with Device.open("tiny", "golden") as opened:
        yield opened


def test_pytrees_go_in_and_out(device: Device) -> None:
    def function(tree: Any, scale: Any) -> Any:
        return {"sum": tree["a"] + tree["b"][0], "scaled": (tree["a"] * scale, tree["b"][1])}

    tree = {"a": X, "b": [X + 1, np.arange(3, dtype=np.int32)]}
    found = systolith.jit(function)(tree, 3.0, device=device)
    expected = jax.jit(function)(tree, 3.0)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, np.ndarray)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_static_arguments_are_constants(device: Device) -> None:
    def function(x: Any, count: int, *, sign: int = 1) -> Any:
        return sum([x] * count) * sign

    jitted = systolith.jit(function, device=device, static_argnums=1, static_argnames="sign")
    np.testing.assert_array_equal(jitted(X, 2), X + X)
    np.testing.assert_array_equal(jitted(X, 3, sign=-1), -(X + X + X))
    np.testing.assert_array_equal(jitted(X, count=1), X)


def test_equal_calls_compile_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    module = sys.modules["sim.jit.function"]
    original = module.compile_imported

    def counted(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(module, "compile_imported", counted)
    jitted = systolith.jit(lambda x: x + 1, device=device)
    for x in (X, X * 2, X[:2], X, X.astype(np.int32)):
        np.testing.assert_array_equal(jitted(x), x + 1)
    assert len(made) == 3


def test_keys_of_random_numbers(device: Device) -> None:
    def function(key: Any) -> Any:
        first, second = jax.random.split(key)
        return second, jax.random.bits(first, (3,))

    key = jax.random.key(5)
    found, bits = systolith.jit(function, device=device)(key)
    expected, expected_bits = jax.jit(function)(key)
    np.testing.assert_array_equal(bits, expected_bits)
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(expected))


def test_program_of_text_reports_and_is_saved(device: Device, tmp_path: pathlib.Path) -> None:
    lowered = jax.jit(lambda a, b: a * b - a).lower(X, X).as_text()
    program = systolith.compile(lowered, "tiny", name="difference")
    assert "last run" not in program.report()
    [found] = program(X, X + 1, device=device)
    np.testing.assert_array_equal(found, X * (X + 1) - X)
    report = program.report()
    assert "difference for one core" in report
    assert report.endswith("last run, core 0: the golden backend counts no cycles\n")
    assert program.report(X, X, device=device).splitlines()[-2:] == [
        "no measured cycles: the golden backend counts no cycles",
        "last run, core 0: the golden backend counts no cycles"]
    with pytest.raises(FileNotFoundError, match=r"folder must exist: .*missing'"):
        program.save(tmp_path / "missing" / "program.npz")
    path = tmp_path / "program.npz"
    program.save(path)
    [again] = systolith.load(path)(X, X + 1, device=device)
    np.testing.assert_array_equal(again, found)


def test_decorator_takes_options(device: Device) -> None:
    @systolith.jit(device=device)
    def doubled(x: Any) -> Any:
        """Twice the array."""
        return x + x

    np.testing.assert_array_equal(doubled(X), X + X)
    assert doubled.__doc__ == "Twice the array."
    with pytest.raises(TypeError, match="function must be callable, not 3"):
        systolith.jit(device=device)(3)  # type: ignore[arg-type]


def test_names_of_files_are_no_programs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "program.mlir"
    with pytest.raises(ValueError, match=r"and there is no file '.*program.mlir' either"):
        systolith.compile(str(path), "tiny")
    path.write_text("module {}")
    with pytest.raises(ValueError, match=r"as a string: give it as pathlib.Path\("):
        systolith.compile(str(path), "tiny")
    with pytest.raises(FileNotFoundError):
        systolith.compile(tmp_path / "other.mlir", "tiny")


def test_functions_are_compiled_for_a_pod_before_there_is_one(monkeypatch: pytest.MonkeyPatch
                                                              ) -> None:
    total = systolith.jit(jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=AbstractMesh((4,), ("x",)), in_specs=P("x"),
        out_specs=P(), check_vma=False))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    program = total.compile_pod(jax.ShapeDtypeStruct(x.shape, x.dtype), shape=(2, 1),
                                config="tiny")
    monkeypatch.setattr(sys.modules["sim.jit.function"], "compile_pod_cached", None)
    with Pod.open((2, 1), "tiny", "golden") as pod:
        [found] = pod.execute(program, x)
        np.testing.assert_array_equal(found, x.reshape(4, 2, 4).sum(0))
        # The call finds the program, because the chips are the same.
        np.testing.assert_array_equal(total(x, device=pod), found)
    with pytest.raises(ValueError, match="shape must have at least two chips, not one"):
        total.compile_pod(x, shape=(1, 1), config="tiny")
    with pytest.raises(ValueError, match="side of the torus must be from 1 to 32, not 33"):
        total.compile_pod(x, shape=(33, 1), config="tiny")
    with pytest.raises(TypeError, match=r"shape must be a pair of integers, not \(2, 1, 1\)"):
        total.compile_pod(x, shape=(2, 1, 1), config="tiny")
    with pytest.raises(TypeError, match=r"on a pod, .* must be given arrays, not an Infeed"):
        total.compile_pod(systolith.Infeed([x], 1), shape=(2, 1), config="tiny")
    with pytest.raises(TypeError, match="config must be a Config, not 3"):
        total.compile_pod(x, shape=(2, 1), config=3)


def test_report_names_the_users_lines(device: Device) -> None:
    def function(x: Any) -> Any:
        return jnp.tanh(x)

    program = systolith.jit(function).compile(jax.ShapeDtypeStruct((4, 4), np.float32),
                                              config="tiny")
    line = function.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}" in program.report()


def rows(report: str) -> list[dict[str, str]]:
    """The rows of a report's table; columns behind an empty one may have wrong names."""
    header, *lines = report.splitlines()[1:]
    names = re.split(" {2,}", header.strip())
    return [dict(zip(names, re.split(" {2,}", line.strip()), strict=False)) for line in lines]


def test_report_joins_predicted_and_measured_cycles() -> None:
    def function(x: Any, w: Any) -> Any:
        y = x @ w
        return jax.lax.fori_loop(0, 3, lambda _, z: jnp.tanh(z), y)

    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    program = systolith.jit(function).compile(x, x, config="tiny")
    predicted = rows(program.report())
    assert "measured" not in predicted[0]
    with Device.open("tiny") as device:
        found = rows(program.report(x, x, device=device))
        with systolith.profile() as profile:
            for _ in range(2):
                program(x, x, device=device)
        once = device.last_run[0]
        program(x, x, device=device)
        with pytest.raises(ValueError, match="must be given 2 arrays"):
            program.report(device=device)
    [runs] = profile.programs
    assert (runs.executable, runs.runs) == (program.executable, 2)
    assert runs.cycles == profile.cycles == 2 * once["cycles"]
    assert runs.counts["mxu_active_cycles"] == 2 * once["mxu_active_cycles"]
    assert runs.report() == program.report().partition("last run")[0]
    assert re.search(rf"^function +2 +{2 * once['cycles']:,} +{once['cycles']:,} ", str(profile),
                     re.MULTILINE)
    first = function.__code__.co_firstlineno
    [product] = [row for row in found if row["source"] == f"{__file__}:{first + 1}"]
    assert product["operation"] == "dot_general"
    assert (product["kernels"], product["runs"]) == ("1", "1")
    assert 0 < int(product["predicted"]) <= int(product["measured"].replace(",", ""))
    assert float(product["of peak"].rstrip("%")) == round(
        100 * 8**3 / (16 * int(product["measured"].replace(",", ""))), 1)
    [tanh] = [row for row in found if row["operation"].startswith("tanh")]
    assert tanh["source"] == f"{__file__}:{first + 2}"
    assert (tanh["kernels"], tanh["runs"]) == ("1", "3")
    assert 0 < int(tanh["predicted"]) <= int(tanh["measured"].replace(",", ""))
    with pytest.raises(TypeError, match="device must be given if arrays are given"):
        program.report(x, x)


def test_refusals(device: Device) -> None:
    with pytest.raises(UnsupportedError, match="fft"):
        systolith.jit(jnp.fft.fft)(X, device=device)
    with pytest.raises(TypeError, match="device must be given"):
        systolith.jit(jnp.tanh)(X)
    with pytest.raises(TypeError, match="function must be callable, not 3"):
        systolith.jit(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="config must be a Config, not 3"):
        systolith.compile("", 3)  # type: ignore[arg-type]
    program = systolith.compile(jax.jit(jnp.abs).lower(X).as_text(), "tiny")
    with pytest.raises(ValueError, match="must be of shape"):
        program(X.T, device=device)


def test_random_numbers_are_straight_code() -> None:
    def function(key: Any) -> Any:
        return jax.random.normal(key, (4, 4))

    key = jax.random.key(1)
    straight = systolith.jit(function).compile(key, config="small")
    loops = systolith.compile(jax.jit(function).lower(key).compiler_ir("stablehlo"), "small")
    for program, repeats in (straight, False), (loops, True):
        lines = [str(kernel.location) for kernel in compiled_of(program.executable).kernels]
        assert lines
        assert any("while" in line for line in lines) == repeats


def test_functions_that_are_written_for_one_platform_only(device: Device) -> None:
    def cube(x: Any) -> Any:
        return x * x * x

    def transform(x: Any) -> Any:
        return jnp.fft.fft(x).real

    for platform in ("cpu", "tpu"):
        def function(x: Any, platform: str = platform) -> Any:
            return jax.lax.platform_dependent(x, default=transform, **{platform: cube})

        np.testing.assert_array_equal(systolith.jit(function, device=device)(X), X * X * X)
    with pytest.raises(UnsupportedError, match="fft"):
        systolith.jit(transform, device=device)(X)


def test_refusals_of_importer_and_kernels_come_together() -> None:
    def function(x: Any) -> Any:
        y = jax.lax.reduce(x, np.float32(9), jax.lax.rem, (1,))
        return y, jnp.fft.fft(x).real, jax.lax.reduce(x, np.float32(9), jax.lax.max, (1,))

    with pytest.raises(UnsupportedError) as caught:
        systolith.jit(function).compile(jax.ShapeDtypeStruct((4, 4), np.float32), config="tiny")
    first = function.__code__.co_firstlineno
    texts = [str(item) for item in caught.value.found]
    assert any(f"{__file__}:{first + 2}" in text and "fft" in text for text in texts)
    [text] = [text for text in texts if "reduce" in text]
    assert f"{__file__}:{first + 1}" in text
    assert "reduce whose function contains remainder" in text


def test_advice() -> None:
    with pytest.raises(UnsupportedError, match=r"custom_call ApproxTopK: use jax\.lax\.top_k"):
        systolith.jit(lambda x: jax.lax.approx_max_k(x, 2)).compile(
            jax.ShapeDtypeStruct((4, 4), np.float32), config="tiny")


def test_missing_jax_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"pip install 'systolith\[jax\]'"):
        systolith.jit(abs)


def test_function_keeps_its_name_and_can_be_a_method(device: Device) -> None:
    class Model:
        scale = 3.0

        @functools.partial(systolith.jit, device=device, static_argnums=0)
        def double(self, x: Any) -> Any:
            """Twice the scale."""
            return x * (2 * self.scale)

    assert Model.double.__name__ == "double"
    assert Model.double.__doc__ == "Twice the scale."
    np.testing.assert_array_equal(Model().double(X), X * 6)
    np.testing.assert_array_equal(Model.double(Model(), X), X * 6)


@pytest.mark.parametrize("transform", [jax.grad, jax.vmap, jax.jit])
def test_traced_call_says_what_to_do(transform: Any, device: Device) -> None:
    def function(x: Any) -> Any:
        return (x * x).sum()

    with pytest.raises(TypeError, match="must not be traced by JAX"):
        transform(systolith.jit(function, device=device))(X)
    np.testing.assert_allclose(systolith.jit(transform(function), device=device)(X),
                               transform(function)(X), rtol=1e-6)


@pytest.mark.parametrize("function", [
    lambda x: (jax.debug.print("{}", x), x)[1], lambda x: jax.pure_callback(np.abs, x, x)])
def test_calls_of_the_host_are_refused(function: Any, device: Device) -> None:
    with pytest.raises(UnsupportedError, match="leave calls of the host") as caught:
        systolith.jit(function, device=device)(X)
    assert f"{__file__}:" in str(caught.value)


def test_keys_of_other_generators_are_returned(device: Device) -> None:
    key = jax.random.key(7, impl="rbg")
    found = systolith.jit(lambda key: key, device=device)(key)
    assert found.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(key))


def test_refusal_of_a_constant_names_the_users_line(device: Device) -> None:
    jitted = systolith.jit(lambda x: x * np.float16(2), device=device)
    with pytest.raises(UnsupportedError, match="constant of type f16") as caught:
        jitted(X.astype(np.float16))
    assert f"{__file__}:" in str(caught.value)
    assert "function.py" not in str(caught.value)
