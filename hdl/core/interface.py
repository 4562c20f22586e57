"""Ports of the sequencer and the feeders: what they say to each other, the host and the units."""

from enum import IntEnum

from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out
from amaranth.utils import ceil_log2

from ..isa import SEMAPHORES, SLOTS, Slot
from ..vpu.interface import REGISTER_BITS

__all__ = ["AMOUNT_BITS", "FAULT_BITS", "REQUEST_ADDRESS_BITS", "REQUEST_WORD_BITS", "WAITS",
           "Response", "RowPush", "SemaphoreSignal", "Space", "XluIssue", "core_request"]

AMOUNT_BITS = 8
"""Width of a lane, a sublane or a distance that the cross-lane unit is given."""
FAULT_BITS = 4
"""Width of a `hdl.isa.Fault`."""
SEMAPHORE_BITS = ceil_log2(SEMAPHORES)
REQUEST_ADDRESS_BITS = 20
"""Width of an address of the host's requests to the sequencer."""
REQUEST_WORD_BITS = 4
"""Low bits of an address of instruction memory, which number the words of a bundle."""

WAITS = ("vector", "memory", "semaphore", "instruction")
"""What the sequencer can wait for: at most one of its outputs ``waiting_{wait}`` is set."""


class RowPush(wiring.Signature):
    """A vector register to be fed to the array, at issue; it flows out.

    ``valid`` 1; ``source`` 5, its number; ``flag`` 1: of activations, that the next weights become
    the active ones before; of weights, that the rows are columns.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "source": Out(REGISTER_BITS), "flag": Out(1)})


class XluIssue(wiring.Signature):
    """An operation of the cross-lane unit, at issue; it flows out.

    ``valid`` 1; ``op`` 5, a `MiscOp`; ``d``, ``a`` 5, vector registers written and read;
    ``amount`` 8: lane, sublane, distance or group, within its range.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "op": Out(SLOTS[Slot.MISC]["op"]),
                          "d": Out(REGISTER_BITS), "a": Out(REGISTER_BITS),
                          "amount": Out(AMOUNT_BITS)})


class SemaphoreSignal(wiring.Signature):
    """Adds ``amount`` 32 to semaphore ``index`` 4 in this cycle if ``valid``; it flows out."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "index": Out(SEMAPHORE_BITS), "amount": Out(32)})


class Space(IntEnum):
    """What the host's requests to the sequencer go to.

    An address is the number of a word, register or semaphore; of instruction memory it is the
    number of a bundle and, in the low `REQUEST_WORD_BITS`, that of its word.
    """

    IMEM = 0
    SMEM = 1
    SCALAR = 2
    SEMAPHORE = 3


SPACE_BITS = ceil_log2(len(Space))


def core_request() -> data.StructLayout:
    """Payload of a request: ``write`` or read the word at ``address`` of ``space``, a `Space`."""
    return data.StructLayout({"write": 1, "space": SPACE_BITS, "address": REQUEST_ADDRESS_BITS,
                              "data": 32})


class Response(wiring.Signature):
    """The answer to a request, one cycle after it was accepted; it flows out.

    ``valid`` 1; ``error`` 1: there is no such address, nothing was written; ``data`` 32: the word
    read, zero after an error or a write.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "error": Out(1), "data": Out(32)})
