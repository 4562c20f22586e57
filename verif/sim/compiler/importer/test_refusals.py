"""Unsupported operations are refused when they are imported, with the user's line and advice."""

import inspect
import pathlib
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from sim.compiler.graph.interpret import interpret  # noqa: E402
from sim.compiler.graph.ir import DType  # noqa: E402
from sim.compiler.importer.importer import import_stablehlo  # noqa: E402
from sim.errors import UnsupportedError  # noqa: E402


def lower(function: Any, *arguments: Any) -> Any:
    return jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo")


def module(body: str, arguments: str = "%a: tensor<4xf32>", results: str = "tensor<4xf32>") -> str:
    return f"module {{ func.func @main({arguments}) -> ({results}) {{\n{body}\n}} }}"


def unsupported(x: Any) -> Any:
    y = jnp.fft.fft(x).real
    z = jnp.linalg.cholesky(jnp.eye(4) * x)
    return y, z, x.astype(jnp.float16)


def test_everything_is_refused_at_once_with_lines() -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_stablehlo(lower(unsupported, np.ones(4, np.float32)))
    _, first = inspect.getsourcelines(unsupported)
    texts = list(map(str, caught.value.found))
    for number, what, advice in ((1, "fft", "matrix of the transform"),
                                 (2, "custom_call lapack", "lower the function for a TPU"),
                                 (3, "convert of type f16", "cast to bfloat16")):
        place = f"{__file__}:{first + number} "
        [text] = [text for text in texts if place in text and what in text and advice in text]
        assert text in str(caught.value)
    assert isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize(("dtype", "advice"), [
    ("f64", "cast to float32, or leave JAX's option jax_enable_x64 off"),
    ("i64", "cast to int32 or uint32"),
    ("complex<f32>", "real and imaginary parts"), ("f8E4M3FN", "cast to bfloat16 or float32")])
def test_type_is_refused(dtype: str, advice: str) -> None:
    text = module("return %a : tensor<4xT>", "%a: tensor<4xT>", "tensor<4xT>").replace("T", dtype)
    with pytest.raises(UnsupportedError) as caught:
        import_stablehlo(text)
    [found] = caught.value.found
    assert found.what == f"argument 0 of type {dtype}"
    assert advice in found.advice


def test_dynamic_shape_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"argument 0 of the dynamic shape .*static shapes"):
        import_stablehlo(module("return %a : tensor<?xf32>", "%a: tensor<?xf32>",
                                "tensor<?xf32>"))


def test_custom_call_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="custom_call my_kernel"):
        import_stablehlo(module(
            "%0 = stablehlo.custom_call @my_kernel(%a) : (tensor<4xf32>) -> tensor<4xf32>\n"
            "%1 = stablehlo.add %0, %0 : tensor<4xf32>\nreturn %1 : tensor<4xf32>"))


def test_program_for_four_devices_is_refused() -> None:
    text = module("%0 = stablehlo.partition_id : tensor<ui32>\nreturn %a : tensor<4xf32>")
    text = text.replace("module {", "module attributes {mhlo.num_partitions = 4 : i32} {")
    with pytest.raises(UnsupportedError, match="program for 4 devices: use a mesh of one or two"):
        import_stablehlo(text)


@pytest.mark.parametrize("source", ["nonsense", b"nonsense", module("return")])
def test_what_is_no_program_is_refused(source: str | bytes) -> None:
    with pytest.raises(ValueError, match="source must be a StableHLO program"):
        import_stablehlo(source)


def test_source_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="source must be text, bytes, a path, or a module"):
        import_stablehlo(3)


def test_all_forms_of_source_give_the_same_program(tmp_path: pathlib.Path) -> None:
    from jaxlib.mlir.dialects import stablehlo

    lowered = lower(lambda x: jnp.tanh(x) * 2, np.ones(4, np.float32))
    text = str(lowered)
    artifact = stablehlo.serialize_portable_artifact_str(text, stablehlo.get_minimum_version())
    path = tmp_path / "program.mlir"
    path.write_text(text)
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    for source in (lowered, text, artifact, path):
        [found] = interpret(import_stablehlo(source), [x])
        np.testing.assert_allclose(found, np.tanh(x) * 2, rtol=1e-6)


def test_values_that_regions_read_become_operands() -> None:
    def function(x: Any, y: Any) -> Any:
        return jax.lax.cond(x[0] > 0, lambda: x + y, lambda: x - y * 3)

    graph = import_stablehlo(lower(function, np.ones(4, np.float32), np.ones(4, np.float32)))
    [case] = [operation for operation in graph.operations if operation.kind == "case"]
    assert len(case.operands) == 3
    for sign in (1, -1):
        x, y = np.full(4, sign, np.float32), np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(interpret(graph, [x, y])[0], x + y if sign > 0 else x - 3 * y)


def test_counters_of_64_bits_become_32() -> None:
    body = """
      %i = stablehlo.iota dim = 0 : tensor<4xui64>
      %c = stablehlo.constant dense<1000000000> : tensor<ui64>
      %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<4xui64>
      %m = stablehlo.multiply %i, %b : tensor<4xui64>
      %s = stablehlo.constant dense<32> : tensor<4xui64>
      %h = stablehlo.shift_right_logical %m, %s : tensor<4xui64>
      %0 = stablehlo.convert %m : (tensor<4xui64>) -> tensor<4xui32>
      %1 = stablehlo.convert %h : (tensor<4xui64>) -> tensor<4xui32>
      return %0, %1 : tensor<4xui32>, tensor<4xui32>"""
    graph = import_stablehlo(module(body, "", "tensor<4xui32>, tensor<4xui32>"))
    low, high = interpret(graph, [])
    np.testing.assert_array_equal(low, np.arange(4, dtype=np.uint32) * 10**9)
    np.testing.assert_array_equal(high, np.zeros(4, np.uint32))
    with pytest.raises(UnsupportedError, match="multiply of type ui64"):
        import_stablehlo(module(body.replace("1000000000", "2000000000"), "",
                                "tensor<4xui32>, tensor<4xui32>"))


def test_bf16_constants_are_exact() -> None:
    graph = import_stablehlo(module(
        "%0 = stablehlo.constant dense<[1.0, -2.5, 0x7F80, 3.140625]> : tensor<4xbf16>\n"
        "return %0 : tensor<4xbf16>", "", "tensor<4xbf16>"))
    assert graph.outputs[0].dtype is DType.BF16
    np.testing.assert_array_equal(interpret(graph, [])[0].astype(np.float32),
                                  [1, -2.5, np.inf, 3.140625])
    values = ", ".join(["1.5", "-0.25"] * 200)
    graph = import_stablehlo(module(
        f"%0 = stablehlo.constant dense<[{values}]> : tensor<400xbf16>\n"
        "return %0 : tensor<400xbf16>", "", "tensor<400xbf16>"))
    np.testing.assert_array_equal(interpret(graph, [])[0].astype(np.float32), [1.5, -0.25] * 200)
