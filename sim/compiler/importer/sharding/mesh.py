"""Reads meshes of devices and shardings from MLIR's attributes."""

import math
from typing import Any, NamedTuple

from sim.compiler.importer.attributes import python

__all__ = ["Split", "axis_sizes", "cut_of", "split_of"]


class Split(NamedTuple):
    """A split of a value in two halves: the dimension, and the devices in order of their halves."""

    dimension: int
    group: tuple[int, ...]


def axis_sizes(module: Any, reference: Any) -> dict[str, int]:
    """Return the sizes of a mesh's axes, by name.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    reference : jaxlib.mlir.ir.Attribute
        A mesh, or the name of one.

    Raises
    ------
    ValueError
        If the mesh has more than two devices, or does not have them in ascending order.
    """
    sizes, devices = _mesh(module, reference)
    if devices != tuple(range(len(devices))):
        raise ValueError(f"a mesh of devices {list(devices)}")
    return sizes


def _mesh(module: Any, reference: Any) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the sizes of a mesh's axes, and its devices in the mesh's order.

    ``reference`` is the mesh, or its name in ``module``.

    Raises
    ------
    ValueError
        If the mesh has more than two devices.
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
    count = math.prod(sizes.values())
    if count > 2:
        raise ValueError(f"a mesh of {count} devices")
    return sizes, tuple(mesh.device_ids) or tuple(range(count))


def cut_of(module: Any, attribute: Any, axes: set[str] | None = None) -> int | None:
    """Return the dimension that a sharding splits in two halves; None if it splits none.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    attribute : jaxlib.mlir.ir.Attribute
        The value's sharding.
    axes : set of str, optional
        The mesh axes to consider; by default all.

    Raises
    ------
    ValueError
        If the mesh has more than two devices, or does not have them in ascending order.
    """
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    return _dimension(sharding, axis_sizes(module, sharding.mesh_or_ref), axes)


def split_of(module: Any, attribute: Any) -> Split | None:
    """Return how a value is split by its sharding, ``attribute``; None if it is not split.

    The mesh, which is in ``module``, may have its devices in any order.

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
