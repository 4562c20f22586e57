"""The sizes of ResNet-50, and its kernels against the chip's limits."""

import pathlib

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from hdl.config import Config
from sim.apps.resnet.__main__ import main
from sim.apps.resnet.network import forward, images, multiplications, parameters
from sim.apps.resnet.roofline import Limits, draw, table
from sim.apps.resnet.step import by_interpreter, by_jax, compile_step
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.report import Report
from systolith import Device


def products(operation: Operation) -> int:
    """Number of multiplications of a convolution or a product for all images."""
    if operation.kind == "convolution":
        kernel = operation.operands[1]
        return operation.result.type.size * kernel.type.size // kernel.shape[3]
    if operation.kind == "dot_general":
        return operation.result.type.size * operation.operands[0].shape[1]
    return 0


def test_multiplications_are_those_of_the_program() -> None:
    module = jax.jit(forward).trace(parameters(), images(2, 64)).lower(
        lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    graph = import_stablehlo(module)
    assert sum(map(products, graph.operations)) == 2 * multiplications(64)
    # What is published for this network.
    assert round(multiplications(224) / 1e9, 2) == 4.09


def test_a_roofline_has_all_kernels(tmp_path: pathlib.Path) -> None:
    config = Config.preset("tiny")
    kinds = [TensorType((8, 12), DType.F32), TensorType((12, 8), DType.F32)]
    graph = Graph([Value(kind) for kind in kinds])
    product = graph.add("dot_general", graph.inputs, TensorType((8, 8), DType.F32), {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        "precision_config": ("DEFAULT", "DEFAULT")}).result
    # The store of the product keeps the kernels from being joined.
    graph.outputs = [product, graph.add("negate", (product,), product.type).result]
    executable = compile_graph(graph, config)
    predicted = Report.predicted(compiled_of(executable))
    limits = [Limits.of(cost, config) for cost in predicted.kernels]
    assert [limit.array for limit in limits] == [8 * 8 * 12 / 16, 0]
    assert limits[1].vector == 8 * 8 / 4 / 2 / 2
    with Device.open(config) as device:
        ones = [np.ones(kind.shape, np.float32) for kind in kinds]
        _, measured = device.profile(executable, *ones)
    for report in (predicted, measured):
        lines = table(report).splitlines()
        assert [line.split()[1] for line in lines[1:-1]] == ["dot_general", "negate"]
        assert lines[-1].split()[:2] == ["all", "48"]
        for cost, limit in zip(report.kernels, limits, strict=True):
            assert (cost.cycles or cost.kernel.cycles) >= max(limit.array, limit.vector)
    draw(measured, tmp_path / "roofline.svg")
    assert (tmp_path / "roofline.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("option", ["--side", "--images"])
def test_sizes_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tiny", option, "0"])
    assert f"{option} must be at least 1, not 0" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--cores", "--images"])
def test_step_is_for_one_image_on_one_core(option: str,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tiny", "--step", option, "2"])
    assert f"{option} must be 1 with --step, not 2" in capsys.readouterr().err


def test_values_of_a_step_of_training_are_compared() -> None:
    config = Config.preset("tiny")
    step = compile_step(config, 8, (1,), 2, 3)
    with Device.open(config, "golden") as device:
        found = device.execute(step.executable, *step.arrays)
    leaves = len(step.arrays) - 2
    assert len(step.names) == 1 + 2 * leaves
    compared = list(by_interpreter(step, found))
    assert len(compared) == len(found) > len(step.names)
    assert {*step.names} < {each.name for each in compared}
    products = list(by_jax(step, found))
    # Four convolutions and a dense layer, each with the gradient of its weights; images need none.
    assert len(products) == 17
    assert max(each.error for each in (*compared, *products)) < 1e-6
    for number in range(0, len(found), 7):
        wrong = [*found]
        wrong[number] = found[number] + np.float32(0.01) * np.abs(found[number]).max()
        assert max(each.error for each in by_interpreter(step, tuple(wrong))) > 0.005
    wrong = [*found]
    wrong[-1] = np.where(np.arange(wrong[-1].size).reshape(wrong[-1].shape), wrong[-1], np.nan)
    for compare in by_interpreter, by_jax:
        assert max(each.error for each in compare(step, tuple(wrong))) == np.inf
