"""Arbiters that let several clients share a port of a core in turn."""

from collections.abc import Iterable
from functools import reduce
from operator import or_

from amaranth import Module, Mux, Signal, Value
from amaranth.hdl import ValueLike
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance, integer
from ..config import Config
from ..core.interface import Response, SemaphoreSignal, core_request, semaphore_addition
from ..tiles import instantiate
from ..vpu.interface import host_read_request, host_write_row, row_bits

__all__ = ["RequestArbiter", "RoundRobin", "SignalArbiter", "VectorPort"]


def _chosen(choice: Signal, values: Iterable[ValueLike]) -> Value:
    """Return the one of ``values`` whose bit is set in ``choice``; zero if no bit is set."""
    return reduce(or_, (Mux(choice[number], value, 0) for number, value in enumerate(values)))


class RoundRobin(wiring.Component):
    """Round-robin arbiter; the choice is combinational.

    The client that had the last turn has the lowest priority, so each client waits for at most
    ``count`` - 1 turns of others.

    Parameters
    ----------
    count : int
        Number of clients, at least 1.

    Attributes
    ----------
    wants : In(count)
        Requests, one bit for each client.
    choice : Out(count)
        The chosen client, as one set bit; zero if there is no request.
    turn : In(1)
        The chosen client uses its turn in this cycle, and has the lowest priority from then on.

    Raises
    ------
    TypeError, ValueError
        If ``count`` is not an integer, or less than 1.
    """

    def __init__(self, count: int) -> None:
        count = integer("count", count, 1)
        self.combinational = count == 1  # no turn to remember
        super().__init__({"wants": In(count), "choice": Out(count), "turn": In(1)})

    @staticmethod
    def module(count: int) -> str:
        """Name of the Verilog module of an arbiter for ``count`` clients."""
        return f"round_robin_{count}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        count = len(self.wants)
        later = Signal(count)  # clients behind the one that had the last turn
        candidates = Signal(count)
        below = Signal(count)  # a candidate precedes this one
        m.d.comb += [
            candidates.eq(Mux((self.wants & later).any(), self.wants & later, self.wants)),
            *(below[number].eq(candidates[:number].any()) for number in range(1, count)),
            self.choice.eq(candidates & ~below),
        ]
        with m.If(self.turn):
            m.d.sync += [later[number].eq(self.choice[:number].any()) for number in range(1, count)]
        return m


def _round_robin(m: Module, platform: object, name: str, count: int) -> wiring.Component:
    return instantiate(m, platform, name, RoundRobin.module(count), lambda: RoundRobin(count))


class SignalArbiter(wiring.Component):
    """Shares the semaphores of a core among several sources: one addition a cycle.

    Parameters
    ----------
    sources : int
        Number of sources, at least 1.

    Attributes
    ----------
    source : In(stream of semaphore_addition).array(sources)
        Additions offered by the sources. A source may withdraw its offer.
    signal : Out(SemaphoreSignal)
        The addition, to the core, one cycle after it was accepted from the source.

    Raises
    ------
    TypeError, ValueError
        If ``sources`` is not an integer, or less than 1.
    """

    def __init__(self, sources: int) -> None:
        sources = integer("sources", sources, 1)
        self._sources = sources
        super().__init__({"source": In(stream.Signature(semaphore_addition())).array(sources),
                          "signal": Out(SemaphoreSignal())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turns = _round_robin(m, platform, "turns", self._sources)
        chosen = Signal(semaphore_addition())
        m.d.comb += [
            turns.turn.eq(turns.choice.any()),
            chosen.eq(_chosen(turns.choice, (
                source.payload.as_value() for source in self.source))),
        ]
        for number, source in enumerate(self.source):
            m.d.comb += [turns.wants[number].eq(source.valid),
                         source.ready.eq(turns.choice[number])]
        m.d.sync += self.signal.valid.eq(turns.choice.any())
        with m.If(turns.choice.any()):
            m.d.sync += [self.signal.index.eq(chosen.index), self.signal.amount.eq(chosen.amount)]
        return m


class RequestArbiter(wiring.Component):
    """Shares a core's port for words among several clients.

    The turn passes to the next client in each cycle, whether the client used it or not. So a
    request that the core cannot accept yet does not block others.

    Parameters
    ----------
    clients : int
        Number of clients, at least 1.

    Attributes
    ----------
    request, response : In(stream of core_request).array, Out(Response).array
        Ports of the clients. A client may withdraw its request. Only ``valid`` of a response is
        specific to the client; the other members are the same for all clients.
    core_request, core_response : Out(stream of core_request), In(Response)
        The core's port, which responds one cycle after it accepts a request.

    Raises
    ------
    TypeError, ValueError
        If ``clients`` is not an integer, or less than 1.
    """

    def __init__(self, clients: int) -> None:
        clients = integer("clients", clients, 1)
        self._clients = clients
        request = stream.Signature(core_request())
        super().__init__({
            "request": In(request).array(clients), "response": Out(Response()).array(clients),
            "core_request": Out(request), "core_response": In(Response()),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        turns = _round_robin(m, platform, "turns", self._clients)
        owner = Signal(self._clients)  # client that receives the response
        m.d.comb += [
            turns.turn.eq(turns.choice.any()),
            self.core_request.valid.eq(turns.choice.any()),
            self.core_request.payload.eq(_chosen(turns.choice, (
                request.payload.as_value() for request in self.request))),
        ]
        with m.If(self.core_request.valid & self.core_request.ready):
            m.d.sync += owner.eq(turns.choice)
        for number, (request, response) in enumerate(
                zip(self.request, self.response, strict=True)):
            m.d.comb += [
                turns.wants[number].eq(request.valid),
                request.ready.eq(turns.choice[number] & self.core_request.ready),
                response.valid.eq(self.core_response.valid & owner[number]),
                response.error.eq(self.core_response.error),
                response.data.eq(self.core_response.data),
            ]
        return m


class VectorPort(wiring.Component):
    """Shares a core's port for rows of vectors among several clients.

    The rows of one client's vector are not interleaved with those of another client's. Rows are
    returned in the order of the reads of all clients. An offer to the core is held until the core
    accepts it, so a client must not withdraw its offer.

    The core can be reset while the port is in use. Clients then complete their accesses, but
    without effect: they read arbitrary rows, and the remaining rows of a vector that was being
    written are dropped.

    Parameters
    ----------
    config : Config
        Parameters.
    clients : int
        Number of clients, at least 1.

    Attributes
    ----------
    read, rows, write : In(stream of host_read_request).array, Out(stream of row_bits).array,
            In(stream of host_write_row).array
        Ports of the clients, like ``host_read``, ``host_rows`` and ``host_write`` of
        `hdl.vpu.vpu.Vpu`.
    busy : Out(1)
        The port has accepted all rows of a client's vector, but the core will not have written the
        vector by the end of this cycle.
    host_read, host_rows, host_write
        The core's port.
    reset : In(1)
        The core is reset in this cycle. The port itself is not reset together with the core.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or ``clients`` is not an integer of at least 1.
    """

    def __init__(self, config: Config, clients: int) -> None:
        instance("config", config, Config)
        clients = integer("clients", clients, 1)
        self._config = config
        self._clients = clients
        read, rows, write = (stream.Signature(shape) for shape in (
            host_read_request(), row_bits(config), host_write_row(config)))
        super().__init__({
            "read": In(read).array(clients), "rows": Out(rows).array(clients),
            "write": In(write).array(clients), "busy": Out(1),
            "host_read": Out(read), "host_rows": In(rows), "host_write": Out(write),
            "reset": In(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.busy.eq(~self.host_write.ready)
        self._write(m, platform)
        self._return_rows(m, self._read(m, platform))
        return m

    def _choose(self, m: Module, platform: object, name: str,
                ports: Iterable[wiring.PureInterface], ended: Signal) -> Signal:
        """Return the client that has the turn, as one set bit; zero if no client has an offer.

        ``ports`` are the clients' streams. ``ended`` is set in the last cycle of a client's turn.
        The names of the arbiter and of its signals begin with ``name``.
        """
        turns = _round_robin(m, platform, f"{name}_turns", self._clients)
        kept = Signal(self._clients, name=f"{name}_kept")
        choice = Signal(self._clients, name=f"{name}_choice")
        m.d.comb += [
            *(turns.wants[number].eq(Mux(kept.any(), kept[number], port.valid))
              for number, port in enumerate(ports)),
            choice.eq(turns.choice),
            turns.turn.eq(ended),
        ]
        m.d.sync += kept.eq(Mux(ended, 0, choice))
        return choice

    def _count(self, m: Module, name: str, given: Signal) -> tuple[Signal, Signal]:
        """Count the rows of the current vector: one in each cycle in which ``given`` is set.

        Return two signals: the number of the vector's rows that were counted before this cycle, and
        a bit that is set in the cycle of its last row. The names of both begin with ``name``.
        """
        count = Signal(range(self._config.sublanes), name=f"{name}_count")
        last = Signal(name=f"{name}_last")
        m.d.comb += last.eq(given & (count == self._config.sublanes - 1))
        with m.If(given):
            m.d.sync += count.eq(Mux(last, 0, count + 1))
        return count, last

    def _write(self, m: Module, platform: object) -> None:
        void = Signal(name="write_void")  # the core was reset after the vector's first rows
        offered = Signal(name="write_offered")
        given = Signal(name="write_given")
        ready = Signal(name="write_ready")
        count, ended = self._count(m, "write", given)
        choice = self._choose(m, platform, "write", self.write, ended)
        m.d.comb += [
            offered.eq(_chosen(choice, (write.valid for write in self.write))),
            ready.eq((void | self.host_write.ready) & ~self.reset),
            given.eq(offered & ready),
            self.host_write.valid.eq(offered & ~void & ~self.reset),
            self.host_write.payload.eq(_chosen(choice, (
                write.payload.as_value() for write in self.write))),
            *(write.ready.eq(choice[number] & ready) for number, write in enumerate(self.write)),
        ]
        with m.If(self.reset):
            m.d.sync += void.eq(count != 0)
        with m.Elif(ended):
            m.d.sync += void.eq(0)

    def _read(self, m: Module, platform: object) -> Signal:
        """Pass read requests to the core.

        Return the client whose request the core accepts in this cycle, as one set bit.
        """
        self._void = Signal(name="read_void")  # the core was reset before it returned the rows
        passes = Signal()
        accepted = Signal()
        asked = Signal(self._clients)
        choice = self._choose(m, platform, "read", self.read, accepted)
        m.d.comb += [
            passes.eq(~self._void & ~self.reset),
            self.host_read.valid.eq(_chosen(choice, (read.valid for read in self.read)) & passes),
            self.host_read.payload.eq(_chosen(choice, (
                read.payload.as_value() for read in self.read))),
            accepted.eq(self.host_read.valid & self.host_read.ready),
            asked.eq(Mux(accepted, choice, 0)),
            *(read.ready.eq(choice[number] & self.host_read.ready & passes)
              for number, read in enumerate(self.read)),
        ]
        return asked

    def _return_rows(self, m: Module, asked: Signal) -> None:
        """Return rows to the clients that requested them. At most two reads are outstanding.

        ``asked`` is the client whose request the core accepts in this cycle, as one set bit.
        """
        first = Signal(self._clients, name="first_owner")
        second = Signal(self._clients, name="second_owner")
        next_first = Signal(self._clients)
        next_second = Signal(self._clients)
        valid = Signal(name="rows_valid")
        given = Signal(name="rows_given")
        _, ended = self._count(m, "rows", given)
        m.d.comb += [
            valid.eq(self._void | self.host_rows.valid),
            given.eq(valid & _chosen(first, (rows.ready for rows in self.rows))),
            self.host_rows.ready.eq(given & ~self._void),
            next_first.eq(Mux(ended, second, first)),
            next_second.eq(Mux(ended, 0, second)),
        ]
        for number, rows in enumerate(self.rows):
            m.d.comb += [rows.valid.eq(valid & first[number]),
                         rows.payload.eq(self.host_rows.payload)]
        m.d.sync += [
            first.eq(Mux(next_first.any(), next_first, asked)),
            second.eq(Mux(next_first.any(), next_second | asked, 0)),
        ]
        with m.If(self.reset):
            m.d.sync += self._void.eq(1)
        with m.Elif(~first.any()):
            m.d.sync += self._void.eq(0)
