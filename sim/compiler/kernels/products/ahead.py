"""Splits the operands of an fp32 product into pieces (`pieces`) before the array multiplies them.

Each number is then split once, not in each step that uses it.
"""

from dataclasses import replace

from sim.compiler.kernels.lowering import Lowering
from sim.compiler.kernels.products.pieces import ROWS, WEIGHTS, Split, Stored, split
from sim.compiler.kernels.products.product import Product
from sim.compiler.machine.ir import VmemBuffer

__all__ = ["split_ahead"]

_START = 80
"""Estimated cycles to start the loops of `pieces.split`. Each vector that the loops store takes one
further cycle."""


def split_ahead(product: Product, at: Lowering) -> Product:
    """Write code that splits a product's operands, if vmem has room and this saves cycles.

    Parameters
    ----------
    product : Product
        The product; its operands must be in vector memory when the code runs.
    at : Lowering
        Receives the code, and allocates vectors for the pieces.

    Returns
    -------
    Product
        The product of the stored pieces, whose result has the same bits; or ``product`` itself, if
        the operands are not split.
    """
    scheme = product.scheme
    if not isinstance(scheme, Split) or product.packed:
        return product
    ahead = replace(product, scheme=Stored(scheme.pairs))
    sides = [(side, source, (2 + scheme.most(side)) * source.vectors)
             for side, source in ((ROWS, product.rows), (WEIGHTS, product.weights))]
    vectors = sum(size for _, _, size in sides)
    if ahead.cycles + vectors + _START >= product.cycles or (
            target := at.spare(vectors)) is None:
        return product
    parts, first = [], target.address
    for side, source, size in sides:
        parts.append(VmemBuffer(f"{target.name}_{side.number}", first, size))
        split(at.builder, source, parts[-1], scheme.most(side))
        first += size
    return replace(ahead, rows=parts[0], weights=parts[1],
                   apart=(product.rows.vectors, product.weights.vectors))
