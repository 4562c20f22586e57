"""Random words and special bundles that several tests of cores use."""

from collections.abc import Iterator

import numpy as np

from golden.core import GoldenCore
from golden.stimulus import mac_operands
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack
from hdl.isa import Fault, LoadOp, MiscOp, PopOp, PushOp, ScalarOp, Slot, StoreOp, VectorOp

__all__ = ["DRAWN", "endless_words", "faulty_bundles", "fill_registers", "flush", "random_words"]

DRAWN = 32
"""Number of small arrays that are drawn at once, because drawing only one takes nearly as long."""


def random_words(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Random words: floats that are corner cases of the adder, other floats, integers, any bits."""
    count = int(np.prod(shape))
    kind = rng.integers(0, 4, count)
    floats = mac_operands(rng, count)[0].view(np.uint32)
    any_bits = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    near_one = rng.standard_normal(count).astype(np.float32).view(np.uint32)
    small = rng.integers(-40, 40, count).astype(np.int32).view(np.uint32)
    return np.select([kind == 0, kind == 1, kind == 2], [floats, any_bits, near_one],
                     small).astype(np.uint32).reshape(shape)


def endless_words(rng: np.random.Generator, *shape: int) -> Iterator[np.ndarray]:
    """Yields arrays of the given shape without end; `random_words` makes their contents."""
    while True:
        yield from random_words(rng, (DRAWN, *shape))


def fill_registers(config: Config) -> list[int]:
    """Bundles that fill vector registers, masks and transposer from the start of vector memory."""
    bundles = [pack({Slot.LOAD: {"op": LoadOp.LOAD, "d": number, "b": isa.FIRST_IMMEDIATE}},
                    (number % config.vmem_vectors,))
               for number in range(isa.VECTOR_REGISTERS)]
    bundles += [pack({Slot.MISC: {"op": MiscOp.TRANSPOSE_IN, "a": group % isa.VECTOR_REGISTERS,
                                  "b": isa.FIRST_IMMEDIATE}}, (group,))
                for group in range(config.tile_vregs)]
    bundles += [pack({Slot.V0: {"op": VectorOp.LT, "d": number, "a": number,
                                "b": isa.VECTOR_FLAG | number + isa.MASKS}})
                for number in range(1, isa.MASKS)]
    return bundles


def faulty_bundles(config: Config) -> dict[Fault, int]:
    """A bundle for each fault that a single bundle can have after a reset.

    The bundle with ``Fault.SEMAPHORE`` needs a value of at least 1 in semaphore 0. If its fault
    were not detected, each bundle would change a scalar register.
    """
    write = {"op": ScalarOp.ADD, "d": 3, "b": isa.INLINE_BASE + 7}
    first = isa.FIRST_IMMEDIATE
    bad: dict[Fault, tuple[dict[Slot, dict[str, int]], tuple[int, ...]]] = {
        Fault.ILLEGAL: ({Slot.S0: write, Slot.V0: {"op": 63}}, ()),
        Fault.CONFLICT: ({Slot.S0: write, Slot.S1: write}, ()),
        Fault.PC_RANGE: ({Slot.S0: write, Slot.S1: {"op": ScalarOp.JUMP, "b": first}},
                         (config.imem_bundles,)),
        Fault.SMEM_RANGE: ({Slot.S0: {"op": ScalarOp.LOAD, "d": 3, "b": first}},
                           (config.smem_words,)),
        Fault.VMEM_RANGE: ({Slot.S0: write, Slot.LOAD: {"op": LoadOp.LOAD, "b": first}},
                           (config.vmem_vectors,)),
        Fault.INDEX_RANGE: ({Slot.S0: write, Slot.MISC: {"op": MiscOp.ROTATE_LANES, "b": first}},
                            (config.lanes,)),
        Fault.WEIGHT_LOAD: ({Slot.S0: write, Slot.PUSH: {"op": PushOp.ROWS}}, ()),
        Fault.FIFO_UNDERFLOW: ({Slot.S0: write, Slot.POP: {"op": PopOp.POP}}, ()),
        Fault.SEMAPHORE: ({Slot.S0: write, Slot.MISC: {"op": MiscOp.SIGNAL, "b": first}},
                          (0xFFFFFFFF,)),
    }
    return {fault: pack(slots, imm) for fault, (slots, imm) in bad.items()}


def flush(golden: GoldenCore) -> list[int]:
    """Bundles that copy hidden state to vector memory, where the host can read it.

    This is the state of results, transposer and both weight tiles. The bundles are legal only if
    the array's counts of rows and results equal those of ``golden``; otherwise one has a fault.
    They do not end with a halt.
    """
    config = golden.config
    stored = 0
    bundles: list[int] = []

    def add(slot: Slot, imm: tuple[int, ...] = (), **fields: int) -> None:
        bundles.append(pack({slot: fields}, imm))

    def store(register: int) -> None:
        nonlocal stored
        add(Slot.STORE, (stored % config.vmem_vectors,), op=StoreOp.STORE, d=register,
            b=isa.FIRST_IMMEDIATE)
        stored += 1

    def pop(register: int) -> None:
        add(Slot.POP, op=PopOp.POP, d=register)
        store(register)

    def rows(first: PushOp) -> None:
        """Adds bundles that multiply the identity matrix, so that the products are the weights."""
        for group in range(config.tile_vregs):
            add(Slot.V0, op=VectorOp.LANE, d=1)
            add(Slot.V0, op=VectorOp.SUBLANE, d=2)
            add(Slot.V0, (group * config.sublanes,), op=VectorOp.ADD, d=2, a=2,
                b=isa.FIRST_IMMEDIATE)
            add(Slot.V0, op=VectorOp.EQ, d=1, a=1, b=isa.VECTOR_FLAG | 2)
            add(Slot.V0, (0x3F800000,), op=VectorOp.MOVE, d=3, b=isa.FIRST_IMMEDIATE)
            add(Slot.V0, op=VectorOp.SELECT, d=3, a=3, b=0, m=1)
            add(Slot.PUSH, op=PushOp.ROWS if group else first, a=3)
            pop(group % 2 * 10 + 4)

    for number in range(golden.held):
        pop(number % isa.VECTOR_REGISTERS)
    for group in range(config.tile_vregs):
        add(Slot.MISC, (group,), op=MiscOp.TRANSPOSE_OUT, d=group % isa.VECTOR_REGISTERS,
            b=isa.FIRST_IMMEDIATE)
        store(group % isa.VECTOR_REGISTERS)
    if golden.active:
        rows(PushOp.ROWS)
    op = PushOp.WEIGHTS_T if golden.transposed else PushOp.WEIGHTS
    for group in range(golden.loaded, config.tile_vregs):
        add(Slot.PUSH, op=op, a=group % isa.VECTOR_REGISTERS)
    rows(PushOp.ROWS_SWAP)
    return bundles
