"""Reads meshes of devices and shardings from MLIR's attributes. The text of an error only names an
unsupported thing, such as ``a mesh of 3 devices``: the caller makes a sentence of it.
"""

import math
from itertools import product
from typing import Any

from sim.compiler.graph.torus import Division
from sim.compiler.importer.attributes import python

__all__ = ["axis_sizes", "cuts_of", "division_of", "mesh_sizes"]


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
        raise ValueError(f"a mesh of devices in the order {list(order)}")


def _mesh(module: Any, reference: Any, devices: int = 2) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the sizes of a mesh's axes, and its devices in the mesh's order.

    ``reference`` is the mesh, or its name in ``module``.

    Raises
    ------
    ValueError
        If the mesh's number of devices is neither 1 nor ``devices``.
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


def mesh_sizes(module: Any, devices: int) -> tuple[int, ...]:
    """Return the sizes of the axes of a module's mesh, without axes of size 1.

    Raises
    ------
    ValueError
        If several meshes differ in these sizes. Also if a mesh's number of devices is neither 1
        nor ``devices``, or its devices are not in ascending order.
    """
    found = {_large(axis_sizes(module, operation.attributes["mesh"], devices))
             for operation in module.body.operations
             if operation.operation.name == "sdy.mesh"} - {()}
    if len(found) > 1:
        raise ValueError("meshes of different shapes")
    return found.pop() if found else ()


def _large(sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(size for size in sizes.values() if size > 1)


def cuts_of(module: Any, attribute: Any, axes: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return, for each mesh axis, the dimension that a sharding splits along it, or None.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    attribute : jaxlib.mlir.ir.Attribute
        The value's sharding.
    axes : tuple of int
        The result of `mesh_sizes`.

    Raises
    ------
    ValueError
        For a mesh that `axis_sizes` refuses. Also if the sharding splits a dimension along axes
        that are not in the order of the mesh, or along a part of an axis.
    """
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    sizes = axis_sizes(module, sharding.mesh_or_ref, math.prod(axes))
    names = [name for name, size in sizes.items() if size > 1]
    found: list[int | None] = [None] * len(axes)
    for dimension, given in enumerate(map(sdy.DimensionShardingAttr,
                                          sharding.dimension_shardings)):
        refs = list(map(sdy.AxisRefAttr, given.axes))
        if any(ref.sub_axis_info is not None for ref in refs):
            raise ValueError("a part of a mesh axis")
        numbers = [names.index(ref.name) for ref in refs if ref.name in names]
        if numbers != sorted(numbers):
            raise ValueError("mesh axes in another order than the mesh's")
        for number in numbers:
            found[number] = dimension
    return tuple(found)


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
        The mesh axes to consider. None means all axes; the mesh may then have its devices in any
        order.
    devices : int
        Number of devices that the mesh must have, unless it has only one.

    Raises
    ------
    ValueError
        If the mesh has another number of devices. With ``axes``, also if its devices are not in
        ascending order.
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
