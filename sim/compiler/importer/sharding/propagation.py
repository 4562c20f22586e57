"""Propagates the user's shardings to all values of a global program.

jaxlib's passes propagate shardings, and insert reshards where an operation needs another sharding.
jaxlib's passes that write the program of one device are not used. Their results are silently wrong
for maxima, for sums whose initial value is not 0, and for operations that depend on positions, such
as ``iota``.
"""

import math
from collections.abc import Iterator
from typing import Any

from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.mesh import cuts_of, mesh_sizes

__all__ = ["Cuts", "Propagated", "ShardingError", "propagate"]

_PIPELINE = ("builtin.module(sdy-propagation-pipeline,"
             "func.func(sdy-insert-explicit-reshards{enable-full-version=true}))")
_SHARDING = "sdy.sharding"


Cuts = tuple[int | None, ...]
"""For each mesh axis, the dimension of a value that is split along it, or None."""


class ShardingError(ValueError):
    """Raised for a sharding that the devices cannot have; the message describes the sharding."""


class Propagated:
    """Looks up the dimensions along which each value of a program is split between devices.

    The cuts of a value are, for each mesh axis, the dimension that is split along it, or None.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The program, after `propagate`.
    main : jaxlib.mlir.ir.Operation
        The program's entry function.
    axes : tuple of int
        Sizes of the mesh axes (`sim.compiler.importer.sharding.mesh.mesh_sizes`).
    """

    def __init__(self, module: Any, main: Any, axes: tuple[int, ...]) -> None:
        self._module = module
        self._main = main
        self.axes = axes

    def argument(self, number: int) -> Cuts:
        """Return the cuts of argument ``number``."""
        return self._cut(_argument_sharding(self._main, "arg_attrs", number))

    def results(self, operation: Any) -> list[Cuts]:
        """Return the cuts of each result of an operation."""
        attributes, count = operation.attributes, len(operation.results)
        if operation.name in ("sdy.reshard", "sdy.sharding_constraint"):
            return [self._cut(attributes["sharding"])]
        if operation.name == "sdy.all_reduce":
            return [self._cut(attributes["out_sharding"])]
        if _SHARDING not in attributes:
            return [self._cut(None)] * count
        return [self._cut(item) for item in _per_value(attributes[_SHARDING])]

    def _cut(self, attribute: Any) -> Cuts:
        try:
            return _cuts(self._module, attribute, self.axes)
        except ValueError as error:
            raise ShardingError(f"a sharding over {error}") from error


def _cuts(module: Any, attribute: Any, axes: tuple[int, ...]) -> Cuts:
    return (None,) * len(axes) if attribute is None else cuts_of(module, attribute, axes)


def propagate(module: Any, main: Any, devices: int) -> Propagated | None:
    """Give all values of a program shardings, after inlining its calls.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The global program; it is changed in place.
    main : jaxlib.mlir.ir.Operation
        The program's entry function.
    devices : int
        Number of devices.

    Returns
    -------
    Propagated or None
        None if the user's shardings split no value. Also None if the program contains a
        ``manual_computation``, which is the program of one device; then all devices compute
        everything outside of it.

    Raises
    ------
    ShardingError
        If a mesh does not have ``devices`` devices, a dimension cannot be divided into equal parts,
        or jaxlib's passes fail.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    axes = _axes(module, main, devices)
    if axes is None:
        return None
    _inline(module, main)
    try:
        PassManager.parse(_PIPELINE, module.context).run(module.operation)
    except ir.MLIRError as error:
        raise ShardingError(f"shardings that jaxlib cannot propagate ({error})") from error
    return Propagated(module, main, axes)


def _axes(module: Any, main: Any, devices: int) -> tuple[int, ...] | None:
    """Return the sizes of the mesh axes; None if the user's shardings split no value.

    ``main`` is the module's entry function. Also return None if the module contains a
    ``manual_computation``.

    Raises
    ------
    ShardingError
        If a mesh has another number of devices than ``devices``, or a dimension cannot be divided
        into equal parts.
    """
    given = [(_argument_sharding(main, "arg_attrs", number), argument.type, f"argument {number}")
             for number, argument in enumerate(main.regions[0].blocks[0].arguments)]
    [*_, last] = main.regions[0].blocks[0].operations
    given += [(_argument_sharding(main, "res_attrs", number), value.type, f"result {number}")
              for number, value in enumerate(last.operands)]
    for operation in _walk(module.operation):
        if operation.name == "sdy.manual_computation":
            return None
        if operation.name == "sdy.sharding_constraint":
            given.append((operation.attributes["sharding"], operation.results[0].type,
                          "an array with a sharding constraint"))
    try:
        axes = mesh_sizes(module, devices)
        cuts = [_cuts(module, attribute, axes) for attribute, _, _ in given]
    except ValueError as error:
        raise ShardingError(f"a sharding over {error}") from error
    for cut, (_, type, what) in zip(cuts, given, strict=True):
        for dimension in {number for number in cut if number is not None}:
            parts = math.prod(size for size, number in zip(axes, cut, strict=True)
                              if number == dimension)
            if type.shape[dimension] % parts:
                raise ShardingError(f"{what} of shape {tuple(type.shape)}, divided into {parts} "
                                    f"parts along dimension {dimension}, whose size is not a "
                                    f"multiple of {parts}")
    return axes if any(number is not None for cut in cuts for number in cut) else None


def _argument_sharding(main: Any, name: str, number: int) -> Any:
    """Return the sharding of argument or result ``number`` of a function, or None.

    ``name`` is ``arg_attrs`` for an argument, and ``res_attrs`` for a result.
    """
    if name not in main.attributes:
        return None
    given = main.attributes[name][number]
    # `given` is an MLIR attribute, which has no method `get`, unlike a dictionary.
    return given[_SHARDING] if _SHARDING in given else None  # noqa: SIM401


def _per_value(attribute: Any) -> list[Any]:
    from jaxlib.mlir.dialects import sdy

    return list(sdy.TensorShardingPerValueAttr(attribute).shardings)


def _walk(operation: Any) -> Iterator[Any]:
    """Yield an operation and all operations within it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _walk(inner.operation)


def _inline(module: Any, main: Any) -> None:
    """Inline all calls in the function ``main`` and in the functions that it calls.

    This is needed because a function may be called with different shardings.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext

    functions = {python(operation.attributes["sym_name"]): operation.operation
                 for operation in module.body.operations
                 if operation.operation.name == "func.func"}
    while calls := [operation for operation in _walk(main) if operation.name == "func.call"]:
        for call in calls:
            with ir.InsertionPoint(call), call.location:
                made = _jax_mlir_ext.inlined_func_call(
                    functions[python(call.attributes["callee"])], list(call.operands),
                    call.location)
            for old, new in zip(call.results, made, strict=True):
                old.replace_all_uses_with(new)
            call.erase()
