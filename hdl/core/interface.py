"""Signatures and layouts of the ports between sequencer, feeders, units and host.

In each signature, `Out` members are outputs of the sender. "At issue" means in the cycle in which
the sequencer issues the bundle.
"""

from enum import IntEnum

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..config import Config
from ..dma.format import DESCRIPTOR_WORDS
from ..isa import BUNDLE_PITCH, SEMAPHORES, SLOTS, Slot
from ..vpu.interface import REGISTER_BITS

__all__ = ["AMOUNT_BITS", "FAULT_BITS", "REQUEST_ADDRESS_BITS", "REQUEST_WORD_BITS",
           "SEMAPHORE_BITS", "SMEM_ADDRESS_BITS", "WAITS", "DmaIssue", "Response", "RowPush",
           "SemaphoreSignal", "Space", "XluIssue", "core_request", "descriptor_words",
           "fault_bits", "link_ports", "remote_signal", "semaphore_addition", "word_write",
           "write_words"]

AMOUNT_BITS = 8
"""Width of the cross-lane unit's scalar operand b, such as the number of a lane."""
FAULT_BITS = 4
"""Width of a `hdl.isa.Fault` of a bundle or a descriptor; see `fault_bits`."""
SEMAPHORE_BITS = ceil_log2(SEMAPHORES)
"""Width of a semaphore's number."""
SMEM_ADDRESS_BITS = 16
"""Width of a scalar memory address in all configurations."""
REQUEST_ADDRESS_BITS = 20
"""Width of the address in a request to the sequencer."""
REQUEST_WORD_BITS = 4
"""Number of low bits of an instruction memory address that select a word of the bundle."""


def fault_bits(config: Config) -> int:
    """Return the width of a core's `hdl.isa.Fault`. Links add a bit, for the fault LINK."""
    return FAULT_BITS + (config.link_bytes != 0)


WAITS = ("vector", "memory", "semaphore", "instruction")
"""Reasons why the sequencer waits; at most one of its outputs ``waiting_{wait}`` is set."""


class RowPush(wiring.Signature):
    """A push of a vector register to the array at issue, from the sequencer to a `RowFeeder`.

    ``source`` is the number of the register. In a push of activations, ``flag`` means that the next
    weight tile becomes active before these rows. In a push of weights, it means that the rows are
    loaded as columns of the array.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "source": Out(REGISTER_BITS), "flag": Out(1)})


class XluIssue(wiring.Signature):
    """An operation of the cross-lane unit at issue, from the sequencer to the unit.

    ``op`` is a `MiscOp`. ``d`` and ``a`` are the numbers of the vector registers that it writes and
    reads. ``amount`` is the operand b of the operation, within its range (docs/isa.md).
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "op": Out(SLOTS[Slot.MISC]["op"]),
                          "d": Out(REGISTER_BITS), "a": Out(REGISTER_BITS),
                          "amount": Out(AMOUNT_BITS)})


class SemaphoreSignal(wiring.Signature):
    """Adds ``amount`` to semaphore ``index`` in each cycle in which ``valid`` is set."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "index": Out(SEMAPHORE_BITS), "amount": Out(32)})


def semaphore_addition() -> data.StructLayout:
    """Payload of a semaphore addition: adds ``amount`` to semaphore ``index``."""
    return data.StructLayout({"index": SEMAPHORE_BITS, "amount": 32})


class DmaIssue(wiring.Signature):
    """The start of a transfer by a bundle, from the sequencer to the DMA engine.

    ``valid``: the current bundle starts a transfer, and its operands are final; the bundle may
    still wait for other conditions. ``address`` is the descriptor's address in scalar memory, where
    the whole descriptor lies. The address is stable while ``valid``. If ``valid`` falls
    without ``taken``, the bundle was abandoned.

    ``read``: the engine reads `descriptor_words` words of scalar memory in this cycle, from
    ``read_address`` on, and gets them as ``data`` one cycle later. The engine never reads while
    ``ready``.

    ``ready``: the descriptor at ``address`` has been read and checked. If ``fault`` is 0, the
    transfer can start in this cycle; otherwise ``fault`` is the bundle's fault. ``ready`` and
    ``fault`` do not depend on ``valid`` or ``taken`` of this cycle.

    ``taken``: the bundle issues in this cycle and starts the transfer; only if ``ready``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__({
            "valid": Out(1), "address": Out(32), "read": In(1),
            "read_address": In(SMEM_ADDRESS_BITS), "data": Out(32 * descriptor_words(config)),
            "ready": In(1), "fault": In(FAULT_BITS), "taken": Out(1)})


class Space(IntEnum):
    """Address spaces of requests to the sequencer.

    An address is the number of a word, register or semaphore. In instruction memory, the low
    `REQUEST_WORD_BITS` are the number of a word in its bundle, and the other bits the number of the
    bundle.
    """

    IMEM = 0
    SMEM = 1
    SCALAR = 2
    SEMAPHORE = 3


SPACE_BITS = ceil_log2(len(Space))


def core_request() -> data.StructLayout:
    """Payload of a request to write or read the word at ``address`` of ``space``, a `Space`."""
    return data.StructLayout({"write": 1, "space": SPACE_BITS, "address": REQUEST_ADDRESS_BITS,
                              "data": 32})


def remote_signal() -> data.StructLayout:
    """Payload of a signal to another chip, which adds ``amount`` to a ``semaphore``.

    ``word`` names the core with this semaphore, as `hdl.dma.format.REMOTE_LAYOUT` defines.
    """
    return data.StructLayout({"word": 32, "semaphore": SEMAPHORE_BITS, "amount": 32})


def link_ports() -> dict[str, wiring.Member]:
    """Ports of a core whose chip has links.

    ``link_error``: a link is down, or a wrong packet has arrived; the core stops with a fault at
    the next bundle. ``remote``: signals that bundles send to other chips. ``remote_fault``: the
    fault of a signal with the present payload of ``remote``; it must not depend on ``valid``.
    """
    return {"link_error": In(1), "remote": Out(stream.Signature(remote_signal())),
            "remote_fault": In(FAULT_BITS)}


def write_words(config: Config) -> int:
    """Return the number of words that a transfer writes in a cycle.

    It is ``lanes``, rounded down to a power of two, but at most `BUNDLE_PITCH`.
    """
    return min(BUNDLE_PITCH, 1 << config.lanes.bit_length() - 1)


def descriptor_words(config: Config) -> int:
    """Return the number of words of a descriptor that are read in a cycle.

    All words are read in one cycle if they always lie in different banks of scalar memory.
    Otherwise, one word is read in each cycle: in a small core, reading a few at a time is not worth
    the hardware.
    """
    return DESCRIPTOR_WORDS if write_words(config) >= DESCRIPTOR_WORDS else 1


def word_write(config: Config) -> data.StructLayout:
    """Payload of a write by a transfer: `write_words` words from ``address`` of ``space`` on.

    ``space`` is `Space.IMEM` or `Space.SMEM`. All words lie within the memory. In instruction
    memory, ``address`` is a multiple of `write_words`, and words beyond the
    `hdl.isa.BUNDLE_WORDS` words of a bundle are ignored.
    """
    return data.StructLayout({"space": SPACE_BITS, "address": REQUEST_ADDRESS_BITS,
                              "data": 32 * write_words(config)})


class Response(wiring.Signature):
    """The response to a request, one cycle after the acceptance of the request.

    ``error``: the address does not exist, and nothing was written. ``data`` is the word read, or
    zero after an error or a write.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "error": Out(1), "data": Out(32)})
