"""The verilated core, driven in this process as its host drives it."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from hdl import isa
from hdl.checks import integer
from hdl.core.counters import COUNTERS
from hdl.core.interface import REQUEST_WORD_BITS, Space
from hdl.encoding import bundle_words
from sim.asm.disassembler import disassemble
from sim.errors import CoreFaultError
from sim.models.core.ports import CorePorts, checked_range

__all__ = ["CoreModel"]

_NO_LIMIT = 1 << 62
_IMEM_STRIDE = 1 << REQUEST_WORD_BITS

Progress = Callable[[int], object]


class CoreModel(CorePorts):
    """A simulated core.

    Initially all its state is zero. Its clock runs only within calls. Threads may share a model:
    their calls take turns. Vector memory, vector registers and masks can be accessed at any time;
    scalar memory, scalar registers and semaphores only while no program runs. A method whose access
    to memories or registers makes no progress for 65,536 cycles raises a `RuntimeError`, and so
    does every later access until `reset`.

    Parameters
    ----------
    config : Config
        Parameters.
    kernels : bool
        Simulate the tile grids by tile kernels; otherwise everything is pure Verilog.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    RuntimeError
        If the simulation cannot be built; the message says what is missing.
    """

    # ---- Programs

    def load_program(self, bundles: Sequence[int], at: int = 0) -> None:
        """Writes bundles to the instruction memory, from address ``at`` on.

        Bundles of an earlier program that follow in memory remain: a program without a halt at its
        end continues with them.

        Raises
        ------
        TypeError, ValueError
            If a bundle is not an integer of `isa.BUNDLE_BITS` bits, or the bundles do not fit in
            instruction memory.
        RuntimeError
            If a program is running.
        """
        bundles = list(bundles)
        first = checked_range("program", at, len(bundles), self._config.imem_bundles, "bundles")
        words = [bundle_words(integer("bundle", bundle, 0, (1 << isa.BUNDLE_BITS) - 1))
                 for bundle in bundles]
        addresses = ((first + np.arange(len(bundles)))[:, np.newaxis] * _IMEM_STRIDE
                     + np.arange(isa.BUNDLE_WORDS))
        self._write_control(Space.IMEM, addresses.ravel(),
                            np.array(words, np.uint32).ravel())

    def read_program(self, at: int = 0, count: int = 1) -> list[int]:
        """Reads ``count`` bundles of the instruction memory, from address ``at`` on."""
        first = checked_range("program", at, count, self._config.imem_bundles, "bundles")
        addresses = ((first + np.arange(count))[:, np.newaxis] * _IMEM_STRIDE
                     + np.arange(isa.BUNDLE_WORDS))
        words = self._read_control(Space.IMEM, addresses.ravel())
        return [int.from_bytes(bundle.astype("<u4").tobytes(), "little")
                for bundle in words.reshape(count, isa.BUNDLE_WORDS)]

    def start(self, pc: int = 0) -> None:
        """Starts the core at bundle ``pc`` and clears its fault; takes a cycle.

        Raises
        ------
        TypeError, ValueError
            If ``pc`` is not an integer of 32 bits.
        RuntimeError
            If a program is running.
        """
        first = integer("pc", pc, 0, (1 << 32) - 1)
        with self._lock:
            self._require_stopped("start a program")
            self._model.poke("start_pc", first)
            self._pulse("start")

    def stop(self) -> None:
        """Stops the core before its next bundle, whose address is then `pc`; takes a cycle.

        Work that the program has begun continues: `run` completes it. ``start(core.pc)`` resumes
        the program.
        """
        with self._lock:
            self._pulse("stop")

    def run(self, max_cycles: int | None = None, *, progress: Progress | None = None) -> int:
        """Runs until the program has stopped and all work that it began has ended.

        Also returns if the program waits for a semaphore and nothing else is under way. Then
        `signal` and another call of `run` continue the program. After Ctrl-C, another call of `run`
        continues the program, too.

        Parameters
        ----------
        max_cycles : int, optional
            Maximum number of cycles to run.
        progress : callable, optional
            Called repeatedly during the run with the number of cycles since its last call.

        Returns
        -------
        int
            Number of cycles run.

        Raises
        ------
        TimeoutError
            If the core is not at rest by the limit.
        """
        limit = _NO_LIMIT if max_cycles is None else integer("max_cycles", max_cycles, 0, 1 << 62)
        total = 0
        done, resting = ctypes.c_uint64(), ctypes.c_uint32()
        with self._lock:
            while True:
                self._model.check(self._model.library.systolith_core_run(
                    self._model.handle, limit - total, done, resting))
                total += done.value
                if progress is not None:
                    progress(done.value)
                # With a watchdog, a waiting core is not at rest: the watchdog ends every wait.
                if resting.value and not (self.running and self._model.peek("watchdog")):
                    return total
                if total >= limit:
                    break
                if resting.value:
                    self._model.tick()
                    total += 1
            raise TimeoutError(f"the core is not at rest after {total} cycles: it is at bundle "
                               f"{self.pc}" + ("" if self.running else ", and stopped"))

    def run_program(self, bundles: Sequence[int] | None = None, *, pc: int = 0,
                    max_cycles: int | None = None, progress: Progress | None = None
                    ) -> dict[str, int]:
        """Loads a program to address 0, runs it from ``pc`` to its end, and returns its counters.

        If ``bundles`` is None, runs the program that is loaded. As with `load_program`, bundles
        after the new program remain in memory.

        Returns
        -------
        dict of str to int
            `counters` of this run.

        Raises
        ------
        CoreFaultError
            If the program ends with a fault.
        TimeoutError
            If the core is not at rest after ``max_cycles`` cycles.
        RuntimeError
            If the program waits for a semaphore that nothing changes.
        """
        with self._lock:
            if bundles is not None:
                self.load_program(bundles)
            self.clear_counters()
            self.start(pc)
            self.run(max_cycles, progress=progress)
            if self.running:
                raise RuntimeError(f"the program waits for a semaphore at bundle {self.pc}")
            if self.fault:
                bundle = (self.read_program(self.pc)[0]
                          if self.pc < self._config.imem_bundles else None)
                raise CoreFaultError(0, self.fault, self.pc, bundle,
                                     "" if bundle is None else disassemble(bundle))
            return self.counters()

    def set_watchdog(self, cycles: int) -> None:
        """Makes the core fault after ``cycles`` cycles in a row in which no bundle issues.

        If ``cycles`` is 0, there is no limit.
        """
        limit = integer("cycles", cycles, 0, (1 << 32) - 1)
        with self._lock:
            self._model.poke("watchdog", limit)

    def signal(self, index: int, amount: int = 1) -> None:
        """Adds ``amount`` to semaphore ``index``, even while a program runs; takes a cycle."""
        number = integer("index", index, 0, isa.SEMAPHORES - 1)
        units = integer("amount", amount, 0, (1 << 32) - 1)
        with self._lock:
            self._model.poke("signal__index", number)
            self._model.poke("signal__amount", units)
            self._pulse("signal__valid")

    # ---- Counters

    def counters(self) -> dict[str, int]:
        """Returns the numbers of cycles, by cause, since `clear_counters` or `reset`.

        Returns
        -------
        dict of str to int
            ``cycles``, and the counters of `hdl.core.counters.COUNTERS`, whose sum is ``cycles``.
        """
        with self._lock:
            return {"cycles": self._peek("cycles"),
                    **{name: self._peek(name) for name in COUNTERS}}

    def clear_counters(self) -> None:
        """Sets all counters to zero; takes a cycle, which is not counted."""
        with self._lock:
            self._pulse("clear_counters")
