"""Meshes of devices and shardings, as MLIR's attributes have them."""

import math
from typing import Any

from sim.compiler.importer.attributes import python

__all__ = ["axis_sizes", "cut_of"]


def axis_sizes(module: Any, reference: Any) -> dict[str, int]:
    """Sizes of a mesh's axes, by name.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        Has the meshes.
    reference : jaxlib.mlir.ir.Attribute
        A mesh, or the name of one.

    Raises
    ------
    ValueError
        With what is wrong with it, if it has not one or two devices, in order.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    attribute = reference
    if isinstance(reference, ir.FlatSymbolRefAttr):
        [attribute] = [operation.attributes["mesh"] for operation in module.body.operations
                       if operation.operation.name == "sdy.mesh" and python(
                           operation.attributes["sym_name"]) == reference.value]
    mesh = sdy.MeshAttr(attribute)
    sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
    if math.prod(sizes.values()) > 2:
        raise ValueError(f"a mesh of {math.prod(sizes.values())} devices")
    if list(mesh.device_ids) not in ([], [0], [0, 1]):
        raise ValueError(f"a mesh of devices {list(mesh.device_ids)}")
    return sizes


def cut_of(module: Any, attribute: Any, axes: set[str] | None = None) -> int | None:
    """The dimension of a value that is cut in two halves, or None.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        Has the meshes.
    attribute : jaxlib.mlir.ir.Attribute
        The value's sharding.
    axes : set of str, optional
        Axes that count; all, if not given.

    Raises
    ------
    ValueError
        As `axis_sizes`.
    """
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    sizes = axis_sizes(module, sharding.mesh_or_ref)
    found = None
    for dimension, given in enumerate(map(sdy.DimensionShardingAttr,
                                          sharding.dimension_shardings)):
        names = {sdy.AxisRefAttr(axis).name for axis in given.axes}
        if any(sizes[name] > 1 for name in (names if axes is None else names & axes)):
            found = dimension
    return found
