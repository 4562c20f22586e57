"""The plugin's C++ library: built at first use, and called through ctypes."""

import ctypes
import pathlib
from collections.abc import Sequence

from hdl.store import digest, keep
from sim.verilated.objects import run_tool
from sim.verilated.toolchain import Toolchain

__all__ = ["CHIP", "COMPILER", "Job", "Kind", "Library", "build"]

_FOLDER = pathlib.Path(__file__).with_name("cpp")
_UNITS = ("client.cpp", "buffers.cpp", "executables.cpp")
_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-O2", "-shared", "-pthread")

CHIP, COMPILER = 0, 1
"""Queues of jobs: for the simulated chip, and for the compiler."""


class Kind:
    """Kinds of jobs, as in ``queue.hpp``."""

    COMPILE, EXECUTE, UPLOAD, DOWNLOAD, SHARE, RELEASE, UNLOAD = range(1, 8)


class Job(ctypes.Structure):
    """A job, as ``JobView`` of ``queue.hpp``; valid until the thread takes the next one."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("target", ctypes.c_int64),
        ("_numbers", ctypes.POINTER(ctypes.c_int64)),
        ("_count", ctypes.c_int64),
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("_more", ctypes.c_void_p),
        ("_more_bytes", ctypes.c_int64),
        ("handle", ctypes.c_void_p),
    )

    @property
    def numbers(self) -> list[int]:
        """The numbers that come with it."""
        return self._numbers[:self._count]

    @property
    def data(self) -> bytes:
        """A copy of the bytes that come with it."""
        return ctypes.string_at(self.address, self.bytes) if self.bytes else b""

    @property
    def more(self) -> bytes:
        """A copy of the second piece of bytes that come with it."""
        return ctypes.string_at(self._more, self._more_bytes) if self._more_bytes else b""


def build() -> pathlib.Path:
    """Return the path of the library; build it if the cache of `hdl.store` has none.

    Raises
    ------
    RuntimeError
        If there is no C++ compiler, or it fails; the message says what to install.
    """
    tools = Toolchain.find()
    sources = {path.name: path.read_text(encoding="utf-8")
               for path in sorted(_FOLDER.iterdir()) if path.suffix in (".cpp", ".hpp")}
    command = (*tools.cxx, *_FLAGS)

    def make(target: pathlib.Path) -> None:
        target.mkdir()
        run_tool([*command, *_UNITS, "-o", str(target / "systolith_pjrt.so"), "-ldl"], _FOLDER,
                 tools.environment(), target / "build.log")

    return keep("pjrt", "plugin", digest([sources, command, tools.identity()]), make) \
        / "systolith_pjrt.so"


class Library:
    """The functions that Python calls. Waiting calls release the interpreter's lock.

    Parameters
    ----------
    path : pathlib.Path
        The library; JAX loads the same file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._c = ctypes.CDLL(str(path))
        self._c.systolith_finish.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p,
                                             ctypes.c_size_t)
        self._c.systolith_finish.restype = None
        self._c.systolith_answer.argtypes = (
            ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64,
            ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int64))
        self._c.systolith_answer.restype = None
        self._c.systolith_note.argtypes = (ctypes.POINTER(ctypes.c_int64),)
        self._c.systolith_note.restype = None
        self._c.systolith_close.restype = None

    def describe(self, cores: int, kind: str, version: str) -> None:
        """Describe the chip; called once."""
        self._c.systolith_describe(cores, kind.encode(), version.encode())

    def next(self, queue: int, job: Job) -> bool:
        """Wait for the next job of a queue; False when it is closed."""
        return bool(self._c.systolith_next(queue, ctypes.byref(job)))

    def finish(self, job: Job, code: int = 0, message: str = "") -> None:
        """End a job, with an error if ``code`` is not 0."""
        text = message.encode()
        self._c.systolith_finish(job.handle, code, text, len(text))

    def answer(self, job: Job, numbers: Sequence[int], texts: Sequence[bytes]) -> None:
        """Return the result of a compilation; called before `finish`."""
        self._c.systolith_answer(
            job.handle, (ctypes.c_int64 * len(numbers))(*numbers), len(numbers),
            (ctypes.c_char_p * len(texts))(*texts),
            (ctypes.c_int64 * len(texts))(*map(len, texts)))

    def note_memory(self, *stats: int) -> None:
        """Note bytes of HBM: in use, most in use, allocations, largest, limit, largest free."""
        self._c.systolith_note((ctypes.c_int64 * 6)(*stats))

    def close(self, reason: str) -> None:
        """Make all jobs that have not begun, and all later ones, fail."""
        self._c.systolith_close(reason.encode())
