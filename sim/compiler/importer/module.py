"""Reads StableHLO in any form: text, bytecode, portable artifacts, files, modules."""

import pathlib
from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

from sim.compiler.importer.advice import DYNAMIC
from sim.compiler.importer.substitutes.replace import replace_operations

__all__ = ["read"]

_PORTABLE = b"StableHLO_v"
"""Bytes that the header of a portable artifact contains, unlike that of other MLIR bytecode."""
_HEADER = 64
"""Number of bytes, at the start of bytecode, that are searched for `_PORTABLE`."""
_PIPELINE = ("builtin.module(func.func(chlo-legalize-to-stablehlo),"
             "func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false}))")
"""Passes that replace operations of CHLO, and deprecated ones, by operations of StableHLO."""
_DYNAMIC = "builtin.module(func.func(stablehlo-canonicalize-dynamism))"
"""Pass that replaces dynamic operations whose shapes are constants by static operations."""


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
    """Make an MLIR context with the dialects that programs use."""
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
    """Yield the names of an operation and all operations within it, without StableHLO's prefix."""
    yield operation.name.removeprefix("stablehlo.")
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _names(inner.operation)


def read(source: Any) -> Any:
    """Parse a program; replace operations of CHLO, and deprecated ones, by those of StableHLO.

    CHLO is a dialect of higher-level operations, which JAX emits. Factorisations, and other
    operations without kernels, are replaced by calls of functions (`replace_operations`).

    Parameters
    ----------
    source : str, bytes, pathlib.Path, or jaxlib.mlir.ir.Module
        Text; bytecode or a portable artifact; the path of a file that contains either; or a module,
        which is copied.

    Returns
    -------
    jaxlib.mlir.ir.Module
        The program, in a new context.

    Raises
    ------
    ImportError
        If jaxlib is not installed.
    TypeError
        If ``source`` has another type.
    ValueError
        If ``source`` is not a StableHLO program.
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
            # Before the pipeline, which replaces CHLO's operations in ways that need 64 bits.
            replace_operations(module)
            PassManager.parse(_PIPELINE).run(module.operation)
            # Only for such programs: the pass also drops unused operations, even unsupported ones.
            if not DYNAMIC.isdisjoint(_names(module.operation)):
                PassManager.parse(_DYNAMIC).run(module.operation)
        except ir.MLIRError as error:
            raise ValueError(f"source must be a StableHLO program{_path_hint(source)}: "
                             f"{error}") from error
    return module


def _path_hint(source: str | bytes) -> str:
    """Return a hint for an error message if ``source`` may be a file's name, otherwise "".

    A text that contains no line break, ``(`` or ``{`` may be a file's name.
    """
    if isinstance(source, bytes) or not source.strip() or any(mark in source for mark in "\n({"):
        return ""
    if pathlib.Path(source).exists():
        return f", not a file's name as a string: give it as pathlib.Path({source!r})"
    return f", and there is no file {source!r} either"
