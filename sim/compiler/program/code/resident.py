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
"""Words of a descriptor that hold the source's address."""


def resident(config: Config, entry: int, single: bool = False) -> tuple[list[Operations], int]:
    """The program's start and the loader; and the loader's address.

    The start makes a descriptor, which loads the rows that `ScalarMemory.fixed` describes, and runs
    into the loader, which loads a segment with a pair of descriptors and goes there. Of a single
    segment, the start loads the image alone.
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
    """Operations that tell the loader what to load, and where to go then."""
    return [(Slot.S0, "add", (PAIR, s[0], pair)), (Slot.S1, "add", (TARGET, s[0], target))]


def resident_bundles() -> int:
    """Number of bundles of the resident part."""
    return len(resident(Config(), 0)[0])
