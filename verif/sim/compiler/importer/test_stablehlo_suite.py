"""The runner of StableHLO's interpreter tests tells results that agree from those that do not."""

import pytest

pytest.importorskip("jax")

import systolith
from verif.sim.compiler.importer.stablehlo_suite import cases_of, outcome

SUITE = """
func.func @sums() {
  %x = stablehlo.constant dense<[1.5, -2.0]> : tensor<2xf32>
  %y = stablehlo.add %x, %x : tensor<2xf32>
  check.expect_eq_const %y, dense<[3.0, -4.0]> : tensor<2xf32>
  check.expect_almost_eq_const %y, dense<[3.00001, -4.0]> : tensor<2xf32>
  func.return
}

// -----

func.func @wrong_sums() {
  %x = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %y = stablehlo.add %x, %x : tensor<2xi32>
  check.expect_eq_const %y, dense<[2, 5]> : tensor<2xi32>
  func.return
}

// -----

func.func @wide_sums() {
  %x = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
  %y = stablehlo.add %x, %x : tensor<2xi64>
  check.expect_eq_const %y, dense<[2, 4]> : tensor<2xi64>
  func.return
}

// -----

func.func @transform() {
  %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %y = stablehlo.constant dense<2> : tensor<1xi32>
  %z = stablehlo.custom_call @unknown(%x, %y) : (tensor<2xf32>, tensor<1xi32>) -> tensor<2xf32>
  check.expect_almost_eq_const %z, dense<[3.0, -1.0]>, tolerance = 0.1 : tensor<2xf32>
  func.return
}
"""


def test_outcomes() -> None:
    with systolith.Device.open("tiny", "golden") as device:
        found = {case.name: outcome(case, device) for case in cases_of(SUITE, "suite")}
        wide = {case.name: outcome(case, device) for case in cases_of(SUITE, "suite", narrow=True)}
    assert list(found) == ["suite:sums", "suite:wrong_sums", "suite:transform"]
    assert found["suite:sums"] == "pass"
    assert found["suite:wrong_sums"] == "differs: [2, 4], not [2, 5]"
    assert found["suite:transform"].startswith("refused: ")
    assert wide == {"suite:wide_sums": "pass"}
