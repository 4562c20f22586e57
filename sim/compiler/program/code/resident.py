"""The resident part of a program: its start, and the loader of segments."""

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.isa import Slot
from sim.asm.operands import s, sem
from sim.compiler.program.code.encode import Operations
from sim.compiler.program.code.reserved import LOADED, PAIR, TARGET, WORK
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.transfers import CODE, Rows, scalar_words, transfer

__all__ = ["load", "resident", "resident_bundles"]

_ADDRESS_WORDS = range(2, 4)
"""Numbers of the descriptor words that hold the source's address."""


def resident(config: Config, entry: int, single: bool = False) -> tuple[list[Operations], int]:
    """Return the bundles of the resident part, and the address of the loader within it.

    The part's first bundles store a descriptor in scalar memory and start its transfer, which loads
    the words of `ScalarMemory.fixed`. Execution then runs on into the loader. The loader starts the
    two transfers of a pair of descriptors, which load the code and the scalar image of a segment,
    and jumps to that segment.

    Parameters
    ----------
    config : Config
        The chip.
    entry : int
        Address of the bundle at which the code begins.
    single : bool
        Whether the code is a single, resident segment: then the loader loads only the scalar image.
    """
    memory = ScalarMemory(config)
    words = transfer(config, Rows(CODE, 0), scalar_words(memory.fixed.start),
                     len(memory.fixed) // config.lanes, LOADED).words
    at = memory.kernel.start
    sources: list[object] = list(words)
    sources[_ADDRESS_WORDS.start:_ADDRESS_WORDS.stop] = ["low", "high"]
    bundles: list[Operations] = [[(Slot.S1, "add", (WORK, s[0], sources[0]))]]
    for number in range(DESCRIPTOR_WORDS):
        store = (Slot.S0, "store", (WORK, s[0], at + number))
        following = [(Slot.S1, "add", (WORK, s[0], source))
                     for source in sources[number + 1:number + 2]]
        bundles.append([store, *following])
    bundles += [
        [(Slot.MISC, "dma", (at,))],
        [(Slot.MISC, "wait", (sem[LOADED], 1)), *load(memory.first_pair, entry)],
    ]
    loader = len(bundles)
    if single:
        bundles += [
            [(Slot.MISC, "dma", (PAIR,))],
            [(Slot.MISC, "wait", (sem[LOADED], 1)), (Slot.S1, "jump", (TARGET,))],
            [],
        ]
        return bundles, loader
    bundles += [
        [(Slot.MISC, "dma", (PAIR,)), (Slot.S0, "add", (PAIR, PAIR, DESCRIPTOR_WORDS))],
        [(Slot.MISC, "dma", (PAIR,))],
        [(Slot.MISC, "wait", (sem[LOADED], 1)), (Slot.S1, "jump", (TARGET,))],
    ]
    return bundles, loader


def load(pair: int, target: int) -> Operations:
    """Return a bundle that sets the arguments of the segment loader.

    Parameters
    ----------
    pair : int
        Address of a pair of descriptors in scalar memory.
    target : int
        Address of the bundle to which the loader jumps after the load.
    """
    return [(Slot.S0, "add", (PAIR, s[0], pair)), (Slot.S1, "add", (TARGET, s[0], target))]


def resident_bundles() -> int:
    """Return the number of bundles of the resident part, for code of several segments."""
    return len(resident(Config(), 0)[0])
