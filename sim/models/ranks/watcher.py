"""Process that says which rank has died; `sim.models.ranks.lifeline` starts it.

When a rank dies, the launcher kills the others at once, so none of them can say who was first. This
process is not one of them. Each rank holds a connection to it, which the operating system closes
when the rank dies. Standard input is the listening socket; the argument is the number of ranks.

A rank first sends a line: its name. A rank that leaves in order sends a second line before it
closes the connection; this process passes the rank's name on to the ranks that have not left. If a
connection closes without a second line, the rank has died: this process writes the rank's name to
standard error, and ends.
"""

import contextlib
import select
import socket
import sys


class _Rank:
    """Connection to a rank, and what the rank has sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.text = connection, b""

    @property
    def name(self) -> bytes:
        return self.text.split(b"\n")[0]

    @property
    def left(self) -> bool:
        return self.text.count(b"\n") > 1


def _serve(server: socket.socket, ranks: int) -> None:
    poll = select.epoll()
    poll.register(server.fileno(), select.EPOLLIN)
    known: dict[int, _Rank] = {}
    while ranks:
        # The kernel lists connections in the order of their events.
        for number, _ in poll.poll():
            if number == server.fileno():
                connection, _ = server.accept()
                known[connection.fileno()] = _Rank(connection)
                poll.register(connection.fileno(), select.EPOLLIN)
                continue
            rank = known[number]
            try:
                data = rank.connection.recv(4096)
            except OSError:
                data = b""
            if data:
                rank.text += data
                if rank.left:
                    for other in known.values():
                        if other is not rank and not other.left:
                            with contextlib.suppress(OSError):  # it is leaving, too
                                other.connection.sendall(rank.name + b"\n")
                continue
            if b"\n" not in rank.text:  # not a rank: nobody has sent a name
                poll.unregister(number)
                known.pop(number).connection.close()
                continue
            if not rank.left:
                sys.stderr.write(f"{rank.name.decode()} has died\n")
                return
            poll.unregister(number)
            ranks -= 1


if __name__ == "__main__":
    _serve(socket.socket(fileno=sys.stdin.fileno()), int(sys.argv[1]))
