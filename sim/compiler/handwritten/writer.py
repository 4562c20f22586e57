"""Code generation: a core's share of a product, written as bundles.

`sim.compiler.handwritten.matmul` says what the code does. It is written by hand, as a
software pipeline.
"""

from typing import Any

from sim.asm.operands import s
from sim.compiler.handwritten import registers as r
from sim.compiler.handwritten.frame import LEAST
from sim.compiler.handwritten.transfers import Transfers
from sim.compiler.layout import NEGATIVE_ZERO

__all__ = ["Writer"]


class Writer(Transfers):
    """Writes the code of a share to a program; `LayerChain` ends it.

    A *step* pushes a vector register of rows, or pops one of results, or both. Results are ``lag``
    steps behind the rows, so that they are ready. A step also adds the result of the previous step
    to its sum, and stores the total of the step before that. Steps come in pairs, whose registers
    alternate. An epilogue works on the totals of the two steps before that. In all passes of a tile
    but the last, its operands change nothing. So a pass consists of

    - ``lag`` steps that push its rows and pop the last results of the previous pass,
    - the switch to its own sums, and, after a tile of C, the start of its transfer,
    - its remaining steps, with its own results.
    """

    def write(self) -> None:
        """Write the code. Execution continues with what is written next."""
        self._begin()
        self._first_pass()
        self._jump("own")
        self._label("next_pass")
        self._other_pass()
        self._label("own")
        self._own_results()
        self._bundle(("s1", "loop", r.PASSES, "next_pass"))
        self._end()
        self._label("load")
        self._load()
        self._label("end")

    def _first_pass(self) -> None:
        """Write the first pass up to its first result: all its weights, then its first rows."""
        self._bundle(("misc", "wait", r.LOADED, 1), ("s0", "add", r.WEIGHT, r.WEIGHTS_AT, 0),
                     ("s1", "sub", r.WEIGHTS_AT, r.BOTH_WEIGHTS, r.WEIGHTS_AT))
        self._push_weights(self._tile)
        self._bundle(("misc", "wait", r.LOADED, 1))
        self._take_tail()
        if self._passes > 1:
            self._bundle(("s1", "call", r.RETURN, "load"))
        self._first_rows(results=False)
        self._start_sums()

    def _other_pass(self) -> None:
        """Write a later pass up to its first result, and the end of the pass before it."""
        self._bundle(("misc", "wait", r.LOADED, 1))
        self._take_tail()
        self._bundle(("s1", "beq", r.PASSES, 1, "loads_done"))
        self._bundle(("s1", "call", r.RETURN, "load"))
        self._label("loads_done")
        self._first_rows(results=True)
        self._last_totals()
        self._bundle(("s1", "loop", r.DEPTH, "same_tile"))
        self._store_tile()
        self._bundle(("s0", "add", r.DEPTH, s[0], self._job.depth_tiles),
                     ("s1", "loop", r.COLUMNS, "same_block"))
        self._bundle(("s0", "add", r.COLUMNS, s[0], self._share.columns),
                     ("s1", "add", r.C_BLOCK, r.C_BLOCK, self._block))
        self._bundle(("s0", "add", r.C_ROW, r.C_BLOCK, 0), ("s1", "jump", "next_tile"))
        self._label("same_block")
        self._bundle(("s0", "add", r.C_ROW, r.C_ROW, self._panel))
        self._label("next_tile")
        self._bundle(("misc", "wait", r.FREE, 1), ("s0", "sub", r.SUMS_AT, r.BOTH_SUMS, r.SUMS_AT))
        self._start_sums()
        self._jump("own")
        self._label("same_tile")
        self._bundle(("s0", "add", r.IN, r.SUMS_AT, 0),
                     ("s1", "add", r.OUT, r.SUMS_AT, -self._delay))
        self._set((r.STEP, 1))

    def _start_sums(self) -> None:
        """Start the sums of a new tile: add its first results to -0, which changes nothing."""
        self._set((r.IN, self._zero), (r.STEP, 0))
        self._bundle(("s0", "add", r.OUT, r.SUMS_AT, -self._delay))

    def _take_tail(self) -> None:
        """Load the operands of the tile's epilogue, before a transfer may overwrite them."""
        if self._epilogue:
            self._bundle(("ld", "load", r.TILE_BIAS, s[0], self._tail))
            self._bundle(("ld", "load", r.TILE_KEEP, s[0], self._tail + 1))

    def _set_epilogue(self) -> None:
        """Choose the epilogue's operands for this pass: the tile's if its sums become complete."""
        if not self._epilogue:
            return
        complete = self._job.depth_tiles == 1
        if not complete:
            self._bundle(("s1", "beq", r.DEPTH, 1, "complete"), ("v0", "move", r.FLOOR, LEAST))
            self._bundle(("v0", "move", r.BIAS, NEGATIVE_ZERO), ("v1", "move", r.KEEP, -1),
                         ("s1", "jump", "epilogue_set"))
            self._label("complete")
        self._bundle(("v0", "move", r.BIAS, r.TILE_BIAS), ("v1", "move", r.KEEP, r.TILE_KEEP))
        if not complete:
            self._bundle(("v0", "move", r.FLOOR, self._floor))
            self._label("epilogue_set")

    def _first_rows(self, *, results: bool) -> None:
        """Write the steps of a pass from the swap up to its own first result."""
        self._bundle(("s0", "add", r.ROW, r.ROWS_AT, 0), ("s1", "add", r.WEIGHT, r.WEIGHTS_AT, 0))
        self._bundle(("ld", "load", r.ROWS[0], r.ROW))
        self._repeat(1, self._pair(rows=True, swap=True, results=results))
        pairs = self._lag // 2 - 1
        label = self._name("last_pass")
        # The last pass has no next weights to push: none of its pairs does.
        if pairs:
            self._bundle(("s0", "add", r.COUNT, s[0], pairs), ("s1", "beq", r.PASSES, 1, label))
        if self._between:
            self._set((r.COUNT, self._between))
            self._repeat(None, self._pair(rows=True, weights=True, results=results))
        if pairs > self._between:
            self._set((r.COUNT, pairs - self._between))
        elif pairs:
            self._jump(f"{label}_done")
        if pairs:
            self._label(label)
            self._repeat(None, self._pair(rows=True, results=results))
            self._label(f"{label}_done")

    def _own_results(self) -> None:
        """Write the remaining steps of a pass, and push the rest of the next weights."""
        self._set_epilogue()
        self._repeat((self._groups - self._lag) // 2, self._pair(rows=True, results=True))
        rest = self._tile - 2 * self._between
        if rest:
            self._bundle(("s1", "beq", r.PASSES, 1, "weights_done"))
            self._push_weights(rest)
            self._label("weights_done")
        if not self._kept or self._job.depth_tiles > 1:
            self._next_slot(r.ROWS_AT)
        else:
            # All column tiles of a block use one slot; the last of them moves on to the next.
            self._bundle(("s1", "bne", r.COLUMNS, 1, "same_slot"))
            self._next_slot(r.ROWS_AT)
            self._label("same_slot")
        self._bundle(("s0", "sub", r.WEIGHTS_AT, r.BOTH_WEIGHTS, r.WEIGHTS_AT))

    def _end(self) -> None:
        """Write the last results, and the last tile of C."""
        self._repeat(self._lag // 2, self._pair(results=True))
        self._last_totals()
        self._store_tile()
        self._bundle(("misc", "wait", r.FREE, 2), ("s1", "jump", "end"))

    def _pair(self, *, rows: bool = False, swap: bool = False, weights: bool = False,
              results: bool = False) -> list[list[tuple[Any, ...]]]:
        """Make the bundles of two steps.

        Parameters
        ----------
        rows : bool
            Push rows. The first is already in its register; the load of the next one starts.
        swap : bool
            Switch to the weights that were pushed last.
        weights : bool
            Push weights.
        results : bool
            Pop results, and add them to the sums.
        """
        bundles: list[list[tuple[Any, ...]]] = []
        push = "weights_t" if self._job.transpose_b else "weights"
        for this, other in ((0, 1), (1, 0)):
            first: list[tuple[Any, ...]] = []
            second: list[tuple[Any, ...]] = []
            third: list[tuple[Any, ...]] = []
            if rows:
                first += [("push", "rows_swap" if swap and this == 0 else "rows", r.ROWS[this]),
                          ("s1", "add", r.ROW, r.ROW, 1)]
                third += [("ld", "load", r.ROWS[other], r.ROW)]
            if weights:
                first += [("ld", "load", r.WEIGHTS[this], r.WEIGHT),
                          ("s0", "add", r.WEIGHT, r.WEIGHT, 1)]
                third += [("push", push, r.WEIGHTS[this])]
            if results:
                # A pop ends some cycles later, when the next one begins. So this step adds the
                # previous result, and stores the total of the one before that, or of the one
                # before that again if there is an epilogue, which has worked on it meanwhile.
                first += [("pop", "pop", r.RESULT[this])]
                done = r.FINAL if self._epilogue else r.TOTAL
                second += [("ld", "load", r.SUM[this], r.IN), ("st", "store", done, r.OUT),
                           ("s0", "add", r.OUT, r.OUT, 1)]
                third += [("v0", "fadd", r.TOTAL, r.SUM[other], r.RESULT[other]),
                          ("s0", "add", r.IN, r.IN, r.STEP)]
            if results and self._epilogue:
                first += self._add_bias() + self._mask()
                third += self._rectify()
            bundles += [first, second, third]
        return bundles

    @staticmethod
    def _add_bias() -> list[tuple[Any, ...]]:
        return [("v0", "fadd", r.BIASED, r.TOTAL, r.BIAS)]

    @staticmethod
    def _rectify() -> list[tuple[Any, ...]]:
        return [("v1", "fmax", r.RECTIFIED, r.BIASED, r.FLOOR)]

    @staticmethod
    def _mask() -> list[tuple[Any, ...]]:
        return [("v1", "and", r.FINAL, r.RECTIFIED, r.KEEP)]

    def _last_totals(self) -> None:
        """Finish the sums that are in flight after the last result of a pass."""
        if self._epilogue:
            self._bundle(*self._add_bias(), *self._mask())
            self._bundle(("st", "store", r.FINAL, r.OUT))
            self._bundle(("v0", "fadd", r.TOTAL, r.SUM[1], r.RESULT[1]), *self._rectify())
            self._bundle(*self._add_bias(), *self._mask())
            self._bundle(("st", "store", r.FINAL, r.OUT, 1), *self._rectify())
            self._bundle(*self._mask())
            self._bundle(("st", "store", r.FINAL, r.OUT, 2))
            return
        self._bundle(("st", "store", r.TOTAL, r.OUT))
        self._bundle(("v0", "fadd", r.TOTAL, r.SUM[1], r.RESULT[1]))
        self._bundle(("st", "store", r.TOTAL, r.OUT, 1))

    def _push_weights(self, count: int) -> None:
        """Push so many vector registers of weights, without rows."""
        push = "weights_t" if self._job.transpose_b else "weights"
        for width, times in ((2, count // 2), (1, count % 2)):
            body: list[list[tuple[Any, ...]]] = [
                [("ld", "load", r.WEIGHTS[index], r.WEIGHT), ("s0", "add", r.WEIGHT, r.WEIGHT, 1)]
                for index in range(width)]
            body += [[("push", push, r.WEIGHTS[index])] for index in range(width)]
            self._repeat(times, body)
