"""The code of a core's share of a matrix product; `sim.compiler.matmul` says what it does."""

from dataclasses import dataclass
from typing import Any

from hdl.dma.format import DESCRIPTOR_WORDS
from sim.asm.assembler import Assembler
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import s, sem, v
from sim.compiler.layout import NEGATIVE_ZERO, TAIL_VECTORS
from sim.compiler.matmul import SMEM_WORDS, Matmul
from sim.compiler.plan import Share, ceil_div, even

__all__ = ["LAYER", "Places", "Writer"]

_LEAST = float("-inf")
"""What changes no number by `fmax`."""
_SIGNAL = 1 << 12
"""The descriptor's bit that makes a transfer add to its semaphore."""

# Semaphores: loads of passes that are complete; buffers of sums that are free; the other core has
# made its part of a layer.
_LOADED, _FREE = sem[0], sem[1]
LAYER = sem[2]

# Scalar memory: descriptors of the transfers of A, B, C and of an epilogue's operands.
_A_TRANSFER, _B_TRANSFER, _C_TRANSFER, _TAIL_TRANSFER = 0, 16, 32, 48
_SOURCE, _DESTINATION = 2, 6

# Scalar registers: next words to be pushed, added up and stored; of which sums, and how many steps.
_ROW, _WEIGHT, _IN, _STEP, _OUT, _COUNT, _RETURN = (s[number] for number in range(1, 8))
# Passes left, and the buffers that they use.
_PASSES, _ROWS_AT, _WEIGHTS_AT, _SUMS_AT = (s[number] for number in range(8, 12))
# Transfers of A and B: passes, depths and columns left; buffers; rows of HBM; A's word 0.
_LOADS, _LOAD_DEPTH, _LOAD_COLUMNS, _ROWS_TO, _WEIGHTS_TO = (s[number] for number in range(12, 17))
_A_ROW, _A_BLOCK, _B_ROW, _A_WORD = (s[number] for number in range(17, 21))
# Transfers of C: depths and columns left, rows of HBM.
_DEPTH, _COLUMNS, _C_ROW, _C_BLOCK = (s[number] for number in range(21, 25))
# Sums of the addresses of two buffers: the difference to one is the other.
_BOTH_ROWS, _BOTH_WEIGHTS, _BOTH_SUMS = (s[number] for number in range(25, 28))
_LOW, _HIGH = s[28], s[29]
# Transfers of an epilogue's operands: row of HBM.
_TAIL_ROW = s[30]

# Vector registers, in pairs for even and odd steps.
_ROWS, _WEIGHTS, _RESULT, _SUM = ((v[1 + 2 * kind], v[2 + 2 * kind]) for kind in range(4))
_TOTAL = v[9]
# Of the epilogue: operands of this pass, and of the tile; what bias and ReLU made.
_BIAS, _FLOOR, _KEEP, _TILE_BIAS, _TILE_KEEP = (v[number] for number in range(10, 15))
_BIASED, _RECTIFIED, _FINAL = v[15], v[16], v[17]


@dataclass(frozen=True)
class Places:
    """Where the matrices of a product begin in HBM: byte addresses, multiples of a row's bytes.

    Attributes
    ----------
    a, b, c : int
        The matrices.
    tail : int
        Operands of the epilogue, if there is one.
    """

    a: int
    b: int
    c: int
    tail: int


class Writer:
    """Writes the code of a share to a program; `Chain` ends it.

    A *step* pushes a vector register of rows, or pops one of results, or both: then the result is
    ``lag`` steps behind, so that it is there. A step also adds the result popped in the step before
    to its sum, and stores the total of the one before that. Steps come in pairs, whose registers
    alternate. An epilogue works on the totals of the two steps before that; where a pass is not the
    last of its tile, with operands that change nothing. So a pass is

    - ``lag`` steps that push its rows and pop the last results of the pass before,
    - the change to its own sums, and, after a tile of C, the start of its transfer,
    - the rest of its steps, with its own results.
    """

    def __init__(self, job: Matmul, share: Share, places: Places, asm: Assembler,
                 prefix: str) -> None:
        config = job.config
        blocking = job.blocking
        self._job, self._share, self._config = job, share, config
        self._asm = asm
        self._prefix = prefix
        self._labels = 0
        self._epilogue = job.has_epilogue
        self._delay = job.delay
        self._floor = 0.0 if job.relu else _LEAST
        self._tile = config.tile_vregs
        self._groups = blocking.group_rows
        self._slots = blocking.slots
        self._kept = blocking.kept and share.columns > 1
        self._passes = share.blocks * share.columns * job.depth_tiles
        # Results lag as far behind as the array needs at full rate, if it can hold so many.
        wanted = even(ceil_div(config.array_latency + 2 * config.sublanes + 8, config.sublanes))
        holds = (config.result_vregs - 1) // 2 * 2
        self._lag = max(2, min(wanted, holds, self._groups))
        # Pairs of weights pushed between rows: behind the swap, and before the results change.
        self._between = min(self._tile // 2, self._lag // 2 - 1)

        self._zero = 0
        self._sums = [1 + self._delay, 1 + 2 * self._delay + self._groups]
        self._rows = self._sums[1] + self._groups
        self._weights = self._rows + self._slots * self._groups
        self._tail = self._weights + 2 * self._tile

        # Rows of HBM: where the share begins, and how far the next one is.
        a_row, b_row, c_row, tail_row = (
            address // config.row_bytes for address in (places.a, places.b, places.c, places.tail))
        block = self._groups * config.sublanes
        self._block = block
        self._panel = job.a_layout.panels[1]
        self._a_first = a_row + share.first_block * block
        self._c_first = c_row + share.first_block * block + share.first_column * self._panel
        along, across = config.array, config.array * job.depth_tiles
        if job.transpose_b:
            along, across = config.array * job.column_tiles, config.array
        self._b_first = b_row + share.first_column * across
        self._b_deeper = along
        self._b_across = across - (job.depth_tiles - 1) * along
        self._tail_first = tail_row + share.first_column * TAIL_VECTORS * config.sublanes

    def write(self) -> None:
        """Writes it; what comes after is executed behind it."""
        self._begin()
        self._first_pass()
        self._jump("own")
        self._label("next_pass")
        self._other_pass()
        self._label("own")
        self._own_results()
        self._bundle(("s1", "loop", _PASSES, "next_pass"))
        self._end()
        self._label("load")
        self._load()
        self._label("end")

    # ---- Bundles

    def _bundle(self, *operations: tuple[Any, ...]) -> None:
        """A bundle of operations: slot, name, operands; strings among these are labels."""
        with self._asm.bundle() as bundle:
            for slot, name, *operands in operations:
                bundle.operation(slot, name, *(
                    self._prefix + operand if isinstance(operand, str) else operand
                    for operand in operands))

    def _label(self, name: str) -> None:
        self._asm.label(self._prefix + name)

    def _set(self, *values: tuple[Any, Any]) -> None:
        """Sets scalar registers to numbers or other registers, two in a bundle."""
        for first in range(0, len(values), 2):
            self._bundle(*(
                (slot, "add", register, s[0], value)
                for slot, (register, value) in zip(("s0", "s1"), values[first:first + 2],
                                                   strict=False)))

    def _jump(self, label: str) -> None:
        self._bundle(("s1", "jump", label))

    def _name(self, prefix: str) -> str:
        self._labels += 1
        return f"{prefix}_{self._labels}"

    def _repeat(self, times: int | None, body: list[list[tuple[Any, ...]]]) -> None:
        """Bundles so many times, by `_COUNT`; None: it is set. The last one has room in s1."""
        if times == 0:
            return
        label = self._name("loop")
        if times != 1:
            if times is not None:
                self._set((_COUNT, times))
            self._label(label)
            body[-1].append(("s1", "loop", _COUNT, label))
        for bundle in body:
            if bundle:
                self._bundle(*bundle)

    # ---- Transfers

    def _address(self, register: Any, place: int) -> None:
        """Stores the byte address of a row of HBM at a place in scalar memory."""
        shift = self._config.row_bytes.bit_length() - 1
        self._bundle(("s0", "shl", _LOW, register, shift),
                     ("s1", "shr", _HIGH, register, 32 - shift))
        self._bundle(("s0", "store", _LOW, s[0], place))
        self._bundle(("s0", "store", _HIGH, s[0], place + 1))

    def _begin(self) -> None:
        """Descriptors, semaphores and registers as they are at first."""
        job, share, config = self._job, self._share, self._config
        self._set((_COUNT, SMEM_WORDS))
        self._repeat(None, [[("s0", "store", s[0], _COUNT, -1)]])
        for semaphore in (_LOADED, _FREE):
            self._bundle(("misc", "read_semaphore", _LOW, semaphore))
            self._bundle(("misc", "wait", semaphore, _LOW))
        # While the first tile's sums are made, the other buffer is free.
        self._bundle(("misc", "signal", _FREE, 1), ("v0", "move", _TOTAL, NEGATIVE_ZERO))
        self._bundle(("st", "store", _TOTAL, s[0], self._zero))

        # The words of each descriptor that stay are those of its first use, without the addresses.
        tile_rows = self._tile * config.sublanes
        transfers = {
            _A_TRANSFER: descriptor(config, hbm(0), vmem(self._rows), rows=self._block),
            _B_TRANSFER: descriptor(config, hbm(0), vmem(self._weights), rows=tile_rows,
                                    semaphore=_LOADED),
            _C_TRANSFER: descriptor(config, vmem(self._sums[0]), hbm(0), rows=self._block,
                                    semaphore=_FREE)}
        if self._epilogue:
            transfers[_TAIL_TRANSFER] = descriptor(
                config, hbm(0), vmem(self._tail), rows=TAIL_VECTORS * config.sublanes)
            self._set((_TAIL_ROW, self._tail_first))
            self._bundle(("v0", "move", _FLOOR, self._floor))
        for place, words in transfers.items():
            assert len(words) == DESCRIPTOR_WORDS
            for number in (0, 1):
                self._set((_LOW, words[number]))
                self._bundle(("s0", "store", _LOW, s[0], place + number))
        if self._epilogue:
            self._set((_LOW, self._tail))
            self._bundle(("s0", "store", _LOW, s[0], _TAIL_TRANSFER + _DESTINATION))
        self._set(
            (_A_WORD, transfers[_A_TRANSFER][0]), (_PASSES, self._passes),
            (_ROWS_AT, self._rows), (_ROWS_TO, self._rows),
            (_WEIGHTS_AT, self._weights), (_WEIGHTS_TO, self._weights),
            (_SUMS_AT, self._sums[0]), (_BOTH_SUMS, sum(self._sums)),
            (_BOTH_ROWS, 2 * self._rows + self._groups),
            (_BOTH_WEIGHTS, 2 * self._weights + self._tile),
            (_LOADS, self._passes), (_LOAD_DEPTH, job.depth_tiles),
            (_LOAD_COLUMNS, share.columns), (_A_ROW, self._a_first),
            (_A_BLOCK, self._a_first), (_B_ROW, self._b_first),
            (_DEPTH, job.depth_tiles), (_COLUMNS, share.columns),
            (_C_ROW, self._c_first), (_C_BLOCK, self._c_first))
        self._bundle(("s1", "call", _RETURN, "load_weights"))
        self._bundle(("s1", "call", _RETURN, "load"))

    def _load(self) -> None:
        """Subroutines: the transfers for a pass, its rows and the next one's weights.

        Transfers complete in order, so that only the last of them says that all are.
        """
        job, share = self._job, self._share
        if self._epilogue:
            self._bundle(("s1", "bne", _LOAD_DEPTH, 1, "tail_loaded"))
            self._address(_TAIL_ROW, _TAIL_TRANSFER + _SOURCE)
            self._bundle(("misc", "dma", _TAIL_TRANSFER),
                         ("s0", "add", _TAIL_ROW, _TAIL_ROW, TAIL_VECTORS * self._config.sublanes))
            self._label("tail_loaded")
        self._bundle(("s1", "bne", _LOADS, 1, "load_rows"))
        self._bundle(("s0", "add", _A_WORD, _A_WORD, _SIGNAL))      # no weights will follow
        self._label("load_rows")
        if self._kept:
            self._bundle(("s1", "bne", _LOAD_COLUMNS, share.columns, "rows_kept"))
        self._address(_A_ROW, _A_TRANSFER + _SOURCE)
        self._bundle(("s0", "store", _A_WORD, s[0], _A_TRANSFER))
        self._bundle(("s0", "store", _ROWS_TO, s[0], _A_TRANSFER + _DESTINATION))
        self._bundle(("misc", "dma", _A_TRANSFER), ("s0", "add", _A_ROW, _A_ROW, self._panel))
        self._next_slot(_ROWS_TO)
        if self._kept:
            self._jump("next_load")
            self._label("rows_kept")
            # The rows are there; if nothing else is needed, neither are transfers.
            self._bundle(("s1", "bne", _LOADS, 1, "next_load"))
            if self._epilogue:
                # Its operands are: they come once more, for the signal.
                self._bundle(("s0", "load", _LOW, s[0], _TAIL_TRANSFER))
                self._bundle(("s0", "add", _LOW, _LOW, _SIGNAL))
                self._bundle(("s0", "store", _LOW, s[0], _TAIL_TRANSFER))
                self._bundle(("misc", "dma", _TAIL_TRANSFER))
            else:
                self._bundle(("misc", "signal", _LOADED, 1))
        self._label("next_load")
        self._bundle(("s0", "add", _LOADS, _LOADS, -1), ("s1", "bne", _LOADS, 1, "weights"))
        self._bundle(("s1", "jump", _RETURN))
        self._label("weights")
        self._bundle(("s1", "loop", _LOAD_DEPTH, "deeper"))
        self._bundle(("s0", "add", _LOAD_DEPTH, s[0], job.depth_tiles))
        self._bundle(("s0", "add", _A_ROW, _A_BLOCK, 0), ("s1", "loop", _LOAD_COLUMNS, "across"))
        self._set((_LOAD_COLUMNS, share.columns), (_B_ROW, self._b_first))
        if self._epilogue:
            self._set((_TAIL_ROW, self._tail_first))
        self._bundle(("s0", "add", _A_BLOCK, _A_BLOCK, self._block),
                     ("s1", "add", _A_ROW, _A_BLOCK, self._block))
        self._jump("load_weights")
        self._label("across")
        self._bundle(("s0", "add", _B_ROW, _B_ROW, self._b_across), ("s1", "jump", "load_weights"))
        self._label("deeper")
        self._bundle(("s0", "add", _B_ROW, _B_ROW, self._b_deeper))
        self._label("load_weights")
        self._address(_B_ROW, _B_TRANSFER + _SOURCE)
        self._bundle(("s0", "store", _WEIGHTS_TO, s[0], _B_TRANSFER + _DESTINATION))
        self._bundle(("misc", "dma", _B_TRANSFER), ("s1", "jump", _RETURN),
                     ("s0", "sub", _WEIGHTS_TO, _BOTH_WEIGHTS, _WEIGHTS_TO))

    def _next_slot(self, register: Any) -> None:
        """Moves on to the next place for rows of A."""
        if self._slots == 2:
            self._bundle(("s0", "sub", register, _BOTH_ROWS, register))
            return
        behind = self._rows + self._slots * self._groups
        label = self._name("slot")
        self._bundle(("s0", "add", register, register, self._groups),
                     ("s1", "bne", register, behind - self._groups, label))
        self._set((register, self._rows))
        self._label(label)

    # ---- Passes

    def _first_pass(self) -> None:
        """All weights of the first pass, then its first rows; there are no results yet."""
        self._bundle(("misc", "wait", _LOADED, 1), ("s0", "add", _WEIGHT, _WEIGHTS_AT, 0),
                     ("s1", "sub", _WEIGHTS_AT, _BOTH_WEIGHTS, _WEIGHTS_AT))
        self._push_weights(self._tile)
        self._bundle(("misc", "wait", _LOADED, 1))
        self._take_tail()
        if self._passes > 1:
            self._bundle(("s1", "call", _RETURN, "load"))
        self._first_rows(results=False)
        self._start_sums()

    def _other_pass(self) -> None:
        self._bundle(("misc", "wait", _LOADED, 1))
        self._take_tail()
        self._bundle(("s1", "beq", _PASSES, 1, "loads_done"))
        self._bundle(("s1", "call", _RETURN, "load"))
        self._label("loads_done")
        self._first_rows(results=True)
        self._last_totals()
        self._bundle(("s1", "loop", _DEPTH, "same_tile"))
        self._store_tile()
        self._bundle(("s0", "add", _DEPTH, s[0], self._job.depth_tiles),
                     ("s1", "loop", _COLUMNS, "same_block"))
        self._bundle(("s0", "add", _COLUMNS, s[0], self._share.columns),
                     ("s1", "add", _C_BLOCK, _C_BLOCK, self._block))
        self._bundle(("s0", "add", _C_ROW, _C_BLOCK, 0), ("s1", "jump", "next_tile"))
        self._label("same_block")
        self._bundle(("s0", "add", _C_ROW, _C_ROW, self._panel))
        self._label("next_tile")
        self._bundle(("misc", "wait", _FREE, 1), ("s0", "sub", _SUMS_AT, _BOTH_SUMS, _SUMS_AT))
        self._start_sums()
        self._jump("own")
        self._label("same_tile")
        self._bundle(("s0", "add", _IN, _SUMS_AT, 0), ("s1", "add", _OUT, _SUMS_AT, -self._delay))
        self._set((_STEP, 1))

    def _start_sums(self) -> None:
        """Sums of a new tile: what is added to its first results is -0, which changes nothing."""
        self._set((_IN, self._zero), (_STEP, 0))
        self._bundle(("s0", "add", _OUT, _SUMS_AT, -self._delay))

    def _take_tail(self) -> None:
        """The operands of the tile's epilogue, if they have come; before the next may come."""
        if self._epilogue:
            self._bundle(("ld", "load", _TILE_BIAS, s[0], self._tail))
            self._bundle(("ld", "load", _TILE_KEEP, s[0], self._tail + 1))

    def _set_epilogue(self) -> None:
        """Its operands for this pass's results: those of the tile if its sums will be complete."""
        if not self._epilogue:
            return
        complete = self._job.depth_tiles == 1
        if not complete:
            self._bundle(("s1", "beq", _DEPTH, 1, "complete"), ("v0", "move", _FLOOR, _LEAST))
            self._bundle(("v0", "move", _BIAS, NEGATIVE_ZERO), ("v1", "move", _KEEP, -1),
                         ("s1", "jump", "epilogue_set"))
            self._label("complete")
        self._bundle(("v0", "move", _BIAS, _TILE_BIAS), ("v1", "move", _KEEP, _TILE_KEEP))
        if not complete:
            self._bundle(("v0", "move", _FLOOR, self._floor))
            self._label("epilogue_set")

    def _first_rows(self, *, results: bool) -> None:
        """The steps of a pass from the swap until its own first result."""
        self._bundle(("s0", "add", _ROW, _ROWS_AT, 0), ("s1", "add", _WEIGHT, _WEIGHTS_AT, 0))
        self._bundle(("ld", "load", _ROWS[0], _ROW))
        self._repeat(1, self._pair(rows=True, swap=True, results=results))
        pairs = self._lag // 2 - 1
        label = self._name("last_pass")
        # The last pass has no weights to load, and all pairs are without.
        if pairs:
            self._bundle(("s0", "add", _COUNT, s[0], pairs), ("s1", "beq", _PASSES, 1, label))
        if self._between:
            self._set((_COUNT, self._between))
            self._repeat(None, self._pair(rows=True, weights=True, results=results))
        if pairs > self._between:
            self._set((_COUNT, pairs - self._between))
        elif pairs:
            self._jump(f"{label}_done")
        if pairs:
            self._label(label)
            self._repeat(None, self._pair(rows=True, results=results))
            self._label(f"{label}_done")

    def _own_results(self) -> None:
        """The rest of a pass's steps, and of the next one's weights."""
        self._set_epilogue()
        self._repeat((self._groups - self._lag) // 2, self._pair(rows=True, results=True))
        rest = self._tile - 2 * self._between
        if rest:
            self._bundle(("s1", "beq", _PASSES, 1, "weights_done"))
            self._push_weights(rest)
            self._label("weights_done")
        if not self._kept or self._job.depth_tiles > 1:
            self._next_slot(_ROWS_AT)
        else:
            # One slot for all column tiles of a block: at the last of them, to the next.
            self._bundle(("s1", "bne", _COLUMNS, 1, "same_slot"))
            self._next_slot(_ROWS_AT)
            self._label("same_slot")
        self._bundle(("s0", "sub", _WEIGHTS_AT, _BOTH_WEIGHTS, _WEIGHTS_AT))

    def _end(self) -> None:
        """The last results, and the last tile."""
        self._repeat(self._lag // 2, self._pair(results=True))
        self._last_totals()
        self._store_tile()
        self._bundle(("misc", "wait", _FREE, 2), ("s1", "jump", "end"))

    def _store_tile(self) -> None:
        """Starts the transfer of a tile of C."""
        self._address(_C_ROW, _C_TRANSFER + _DESTINATION)
        self._bundle(("s0", "store", _SUMS_AT, s[0], _C_TRANSFER + _SOURCE))
        self._bundle(("misc", "dma", _C_TRANSFER))

    # ---- Steps

    def _pair(self, *, rows: bool = False, swap: bool = False, weights: bool = False,
              results: bool = False) -> list[list[tuple[Any, ...]]]:
        """The bundles of two steps.

        Parameters
        ----------
        rows : bool
            Push rows; the first of them is in its register, and the load of the next is started.
        swap : bool
            Change over to the weights loaded last.
        weights : bool
            Push weights.
        results : bool
            Pop results and add them up.
        """
        bundles: list[list[tuple[Any, ...]]] = []
        push = "weights_t" if self._job.transpose_b else "weights"
        for this, other in ((0, 1), (1, 0)):
            first: list[tuple[Any, ...]] = []
            second: list[tuple[Any, ...]] = []
            third: list[tuple[Any, ...]] = []
            if rows:
                first += [("push", "rows_swap" if swap and this == 0 else "rows", _ROWS[this]),
                          ("s1", "add", _ROW, _ROW, 1)]
                third += [("ld", "load", _ROWS[other], _ROW)]
            if weights:
                first += [("ld", "load", _WEIGHTS[this], _WEIGHT),
                          ("s0", "add", _WEIGHT, _WEIGHT, 1)]
                third += [("push", push, _WEIGHTS[this])]
            if results:
                # A pop is over some cycles later, when the next one begins. So what is added up
                # is the result before, and what is stored is the total of that before this one,
                # or of one more before, which the epilogue has worked on meanwhile.
                first += [("pop", "pop", _RESULT[this])]
                done = _FINAL if self._epilogue else _TOTAL
                second += [("ld", "load", _SUM[this], _IN), ("st", "store", done, _OUT),
                           ("s0", "add", _OUT, _OUT, 1)]
                third += [("v0", "fadd", _TOTAL, _SUM[other], _RESULT[other]),
                          ("s0", "add", _IN, _IN, _STEP)]
            if results and self._epilogue:
                first += self._add_bias() + self._mask()
                third += self._rectify()
            bundles += [first, second, third]
        return bundles

    @staticmethod
    def _add_bias() -> list[tuple[Any, ...]]:
        return [("v0", "fadd", _BIASED, _TOTAL, _BIAS)]

    @staticmethod
    def _rectify() -> list[tuple[Any, ...]]:
        return [("v1", "fmax", _RECTIFIED, _BIASED, _FLOOR)]

    @staticmethod
    def _mask() -> list[tuple[Any, ...]]:
        return [("v1", "and", _FINAL, _RECTIFIED, _KEEP)]

    def _last_totals(self) -> None:
        """What is under way after the last of a pass's results."""
        if self._epilogue:
            self._bundle(*self._add_bias(), *self._mask())
            self._bundle(("st", "store", _FINAL, _OUT))
            self._bundle(("v0", "fadd", _TOTAL, _SUM[1], _RESULT[1]), *self._rectify())
            self._bundle(*self._add_bias(), *self._mask())
            self._bundle(("st", "store", _FINAL, _OUT, 1), *self._rectify())
            self._bundle(*self._mask())
            self._bundle(("st", "store", _FINAL, _OUT, 2))
            return
        self._bundle(("st", "store", _TOTAL, _OUT))
        self._bundle(("v0", "fadd", _TOTAL, _SUM[1], _RESULT[1]))
        self._bundle(("st", "store", _TOTAL, _OUT, 1))

    def _push_weights(self, count: int) -> None:
        """So many pushes of weights, without rows."""
        push = "weights_t" if self._job.transpose_b else "weights"
        for width, times in ((2, count // 2), (1, count % 2)):
            body: list[list[tuple[Any, ...]]] = [
                [("ld", "load", _WEIGHTS[index], _WEIGHT), ("s0", "add", _WEIGHT, _WEIGHT, 1)]
                for index in range(width)]
            body += [[("push", push, _WEIGHTS[index])] for index in range(width)]
            self._repeat(times, body)
