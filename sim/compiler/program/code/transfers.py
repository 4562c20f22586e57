"""Descriptors of transfers whose addresses in HBM are relative to buffers."""

import math
from dataclasses import dataclass, replace
from functools import cache

from golden.dma import Descriptor
from hdl.config import Config
from hdl.dma.format import DmaSpace
from hdl.isa import Fault

__all__ = [
    "CODE",
    "SCRATCH",
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
"""Name of the buffer of values that do not stay in vector memory."""


@dataclass(frozen=True)
class Rows:
    """Rows of a buffer in HBM.

    Attributes
    ----------
    buffer : str
        Name of the buffer.
    first : int
        Number of the first row.
    terms : tuple of (int, int)
        What is added to ``first`` while the program runs: words of scalar memory, by their
        addresses, times numbers of rows.
    run : int
        Consecutive rows; 0: all are.
    levels : tuple of (int, int)
        Loops around a run, the outermost first: how often, and the distance in rows.
    strides : tuple of int
        Of a block: distances of the outer dimensions and of the columns of tiles of the value from
        which it is cut.
    """

    buffer: str
    first: int
    terms: tuple[tuple[int, int], ...] = ()
    run: int = 0
    levels: tuple[tuple[int, int], ...] = ()
    strides: tuple[int, ...] = ()

    def moved(self, rows: int, term: tuple[int, int] | None = None) -> "Rows":
        """Rows further on, by a constant number and a term."""
        terms = self.terms if term is None else (*self.terms, term)
        return replace(self, first=self.first + rows, terms=terms)

    @property
    def is_plain(self) -> bool:
        """Whether they are consecutive, and where they lie does not change."""
        return not self.terms and not self.levels

    @property
    def transfers(self) -> int:
        """Number of transfers that copy them."""
        return math.prod(count for count, _ in self.levels[:-1])

    @property
    def inner(self) -> "Rows":
        """Those of the first round of the outermost level."""
        return replace(self, levels=self.levels[1:])


@dataclass(frozen=True)
class Vectors:
    """Vectors of vector memory, from address ``first`` on; ``terms`` are those of `Rows`."""

    first: int
    terms: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Words:
    """Words of scalar memory (`DmaSpace.SMEM`) or instruction memory (`DmaSpace.IMEM`)."""

    space: DmaSpace
    first: int


def scalar_words(first: int) -> Words:
    """Words of scalar memory from address ``first`` on."""
    return Words(DmaSpace.SMEM, first)


@dataclass(frozen=True)
class TransferWords:
    """A descriptor before its buffers have addresses.

    Attributes
    ----------
    words : tuple of int
        The descriptor, with the offset in the buffer as each address in HBM.
    relocations : tuple of (int, str)
        Words to which, and to the words behind them, the 64-bit address of a buffer is to be added.
    exchange : int or None
        Of an exchange with the other core: its number, of which the other core's code says where
        it is to be written.
    """

    words: tuple[int, ...]
    relocations: tuple[tuple[int, str], ...]
    exchange: int | None = None
    terms: tuple[tuple[int, int, int], ...] = ()
    """Terms that are added to words before the transfer: the word's number, the address of a word
    of scalar memory, and its factor. They are added to a copy, which is the same with ``copy``."""
    row_bits: int = 0
    """Of an HBM of more than 4 GiB: its addresses have two words, and the factors of their terms
    are rows, of ``2**row_bits`` bytes. Otherwise 0, and factors are bytes."""
    copy: bool = False

    @property
    def wide_words(self) -> frozenset[int]:
        """Words that terms are added to with a carry to the next word."""
        return frozenset(word for word, _ in self.relocations) if self.row_bits else frozenset()

    def with_destination(self, address: int) -> "TransferWords":
        """The same, to another address; below 2**32."""
        words = (*self.words[:_DESTINATION], address, *self.words[_DESTINATION + 1:])
        return replace(self, words=words, exchange=None)


_SOURCE, _DESTINATION = 2, 6
"""Words of the low halves of a descriptor's addresses."""


@cache
def transfer(config: Config, source: Rows | Vectors | Words, destination: Rows | Vectors | Words,
             rows: int, semaphore: int | None) -> TransferWords:
    """Make a descriptor.

    Parameters
    ----------
    config : Config
        The chip.
    source, destination : Rows, Vectors or Words
        The two sides.
    rows : int
        Rows to copy.
    semaphore : int or None
        Number of the semaphore to which completion adds 1.

    Raises
    ------
    MemoryError
        If rows of a buffer would lie outside of HBM even if the buffer had all of it.
    """
    sides: list[tuple[DmaSpace, int, int, int]] = []
    relocations, terms = [], []
    wide = config.hbm_bytes > 1 << 32
    for word, side in ((_SOURCE, source), (_DESTINATION, destination)):
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
                raise MemoryError(f"a program whose {side.buffer} is larger than HBM, which has "
                                  f"{config.hbm_bytes} bytes: use smaller arrays, or choose a "
                                  "chip with more HBM")
    assert fault is Fault.NONE, (fault, made)
    return TransferWords(made.pack(), tuple(relocations), terms=tuple(terms),
                         row_bits=config.row_bytes.bit_length() - 1 if wide else 0)


def send(config: Config, source: Vectors, vectors: int, semaphore: int,
         exchange: int) -> TransferWords:
    """Make a descriptor that copies vectors to the other core.

    Parameters
    ----------
    config : Config
        The chip.
    source : Vectors
        What to copy.
    vectors : int
        How many vectors.
    semaphore : int
        Number of the semaphores, one of each core, to which completion adds 1.
    exchange : int
        Number of the exchange.
    """
    made = Descriptor(DmaSpace.VMEM, DmaSpace.OTHER_VMEM, vectors * config.sublanes, source.first,
                      0, 0, 0, 0, 0, semaphore, True, True)
    fault = made.check(config, config.cores)
    assert fault is Fault.NONE, (fault, made)
    return TransferWords(made.pack(), (), exchange)
