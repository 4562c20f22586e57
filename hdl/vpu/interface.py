"""Signatures of the vector unit's ports to sequencer, feeders, cross-lane unit and host.

"Issue" is the cycle in which the sequencer issues a bundle. A row is one sublane of a vector
register, lane 0 in the lowest bits.
"""

from enum import IntEnum

from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out
from amaranth.utils import ceil_log2

from ..config import Config
from ..isa import MASKS, SCALAR_REGISTERS, SLOTS, VECTOR_REGISTERS, Slot

__all__ = ["HOST_ADDRESS_BITS", "MASK_BITS", "REGISTER_BITS", "ChainControl", "ChainWrite",
           "HostSpace", "LoadIssue", "MaskWrite", "MasksWritten", "RegisterWrite",
           "RegistersWritten", "RowShift", "StoreIssue", "VectorIssue", "check_vmem",
           "host_read_request", "host_write_row", "row_bits"]

REGISTER_BITS = ceil_log2(VECTOR_REGISTERS)
"""Width of the number of a vector register or a scalar register."""
assert ceil_log2(SCALAR_REGISTERS) == REGISTER_BITS
MASK_BITS = ceil_log2(MASKS)
"""Width of the number of a mask register."""
HOST_ADDRESS_BITS = 16
"""Width of an address of the host's port."""


def check_vmem(config: Config) -> None:
    """Check the size of vector memory.

    Raises
    ------
    ValueError
        If it has fewer than 2 vectors, or more than an address of the host can reach.
    """
    if not 2 <= config.vmem_vectors <= 1 << HOST_ADDRESS_BITS:
        raise ValueError(f"vmem_bytes must be from 2 to {1 << HOST_ADDRESS_BITS} vector "
                         f"registers, not {config.vmem_bytes!r}")


def row_bits(config: Config) -> int:
    """Width of a row: one 32-bit word per lane."""
    return 32 * config.lanes


class _Ports(wiring.Signature):
    """A signature that equals others of its kind with the same members."""

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, _Ports) and type(self) is type(other)
                and self.members == other.members)

    def __hash__(self) -> int:
        return hash(type(self))


class VectorIssue(_Ports):
    """An operation of a vector slot, at issue; it flows out.

    ``valid`` 1; ``op`` 6, a `VectorOp`; ``d``, ``a``, ``b`` 5, vector registers, or masks in the
    low bits; ``use_scalar`` 1: operand b is ``scalar`` 32 in all elements; ``m`` 3, the mask of a
    select.
    """

    def __init__(self) -> None:
        super().__init__({
            "valid": Out(1), "op": Out(SLOTS[Slot.V0]["op"]), "d": Out(REGISTER_BITS),
            "a": Out(REGISTER_BITS), "b": Out(REGISTER_BITS), "use_scalar": Out(1),
            "scalar": Out(32), "m": Out(MASK_BITS)})


class LoadIssue(_Ports):
    """A vector load, at issue; it flows out: register ``d`` = vector memory at ``address``."""

    def __init__(self, config: Config) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS),
                          "address": Out(ceil_log2(config.vmem_vectors))})


class StoreIssue(_Ports):
    """A vector store, at issue; it flows out: vector memory at ``address`` = register ``d``.

    Only elements whose bit of mask ``m`` is set are written.
    """

    def __init__(self, config: Config) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS),
                          "address": Out(ceil_log2(config.vmem_vectors)), "m": Out(MASK_BITS)})


class ChainControl(_Ports):
    """Control of a chain of rows, at the end of this cycle; it flows out to the vector unit.

    ``load`` 1: loads register ``source`` 5. ``shift`` 1: moves one row south. ``load`` has
    priority.
    """

    def __init__(self) -> None:
        super().__init__({"load": Out(1), "source": Out(REGISTER_BITS), "shift": Out(1)})


class RowShift(_Ports):
    """Rows for a chain; it flows out: with ``shift``, ``row`` enters at the north.

    The first of S successive rows ends as sublane 0.
    """

    def __init__(self, config: Config) -> None:
        super().__init__({"shift": Out(1), "row": Out(row_bits(config))})


class ChainWrite(_Ports):
    """A write from a chain, at the end of this cycle; it flows out to the vector unit.

    Register ``d`` = the cross-lane unit's result chain if ``from_xlu``, otherwise the pop chain.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS), "from_xlu": Out(1)})


class RegisterWrite(_Ports):
    """The number ``d`` of a vector register, if ``valid``; it flows out."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS)})


class MaskWrite(_Ports):
    """The number ``d`` of a mask, if ``valid``; it flows out."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "d": Out(MASK_BITS)})


class RegistersWritten(_Ports):
    """Vector registers that are written at the end of this cycle, by write port; it flows out."""

    def __init__(self) -> None:
        super().__init__({port: Out(RegisterWrite()) for port in ("v0", "v1", "load", "chain")})


class MasksWritten(_Ports):
    """Masks that are written at the end of this cycle, by vector slot; it flows out."""

    def __init__(self) -> None:
        super().__init__({slot: Out(MaskWrite()) for slot in ("v0", "v1")})


class HostSpace(IntEnum):
    """Spaces that the host can read."""

    VMEM = 0
    VREG = 1
    MASK = 2


def host_read_request() -> data.StructLayout:
    """Payload of a read by the host: ``space`` is a `HostSpace`; masks are read all at once."""
    return data.StructLayout({"space": 2, "address": HOST_ADDRESS_BITS})


def host_write_row(config: Config) -> data.StructLayout:
    """Payload of a host write to vector memory: one row; only the last row's address matters."""
    return data.StructLayout({"address": HOST_ADDRESS_BITS, "data": row_bits(config)})
