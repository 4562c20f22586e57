"""Meshes of devices and shardings, as MLIR's attributes have them."""

import math
from typing import Any, NamedTuple

from sim.compiler.importer.attributes import python

__all__ = ["Split", "axis_sizes", "cut_of", "split_of"]


class Split(NamedTuple):
    """A value in two halves: the dimension, and the devices that have the first and the second."""

    dimension: int
    group: tuple[int, ...]


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
    sizes, devices = _mesh(module, reference)
    if devices != tuple(range(len(devices))):
        raise ValueError(f"a mesh of devices {list(devices)}")
    return sizes


def _mesh(module: Any, reference: Any) -> tuple[dict[str, int], tuple[int, ...]]:
    """Sizes of a mesh's axes, and its devices in order; ValueError if there are more than two."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    attribute = reference
    if isinstance(reference, ir.FlatSymbolRefAttr):
        [attribute] = [operation.attributes["mesh"] for operation in module.body.operations
                       if operation.operation.name == "sdy.mesh" and python(
                           operation.attributes["sym_name"]) == reference.value]
    mesh = sdy.MeshAttr(attribute)
    sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
    count = math.prod(sizes.values())
    if count > 2:
        raise ValueError(f"a mesh of {count} devices")
    return sizes, tuple(mesh.device_ids) or tuple(range(count))


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
    return _dimension(sharding, axis_sizes(module, sharding.mesh_or_ref), axes)


def split_of(module: Any, attribute: Any) -> Split | None:
    """The halves in which a sharding cuts a value; the devices of the mesh may be in any order.

    Raises
    ------
    ValueError
        If the mesh has more than two devices.
    """
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    sizes, devices = _mesh(module, sharding.mesh_or_ref)
    dimension = _dimension(sharding, sizes, None)
    return None if dimension is None else Split(dimension, devices)


def _dimension(sharding: Any, sizes: dict[str, int], axes: set[str] | None) -> int | None:
    from jaxlib.mlir.dialects import sdy

    found = None
    for dimension, given in enumerate(map(sdy.DimensionShardingAttr,
                                          sharding.dimension_shardings)):
        names = {sdy.AxisRefAttr(axis).name for axis in given.axes}
        if any(sizes[name] > 1 for name in (names if axes is None else names & axes)):
            found = dimension
    return found
