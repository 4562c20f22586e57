"""Ranks of MPI that simulate a pod together: each rank simulates a part of the chips."""

import functools
import os
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sim.models.ranks.lifeline import Lifeline

__all__ = ["Ranks", "default_communicator", "join"]

_T = TypeVar("_T")
_FIRST = 4096
"""Number of bytes of the first message of a broadcast; most broadcasts have no other."""
_LENGTH = 8
"""Number of bytes at the start of that message that hold the length of the broadcast value."""
_SHORTEST, _LONGEST = 20e-6, 1e-3
"""Limits of the seconds between two tests of a request on a host with fewer processors than
ranks."""
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Variables in which launchers of MPI tell a process the number of ranks."""


def default_communicator() -> Any:
    """Return MPI's communicator of all ranks if several run this program, otherwise None.

    Raises
    ------
    ImportError
        If several ranks run, and mpi4py is missing.
    ValueError
        If a launcher's variable is not a number.
    """
    if not any(_size(name) > 1 for name in _SIZES):
        return None
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError("a pod on several ranks needs mpi4py: install systolith[mpi]") from error
    return MPI.COMM_WORLD if MPI.COMM_WORLD.size > 1 else None


def _size(name: str) -> int:
    """Return the number of ranks from the launcher's variable ``name``; 1 if it is not set."""
    value = os.environ.get(name, "1")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"{name} must be a number of ranks, not {value!r}") from None


@functools.cache
def _key() -> int:
    """Return the key of the attribute in which a communicator keeps its duplicate (`_private`)."""
    from mpi4py import MPI

    return int(MPI.Comm.Create_keyval())


def _private(communicator: Any) -> Any:
    """Return the duplicate of a communicator that pods use.

    Its messages cannot be taken for those that the program sends with ``communicator`` itself. All
    pods share one duplicate of a communicator, because MPI limits the number of communicators.
    """
    found = communicator.Get_attr(_key())
    if found is None:
        found = communicator.Dup()
        communicator.Set_attr(_key(), found)
    return found


class Ranks:
    """The ranks of a communicator, between which the chips of a torus are divided.

    Rank r of R simulates the chips from number ``r * chips // R`` up to, but not including, number
    ``(r + 1) * chips // R``. All ranks must call the same methods of all pods in the same order.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm
        The ranks.
    shape : tuple of int
        Chips along X and along Y.

    Raises
    ------
    ValueError
        If the communicator has more ranks than there are chips.
    """

    def __init__(self, communicator: Any, shape: tuple[int, int]) -> None:
        from mpi4py import MPI

        chips, size = shape[0] * shape[1], communicator.size
        if size > chips:
            raise ValueError(f"communicator must have at most {chips} ranks, one for each chip, "
                             f"not {size}")
        self._mpi = MPI
        self._bounds = [rank * chips // size for rank in range(size + 1)]
        self._communicator = _private(communicator)
        self.rank: int = communicator.rank
        self.part = range(self._bounds[self.rank], self._bounds[self.rank + 1])
        places = ", ".join(str((chip % shape[0], chip // shape[0])) for chip in self.part)
        self._life = Lifeline(self._communicator, f"rank {self.rank} (chips {places})")
        local = self._communicator.Split_type(MPI.COMM_TYPE_SHARED)
        processors = len(os.sched_getaffinity(0))
        self.threads = max(1, processors // local.size)
        self._crowded = local.size > processors
        local.Free()
        self._pending: Any = None
        self._voted: tuple[npt.NDArray[np.int64], ...] = ()
        self._buffers: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]] = {}
        self._wires: dict[int, tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]] = {}

    def owner(self, chip: int) -> int:
        """Return the rank that simulates a chip."""
        return int(np.searchsorted(self._bounds, chip, side="right")) - 1

    def connect(self, wires: Sequence[tuple[int, int]], words: int) -> None:
        """Note which chips each wire joins: the chip that it leaves, and the one it arrives at.

        A wire's number is its index in ``wires``. ``words`` is the largest number of words that
        `exchange` takes from a wire.
        """
        ends = [(self.owner(source), self.owner(target)) for source, target in wires]
        for other in range(self._communicator.size):
            leaving, arriving = (
                np.array([wire for wire, pair in enumerate(ends) if pair == wanted], np.uint32)
                for wanted in ((self.rank, other), (other, self.rank)))
            if other != self.rank and len(leaving) + len(arriving):
                self._wires[other] = leaving, arriving
                self._buffers[other] = (np.empty(len(leaving) * words, np.uint32),
                                        np.empty(len(arriving) * words, np.uint32))

    def exchange(self, take: Callable[[npt.NDArray[np.uint32], npt.NDArray[np.uint32]], int],
                 put: Callable[[npt.NDArray[np.uint32], npt.NDArray[np.uint32]], object]) -> None:
        """Exchange frames with the ranks of neighbouring chips, and with no others.

        Parameters
        ----------
        take : callable
            Called with two arrays: the numbers of wires that leave this rank, and words. It writes
            the frames on these wires to the words, and returns the number of words written.
        put : callable
            Called with two arrays: the numbers of wires that arrive at this rank, and the words
            that ``take`` wrote on the rank that these wires leave.
        """
        received = {other: self._communicator.Irecv(buffer, other)
                    for other, (_, buffer) in self._buffers.items()}
        sent = [self._communicator.Isend(buffer[:take(self._wires[other][0], buffer)], other)
                for other, (buffer, _) in self._buffers.items()]
        status = self._mpi.Status()
        for other, request in received.items():
            self._complete(request, status)
            count = status.Get_count(self._mpi.UINT32_T)
            put(self._wires[other][1], self._buffers[other][1][:count])
        for request in sent:
            self._complete(request)

    def broadcast(self, value: _T | None, root: int) -> _T:
        """Return on all ranks the ``value`` that rank ``root`` gives; other values are ignored."""
        message = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if self.rank == root else b""
        first = bytearray(_FIRST)
        start = len(message).to_bytes(_LENGTH, "little") + message[:_FIRST - _LENGTH]
        first[:len(start)] = start
        self._complete(self._communicator.Ibcast(first, root))
        size = int.from_bytes(first[:_LENGTH], "little")
        rest = bytearray(message[_FIRST - _LENGTH:])
        if size > _FIRST - _LENGTH:
            if self.rank != root:
                rest = bytearray(size - (_FIRST - _LENGTH))
            self._complete(self._communicator.Ibcast(rest, root))
        result: _T = pickle.loads(first[_LENGTH:] + rest)
        return result

    def gather(self, value: _T) -> list[_T]:
        """Return on all ranks the values of all ranks, in the order of the ranks."""
        return [self.broadcast(value, rank) for rank in range(self._communicator.size)]

    def least(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """Return a function that returns the least of all ranks' values, element by element.

        The function waits for the other ranks. This method itself waits for them only if the result
        of its last call is still outstanding.
        """
        if self._pending is not None:
            self._complete(self._pending)
        given, found = np.array(values, np.int64), np.empty(len(values), np.int64)
        request = self._pending = self._communicator.Iallreduce(given, found, self._mpi.MIN)
        self._voted = given, found  # MPI uses them until the request has completed

        def wait() -> list[int]:
            if self._pending is request:
                self._complete(request)
                self._pending = None
            return [int(value) for value in found]

        return wait

    def _complete(self, request: Any, status: Any = None) -> None:
        """Wait until a request has completed.

        MPI's own wait keeps a processor busy. If the host has fewer processors than ranks, a rank
        that waits sleeps, so that the others can run.
        """
        with self._life.waiting():
            if not self._crowded:
                request.Wait(status)
                return
            pause = _SHORTEST
            while not request.Test(status):
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST)

    def close(self) -> None:
        """Leave; the others may go on until they need this rank. Closing twice does nothing."""
        self._life.close()


def join(communicator: Any, shape: tuple[int, int]) -> Ranks | None:
    """Return the ranks of a communicator; None if it has only this rank, or is None itself.

    Raises
    ------
    TypeError, ValueError
        If ``communicator`` is of another type, or has more ranks than there are chips.
    """
    if communicator is None:
        return None
    try:
        size = communicator.Get_size()
    except AttributeError:
        raise TypeError(
            f"communicator must be an mpi4py.MPI.Comm, not {communicator!r}") from None
    return Ranks(communicator, shape) if size > 1 else None
