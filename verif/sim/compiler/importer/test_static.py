"""Operations that become simpler ones, or constants, when they are imported."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("jax")

from sim.compiler.graph.interpret import interpret
from sim.compiler.importer.importer import import_stablehlo

X = np.arange(12, dtype=np.float32).reshape(3, 4)

CASES: dict[str, tuple[str, npt.NDArray[Any]]] = {
    "reshape": ("""
        %shape = stablehlo.constant dense<[2, 6]> : tensor<2xi64>
        %y = stablehlo.dynamic_reshape %x, %shape : (tensor<3x4xf32>, tensor<2xi64>)
            -> tensor<2x6xf32>""", X.reshape(2, 6)),
    "broadcast": ("""
        %shape = stablehlo.constant dense<[2, 3, 4]> : tensor<3xi32>
        %y = stablehlo.dynamic_broadcast_in_dim %x, %shape, dims = [1, 2]
            : (tensor<3x4xf32>, tensor<3xi32>) -> tensor<2x3x4xf32>""",
        np.broadcast_to(X, (2, 3, 4))),
    "iota": ("""
        %shape = stablehlo.constant dense<[3, 4]> : tensor<2xi64>
        %rows = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<2xi64>) -> tensor<3x4xf32>
        %y = stablehlo.add %x, %rows : tensor<3x4xf32>""",
        X + np.arange(3, dtype=np.float32)[:, None]),
    "pad": ("""
        %value = stablehlo.constant dense<-1.0> : tensor<f32>
        %low = stablehlo.constant dense<[1, 0]> : tensor<2xi64>
        %high = stablehlo.constant dense<[0, 2]> : tensor<2xi64>
        %between = stablehlo.constant dense<[0, 0]> : tensor<2xi64>
        %y = stablehlo.dynamic_pad %x, %value, %low, %high, %between
            : (tensor<3x4xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>)
            -> tensor<4x6xf32>""",
        np.pad(X, ((1, 0), (0, 2)), constant_values=-1)),
    "slice": ("""
        %begin = stablehlo.constant dense<[0, 1]> : tensor<2xi64>
        %end = stablehlo.constant dense<[3, 4]> : tensor<2xi64>
        %stride = stablehlo.constant dense<[2, 1]> : tensor<2xi64>
        %y = stablehlo.real_dynamic_slice %x, %begin, %end, %stride
            : (tensor<3x4xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>)
            -> tensor<2x3xf32>""", X[0:3:2, 1:4]),
    "size": ("""
        %y = stablehlo.get_dimension_size %x, dim = 1 : (tensor<3x4xf32>) -> tensor<i32>""",
        np.array(4, np.int32)),
    "map": ("""
        %y = "stablehlo.map"(%x, %x) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %p = stablehlo.multiply %a, %b : tensor<f32>
            %q = stablehlo.subtract %p, %a : tensor<f32>
            stablehlo.return %q : tensor<f32>
        }) {dimensions = array<i64: 0, 1>} : (tensor<3x4xf32>, tensor<3x4xf32>)
            -> tensor<3x4xf32>""", X * X - X),
    "index of 64 bits from outside of a region": ("""
        %zero = stablehlo.constant dense<0> : tensor<i64>
        %one = stablehlo.constant dense<1> : tensor<i64>
        %branch = stablehlo.constant dense<0> : tensor<i32>
        %y = "stablehlo.case"(%branch) ({
            %row = stablehlo.dynamic_slice %x, %one, %zero, sizes = [1, 4]
                : (tensor<3x4xf32>, tensor<i64>, tensor<i64>) -> tensor<1x4xf32>
            stablehlo.return %row : tensor<1x4xf32>
        }) : (tensor<i32>) -> tensor<1x4xf32>""", X[1:2]),
}
"""StableHLO that computes %y from the float32 array %x, and the expected %y."""


@pytest.mark.parametrize("name", CASES)
def test_simplified_operations(name: str) -> None:
    text, expected = CASES[name]
    kind = {"f": "f32", "i": "i32"}[expected.dtype.kind]
    result = "tensor<" + "".join(f"{size}x" for size in expected.shape) + f"{kind}>"
    found = interpret(import_stablehlo(f"""
        func.func @main(%x: tensor<3x4xf32>) -> {result} {{
            {text}
            return %y : {result}
        }}"""), [X])
    assert len(found) == 1
    assert found[0].dtype == expected.dtype
    np.testing.assert_array_equal(found[0], expected)
