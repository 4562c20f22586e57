"""Cache on disk of results that depend only on the project's code and a few parameters."""

import ast
import contextlib
import functools
import inspect
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import Any

from hdl.store import collecting_rarely, digest, keep_text, kept_text

__all__ = ["cached_json", "code_digest", "code_text", "imported_names"]

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PACKAGES = ("golden", "hdl", "sim", "systolith", "tools", "verif")
_NO_SOURCES = ("hdl.store.", "sim.verilated.")
"""Prefixes of modules that affect no result: they only store or compile what others generate."""
_TOOLS = ("amaranth", "pyosys")
_parser = threading.Lock()
"""Lock for `ast.parse`: CPython 3.11 keeps one count of the tree's depth for all threads."""


@functools.lru_cache(16)
def code_text(source: str) -> str:
    """``source`` without the parts that cannot change a result: comments, docstrings, layout."""
    return _dump(_parse(source))


def code_digest(path: pathlib.Path) -> str:
    """Return a digest of a module's `code_text`. Digests are kept, so a module is parsed once."""
    return _read(path, path.stat().st_mtime_ns)[0]


def _parse(source: str) -> ast.Module:
    with _parser:
        return ast.parse(source)


def _dump(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Strings that are statements document a module, a function, a class or a constant.
            node.body = [statement for statement in node.body
                         if not (isinstance(statement, ast.Expr)
                                 and isinstance(statement.value, ast.Constant)
                                 and isinstance(statement.value.value, str))]
    return ast.dump(tree)


@functools.cache
def _read(path: pathlib.Path, _modified: int) -> tuple[str, tuple[str, ...]]:
    """Digest of a module's code, and the names that it imports.

    Calls are cached; ``_modified``, the file's modification time, is only part of the key. Results
    are kept on disk, too: parsing all modules of a chip takes a second of CPU time.
    """
    text = path.read_text(encoding="utf-8")
    folder = path.parent.relative_to(_ROOT).parts if path.is_relative_to(_ROOT) else ()
    key = digest([text, folder, _reader()])
    kept = kept_text("code", "module.json", key)
    if kept is None:
        tree = _parse(text)
        kept = json.dumps([digest(_dump(tree)), list(imported_names(ast.walk(tree), folder))])
        with contextlib.suppress(OSError):  # the cache may be read-only
            keep_text("code", "module.json", key, kept)
    code, imported = json.loads(kept)
    return code, tuple(imported)


@functools.cache
def _reader() -> list[object]:
    """Return what the result of `_read` depends on in addition to the file: Python, this module."""
    return [sys.version_info[:3], inspect.getsource(_dump), inspect.getsource(imported_names)]


def imported_names(nodes: Iterable[ast.AST], folder: tuple[str, ...]) -> Iterator[str]:
    """Names that a module in ``folder`` imports; some of them may be functions or classes.

    ``nodes`` are all nodes of the module's syntax tree.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*folder[:len(folder) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _file(module: str) -> pathlib.Path | None:
    """The file of ``module``; None unless it is a module of the project that may affect results."""
    if module.partition(".")[0] not in _PACKAGES or f"{module}.".startswith(_NO_SOURCES):
        return None
    path = _ROOT.joinpath(*module.split("."))
    found = [path.with_suffix(".py"), path / "__init__.py"]
    return next((path for path in found if path.is_file()), None)


class _Code:
    """Digests, by file, of a module and of all modules that it imports, directly or indirectly.

    The C++ files in a module's folder are treated as part of the module.
    """

    def __init__(self, start: pathlib.Path) -> None:
        self.digests: dict[str, str] = {}
        self._stamps: dict[str, int] = {}
        names: set[str] = set()
        left = {start}
        while left:
            path = left.pop()
            name = str(path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name)
            if name in self.digests:
                continue
            self.digests[name], imported = _read(path, self._note(path))
            self._note(path.parent)
            for cpp in (*path.parent.glob("*.cpp"), *path.parent.glob("*.hpp")):
                self._note(cpp)
                self.digests[f"{name} {cpp.name}"] = digest(cpp.read_text(encoding="utf-8"))
            new = set(imported) - names
            names |= new
            left |= {file for module in new if (file := _file(module)) is not None}

    def _note(self, path: pathlib.Path) -> int:
        """Note and return the modification time of a file or folder, before it is read."""
        name = os.fspath(path)
        return self._stamps.setdefault(name, _modified(name))

    @property
    def is_current(self) -> bool:
        """Whether no file has changed, and none was added to or removed from their folders."""
        return all(_modified(name) == stamp for name, stamp in self._stamps.items())


_codes: dict[pathlib.Path, _Code] = {}
"""By the file of the first module: what `_code` has found."""


def _modified(name: str) -> int:
    """Modification time of a file or folder; -1 if there is none."""
    try:
        return os.stat(name).st_mtime_ns  # noqa: PTH116, which takes twice as long
    except OSError:
        return -1


def _code(start: pathlib.Path) -> dict[str, str]:
    """Return the digests of `_Code`, whose files are read again only after a change."""
    known = _codes.get(start)
    if known is None or not known.is_current:
        known = _codes[start] = _Code(start)
    return known.digests


@functools.cache
def _versions() -> dict[str, str]:
    return {tool: metadata.version(tool) for tool in _TOOLS}


def cached_json(name: str, parameters: object, make: Callable[[], Any], *,
                code: object = None) -> Any:
    """Returns ``make()``, or reads it from disk if equal code and parameters have made it before.

    Parameters
    ----------
    name : str
        Beginning of the name of the file that keeps the result.
    parameters : object
        All values besides code on which the result depends; they must be serialisable to JSON.
    make : callable
        Returns the result, which must be serialisable to JSON.
    code : object, optional
        A function or class; by default ``make``. The result is made again if the module of this
        object changes, or a module that it imports directly or indirectly. Changes of
        `sim.verilated`, which only builds models, are ignored.
    """
    module = inspect.getmodule(make if code is None else code)
    digests = _code(pathlib.Path(module.__file__)) if module and module.__file__ else {}
    key = digest([digests, _versions(), parameters])
    text = kept_text("sources", f"{name}.json", key)
    if text is not None:
        return json.loads(text)
    with collecting_rarely():
        result = make()
    keep_text("sources", f"{name}.json", key, json.dumps(result))
    return result
