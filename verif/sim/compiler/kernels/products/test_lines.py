"""Convolutions with columns along the lanes, against the interpreter."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.infer import infer
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels.products.lines import LineConvolution
from sim.models.core import CoreModel
from verif.sim.compiler.kernels.harness import CONFIG, build, execute, run

SEED = 20261122


def lines(images: int, count: int, features: int, offsets: int, columns: int, outputs: int,
          window: int, stride: int) -> Operation:
    operands = (Value(TensorType((images, count, features, offsets, columns), DType.F32)),
                Value(TensorType((outputs, window * offsets * features), DType.F32)))
    operation = Operation("line_convolution", operands, (Value(operands[0].type),), {
        "stride": stride, "precision_config": ("DEFAULT", "DEFAULT")})
    operation.results = (Value(infer(operation)[0]),)
    return operation


CASES = [(2, 5, 2, 3, 4, 5, 3, 1), (1, 7, 4, 2, 3, 2, 3, 2), (1, 4, 2, 1, 4, 7, 2, 2),
         (3, 4, 2, 2, 4, 3, 1, 1)]


def arrays_for(operation: Operation) -> list[np.ndarray]:
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal(value.shape).astype(np.float32) for value in operation.operands]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolutions(case: tuple[int, ...]) -> None:
    operation = lines(*case)
    assert LineConvolution(operation, CONFIG).tilings[0].lane_dimension == 4
    arrays = arrays_for(operation)
    [result] = run(operation, arrays)
    [wanted] = evaluate(operation, arrays, passes=True)
    [scale] = evaluate(operation, [np.abs(array) for array in arrays])
    assert (np.abs(result - wanted) <= 2.0**-20 * scale).all(), SEED


def test_features_must_fill_vectors() -> None:
    operation = lines(1, 4, 3, 1, 4, 2, 2, 1)
    with pytest.raises(ValueError, match="multiple of 2, and columns at most 4, not 3 and 4"):
        build(operation)


@pytest.mark.slow
def test_rtl_gives_golden_bits() -> None:
    config = Config.preset("tiny")
    with CoreModel(config) as core:
        for case in CASES[:2]:
            operation = lines(*case)
            kernel = build(operation, config)
            arrays = arrays_for(operation)
            core.write_vmem(0, kernel.memory(arrays)[0])
            core.run_program(kernel.bundles, max_cycles=1_000_000)
            [result] = kernel.results(core.read_vmem(0, config.vmem_vectors))
            assert result.tobytes() == execute(kernel, arrays)[0].tobytes(), case
