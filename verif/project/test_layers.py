"""Imports point one way: from the public names down to the hardware's description."""

import ast
import pathlib
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

LAYERS = (
    ("hdl",),
    ("golden",),
    ("sim.closing", "sim.errors", "sim.asm", "sim.kernel", "sim.verilated"),
    ("sim.compiler", "sim.trace"),
    ("sim.models", "sim.serial"),
    ("sim.driver",),
    ("sim.jit", "sim.pjrt"),
    ("sim.apps",),
    ("systolith",),
    ("tools", "verif"),
)
"""Packages from the lowest layer to the highest; a module imports only lower layers and its own."""

GOLDEN_FROM_HDL = ("hdl.isa", "hdl.encoding", "hdl.dma.format", "hdl.config", "hdl.checks",
                   "hdl.fpga.protocol", "hdl.link.format", "hdl.vpu.tables")
"""Modules of `hdl` that the golden model may import: definitions, and no datapath."""

PACKAGES = ("hdl", "golden", "sim", "systolith", "tools", "verif")


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def layer(module: str) -> int | None:
    """Index of a module's layer; None for a package that only groups others."""
    for index, packages in enumerate(LAYERS):
        if any(within(module, package) for package in packages):
            return index
    return None


def imports(module: str, text: str, modules: Iterable[str], *, is_package: bool) -> set[str]:
    """Modules of the project that a module's text imports, anywhere in it."""
    known = set(modules)
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - is_package
                parents = module.split(".")[:len(module.split(".")) - up]
                base = ".".join([*parents, base] if base else parents)
            # A name may be a module of the package or something that the package defines.
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in known else base for name in names}
    return found & known


def read_imports(root: pathlib.Path) -> dict[str, set[str]]:
    """Imports of all modules below a folder, by module."""
    paths = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {module: imports(module, path.read_text(encoding="utf-8"), paths,
                            is_package=path.name == "__init__.py")
            for module, path in paths.items()}


def violations(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Imports that point upwards or sideways where they must not, and cycles."""
    found = []
    for module, targets in sorted(graph.items()):
        for target in sorted(targets):
            source_layer, target_layer = layer(module), layer(target)
            if source_layer is None:
                found.append(f"{module} groups packages and must not import {target}")
            elif target_layer is None or target_layer > source_layer:
                found.append(f"{module} must not import {target}, which is above it")
            elif within(target, "verif") and not within(module, "verif"):
                found.append(f"{module} must not import the tests' {target}")
            elif within(module, "golden") and within(target, "hdl") and not any(
                    within(target, shared) for shared in GOLDEN_FROM_HDL):
                found.append(f"{module} must share definitions with hdl, not {target}")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found.append(f"cycle of imports: {' -> '.join(error.args[1])}")
    return found


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return read_imports(ROOT)


def test_imports_point_down_and_have_no_cycle(graph: dict[str, set[str]]) -> None:
    assert len(graph) > 100
    assert sum(map(len, graph.values())) > 300
    assert violations(graph) == []


def test_every_module_has_a_layer(graph: dict[str, set[str]]) -> None:
    grouping = {module for module in graph if layer(module) is None}
    assert grouping == {"sim"}


@pytest.mark.parametrize(("module", "target", "message"), [
    ("hdl.core.core", "golden.core", "hdl.core.core must not import golden.core, which is above"),
    ("sim.models.chip", "sim.driver.device", "must not import sim.driver.device, which is above"),
    ("sim.compiler.executable", "sim.models.core",
     "must not import sim.models.core, which is above"),
    ("tools.bench", "verif.golden.oracle", "must not import the tests' verif.golden.oracle"),
    ("golden.core", "hdl.core.core", "golden.core must share definitions with hdl, not"),
    ("sim", "sim.errors", "sim groups packages and must not import sim.errors"),
    ("sim.errors", "sim", "sim.errors must not import sim, which is above it"),
])
def test_import_in_the_wrong_direction_is_found(module: str, target: str, message: str) -> None:
    [found] = violations({module: [target], target: []})
    assert message in found


def test_cycle_is_found() -> None:
    graph = {"hdl.sram": ["hdl.tiles"], "hdl.tiles": ["hdl.config"], "hdl.config": ["hdl.sram"]}
    [found] = violations(graph)
    assert found.startswith("cycle of imports: ")


@pytest.mark.parametrize(("text", "found"), [
    ("import hdl.core.scalar", {"hdl.core.scalar"}),
    ("from hdl.core import scalar", {"hdl.core.scalar"}),
    ("from hdl.core import thing", {"hdl.core"}),
    ("from .scalar import ScalarAlu", {"hdl.core.scalar"}),
    ("from . import scalar, thing", {"hdl.core.scalar", "hdl.core"}),
    ("from ..tiles import instantiate", {"hdl.tiles"}),
    ("def late():\n    from ..tiles import instantiate\n", {"hdl.tiles"}),
    ("import numpy as np", set()),
])
def test_all_forms_of_import_are_read(text: str, found: set[str]) -> None:
    modules = ["hdl.core", "hdl.core.core", "hdl.core.scalar", "hdl.tiles"]
    assert imports("hdl.core.core", text, modules, is_package=False) == found


def test_package_imports_its_own_modules() -> None:
    modules = ["hdl.core", "hdl.core.core"]
    assert imports("hdl.core", "from .core import Core", modules, is_package=True) == {
        "hdl.core.core"}
