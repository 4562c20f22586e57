"""Cached results are computed once for each set of parameters and each state of the code."""

import importlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Mapping

import pytest

from sim.verilated import cache


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty build folder."""
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    return tmp_path / "build"


class Maker:
    """Returns its result and counts its calls."""

    def __init__(self, result: object) -> None:
        self.result = result
        self.calls = 0

    def __call__(self) -> object:
        self.calls += 1
        return self.result


def files(folder: pathlib.Path) -> list[str]:
    """Names of the kept results."""
    return sorted(path.name for path in (folder / "sources").rglob("*")
                  if path.is_file() and path.suffix != ".lock")


def test_result_is_reused_for_equal_parameters(folder: pathlib.Path) -> None:
    first = Maker({"cell": "module cell;", "sizes": [1, 2]})
    second = Maker("never asked for")
    assert cache.cached_json("grid", {"rows": 2, "cols": 3}, first) == first.result
    assert cache.cached_json("grid", {"cols": 3, "rows": 2}, second) == first.result
    assert (first.calls, second.calls) == (1, 0)
    (name,) = files(folder)
    assert name.startswith("grid-")


@pytest.mark.parametrize(("name", "parameters"), [
    ("grid", {"rows": 3}), ("grid", {"rows": "2"}), ("grid", {}), ("lane", {"rows": 2})])
def test_result_is_made_for_other_parameters(folder: pathlib.Path, name: str,
                                             parameters: Mapping[str, int | str]) -> None:
    first, second = Maker("first"), Maker("second")
    cache.cached_json("grid", {"rows": 2}, first)
    assert cache.cached_json(name, parameters, second) == "second"
    assert cache.cached_json("grid", {"rows": 2}, second) == "first"
    assert (first.calls, second.calls) == (1, 1)
    assert len(files(folder)) == 2


def test_result_depends_on_what_its_maker_imports_and_on_nothing_else(
        folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    monkeypatch.setattr(cache, "_ROOT", project)
    monkeypatch.syspath_prepend(project)
    calls: list[int] = []

    def write(path: str, text: str) -> None:
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
        os.utime(project / path, ns=(len(calls), len(calls)))

    def remade() -> bool:
        """Imports the module and calls it; returns whether the result was made anew."""
        spec = importlib.util.spec_from_file_location("maker", project / "hdl/maker.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "maker", module)
        spec.loader.exec_module(module)
        before = len(calls)
        cache.cached_json("grid", 1, lambda: calls.append(1), code=module.make)
        return len(calls) > before

    write("hdl/maker.py", "import numpy\ndef make():\n    from .mxu import cell\n"
                          "    from sim.kernel import emit\n    import sim.verilated.build\n")
    for path, text in (("hdl/mxu/cell.py", "import hdl.isa\n"), ("hdl/mxu/lane.py", ""),
                       ("hdl/isa.py", "A = 1\n"), ("sim/kernel/__init__.py", "import sim.tree\n"),
                       ("sim/tree.py", ""), ("sim/kernel/emit.py", ""), ("sim/kernel/vec.hpp", ""),
                       ("sim/verilated/build.py", "")):
        write(path, text)
    assert remade()
    for path, text in (("hdl/mxu/cell.py", "import hdl.isa\nB = 2\n"), ("hdl/isa.py", "A = 2\n"),
                       ("sim/kernel/emit.py", "C = 3\n"), ("sim/tree.py", "D = 4\n"),
                       ("sim/kernel/vec.hpp", "int x;\n")):
        write(path, text)
        assert remade(), path
        assert not remade(), path
    for path, text in (("hdl/mxu/lane.py", "E = 5\n"), ("sim/verilated/build.py", "F = 6\n"),
                       ("tools/docs/isa.py", "G = 7\n"), ("verif/hdl/test_isa.py", "H = 8\n"),
                       ("hdl/isa.py", '"""Codes."""\n\nA = 2  # of two\n"""A number."""\n')):
        write(path, text)
        assert not remade(), path


def test_code_is_read_again_only_after_a_change(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROOT", tmp_path)
    module, header = tmp_path / "hdl" / "cell.py", tmp_path / "hdl" / "vec.hpp"
    module.parent.mkdir()
    module.write_text("A = 1\n")
    found = cache._code(module)
    assert list(found) == ["hdl/cell.py"]
    assert cache._code(module) is found
    header.write_text("int x;\n")
    os.utime(module.parent, ns=(1, 1))  # the clock of a file system can be coarse
    added = cache._code(module)
    assert list(added) == ["hdl/cell.py", "hdl/cell.py vec.hpp"]
    assert cache._code(module) is added
    header.write_text("int y;\n")
    os.utime(header, ns=(2, 2))
    assert cache._code(module) not in (added, found)
    header.unlink()
    assert cache._code(module) == found


def test_a_module_is_parsed_once(folder: pathlib.Path, tmp_path: pathlib.Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """`_read` without its cache in memory, as in another process, finds the stored names."""
    module = tmp_path / "hdl" / "cell.py"
    module.parent.mkdir()
    module.write_text("from .mxu import cell\nimport hdl.isa\n")
    monkeypatch.setattr(cache, "_ROOT", tmp_path)
    found = cache._read.__wrapped__(module, 0)
    assert found[1] == ("hdl.mxu", "hdl.mxu.cell", "hdl.isa")
    with monkeypatch.context() as context:
        context.setattr(cache, "_parse", lambda source: pytest.fail("parsed again"))
        assert cache._read.__wrapped__(module, 1) == found
    # A relative import in another folder is another module.
    moved = module.parent / "mxu" / "cell.py"
    moved.parent.mkdir()
    moved.write_text(module.read_text())
    assert cache._read.__wrapped__(moved, 0)[1][0] == "hdl.mxu.mxu"
    # A cache that cannot be written is no error.
    def fail(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(cache, "keep_text", fail)
    module.write_text("import hdl.dma\n")
    assert cache._read.__wrapped__(module, 2)[1] == ("hdl.dma",)
    assert list(folder.iterdir()) == [folder / "code"]


def test_result_is_remade_when_its_maker_has_changed(folder: pathlib.Path, tmp_path: pathlib.Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    results = []
    for number, text in enumerate(("return 1", "return 2", "return 2  # two")):
        (tmp_path / "maker.py").write_text(f"def make():\n    {text}\n")
        monkeypatch.delitem(sys.modules, "maker", raising=False)
        importlib.invalidate_caches()
        os.utime(tmp_path / "maker.py", (number, number))
        results.append(cache.cached_json("grid", 1, importlib.import_module("maker").make))
    assert results == [1, 2, 2]
    assert len(files(folder)) == 2


def test_failure_to_make_leaves_nothing_behind(folder: pathlib.Path) -> None:
    def fail() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        cache.cached_json("grid", 1, fail)
    assert files(folder) == []
    assert cache.cached_json("grid", 1, Maker("made")) == "made"


def test_result_that_json_cannot_hold_is_not_kept(folder: pathlib.Path) -> None:
    # JSON can hold the beginning of the list, but not the set.
    with pytest.raises(TypeError, match="set is not JSON serializable"):
        cache.cached_json("grid", 1, Maker(["beginning", set()]))
    assert not [name for name in files(folder) if name.startswith("grid-")]
    assert cache.cached_json("grid", 1, Maker("made")) == "made"
