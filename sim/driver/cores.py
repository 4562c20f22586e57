"""The device's cores: their programs, states and faults."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hdl.checks import integer
from hdl.config import Config
from hdl.isa import BUNDLE_BITS, SEMAPHORES, Fault
from sim.asm.assembler import Program
from sim.asm.disassembler import disassemble, label_names
from sim.driver.backend import Backend
from sim.driver.counters import Counters
from sim.driver.heap import Buffer
from sim.driver.memory import Memory
from sim.errors import CoreFaultError, CoreState, CoreStoppedError, DeviceTimeoutError

__all__ = ["SLICE", "Cores", "Progress", "check_limits", "timeout"]

Progress = Callable[[], object]

SLICE = 1024
"""Cycles (RTL) or bundles (golden model) after which a wait reads the states of the cores and the
host's clock again."""
_MOST_SIGNAL = (1 << 28) - 1
"""Largest amount that the host can add to a semaphore in one access."""


class Cores(Memory, Counters):
    """Part of `Device`: loads, starts, waits for, stops and resets the cores."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # For each core: labels of its instruction memory; its watchdog as set; how many running
        # programs the host has stopped or reset so far.
        self._labels: list[dict[int, str]] = [{} for _ in range(config.cores)]
        self._watchdogs = [0] * config.cores
        self._kills = [0] * config.cores
        # Whether a user's program has been started, or a semaphore signalled, since the last reset.
        self._used = False
        # The chips of the pod, this one included, whose programs can signal each other; whether
        # signals of another chip may have arrived, or may still arrive, since the last reset.
        self._peers: list[Cores] = [self]
        self._reached = False
        # Whether an executable is running; its run may call functions of the user.
        self._executing = False
        # How often the host has signalled a semaphore.
        self._signals = 0
        # By core: the program of an executable that instruction memory holds at address 0.
        self._loaded: dict[int, Program] = {}
        # Whether programs of an executable may still be running, and the buffers that they may
        # write, which the next reset of the chip frees.
        self._unfinished = False
        self._left: list[Buffer] = []

    def load(self, core: int, program: Program | Sequence[int], at: int = 0) -> None:
        """Write a program to a core's instruction memory, from bundle ``at`` on.

        The rest of instruction memory stays as it is.

        Raises
        ------
        TypeError, ValueError
            If ``program`` is not a sequence of bundles, or does not fit in instruction memory.
        RuntimeError
            If the core is running, or the device is closed.
        """
        self._load({core: program}, at)

    def start(self, core: int, pc: int = 0) -> None:
        """Start a core at bundle ``pc``, and clear its fault.

        The program makes progress only while a method advances simulated time. `wait` and `run` do
        so until programs have ended; others, such as `read_vmem`, for a few cycles.

        Raises
        ------
        TypeError, ValueError
            If there is no such core or bundle.
        RuntimeError
            If the core is already running, or the device is closed.
        """
        with self._open() as backend:
            number = self._core(core)
            address = integer("pc", pc, 0, self._config.imem_bundles - 1)
            self._require_stopped(backend, number)
            self.note_start()
            backend.start(number, address)

    def note_start(self) -> None:
        """Note that a program is started, so that a reset precedes the next executable.

        `start` and `Pod` call this for each program that they start.
        """
        self._used = True
        if not self._executing:
            # `Pod.execute` ends, or resets, the programs of all chips together.
            for peer in self._peers:
                peer._reached |= peer is not self

    def wait(self, cores: Sequence[int] | None = None, *, cycles: int | None = None,
             seconds: float | None = None, poll: bool = False,
             progress: Progress | None = None) -> None:
        """Wait until programs have ended and their transfers are complete.

        Parameters
        ----------
        cores : sequence of int, optional
            The cores to wait for; all cores by default. Other cores run meanwhile.
        cycles : int, optional
            Limit of the wait in clock cycles; with the golden backend, in bundles of a core.
        seconds : float, optional
            Limit of the wait in seconds of the host's clock.
        poll : bool
            Poll the cores' status registers instead of using the interrupt; same result.
        progress : callable, optional
            Called without arguments at least every 1,024 cycles (golden backend: bundles).
            If it signals semaphores for which programs wait, these programs continue.

        Raises
        ------
        CoreFaultError
            If one of the cores stops, or has stopped, with a fault. The others keep running.
        CoreStoppedError
            If another thread stops or resets one of the cores during the wait.
        DeviceTimeoutError
            If a program has not ended within the limit; another `wait` continues the program.
            Raised at once if all programs wait for semaphores that only the host can still signal,
            unless a watchdog is set.
        TypeError, ValueError
            If an argument is wrong.
        RuntimeError
            If the device is closed, before or during the wait.
        """
        if not isinstance(cores, Iterable | None):
            raise TypeError(f"cores must be a sequence of cores, not {cores!r}")
        watched = [self._core(core) for core in
                   (range(self._config.cores) if cores is None else cores)]
        check_limits(cycles, seconds, poll)
        ends = None if seconds is None else self.clock() + seconds
        first: int | None = None
        kills = list(self._kills)
        while True:
            with self._open() as backend:
                first = backend.steps if first is None else first
                states = self._states(backend, watched)
                self._raise_stopped(backend, watched, kills)
                if not any(state.running or state.transfers for state in states.values()):
                    return
                left = SLICE if cycles is None else min(SLICE, first + cycles - backend.steps)
                if left <= 0 or (ends is not None and self.clock() >= ends):
                    raise timeout("programs have not ended in time", states, False, self._chip)
                states, signals = {}, self._signals
                if backend.advance(left, interrupt=not poll):
                    states = self._states(backend, watched)
            if progress is not None:
                progress()
            if self._signals == signals and any(state.running for state in states.values()):
                raise timeout("programs wait for semaphores that only the host can signal",
                              states, True, self._chip)

    def run(self, programs: Mapping[int, Program | Sequence[int]],
            **options: Any) -> dict[int, dict[str, int]]:
        """Load and start the programs of some cores, and wait for them.

        Parameters
        ----------
        programs : mapping of int to Program or sequence of int
            The program of each core.
        options
            The keyword arguments of `wait`.

        Returns
        -------
        dict of int to dict
            For each core, the increase of its counters (see `counters`) from its start until all of
            the programs had ended. The largest ``cycles`` is the duration of the run. The counts
            include some tens of cycles in which the host starts cores and detects their end through
            registers. They also include whatever another thread makes a core do before this method
            returns.

        Raises
        ------
        TypeError
            If ``programs`` is not a mapping; otherwise as `load`, `start` and `wait`.
        """
        if not isinstance(programs, Mapping):
            raise TypeError(f"programs must map cores to programs, not {programs!r}")
        return self._run(programs, programs, **options)

    def running(self, core: int) -> bool:
        """Return whether a program is running on a core."""
        return self.state(core).running

    def fault(self, core: int) -> Fault:
        """Return the fault that stopped a core since its last start; `Fault.NONE` if none did."""
        return self.state(core).fault

    def state(self, core: int) -> CoreState:
        """Return the state of a core."""
        with self._open() as backend:
            return backend.state(self._core(core))

    def stop(self, core: int | None = None) -> None:
        """Stop a core, or all cores if none is given, before the next bundle.

        To resume the program, `start` the core at the ``pc`` that `state` returns.
        """
        with self._open() as backend:
            for number in self._cores(core):
                self._kills[number] += backend.state(number).running
                backend.stop(number)

    def reset(self, core: int | None = None) -> None:
        """Reset a core (or, if none is given, the whole chip), even while programs are running.

        Semaphores become zero and the array empty. Buffers, memories, registers and watchdogs stay
        as they are, and `counters` continue.
        """
        with self._open() as backend:
            numbers = self._cores(core)
            for number in numbers:
                backend.take_counters(number)
                self._kills[number] += backend.state(number).running
            counts = self._taken(backend, numbers)
            if core is None:
                backend.reset_all()
                # If an interrupt ends this method from here on, the chip is freshly reset.
                self._unfinished = False
                while self._left:
                    self._heap.free(self._left.pop())
                for number, cycles in enumerate(self._watchdogs):
                    backend.set_watchdog(number, cycles)
                self._note_clean()
                self._loaded.clear()
            else:
                backend.reset(self._core(core))
            for number, count in counts.items():
                self._before_reset[number] = count

    def signal(self, core: int, semaphore: int, amount: int = 1) -> None:
        """Add ``amount``, 0 to 2**28 - 1, to a semaphore of a core.

        If the semaphore overflows, the core stops with the fault SEMAPHORE.
        """
        with self._open() as backend:
            backend.signal(self._core(core),
                           integer("semaphore", semaphore, 0, SEMAPHORES - 1),
                           integer("amount", amount, 0, _MOST_SIGNAL))
            self._used = True
            self._signals += 1

    def set_watchdog(self, core: int, cycles: int) -> None:
        """Let a core stop with the fault WATCHDOG if it issues no bundle for too long.

        The watchdog stays set after a reset, and applies to programs of `Device.execute` too.

        Parameters
        ----------
        core : int
            Number of the core.
        cycles : int
            Number of cycles without a bundle after which the core faults; 0, the initial value,
            disables the watchdog. The golden backend has no clock: with any number but 0, a waiting
            program gets the fault as soon as no core can continue.

        Raises
        ------
        TypeError, ValueError
            If there is no such core, or the cycles are not from 0 to 2**32 - 1.
        RuntimeError
            If the device is closed.
        """
        with self._open() as backend:
            number = self._core(core)
            most = integer("cycles", cycles, 0, (1 << 32) - 1)
            backend.set_watchdog(number, most)
            self._watchdogs[number] = most

    def _load(self, programs: Mapping[int, Program | Sequence[int]], at: int = 0) -> None:
        """Write programs, by core, to instruction memory from bundle ``at`` on.

        If any of them is invalid, none is written.
        """
        with self._open() as backend:
            size = self._config.imem_bundles
            first = integer("at", at, 0, size)
            loads: dict[int, list[int]] = {}
            for core, program in programs.items():
                if isinstance(program, str) or not isinstance(program, Iterable):
                    raise TypeError("program must be a Program or a sequence of bundles, not "
                                    f"{program!r}")
                loads[self._core(core)] = bundles = [
                    _bundle(number, bundle) for number, bundle in enumerate(program)]
                if first + len(bundles) > size:
                    raise ValueError(f"program must lie within {size} bundles of instruction "
                                     f"memory, not take {len(bundles)} from address {first} on")
            for core in loads:
                self._require_stopped(backend, core)
            for core in loads:
                self._loaded.pop(core, None)
            backend.load(loads, first)
            for (core, bundles), program in zip(loads.items(), programs.values(), strict=True):
                labels = self._labels[core]
                for address in range(first, first + len(bundles)):
                    labels.pop(address, None)
                if isinstance(program, Program):
                    labels.update((first + address, name)
                                  for address, name in label_names(program.labels).items())

    def _run(self, cores: Iterable[int], new: Mapping[int, Program | Sequence[int]],
             **options: Any) -> dict[int, dict[str, int]]:
        """Load the programs ``new``, run ``cores`` to their end, and return their counters.

        The counters are those of this run, as in `run`. ``options`` are those of `wait`.
        """
        cores = list(cores)
        with self._open() as backend:
            self._load(new)
            for core in cores:
                backend.take_counters(core)
            for core in cores:
                self.start(core)
            before = self._taken(backend, cores)
            kills = list(self._kills)
        self.wait(cores, **options)
        with self._open() as backend:
            self._raise_stopped(backend, cores, kills)
            for core in cores:
                backend.take_counters(core)
            after = self._taken(backend, cores)
        return {core: {name: count - before[core][name] for name, count in counts.items()}
                for core, counts in after.items()}

    def _states(self, backend: Backend, cores: Iterable[int]) -> dict[int, CoreState]:
        """Return the states of ``cores``; raise a `CoreFaultError` if one of them has a fault."""
        states = {core: backend.state(core) for core in cores}
        for core, state in states.items():
            # A start clears the fault, so a fault belongs to the program that was started last.
            if state.fault is not Fault.NONE and not state.running:
                bundle = backend.bundle(core, state.pc)
                text = "" if bundle is None else disassemble(bundle, self._labels[core])
                raise CoreFaultError(core, state.fault, state.pc, bundle, text, self._chip)
        return states

    def _note_clean(self) -> None:
        """Record that the chip was just reset, and whether other chips may still signal to it."""
        self._used = False
        self._reached = any(peer._used for peer in self._peers if peer is not self)

    def _drain(self, backend: Backend) -> None:
        """Let all packets of the pod arrive, unless a running program may send more."""
        while True:
            states = [peer.state(core) for peer in self._peers for core in range(peer.config.cores)]
            if any(state.running or state.fault is Fault.LINK for state in states) or (
                    backend.advance(SLICE, interrupt=False)):
                return

    def _raise_stopped(self, backend: Backend, cores: Iterable[int],
                       before: Sequence[int]) -> None:
        """Raise a `CoreStoppedError` if a program on one of ``cores`` was stopped or reset.

        ``_kills`` counts such programs for each core. ``before`` is an earlier copy of ``_kills``:
        only programs that were ended after the copy was made raise the error.
        """
        for core in cores:
            if self._kills[core] != before[core]:
                raise CoreStoppedError(core, backend.state(core).pc)


def check_limits(cycles: object, seconds: object, poll: object) -> None:
    """Check arguments of `Cores.wait`."""
    if cycles is not None:
        integer("cycles", cycles, 0, 1 << 62)
    if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
        raise ValueError(f"seconds must be a number of at least 0, not {seconds!r}")
    if not isinstance(poll, bool):
        raise TypeError(f"poll must be True or False, not {poll!r}")


def timeout(what: str, states: Mapping[Any, CoreState], stuck: bool,
            chip: tuple[int, int] | None = None) -> DeviceTimeoutError:
    """Return the error for programs that have not ended; it says what each core is doing.

    ``what`` begins the message. ``states`` and ``stuck`` are those of `DeviceTimeoutError`. If the
    cores are those of one chip of a pod, ``chip`` has its coordinates.
    """
    names = [_name(core if chip is None else (*chip, core)) for core in states]
    where = "; ".join(
        f"{name} {'waits' if state.waiting else 'runs'} at bundle {state.pc}"
        if state.running else f"{name} is stopped"
        for name, state in zip(names, states.values(), strict=True))
    return DeviceTimeoutError(f"{what}: {where}", states, stuck)


def _name(core: int | tuple[int, int, int]) -> str:
    """Return a core's name for messages: its number, with the coordinates of its chip if given."""
    return f"chip {core[:2]} core {core[2]}" if isinstance(core, tuple) else f"core {core}"


def _bundle(number: int, bundle: object) -> int:
    """Check an encoded bundle, and return it as an integer.

    ``number`` is the bundle's position in the program, for the error message.
    """
    value = integer(f"bundle {number}", bundle)
    if not 0 <= value < 1 << BUNDLE_BITS:
        raise ValueError(f"bundle {number} must be from 0 to 2**{BUNDLE_BITS} - 1, not {value:#x}")
    return value
