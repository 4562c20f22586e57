"""Errors that end a run (a core's fault, a stop by the host, a timeout) or prevent it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hdl.isa import FAULTS, Fault

__all__ = ["BoardError", "CoreFaultError", "CoreState", "CoreStoppedError", "DeviceTimeoutError",
           "Unsupported", "UnsupportedError"]


class BoardError(ConnectionError):
    """A board cannot be reached over its serial line, or is not the board that was opened.

    The message names the cause: no answer, another rate, another bitstream, or a loss of the
    board's state. Afterwards the device can only be closed.
    """


class CoreFaultError(RuntimeError):
    """A core stopped with a fault.

    Attributes
    ----------
    core : int
        Number of the core.
    chip : tuple of int or None
        Coordinates (x, y) of the core's chip in a pod; None without a pod.
    cause : Fault
        The fault.
    pc : int
        Address of the faulting bundle. For BUS_ERROR and LINK, which are detected late, the address
        of a bundle that issued after the one that caused the fault.
    bundle : int or None
        The encoded bundle at ``pc``; None if ``pc`` is outside instruction memory.
    text : str
        The bundle in text form; empty if ``bundle`` is None.
    """

    def __init__(self, core: int, cause: Fault, pc: int, bundle: int | None, text: str,
                 chip: tuple[int, int] | None = None) -> None:
        self.core, self.cause, self.pc = core, cause, pc
        self.bundle, self.text, self.chip = bundle, text, chip
        imprecise = cause in (Fault.BUS_ERROR, Fault.LINK)
        where = f"near bundle {pc}" if imprecise else f"at bundle {pc}"
        core_name = f"core {core}" if chip is None else f"chip {chip}, core {core},"
        super().__init__(f"{core_name} stopped with fault {cause.name} {where}"
                         f"{': ' + text if text else ''}. {FAULTS[cause]}")


class CoreStoppedError(RuntimeError):
    """A core was stopped or reset while a thread waited for its program.

    Attributes
    ----------
    core : int
        Number of the core.
    pc : int
        Address of the next bundle to execute; 0 after a reset.
    """

    def __init__(self, core: int, pc: int) -> None:
        self.core, self.pc = core, pc
        super().__init__(f"core {core} was stopped or reset before its program ended; the next "
                         f"bundle to execute is {pc}")


@dataclass(frozen=True)
class CoreState:
    """A snapshot of a core's state.

    Attributes
    ----------
    running : bool
        The core executes a program.
    waiting : bool
        The program waits for a semaphore.
    transfers : bool
        DMA transfers are queued or in progress.
    fault : Fault
        The fault that stopped the core; `Fault.NONE` after a halt or a stop.
    pc : int
        Address of the next bundle to execute; after a halt or a fault, of the bundle that caused
        it.
    """

    running: bool
    waiting: bool
    transfers: bool
    fault: Fault
    pc: int


class DeviceTimeoutError(TimeoutError):
    """Programs did not end within a limit, or can never end.

    Attributes
    ----------
    states : dict of CoreState
        State of each core whose program was waited for, by the core's number; in a pod, by (x, y,
        core), with the coordinates of the core's chip.
    stuck : bool
        Whether no core can continue unless the host signals a semaphore.
    """

    def __init__(self, message: str, states: Mapping[Any, CoreState], stuck: bool) -> None:
        self.states, self.stuck = dict(states), stuck
        super().__init__(message)


@dataclass(frozen=True)
class Unsupported:
    """A part of a program that the compiler does not support.

    Attributes
    ----------
    what : str
        The unsupported part, for example ``fft`` or ``argument 1 of type f64``.
    where : str
        The file and line of the user's code and the operation's name, as far as they are known.
    advice : str
        What to write instead.
    """

    what: str
    where: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where + ': ' if self.where else ''}{self.what}: {self.advice}"


class UnsupportedError(NotImplementedError):
    """The compiler does not support a part of a program.

    Attributes
    ----------
    found : tuple of Unsupported
        All unsupported parts, each once.
    """

    def __init__(self, found: Sequence[Unsupported]) -> None:
        self.found = tuple(dict.fromkeys(found))
        super().__init__("the compiler does not support these parts of the program:\n"
                         + "\n".join(f"  {item}" for item in self.found))
