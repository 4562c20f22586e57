"""Reads meshes of devices and shardings from MLIR's attributes."""

import math
from itertools import product
from typing import Any

from sim.compiler.graph.torus import Division
from sim.compiler.importer.attributes import python

__all__ = ["axis_sizes", "cut_of", "division_of"]


def axis_sizes(module: Any, reference: Any, devices: int = 2) -> dict[str, int]:
    """Return the sizes of a mesh's axes, by name.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    reference : jaxlib.mlir.ir.Attribute
        A mesh, or the name of one.
    devices : int
        Number of devices that a mesh must have, unless it has only one.

    Raises
    ------
    ValueError
        If the mesh has another number of devices, or does not have them in ascending order.
    """
    sizes, order = _mesh(module, reference, devices)
    _require_ascending(order)
    return sizes


def _require_ascending(order: tuple[int, ...]) -> None:
    if order != tuple(range(len(order))):
        raise ValueError(f"a mesh of devices {list(order)}")


def _mesh(module: Any, reference: Any, devices: int = 2) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the sizes of a mesh's axes, and its devices in the mesh's order.

    ``reference`` is the mesh, or its name in ``module``.

    Raises
    ------
    ValueError
        If the mesh has neither one device nor ``devices``.
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
    if count not in (1, devices):
        raise ValueError(f"a mesh of {count} devices")
    return sizes, tuple(mesh.device_ids) or tuple(range(count))


def cut_of(module: Any, attribute: Any) -> int | None:
    """Return the dimension that a sharding splits in two halves; None if it splits none.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    attribute : jaxlib.mlir.ir.Attribute
        The value's sharding.

    Raises
    ------
    ValueError
        Under the conditions of `axis_sizes`, with two devices.
    """
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    return _dimension(sharding, axis_sizes(module, sharding.mesh_or_ref))


def division_of(module: Any, attribute: Any, axes: set[str] | None, devices: int
                ) -> Division | None:
    """Return how a sharding divides a value between devices; None if all have the whole value.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    attribute : jaxlib.mlir.ir.Attribute
        The value's sharding.
    axes : set of str or None
        The mesh axes to consider. With None, all; then the mesh may have its devices in any order.
    devices : int
        Number of devices that the mesh must have, unless it has only one.

    Raises
    ------
    ValueError
        If the mesh has another number of devices or, with ``axes``, not in ascending order.
    """
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    sizes, order = _mesh(module, sharding.mesh_or_ref, devices)
    if axes is None:
        axes = set(sizes)
    else:
        _require_ascending(order)
    along = [[sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(given).axes]
             for given in sharding.dimension_shardings]
    along = [[name for name in names if name in axes] for names in along]
    counts = tuple(math.prod(sizes[name] for name in names) for names in along)
    if math.prod(counts) == 1:
        return None
    parts = []
    for place in product(*map(range, sizes.values())):
        at, index = dict(zip(sizes, place, strict=True)), []
        for names in along:
            number = 0
            for name in names:
                number = number * sizes[name] + at[name]
            index.append(number)
        parts.append(tuple(index))
    return Division(counts, tuple(part for _, part in sorted(zip(order, parts, strict=True))))


def _dimension(sharding: Any, sizes: dict[str, int]) -> int | None:
    from jaxlib.mlir.dialects import sdy

    found = None
    for dimension, given in enumerate(map(sdy.DimensionShardingAttr,
                                          sharding.dimension_shardings)):
        names = {sdy.AxisRefAttr(axis).name for axis in given.axes}
        if any(sizes[name] > 1 for name in names):
            found = dimension
    return found
