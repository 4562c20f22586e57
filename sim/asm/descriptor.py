"""Descriptors of transfers, made from named arguments: the words that `misc.dma` reads.

    words = descriptor(config, hbm(0x4000, run=16, stride=8192), vmem(32), rows=64,
                       semaphore=sem[3])

copies 64 rows, 16 from each of four addresses in HBM that are 8192 bytes apart, to vector memory
from vector 32 on, and then adds 1 to semaphore 3. A program starts the transfer, any number of
times, by the address of the words in scalar memory.
"""

from dataclasses import dataclass, replace
from typing import Any

from golden.dma import Descriptor, Side
from hdl.checks import instance, integer
from hdl.config import Config
from hdl.dma.format import (
    DMA_DESTINATIONS,
    DMA_MAX_ROWS,
    DMA_SOURCES,
    DmaSpace,
    pack_remote,
)
from hdl.isa import BUNDLE_PITCH, Fault
from hdl.link.format import MAX_SIDE
from sim.asm.operands import Semaphore, Vector

__all__ = ["Place", "descriptor", "hbm", "imem", "masks", "other_vmem", "remote_vmem", "smem",
           "vmem", "vreg"]


@dataclass(frozen=True)
class Place:
    """One side of a transfer, in the units of a descriptor; made by `hbm`, `vmem` and so on.

    Attributes
    ----------
    space : DmaSpace
    address : int
        First address: in bytes for HBM, in words for scalar and instruction memory, otherwise in
        vectors; for vector registers, the number of the first one.
    run : int
        Number of consecutive rows (HBM) or vectors (other spaces) in a run; 0 if there is one run.
    stride : int
        Distance from the start of one run to the start of the next, in the address's unit.
    remote : int
        In the space REMOTE_VMEM: which core of which chip, encoded as in
        `hdl.dma.format.REMOTE_LAYOUT`. In other spaces: 0.
    """

    space: DmaSpace
    address: int
    run: int = 0
    stride: int = 0
    remote: int = 0


def _place(space: DmaSpace, address_name: str, address: Any, run: Any = 0,
           stride: Any = 0) -> Place:
    place = Place(space, integer(address_name, address), integer("run", run),
                  integer("stride", stride))
    bits = 64 if space is DmaSpace.HBM else 32
    if not 0 <= place.address < 1 << bits:
        raise ValueError(f"{address_name} must be from 0 to 2**{bits} - 1, not {address!r}")
    if not 0 <= place.run < 1 << 32:
        raise ValueError(f"run must be from 0 to 2**32 - 1, not {run!r}")
    if not -1 << 31 <= place.stride < 1 << 31:
        raise ValueError(f"stride must be from -2**31 to 2**31 - 1, not {stride!r}")
    if place.stride and not place.run:
        raise ValueError(f"stride must be 0 if run is 0, not {stride!r}")
    return place


def hbm(address: int, *, run: int = 0, stride: int = 0) -> Place:
    """Side of a transfer: rows in HBM.

    Parameters
    ----------
    address : int
        Address of the first row, in bytes; a multiple of ``config.row_bytes``.
    run : int
        Number of consecutive rows in a run; 0 if all rows are one run.
    stride : int
        Bytes from the start of one run to the start of the next; a multiple of
        ``config.row_bytes``, possibly negative.

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer or out of range, or a stride is given without a run.
    """
    return _place(DmaSpace.HBM, "address", address, run, stride)


def vmem(address: int, *, run: int = 0, stride: int = 0) -> Place:
    """Side of a transfer: vectors of this core's vector memory, ``config.sublanes`` rows each.

    Parameters
    ----------
    address : int
        Address of the first vector, as for loads and stores.
    run : int
        Number of consecutive vectors in a run; 0 if all vectors are one run.
    stride : int
        Vectors from the start of one run to the start of the next; possibly negative.

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer or out of range, or a stride is given without a run.
    """
    return _place(DmaSpace.VMEM, "address", address, run, stride)


def other_vmem(address: int, *, run: int = 0, stride: int = 0) -> Place:
    """Side of a transfer: vectors of the other core's vector memory; arguments as for `vmem`."""
    return _place(DmaSpace.OTHER_VMEM, "address", address, run, stride)


def remote_vmem(address: int, dx: int, dy: int, core: int = 0, *, run: int = 0,
                stride: int = 0) -> Place:
    """Destination of a transfer: vectors of the vector memory of a core of another chip.

    The source must be vector memory of this core.

    Parameters
    ----------
    address : int
        Address of the first vector there.
    dx, dy : int
        Signed hops along X and Y from this chip to the other, -31 to 31, not both 0.
    core : int
        Number of the core there.
    run, stride : int
        As for `vmem`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer or out of range, or a stride is given without a run.
    """
    for name, hops in (("dx", dx), ("dy", dy)):
        integer(name, hops, 1 - MAX_SIDE, MAX_SIDE - 1)
    if dx == dy == 0:
        raise ValueError("dx and dy must not both be 0: the chip itself is not remote")
    remote = pack_remote(dx, dy, integer("core", core, 0, 1))
    return replace(_place(DmaSpace.REMOTE_VMEM, "address", address, run, stride), remote=remote)


def smem(word: int) -> Place:
    """Side of a transfer: scalar memory from address ``word`` on, ``config.lanes`` words a row.

    Raises
    ------
    TypeError, ValueError
        If ``word`` is not an integer or out of range.
    """
    return _place(DmaSpace.SMEM, "word", word)


def imem(bundle: int) -> Place:
    """Side of a transfer: instruction memory from address ``bundle`` on.

    It can only be a destination. In the source, each bundle takes `BUNDLE_PITCH` words, as in rows
    that `Program.rows` makes.

    Raises
    ------
    TypeError, ValueError
        If ``bundle`` is not an integer or out of range.
    """
    number = integer("bundle", bundle)
    last = (1 << 32) // BUNDLE_PITCH - 1
    if not 0 <= number <= last:
        raise ValueError(f"bundle must be from 0 to {last}, not {bundle!r}")
    return _place(DmaSpace.IMEM, "bundle", BUNDLE_PITCH * number)


def vreg(register: Vector, *, run: int = 0, stride: int = 0) -> Place:
    """Source of a transfer: vector registers from ``register`` on; other arguments as for `vmem`.

    Raises
    ------
    TypeError, ValueError
        If ``register`` is not a vector register, another argument is not an integer or out of
        range, or a stride is given without a run.
    """
    if not isinstance(register, Vector):
        raise TypeError(f"register must be a vector register, not {register!r}")
    return _place(DmaSpace.VREG, "register", register.number, run, stride)


def masks() -> Place:
    """Source of a transfer: all masks as one vector; bit *i* of an element is mask *i*."""
    return _place(DmaSpace.MASK, "address", 0)


def descriptor(config: Config, source: Place, destination: Place, *, rows: int,
               semaphore: Semaphore | None = None,
               other_semaphore: Semaphore | None = None,
               remote_semaphore: Semaphore | None = None) -> tuple[int, ...]:
    """Return the `hdl.dma.format.DESCRIPTOR_WORDS` words of a descriptor, checked for the chip.

    Parameters
    ----------
    config : Config
        The chip.
    source, destination : Place
        The two sides of the transfer, made by `hbm`, `vmem`, `other_vmem`, `remote_vmem`, `smem`,
        `imem`, `vreg` or `masks`.
    rows : int
        Number of rows, of ``config.row_bytes`` bytes each; a multiple of ``config.sublanes``
        unless both sides are HBM, scalar or instruction memory.
    semaphore : Semaphore or None
        This core's semaphore to which the transfer adds 1 when it is complete. A remote transfer,
        whose destination is on another chip, adds 1 when all vectors have left this core.
    other_semaphore : Semaphore or None
        Semaphore of this chip's other core to which the transfer adds 1 at the same time. If
        ``semaphore`` is given, too, both must have the same number.
    remote_semaphore : Semaphore or None
        Only for a remote transfer: semaphore of the receiving core to which the transfer adds 1
        after the last vector has arrived.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type, or the transfer would fault; the message says why.
    """
    instance("config", config, Config)
    count = integer("rows", rows)
    if not 1 <= count <= DMA_MAX_ROWS:
        raise ValueError(f"rows must be from 1 to {DMA_MAX_ROWS}, not {rows!r}")
    _check_place("source", source, DMA_SOURCES, count, config)
    _check_place("destination", destination, DMA_DESTINATIONS, count, config)
    made = Descriptor(
        source.space, destination.space, count,
        source.address, source.run, source.stride,
        destination.address | destination.remote << 32, destination.run, destination.stride,
        *_signals(config, semaphore, other_semaphore),
        *_remote_signal(source, destination, remote_semaphore))
    fault = made.check(config, config.cores, (MAX_SIDE, MAX_SIDE))
    assert fault is Fault.NONE, fault
    return made.pack()


def _signals(config: Config, semaphore: Semaphore | None,
             other: Semaphore | None) -> tuple[int, bool, bool]:
    """Return the values of the descriptor's fields ``semaphore``, ``signal``, ``signal_other``.

    ``semaphore`` and ``other`` are this core's and the other core's semaphore, as in `descriptor`.
    """
    for name, value in (("semaphore", semaphore), ("other_semaphore", other)):
        if value is not None and not isinstance(value, Semaphore):
            raise TypeError(f"{name} must be a semaphore or None, not {value!r}")
    if other is not None and config.cores == 1:
        raise ValueError(f"other_semaphore must be None on a chip of one core, not {other!r}")
    if semaphore is not None and other is not None and semaphore != other:
        raise ValueError(f"other_semaphore must be {semaphore!r}, like semaphore, not {other!r}")
    used = semaphore or other
    return used.number if used else 0, semaphore is not None, other is not None


def _remote_signal(source: Place, destination: Place,
                   semaphore: Semaphore | None) -> tuple[bool, int]:
    """Return the values of the descriptor's fields ``signal_remote`` and ``remote_semaphore``.

    ``semaphore`` is the remote semaphore, or None, for a transfer from ``source`` to
    ``destination``.
    """
    remote = destination.space is DmaSpace.REMOTE_VMEM
    if remote and source.space is not DmaSpace.VMEM:
        raise ValueError("source must be in VMEM for a remote transfer, "
                         f"not in {source.space.name}")
    if semaphore is None:
        return False, 0
    if not isinstance(semaphore, Semaphore):
        raise TypeError(f"remote_semaphore must be a semaphore or None, not {semaphore!r}")
    if not remote:
        raise ValueError("remote_semaphore must be None unless destination is in REMOTE_VMEM, "
                         f"not {semaphore!r}")
    return True, semaphore.number


def _check_place(name: str, place: Place, allowed: frozenset[DmaSpace], rows: int,
                 config: Config) -> None:
    instance(name, place, Place)
    if place.space not in allowed:
        names = ", ".join(space.name for space in sorted(allowed))
        raise ValueError(f"{name} must be in one of {names}, not in {place.space.name}")
    side = Side(place.space, place.address, place.run, place.stride)
    if side.info.cores > config.cores:
        raise ValueError(f"{name} must not be in {place.space.name} on a chip of one core")
    if not side.info.exists(config):
        raise ValueError(f"{name} must not be in {place.space.name} on a chip without links")
    if place.remote >> 16 >= config.cores:
        raise ValueError(f"core of the {name} must be less than {config.cores}, "
                         f"not {place.remote >> 16}")
    if side.info.vector and rows % config.sublanes:
        raise ValueError(f"rows must be a multiple of {config.sublanes}, the rows of a vector, if "
                         f"{name} is in {place.space.name}, not {rows!r}")
    if place.space is DmaSpace.HBM:
        for what, value in (("address", place.address), ("stride", place.stride)):
            if value % config.row_bytes:
                raise ValueError(f"{name}: {what} must be a multiple of {config.row_bytes}, the "
                                 f"bytes of a row, not {value!r}")
    low, high = side.span(rows, config)
    if not side.fits(rows, config):
        raise ValueError(f"{name} must lie within 0 to {side.size(config) - 1} of "
                         f"{place.space.name}, not reach from {low} to {high - 1}")
