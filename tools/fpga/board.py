"""Simulates a board: the whole system in Verilator, its serial line behind a pseudo-terminal.

    make board                   # prints the name of the port, and runs until Ctrl-C

A host opens the port as that of a real board. The rate that the host sets at the port matters: if
it differs from the board's rate, bytes arrive as garbage in both directions, as on a real line.
"""

import argparse
import contextlib
import fcntl
import os
import pathlib
import random
import select
import struct
import threading
import tty
from dataclasses import asdict
from typing import Self

import numpy as np
import numpy.typing as npt

from golden.fpga.sdram import Rule
from hdl.checks import integer
from hdl.config import Config
from hdl.fpga.board import CRYSTAL_HZ
from hdl.fpga.sdram import ADDRESS_BITS, SdramTiming
from hdl.fpga.system import SerialSystem
from hdl.lint import LINT_WAIVERS
from hdl.target import Target
from hdl.tiles import VerilogLibrary
from sim.closing import Closeable
from sim.driver.device import DEFAULT_BAUD
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

__all__ = ["DIVISOR", "HBM_BYTES", "SDRAM_BYTES", "SDRAM_SOURCE", "LineReceiver", "SimulatedBoard",
           "bit_levels", "system_library"]

HBM_BYTES = 1 << 17
"""Size of the memory in block RAM: 64 of the FPGA's 208 blocks."""
SDRAM_BYTES = 1 << ADDRESS_BITS
"""Size of the board's SDRAM."""
SDRAM_SOURCE = pathlib.Path(__file__).with_name("sdram.v")
"""Verilog of the simulated SDRAM."""
_TOP_SOURCE = pathlib.Path(__file__).with_name("simulated_board.v")
DIVISOR = 4
"""Number of clock cycles for a bit on the simulated line: the minimum, to make the line fast."""
_CHUNK = 512
"""Number of cycles simulated between two reads of the port while the host sends nothing."""
_QUIET_CYCLES = 1 << 14
"""Number of cycles for which the line must be quiet before the simulation pauses."""
_BYTES = 64
"""Largest number of bytes from the host that are simulated at once."""
_TERMIOS2 = struct.Struct("IIIIB19BII")
_TCGETS2 = 0x802C542A

Levels = npt.NDArray[np.uint32]


def system_library(config: Config, divisor: int = DIVISOR, *, sdram: bool = False) -> pathlib.Path:
    """Return the library of the system with the chip of ``config``; build it unless it exists.

    Parameters
    ----------
    config : Config
        A chip of one core and one memory channel.
    divisor : int
        Number of clock cycles that a bit takes on the line.
    sdram : bool
        The memory is an SDRAM, whose clock has 25 MHz; the library has its model, too.

    Raises
    ------
    RuntimeError
        If a tool is missing or fails.
    """
    timing = SdramTiming(CRYSTAL_HZ) if sdram else None
    sources = cached_json(
        "serial-system", {**asdict(config), "divisor": divisor, "sdram": sdram},
        lambda: VerilogLibrary(Target.ECP5).write("serial_system",
                                                  lambda: SerialSystem(config, divisor, timing)),
        code=SerialSystem)
    if not sdram:
        return build_model("serial_system", sources, waivers=LINT_WAIVERS, optimise=False)
    models = {path.stem: path.read_text() for path in (_TOP_SOURCE, SDRAM_SOURCE)}
    return build_model(_TOP_SOURCE.stem, {**sources, **models}, waivers=LINT_WAIVERS,
                       optimise=False)


def bit_levels(line: bytes, cycles: float) -> Levels:
    """Levels, cycle by cycle, of a UART line that sends the bytes ``line``.

    A bit takes ``cycles`` clock cycles, which need not be an integer.
    """
    bits = np.unpackbits(np.frombuffer(line, np.uint8)[:, np.newaxis], axis=1, bitorder="little")
    framed = np.pad(bits, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))).reshape(-1)
    at = np.arange(int(framed.size * cycles)) / cycles
    return framed[at.astype(np.int64)].astype(np.uint32)


class LineReceiver:
    """Decodes the bytes on a UART line by sampling each bit in its middle.

    A byte without a stop bit is received, too, as by the UARTs of most hosts.
    """

    def __init__(self) -> None:
        self._levels = np.zeros(0, np.uint32)
        self._broken = False

    def receive(self, levels: Levels, cycles: float) -> bytes:
        """Take the line's levels in the next cycles; return the bytes that are now complete.

        A bit takes ``cycles`` cycles.
        """
        known = np.concatenate([self._levels, levels])
        found = bytearray()
        here = 0
        middles = (cycles * (np.arange(1, 10) + 0.5)).astype(np.int64)
        while True:
            # After a missing stop bit, the next start bit comes after an idle line.
            here = _next(known, here, 1) if self._broken else here
            self._broken = self._broken and here == len(known)
            here = _next(known, here, 0)
            if here + middles[-1] >= len(known):
                break
            samples = known[here + middles]
            found.append(int(np.packbits(samples[:8].astype(np.uint8), bitorder="little")[0]))
            here += int(middles[-1])
            self._broken = not samples[8]
        self._levels = known[here:]
        return bytes(found)


def _next(levels: Levels, here: int, level: int) -> int:
    """Index of the first cycle at or after ``here`` in which the line has level ``level``.

    If there is no such cycle, the length of ``levels``.
    """
    found = np.flatnonzero(levels[here:] == level)
    return here + int(found[0]) if found.size else len(levels)


class SimulatedBoard(Closeable):
    """The system of an FPGA board in Verilator, at the other end of a pseudo-terminal.

    `run` simulates the board; it must run in another thread or process than the host. The
    simulation pauses while the line is quiet.

    Parameters
    ----------
    config : Config
        The chip that the board holds.
    baud : int
        Rate of the board's line; the chip's clock is `DIVISOR` times that.
    noise : float
        Probability that a byte on the line, in either direction, has a wrong bit.
    seed : int
        Seed of the noise.
    sdram : bool
        The chip's memory is an SDRAM of `SDRAM_BYTES`, which checks the commands that it gets.

    Raises
    ------
    ValueError
        If ``baud`` is less than 1, or ``noise`` is not a probability.

    Attributes
    ----------
    port : str
        Name of the port for the host.
    damaged : int
        Number of bytes with a wrong bit so far.
    violation : Rule
        The first rule of the SDRAM that was violated, at which the board stopped; `Rule.NONE` if
        there was none.
    """

    def __init__(self, config: Config, baud: int = DEFAULT_BAUD, *, noise: float = 0.0,
                 seed: int = 1, sdram: bool = False) -> None:
        self._clock_hz = DIVISOR * integer("baud", baud, 1)
        if not 0 <= noise <= 1:
            raise ValueError(f"noise must be from 0 to 1, not {noise!r}")
        self._library = system_library(config, sdram=sdram)
        self._sdram = sdram
        self.violation = Rule.NONE
        self.noise, self._rng = noise, random.Random(seed)
        self.damaged = 0
        self.connected = True
        self._restart = True
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        # The board keeps the host's end open, too, so that hosts can open and close the port.
        self._ours, self._theirs = os.openpty()
        self._opened = True
        tty.setraw(self._theirs)
        os.set_blocking(self._ours, False)
        self.port = os.ttyname(self._theirs)

    def start(self) -> Self:
        """Run the board in a thread of this process until `close`; return the board."""
        self._thread = threading.Thread(target=self.run, name="simulated board", daemon=True)
        self._thread.start()
        return self

    def power_cycle(self) -> None:
        """Switch the board off and on: it then has the state that a load of the bitstream gives."""
        self._restart = True

    def disconnect(self) -> None:
        """Pull the wires of the line: the port remains, but nothing passes."""
        self.connected = False

    def run(self) -> None:
        """Simulate until `close` is called."""
        model, quiet = None, _QUIET_CYCLES
        receiver = LineReceiver()
        try:
            while not self._end.is_set():
                if self._restart or model is None:
                    self._restart = False
                    if model is not None:
                        model.close()
                    model, receiver = self._powered(), LineReceiver()
                given = self._from_host(0.0 if quiet < _QUIET_CYCLES else 0.05)
                if not given and quiet >= _QUIET_CYCLES:
                    continue
                cycles = self._clock_hz / self._host_baud()
                levels = bit_levels(given, cycles) if given else np.ones(_CHUNK, np.uint32)
                sent = model.run({"line_in": levels}, ["line_out"])["line_out"].reshape(-1)
                if self._sdram and model.peek("violation"):
                    self.violation = Rule(model.peek("violation"))
                    raise RuntimeError(f"the SDRAM's rule {self.violation.name} is violated")
                quiet = 0 if given or not sent.all() else quiet + len(sent)
                self._to_host(receiver.receive(sent, cycles))
        finally:
            if model is not None:
                model.close()

    def close(self) -> None:
        """Switch the board off and pull its cable: the host's port is gone."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._opened:
            self._opened = False
            os.close(self._ours)
            os.close(self._theirs)

    def _powered(self) -> Model:
        model = Model(self._library)
        model.poke("line_in", 1)
        model.reset(4)
        return model

    def _host_baud(self) -> int:
        """Rate that the host has set at the port."""
        found = fcntl.ioctl(self._theirs, _TCGETS2, bytes(_TERMIOS2.size))
        return int(_TERMIOS2.unpack(found)[-1])

    def _from_host(self, seconds: float) -> bytes:
        """Bytes from the host as they arrive at the board, at most `_BYTES`, perhaps none.

        Waits at most ``seconds`` for the first of them.
        """
        if not select.select([self._ours], [], [], seconds)[0]:
            return b""
        return self._line(os.read(self._ours, _BYTES))

    def _to_host(self, sent: bytes) -> None:
        sent = self._line(sent)
        while sent and not self._end.is_set():
            try:
                sent = sent[os.write(self._ours, sent):]
            except BlockingIOError:
                # The host does not read, and the buffer is full: bytes are lost, as in a UART.
                return

    def _line(self, passing: bytes) -> bytes:
        """The bytes that arrive at one end of the line when ``passing`` is sent from the other.

        Noise changes bits; nothing arrives while the line is disconnected.
        """
        if not self.connected:
            return b""
        if not self.noise:
            return passing
        arrived = bytearray(passing)
        for number in range(len(arrived)):
            if self._rng.random() < self.noise:
                arrived[number] ^= 1 << self._rng.randrange(8)
                self.damaged += 1
        return bytes(arrived)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="make board", description="Simulate an FPGA board.")
    parser.add_argument("config", nargs="?", default="fpga", help="preset with one core")
    parser.add_argument("--baud", type=int, default=DEFAULT_BAUD,
                        help="rate of the serial line, in bits per second")
    parser.add_argument("--memory", choices=("block", "sdram"), default="block",
                        help="where the chip's memory is: in block RAM, or an SDRAM")
    parser.add_argument("--noise", type=float, default=0.0,
                        help="probability that a byte is damaged")
    arguments = parser.parse_args()
    try:
        sdram = arguments.memory == "sdram"
        config = Config.preset(arguments.config, hbm_bytes=SDRAM_BYTES if sdram else HBM_BYTES)
        board = SimulatedBoard(config, arguments.baud, noise=arguments.noise, sdram=sdram)
    except ValueError as error:
        parser.error(str(error))
    with board, contextlib.suppress(KeyboardInterrupt):
        print(f"Device.open({arguments.config!r}, backend='serial', port={board.port!r})",
              flush=True)
        board.run()


if __name__ == "__main__":
    main()
