"""Convolutions without padding and groups: against float64 and exact integers."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels.lowering import choose
from sim.compiler.kernels.products.convolution import is_plain
from sim.compiler.tiling import Tiling, standard
from sim.models.core import CoreModel
from verif.sim.compiler.kernels.harness import CONFIG, build, execute, run

SEED = 20261122


def convolution(lhs: TensorType, rhs: TensorType, layout: tuple[str, str, str],
                strides: tuple[int, ...], dilation: tuple[int, ...],
                result: DType, precision: str = "DEFAULT") -> Operation:
    """A plain convolution; the layout names dimensions: b, f, i, o, and spatial ones by digits."""
    left, kernel, target = layout
    spatial = [str(number) for number in range(len(strides))]
    sizes = dict.fromkeys(spatial, 0)
    for number, name in enumerate(spatial):
        extent = (rhs.shape[kernel.index(name)] - 1) * dilation[number] + 1
        sizes[name] = (lhs.shape[left.index(name)] - extent) // strides[number] + 1
    sizes["b"], sizes["f"] = lhs.shape[left.index("b")], rhs.shape[kernel.index("o")]
    count = len(spatial)
    return Operation("convolution", (Value(lhs), Value(rhs)),
                     (Value(TensorType(tuple(sizes[name] for name in target), result)),), {
        "window_strides": strides, "padding": ((0, 0),) * count, "lhs_dilation": (1,) * count,
        "rhs_dilation": dilation, "window_reversal": (False,) * count,
        "input_batch_dimension": left.index("b"), "input_feature_dimension": left.index("f"),
        "input_spatial_dimensions": tuple(left.index(name) for name in spatial),
        "kernel_input_feature_dimension": kernel.index("i"),
        "kernel_output_feature_dimension": kernel.index("o"),
        "kernel_spatial_dimensions": tuple(kernel.index(name) for name in spatial),
        "output_batch_dimension": target.index("b"), "output_feature_dimension": target.index("f"),
        "output_spatial_dimensions": tuple(target.index(name) for name in spatial),
        "feature_group_count": 1, "batch_group_count": 1,
        "precision_config": (precision, precision)})


CASES = [
    ((2, 6, 5, 3), (3, 3, 3, 5), ("b01f", "01io", "b01f"), (1, 1), (1, 1)),
    ((3, 7, 9, 5), (2, 3, 5, 6), ("b01f", "01io", "b01f"), (2, 3), (1, 1)),
    ((3, 4, 7, 6), (5, 4, 2, 2), ("bf01", "oi01", "bf01"), (1, 2), (2, 1)),
    ((1, 5, 9, 3), (3, 1, 3, 5), ("b01f", "01io", "b01f"), (1, 1), (1, 1)),
    ((2, 9, 5), (3, 5, 4), ("b0f", "0io", "b0f"), (2,), (2,)),
    ((2, 4, 3, 4, 2), (2, 2, 2, 2, 3), ("b012f", "012io", "b012f"), (1, 1, 1), (1, 1, 1)),
    ((5, 3), (3, 7), ("bf", "io", "bf"), (), ()),
    ((6, 3, 5, 2), (2, 2, 6, 4), ("f01b", "01io", "01bf"), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("types", [(DType.F32, DType.F32), (DType.BF16, DType.BF16),
                                   (DType.S32, DType.S32)], ids=lambda types: types[0].value)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_plain_convolutions(case: int, types: tuple[DType, DType]) -> None:
    lhs, rhs, layout, strides, dilation = CASES[case]
    rng = np.random.default_rng(SEED + case)
    kinds = TensorType(lhs, types[0]), TensorType(rhs, types[1])
    arrays = [rng.integers(-50, 50, kind.shape).astype(array_dtype(kind.dtype)) for kind in kinds]
    if types[0].is_float:
        arrays = [(array / 7).astype(array.dtype) for array in arrays]
    for precision in ("DEFAULT", "HIGHEST"):
        operation = convolution(*kinds, layout, strides, dilation, types[0], precision)
        assert is_plain(operation)
        [result] = run(operation, arrays)
        [wanted] = evaluate(operation, arrays, passes=True)
        if not types[0].is_float:
            assert np.array_equal(result, wanted), SEED
            continue
        wide = [np.abs(array.astype(np.float32)) for array in arrays]
        exact = convolution(TensorType(lhs, DType.F32), TensorType(rhs, DType.F32), layout,
                            strides, dilation, DType.F32)
        [scale] = evaluate(exact, wide)
        bound = 2.0**-20 + (2.0**-8 if types[0] is DType.BF16 else 0)
        error = np.abs(result.astype(np.float64) - wanted.astype(np.float64))
        assert (error <= bound * scale).all(), SEED


def test_offsets_cost_no_copies() -> None:
    kinds = TensorType((CONFIG.sublanes, 6, 5, 4), DType.F32), TensorType((3, 3, 4, 4), DType.F32)
    operation = convolution(*kinds, ("b01f", "01io", "b01f"), (1, 1), (1, 1), DType.F32)
    batch_in_sublanes = Tiling(kinds[0].shape, (1, 2, 0, 3), True, CONFIG.sublanes, CONFIG.lanes)
    tilings = batch_in_sublanes, standard(kinds[1].shape, CONFIG)
    assert choose(operation, tilings, CONFIG).operands == tilings
    kernel = build(operation, CONFIG, tilings)
    ones = [np.ones(kind.shape, np.float32) for kind in kinds]
    assert (execute(kernel, ones)[0] == 36).all()


@pytest.mark.slow
def test_rtl_gives_golden_bits() -> None:
    config = Config.preset("tiny")
    rng = np.random.default_rng(SEED)
    checked = 0
    with CoreModel(config) as core:
        for lhs, rhs, layout, strides, dilation in CASES:
            kinds = TensorType(lhs, DType.F32), TensorType(rhs, DType.F32)
            try:
                kernel = build(convolution(*kinds, layout, strides, dilation, DType.F32), config)
            except MemoryError:
                continue
            if len(kernel.bundles) > config.imem_bundles:
                continue
            arrays = [rng.standard_normal(kind.shape).astype(np.float32) for kind in kinds]
            core.write_vmem(0, kernel.memory(arrays)[0])
            core.run_program(kernel.bundles, max_cycles=1_000_000)
            [result] = kernel.results(core.read_vmem(0, config.vmem_vectors))
            assert result.tobytes() == execute(kernel, arrays)[0].tobytes(), (lhs, rhs, SEED)
            checked += 1
    assert checked >= 4
