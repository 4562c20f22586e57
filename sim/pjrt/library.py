"""The plugin's C++ library: built at first use, and called through ctypes."""

import ctypes
import pathlib
from collections.abc import Sequence

from hdl.store import digest, keep
from sim.verilated.objects import run_tool
from sim.verilated.toolchain import Toolchain

__all__ = ["CHIP", "COMPILER", "Job", "Kind", "Library", "build"]

_FOLDER = pathlib.Path(__file__).with_name("cpp")
_SOURCES = ("-include", "client.cpp", "-include", "buffers.cpp", "executables.cpp")
"""Arguments that make the compiler read all source files as one, and their headers only once."""
_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=hidden", "-O1", "-shared", "-pthread")

CHIP, COMPILER = 0, 1
"""Numbers of the two queues of jobs: for the simulated chips, and for the compiler."""


class Kind:
    """Numbers of the kinds of jobs, the same as in ``queue.hpp``."""

    COMPILE, EXECUTE, UPLOAD, DOWNLOAD, SHARE, RELEASE, UNLOAD = range(1, 8)


class Job(ctypes.Structure):
    """A request of JAX that a Python thread carries out; mirrors ``JobView`` in queue.hpp.

    It is valid until the thread that received it from `Library.next` asks for its next job.
    """

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
        """Integer arguments of the job; ``queue.hpp`` defines them for each kind."""
        return self._numbers[:self._count]

    @property
    def data(self) -> bytes:
        """A copy of the job's bytes: a program, or the elements of an array."""
        return ctypes.string_at(self.address, self.bytes) if self.bytes else b""

    @property
    def more(self) -> bytes:
        """A copy of the job's second group of bytes: the compile options of a program."""
        return ctypes.string_at(self._more, self._more_bytes) if self._more_bytes else b""


def build() -> pathlib.Path:
    """Return the path of the plugin's library; build it if the cache of `hdl.store` lacks it.

    Raises
    ------
    RuntimeError
        If there is no C++ compiler, or the compiler fails; the message says what to install.
    """
    tools = Toolchain.find()
    sources = {path.name: path.read_text(encoding="utf-8")
               for path in sorted(_FOLDER.iterdir()) if path.suffix in (".cpp", ".hpp")}
    command = (*tools.cxx, *_FLAGS)

    def make(target: pathlib.Path) -> None:
        target.mkdir()
        run_tool([*command, *_SOURCES, "-o", str(target / "systolith_pjrt.so"), "-ldl"], _FOLDER,
                 tools.environment(), target / "build.log")

    return keep("pjrt", "plugin", digest([sources, command, tools.identity()]), make) \
        / "systolith_pjrt.so"


class Library:
    """The library's functions for Python. All calls release the interpreter's lock.

    Parameters
    ----------
    path : pathlib.Path
        Path of the library; JAX loads the same file.
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
        self._c.systolith_note.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_int64))
        self._c.systolith_note.restype = None
        self._c.systolith_close.restype = None

    def describe(self, shape: tuple[int, int], cores: int, kind: str, version: str) -> None:
        """Describe the chips to the plugin; must be called once, before JAX makes its client.

        Parameters
        ----------
        shape : tuple of int
            Chips along X and along Y; (1, 1) without a pod.
        cores : int
            Number of cores of each chip.
        kind : str
            JAX's ``device_kind``.
        version : str
            Version of the platform.
        """
        self._c.systolith_describe(*shape, cores, kind.encode(), version.encode())

    def next(self, queue: int, job: Job) -> bool:
        """Wait for the next job of a queue and write it to ``job``; False after `close`."""
        return bool(self._c.systolith_next(queue, ctypes.byref(job)))

    def finish(self, job: Job, code: int = 0, message: str = "") -> None:
        """End a job: with success if ``code`` is 0, else with this error code and ``message``."""
        text = message.encode()
        self._c.systolith_finish(job.handle, code, text, len(text))

    def answer(self, job: Job, numbers: Sequence[int], texts: Sequence[bytes]) -> None:
        """Pass a job's compiled program: `Program.numbers` and `Program.texts`.

        The caller must call this before `finish`.
        """
        self._c.systolith_answer(
            job.handle, (ctypes.c_int64 * len(numbers))(*numbers), len(numbers),
            (ctypes.c_char_p * len(texts))(*texts),
            (ctypes.c_int64 * len(texts))(*map(len, texts)))

    def note_memory(self, chip: int, *stats: int) -> None:
        """Set the counters of a chip's HBM, six integers in the order of ``MemoryStats``.

        They are: bytes in use, maximum in use, number of allocations, bytes of the largest
        allocation, limit in bytes, bytes of the largest free block.
        """
        self._c.systolith_note(chip, (ctypes.c_int64 * 6)(*stats))

    def close(self, reason: str) -> None:
        """Make all jobs that have not begun, and all later ones, fail with ``reason``."""
        self._c.systolith_close(reason.encode())
