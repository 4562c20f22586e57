"""Dynamic slices, their updates, and concatenations of values in HBM, as transfers of rows."""

from collections.abc import Sequence, Set
from dataclasses import replace

from hdl.isa import Slot
from sim.asm.operands import s
from sim.compiler.graph.counted import Affine
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.program.code.reserved import WORK
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.context import Context
from sim.compiler.program.control.blocks import cut_rows
from sim.compiler.program.places.places import Splat, VectorMemoryError
from sim.compiler.program.places.scalars import read_scalar
from sim.compiler.tiling import standard
from sim.compiler.words import signed

__all__ = ["Slices"]


class Slices:
    """Writes dynamic slices, their updates, and concatenations of values in HBM.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    """

    def __init__(self, context: Context) -> None:
        self._config = context.config
        self._tilings = context.tilings
        self._places = context.places
        self._stream = context.stream
        self._memory = context.memory
        self._counters = context.counters.values

    def write(self, operation: Operation, dying: Set[Value]) -> None:
        """Write a ``dynamic_slice``, ``dynamic_update_slice`` or ``concatenate``.

        ``dying`` are the operands that are not used again; an update may overwrite such an operand.
        """
        places = self._places
        value, *rest = operation.operands
        if operation.kind == "concatenate":
            self._concatenate(operation)
            return
        if operation.kind == "dynamic_slice":
            places.save(value)
            home = places.homes[value]
            if isinstance(home, Splat):
                places.homes[operation.result] = home
                return
            assert "slots" not in operation.attributes, operation
            rows = self.rows(operation, home)
            try:
                places.load_block(value, rows, operation.result)
            except VectorMemoryError:
                places.copy_block(value, rows, operation.result)
            return
        update, *starts = rest
        home = self._writable(value, value in dying)
        rows = self._rows(value, home, update.shape, starts)
        along = len(update.shape) - 2
        if along >= 0 and update.shape[along] < value.shape[along] and (
                update.shape[along] % self._config.sublanes):
            self._store_exactly(update, rows, operation.result, home)
        else:
            places.store_block(update, rows, operation.result, home)

    def _store_exactly(self, update: Value, rows: Rows, result: Value, home: Rows) -> None:
        """Store an update whose rows do not fill whole vectors, by a copy from HBM to HBM.

        ``rows`` are the destination, a part of ``home``, which becomes the home of ``result``.
        """
        places, tiling = self._places, self._tilings[update]
        kept = places.reserve(tiling.vectors)
        places.copy_to(update, kept)
        places.memory.wait_all()
        along = len(update.shape) - 2
        source = cut_rows(kept, tiling, along, update.shape[along], 0, exact=True)
        # Source and target have levels of the same counts; only the strides differ.
        target = cut_rows(replace(rows, run=0, levels=()), tiling, along, update.shape[along], 0,
                          exact=True)
        count = tiling.outer * tiling.lane_tiles * tiling.rows
        places.copy_exactly(source, target, count, result, home)

    def _concatenate(self, operation: Operation) -> None:
        """Copy the rows of all operands to the result's rows."""
        places, result = self._places, operation.result
        along, first = operation.attributes["dimension"], 0
        home = places.reserve(self._tilings[result].vectors)
        for value in operation.operands:
            tiling, size = self._tilings[value], value.shape[along]
            source = places.rows(value)
            places.memory.wait_all()
            target = cut_rows(home, self._tilings[result], along, size, first, exact=True)
            copied = cut_rows(source, tiling, along, size, 0, exact=True)
            places.copy_exactly(copied, target, tiling.outer * tiling.lane_tiles * copied.run,
                                result, home)
            first += size

    def _writable(self, value: Value, last: bool) -> Rows:
        """Return rows that hold a value and may be overwritten.

        These are the rows of its home if this is its ``last`` use; otherwise, those of a copy.
        """
        places = self._places
        home = places.homes.get(value)
        if last and value in places.owned and isinstance(home, Rows):
            places.drop(value)
            return home
        made = places.reserve(self._tilings[value].vectors)
        places.copy_to(value, made)
        places.memory.wait_all()
        return made

    def rows(self, operation: Operation, home: Rows, later: int = 0) -> Rows:
        """Return the rows of a ``dynamic_slice``; write code that computes its start.

        Parameters
        ----------
        operation : Operation
            The ``dynamic_slice``.
        home : Rows
            Rows of the value that is sliced.
        later : int
            Number of iterations from the current one to that for which the start is computed. If
            it is not 0, the start must be an affine function of the loop's counter.

        Returns
        -------
        Rows
            Rows of the slice.
        """
        value, *starts = operation.operands
        return self._rows(value, home, operation.result.shape, starts, later,
                          operation.attributes.get("slots"))

    def _rows(self, value: Value, home: Rows, shape: Sequence[int],
              starts: Sequence[Value], later: int = 0, slots: int | None = None) -> Rows:
        """Return the rows of a slice of shape ``shape``; write code that computes its start.

        ``home`` has the rows of ``value``; ``starts`` has the slice's first index in each
        dimension. The slice is the one that the loop will use ``later`` iterations after the
        current one. With ``slots``, a power of two, the home has room for that many indices of the
        first dimension, and index *n* is in slot *n* modulo ``slots``.
        """
        words = iter(self._memory.indices)
        sizes = list(value.shape)
        for along, (size, start) in enumerate(zip(shape, starts, strict=True)):
            last = sizes[along] - size
            if last == 0:
                continue
            first, term = self._constant(start), None
            if first is None:
                first, term = 0, (next(words), 1)
                self._index(start, last, term[0], later, slots)
            first = min(max(first, 0), last)
            home = cut_rows(home, standard(sizes, self._config), along, size, first, term)
            sizes[along] = size
        return home

    def _constant(self, value: Value) -> int | None:
        """Return the value of an index that is a constant; None for other indices."""
        if isinstance(known := self._places.homes.get(value), Splat):
            return signed(known.word)
        _, affine = self._counters.get(value, (0, Affine(1, 0)))
        return None if affine.factor else affine.offset

    def _index(self, value: Value, last: int, word: int, later: int, slots: int | None) -> None:
        """Write code that stores the index ``value``, clamped to 0 … ``last``, in scalar memory.

        ``word`` is the address of the word. The index is the one that the loop will have ``later``
        iterations after the current one; with ``slots``, it is stored modulo ``slots``.
        """
        stream = self._stream
        if value in self._counters:
            address, affine = self._counters[value]
            stream.bundle((Slot.S0, "load", (WORK, s[0], address)))
            stream.bundle((Slot.S0, "mul", (WORK, WORK, affine.factor)))
            stream.bundle((Slot.S0, "add", (WORK, WORK, affine.offset + later * affine.factor)))
        else:
            read_scalar(self._places, self._config, value, WORK)
        stream.bundle((Slot.S0, "max", (WORK, WORK, 0)))
        stream.bundle((Slot.S0, "min", (WORK, WORK, last)))
        if slots is not None:
            stream.bundle((Slot.S0, "and", (WORK, WORK, slots - 1)))
        stream.bundle((Slot.S0, "store", (WORK, s[0], word)))
