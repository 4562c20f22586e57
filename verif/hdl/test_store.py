"""The cache: what it keeps, what it drops, and what several processes see of it."""

import errno
import gc
import math
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hdl import store

BLOCK = 1 << 16


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty cache that enforces its size limit after each new entry."""
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "_SCAN_SHARE", math.inf)
    return tmp_path / "cache"


def make(path: pathlib.Path) -> None:
    path.mkdir()
    (path / "data").write_bytes(bytes(BLOCK))


def add(key: int, used: int) -> pathlib.Path:
    """An entry that was last used at a time, in seconds."""
    with store.entry("things", "thing", store.digest(key), make) as path:
        pass
    os.utime(path, (used, used))
    return path


def limit(monkeypatch: pytest.MonkeyPatch, entries: float) -> None:
    monkeypatch.setenv("SYSTOLITH_CACHE_GB", str(entries * BLOCK / 1e9))


def test_least_recently_used_entries_go_first(folder: pathlib.Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [add(key, used) for key, used in enumerate((30, 10, 40, 20))]
    limit(monkeypatch, 3.5)
    new = add(9, 50)
    assert [path.exists() for path in paths] == [True, False, True, False]
    assert (new / "data").stat().st_size == BLOCK
    assert {path.name.partition(".")[0] for path in (folder / "things").iterdir()} == {
        path.name for path in (paths[0], paths[2], new)}


def test_use_makes_an_entry_recent(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [add(key, used) for key, used in enumerate((10, 20))]
    with store.entry("things", "thing", store.digest(0), make) as again:
        assert again == paths[0]
    store.keep_text("texts", "old.v", store.digest(1), "x" * BLOCK)
    store.keep_text("texts", "new.v", store.digest(2), "y" * BLOCK)
    for text in (folder / "texts").glob("*.v"):
        os.utime(text, (5, 5))
    assert store.kept_text("texts", "new.v", store.digest(2)) == "y" * BLOCK
    limit(monkeypatch, 3.5)
    add(2, 30)
    assert [path.exists() for path in paths] == [True, False]
    assert store.kept_text("texts", "old.v", store.digest(1)) is None
    assert store.kept_text("texts", "new.v", store.digest(2)) is not None


HOLDER = """\
import sys
from hdl import store
path = store.keep("things", "thing", store.digest(int(sys.argv[1])), None)
print(path, flush=True)
sys.stdin.read()
"""


def test_entries_on_a_read_only_file_system_are_used(folder: pathlib.Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    key = store.digest(1)
    store.keep_text("texts", "text.txt", key, "kept")
    path = add(1, used=10)

    def fail(*arguments: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", fail)
    assert store.kept_text("texts", "text.txt", key) == "kept"
    with store.entry("things", "thing", key, make) as found:
        assert found == path


def test_entry_in_use_by_a_process_stays(folder: pathlib.Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [add(key, used) for key, used in enumerate((10, 20))]
    with subprocess.Popen([sys.executable, "-c", HOLDER, "0"], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == str(paths[0])
        os.utime(paths[0], (1, 1))
        limit(monkeypatch, 0.5)
        add(2, 30)
        assert [path.exists() for path in paths] == [True, False]
        holder.stdin.close()
    add(3, 40)
    assert not paths[0].exists()


def test_what_is_no_entry_stays(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "random").mkdir(parents=True)
    (folder / "random" / "tiny-1.txt").write_text("x" * BLOCK)
    (folder / "report.json").write_text("{}")
    limit(monkeypatch, 0.5)
    add(1, 10)
    assert (folder / "random" / "tiny-1.txt").exists()
    assert (folder / "report.json").exists()


def test_remains_of_a_killed_build_go(folder: pathlib.Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: pathlib.Path) -> None:
        make(path)
        raise KeyboardInterrupt

    for key in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            store.keep("things", "thing", store.digest(key), fail)
    assert len(list(folder.glob("things/*.partial-*"))) == 2
    path = add(1, 10)
    assert path.exists()
    (partial,) = folder.glob("things/*.partial-*")
    os.utime(partial, (5, 5))
    limit(monkeypatch, 2)
    add(3, 20)
    assert not partial.exists()
    assert path.exists()


def test_concurrent_callers_make_an_entry_once(folder: pathlib.Path) -> None:
    made = []

    def count(path: pathlib.Path) -> None:
        made.append(path)
        make(path)

    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(
            lambda _: store.keep("things", "thing", store.digest(1), count), range(8)))
    assert len(made) == len(paths) == 1


def test_removed_cache_is_made_anew(folder: pathlib.Path) -> None:
    path = store.keep("things", "thing", store.digest(1), make)
    (path / "data").unlink()
    path.rmdir()
    assert store.keep("things", "thing", store.digest(1), make) == path
    assert (path / "data").exists()


def test_folders_of_a_cache_that_a_group_shares_belong_to_the_group(folder: pathlib.Path) -> None:
    folder.mkdir()
    folder.chmod(0o2775)
    add(1, 10)
    assert (folder / "things").stat().st_mode & 0o7777 == 0o2775


@pytest.mark.parametrize("chosen", ["many", "0", "-1", "nan", "inf"])
def test_limit_must_be_a_positive_number(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv("SYSTOLITH_CACHE_GB", chosen)
    with pytest.raises(RuntimeError,
                       match=f"SYSTOLITH_CACHE_GB must be a positive number, not '{chosen}'"):
        store.size_limit()


def test_default_limit_is_some_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen in ("", None):
        if chosen is None:
            monkeypatch.delenv("SYSTOLITH_CACHE_GB")
        else:
            monkeypatch.setenv("SYSTOLITH_CACHE_GB", chosen)
        assert store.size_limit() == 5e9


def test_garbage_is_collected_rarely_while_an_entry_is_made(folder: pathlib.Path) -> None:
    found = []

    def made(path: pathlib.Path) -> None:
        found.append(gc.get_threshold())
        make(path)
        if len(found) == 1:
            add(2, 0)
            found.append(gc.get_threshold())

    before = gc.get_threshold()
    try:
        for thresholds in ((700, 10, 100), (0, 30, 10)):
            gc.set_threshold(*thresholds)
            with store.entry("things", "thing", store.digest(thresholds), made):
                assert gc.get_threshold() == thresholds
    finally:
        gc.set_threshold(*before)
    assert found == [(50_000, 20, 100), (50_000, 20, 100), (0, 30, 50)]
    with pytest.raises(ZeroDivisionError), store.collecting_rarely():
        raise ZeroDivisionError
    assert gc.get_threshold() == before
