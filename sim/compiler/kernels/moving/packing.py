"""Unpacks bf16 numbers that share words (packed tilings, `sim.compiler.tiling`)."""

from sim.compiler.kernels.lowering import Place
from sim.compiler.machine import Builder, VmemBuffer, VReg
from sim.compiler.tiling import HIGH

__all__ = ["unpacked", "widen"]


def unpacked(b: Builder, vector: VReg, half: int) -> VReg:
    """Return the bf16 numbers in one half of each word of ``vector``, as fp32 numbers.

    ``half`` is 0 for the low half and 1 for the high half.
    """
    return b.vector("and", vector, HIGH) if half else b.vector("shl", vector, 16)


def widen(b: Builder, source: Place, result: VmemBuffer) -> None:
    """Write code that copies the packed value ``source`` to ``result``, one number in each word.

    Apart from the packing, the tiling remains the same.
    """
    tiling = source.tiling
    pairs, rest = divmod(tiling.row_tiles, 2)
    with b.loop(tiling.outer * tiling.lane_tiles) as column:
        for first, count, halves in ((0, pairs, 2), (pairs, rest, 1)):
            if not count:
                continue
            with b.loop(count) as pair:
                vector = b.load(source.buffer, column * tiling.column_vectors + pair + first)
                for half in range(halves):
                    b.store(unpacked(b, vector, half), result,
                            column * tiling.row_tiles + pair * 2 + (2 * first + half))
