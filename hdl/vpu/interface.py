"""Signatures of the vector unit's ports to sequencer, feeders, cross-lane unit and host.

In each signature, `Out` members are outputs of the sender. "At issue" means in the cycle in which
the sequencer issues the bundle. A row is one sublane of a vector register, lane 0 in the lowest
bits.
"""

from enum import IntEnum

from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..config import Config
from ..isa import MASKS, SCALAR_REGISTERS, SLOTS, VECTOR_REGISTERS, Slot

__all__ = ["HOST_ADDRESS_BITS", "MASK_BITS", "REGISTER_BITS", "V1_DELAY", "ChainControl",
           "ChainWrite", "HostSpace", "LoadIssue", "MaskWrite", "MasksWritten", "RegisterWrite",
           "RegistersWritten", "RowShift", "StoreIssue", "VectorIssue", "check_vmem",
           "grant_port", "host_read_request", "host_write_row", "row_bits"]

REGISTER_BITS = ceil_log2(VECTOR_REGISTERS)
"""Width of the number of a vector register or a scalar register."""
assert ceil_log2(SCALAR_REGISTERS) == REGISTER_BITS
MASK_BITS = ceil_log2(MASKS)
"""Width of the number of a mask register."""
V1_DELAY = 2
"""Cycles by which operations of slot v1 are behind those of v0 if ``issue_cycles`` is 3."""
HOST_ADDRESS_BITS = 16
"""Width of the addresses of the host's port: numbers of vectors or of vector registers."""


def check_vmem(config: Config) -> None:
    """Check the size of vector memory.

    Raises
    ------
    ValueError
        If vector memory has fewer than 2 vectors, or more than `HOST_ADDRESS_BITS` can address.
    """
    if not 2 <= config.vmem_vectors <= 1 << HOST_ADDRESS_BITS:
        raise ValueError(f"vmem_bytes must be from 2 to {1 << HOST_ADDRESS_BITS} times the bytes "
                         f"of a vector ({config.row_bytes * config.sublanes}), not "
                         f"{config.vmem_bytes!r}")


def grant_port(config: Config) -> dict[str, wiring.Member]:
    """Return the port that permits the load of a chain, if chains share read ports of registers."""
    return {"grant": In(1)} if config.issue_cycles > 1 else {}


def row_bits(config: Config) -> int:
    """Return the width of a row in bits: 32 for each lane."""
    return 32 * config.lanes


class _Ports(wiring.Signature):
    """Base of the signatures below: signatures with the same class and members are equal."""

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, _Ports) and type(self) is type(other)
                and self.members == other.members)

    def __hash__(self) -> int:
        return hash(type(self))


class VectorIssue(_Ports):
    """An operation of a vector slot at issue, from the sequencer to the vector unit.

    ``op`` is a `hdl.isa.VectorOp`. ``d``, ``a`` and ``b`` are the numbers of vector registers, or
    of masks in the low bits. If ``use_scalar`` is set, operand b of every element is ``scalar``.
    ``m`` is the number of the mask of a `SELECT`.
    """

    def __init__(self) -> None:
        super().__init__({
            "valid": Out(1), "op": Out(SLOTS[Slot.V0]["op"]), "d": Out(REGISTER_BITS),
            "a": Out(REGISTER_BITS), "b": Out(REGISTER_BITS), "use_scalar": Out(1),
            "scalar": Out(32), "m": Out(MASK_BITS)})


class LoadIssue(_Ports):
    """A vector load at issue, from vector memory at ``address`` to vector register ``d``."""

    def __init__(self, config: Config) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS),
                          "address": Out(ceil_log2(config.vmem_vectors))})


class StoreIssue(_Ports):
    """A vector store at issue, from vector register ``d`` to vector memory at ``address``.

    Only elements whose bit of mask ``m`` is set are written.
    """

    def __init__(self, config: Config) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS),
                          "address": Out(ceil_log2(config.vmem_vectors)), "m": Out(MASK_BITS)})


class ChainControl(_Ports):
    """Control of a chain of the vector unit, effective at the end of this cycle.

    ``load`` loads the vector register with the number ``source`` into the chain. ``shift`` moves
    the chain's rows south by one sublane. If both are set, only ``load`` has an effect.
    """

    def __init__(self) -> None:
        super().__init__({"load": Out(1), "source": Out(REGISTER_BITS), "shift": Out(1)})


class RowShift(_Ports):
    """Rows for a chain of the vector unit: with ``shift``, ``row`` enters at the north.

    After as many shifts as there are sublanes, the row that entered first is sublane 0.
    """

    def __init__(self, config: Config) -> None:
        super().__init__({"shift": Out(1), "row": Out(row_bits(config))})


class ChainWrite(_Ports):
    """A write of a chain's rows to a vector register, effective at the end of this cycle.

    The rows are those of the cross-lane unit's result chain if ``from_xlu`` is set, otherwise those
    of the pop chain; ``d`` is the number of the register.
    """

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS), "from_xlu": Out(1)})


class RegisterWrite(_Ports):
    """Names a vector register: number ``d`` if ``valid`` is set, otherwise none."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "d": Out(REGISTER_BITS)})


class MaskWrite(_Ports):
    """Names a mask: number ``d`` if ``valid`` is set, otherwise none."""

    def __init__(self) -> None:
        super().__init__({"valid": Out(1), "d": Out(MASK_BITS)})


class RegistersWritten(_Ports):
    """Vector registers written at the end of this cycle, one member for each write port."""

    def __init__(self) -> None:
        super().__init__({port: Out(RegisterWrite()) for port in ("v0", "v1", "load", "chain")})


class MasksWritten(_Ports):
    """Masks written at the end of this cycle, one member for each vector slot."""

    def __init__(self) -> None:
        super().__init__({slot: Out(MaskWrite()) for slot in ("v0", "v1")})


class HostSpace(IntEnum):
    """Address spaces of the vector unit that the host can read."""

    VMEM = 0
    VREG = 1
    MASK = 2


def host_read_request() -> data.StructLayout:
    """Payload of a read request of the host; ``space`` is a `HostSpace`.

    A read of masks returns all masks and ignores ``address``.
    """
    return data.StructLayout({"space": 2, "address": HOST_ADDRESS_BITS})


def host_write_row(config: Config) -> data.StructLayout:
    """Payload of a write of the host to vector memory: one row of a vector.

    A vector is written as ``config.sublanes`` rows; only the ``address`` of the last one is used.
    """
    return data.StructLayout({"address": HOST_ADDRESS_BITS, "data": row_bits(config)})
