"""The verilated chip and its HBM, simulated in this process and accessed as by a host."""

import operator
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from hdl import isa
from hdl.checks import instance, integer
from hdl.chip.registers import COUNTER_REGISTERS
from hdl.config import Config
from hdl.core.interface import Space
from hdl.encoding import bundle_words
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS
from sim.asm.descriptor import masks, smem, vmem, vreg
from sim.asm.operands import v
from sim.models.chip.simulation import Until, Words
from sim.models.chip.transfers import TransferPort, staging_rows
from sim.models.hbm import HbmOptions

__all__ = ["ChipModel"]


class ChipModel(TransferPort):
    """A simulated chip and its memory.

    Initially all state is zero. The clock runs only inside methods that take simulated time. These
    are `run`, and all methods that access registers: an access takes some cycles, in which the
    whole chip runs. Threads may share a model: their calls take turns. A process may have several
    models.

    If the chip violates the AXI protocol at its memory, or the simulation fails in another way, the
    method that ran the clock raises a `RuntimeError` that says what is wrong. Every later method
    that takes simulated time raises it, too.

    Methods that read or write programs, vector memory or vector registers do so by transfers
    through memory's last `staging_rows`, whose contents they restore before they return. A program
    that runs during such a method must not transfer from or to these rows. It would read staged
    data, and what it writes would be lost.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the tile grids by tile kernels; otherwise everything is pure Verilog.
    memory : HbmOptions
        The memory's latency and bandwidth, and random stalls.
    trace : path, optional
        Write a trace of the units to this path with ``.json`` added, and waveforms of everything
        except the grids to the path with ``.vcd`` added. The files are complete when the model is
        closed. Requires ``kernels``; the simulation is slower.
    library : pathlib.Path, optional
        The library of another `ChipModel`, its ``model.path``. That chip must have equal
        ``config`` and ``kernels``, and either both chips or none may have a ``trace``. By default
        the constructor finds or builds the library; even to find it takes longer than to load it.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type, if a chip cannot have this ``config``, or if ``trace`` is
        not a usable path.
    OSError
        If the files of the trace cannot be written.
    RuntimeError
        If the simulation cannot be built; the message says what is missing.
    """

    def __init__(self, config: Config, *, kernels: bool = True,
                 memory: HbmOptions | None = None,
                 trace: str | os.PathLike[str] | None = None,
                 library: pathlib.Path | None = None) -> None:
        instance("config", config, Config)
        self._staging = staging_rows(config)
        self._taken = [0] * config.cores
        super().__init__(config, kernels=kernels, memory=memory, trace=trace,
                         library=library)

    # ---- Programs

    def load_program(self, core: int, bundles: Sequence[int], at: int = 0) -> None:
        """Writes bundles to a core's instruction memory, from address ``at`` on.

        As `load_programs`, for one core.
        """
        self.load_programs({core: bundles}, at)

    def load_programs(self, programs: Mapping[int, Sequence[int]], at: int = 0) -> None:
        """Writes bundles to the instruction memories of cores, from address ``at`` on.

        Transfers through the staging rows move the programs to all cores at the same time. Bundles
        after the end of a program keep their contents.

        Raises
        ------
        TypeError, ValueError
            If a bundle is not an integer of `isa.BUNDLE_BITS` bits, or a program does not fit in
            instruction memory.
        RuntimeError
            If a program is running on one of the cores, or memory answers with an error.
        """
        words: dict[int, Words] = {}
        first = 0
        for core, given in programs.items():
            bundles = list(given)
            first = self._range("program", at, len(bundles), self._config.imem_bundles)
            words[self._core(core)] = rows = np.zeros((len(bundles), BUNDLE_PITCH), np.uint32)
            for number, bundle in enumerate(bundles):
                rows[number, :BUNDLE_WORDS] = bundle_words(
                    integer("bundle", bundle, 0, (1 << isa.BUNDLE_BITS) - 1))
        with self._lock:
            for core in words:
                self._require_stopped(core, "load another one")
            self._put_programs({core: rows for core, rows in words.items()
                                if len(rows) >= self._bundles_in_row}, first)
            for core, rows in words.items():
                if len(rows) < self._bundles_in_row:
                    # Bundles that do not fill a row are written word by word.
                    for number, row in enumerate(rows):
                        self.write_words(core, Space.IMEM, BUNDLE_PITCH * (first + number),
                                         row[:BUNDLE_WORDS])

    def start(self, core: int, pc: int = 0) -> None:
        """Starts a core at bundle ``pc`` and clears its fault.

        Raises
        ------
        RegisterError
            If a program is running on the core, or it is being reset.
        """
        with self._lock:
            self.write("START_PC", pc, core=core)
            self.write("CONTROL", core=core, START=1)

    def stop(self, core: int) -> None:
        """Stops a core before its next bundle.

        Work that the program has begun continues: `run` completes it.
        """
        self.write("CONTROL", core=core, STOP=1)

    def reset_core(self, core: int) -> None:
        """Resets a core, drops its transfers, and waits until it can be used again."""
        with self._lock:
            self.write("CONTROL", core=core, RESET=1)
            self._wait(lambda: not self.status(core)["RESETTING"], f"core {core} is being reset")

    def set_watchdog(self, core: int, cycles: int) -> None:
        """Makes a core fault after ``cycles`` cycles in a row in which no bundle issues.

        If ``cycles`` is 0, there is no limit.
        """
        self.write("WATCHDOG", integer("cycles", cycles, 0, 0xFFFFFFFF), core=core)
        # A run tells chip.cpp which cores have a watchdog. On a torus, the runs of other chips need
        # to know this, too, so it is told at once.
        self.run(0, until=Until.NEVER)

    # ---- Counters

    def counters(self, core: int) -> dict[str, int]:
        """Returns the numbers of a core's cycles, by cause, since the counters were last zero.

        `clear_counters`, `reset_core` and `reset` set them to zero.

        Returns
        -------
        dict of str to int
            ``cycles``, and the counters of `hdl.core.counters.COUNTERS`, whose sum is ``cycles``.
        """
        with self._lock:
            self.take_counters(core)
            return self.taken_counters(core)

    def take_counters(self, core: int) -> None:
        """Takes a snapshot of a core's counters, which `taken_counters` returns."""
        self._taken[self._core(core)] = self.read(f"{COUNTER_REGISTERS[0]}_LO", core=core)

    def taken_counters(self, core: int) -> dict[str, int]:
        """Returns the last snapshot of a core's counters; takes longer than `take_counters`."""
        rest = self._accesses([
            (False, self._address(f"{name}_{half}", core)[0], 0)
            for name in COUNTER_REGISTERS for half in ("LO", "HI")][1:]).tolist()
        halves = [self._taken[self._core(core)], *rest]
        return {name.lower(): low | high << 32 for name, low, high in zip(
            COUNTER_REGISTERS, halves[::2], halves[1::2], strict=True)}

    def clear_counters(self, core: int) -> None:
        """Sets a core's counters to zero."""
        self.write("CONTROL", core=core, CLEAR_COUNTERS=1)

    # ---- Memories and registers

    def write_vmem(self, core: int, at: int, vectors: Words) -> None:
        """Writes vector memory by transfers.

        Parameters
        ----------
        core : int
            The core.
        at : int
            Address of the first vector.
        vectors : array of uint32, shape (count, sublanes, lanes)
            The data.
        """
        shape = (self._config.sublanes, self._config.lanes)
        if vectors.dtype != np.uint32 or vectors.shape[1:] != shape:
            raise TypeError(f"vectors must be uint32 of shape (count, {shape[0]}, {shape[1]}), not "
                            f"{vectors.dtype} of {vectors.shape!r}")
        first = self._range("vectors", at, len(vectors), self._config.vmem_vectors)
        self._put_rows(core, vectors.reshape(-1, self._config.lanes),
                       lambda row: vmem(first + row // self._config.sublanes))

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        """Reads ``count`` vectors of vector memory from address ``at`` on, by transfers.

        Returns an array of shape (count, sublanes, lanes).
        """
        first = self._range("vectors", at, count, self._config.vmem_vectors)
        return self._get_vectors(core, count, lambda vector: vmem(first + vector))

    def write_smem(self, core: int, at: int, words: npt.ArrayLike) -> None:
        """Writes words of scalar memory from address ``at`` on."""
        given = np.asarray(words)
        first = self._range("words", at, given.size, self._config.smem_words)
        self.write_words(core, Space.SMEM, first, given)

    def read_smem(self, core: int, at: int, count: int) -> Words:
        """Reads ``count`` words of scalar memory from address ``at`` on.

        Whole rows are read by transfers, the rest through registers.
        """
        first = self._range("words", at, count, self._config.smem_words)
        whole = count - count % self._config.lanes
        parts = [self._get_rows(core, whole // self._config.lanes,
                                lambda row: smem(first + row * self._config.lanes)).reshape(-1)]
        if count > whole:
            parts.append(self.read_words(core, Space.SMEM, first + whole, count - whole))
        return np.concatenate(parts)

    def state(self, core: int) -> dict[str, Any]:
        """Returns all state of a core that programs can read, as `GoldenCore.read_state` does.

        The core must be at rest. Uses the staging rows.

        Raises
        ------
        RuntimeError
            If a program is running, or work that it began has not ended.
        """
        with self._lock:
            self._require_stopped(core, "read its registers")
            if not self.status(core)["IDLE"] or self.status(core)["DMA_BUSY"]:
                raise RuntimeError(f"core {core} must be at rest, but work of its program has not "
                                   "ended: call run")
            packed = self._get_vectors(core, 1, lambda _: masks())[0]
            return {
                "scalars": self.read_words(core, Space.SCALAR, 0, isa.SCALAR_REGISTERS),
                "vectors": self._get_vectors(core, isa.VECTOR_REGISTERS,
                                             lambda number: vreg(v[number])),
                "masks": np.stack([packed >> mask & 1 for mask in range(isa.MASKS)]).astype(bool),
                "vmem": self.read_vmem(core, 0, self._config.vmem_vectors),
                "smem": self.read_smem(core, 0, self._config.smem_words),
                "semaphores": self.read_words(core, Space.SEMAPHORE, 0, isa.SEMAPHORES),
                "pc": self.pc(core),
                "running": self.running(core),
                "fault": self.fault(core),
            }

    def _range(self, name: str, at: SupportsIndex, count: SupportsIndex, size: int) -> int:
        """Checks that ``count`` items, the first at address ``at``, fit in a memory of ``size``.

        Returns ``at``. ``name`` names the items in the error message.
        """
        first = integer("address", at, 0, size)
        if first + integer("count", count, 0, size) > size:
            raise ValueError(f"{name} must lie within 0 to {size - 1}, not from {first} to "
                             f"{first + operator.index(count) - 1}")
        return first
