"""The bridge from a serial line to accesses of registers and memory."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..axi.lite import RegisterAccess
from ..checks import integer
from ..sram import Sram
from ..tiles import instantiate
from .executor import Executor
from .frames import ADDRESS_BITS, FrameReceiver, FrameSender
from .spi import SpiTarget
from .uart import UartReceiver, UartTransmitter

__all__ = ["SerialBridge", "spi_members"]


def spi_members() -> dict[str, wiring.Member]:
    """Ports that the serial line has in addition if it is SPI: clock and select."""
    return {"spi_clock": In(1), "spi_select": In(1, init=1)}


class SerialBridge(wiring.Component):
    """Executes requests of `hdl.fpga.protocol` from a line; `golden.fpga.bridge` is its model.

    A request is executed after its checksum is verified. Its response is kept, so that the bridge
    can send it again if the host repeats the request.

    Parameters
    ----------
    divisor : int or None
        The line is a UART, with this number of cycles for a bit, at least 4. None: it is an
        `SpiTarget`.

    Attributes
    ----------
    line_in, line_out : In(1), Out(1)
        The line; ``line_in`` is asynchronous. For SPI: MOSI and MISO.
    spi_clock, spi_select : In(1), In(1)
        The other pins of SPI; present only if the line is SPI.
    access : Out(RegisterAccess)
        Accesses to registers and to memory, with byte addresses of 32 bits.
    reset : Out(1)
        Resets the chip; no access is requested meanwhile.

    Raises
    ------
    TypeError, ValueError
        If the divisor is not an integer, or too small.
    """

    def __init__(self, divisor: int | None) -> None:
        self._divisor = divisor if divisor is None else integer("divisor", divisor, 4)
        super().__init__({"line_in": In(1, init=1), "line_out": Out(1, init=1),
                          "access": Out(RegisterAccess(32)), "reset": Out(1),
                          **(spi_members() if divisor is None else {})})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bytes_in, bytes_out = self._add_line(m, platform)
        receiver = instantiate(m, platform, "receiver", "frame_receiver", FrameReceiver)
        sender = instantiate(m, platform, "sender", "frame_sender", FrameSender)
        executor = instantiate(m, platform, "executor", "executor", Executor)
        size = 8, 1 << ADDRESS_BITS
        buffer = instantiate(m, platform, "buffer", Sram.module(*size), lambda: Sram(*size))
        m.d.comb += [
            *(getattr(receiver, name).eq(getattr(bytes_in, name))
              for name in ("valid", "data", "error")),
            *(getattr(executor, name).eq(getattr(receiver, name))
              for name in ("received", "length", "check", "dropped")),
            receiver.hold.eq(executor.hold),
            buffer.write.eq(receiver.write), buffer.write_address.eq(receiver.address),
            buffer.write_data.eq(receiver.byte),
            buffer.read.eq(executor.read), buffer.read_address.eq(executor.read_address),
            executor.read_data.eq(buffer.read_data),
            self.reset.eq(executor.reset),
        ]
        connect(m, executor.response, sender.input)
        connect(m, sender.output, bytes_out.input)
        connect(m, executor.access, flipped(self.access))
        return m

    def _add_line(self, m: Module, platform: object) -> tuple[wiring.Component, wiring.Component]:
        """Add the line; return where bytes come from, and where they go."""
        divisor = self._divisor
        if divisor is None:
            spi = instantiate(m, platform, "spi", "spi_target", SpiTarget)
            m.d.comb += [spi.clock.eq(self.spi_clock), spi.select.eq(self.spi_select),
                         spi.line_in.eq(self.line_in), self.line_out.eq(spi.line_out)]
            return spi, spi
        uart_in = instantiate(m, platform, "uart_in", "uart_receiver",
                              lambda: UartReceiver(divisor))
        uart_out = instantiate(m, platform, "uart_out", "uart_transmitter",
                               lambda: UartTransmitter(divisor))
        m.d.comb += [uart_in.line.eq(self.line_in), self.line_out.eq(uart_out.line)]
        return uart_in, uart_out
