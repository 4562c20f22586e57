"""Gathers from tables in HBM: a transfer for each index."""

from hdl.isa import Slot
from sim.asm.operands import s
from sim.compiler.graph.ir import Operation
from sim.compiler.program.code.reserved import BLOCK_READ, BLOCK_WRITTEN
from sim.compiler.program.code.transfers import Rows, scalar_words
from sim.compiler.program.context import Context
from sim.compiler.program.control.counters import advance
from sim.compiler.program.places.places import Splat
from sim.compiler.tiling import Tiling

__all__ = ["write_gather"]

_AT, _INDEX = s[5], s[6]
"""Scalar registers that hold the position in the list of indices, and the index at that position;
code that starts transfers does not change them.
"""


def write_gather(context: Context, operation: Operation) -> None:
    """Write a gather along the first dimension of a table, from HBM to HBM.

    The code reads a row of indices at a time and starts one transfer for each index. It does not
    wait between transfers, so as many are in flight as the DMA engine accepts. Indices out of range
    are clamped.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    operation : Operation
        The ``gather``; its indices must have shape (count,).
    """
    places, stream, tilings = context.places, context.stream, context.tilings
    memory, lanes = context.memory, context.config.lanes
    table, indices = operation.operands
    places.save(table)
    home = places.homes[table]
    if isinstance(home, Splat):
        places.homes[operation.result] = home
        return
    given = places.rows(indices)
    result = places.reserve(tilings[operation.result].vectors)
    places.memory.wait_all()
    at, block, index = list(memory.indices)[:3]
    source = _element(home, tilings[table], index)
    target = _element(result, tilings[operation.result], at)
    next_block, next_row, end = (stream.label(name) for name in ("indices", "row", "end"))
    for word in (at, block):
        stream.bundle((Slot.S0, "store", (s[0], s[0], word)))
    stream.bind(next_block)
    places.memory.start_transfer(given.moved(0, (block, context.config.sublanes)),
                                 scalar_words(memory.window.start), 1, BLOCK_READ)
    stream.wait(BLOCK_READ, 1)
    stream.bind(next_row)
    stream.bundle((Slot.S0, "load", (_AT, s[0], at)))
    stream.bundle((Slot.S0, "and", (_AT, _AT, lanes - 1)))
    stream.bundle((Slot.S0, "load", (_INDEX, _AT, memory.window.start)))
    stream.bundle((Slot.S0, "max", (_INDEX, _INDEX, 0)))
    stream.bundle((Slot.S0, "min", (_INDEX, _INDEX, table.shape[0] - 1)))
    stream.bundle((Slot.S0, "store", (_INDEX, s[0], index)))
    places.memory.start_transfer(source, target, _index_rows(tilings[table]), BLOCK_WRITTEN)
    advance(stream, at, _AT)
    stream.branch("beq", _AT.number, indices.shape[0], end)
    stream.bundle((Slot.S0, "and", (_AT, _AT, lanes - 1)))
    stream.branch("bne", _AT.number, 0, next_row)
    advance(stream, block, _AT)
    stream.jump(next_block)
    stream.bind(end)
    stream.wait(BLOCK_WRITTEN, indices.shape[0])
    places.homes[operation.result] = result


def _index_rows(tiling: Tiling) -> int:
    """Return the number of HBM rows with the elements at one index of a value's first dimension.

    ``tiling`` is the value's tiling.
    """
    if tiling.sublane_dimension == 0:
        return tiling.lane_tiles
    return tiling.vectors * tiling.sublanes // tiling.shape[0]


def _element(home: Rows, tiling: Tiling, word: int) -> Rows:
    """Return the rows that hold a value's elements at one index of its first dimension.

    ``home`` has all HBM rows of the value, and ``tiling`` is its tiling. The index is in the word
    of scalar memory at address ``word`` when the program runs.
    """
    if tiling.sublane_dimension == 0:
        column = tiling.row_tiles * tiling.sublanes
        levels = ((tiling.lane_tiles, column),) if tiling.lane_tiles > 1 else ()
        return Rows(home.buffer, home.first, (*home.terms, (word, 1)), len(levels), levels)
    return home.moved(0, (word, _index_rows(tiling)))
