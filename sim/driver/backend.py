"""Backends of a device: a protocol, and its implementations (RTL, golden model, serial line).

A backend is a chip as its host sees it. The device checks all arguments before it calls a backend,
and lets only one thread call it at a time.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt

from golden.chip import GoldenChip
from hdl.checks import integer
from hdl.chip.registers import CORE_REGISTERS, COUNTER_REGISTERS, EVENT_PITCH, EVENTS
from hdl.config import Config
from hdl.core.interface import Space
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS, SCALAR_REGISTERS, SEMAPHORES, Fault
from sim.driver.serial import SerialBackend
from sim.errors import CoreState
from sim.models.chip import ChipModel, Until
from sim.models.hbm import HbmOptions

__all__ = ["BACKENDS", "SIMULATED", "Backend", "GoldenRun", "core_state", "golden_backend",
           "open_backend", "rtl_backend"]

SIMULATED = ("rtl", "golden")
"""Names of the simulated backends: the hardware in RTL, and the golden model."""
BACKENDS = (*SIMULATED, "serial")
"""Names of all backends: the simulated ones, and a board behind a serial line."""

Words = npt.NDArray[np.uint32]

_STOP_CYCLES = 1 << 16
"""Maximum number of cycles to wait for a core to stop."""
_TURN = 64
"""Number of bundles that a golden core executes before the next core's turn."""


class Backend(Protocol):
    """A chip with its memory, as a device drives it."""

    @property
    def config(self) -> Config:
        """The chip's parameters."""

    @property
    def model(self) -> ChipModel | None:
        """The chip simulated in RTL; None for other backends."""

    def read_hbm(self, at: int, count: int) -> Words:
        """Read ``count`` rows of HBM from row ``at`` on, shape (count, lanes).

        The result may be a view of HBM: copy it before the next call, and do not change it.
        """

    def write_hbm(self, at: int, count: int, *,
                  keep: bool = False) -> AbstractContextManager[Words]:
        """Return a context manager that writes ``count`` rows of HBM from row ``at`` on.

        Parameters
        ----------
        at, count : int
            First row, and number of rows.
        keep : bool
            Whether the array that the context yields begins as a copy of the rows; otherwise its
            contents are undefined.

        Returns
        -------
        context manager
            It yields an array of shape (count, lanes), whose contents the rows have after the
            context.
        """

    @property
    def steps(self) -> int:
        """Time so far: clock cycles or, in the golden model, bundles that its busiest core ran."""

    def load(self, programs: Mapping[int, Sequence[int]], at: int) -> None:
        """Write programs, by core, to instruction memory from bundle ``at`` on.

        These cores must be stopped.
        """

    def bundle(self, core: int, address: int) -> int | None:
        """Read the bundle at ``address`` of a stopped core; return None beyond the memory's end."""

    def start(self, core: int, pc: int) -> None:
        """Start a stopped core at bundle ``pc``."""

    def stop(self, core: int) -> None:
        """Stop a core before it issues its next bundle."""

    def reset(self, core: int) -> None:
        """Reset a core and its counters; its memories and registers keep their contents."""

    def reset_all(self) -> None:
        """Reset the chip, whatever it is doing; memories and registers keep their contents."""

    def advance(self, steps: int, interrupt: bool) -> bool:
        """Advance simulated time. The time of a board advances on its own.

        Parameters
        ----------
        steps : int
            Maximum number of cycles (RTL) or bundles of each core (golden model).
        interrupt : bool
            Whether to return as soon as any core stops.

        Returns
        -------
        bool
            True if nothing more can happen unless the host acts.
        """

    def state(self, core: int) -> CoreState:
        """Return whether a core is running or waiting, whether it has transfers, and its fault."""

    def set_watchdog(self, core: int, cycles: int) -> None:
        """Set the number of cycles without an issue after which the core stops with a fault.

        0, the value after a reset, disables the watchdog.
        """

    def signal(self, core: int, semaphore: int, amount: int) -> None:
        """Add ``amount`` to a semaphore of a core."""

    def read_semaphores(self, core: int) -> Words:
        """Return the values of all semaphores of a core."""

    def read_scalars(self, core: int) -> Words:
        """Return the values of all scalar registers of a stopped core."""

    def write_scalars(self, core: int, at: int, words: Words) -> None:
        """Write scalar registers of a stopped core from number ``at`` on; register 0 stays zero."""

    def read_smem(self, core: int, at: int, count: int) -> Words:
        """Read ``count`` words of a core's scalar memory, from address ``at`` on."""

    def write_smem(self, core: int, at: int, words: Words) -> None:
        """Write words of a core's scalar memory, from address ``at`` on."""

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        """Read ``count`` vectors of a core's vector memory, from address ``at`` on.

        Returns an array of shape (count, sublanes, lanes).
        """

    def write_vmem(self, core: int, at: int, vectors: Words) -> None:
        """Write vectors to a core's vector memory, from address ``at`` on.

        ``vectors`` has the shape (count, sublanes, lanes).
        """

    def take_counters(self, core: int) -> None:
        """Take a snapshot of a core's counters, which `taken_counters` returns."""

    def taken_counters(self, core: int) -> dict[str, int]:
        """Return the snapshot that `take_counters` took, by counter.

        The counters are ``cycles`` and `hdl.core.counters.COUNTERS`, since the core's last reset.
        """

    def close(self) -> None:
        """End the simulation, or release the board."""


GoldenRun = Callable[[int], tuple[int, bool]]
"""Function that executes at most the given number of bundles on each core. It returns the largest
number of bundles that a core executed, and whether any core can continue."""


class _GoldenBackend:
    """A golden chip. It has no clock: all counters are zero.

    If a core's watchdog is not 0, its waiting program faults as soon as no core can continue.

    Parameters
    ----------
    chip : GoldenChip
        The chip.
    run : callable
        The `GoldenRun` of the chip, which also runs other chips if they exchange packets with it.
    """

    def __init__(self, chip: GoldenChip, run: GoldenRun) -> None:
        self._chip, self._run = chip, run
        self._config = chip.config
        self._steps = 0
        self._watched = [False] * chip.config.cores

    @property
    def config(self) -> Config:
        return self._config

    @property
    def model(self) -> ChipModel | None:
        return None

    def read_hbm(self, at: int, count: int) -> Words:
        return self._chip.hbm[at:at + count]

    def write_hbm(self, at: int, count: int, *,
                  keep: bool = False) -> AbstractContextManager[Words]:
        return nullcontext(self._chip.hbm[at:at + count])

    @property
    def steps(self) -> int:
        return self._steps

    def load(self, programs: Mapping[int, Sequence[int]], at: int) -> None:
        for core, bundles in programs.items():
            self._chip.cores[core].load_program(bundles, at)

    def bundle(self, core: int, address: int) -> int | None:
        program = self._chip.cores[core].program
        return program[address] if address < len(program) else None

    def start(self, core: int, pc: int) -> None:
        self._chip.cores[core].start(pc)

    def stop(self, core: int) -> None:
        self._chip.cores[core].stop()

    def reset(self, core: int) -> None:
        self._chip.cores[core].reset()

    def reset_all(self) -> None:
        for core in self._chip.cores:
            core.reset()
        self._watched = [False] * self._config.cores

    def advance(self, steps: int, interrupt: bool) -> bool:
        end = self._steps + steps
        before = [core.running for core in self._chip.cores]
        while self._steps < end:
            executed, can_continue = self._run(min(_TURN, end - self._steps))
            self._steps += executed
            if not can_continue:
                expired = [core for core, watched in zip(self._chip.cores, self._watched,
                                                         strict=True) if core.waiting and watched]
                for core in expired:
                    core.stop(Fault.WATCHDOG)
                return not expired
            if interrupt and before != [core.running for core in self._chip.cores]:
                return False
        return False

    def state(self, core: int) -> CoreState:
        golden = self._chip.cores[core]
        return CoreState(golden.running, golden.waiting, bool(golden.egress.ways), golden.fault,
                         golden.pc)

    def set_watchdog(self, core: int, cycles: int) -> None:
        self._watched[core] = cycles != 0

    def signal(self, core: int, semaphore: int, amount: int) -> None:
        self._chip.cores[core].signal(semaphore, amount)

    def read_semaphores(self, core: int) -> Words:
        return self._chip.cores[core].semaphores.copy()

    def read_scalars(self, core: int) -> Words:
        return self._chip.cores[core].scalars.copy()

    def write_scalars(self, core: int, at: int, words: Words) -> None:
        scalars = self._chip.cores[core].scalars
        scalars[at:at + len(words)] = words
        scalars[0] = 0

    def read_smem(self, core: int, at: int, count: int) -> Words:
        return self._chip.cores[core].smem[at:at + count].copy()

    def write_smem(self, core: int, at: int, words: Words) -> None:
        self._chip.cores[core].smem[at:at + len(words)] = words

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        return self._chip.cores[core].vmem[at:at + count].copy()

    def write_vmem(self, core: int, at: int, vectors: Words) -> None:
        self._chip.cores[core].vmem[at:at + len(vectors)] = vectors

    def take_counters(self, core: int) -> None:
        pass

    def taken_counters(self, core: int) -> dict[str, int]:
        return {name.lower(): 0 for name in COUNTER_REGISTERS}

    def close(self) -> None:
        for core in self._chip.cores:
            core.forget_bundles()


class _RtlBackend:
    """A chip in RTL, driven through its registers as by any host."""

    def __init__(self, chip: ChipModel) -> None:
        self._chip = chip
        self._config = config = chip.config
        self._events = sum(
            1 << EVENT_PITCH * core + EVENTS.index(event)
            for core in range(config.cores) for event in ("STOPPED", "FAULT"))
        self._listen()

    @property
    def config(self) -> Config:
        return self._config

    @property
    def model(self) -> ChipModel | None:
        return self._chip

    def read_hbm(self, at: int, count: int) -> Words:
        return self._chip.hbm[at:at + count]

    def write_hbm(self, at: int, count: int, *,
                  keep: bool = False) -> AbstractContextManager[Words]:
        return nullcontext(self._chip.hbm[at:at + count])

    @property
    def steps(self) -> int:
        return self._chip.cycle

    def load(self, programs: Mapping[int, Sequence[int]], at: int) -> None:
        self._chip.load_programs(programs, at)

    def bundle(self, core: int, address: int) -> int | None:
        if address >= self._config.imem_bundles:
            return None
        words = self._chip.read_words(core, Space.IMEM, BUNDLE_PITCH * address, BUNDLE_WORDS)
        return sum(int(word) << 32 * number for number, word in enumerate(words))

    def start(self, core: int, pc: int) -> None:
        self._chip.start(core, pc)

    def stop(self, core: int) -> None:
        self._chip.stop(core)
        end = self.steps + _STOP_CYCLES
        while self.state(core).running:
            if self.steps > end:
                raise RuntimeError(f"core {core} does not stop: reset it")
            self._chip.run(16, until=Until.NEVER)

    def reset(self, core: int) -> None:
        self._chip.reset_core(core)

    def reset_all(self) -> None:
        if self._chip.together is None:
            self._chip.reset()
        else:
            # The pin ``rst`` would also reset this chip's link ends, but not the other ends.
            for core in range(self._config.cores):
                self._chip.reset_core(core)
        self._listen()

    def _listen(self) -> None:
        self._chip.write("INTERRUPT_ENABLE", self._events)

    def advance(self, steps: int, interrupt: bool) -> bool:
        try:
            self._chip.run(steps, until=Until.INTERRUPT if interrupt else Until.REST)
        except TimeoutError:
            return False
        return not (self.clear_events() and interrupt)

    def clear_events(self) -> bool:
        """Clear the interrupts' events, which would end the next run at once.

        Return whether there were any.
        """
        events = self._chip.read("INTERRUPT_STATUS") & self._events
        if events:
            self._chip.write("INTERRUPT_STATUS", events)
        return bool(events)

    def state(self, core: int) -> CoreState:
        return core_state(self._chip.read("STATUS", core=core), self._chip.read("PC", core=core))

    def set_watchdog(self, core: int, cycles: int) -> None:
        self._chip.set_watchdog(core, cycles)

    def signal(self, core: int, semaphore: int, amount: int) -> None:
        self._chip.write("SEMAPHORE_ADD", core=core, INDEX=semaphore, AMOUNT=amount)

    def read_semaphores(self, core: int) -> Words:
        return self._chip.read_words(core, Space.SEMAPHORE, 0, SEMAPHORES)

    def read_scalars(self, core: int) -> Words:
        return self._chip.read_words(core, Space.SCALAR, 0, SCALAR_REGISTERS)

    def write_scalars(self, core: int, at: int, words: Words) -> None:
        self._chip.write_words(core, Space.SCALAR, at, words)

    def read_smem(self, core: int, at: int, count: int) -> Words:
        return self._chip.read_words(core, Space.SMEM, at, count)

    def write_smem(self, core: int, at: int, words: Words) -> None:
        self._chip.write_smem(core, at, words)

    def read_vmem(self, core: int, at: int, count: int) -> Words:
        return self._chip.read_vmem(core, at, count)

    def write_vmem(self, core: int, at: int, vectors: Words) -> None:
        self._chip.write_vmem(core, at, vectors)

    def take_counters(self, core: int) -> None:
        self._chip.take_counters(core)

    def taken_counters(self, core: int) -> dict[str, int]:
        return self._chip.taken_counters(core)

    def close(self) -> None:
        if self._chip.together is None:
            self._chip.close()


def core_state(status: int, pc: int) -> CoreState:
    """Return the state of a core in RTL, from the values of its registers STATUS and PC."""
    fields = CORE_REGISTERS["STATUS"].unpack(status)
    return CoreState(bool(fields["RUNNING"]), bool(fields["WAITING"]), bool(fields["DMA_BUSY"]),
                     Fault(fields["FAULT"]), pc)


def golden_backend(chip: GoldenChip, run: GoldenRun) -> Backend:
    """Return the backend of a golden chip; ``run`` also runs other chips of its pod, if any."""
    return _GoldenBackend(chip, run)


def rtl_backend(chip: ChipModel) -> Backend:
    """Drive a chip in RTL.

    If the chip is on a torus, `Backend.reset_all` resets only its cores, and `Backend.close` leaves
    it open. Otherwise, they reset and close the whole chip.
    """
    return _RtlBackend(chip)


def open_backend(name: str, config: Config, memory: HbmOptions | None,
                 trace: str | os.PathLike[str] | None, port: str | None, baud: int) -> Backend:
    """Open the backend called ``name``, one of `BACKENDS`.

    `Device.open` documents the other arguments.

    Raises
    ------
    TypeError, ValueError, OSError
        If `ChipModel` rejects ``trace``; if an option is given that the backend does not have; if
        ``port`` is missing, or the board cannot be used.
    ImportError
        If the serial backend lacks pyserial.
    """
    if name == "golden" and trace is not None:
        raise ValueError(f"trace must be None for the golden backend, not {trace!r}: "
                         "the golden model has no clock")
    if name != "serial" and port is not None:
        raise ValueError(f"port must be None for the {name} backend, not {port!r}")
    if name == "serial":
        for option, value in (("memory", memory), ("trace", trace)):
            if value is not None:
                raise ValueError(f"{option} must be None for the serial backend, not {value!r}: "
                                 f"{option} is for simulations only")
        if not isinstance(port, str) or not port:
            raise ValueError("port must be the name of a serial port, such as /dev/ttyUSB0, not "
                             f"{port!r}")
        return SerialBackend(config, port, integer("baud", baud, 1, (1 << 31) - 1))
    if name == "rtl":
        return rtl_backend(ChipModel(config, memory=memory, trace=trace))
    chip = GoldenChip(config)

    def run(bundles: int) -> tuple[int, bool]:
        result = chip.run(bundles, turn=bundles)
        return max(result.executed), bool(result.running)

    return golden_backend(chip, run)
