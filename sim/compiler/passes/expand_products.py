"""Rewrites products that the array's kernel does not support.

- A product without contracted dimensions becomes a multiplication of broadcast operands.
- A product of operands without free dimensions becomes a multiplication and a sum. The product of
  two vectors is an exception: the array computes it.
- In other products, an operand without a free dimension gets one of size 1.

A multiplication in place of a product of floats is in fp32, whatever precision the product
requests.
"""

from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.kernels.products.dot import Dots
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["expand_products", "finished", "widened"]


def expand_products(graph: Graph) -> None:
    """Replace each ``dot_general`` without a kernel by operations that have kernels.

    The graph is changed in place.
    """
    expand(graph, lambda operation, to: (
        _product(operation, to) if operation.kind == "dot_general" else None))


def widened(value: Value, to: Expansion) -> Value:
    """Convert a value to the type in which products are summed: fp32, u32 or s32."""
    dtype = value.dtype
    wide = DType.F32 if dtype.is_float else DType.U32 if dtype is DType.U32 else DType.S32
    return to.convert(value, wide)


def finished(value: Value, dtype: DType, to: Expansion) -> Value:
    """Convert the sum ``value`` to ``dtype``, the type of the result.

    A predicate is true if its sum is not 0.
    """
    if dtype is not DType.PRED:
        return to.convert(value, dtype)
    zero = to.broadcast(to.constant(0, value.dtype), value.shape, ())
    return to.add("compare", (value, zero), TensorType(value.shape, dtype),
                  comparison_direction="NE", compare_type="SIGNED")


def _product(operation: Operation, to: Expansion) -> Value | None:
    dots = Dots.of(operation)
    if not dots.contracting[0] or not (dots.free[0] or dots.free[1]):
        if len(dots.shapes[0]) == len(dots.contracting[0]) == 1:
            return None
        return _multiplied(operation, dots, to)
    sides = [side for side in (0, 1) if not dots.free[side] and len(dots.shapes[side]) > 1]
    if not sides:
        return None
    [side] = sides
    operands = list(operation.operands)
    operands[side] = to.reshape(operands[side], (*dots.shapes[side], 1))
    shape = list(operation.result.shape)
    shape.insert(len(dots.batch[0]) + (len(dots.free[0]) if side else 0), 1)
    result = to.add("dot_general", operands, TensorType(tuple(shape), operation.result.dtype),
                    **operation.attributes)
    return to.reshape(result, operation.result.shape)


def _multiplied(operation: Operation, dots: Dots, to: Expansion) -> Value:
    """Write a product as broadcasts, a multiplication, and a sum over contracted dimensions.

    ``dots`` are the dimensions of the product.
    """
    batch = len(dots.batch[0])
    shape = (*operation.result.shape,
             *(dots.shapes[0][dimension] for dimension in dots.contracting[0]))
    factors = []
    for side, operand in enumerate(operation.operands):
        dimensions = [0] * len(operand.shape)
        for number, dimension in enumerate(dots.batch[side]):
            dimensions[dimension] = number
        for number, dimension in enumerate(dots.free[side]):
            dimensions[dimension] = batch + (len(dots.free[0]) if side else 0) + number
        for number, dimension in enumerate(dots.contracting[side]):
            dimensions[dimension] = len(operation.result.shape) + number
        order = sorted(range(len(dimensions)), key=dimensions.__getitem__)
        factor = to.transpose(widened(operand, to), order)
        factors.append(to.broadcast(factor, shape, sorted(dimensions)))
    product = to.binary("multiply", *factors)
    total = to.sum(product, range(len(operation.result.shape), len(shape)))
    return finished(total, operation.result.dtype, to)
