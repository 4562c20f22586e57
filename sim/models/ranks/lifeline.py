"""Ends a run of several ranks if one of them has left, instead of waiting for it for ever."""

import atexit
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["Lifeline"]

_PATIENCE = 5.0
"""Seconds that a rank waits for another one that has left, before it ends the run."""
_WATCHER = pathlib.Path(__file__).with_name("watcher.py")


class Lifeline:
    """Connection of a rank to the process that watches all ranks (`sim.models.ranks.watcher`).

    If a rank dies, the watching process prints its name, and MPI's launcher ends the other ranks.
    If a rank closes the pod, or ends, while another rank waits for it, the waiting rank prints the
    other's name and ends the run.

    Parameters
    ----------
    communicator : mpi4py.MPI.Comm
        The ranks; all of them make a lifeline together.
    name : str
        What messages call this rank.
    """

    def __init__(self, communicator: Any, name: str) -> None:
        hosts = communicator.allgather(socket.gethostname())
        place = None
        if communicator.rank == 0:
            place = self._watch(len(hosts), alone=len(set(hosts)) == 1)
        self._name = name
        self._process = os.getpid()
        self._since: float | None = None
        self._connection = socket.create_connection(communicator.bcast(place))
        self._connection.sendall(f"{name}\n".encode())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        # A rank that ends without `close` has not died.
        atexit.register(self.close)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which this rank waits for others."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def close(self) -> None:
        """Tell the others that this rank no longer uses the pod; closing twice does nothing."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return  # the child of a fork shares the connection
        with contextlib.suppress(OSError):
            self._connection.sendall(b"leaves\n")
            self._connection.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _watch(ranks: int, *, alone: bool) -> tuple[str, int]:
        """Start the watcher; return its address. ``alone``: all ranks are on this host."""
        host = "127.0.0.1" if alone else ""
        with socket.create_server((host, 0), backlog=ranks) as server:
            subprocess.Popen([sys.executable, "-E", "-S", str(_WATCHER), str(ranks)],
                             stdin=server.fileno(), start_new_session=True)
            return host or socket.gethostname(), server.getsockname()[1]

    def _listen(self) -> None:
        """Read names of ranks that have left; end this process if it waits for one of them."""
        try:
            left = self._connection.recv(4096)
        except OSError:
            return
        if not left:
            return
        names = left.decode().split("\n")[0]
        while True:
            since = self._since
            if since is not None and time.monotonic() - since > _PATIENCE:
                sys.stderr.write(f"{self._name} waits for {names}, which has left the pod\n")
                sys.stderr.flush()
                os._exit(1)
            time.sleep(_PATIENCE / 10)
