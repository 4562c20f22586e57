"""The backend of a chip on an FPGA board, behind a serial line."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from hdl.chip.registers import CORE_REGISTERS, address
from hdl.config import Config
from hdl.core.interface import Space
from hdl.encoding import bundle_words
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS, SCALAR_REGISTERS, SEMAPHORES, Fault
from sim.asm.descriptor import Place, descriptor, hbm, vmem
from sim.errors import CoreState
from sim.models.chip import ChipModel, staging_rows
from sim.serial.chip import SerialChip

__all__ = ["SerialBackend"]

Words = npt.NDArray[np.uint32]

_PAUSE_SECONDS = 0.001
"""Seconds between two reads of the states of running cores."""


class SerialBackend:
    """A chip on a board. Its clock runs on its own, whatever the host does.

    Parameters
    ----------
    config : Config
        The expected chip.
    port : str
        Name of the serial port.
    baud : int
        Bits per second on the line.

    Raises
    ------
    BoardError
        If there is no board at the port, or the board holds another chip.
    """

    def __init__(self, config: Config, port: str, baud: int) -> None:
        self._chip = SerialChip(config, port, baud)
        self._config = self._chip.config
        self._cores = range(self._config.cores)
        # Cycles of core 0 up to its last reset, which cleared its counters.
        self._before = 0
        self._taken: dict[int, dict[str, int]] = {}
        self._watched = [False] * self._config.cores

    @property
    def config(self) -> Config:
        return self._config

    @property
    def model(self) -> ChipModel | None:
        return None

    @property
    def steps(self) -> int:
        return self._before + self._chip.counters(0)["cycles"]

    def read_hbm(self, at: int, count: int) -> Words:
        return self._chip.read_hbm(at, count)

    @contextmanager
    def write_hbm(self, at: int, count: int, *, keep: bool = False) -> Iterator[Words]:
        rows = (self._chip.read_hbm(at, count) if keep
                else np.zeros((count, self._config.lanes), np.uint32))
        before = rows.copy()
        yield rows
        changed = np.any(rows != before, axis=1) if keep else np.ones(count, bool)
        ends = np.flatnonzero(np.diff(changed, prepend=False, append=False))
        for first, last in ends.reshape(-1, 2).tolist():
            self._chip.write_hbm(at + first, rows[first:last])

    def load(self, programs: Mapping[int, Sequence[int]], at: int) -> None:
        for core, bundles in programs.items():
            words = [word for bundle in bundles for word in bundle_words(bundle)]
            self._chip.write_space(core, Space.IMEM, BUNDLE_PITCH * at, words)

    def bundle(self, core: int, address: int) -> int | None:
        if address >= self._config.imem_bundles:
            return None
        words = self._chip.read_space(core, Space.IMEM, BUNDLE_PITCH * address, BUNDLE_WORDS)
        return sum(int(word) << 32 * number for number, word in enumerate(words))

    def start(self, core: int, pc: int) -> None:
        self._chip.set("START_PC", core, pc)
        self._chip.set("CONTROL", core, START=1)

    def stop(self, core: int) -> None:
        self._chip.stop(core)

    def reset(self, core: int) -> None:
        if core == 0:
            self._before = self.steps
        self._chip.reset_core(core)

    def reset_all(self) -> None:
        self._before = self.steps
        self._chip.reset()
        self._watched = [False] * self._config.cores

    def advance(self, steps: int, interrupt: bool) -> bool:
        states = [self.state(core) for core in self._cores]
        if not any(state.running or state.transfers for state in states):
            return True
        if self._stuck(states):
            return True
        time.sleep(_PAUSE_SECONDS)
        return False

    def _stuck(self, states: Sequence[CoreState]) -> bool:
        """Return whether all running cores wait for semaphores that only the host can signal.

        ``states`` are the states of all cores. The result is True if no transfer is in progress,
        and all running cores wait in every cycle between two reads of their counters. Then no core
        and no transfer can signal.
        """
        running = [core for core in self._cores if states[core].running]
        if any(state.transfers for state in states) or any(
                not states[core].waiting or self._watched[core] for core in running):
            return False
        before = {core: self._chip.counters(core) for core in running}
        if any(state.transfers for state in map(self.state, self._cores)):
            return False
        return all(self._waited(before[core], self._chip.counters(core)) for core in running)

    @staticmethod
    def _waited(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Return whether a core waited for a semaphore in each cycle between two reads.

        ``before`` and ``after`` are the core's counters as read, by name.
        """
        cycles, waits = (after[name] - before[name] for name in ("cycles", "semaphore_wait_cycles"))
        return cycles == waits > 0

    def state(self, core: int) -> CoreState:
        status, pc = self._chip.read(address("STATUS", core), 2).tolist()
        found = CORE_REGISTERS["STATUS"].unpack(status)
        return CoreState(bool(found["RUNNING"]), bool(found["WAITING"]), bool(found["DMA_BUSY"]),
                         Fault(found["FAULT"]), pc)

    def set_watchdog(self, core: int, cycles: int) -> None:
        self._chip.set("WATCHDOG", core, cycles)
        self._watched[core] = cycles != 0

    def signal(self, core: int, semaphore: int, amount: int) -> None:
        self._chip.set("SEMAPHORE_ADD", core, INDEX=semaphore, AMOUNT=amount)

    def read_semaphores(self, core: int) -> Words:
        return self._chip.read_space(core, Space.SEMAPHORE, 0, SEMAPHORES)

    def read_scalars(self, core: int) -> Words:
        return self._chip.read_space(core, Space.SCALAR, 0, SCALAR_REGISTERS)

    def write_scalars(self, core: int, at: int, words: Words) -> None:
        self._chip.write_space(core, Space.SCALAR, at, words)

    def read_smem(self, core: int, at: int, count: int) -> Words:
        return self._chip.read_space(core, Space.SMEM, at, count)

    def write_smem(self, core: int, at: int, words: Words) -> None:
        self._chip.write_space(core, Space.SMEM, at, words)

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        config = self._config
        result = np.zeros((count, config.sublanes, config.lanes), np.uint32)
        for first, place, part in self._parts(count):
            rows = len(result[part]) * config.sublanes
            self._chip.transfer(core, descriptor(config, vmem(at + part.start), place, rows=rows))
            result[part] = self._chip.read_hbm(first, rows).reshape(result[part].shape)
        return result

    def write_vmem(self, core: int, at: int, vectors: Words) -> None:
        config = self._config
        for first, place, part in self._parts(len(vectors)):
            rows = vectors[part].reshape(-1, config.lanes)
            self._chip.write_hbm(first, rows)
            self._chip.transfer(core, descriptor(config, place, vmem(at + part.start),
                                                 rows=len(rows)))

    def _parts(self, vectors: int) -> Iterator[tuple[int, Place, slice]]:
        """Split ``vectors`` vectors into parts that fit in the staging rows.

        Yields
        ------
        tuple
            Number of the first staging row; the same row, as the source or destination of a
            transfer; the part, as a range of the vectors' indices.
        """
        config = self._config
        rows = staging_rows(config)
        first = config.hbm_rows - rows
        for begin in range(0, vectors, rows // config.sublanes):
            yield (first, hbm(first * config.row_bytes),
                   slice(begin, min(vectors, begin + rows // config.sublanes)))

    def take_counters(self, core: int) -> None:
        self._taken[core] = self._chip.counters(core)

    def taken_counters(self, core: int) -> dict[str, int]:
        return self._taken[core]

    def close(self) -> None:
        self._chip.close()
