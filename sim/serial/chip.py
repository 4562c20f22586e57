"""A chip on an FPGA board, as its host drives it: registers, memory, programs and transfers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hdl.axi.interface import Resp
from hdl.chip.registers import (
    CORE_REGISTERS,
    COUNTER_REGISTERS,
    EVENTS,
    GLOBAL_REGISTERS,
    IDENTITY,
    address,
    parameters,
)
from hdl.chip.registers import VERSION as MAP_VERSION
from hdl.config import PRESETS, Config
from hdl.core.interface import Space
from hdl.fpga.protocol import MAX_WORDS, MEMORY_BASE, VERSION, Operation, Status
from hdl.isa import Fault
from sim.closing import Closeable
from sim.errors import BoardError
from sim.models.chip import DescriptorError, RegisterError
from sim.serial.link import SerialLink
from sim.serial.port import Port, open_port

__all__ = ["SerialChip"]

Words = npt.NDArray[np.uint32]

_SECONDS = 2.0
"""Time limit in seconds for a stop, a reset or a transfer; on a board, each takes microseconds."""
_MARK = sum(1 << EVENTS.index(event) for event in ("STOPPED", "FAULT"))
"""The mark: the value that `SerialChip.reset` writes to INTERRUPT_ENABLE. A power cycle or a reset
clears the register, so a missing mark shows that the board has lost its state. No interrupt reaches
the host, so the register has no other use."""


class SerialChip(Closeable):
    """A chip behind a serial line, and its memory.

    `reset` writes a mark to the register INTERRUPT_ENABLE. A power cycle erases the mark. Every
    `read` ends with a check of the mark, and fails if the board has lost its state.

    Parameters
    ----------
    config : Config
        The expected chip. The memory may be of another size.
    port : str
        Name of the serial port.
    baud : int
        Bits per second on the line.
    opened : Port, optional
        The port, if it is open already.
    clock : callable, optional
        Returns the time in seconds.

    Attributes
    ----------
    config : Config
        Parameters of the chip, with the size of the board's memory.
    link : SerialLink
        The serial link, which counts requests and bytes.

    Raises
    ------
    BoardError
        If there is no board at the port, at this rate, or if the board holds another chip.
    """

    def __init__(self, config: Config, port: str, baud: int, opened: Port | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._baud, self._clock = port, baud, clock
        self.link = SerialLink(opened or open_port(port, baud), port, baud, clock)
        try:
            self._identify()
            self.config = self._check(config)
            self.reset()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the port; closing twice does nothing. The chip keeps its state."""
        self.link.close()

    # ---- Identification

    def _identify(self) -> None:
        """Check that the board (`hdl.fpga.bridge`) answers, with this version of the protocol.

        Raises
        ------
        BoardError
            If the board does not answer, or has another version of the protocol.
        """
        try:
            [word] = self.link.ask(Operation.IDENTIFY).words
        except BoardError as error:
            try:
                baud = self.link.find_baud()
            except BoardError:
                baud = None
            if baud is None:
                raise
            raise BoardError(f"wrong baud rate: the board at {self._name} answers at {baud} baud, "
                             f"not at {self._baud}; open it with baud={baud}") from error
        if word & 0xFF != VERSION:
            raise BoardError(f"wrong bitstream: the board at {self._name} must have version "
                             f"{VERSION} of the serial protocol, not {word & 0xFF}")

    def _check(self, config: Config) -> Config:
        """Compare the chip with ``config``; return ``config`` with the size of the board's memory.

        Raises
        ------
        BoardError
            If the board holds another chip.
        """
        if self._unmarked("ID") != IDENTITY or self._unmarked("VERSION") >> 16 != MAP_VERSION[0]:
            raise BoardError(f"wrong bitstream: the chip of the board at {self._name} must be of "
                             f"ID {IDENTITY:#x} with registers of version {MAP_VERSION[0]}, not "
                             f"of ID {self._unmarked('ID'):#x} with version "
                             f"{self._unmarked('VERSION') >> 16}")
        found = {name: self._unmarked(name) for name in parameters(config)}
        size = found["HBM_BYTES_HI"] << 32 | found["HBM_BYTES_LO"]
        own = parameters(replace(config, hbm_bytes=size))
        if found != own:
            differing = ", ".join(f"{name} {found[name]} instead of {value}"
                                  for name, value in own.items() if found[name] != value)
            held = [name for name, preset in PRESETS.items()
                    if parameters(replace(preset, hbm_bytes=size)) == found]
            wanted = [name for name, preset in PRESETS.items()
                      if parameters(replace(preset, hbm_bytes=size)) == own]
            raise BoardError(f"wrong bitstream: the board at {self._name} holds "
                             f"{held[0] if held else 'another chip'}, not "
                             f"{wanted[0] if wanted else 'the given configuration'}: {differing}")
        return replace(config, hbm_bytes=size)

    def _unmarked(self, register: str) -> int:
        """Read ``register`` without a check of the mark, which `reset` may not have written yet."""
        return int(self._read(address(register), 1, False)[0])

    # ---- Words

    def read(self, start: int, count: int = 1, *, fixed: bool = False) -> Words:
        """Read words at addresses ``start``, ``start`` + 4, ...; if ``fixed``, all at ``start``.

        Raises
        ------
        RegisterError
            If the board refuses an access.
        BoardError
            If the board does not answer, or has lost its state.
        """
        found = self._read(start, count, fixed)
        if int(self._read(address("INTERRUPT_ENABLE"), 1, False)[0]) != _MARK:
            raise self.link.fail(
                f"the board at {self._name} has lost its state since the device was opened, by a "
                "power cycle or a reset: open the device again")
        return found

    def _read(self, start: int, count: int, fixed: bool) -> Words:
        parts = [np.zeros(0, np.uint32)]
        for first in range(0, count, MAX_WORDS):
            at = start if fixed else start + 4 * first
            response = self.link.ask(Operation.READ_FIXED if fixed else Operation.READ, at,
                                     count=min(MAX_WORDS, count - first))
            if response.status is Status.REFUSED:
                raise RegisterError(at if fixed else at + 4 * response.count, False, 0, Resp.SLVERR)
            parts.append(np.array(response.words, np.uint32))
        return np.concatenate(parts)

    def write(self, start: int, words: Sequence[int] | Words, *, fixed: bool = False) -> None:
        """Write words at addresses ``start``, ``start`` + 4, ...; if ``fixed``, all at ``start``.

        Raises
        ------
        RegisterError
            If the board refuses an access; the accesses after it are not made.
        BoardError
            If the board does not answer, or is known to have lost its state.
        """
        given = [int(word) for word in words]
        for first in range(0, len(given), MAX_WORDS):
            at, part = start if fixed else start + 4 * first, given[first:first + MAX_WORDS]
            response = self.link.ask(Operation.WRITE_FIXED if fixed else Operation.WRITE, at,
                                     tuple(part))
            if response.status is Status.REFUSED:
                raise RegisterError(at if fixed else at + 4 * response.count, True,
                                    part[response.count], Resp.SLVERR)

    # ---- Registers

    def fields(self, register: str, core: int | None = None) -> dict[str, int]:
        """Return a register's fields by name; with ``core``, those of this core's register."""
        table = GLOBAL_REGISTERS if core is None else CORE_REGISTERS
        return table[register].unpack(int(self.read(address(register, core))[0]))

    def set(self, register: str, core: int | None = None, value: int | None = None,
            **fields: int) -> None:
        """Write a register of the chip or, with ``core``, of this core.

        The register gets ``value`` or, if that is None, ``fields`` and zeros in all other fields.
        """
        table = GLOBAL_REGISTERS if core is None else CORE_REGISTERS
        self.write(address(register, core),
                   [table[register].pack(**fields) if value is None else value])

    def read_space(self, core: int, space: Space, at: int, count: int) -> Words:
        """Read ``count`` words of a core's address space, from address ``at`` on.

        The words are read through the register ACCESS_DATA.
        """
        self.set("ACCESS_ADDRESS", core, ADDRESS=at, SPACE=space.value)
        return self.read(address("ACCESS_DATA", core), count, fixed=True)

    def write_space(self, core: int, space: Space, at: int, words: Sequence[int] | Words) -> None:
        """Write words of a core's address space, from address ``at`` on, through ACCESS_DATA."""
        self.set("ACCESS_ADDRESS", core, ADDRESS=at, SPACE=space.value)
        self.write(address("ACCESS_DATA", core), words, fixed=True)

    def counters(self, core: int) -> dict[str, int]:
        """Read a core's counters, sampled in one cycle: ``cycles``, and one for each cause."""
        halves = self.read(address(f"{COUNTER_REGISTERS[0]}_LO", core),
                           2 * len(COUNTER_REGISTERS)).tolist()
        return {name.lower(): low | high << 32 for name, low, high in zip(
            COUNTER_REGISTERS, halves[::2], halves[1::2], strict=True)}

    # ---- HBM

    def read_hbm(self, at: int, count: int) -> Words:
        """Read ``count`` rows of HBM from row ``at`` on, shape (count, lanes)."""
        lanes = self.config.lanes
        return self.read(MEMORY_BASE + at * self.config.row_bytes, count * lanes).reshape(-1, lanes)

    def write_hbm(self, at: int, rows: Words) -> None:
        """Write rows of HBM from row ``at`` on, shape (count, lanes)."""
        self.write(MEMORY_BASE + at * self.config.row_bytes, rows.reshape(-1))

    # ---- Actions that wait for the chip

    def reset(self) -> None:
        """Reset the chip, and write the mark that `read` checks; memories keep their contents."""
        self.link.ask(Operation.RESET)
        self.set("INTERRUPT_ENABLE", value=_MARK)

    def reset_core(self, core: int) -> None:
        """Reset a core, drop its transfers, and wait until it can be used again."""
        self.set("CONTROL", core, RESET=1)
        self._wait(lambda: not self.fields("STATUS", core)["RESETTING"],
                   f"core {core} is being reset")

    def stop(self, core: int) -> None:
        """Stop a core before its next bundle, and wait until it has stopped."""
        self.set("CONTROL", core, STOP=1)
        self._wait(lambda: not self.fields("STATUS", core)["RUNNING"],
                   f"core {core} does not stop: reset it")

    def transfer(self, core: int, descriptor: Sequence[int]) -> None:
        """Start a transfer by a core's DMA engine, and wait for its end.

        Raises
        ------
        DescriptorError
            If the core refuses the transfer.
        RuntimeError
            If memory answers with an error, or the transfer does not end.
        """
        status = GLOBAL_REGISTERS["INTERRUPT_STATUS"]
        done, failed = (f"CORE{core}_TRANSFER_{end}" for end in ("DONE", "FAILED"))
        self.set("INTERRUPT_STATUS", value=status[done].mask | status[failed].mask)
        self.write(address("DMA_DESCRIPTOR_0", core), descriptor)
        self._wait(lambda: self._queued(core), f"core {core} has no room for a transfer")
        self._wait(lambda: bool(self.fields("INTERRUPT_STATUS")[done]),
                   f"a transfer of core {core} does not end")
        if self.fields("INTERRUPT_STATUS")[failed]:
            raise RuntimeError(f"memory answered a transfer of core {core} with an error")

    def _queued(self, core: int) -> bool:
        """Try to start the transfer that the core's registers describe.

        Return False if the queue of transfers has no room.
        """
        try:
            self.set("DMA_START", core, GO=1)
        except RegisterError:
            why = self.fields("DMA_FAULT", core)
            if why["FAULT"]:
                raise DescriptorError(core, Fault(why["FAULT"])) from None
            return False
        return True

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done()`` is true.

        Raises
        ------
        RuntimeError
            If that takes longer than `_SECONDS`; the message is ``what``.
        """
        end = self._clock() + _SECONDS
        while not done():
            if self._clock() > end:
                raise RuntimeError(what)
