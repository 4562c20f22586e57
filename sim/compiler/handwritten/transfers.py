"""Transfers of a product's program: descriptors, the loads for each pass, the stores of C."""

from typing import Any

from hdl.dma.format import DESCRIPTOR_WORDS
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import s
from sim.compiler.handwritten import registers as r
from sim.compiler.handwritten.frame import Frame
from sim.compiler.handwritten.matmul import SMEM_WORDS
from sim.compiler.layout import NEGATIVE_ZERO

__all__ = ["Transfers"]

_SIGNAL = 1 << 12
"""The descriptor's bit that makes a transfer add to its semaphore."""


class Transfers(Frame):
    """Writes the code that sets up and starts transfers.

    Transfers complete in order, so that only the last one of a group signals its semaphore.
    """

    def _address(self, register: Any, place: int) -> None:
        """Store the byte address of a row of HBM in scalar memory."""
        shift = self._config.row_bytes.bit_length() - 1
        self._bundle(("s0", "shl", r.LOW, register, shift),
                     ("s1", "shr", r.HIGH, register, 32 - shift))
        self._bundle(("s0", "store", r.LOW, s[0], place))
        self._bundle(("s0", "store", r.HIGH, s[0], place + 1))

    def _begin(self) -> None:
        """Initialise descriptors, semaphores and registers, and start the first transfers."""
        job, share, config = self._job, self._share, self._config
        self._set((r.COUNT, SMEM_WORDS))
        self._repeat(None, [[("s0", "store", s[0], r.COUNT, -1)]])
        for semaphore in (r.LOADED, r.FREE):
            self._bundle(("misc", "read_semaphore", r.LOW, semaphore))
            self._bundle(("misc", "wait", semaphore, r.LOW))
        # The other buffer is free while the first tile's sums are computed.
        self._bundle(("misc", "signal", r.FREE, 1), ("v0", "move", r.TOTAL, NEGATIVE_ZERO))
        self._bundle(("st", "store", r.TOTAL, s[0], self._zero))

        # Only the addresses of a descriptor change; the other words are written once.
        tile_rows = self._tile * config.sublanes
        transfers = {
            r.A_TRANSFER: descriptor(config, hbm(0), vmem(self._rows), rows=self._block),
            r.B_TRANSFER: descriptor(config, hbm(0), vmem(self._weights), rows=tile_rows,
                                    semaphore=r.LOADED),
            r.C_TRANSFER: descriptor(config, vmem(self._sums[0]), hbm(0), rows=self._block,
                                    semaphore=r.FREE)}
        if self._epilogue:
            transfers[r.TAIL_TRANSFER] = descriptor(
                config, hbm(0), vmem(self._tail), rows=self._tail_rows)
            self._set((r.TAIL_ROW, self._tail_first))
            self._bundle(("v0", "move", r.FLOOR, self._floor))
        for place, words in transfers.items():
            assert len(words) == DESCRIPTOR_WORDS
            for number in (0, 1):
                self._set((r.LOW, words[number]))
                self._bundle(("s0", "store", r.LOW, s[0], place + number))
        if self._epilogue:
            self._set((r.LOW, self._tail))
            self._bundle(("s0", "store", r.LOW, s[0], r.TAIL_TRANSFER + r.DESTINATION))
        self._set(
            (r.A_WORD, transfers[r.A_TRANSFER][0]), (r.PASSES, self._passes),
            (r.ROWS_AT, self._rows), (r.ROWS_TO, self._rows),
            (r.WEIGHTS_AT, self._weights), (r.WEIGHTS_TO, self._weights),
            (r.SUMS_AT, self._sums[0]), (r.BOTH_SUMS, sum(self._sums)),
            (r.BOTH_ROWS, 2 * self._rows + self._groups),
            (r.BOTH_WEIGHTS, 2 * self._weights + self._tile),
            (r.LOADS, self._passes), (r.LOAD_DEPTH, job.depth_tiles),
            (r.LOAD_COLUMNS, share.columns), (r.A_ROW, self._a_first),
            (r.A_BLOCK, self._a_first), (r.B_ROW, self._b_first),
            (r.DEPTH, job.depth_tiles), (r.COLUMNS, share.columns),
            (r.C_ROW, self._c_first), (r.C_BLOCK, self._c_first))
        self._bundle(("s1", "call", r.RETURN, "load_weights"))
        self._bundle(("s1", "call", r.RETURN, "load"))

    def _load(self) -> None:
        """Write the subroutines that start the transfers for a pass.

        ``load`` fetches its rows and the weights of the next pass, ``load_weights`` only weights.
        """
        job, share = self._job, self._share
        if self._epilogue:
            self._bundle(("s1", "bne", r.LOAD_DEPTH, 1, "tail_loaded"))
            self._address(r.TAIL_ROW, r.TAIL_TRANSFER + r.SOURCE)
            self._bundle(("misc", "dma", r.TAIL_TRANSFER),
                         ("s0", "add", r.TAIL_ROW, r.TAIL_ROW, self._tail_rows))
            self._label("tail_loaded")
        self._bundle(("s1", "bne", r.LOADS, 1, "load_rows"))
        self._bundle(("s0", "add", r.A_WORD, r.A_WORD, _SIGNAL))  # no weights follow
        self._label("load_rows")
        if self._kept:
            self._bundle(("s1", "bne", r.LOAD_COLUMNS, share.columns, "rows_kept"))
        self._address(r.A_ROW, r.A_TRANSFER + r.SOURCE)
        self._bundle(("s0", "store", r.A_WORD, s[0], r.A_TRANSFER))
        self._bundle(("s0", "store", r.ROWS_TO, s[0], r.A_TRANSFER + r.DESTINATION))
        self._bundle(("misc", "dma", r.A_TRANSFER), ("s0", "add", r.A_ROW, r.A_ROW, self._panel))
        self._next_slot(r.ROWS_TO)
        if self._kept:
            self._jump("next_load")
            self._label("rows_kept")
            # The rows are in vector memory. Without weights to fetch, no transfer is needed.
            self._bundle(("s1", "bne", r.LOADS, 1, "next_load"))
            if self._epilogue:
                # The epilogue's operands are fetched, once more, for the signal.
                self._bundle(("s0", "load", r.LOW, s[0], r.TAIL_TRANSFER))
                self._bundle(("s0", "add", r.LOW, r.LOW, _SIGNAL))
                self._bundle(("s0", "store", r.LOW, s[0], r.TAIL_TRANSFER))
                self._bundle(("misc", "dma", r.TAIL_TRANSFER))
            else:
                self._bundle(("misc", "signal", r.LOADED, 1))
        self._label("next_load")
        self._bundle(("s0", "add", r.LOADS, r.LOADS, -1), ("s1", "bne", r.LOADS, 1, "weights"))
        self._bundle(("s1", "jump", r.RETURN))
        self._label("weights")
        self._bundle(("s1", "loop", r.LOAD_DEPTH, "deeper"))
        self._bundle(("s0", "add", r.LOAD_DEPTH, s[0], job.depth_tiles))
        self._bundle(("s0", "add", r.A_ROW, r.A_BLOCK, 0), ("s1", "loop", r.LOAD_COLUMNS, "across"))
        self._set((r.LOAD_COLUMNS, share.columns), (r.B_ROW, self._b_first))
        if self._epilogue:
            self._set((r.TAIL_ROW, self._tail_first))
        self._bundle(("s0", "add", r.A_BLOCK, r.A_BLOCK, self._block),
                     ("s1", "add", r.A_ROW, r.A_BLOCK, self._block))
        self._jump("load_weights")
        self._label("across")
        self._bundle(("s0", "add", r.B_ROW, r.B_ROW, self._b_across),
                     ("s1", "jump", "load_weights"))
        self._label("deeper")
        self._bundle(("s0", "add", r.B_ROW, r.B_ROW, self._b_deeper))
        self._label("load_weights")
        self._address(r.B_ROW, r.B_TRANSFER + r.SOURCE)
        self._bundle(("s0", "store", r.WEIGHTS_TO, s[0], r.B_TRANSFER + r.DESTINATION))
        self._bundle(("misc", "dma", r.B_TRANSFER), ("s1", "jump", r.RETURN),
                     ("s0", "sub", r.WEIGHTS_TO, r.BOTH_WEIGHTS, r.WEIGHTS_TO))

    def _next_slot(self, register: Any) -> None:
        """Advance a register to the next slot for rows of A."""
        if self._slots == 2:
            self._bundle(("s0", "sub", register, r.BOTH_ROWS, register))
            return
        behind = self._rows + self._slots * self._groups
        label = self._name("slot")
        self._bundle(("s0", "add", register, register, self._groups),
                     ("s1", "bne", register, behind - self._groups, label))
        self._set((register, self._rows))
        self._label(label)

    def _store_tile(self) -> None:
        """Start the transfer of a tile of C."""
        self._address(r.C_ROW, r.C_TRANSFER + r.DESTINATION)
        self._bundle(("s0", "store", r.SUMS_AT, s[0], r.C_TRANSFER + r.SOURCE))
        self._bundle(("misc", "dma", r.C_TRANSFER))
