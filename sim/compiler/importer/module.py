"""Read StableHLO of any form: text, bytecode, portable artifacts, files, modules."""

import pathlib
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

from sim.compiler.importer.advice import DYNAMIC

__all__ = ["read"]

_PORTABLE = b"StableHLO_v"
"""Part of the header of a portable artifact; other bytecode names MLIR's version."""
_HEADER = 64
"""Bytes in which it is."""
_PIPELINE = ("builtin.module(func.func(chlo-legalize-to-stablehlo),"
             "func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false}))")
"""Passes that express operations of other dialects, and deprecated ones, by StableHLO's."""
_DYNAMIC = "builtin.module(func.func(stablehlo-canonicalize-dynamism))"
"""Expresses dynamic operations whose shapes are constants by static ones."""


@cache
def _bindings() -> Any:
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo
    except ImportError as error:
        raise ImportError("reading StableHLO needs jaxlib: pip install 'systolith[jax]'") from error
    stablehlo.register_stablehlo_passes()
    return ir


def _new_context() -> Any:
    """A context that knows the dialects of programs."""
    ir = _bindings()
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import chlo, sdy, stablehlo

    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (sdy, chlo, stablehlo):
        dialect.register_dialect(context)
    return context


def _names(operation: Any) -> Iterator[str]:
    """Names of an operation and all within it, without StableHLO's prefix."""
    yield operation.name.removeprefix("stablehlo.")
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _names(inner.operation)


def read(source: Any) -> Any:
    """Parse a program, and legalise what StableHLO expresses by simpler operations.

    Parameters
    ----------
    source : str, bytes, pathlib.Path, or jaxlib.mlir.ir.Module
        Text; bytecode or a portable artifact; the path of a file of either; or a module, which is
        copied.

    Returns
    -------
    jaxlib.mlir.ir.Module
        Of operations of StableHLO and ``func``, in a context of its own.

    Raises
    ------
    ImportError
        If jaxlib is not installed.
    TypeError
        If the source is of another type.
    ValueError
        If it is not a program.
    """
    ir = _bindings()
    if isinstance(source, pathlib.Path):
        source = source.read_bytes()
    elif isinstance(source, ir.Module):
        buffer = BytesIO()
        source.operation.write_bytecode(buffer)
        source = buffer.getvalue()
    if not isinstance(source, str | bytes):
        raise TypeError("source must be text, bytes, a path, or a module, "
                        f"not {type(source).__name__}")
    from jaxlib.mlir.dialects import stablehlo
    from jaxlib.mlir.passmanager import PassManager
    with _new_context() as context:
        try:
            if isinstance(source, bytes) and _PORTABLE in source[:_HEADER]:
                module = stablehlo.deserialize_portable_artifact(context, source)
            else:
                module = ir.Module.parse(source, context)
            PassManager.parse(_PIPELINE).run(module.operation)
            # Not for every program: the pass also drops what is not used, refused or not.
            if not DYNAMIC.isdisjoint(_names(module.operation)):
                PassManager.parse(_DYNAMIC).run(module.operation)
        except ir.MLIRError as error:
            raise ValueError(f"source must be a StableHLO program{_path_hint(source)}: "
                             f"{error}") from error
    return module


def _path_hint(source: str | bytes) -> str:
    """Hint for text that may be a file's name: a line without a bracket."""
    if isinstance(source, bytes) or not source.strip() or any(mark in source for mark in "\n({"):
        return ""
    if pathlib.Path(source).exists():
        return f", not a file's name as a string: give it as pathlib.Path({source!r})"
    return f", and there is no file {source!r} either"
