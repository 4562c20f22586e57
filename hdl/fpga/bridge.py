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
from .uart import UartReceiver, UartTransmitter

__all__ = ["SerialBridge"]


class SerialBridge(wiring.Component):
    """Executes requests of `hdl.fpga.protocol` from a serial line; `golden.fpga` is its model.

    A request is executed after its checksum is verified. Its response is kept, so that the bridge
    can send it again if the host repeats the request.

    Parameters
    ----------
    divisor : int
        Cycles of a bit on the line, at least 4.

    Attributes
    ----------
    line_in, line_out : In(1), Out(1)
        The line; ``line_in`` is asynchronous.
    access : Out(RegisterAccess)
        Accesses to registers and to memory, with byte addresses of 32 bits.
    reset : Out(1)
        Resets the chip; no access is requested meanwhile.

    Raises
    ------
    TypeError, ValueError
        If the divisor is not an integer, or too small.
    """

    def __init__(self, divisor: int) -> None:
        self._divisor = integer("divisor", divisor, 4)
        super().__init__({"line_in": In(1, init=1), "line_out": Out(1, init=1),
                          "access": Out(RegisterAccess(32)), "reset": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        uart_in = instantiate(m, platform, "uart_in", "uart_receiver",
                              lambda: UartReceiver(self._divisor))
        uart_out = instantiate(m, platform, "uart_out", "uart_transmitter",
                               lambda: UartTransmitter(self._divisor))
        receiver = instantiate(m, platform, "receiver", "frame_receiver", FrameReceiver)
        sender = instantiate(m, platform, "sender", "frame_sender", FrameSender)
        executor = instantiate(m, platform, "executor", "executor", Executor)
        size = 8, 1 << ADDRESS_BITS
        buffer = instantiate(m, platform, "buffer", Sram.module(*size), lambda: Sram(*size))
        m.d.comb += [
            uart_in.line.eq(self.line_in), self.line_out.eq(uart_out.line),
            *(getattr(receiver, name).eq(getattr(uart_in, name))
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
        connect(m, sender.output, uart_out.input)
        connect(m, executor.access, flipped(self.access))
        return m
