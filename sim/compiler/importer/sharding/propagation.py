"""Propagates the user's shardings to all values of a global program.

jaxlib's passes propagate shardings, and insert reshards where an operation needs another sharding.
jaxlib's passes that write the program of one device are not used. Their results are silently wrong
for maxima, for sums whose initial value is not 0, and for operations that depend on positions, such
as ``iota``.
"""

from collections.abc import Iterator
from typing import Any

from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.mesh import cut_of

__all__ = ["Propagated", "ShardingError", "propagate"]

_PIPELINE = ("builtin.module(sdy-propagation-pipeline,"
             "func.func(sdy-insert-explicit-reshards{enable-full-version=true}))")
_SHARDING = "sdy.sharding"


class ShardingError(ValueError):
    """Raised for a sharding that two cores cannot have; the message describes the sharding."""


class Propagated:
    """Looks up the dimension along which each value of a program is split between two devices.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The program, after `propagate`.
    main : jaxlib.mlir.ir.Operation
        The program's entry function.
    """

    def __init__(self, module: Any, main: Any) -> None:
        self._module = module
        self._main = main

    def argument(self, number: int) -> int | None:
        """Return the dimension along which argument ``number`` is split; None if it is not."""
        return self._cut(_argument_sharding(self._main, "arg_attrs", number))

    def results(self, operation: Any) -> list[int | None]:
        """Return, for each result of an operation, the dimension that is split, or None."""
        attributes, count = operation.attributes, len(operation.results)
        if operation.name in ("sdy.reshard", "sdy.sharding_constraint"):
            return [self._cut(attributes["sharding"])]
        if operation.name == "sdy.all_reduce":
            return [self._cut(attributes["out_sharding"])]
        if _SHARDING not in attributes:
            return [None] * count
        return [self._cut(item) for item in _per_value(attributes[_SHARDING])]

    def _cut(self, attribute: Any) -> int | None:
        return None if attribute is None else cut_of(self._module, attribute)


def propagate(module: Any, main: Any) -> Propagated | None:
    """Give all values of a program shardings, after inlining its calls.

    Parameters
    ----------
    module : jaxlib.mlir.ir.Module
        The global program; it is changed in place.
    main : jaxlib.mlir.ir.Operation
        The program's entry function.

    Returns
    -------
    Propagated or None
        None if the user's shardings split no value. Also None if the program contains a
        ``manual_computation``, which is the program of one device; then both devices compute
        everything outside of it.

    Raises
    ------
    ShardingError
        If a mesh has more than two devices, the size of a dimension that is split is odd, or
        jaxlib's passes fail.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.passmanager import PassManager

    if not _is_cut(module, main):
        return None
    _inline(module, main)
    try:
        PassManager.parse(_PIPELINE, module.context).run(module.operation)
    except ir.MLIRError as error:
        raise ShardingError(f"shardings that jaxlib cannot propagate ({error})") from error
    return Propagated(module, main)


def _is_cut(module: Any, main: Any) -> bool:
    """Return whether the user's shardings split a value of a module's entry function ``main``.

    Also return False if the module contains a ``manual_computation``.

    Raises
    ------
    ShardingError
        If a mesh has more than two devices, or the size of a dimension that is split is odd.
    """
    given = [(_argument_sharding(main, "arg_attrs", number), argument.type, f"argument {number}")
             for number, argument in enumerate(main.regions[0].blocks[0].arguments)]
    [*_, last] = main.regions[0].blocks[0].operations
    given += [(_argument_sharding(main, "res_attrs", number), value.type, f"result {number}")
              for number, value in enumerate(last.operands)]
    for operation in _walk(module.operation):
        if operation.name == "sdy.manual_computation":
            return False
        if operation.name == "sdy.sharding_constraint":
            given.append((operation.attributes["sharding"], operation.results[0].type,
                          "an array with a sharding constraint"))
    found = False
    for attribute, type, what in given:
        try:
            cut = None if attribute is None else cut_of(module, attribute)
        except ValueError as error:
            raise ShardingError(f"a sharding over {error}") from error
        if cut is not None and type.shape[cut] % 2:
            raise ShardingError(f"{what} of shape {tuple(type.shape)}, split in halves along "
                                f"dimension {cut}, whose size is odd")
        found = found or cut is not None
    return found


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
