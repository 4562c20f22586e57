"""Compiled programs on disk."""

import ast
import itertools
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from hdl import store
from hdl.config import Config
from sim.compiler.graph.ir import Graph, Location
from sim.compiler.program import cache, compiled
from sim.compiler.program.cache import compile_cached, digest
from sim.compiler.program.compiled import compiled_of, load, save
from sim.compiler.program.driver import compile_graph
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, arrays_for, f32, s32


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    monkeypatch.delenv("SYSTOLITH_DUMP", raising=False)


def kept() -> list[pathlib.Path]:
    """The files of compiled programs in the cache."""
    return sorted((store.cache_folder() / "programs").glob("*.npz"))


def example(constant: float = 2, kind: str = "add", shape: tuple[int, ...] = (3, 5),
            line: int = 7) -> Graph:
    m = Maker(f32(*shape), s32(2))
    table = np.arange(m.inputs[0].type.size, dtype=np.float32).reshape(shape) + constant
    total = m.op(kind, m.inputs[0], m.constant(table, f32(*shape)))
    m.graph.operations[-1].location = Location("model.py", line, "total")
    return m.returns(total, m.inputs[1])


def run(executable: compiled.Executable) -> list[np.ndarray]:
    with Device.open("tiny", "golden") as device:
        return list(device.execute(executable, *arrays_for(example())))


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other) == 2
    for first, second in zip(one, other, strict=True):
        assert first.dtype == second.dtype
        assert np.array_equal(first, second)


def refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("nothing must be compiled")


def test_saved_program_is_the_same(tmp_path: pathlib.Path) -> None:
    made = compile_graph(example(), TINY, name="sum of a table")
    path = tmp_path / "program.npz"
    save(compiled_of(made), path)
    read = load(path)
    assert read.name == "sum of a table"
    assert read.config == TINY
    assert read.kernels == compiled_of(made).kernels
    assert read.kernels[0].location == Location("model.py", 7, "total")
    assert_same(run(read.executable()), run(made))
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["program.npz"]


@pytest.mark.parametrize("spoil", [
    lambda data: data[:len(data) // 2], lambda data: b"", lambda data: b"PK" + data[40:],
    lambda data: data[:200] + bytes(400) + data[600:]])
def test_damaged_file_is_refused_and_not_used(tmp_path: pathlib.Path,
                                                    spoil: Callable[[bytes], bytes]) -> None:
    first = compile_cached(example(), TINY)
    [path] = kept()
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ValueError, match="must be a compiled program"):
        load(path)
    assert_same(run(compile_cached(example(), TINY)), run(first))
    # The file is gone, so that a later run replaces it.
    assert kept() == []
    compile_cached(example(), TINY)
    [path] = kept()
    assert load(path).name == compiled_of(first).name


@pytest.mark.parametrize("description", [b"[1]", b'{"format": 3}', b'{"format": 1}',
                                         b'{"format": 2}'])
def test_file_of_another_shape_is_refused(tmp_path: pathlib.Path, description: bytes) -> None:
    path = tmp_path / "program.npz"
    np.savez(path, description=np.frombuffer(description, np.uint8), rows0=np.zeros(3))
    with pytest.raises(ValueError, match="must be a compiled program"):
        load(path)


def test_equal_graph_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cached(example(), TINY)
    monkeypatch.setattr(cache, "compile_graph", refuse)
    assert_same(run(compile_cached(example(), TINY)), run(first))


def test_dump_compiles_in_any_case(monkeypatch: pytest.MonkeyPatch,
                                   tmp_path: pathlib.Path) -> None:
    compile_cached(example(), TINY)
    monkeypatch.setenv("SYSTOLITH_DUMP", str(tmp_path / "dump"))
    compile_cached(example(), TINY)
    texts = sorted(path.name for path in (tmp_path / "dump" / "main").iterdir())
    assert texts[0] == "00-graph.txt"
    assert len(texts) > 1


def test_digest_depends_on_all_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [digest(example(), TINY), digest(example(constant=3), TINY),
             digest(example(kind="subtract"), TINY), digest(example(shape=(5, 3)), TINY),
             digest(example(line=8), TINY), digest(example(), TINY, "other"),
             digest(example(), Config.preset("small"))]
    monkeypatch.setattr(cache, "source_digest", lambda: b"another compiler")
    found.append(digest(example(), TINY))
    assert len(set(found)) == len(found)
    assert digest(example(), TINY) == found[-1]


def test_digest_of_the_compiler_changes_with_its_code_alone(
        tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROOT", tmp_path)
    monkeypatch.setattr(cache, "_SOURCES", ("golden", "one.py"))
    (tmp_path / "golden").mkdir()
    texts = {"golden/a.py": "A = 1\n", "one.py": "B = 2\n"}
    times = itertools.count()

    def changed(name: str, text: str) -> bytes:
        for file, content in (texts | {name: text}).items():
            (tmp_path / file).write_text(content)
            os.utime(tmp_path / file, (time := next(times), time))
        return cache.source_digest.__wrapped__()

    same = changed("one.py", texts["one.py"])
    assert changed("one.py", '"""Numbers."""\n\nB = 2  # of two\n') == same
    others = {changed("one.py", "B = 3\n"), changed("golden/a.py", "A = 2\n"),
              changed("golden/b.py", "")}
    assert len(others | {same}) == 4


def test_sources_of_the_compiler_are_all_in_the_digest() -> None:
    imported = set()
    for folder in ("kernels", "machine", "passes", "program"):
        for file in (cache._ROOT / "sim/compiler" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    imported.add(node.module)
                    imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    files = {path for name in imported if name.split(".")[0] in ("hdl", "golden")
             if (cache._ROOT / (path := name.replace(".", "/") + ".py")).is_file()}
    # The folder of the cache does not change what is in it.
    missing = {path for path in files - {"hdl/store.py"}
               if not any(path == source or path.startswith(source + "/")
                          for source in cache._SOURCES)}
    assert len(files) > 5
    assert missing == set()


def test_interrupted_save_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(file: object, **parts: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiled.np, "savez", stop)
        with pytest.raises(KeyboardInterrupt):
            compile_cached(example(), TINY)
    assert kept() == []
    compile_cached(example(), TINY)
    assert len(kept()) == 1


def test_disk_that_refuses_does_not_prevent_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(cache, "save", full)
    assert_same(run(compile_cached(example(), TINY)), run(compile_graph(example(), TINY)))
    assert kept() == []


def test_error_of_the_compiler_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Graph, config: Config, **options: object) -> None:
        calls.append(graph)
        raise ValueError("after fuse: wrong")

    calls: list[Graph] = []
    monkeypatch.setattr(cache, "compile_graph", fail)
    with pytest.raises(ValueError, match="after fuse"):
        compile_cached(example(), TINY)
    assert len(calls) == 1


KILLED = """\
import os, signal
from sim.compiler.program import cache
from verif.sim.compiler.program.test_cache import TINY, example

def half(compiled, path):
    path.write_bytes(b"PK half a program")
    os.kill(os.getpid(), signal.SIGKILL)

cache.save = half
cache.compile_cached(example(), TINY)
"""


def test_a_compiler_that_is_killed_leaves_no_program() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not kept()
    made = compile_cached(example(), TINY)
    assert len(kept()) == 1
    assert_same(run(made), run(compile_graph(example(), TINY)))
    assert_same(run(made), run(compile_cached(example(), TINY)))
