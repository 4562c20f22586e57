"""Ports of the sequencer and the feeders: what they say to each other, the host and the units."""

from enum import IntEnum

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..isa import SEMAPHORES, SLOTS, Slot
from ..vpu.interface import REGISTER_BITS

__all__ = ["AMOUNT_BITS", "FAULT_BITS", "REQUEST_ADDRESS_BITS", "REQUEST_WORD_BITS",
           "SEMAPHORE_BITS", "SMEM_ADDRESS_BITS", "WAITS", "DmaIssue", "Response", "RowPush",
           "SemaphoreSignal", "Space", "XluIssue", "core_request", "semaphore_addition"]

AMOUNT_BITS = 8
"""Width of a lane, a sublane or a distance that the cross-lane unit is given."""
FAULT_BITS = 4
"""Width of a `hdl.isa.Fault`."""
SEMAPHORE_BITS = ceil_log2(SEMAPHORES)
"""Width of a semaphore's number."""
SMEM_ADDRESS_BITS = 16
"""Width of an address of scalar memory, of any size."""
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


def semaphore_addition() -> data.StructLayout:
    """Payload of an addition to a semaphore: ``amount`` is added to semaphore ``index``."""
    return data.StructLayout({"index": SEMAPHORE_BITS, "amount": 32})


class DmaIssue(wiring.Signature):
    """The start of a transfer by a bundle; it flows out, from the sequencer to the DMA engine.

    ``valid`` 1: the bundle at issue starts a transfer, and what it says is final; it may still wait
    for other things. ``address`` 32: where the descriptor lies, all of it in scalar memory; stable
    while ``valid``. If ``valid`` falls without ``taken``, the bundle was given up.

    ``read`` 1, ``read_address`` 16, both in: the engine reads this word of scalar memory in this
    cycle; ``data`` 32: what it read, a cycle later. It never reads while ``ready``.

    ``ready`` 1, ``fault`` 4, both in: the descriptor of this ``address`` has been read and checked.
    With ``fault`` 0 the transfer can be started in this cycle, otherwise it is that fault of the
    bundle. Neither depends on this cycle's ``valid`` or ``taken``.

    ``taken`` 1: the bundle issues in this cycle, and the transfer is started; only if ``ready``.
    """

    def __init__(self) -> None:
        super().__init__({
            "valid": Out(1), "address": Out(32), "read": In(1),
            "read_address": In(SMEM_ADDRESS_BITS), "data": Out(32),
            "ready": In(1), "fault": In(FAULT_BITS), "taken": Out(1)})


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
