"""A cache on disk, of limited size, for files generated from the design: sources, objects, models.

All checkouts and installations of a user share the cache, and several users can share one. An entry
is a file or a folder. Its name contains a digest of all inputs that it was made from, so an entry
is never out of date. It never changes, except by `change_text`. When the cache outgrows its limit,
the least recently used entries are removed, except those that a running process uses.

Two environment variables override defaults:

``SYSTOLITH_BUILD``
    The folder of the cache. Default: ``systolith`` in the user's cache, which is
    ``$XDG_CACHE_HOME`` or ``~/.cache``.
``SYSTOLITH_CACHE_GB``
    The limit of the cache's size, in units of 10^9 bytes. Default: 5.
"""

import contextlib
import fcntl
import gc
import hashlib
import json
import math
import os
import pathlib
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator

__all__ = ["cache_folder", "change_text", "collecting_rarely", "digest", "entry", "keep",
           "keep_text", "kept_text", "size_limit"]

_DEFAULT_GB = "5"
_LOCK = ".lock"
_PARTIAL = ".partial-"
_SCAN_SHARE = 50
"""A process measures the whole cache whenever it has added 1 / _SCAN_SHARE of the size limit."""

_used: dict[pathlib.Path, contextlib.ExitStack] = {}
"""Entries that this process uses until it ends, each with the context that holds its lock."""
_guard = threading.Lock()
_RARELY = 50_000, 20, 50
"""Least thresholds of `gc.set_threshold` in `collecting_rarely`."""
_collecting = 0
"""Number of open contexts of `collecting_rarely`."""
_thresholds = [0, 0, 0]
"""Thresholds to which the last of them returns."""


class _Added:
    """Bytes that this process has added since it last measured the size of the whole cache."""

    bytes = math.inf


def cache_folder() -> pathlib.Path:
    """Return the path of the cache's folder, which need not exist yet.

    Raises
    ------
    RuntimeError
        If the path contains white space, which make does not support.
    """
    chosen = os.environ.get("SYSTOLITH_BUILD")
    if chosen:
        folder = pathlib.Path(chosen).resolve()
    else:
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "relative")
        # As the XDG standard says: a relative path counts as none.
        folder = (cache if cache.is_absolute() else pathlib.Path.home() / ".cache") / "systolith"
    if len(str(folder).split()) != 1:
        raise RuntimeError(f"the build folder must have no white space in its path, not "
                           f"{str(folder)!r}: set SYSTOLITH_BUILD to another one")
    return folder


def size_limit() -> int:
    """Return the limit of the cache's size in bytes; a larger cache is shrunk.

    Raises
    ------
    RuntimeError
        If ``SYSTOLITH_CACHE_GB`` is not a positive number.
    """
    chosen = os.environ.get("SYSTOLITH_CACHE_GB") or _DEFAULT_GB
    try:
        limit = float(chosen) * 1e9
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise RuntimeError(f"SYSTOLITH_CACHE_GB must be a positive number, not {chosen!r}")
    return int(limit)


def digest(content: object) -> str:
    """Return 32 hex digits, a digest of ``content``, which JSON must be able to represent."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def kept_text(kind: str, name: str, key: str) -> str | None:
    """Return the text that `keep_text` stored under the same arguments, or None."""
    path = _path(kind, name, key)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    _touch(path)
    return text


def keep_text(kind: str, name: str, key: str, text: str) -> None:
    """Store ``text`` in the cache, if the entry does not exist yet.

    ``kind``, ``name`` and ``key`` are those of the function `entry`; `kept_text` returns the text.
    """
    path = _path(kind, name, key)
    _make_folder(path.parent)
    with _building(path) as first:
        if not path.exists():
            _make(path, lambda partial: partial.write_text(text, encoding="utf-8"), first)
            _count(path)


def change_text(kind: str, name: str, key: str, change: Callable[[str], str]) -> None:
    """Replace an entry's text by ``change(text)``; ``text`` is "" if the entry does not exist.

    ``kind``, ``name`` and ``key`` are those of the function `entry`; `kept_text` returns the text.
    Concurrent changes are made one after the other. The text of such an entry records what is
    known about the inputs that ``key`` describes; a change adds to it or withdraws a part of it.
    """
    path = _path(kind, name, key)
    _make_folder(path.parent)
    with _building(path) as first:
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = change(old)
        if new != old:
            _make(path, lambda partial: partial.write_text(new, encoding="utf-8"), first)
            _count(path)


def keep(kind: str, name: str, key: str, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """Return the path of an entry, and keep it in the cache until this process ends.

    Arguments are those of `entry`.
    """
    path = _path(kind, name, key)
    if path not in _used or not path.exists():
        with contextlib.ExitStack() as use:
            use.enter_context(entry(kind, name, key, make))
            _used[path] = use.pop_all()
    return path


@contextlib.contextmanager
def entry(kind: str, name: str, key: str,
          make: Callable[[pathlib.Path], object]) -> Iterator[pathlib.Path]:
    """Context manager that makes an entry, if it does not exist yet, and returns its path.

    The entry is not removed while the context is open. Of concurrent callers, in this process or
    others, one makes the entry, and the others wait. If that process is killed, the next caller
    makes the entry again. If ``make`` fails, its files, such as a log, stay until the next attempt.

    Parameters
    ----------
    kind : str
        Folder of the entry within the cache.
    name : str
        Stem and extension of the entry's file name; the digest is inserted between the two.
    key : str
        A `digest` of all inputs on which the entry depends.
    make : callable
        Creates the entry, a file or a folder, at the path that it is called with.
    """
    path = _path(kind, name, key)
    _make_folder(path.parent)
    with contextlib.ExitStack() as use:
        while True:
            with contextlib.suppress(FileNotFoundError):
                use.enter_context(_held(path, fcntl.LOCK_SH))
                break
            with _building(path) as first:
                if not path.exists():
                    _make(path, make, first)
                    _count(path)
        _touch(path)
        yield path


def _path(kind: str, name: str, key: str) -> pathlib.Path:
    stem, dot, extension = name.partition(".")
    return cache_folder() / kind / f"{stem}-{key}{dot}{extension}"


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Context manager in which Python collects garbage less often.

    Elaboration and compilation make many objects that stay until the end; with Python's default,
    a quarter and a sixth of their time goes into looking for garbage among them.
    """
    global _collecting  # noqa: PLW0603
    with _guard:
        if not _collecting:
            _thresholds[:] = gc.get_threshold()
            # A threshold of 0 means never.
            gc.set_threshold(*(old and max(old, least)
                               for old, least in zip(_thresholds, _RARELY, strict=True)))
        _collecting += 1
    try:
        yield
    finally:
        with _guard:
            _collecting -= 1
            if not _collecting:
                gc.set_threshold(*_thresholds)


def _make_folder(folder: pathlib.Path) -> None:
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    # Users who may write to the cache may write to each of its folders.
    with contextlib.suppress(PermissionError):
        folder.chmod(folder.parent.stat().st_mode & 0o7777)


def _make(path: pathlib.Path, make: Callable[[pathlib.Path], object], first: bool) -> None:
    """Create the entry ``path`` by ``make``, as in `entry`; the caller holds its lock.

    Unless this is the ``first`` attempt, remove what earlier attempts left.
    """
    # Reading a folder of thousands of entries takes longer than writing a small one.
    for left in () if first else path.parent.glob(f"{path.name}{_PARTIAL}*"):
        _remove(left)
    # A new name: compilers that outlived a killed build may still write to the old one.
    partial = _partial(path)
    with collecting_rarely():
        make(partial)
    # Renamed into place, so that a killed process leaves no incomplete entry.
    partial.rename(path)


def _partial(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}{_PARTIAL}{secrets.token_hex(4)}")


def _lock_file(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}{_LOCK}")


def _touch(path: pathlib.Path) -> None:
    """Set an entry's modification time to now, which records its last use."""
    # It may be another user's, or on a read-only file system, or be removed at any moment.
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


@contextlib.contextmanager
def _held(file: pathlib.Path, operation: int) -> Iterator[None]:
    """Hold a lock of an existing file or folder: `flock` with the flags ``operation``.

    If the process is killed, the system releases the lock.

    Raises
    ------
    FileNotFoundError
        If the file or folder does not exist, or is removed before the lock is taken.
    BlockingIOError
        If ``operation`` includes LOCK_NB, and another holder has the lock.
    """
    # For reading only: another user's file may be locked but not written.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, operation)
        if not os.path.samestat(file.stat(), os.fstat(descriptor)):
            raise FileNotFoundError(file)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _building(path: pathlib.Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock under which the entry ``path`` may be made or removed.

    Return whether nobody held it before, as far as is known.

    Raises
    ------
    BlockingIOError
        If ``wait`` is false, and another holder has the lock.
    """
    file = _lock_file(path)
    first = False
    with contextlib.ExitStack() as lock:
        while True:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(file, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o666))
                first = True
            with contextlib.suppress(FileNotFoundError):
                lock.enter_context(_held(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)))
                break
        yield first


def _count(path: pathlib.Path) -> None:
    """Add the size of a new entry to `_Added`; shrink the cache if enough has been added."""
    limit = size_limit()
    with _guard:
        _Added.bytes += _size(path)
        if _Added.bytes < limit / _SCAN_SHARE:
            return
        _Added.bytes = 0
    _shrink(cache_folder(), limit, path)


def _size(path: pathlib.Path) -> int:
    """Return the disk space of an entry in bytes; files that no longer exist count 0."""
    with contextlib.suppress(FileNotFoundError):
        if not path.is_dir():
            return path.lstat().st_blocks * 512
        with os.scandir(path) as files:
            return sum(_size(pathlib.Path(file.path)) for file in files)
    return 0


def _shrink(folder: pathlib.Path, limit: int, new: pathlib.Path) -> None:
    """Remove the least recently used entries until the cache has at most ``limit`` bytes.

    The entry ``new`` and entries in use are kept.
    """
    found = []
    for path in folder.glob("*/*"):
        # Reports and the like may share the folder: an entry's name ends with its digest.
        if len(path.name.partition(".")[0].rpartition("-")[2]) != len(digest(0)):
            continue
        if path.suffix == _LOCK:
            continue
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime_ns, _size(path), path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit:
            break
        if path != new and _evict(path):
            total -= size


def _evict(path: pathlib.Path) -> bool:
    """Remove an entry unless a process uses or makes it; return whether it was removed."""
    made, partial, _ = path.name.partition(_PARTIAL)
    try:
        with _building(path.with_name(made), wait=False):
            if partial:
                _remove(path)
                return True
            with _held(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                # Renamed first, so that a killed process leaves nothing that looks complete.
                gone = _partial(path)
                path.rename(gone)
            _remove(gone)
            _remove(_lock_file(path))
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return False
    return True
