"""A step of training of ResNet-50 on the chip, and the check of every value that its products use.

At initialisation, this network in training mode amplifies differences. Batch normalisation divides
by deviations of few elements, which can be small, and products round their operands to bfloat16. A
change of the inputs by 2^-24 changes most gradients by about their own size, on any machine. So
results of the whole step cannot be compared with a reference. Instead, the program also returns the
operands and results of all products. Each value is compared with what a reference computes from the
chip's own values of earlier operations, so differences do not accumulate over products.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hdl.config import Config
from sim.apps.resnet.network import STAGES, forward, images, parameters
from sim.compiler.executable import Executable
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.program.cache import compile_cached

__all__ = ["Difference", "Step", "by_interpreter", "by_jax", "compile_step", "step"]

RATE = 0.01
"""Learning rate."""
_PRODUCTS = "convolution", "dot_general"


def step(parameters: Any, x: Any, labels: Any, stages: tuple[int, ...] = STAGES) -> Any:
    """Compute the loss, its gradients, and the parameters after a step of gradient descent.

    ``x`` are images, shape (batch, side, side, 3); ``labels`` are the numbers of their classes,
    int32, shape (batch,). ``stages`` are those of `forward`. The loss is the mean cross entropy.
    """
    def loss(parameters: Any) -> Any:
        logits = jax.nn.log_softmax(forward(parameters, x, stages, True))
        return -jnp.mean(jnp.take_along_axis(logits, labels[..., None], axis=-1))

    value, gradients = jax.value_and_grad(loss)(parameters)
    return value, gradients, jax.tree.map(lambda p, g: p - RATE * g, parameters, gradients)


@dataclass(frozen=True)
class Step:
    """A compiled step of training.

    Attributes
    ----------
    graph : Graph
        The step before all passes. Its outputs are those of `step`, then the operands and results
        of all products.
    names : tuple of str
        A name for each output of `step`: ``loss``, and the paths of gradients and parameters.
    arrays : list of array
        Inputs of the graph: parameters, images and labels.
    executable : Executable
        The compiled graph.
    """

    graph: Graph
    names: tuple[str, ...]
    arrays: list[Any]
    executable: Executable


def compile_step(config: Config, side: int, stages: tuple[int, ...] = STAGES, width: int = 64,
                 classes: int = 1000) -> Step:
    """Compile a step for one random image of ``side`` x ``side`` pixels, for one core.

    ``stages``, ``width`` and ``classes`` are those of `sim.apps.resnet.network.parameters`.
    """
    labels = np.random.default_rng(1002).integers(0, classes, 1).astype(np.int32)
    values = parameters(stages, width, classes), images(1, side), labels
    traced = jax.jit(lambda p, x, y: step(p, x, y, stages)).trace(*values)
    graph = import_stablehlo(traced.lower(lowering_platforms=("cpu",)).compiler_ir("stablehlo"))
    paths = [jax.tree_util.keystr(path)
             for path, _ in jax.tree_util.tree_leaves_with_path(values[0])]
    watched = dict.fromkeys(value for operation in graph.operations
                            if operation.kind in _PRODUCTS
                            for value in (*operation.operands, *operation.results))
    graph.outputs += [value for value in watched if value not in {*graph.inputs, *graph.outputs}]
    return Step(graph, ("loss", *(f"gradient of {path}" for path in paths), *paths),
                [np.asarray(leaf) for leaf in jax.tree.leaves(values)],
                compile_cached(graph.copy(), config, name="resnet50_step"))


@dataclass(frozen=True)
class Difference:
    """Difference of a value on the chip from a reference.

    Attributes
    ----------
    name : str
        The name of an output of the step, or the kind of the operation that computes the value.
    shape : tuple of int
        Shape of the value.
    error : float
        Largest difference, relative to the largest magnitude of the value in the reference;
        infinite if an element of either is infinite or not a number.
    """

    name: str
    shape: tuple[int, ...]
    error: float


def by_interpreter(compiled: Step, found: tuple[Any, ...]) -> Iterator[Difference]:
    """Compare each output with the interpreter, which rounds operands of products as the chip does.

    ``found`` are the outputs that the chip computed for ``compiled``. For each of them, the
    interpreter takes the chip's values of earlier outputs, computes in float64, and rounds the
    result of each operation to float32.
    """
    chip = dict(zip(compiled.graph.outputs, found, strict=True))
    names = dict(zip(compiled.graph.outputs, compiled.names, strict=False))
    known = dict(zip(compiled.graph.inputs, compiled.arrays, strict=True))
    for operation in compiled.graph.operations:
        operands = [known[value] for value in operation.operands]
        results = evaluate(operation, operands, passes=True)
        for value, wanted in zip(operation.results, results, strict=True):
            known[value] = chip.get(value, wanted)
            if value in chip:
                yield _difference(names.get(value, operation.kind), chip[value], wanted)


def by_jax(compiled: Step, found: tuple[Any, ...]) -> Iterator[Difference]:
    """Compare the result of each product with that of JAX on the CPU for the same operands.

    ``found`` are the outputs that the chip computed for ``compiled``, which include the operands of
    the products. JAX multiplies in fp32, after the operands are rounded to bfloat16.
    """
    chip = dict(zip(compiled.graph.outputs, found, strict=True))
    chip |= dict(zip(compiled.graph.inputs, compiled.arrays, strict=True))
    cpu = jax.devices("cpu")[0]
    for operation in compiled.graph.operations:
        if operation.kind in _PRODUCTS:
            with jax.default_device(cpu):
                wanted = _product(operation, chip)
            yield _difference(operation.kind, chip[operation.result], np.asarray(wanted))


def _difference(name: str, found: Any, wanted: Any) -> Difference:
    if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return Difference(name, wanted.shape, np.inf)
    largest = max(float(np.abs(wanted).max(initial=0)), float(np.finfo(np.float32).tiny))
    error = np.abs(found.astype(np.float64) - wanted).max(initial=0) / largest
    return Difference(name, wanted.shape, float(error))


def _product(operation: Operation, arrays: Mapping[Value, Any]) -> Any:
    """Compute the product ``operation`` in fp32, after its operands are rounded to bfloat16.

    ``arrays`` maps each operand to its array.
    """
    a, b = (jax.lax.reduce_precision(arrays[value], 8, 7) for value in operation.operands)
    given = operation.attributes
    if operation.kind == "dot_general":
        sides = [(given["lhs_" + name], given["rhs_" + name])
                 for name in ("contracting_dimensions", "batching_dimensions")]
        return jax.lax.dot_general(a, b, (sides[0], sides[1]), precision="highest")
    numbers = jax.lax.ConvDimensionNumbers(
        (given["input_batch_dimension"], given["input_feature_dimension"],
         *given["input_spatial_dimensions"]),
        (given["kernel_output_feature_dimension"], given["kernel_input_feature_dimension"],
         *given["kernel_spatial_dimensions"]),
        (given["output_batch_dimension"], given["output_feature_dimension"],
         *given["output_spatial_dimensions"]))
    return jax.lax.conv_general_dilated(
        a, b, given["window_strides"], given["padding"], given["lhs_dilation"],
        given["rhs_dilation"], numbers, given["feature_group_count"],
        given["batch_group_count"], precision="highest")
