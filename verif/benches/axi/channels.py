"""Makes channels of `cocotbext.axi` faster: they transfer the same in the same cycles.

Its own tasks read each signal as an object with a type for each bit, and drive all signals anew
with each transfer.
"""

from functools import partial
from importlib.metadata import version
from typing import Any

from cocotb.triggers import RisingEdge
from cocotbext.axi.stream import StreamSink, StreamSource

from verif.benches.clocking import int_reader, writer

__all__ = ["VERSION", "quicken"]

VERSION = "0.1.28"
"""The version of `cocotbext.axi` whose tasks are known here.

`quicken` leaves the channels of others unchanged."""


def quicken(*sides: Any, log: int) -> None:
    """Makes all channels of some sides faster, from their next reset on, and their logs shorter.

    Parameters
    ----------
    sides : objects of `cocotbext.axi`
        Each reads or writes; its channels are its attributes.
    log : int
        Lowest level of the messages that the sides log. A line for each access would bury what a
        failing test says.
    """
    for side in sides:
        side.log.setLevel(log)
    if version("cocotbext-axi") != VERSION:
        return
    for side in sides:
        for channel in vars(side).values():
            if isinstance(channel, StreamSink):
                channel._run = partial(_take, channel)
            elif isinstance(channel, StreamSource):
                channel._run = partial(_offer, channel)


async def _take(sink: StreamSink) -> None:
    """Does what ``StreamSink._run`` does; values that it takes are integers."""
    edge, wake = RisingEdge(sink.clock), sink.wake_event
    read_ready, read_valid = int_reader(sink.ready), int_reader(sink.valid)
    drive_ready = writer(sink.ready)
    transaction = sink._transaction_obj
    fields = [(name, int_reader(signal)) for name, signal in sink.bus._signals.items()
              if hasattr(transaction, name)]
    while True:
        pause = bool(sink.pause)
        await edge
        ready, valid = read_ready(), read_valid()
        if ready and valid:
            taken = transaction()
            for name, read in fields:
                setattr(taken, name, read())
            sink.queue.put_nowait(taken)
            sink.active_event.set()
        stop = pause or sink.full()
        if ready == stop:
            drive_ready(int(not stop))
        if (not valid or stop) and pause == bool(sink.pause):
            wake.clear()
            await wake.wait()


async def _offer(source: StreamSource) -> None:
    """Does what ``StreamSource._run`` does, but drives only signals that change."""
    edge = RisingEdge(source.clock)
    read_ready, read_valid = int_reader(source.ready), int_reader(source.valid)
    drive_valid = writer(source.valid)
    fields = [(name, writer(signal)) for name, signal in source.bus._signals.items()
              if hasattr(source._transaction_obj, name)]
    driven: dict[str, int] = {}
    while True:
        await edge
        valid = read_valid()
        if valid and not read_ready():
            continue
        if not source.queue.empty() and not source.pause:
            offered = source.queue.get_nowait()
            for name, drive in fields:
                value = getattr(offered, name)
                if driven.get(name) != value:
                    drive(value)
                    driven[name] = value
            source.dequeue_event.set()
            if not valid:
                drive_valid(1)
            source.active = True
        else:
            if valid:
                drive_valid(0)
            source.active = not source.queue.empty()
            if not source.active:
                source.idle_event.set()
                source.active_event.clear()
                await source.active_event.wait()
