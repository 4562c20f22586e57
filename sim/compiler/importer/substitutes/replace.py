"""Replaces operations for which there are no kernels by calls of functions with loops.

StableHLO has operations for the Cholesky factorisation and for triangular solves; for other
factorisations, JAX emits custom calls of functions that a TPU's compiler provides. CHLO has an
operation for the high half of a product. StableHLO's operations for real and imaginary parts are
replaced if their operand is real. Each of these operations becomes a call of a function, which JAX
lowers to StableHLO. Equal operations call the same function.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sim.compiler.importer.attributes import enum_name, python

__all__ = ["replace_operations"]

_TARGETS = frozenset({
    "Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr", "QrDecomposition"})
"""Targets of custom calls that are replaced."""
_FLOATS = {"f32": "float32", "bf16": "bfloat16"}
_INTEGERS = {"i8": "int8", "i16": "int16", "i32": "int32", "ui8": "uint8", "ui16": "uint16",
             "ui32": "uint32"}
_DTYPES = _FLOATS | _INTEGERS
"""JAX's names of the element types whose operations are replaced. Operations on other types remain;
the importer refuses them because of their types."""


def replace_operations(module: Any) -> None:
    """Replace operations of an MLIR module by calls of this package's functions, in place.

    Operations on element types that the chip does not have remain. Without jax, which lowers the
    functions, all operations remain.
    """
    found = [operation for operation in _operations(module.operation) if _is_replaced(operation)]
    if not found:
        return
    try:
        import jax  # noqa: F401 - the functions need it
    except ImportError:
        return
    names: dict[Any, str] = {}
    while found:
        for operation in found:
            _replace(operation, module, names)
        # The function of one operation may contain another: a large LU solves triangles.
        found = [operation for operation in _operations(module.operation)
                 if _is_replaced(operation)]


def _operations(operation: Any) -> Iterator[Any]:
    """Yield the operations inside an MLIR operation, at any depth."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _operations(inner.operation)


def _is_replaced(operation: Any) -> bool:
    from jaxlib.mlir import ir

    types = _FLOATS
    if operation.name == "stablehlo.custom_call":
        known = python(operation.attributes["call_target_name"]) in _TARGETS
    elif operation.name == "chlo.mulhi":
        known, types = True, _INTEGERS
    else:
        known = operation.name in ("stablehlo.cholesky", "stablehlo.triangular_solve",
                                   "stablehlo.real", "stablehlo.imag")
    return known and all(
        isinstance(value.type, ir.RankedTensorType) and value.type.has_static_shape
        and str(value.type.element_type) in types for value in operation.operands)


def _replace(operation: Any, module: Any, names: dict[Any, str]) -> None:
    """Replace an operation of ``module`` by a call.

    ``names`` has the names of the functions that were added to the module, by the operation's kind,
    attributes and operand types. A function that is missing is added to ``module`` and ``names``.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import func

    kind, key, function = _function(operation)
    operands, results = list(operation.operands), list(operation.results)
    key = (kind, key, tuple(str(value.type) for value in operands))
    if key not in names:
        names[key] = f"systolith.{kind}.{len(names)}"
        _add_function(module, names[key], function, operands)
    with module.context, operation.location, ir.InsertionPoint(operation):
        call = func.CallOp([value.type for value in results],
                           ir.FlatSymbolRefAttr.get(names[key]), operands)
    for old, new in zip(results, call.results, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def _function(operation: Any) -> tuple[str, Any, Callable[..., Any]]:
    """Return an operation's kind, its attributes, and the function of JAX that computes it."""
    import jax
    from jax._src.lax.linalg import _lu_python

    from sim.compiler.importer.substitutes import integers, linalg

    attributes = operation.attributes
    if operation.name == "chlo.mulhi":
        return "mulhi", None, integers.mulhi
    if operation.name == "stablehlo.real":
        return "real", None, lambda x: x
    if operation.name == "stablehlo.imag":
        return "imag", None, jax.numpy.zeros_like
    if operation.name == "stablehlo.cholesky":
        lower = python(attributes["lower"]) if "lower" in attributes else False
        return "cholesky", lower, functools.partial(linalg.cholesky, lower=lower)
    if operation.name == "stablehlo.triangular_solve":
        flags = {name: python(attributes[name])
                 for name in ("left_side", "lower", "unit_diagonal")}
        flags["transpose_a"] = enum_name(attributes["transpose_a"]) != "NO_TRANSPOSE"
        return "triangular_solve", tuple(flags.values()), functools.partial(
            linalg.triangular_solve, conjugate_a=False, **flags)
    target = python(attributes["call_target_name"])
    if target == "Eigh":
        # Text "lower,sort,sweeps,tolerance": two flags and two numbers.
        lower, sort = (flag == "1" for flag in python(attributes["backend_config"]).split(",")[:2])
        return "eigh", (lower, sort), functools.partial(
            linalg.eigh, lower=lower, sort_eigenvalues=sort, subset_by_index=None, algorithm=None)
    if target == "LuDecomposition":
        return "lu", None, _lu_python
    if target == "ProductOfElementaryHouseholderReflectors":
        return "householder_product", None, linalg.householder_product
    return "geqrf", None, linalg.geqrf


@contextmanager
def _settings() -> Iterator[None]:
    """While the context is open, give JAX the settings that the functions need."""
    import jax

    with ExitStack() as stack:
        for setting in (jax.enable_x64(False), jax.disable_jit(False),
                        jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"),
                        jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))):
            stack.enter_context(setting)
        yield


def _add_function(module: Any, name: str, function: Callable[..., Any],
                  operands: list[Any]) -> None:
    """Lower ``function`` for operands of the types of ``operands``; add it to ``module``.

    The function gets the name ``name``; functions that it calls get names that begin with ``name``.
    Source lines are dropped, so that all operations get the line of the call.
    """
    import jax
    from jaxlib.mlir import ir

    types = [jax.ShapeDtypeStruct(tuple(value.type.shape), _DTYPES[str(value.type.element_type)])
             for value in operands]
    with _settings():
        # Lowered as for a TPU: for a CPU, JAX calls LAPACK.
        lowered = jax.jit(function, keep_unused=True).trace(*types).lower(
            lowering_platforms=("tpu",))
    added = ir.Module.parse(lowered.as_text(), module.context)
    with module.context:
        names = {python(each.attributes["sym_name"]): name for each in added.body.operations}
        names = {old: name if old == "main" else f"{name}.{old}" for old in names}
        for operation in _operations(added.operation):
            operation.location = ir.Location.unknown()
            if operation.name == "func.call":
                callee = python(operation.attributes["callee"])
                operation.attributes["callee"] = ir.FlatSymbolRefAttr.get(names[callee])
        for each in list(added.body.operations):
            old = python(each.attributes["sym_name"])
            each.operation.attributes["sym_name"] = ir.StringAttr.get(names[old])
            each.operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
            module.body.append(each.operation.detach_from_parent())
