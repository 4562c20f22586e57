"""Programs with operations that the importer replaces by calls of functions, on the golden chip."""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import systolith
from sim.compiler.graph.interpret import interpret
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.importer.module import read
from sim.errors import UnsupportedError
from systolith import Device

RNG = np.random.default_rng(5)
A = RNG.normal(size=(5, 5)).astype(np.float32)
B = RNG.normal(size=(5, 2)).astype(np.float32)
DEFINITE = A @ A.T + np.eye(5, dtype=np.float32)


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with Device.open("tiny", "golden") as device:
        yield device


@pytest.mark.parametrize(("function", "arguments", "expected"), [
    (jnp.linalg.solve, (A, B), np.linalg.solve(A, B)),
    (jnp.linalg.det, (A,), np.linalg.det(A)),
    (jnp.linalg.inv, (np.stack([A, DEFINITE]),), np.linalg.inv(np.stack([A, DEFINITE]))),
    (jnp.linalg.cholesky, (DEFINITE,), np.linalg.cholesky(DEFINITE)),
    (lambda a: jnp.abs(jnp.linalg.qr(a)[0]), (A,), np.abs(np.linalg.qr(A)[0])),
    (lambda a: jnp.linalg.eigh(a)[0], (DEFINITE,), np.linalg.eigvalsh(DEFINITE)),
    (jnp.linalg.eigvalsh, (DEFINITE,), np.linalg.eigvalsh(DEFINITE)),
])
def test_linear_algebra(function: Callable[..., Any], arguments: tuple[Any, ...],
                        expected: Any, device: Device) -> None:
    found = np.asarray(systolith.jit(function, device=device)(*arguments))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_singular_values_are_imported() -> None:
    # JAX's code for a TPU has each replaced operation but LU, and products of fp32 and integers.
    lowered = jax.jit(jnp.linalg.svd).trace(A[:3, :3]).lower(lowering_platforms=("tpu",))
    u, s, vt = interpret(import_stablehlo(lowered.compiler_ir("stablehlo")), [A[:3, :3]])
    np.testing.assert_allclose(s, np.linalg.svd(A[:3, :3], compute_uv=False), rtol=1e-4)
    np.testing.assert_allclose(u * s @ vt, A[:3, :3], rtol=1e-4, atol=1e-5)


TRIANGULAR = """
func.func @main(%a: tensor<5x5xf32>, %b: tensor<5x5xf32>) -> tensor<5x5xf32> {{
  %x = "stablehlo.triangular_solve"(%a, %b) {{left_side = {left}, lower = {lower},
      unit_diagonal = {unit}, transpose_a = #stablehlo<transpose {transposed}>}}
      : (tensor<5x5xf32>, tensor<5x5xf32>) -> tensor<5x5xf32>
  return %x : tensor<5x5xf32>
}}
"""


@pytest.mark.parametrize("transposed", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
def test_triangular_solve(transposed: str) -> None:
    b = RNG.normal(size=(5, 5)).astype(np.float32)
    for left, lower, unit in itertools.product((False, True), repeat=3):
        flags = {"left": left, "lower": lower, "unit": unit}
        [x] = interpret(import_stablehlo(TRIANGULAR.format(
            transposed=transposed, **{name: str(flag).lower() for name, flag in flags.items()})),
            [DEFINITE, b])
        a = np.tril(DEFINITE) if lower else np.triu(DEFINITE)
        if unit:
            a = a * (1 - np.eye(5)) + np.eye(5)
        a = a if transposed == "NO_TRANSPOSE" else a.T
        np.testing.assert_allclose(a @ x if left else x @ a, b, rtol=1e-3,
                                   atol=1e-4 * np.abs(x).max() * np.abs(a).max())


@pytest.mark.parametrize("lower", [False, True])
def test_cholesky_reads_one_triangle(lower: bool) -> None:
    unread = np.triu(np.ones((5, 5)), 1) if lower else np.tril(np.ones((5, 5)), -1)
    [factor] = interpret(import_stablehlo(f"""
        func.func @main(%a: tensor<5x5xf32>) -> tensor<5x5xf32> {{
          %x = stablehlo.cholesky %a, lower = {str(lower).lower()} : tensor<5x5xf32>
          return %x : tensor<5x5xf32>
        }}"""), [np.where(unread, np.float32(7), DEFINITE)])
    np.testing.assert_array_equal(factor[unread != 0], 0)
    np.testing.assert_allclose(factor @ factor.T if lower else factor.T @ factor, DEFINITE,
                               rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["i8", "ui16", "i32", "ui32"])
def test_high_half_of_a_product(kind: str) -> None:
    dtype = np.dtype({"u": "uint", "i": "int"}[kind[0]] + kind.lstrip("ui"))
    limits = np.iinfo(dtype)
    x, y = (RNG.integers(limits.min, limits.max, 20, dtype, endpoint=True) for _ in range(2))
    type = f"tensor<20x{kind}>"
    [found] = interpret(import_stablehlo(f"""
        func.func @main(%x: {type}, %y: {type}) -> {type} {{
          %z = "chlo.mulhi"(%x, %y) : ({type}, {type}) -> {type}
          return %z : {type}
        }}"""), [x, y])
    np.testing.assert_array_equal(found, x.astype(object) * y.astype(object) >> limits.bits)


def test_equal_operations_call_one_function() -> None:
    def function(a: Any, b: Any) -> Any:
        return jnp.linalg.cholesky(a), jnp.linalg.cholesky(b), jnp.linalg.cholesky(b[:4, :4])

    lowered = jax.jit(function).trace(A, A).lower(lowering_platforms=("tpu",)).as_text()
    names = {str(each.attributes["sym_name"]) for each in read(lowered).body.operations}
    assert sum(name.count(".") == 2 and "cholesky" in name for name in names) == 2


def test_a_large_lu_solves_triangles() -> None:
    lowered = jax.jit(jax.lax.linalg.lu).trace(jax.ShapeDtypeStruct((130, 131), np.float32)).lower(
        lowering_platforms=("tpu",)).as_text()
    assert "LuDecomposition" in lowered
    text = str(read(lowered))
    assert "triangular_solve.1" in text
    assert "stablehlo.triangular_solve" not in text
    assert "custom_call" not in text


def test_operations_keep_the_users_line() -> None:
    def function(a: Any) -> Any:
        return jnp.linalg.cholesky(a)

    lowered = jax.jit(function).trace(A).lower(lowering_platforms=("tpu",))
    graph = import_stablehlo(lowered.compiler_ir("stablehlo"))
    line = function.__code__.co_firstlineno + 1
    loops = [operation for operation in graph.operations if operation.kind == "while"]
    assert [str(operation.location).split(" ")[0] for operation in loops] == [f"{__file__}:{line}"]


def test_other_types_and_a_missing_jax_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """func.func @main(%a: tensor<5x5xf64>) -> tensor<5x5xf64> {
        %x = stablehlo.cholesky %a, lower = true : tensor<5x5xf64>
        return %x : tensor<5x5xf64> }"""
    with pytest.raises(UnsupportedError, match="cholesky: cast to float32"):
        import_stablehlo(text)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'systolith\[jax\]'"):
        import_stablehlo(text.replace("f64", "f32"))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)])
@pytest.mark.parametrize("function", [
    jnp.linalg.cholesky, jnp.linalg.inv, jnp.linalg.qr, jnp.linalg.eigh,
    lambda a: jax.scipy.linalg.solve_triangular(a, a)])
def test_sizes_of_zero(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    a = jax.ShapeDtypeStruct(shape, np.float32)
    lowered = jax.jit(function).trace(a).lower(lowering_platforms=("tpu",))
    found = interpret(import_stablehlo(lowered.compiler_ir("stablehlo")), [np.zeros(shape, "f4")])
    expected = jax.tree.leaves(jax.eval_shape(function, a))
    assert [value.shape for value in found] == [value.shape for value in expected]


@pytest.mark.parametrize("setting", [
    lambda: jax.enable_x64(True), jax.disable_jit, lambda: jax.numpy_rank_promotion("raise"),
    lambda: jax.numpy_dtype_promotion("strict"),
    lambda: jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh(
        (2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,)))])
def test_settings_of_jax_do_not_matter(setting: Callable[[], Any]) -> None:
    lowered = jax.jit(jnp.linalg.qr).trace(A).lower(lowering_platforms=("tpu",)).as_text()
    with setting():
        graph = import_stablehlo(lowered)
    q, r = interpret(graph, [A])
    np.testing.assert_allclose(q @ r, A, rtol=1e-4, atol=1e-4)


def test_parts_of_real_numbers() -> None:
    [real, imag] = interpret(import_stablehlo("""
        func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
          %real = stablehlo.real %x : tensor<2xf32>
          %imag = stablehlo.imag %x : tensor<2xf32>
          return %real, %imag : tensor<2xf32>, tensor<2xf32>
        }"""), [np.array([1.5, np.inf], np.float32)])
    assert real.tolist() == [1.5, np.inf]
    assert imag.tolist() == [0, 0]
