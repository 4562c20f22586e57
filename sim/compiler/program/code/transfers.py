"""Descriptors of transfers whose addresses in HBM are relative to buffers."""

import math
from dataclasses import dataclass, replace
from functools import cache

from golden.dma import Descriptor
from hdl.config import Config
from hdl.dma.format import DmaSpace, pack_remote
from hdl.isa import Fault

__all__ = [
    "CODE",
    "DESTINATION",
    "SCRATCH",
    "SOURCE",
    "Peer",
    "Rows",
    "TransferWords",
    "Vectors",
    "scalar_words",
    "send",
    "transfer",
]

CODE = "code"
"""Name of the buffer that holds constants and code."""
SCRATCH = "scratch"
"""Name of the buffer for values that do not stay in vector memory."""


@dataclass(frozen=True)
class Rows:
    """A set of rows of a buffer in HBM: consecutive, or runs at regular distances.

    Attributes
    ----------
    buffer : str
        Name of the buffer.
    first : int
        Number of the first row in the buffer.
    terms : tuple of (int, int)
        Pairs (address, factor). While the program runs, the word of scalar memory at each address,
        times its factor in rows, is added to ``first``.
    run : int
        Number of consecutive rows in a run; 0 if all rows are consecutive.
    levels : tuple of (int, int)
        Nested loops over runs, the outermost first: pairs (count, distance in rows).
    strides : tuple of int
        If the rows hold a block of a larger value: for each outer dimension of that value, the
        distance in rows between successive indices; last, the distance in rows between successive
        columns of its tiles. Empty otherwise.
    """

    buffer: str
    first: int
    terms: tuple[tuple[int, int], ...] = ()
    run: int = 0
    levels: tuple[tuple[int, int], ...] = ()
    strides: tuple[int, ...] = ()

    def moved(self, rows: int, term: tuple[int, int] | None = None) -> "Rows":
        """Return these rows, moved by ``rows`` rows; ``term``, if given, is added to `terms`."""
        terms = self.terms if term is None else (*self.terms, term)
        return replace(self, first=self.first + rows, terms=terms)

    @property
    def is_plain(self) -> bool:
        """Whether the rows are consecutive and their position is a constant."""
        return not self.terms and not self.levels

    @property
    def transfers(self) -> int:
        """Number of transfers that copy the rows; one transfer covers the innermost level."""
        return math.prod(count for count, _ in self.levels[:-1])

    @property
    def inner(self) -> "Rows":
        """The rows of the first iteration of the outermost level."""
        return replace(self, levels=self.levels[1:])


@dataclass(frozen=True)
class Vectors:
    """Vectors of vector memory from address ``first`` on.

    ``terms`` are pairs (address, factor): while the program runs, the word of scalar memory at each
    address, times its factor in vectors, is added to ``first``. If ``fewer`` is given, the word at
    this address is added to the number of vectors that are copied, modulo 2**32.
    """

    first: int
    terms: tuple[tuple[int, int], ...] = ()
    fewer: int | None = None


@dataclass(frozen=True)
class Words:
    """Words of a memory from address ``first`` on.

    The memory is scalar memory (`DmaSpace.SMEM`) or instruction memory (`DmaSpace.IMEM`).
    """

    space: DmaSpace
    first: int


def scalar_words(first: int) -> Words:
    """Return the side of a transfer that lies in scalar memory, from address ``first`` on."""
    return Words(DmaSpace.SMEM, first)


@dataclass(frozen=True)
class Peer:
    """Another core, as the executing core sees it.

    Attributes
    ----------
    dx, dy : int
        Signed hops along X and Y to the other core's chip; both are 0 for the same chip.
    core : int
        Number of the core there.
    """

    dx: int
    dy: int
    core: int

    @property
    def is_remote(self) -> bool:
        """Whether the core belongs to another chip."""
        return (self.dx, self.dy) != (0, 0)

    @property
    def word(self) -> int:
        """The core in another chip, as a word of `hdl.dma.format.REMOTE_LAYOUT`."""
        return pack_remote(self.dx, self.dy, self.core)


@dataclass(frozen=True)
class TransferWords:
    """A descriptor whose addresses in HBM are still relative to buffers.

    Attributes
    ----------
    words : tuple of int
        The descriptor's words. Each address in HBM is an offset in its buffer, in bytes.
    relocations : tuple of (int, str)
        Pairs (number of a word, name of a buffer). The buffer's 64-bit address is added to that
        word (low half) and the next one (high half).
    exchange : int or None
        Number of the exchange, for a transfer to another core. Its destination is an index within
        the receiver's vectors, until `sim.compiler.program.devices.connect` adds their address.
        That differs between devices for which the same code is written.
    """

    words: tuple[int, ...]
    relocations: tuple[tuple[int, str], ...]
    exchange: int | None = None
    terms: tuple[tuple[int, int, int], ...] = ()
    """Terms that are added to the descriptor's words before the transfer, each as (number of the
    word to which it is added, address of a word of scalar memory, factor of the latter word)."""
    row_bits: int = 0
    """If HBM is larger than 4 GiB, the base-2 logarithm of a row's bytes: an address then has two
    words, and the factors of its terms count rows. Otherwise 0; the factors then count bytes."""
    copy: bool = False
    """Whether this descriptor is the copy to which `Stream.start` adds the terms."""

    @property
    def wide_words(self) -> frozenset[int]:
        """Numbers of the words whose terms are added with a carry to the next word."""
        return frozenset(word for word, _ in self.relocations) if self.row_bits else frozenset()

    def with_destination(self, address: int) -> "TransferWords":
        """Return a copy with ``address`` added to the destination; the sum must be below 2**32."""
        words = (*self.words[:DESTINATION], self.words[DESTINATION] + address,
                 *self.words[DESTINATION + 1:])
        return replace(self, words=words, exchange=None)


SOURCE, DESTINATION = 2, 6
"""Numbers of the words that hold the low halves of a descriptor's addresses."""
_ROWS = 1
"""Number of the word that holds the number of rows."""


@cache
def transfer(config: Config, source: Rows | Vectors | Words, destination: Rows | Vectors | Words,
             rows: int, semaphore: int | None) -> TransferWords:
    """Return the descriptor of a transfer; its addresses in HBM are relative to buffers.

    Parameters
    ----------
    config : Config
        The chip.
    source, destination : Rows, Vectors or Words
        What to copy, and where to.
    rows : int
        Number of rows to copy; the maximum number if ``source`` has `Vectors.fewer`.
    semaphore : int or None
        Number of the semaphore to which completion adds 1; None: completion signals none.

    Raises
    ------
    MemoryError
        If the buffer's rows would not fit HBM even if the buffer began at address 0.
    """
    sides: list[tuple[DmaSpace, int, int, int]] = []
    relocations, terms = [], []
    wide = config.hbm_bytes > 1 << 32
    for word, side in ((SOURCE, source), (DESTINATION, destination)):
        if isinstance(side, Rows):
            relocations.append((word, side.buffer))
            size = config.row_bytes
            terms += [(word, address, factor * (1 if wide else size))
                      for address, factor in side.terms]
            assert len(side.levels) < 2, side
            [(_, stride)] = side.levels or [(1, 0)]
            sides.append((DmaSpace.HBM, side.first * size, side.run if stride else 0,
                          stride * size))
        elif isinstance(side, Vectors):
            terms += [(word, address, factor) for address, factor in side.terms]
            if side.fewer is not None:
                terms.append((_ROWS, side.fewer, config.sublanes))
            sides.append((DmaSpace.VMEM, side.first, 0, 0))
        else:
            sides.append((side.space, side.first, 0, 0))
    (from_space, read, from_run, from_stride), (to_space, write, to_run, to_stride) = sides
    made = Descriptor(from_space, to_space, rows, read, from_run, from_stride, write, to_run,
                      to_stride, semaphore or 0, semaphore is not None, False)
    fault = made.check(config, config.cores)
    if fault is Fault.DMA_RANGE:
        for side, words in ((source, made.source), (destination, made.destination)):
            if isinstance(side, Rows) and not words.fits(rows, config):
                raise MemoryError(f"a program's {side.buffer} must fit HBM, which has "
                                  f"{config.hbm_bytes} bytes: use smaller arrays, or choose a "
                                  "chip with more HBM")
    assert fault is Fault.NONE, (fault, made)
    return TransferWords(made.pack(), tuple(relocations), terms=tuple(terms),
                         row_bits=config.row_bytes.bit_length() - 1 if wide else 0)


def send(config: Config, source: Vectors, vectors: int, semaphore: int,
         exchange: int, target: Peer, first: int = 0, remote_semaphore: int | None = None
         ) -> TransferWords:
    """Return the descriptor of a transfer that copies vectors to another core.

    Parameters
    ----------
    config : Config
        The chip.
    source : Vectors
        The first vector to copy.
    vectors : int
        Number of vectors to copy.
    semaphore : int
        Number of the semaphore to which 1 is added: on this core when the source has been read, and
        on the other core when the data has arrived. ``remote_semaphore``, if given, takes its place
        on the other core.
    exchange : int
        Number of the exchange.
    target : Peer
        The other core.
    first : int
        Index, in the destination of the exchange, of the first vector that is written. The
        descriptor has this index as its destination address, until
        `TransferWords.with_destination` adds the address of the exchange's destination.
    remote_semaphore : int or None
        Number of the semaphore on the other core, if that core belongs to another chip.
    """
    rows, remote = vectors * config.sublanes, target.is_remote
    made = Descriptor(
        DmaSpace.VMEM, DmaSpace.REMOTE_VMEM if remote else DmaSpace.OTHER_VMEM, rows,
        source.first, destination_address=first + (target.word << 32 if remote else 0),
        semaphore=semaphore, signal=True, signal_other=not remote, signal_remote=remote,
        remote_semaphore=(semaphore if remote_semaphore is None else remote_semaphore)
        if remote else 0)
    fault = made.check(config, config.cores, (abs(target.dx) + 1, abs(target.dy) + 1))
    assert fault is Fault.NONE, (fault, made)
    return TransferWords(made.pack(), (), exchange)
