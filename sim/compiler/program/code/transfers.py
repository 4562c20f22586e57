"""Descriptors of transfers whose addresses in HBM are relative to buffers."""

from dataclasses import dataclass
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
    """Rows of a buffer in HBM, from row ``first`` on."""

    buffer: str
    first: int


@dataclass(frozen=True)
class Vectors:
    """Vectors of vector memory, from address ``first`` on."""

    first: int


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

    def with_destination(self, address: int) -> "TransferWords":
        """The same, to another address; below 2**32."""
        words = (*self.words[:_DESTINATION], address, *self.words[_DESTINATION + 1:])
        return TransferWords(words, self.relocations)


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
    """
    sides, relocations = [], []
    for word, side in ((_SOURCE, source), (_DESTINATION, destination)):
        if isinstance(side, Rows):
            relocations.append((word, side.buffer))
            sides.append((DmaSpace.HBM, side.first * config.row_bytes))
        elif isinstance(side, Vectors):
            sides.append((DmaSpace.VMEM, side.first))
        else:
            sides.append((side.space, side.first))
    (from_space, from_address), (to_space, to_address) = sides
    made = Descriptor(from_space, to_space, rows, from_address, 0, 0, to_address, 0, 0,
                      semaphore or 0, semaphore is not None, False)
    fault = made.check(config, config.cores)
    assert fault is Fault.NONE, (fault, made)
    return TransferWords(made.pack(), tuple(relocations))


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
