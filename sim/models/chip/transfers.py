"""Transfers that the host of a simulated chip starts, and the staging of their data in HBM.

A host reaches vector memory, vector registers and whole programs only by transfers from and to
memory. Here they pass through memory's last rows, the staging rows, whose contents are restored.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from hdl import isa
from hdl.chip.registers import GLOBAL_REGISTERS
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.isa import BUNDLE_PITCH, Fault
from sim.asm.descriptor import Place, descriptor, hbm, imem
from sim.models.chip.registers import RegisterError, RegisterPort
from sim.models.chip.simulation import Until, Words

__all__ = ["DescriptorError", "TransferPort", "staging_rows"]

_POLL_CYCLES = 64
STAGING_ROWS = 1024
"""Maximum number of staging rows; a small memory has fewer (`staging_rows`)."""


class DescriptorError(Exception):
    """The chip refused to start a transfer.

    Attributes
    ----------
    fault : Fault
        The error in the transfer's descriptor.
    """

    def __init__(self, core: int, fault: Fault) -> None:
        self.fault = fault
        super().__init__(f"core {core} refused the transfer: {fault.name}. {isa.FAULTS[fault]}")


def staging_rows(config: Config) -> int:
    """Returns the number of staging rows, at the end of HBM, through which `ChipModel` moves data.

    Returns
    -------
    int
        1024 or, in a memory with fewer than 4096 rows, a quarter of the rows. This is rounded down
        to whole vectors and whole bundles, but is at least one of each.

    Raises
    ------
    ValueError
        If memory is smaller than one vector or one bundle.
    """
    least = max(config.sublanes, BUNDLE_PITCH // config.lanes)
    if config.hbm_rows < least:
        raise ValueError(f"hbm_bytes must be at least {least * config.row_bytes} for a host to "
                         f"reach vector memory, not {config.hbm_bytes!r}")
    return max(least, min(STAGING_ROWS, config.hbm_rows // 4) // least * least)


class TransferPort(RegisterPort):
    """The host's interface to the chip's DMA engines."""

    _staging: int
    """Number of the chip's staging rows (`staging_rows`)."""

    def start_transfer(self, core: int, words: Sequence[int]) -> None:
        """Queues a transfer on a core's DMA engine as soon as the queue has room.

        Parameters
        ----------
        core : int
            The core.
        words : sequence of int
            The descriptor, as from `sim.asm.descriptor.descriptor`; its contents are not checked
            here. If memory refuses the transfer, the chip sets CORE{core}_TRANSFER_FAILED in
            INTERRUPT_STATUS; the next method that moves data clears this bit.

        Raises
        ------
        DescriptorError
            If the core refuses the transfer.
        TimeoutError
            If the queue stays full for `_PATIENCE` cycles.
        ValueError
            If the number of words is not that of a descriptor.
        """
        if len(words) != DESCRIPTOR_WORDS:
            raise ValueError(f"descriptor must have {DESCRIPTOR_WORDS} words, not "
                             f"{len(words)}")
        with self._lock:
            for number, word in enumerate(words):
                self.write(f"DMA_DESCRIPTOR_{number}", word, core=core)
            self._wait(lambda: self._queued(core), f"core {core} has no room for a transfer")

    def transfer(self, core: int, words: Sequence[int]) -> None:
        """Starts a transfer as `start_transfer` does, and waits for its end.

        No other transfer that the host started may be under way during the call.

        Raises
        ------
        DescriptorError
            If the core refuses the transfer.
        RuntimeError
            If memory answers with an error, or a reset of the core drops the transfer.
        """
        with self._lock, self._keeping_events(core) as done:
            try:
                self.start_transfer(core, words)
                busy = True
                while not self.read("INTERRUPT_STATUS") & done:
                    if not busy:
                        raise RuntimeError(f"core {core} has dropped the transfer")
                    self.run(_POLL_CYCLES, until=Until.NEVER)
                    busy = bool(self.status(core)["DMA_BUSY"])
            except KeyboardInterrupt:
                # The transfer may be under way: its rows must not change before it ends.
                self._wait(lambda: not self.status(core)["DMA_BUSY"]
                           or bool(self.read("INTERRUPT_STATUS") & done), f"core {core} is busy")
                raise
            self._check_refused(core)

    def _queued(self, core: int) -> bool:
        """Tries to start the transfer whose descriptor is in the core's registers.

        Returns False if the queue is full.
        """
        try:
            self.write("DMA_START", core=core, GO=1)
        except RegisterError:
            why = self.read_fields("DMA_FAULT", core=core)
            if why["BUSY"]:
                return False
            if why["FAULT"]:
                raise DescriptorError(core, Fault(why["FAULT"])) from None
            raise
        return True

    @contextmanager
    def _keeping_events(self, core: int) -> Iterator[int]:
        """Context for transfers: clears a core's transfer events in INTERRUPT_STATUS at its start.

        Yields the mask of the event "done", which these transfers set. At the end, "done" is
        cleared if it was clear before the context. If it was set, it stays as the transfers have
        left it, because the host cannot set it again. An earlier event "failed" is lost.
        """
        done, failed = self._transfer_events(core)
        before = self.read("INTERRUPT_STATUS") & (done | failed)
        if before:
            self.write("INTERRUPT_STATUS", before)
        try:
            yield done
        finally:
            if not self._failed:
                self.write("INTERRUPT_STATUS", failed if before & done else done | failed)

    def _transfer_events(self, core: int) -> tuple[int, int]:
        """Returns the masks of a core's INTERRUPT_STATUS events: host transfer done, and failed."""
        fields = GLOBAL_REGISTERS["INTERRUPT_STATUS"]
        number = self._core(core)
        return (fields[f"CORE{number}_TRANSFER_DONE"].mask,
                fields[f"CORE{number}_TRANSFER_FAILED"].mask)

    def _check_refused(self, core: int) -> None:
        """Raises an error if memory refused a transfer since `_keeping_events` began."""
        if self.read("INTERRUPT_STATUS") & self._transfer_events(core)[1]:
            raise RuntimeError(f"memory answered a transfer of core {core} with an error")

    # ---- Staging

    @contextmanager
    def _borrowed(self, rows: slice) -> Iterator[None]:
        """Context that saves ``rows`` of HBM when it begins, and restores them when it ends."""
        kept = self._data[rows].copy()
        try:
            yield
        finally:
            self._data[rows] = kept

    def _parts(self, rows: int) -> Iterator[tuple[slice, slice]]:
        """Splits ``rows`` rows into parts; yields each with the staging rows that it uses."""
        staging = self._staging
        begin = len(self._data) - staging
        for first in range(0, rows, staging):
            count = min(staging, rows - first)
            yield slice(first, first + count), slice(begin, begin + count)

    def _put_rows(self, core: int, rows: Words, place: Callable[[int], Place]) -> None:
        """Writes rows, shape (rows, lanes), to a core by transfers: row r to ``place(r)``."""
        with self._lock:
            for part, used in self._parts(len(rows)):
                with self._borrowed(used):
                    self._data[used] = rows[part]
                    self.transfer(core, descriptor(
                        self._config, hbm(used.start * self._config.row_bytes), place(part.start),
                        rows=part.stop - part.start))

    def _get_rows(self, core: int, rows: int, place: Callable[[int], Place]) -> Words:
        """Reads rows of a core by transfers, as shape (rows, lanes); row r is at ``place(r)``."""
        result = np.zeros((rows, self._config.lanes), np.uint32)
        with self._lock:
            for part, used in self._parts(rows):
                with self._borrowed(used):
                    self.transfer(core, descriptor(
                        self._config, place(part.start), hbm(used.start * self._config.row_bytes),
                        rows=part.stop - part.start))
                    result[part] = self._data[used]
        return result

    def _get_vectors(self, core: int, count: int, place: Callable[[int], Place]) -> Words:
        """Reads vectors of a core, shape (count, sublanes, lanes): vector n from ``place(n)``."""
        sublanes = self._config.sublanes
        rows = self._get_rows(core, count * sublanes, lambda row: place(row // sublanes))
        return rows.reshape(count, sublanes, self._config.lanes)

    # ---- Programs

    def _put_programs(self, programs: dict[int, Words], at: int) -> None:
        """Moves programs to the instruction memories of stopped cores, from bundle ``at`` on.

        ``programs`` has the words of each core's program, `BUNDLE_PITCH` for each bundle; they must
        fill at least one row. If there are enough staging rows, all programs move at the same time.
        """
        least = max(1, BUNDLE_PITCH // self._config.lanes)
        share = self._staging // max(1, len(programs)) // least * least
        groups = [list(programs)] if share else [[core] for core in programs]
        for group in groups:
            self._put_bundles({core: self._bundle_rows(programs[core], at, share or least)
                               for core in group}, share or least)

    def _bundle_rows(self, words: Words, first: int, most: int) -> list[tuple[Words, Place]]:
        """Splits a program into pieces of at most ``most`` rows, each with its destination.

        ``words`` are the program's words, and ``first`` is the address of its first bundle. If the
        last bundles do not fill a row, the last row begins with bundles of the row before, so that
        nothing after the program is overwritten.
        """
        lanes = self._config.lanes
        in_row = self._bundles_in_row
        rows = words[:len(words) - len(words) % in_row].reshape(-1, lanes)
        pieces = [(rows[row:row + most], imem(first + row * lanes // BUNDLE_PITCH))
                  for row in range(0, len(rows), most)]
        if len(words) % in_row:
            pieces.append((words[-in_row:].reshape(1, lanes), imem(first + len(words) - in_row)))
        return pieces

    @property
    def _bundles_in_row(self) -> int:
        return max(1, self._config.lanes // BUNDLE_PITCH)

    def _put_bundles(self, pieces: dict[int, list[tuple[Words, Place]]], share: int) -> None:
        """Moves the pieces of each core's program through ``share`` staging rows of that core."""
        begin = len(self._data) - self._staging

        def at_rest() -> bool:
            return not any(self.status(core)["DMA_BUSY"] for core in pieces)

        with ExitStack() as stack:
            stack.enter_context(self._borrowed(slice(begin, begin + share * len(pieces))))
            for core in pieces:
                stack.enter_context(self._keeping_events(core))
            try:
                while any(pieces.values()):
                    for number, (core, left) in enumerate(pieces.items()):
                        self._queue_pieces(core, left, begin + number * share, share)
                    self._wait(at_rest, "transfers of programs are under way")
            except KeyboardInterrupt:
                self._wait(at_rest, "transfers of programs are under way")
                raise
            for core in pieces:
                self._check_refused(core)

    def _queue_pieces(self, core: int, left: list[tuple[Words, Place]], at: int,
                      share: int) -> None:
        """Copies the next pieces to HBM, and starts their transfers to a core.

        ``left`` are the pieces (rows, destination) that have not been started. Pieces are removed
        from its front as long as they fit in the ``share`` rows of HBM from row ``at`` on.
        """
        end = at + share
        while left and at + len(left[0][0]) <= end:
            rows, place = left.pop(0)
            self._data[at:at + len(rows)] = rows
            self.start_transfer(core, descriptor(
                self._config, hbm(at * self._config.row_bytes), place, rows=len(rows)))
            at += len(rows)
