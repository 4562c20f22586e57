"""Cached results are made once for each set of parameters and each state of the code."""

import importlib
import linecache
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
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


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


def test_result_is_remade_when_the_code_has_changed(folder: pathlib.Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[str] = []
    for digest in ("old", "new", "old"):
        monkeypatch.setattr(cache, "_code_digest", lambda digest=digest: digest)
        results.append(cache.cached_json("grid", 1, Maker(f"{digest} {len(results)}")))
    assert results == ["old 0", "new 1", "old 0"]


def test_code_digest_sees_every_source_file_and_nothing_else(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROOT", tmp_path)

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    seen = [cache._code_digest()]
    for path, text in (("hdl/mxu/cell.py", "a = 1"), ("hdl/mxu/cell.py", "a = 2"),
                       ("sim/kernel/vec.hpp", ""), ("sim/models/cpp/mxu.cpp", ""),
                       ("sim/trace/other.py", "")):
        write(path, text)
        seen.append(cache._code_digest())
    (tmp_path / "sim/trace/other.py").rename(tmp_path / "sim/trace/renamed.py")
    seen.append(cache._code_digest())
    assert len(set(seen)) == len(seen)
    for path, text in (("hdl/notes.txt", "something"), ("hdl/mxu/cell.pyc", "something"),
                       ("setup.py", "something"), ("tools/docs/isa.py", "something"),
                       ("hdl/mxu/cell.py", '"""A cell."""\n\na = 2  # of two\n"""A number."""\n')):
        write(path, text)
        assert cache._code_digest() == seen[-1]


def test_result_is_remade_when_its_maker_has_changed(folder: pathlib.Path, tmp_path: pathlib.Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    results = []
    for number, text in enumerate(("return 1", "return 2", "return 2  # two")):
        (tmp_path / "maker.py").write_text(f"def make():\n    {text}\n")
        monkeypatch.delitem(sys.modules, "maker", raising=False)
        importlib.invalidate_caches()
        linecache.clearcache()
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
