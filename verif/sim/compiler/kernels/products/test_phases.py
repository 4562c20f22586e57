"""Convolutions in phases, against the interpreter."""

from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.infer import infer
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels.products.phases import PhaseConvolution
from sim.compiler.tiling import standard
from sim.models.core import CoreModel
from verif.sim.compiler.kernels.harness import CONFIG, build, execute, run

SEED = 20261122


def phases(lhs: tuple[int, ...], rhs: tuple[int, ...], layout: str = "01io",
           dtype: DType = DType.F32, **attributes: Any) -> Operation:
    """A convolution of a value in phases by a filter whose dimensions the layout names."""
    operation = Operation("phase_convolution", (Value(TensorType(lhs, dtype)),
                                                Value(TensorType(rhs, dtype))), (), {
        "window_strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1), "window_reversal": (False, False),
        "kernel_input_feature_dimension": layout.index("i"),
        "kernel_output_feature_dimension": layout.index("o"),
        "kernel_spatial_dimensions": (layout.index("0"), layout.index("1")),
        "precision_config": ("DEFAULT", "DEFAULT"), "columns": 1, **attributes})
    operation.results = (Value(TensorType((), dtype)),)
    operation.results = (Value(infer(operation)[0]),)
    return operation


SAME = ((1, 1), (1, 1))
CASES = {
    "one": phases((3, 2, 2, 2, 5), (1, 1, 5, 3)),
    "same": phases((3, 2, 2, 2, 5), (3, 3, 5, 6), padding=SAME),
    "side by side": phases((3, 1, 4, 2, 2), (3, 3, 2, 3), padding=SAME),
    "one phase": phases((4, 2, 1, 2, 4), (3, 3, 4, 4), padding=SAME),
    "one position": phases((4, 1, 4, 1, 3), (3, 5, 3, 2), padding=((1, 1), (2, 2))),
    "strided": phases((6, 2, 4, 2, 4), (3, 3, 4, 5), padding=((0, 1), (0, 1)),
                      window_strides=(2, 2)),
    "strided by one offset": phases((6, 2, 4, 2, 5), (1, 1, 5, 9), window_strides=(2, 2)),
    "strided lines": phases((7, 1, 2, 2, 3), (3, 3, 3, 2), padding=SAME, window_strides=(2, 1)),
    "dilated filter": phases((6, 1, 4, 2, 3), (3, 3, 3, 2), padding=((2, 2), (2, 2)),
                             rhs_dilation=(2, 2)),
    "gradient": phases((3, 2, 2, 2, 5), (3, 3, 4, 5), "01oi", padding=SAME,
                       window_reversal=(True, True)),
    "gradient of strided": phases((3, 2, 2, 2, 5), (3, 3, 4, 5), "01oi", padding=((2, 1), (2, 1)),
                                  lhs_dilation=(2, 2), window_reversal=(True, True)),
    "gradient of one offset": phases((3, 1, 2, 2, 5), (1, 1, 4, 5), "01oi",
                                     padding=((0, 1), (0, 1)), lhs_dilation=(2, 2),
                                     window_reversal=(True, True)),
    "reversed and strided": phases((6, 1, 4, 2, 3), (2, 2, 3, 2), window_strides=(2, 2),
                                    window_reversal=(True, True)),
    "outputs first": phases((3, 1, 2, 2, 3), (6, 3, 3, 3), "oi01", padding=SAME),
    "two columns in a row": phases((3, 2, 2, 2, 6), (1, 1, 6, 16), columns=2),
    "cropped": phases((6, 1, 2, 2, 3), (3, 1, 3, 2), padding=((-1, -1), (0, 0))),
}


def arrays_for(operation: Operation, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(value.shape).astype(array_dtype(value.dtype))
            for value in operation.operands]


@pytest.mark.parametrize("precision", ["DEFAULT", "HIGHEST"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions(case: str, precision: str) -> None:
    operation = CASES[case]
    operation.attributes["precision_config"] = (precision, precision)
    arrays = arrays_for(operation, SEED)
    [result] = run(operation, arrays)
    [wanted] = evaluate(operation, arrays, passes=True)
    [scale] = evaluate(operation, [np.abs(array) for array in arrays])
    assert (np.abs(result - wanted) <= 2.0**-20 * scale).all(), SEED
    assert np.abs(wanted).max() > 0.1


def test_results_in_bf16() -> None:
    operation = phases((3, 1, 2, 2, 5), (3, 3, 5, 6), padding=SAME, dtype=DType.BF16)
    arrays = arrays_for(operation, SEED)
    [result] = run(operation, arrays)
    [wanted] = evaluate(operation, arrays)
    error = np.abs(result.astype(np.float64) - wanted.astype(np.float64))
    assert (error <= 2.0**-7 * np.abs(wanted.astype(np.float64)) + 1e-5).all()


def test_offsets_share_vectors() -> None:
    operation = phases((3, 1, 4, 2, 2), (3, 3, 2, 3), padding=SAME)
    way = PhaseConvolution(operation, CONFIG, standard(operation.operands[1].shape, CONFIG))
    assert (way.together, way.copies) == (2, 2)


@pytest.mark.slow
def test_rtl_gives_golden_bits() -> None:
    config = Config.preset("tiny")
    checked = 0
    with CoreModel(config) as core:
        for case, operation in CASES.items():
            operation.attributes["precision_config"] = ("DEFAULT", "DEFAULT")
            try:
                kernel = build(operation, config)
            except MemoryError:
                continue
            if len(kernel.bundles) > config.imem_bundles:
                continue
            arrays = arrays_for(operation, SEED)
            core.write_vmem(0, kernel.memory(arrays)[0])
            core.run_program(kernel.bundles, max_cycles=1_000_000)
            [result] = kernel.results(core.read_vmem(0, config.vmem_vectors))
            assert result.tobytes() == execute(kernel, arrays)[0].tobytes(), case
            checked += 1
    assert checked >= 4
