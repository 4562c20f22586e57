"""The host's ports of a simulated core: its state, its memories and its registers."""

import ctypes
import threading
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from hdl import checks, isa
from hdl.checks import instance
from hdl.config import Config
from hdl.core.interface import REQUEST_ADDRESS_BITS, Space
from hdl.isa import Fault
from hdl.vpu.interface import HostSpace
from sim.closing import Closeable
from sim.models.core.library import core_library
from sim.verilated.model import Model

__all__ = ["CorePorts", "Words", "checked_range"]

_SPACE_SHIFT = np.uint64(1)
_ADDRESS_SHIFT = np.uint64(3)
_DATA_SHIFT = np.uint64(3 + REQUEST_ADDRESS_BITS)
"""Position of the lowest bit of each field of a request (`hdl.core.interface.core_request`): space,
address and data. Bit 0 tells whether the request is a write."""

Words = npt.NDArray[np.uint32]


class _Rows(ctypes.Structure):
    """Vectors to move between an array and a core; mirrors ``Rows`` in core.cpp."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_uint64) for name in (
        "space", "address", "vectors", "done", "lanes", "sublanes")))


def checked_range(name: str, at: SupportsIndex, count: int, size: int,
                  unit: str = "words") -> int:
    """Checks that ``count`` units, the first at ``at``, fit in a memory of ``size``.

    Returns ``at``. ``name`` names what lies there, and ``unit`` the units, for the error message.
    """
    first = checks.integer("address", at, 0, size)
    if first + count > size:
        raise ValueError(f"{name} must lie within {size} {unit}, not from {first} to "
                         f"{first + count - 1}")
    return first


class CorePorts(Closeable):
    """The part of a `CoreModel` that reads and writes the core's state."""

    def __init__(self, config: Config, *, kernels: bool = True) -> None:
        instance("config", config, Config)
        self._config = config
        self._lock = threading.RLock()
        self._path = core_library(config, kernels=kernels)
        self._model = self._new_model()
        self._stuck = False

    def _new_model(self) -> Model:
        model = Model(self._path)
        pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
        counter = ctypes.POINTER(ctypes.c_uint64)
        for name, arguments in (
                ("run", (pointer, u64, counter, ctypes.POINTER(ctypes.c_uint32))),
                ("requests", (pointer, pointer, pointer, u64, counter)),
                ("read_rows", (pointer, ctypes.POINTER(_Rows))),
                ("write_rows", (pointer, ctypes.POINTER(_Rows)))):
            function = getattr(model.library, f"systolith_core_{name}")
            function.restype = ctypes.c_int
            function.argtypes = arguments
        # The kernels are those of the chip, which can use two threads; a lone core uses one.
        model.use_threads(1)
        model.reset()
        return model

    @property
    def config(self) -> Config:
        """The core's parameters."""
        return self._config

    @property
    def model(self) -> Model:
        """The verilated model, with the ports of `hdl.core.core.Core`."""
        return self._model

    def reset(self) -> None:
        """Restores the initial state: the core is stopped, and all state is zero.

        Only a simulation can do this: the core's ``rst`` keeps the contents of memories and vector
        registers.
        """
        with self._lock:
            self._model.handle  # noqa: B018  a closed model stays closed
            self._model.close()
            self._model = self._new_model()
            self._stuck = False

    def close(self) -> None:
        """Ends the simulation; closing twice does nothing."""
        with self._lock:
            self._model.close()

    # ---- State

    @property
    def running(self) -> bool:
        """Whether a program is running."""
        return bool(self._peek("running"))

    @property
    def waiting(self) -> bool:
        """Whether a program is running and waits for a semaphore."""
        return bool(self._peek("running") and self._peek("waiting"))

    @property
    def fault(self) -> Fault:
        """The fault that stopped the core, or `Fault.NONE`."""
        return Fault(self._peek("fault"))

    @property
    def pc(self) -> int:
        """The program counter: the bundle to issue next, or the bundle that halted or faulted."""
        return self._peek("pc")

    def read_state(self) -> dict[str, Any]:
        """Returns all state that programs can read, as `GoldenCore.read_state` does."""
        with self._lock:
            return {
                "scalars": self.read_scalars(),
                "vectors": self.read_vectors(),
                "masks": self.read_masks(),
                "vmem": self.read_vmem(0, self._config.vmem_vectors),
                "smem": self.read_smem(0, self._config.smem_words),
                "semaphores": self.read_semaphores(),
                "pc": self.pc,
                "running": self.running,
                "fault": self.fault,
            }

    # ---- Memories and registers

    def write_vmem(self, at: int, vectors: npt.NDArray[Any]) -> None:
        """Writes vector memory.

        Parameters
        ----------
        at : int
            Address of the first vector.
        vectors : array of float32 or uint32, shape (count, sublanes, lanes)
            The data.

        Raises
        ------
        TypeError, ValueError
            If the array has a wrong type or shape, or does not fit.
        """
        data = checks.vectors("vectors", vectors, (self._config.sublanes, self._config.lanes))
        first = checked_range("vectors", at, len(data), self._config.vmem_vectors, "vectors")
        with self._lock:
            self._move_rows("write_rows", data, HostSpace.VMEM, first)

    def read_vmem(self, at: int, count: int) -> Words:
        """Reads ``count`` vectors of vector memory, as uint32 of shape (count, sublanes, lanes)."""
        vectors = checks.integer("count", count, 0, self._config.vmem_vectors)
        first = checked_range("vectors", at, vectors, self._config.vmem_vectors, "vectors")
        return self._read_rows(HostSpace.VMEM, first, vectors)

    def read_vectors(self) -> Words:
        """Reads the vector registers, as uint32 of shape (32, sublanes, lanes)."""
        return self._read_rows(HostSpace.VREG, 0, isa.VECTOR_REGISTERS)

    def read_masks(self) -> npt.NDArray[np.bool_]:
        """Reads the masks, as bool of shape (8, sublanes, lanes)."""
        packed = self._read_rows(HostSpace.MASK, 0, 1)[0]
        return np.stack([packed >> mask & 1 for mask in range(isa.MASKS)]).astype(bool)

    def write_smem(self, at: int, words: npt.ArrayLike) -> None:
        """Writes words to scalar memory, from address ``at`` on."""
        self._write_words(Space.SMEM, at, words, self._config.smem_words)

    def read_smem(self, at: int, count: int) -> Words:
        """Reads ``count`` words of scalar memory, from address ``at`` on."""
        return self._read_words(Space.SMEM, at, count, self._config.smem_words)

    def write_scalars(self, words: npt.ArrayLike, at: int = 0) -> None:
        """Writes scalar registers from number ``at`` on; s0 stays zero."""
        self._write_words(Space.SCALAR, at, words, isa.SCALAR_REGISTERS)

    def read_scalars(self) -> Words:
        """Reads all scalar registers, as uint32 of shape (32,)."""
        return self._read_words(Space.SCALAR, 0, isa.SCALAR_REGISTERS,
                                isa.SCALAR_REGISTERS)

    def write_semaphores(self, words: npt.ArrayLike, at: int = 0) -> None:
        """Sets semaphores from number ``at`` on."""
        self._write_words(Space.SEMAPHORE, at, words, isa.SEMAPHORES)

    def read_semaphores(self) -> Words:
        """Reads all semaphores, as uint32 of shape (16,)."""
        return self._read_words(Space.SEMAPHORE, 0, isa.SEMAPHORES, isa.SEMAPHORES)

    # ---- The ports

    def _peek(self, name: str) -> int:
        with self._lock:
            return self._model.peek(name)

    def _pulse(self, name: str) -> None:
        """Sets the 1-bit input ``name`` for one cycle."""
        self._model.poke(name, 1)
        self._model.tick()
        self._model.poke(name, 0)

    def _require_stopped(self, purpose: str) -> None:
        if self.running:
            raise RuntimeError(f"a program is running, at bundle {self.pc}: stop it to {purpose}")

    def _read_words(self, space: Space, at: int, count: int, size: int) -> Words:
        words = checks.integer("count", count, 0, size)
        first = checked_range("words", at, words, size)
        return self._read_control(space, first + np.arange(words))

    def _write_words(self, space: Space, at: int, words: npt.ArrayLike, size: int) -> None:
        given = np.asarray(words)
        if given.ndim != 1:
            raise ValueError(f"words must have one dimension, not shape {given.shape!r}")
        if given.dtype == np.float32:
            given = given.view(np.uint32)
        if given.dtype.kind not in "ui" and given.size:
            raise TypeError(f"words must be integers or float32, not {given.dtype}")
        if ((given < 0) | (given >= 1 << 32)).any():
            raise ValueError("words must be unsigned integers of 32 bits")
        first = checked_range("words", at, len(given), size)
        self._write_control(space, first + np.arange(len(given)), given.astype(np.uint32))

    def _read_control(self, space: Space, addresses: npt.NDArray[np.int64]) -> Words:
        responses = self._requests(space, False, addresses, np.zeros(len(addresses), np.uint32))
        return (responses & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def _write_control(self, space: Space, addresses: npt.NDArray[np.int64],
                       words: Words) -> None:
        self._requests(space, True, addresses, words)

    def _requests(self, space: Space, write: bool, addresses: npt.NDArray[np.int64],
                  words: Words) -> npt.NDArray[np.uint64]:
        """Makes a request for each address at the sequencer's host port; returns the responses.

        The requests write ``words`` to ``space`` if ``write`` is true; otherwise they read from it.
        """
        requests = (np.uint64(write) | np.uint64(space.value) << _SPACE_SHIFT
                    | addresses.astype(np.uint64) << _ADDRESS_SHIFT
                    | words.astype(np.uint64) << _DATA_SHIFT)
        responses = np.zeros(len(requests), np.uint64)
        done = ctypes.c_uint64(0)
        with self._lock:
            self._require_stopped(f"access its {space.name.lower()}")
            while done.value < len(requests):
                self._transfer("requests", requests.ctypes.data, responses.ctypes.data,
                               len(requests), done)
        if (responses >> np.uint64(32)).any():
            raise RuntimeError(f"the core refused an access to its {space.name.lower()}")
        return responses

    def _read_rows(self, space: HostSpace, at: int, count: int) -> Words:
        data = np.zeros((count, self._config.sublanes, self._config.lanes), np.uint32)
        with self._lock:
            self._move_rows("read_rows", data, space, at)
        return data

    def _move_rows(self, function: str, data: Words, space: HostSpace, at: int) -> None:
        rows = _Rows(data.ctypes.data, space.value, at, len(data), 0, self._config.lanes,
                     self._config.sublanes)
        while rows.done < rows.vectors:
            self._transfer(function, rows)

    def _transfer(self, function: str, *arguments: Any) -> None:
        """Calls a function of core.cpp that moves a part of the data.

        If the function gives up, its accesses may still be under way in the core, and the next call
        could receive their responses. So every later call raises an error until `reset`.
        """
        handle = self._model.handle
        if self._stuck:
            raise RuntimeError("an earlier access did not end: reset the model")
        try:
            self._model.check(getattr(self._model.library, f"systolith_core_{function}")(
                handle, *arguments))
        except RuntimeError:
            self._stuck = True
            raise
