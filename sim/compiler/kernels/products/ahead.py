"""Pieces made ahead: each number is split once, not in each step that uses it."""

from dataclasses import replace

from sim.compiler.kernels.lowering import Lowering
from sim.compiler.kernels.products.pieces import ROWS, WEIGHTS, Split, Stored, split
from sim.compiler.kernels.products.product import Product

__all__ = ["split_ahead"]

_START = 40
"""Cycles of the loop that splits an operand, besides those of its vectors."""


def split_ahead(product: Product, at: Lowering) -> Product:
    """Write code that splits a product's operands, if there is room and it pays.

    Parameters
    ----------
    product : Product
        Its operands are in vector memory where the code is written.
    at : Lowering

    Returns
    -------
    Product
        The product of the stored pieces, with the same bits; or the same product.
    """
    scheme = product.scheme
    if not isinstance(scheme, Split):
        return product
    buffers, apart = [product.rows, product.weights], [0, 0]
    ahead = replace(product, scheme=Stored(scheme.pairs))
    sides = [side for side in (ROWS, WEIGHTS) if scheme.most(side)]
    cost = sum(_START + (2 + scheme.most(side)) * buffers[side.number].vectors for side in sides)
    if ahead.cycles + cost >= product.cycles:
        return product
    for side in sides:
        source, most = buffers[side.number], scheme.most(side)
        target = at.spare((1 + most) * source.vectors)
        if target is None:
            return product
        buffers[side.number], apart[side.number] = target, source.vectors
    for side, source in ((ROWS, product.rows), (WEIGHTS, product.weights)):
        if apart[side.number]:
            split(at.builder, source, buffers[side.number], scheme.most(side))
    return replace(ahead, rows=buffers[0], weights=buffers[1], apart=(apart[0], apart[1]))
