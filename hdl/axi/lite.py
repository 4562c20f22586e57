"""An AXI4-Lite slave that executes concurrent reads and writes one after the other, and a master
that makes one access at a time.
"""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .interface import Axi4Lite, Resp

__all__ = ["AxiLiteMaster", "AxiLiteSlave", "RegisterAccess"]


class RegisterAccess(wiring.Signature):
    """A port for accesses to registers: `Out` at the requester, `In` at the registers.

    Parameters
    ----------
    address_bits : int
        Width of ``address``.

    Members
    -------
    valid : Out(1)
        An access is requested. The request is stable until the cycle in which ``done`` is set.
    write : Out(1)
        The access is a write; otherwise it is a read.
    address : Out(address_bits)
        Byte address, a multiple of 4.
    data : Out(32)
        The word to write.
    done : In(1)
        The access takes place in this cycle or, if ``error`` is set, is refused without effect.
        ``done``, ``error`` and ``value`` are defined only while ``valid`` is set.
    error : In(1)
        With ``done``: the access is refused.
    value : In(32)
        With ``done``: the word read.
    """

    def __init__(self, address_bits: int) -> None:
        self.address_bits = address_bits
        super().__init__({"valid": Out(1), "write": Out(1), "address": Out(address_bits),
                          "data": Out(32), "done": In(1), "error": In(1), "value": In(32)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegisterAccess) and self.address_bits == other.address_bits

    def __hash__(self) -> int:
        return hash((type(self), self.address_bits))


class AxiLiteSlave(wiring.Component):
    """An AXI4-Lite slave: executes one access at a time; pending reads and writes alternate.

    Address and data of a write may arrive in any order. The two low bits of an address are ignored:
    the strobes select the bytes. A register can only be written as a whole: a write with some but
    not all strobes is refused with SLVERR. A write without strobes has no effect and gets OKAY, at
    every address. Accesses that the registers refuse get SLVERR.

    Parameters
    ----------
    address_bits : int
        Width of byte addresses, 3 to 64.

    Attributes
    ----------
    axi : In(Axi4Lite)
        The master.
    access : Out(RegisterAccess)
        The accesses, to the registers.

    Raises
    ------
    TypeError, ValueError
        If ``address_bits`` is not an integer, or out of range.
    """

    def __init__(self, address_bits: int) -> None:
        signature = Axi4Lite(address_bits)
        if address_bits < 3:
            raise ValueError(f"address_bits must be at least 3, not {address_bits!r}")
        super().__init__({"axi": In(signature), "access": Out(RegisterAccess(address_bits))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, access = self.axi, self.access
        # Accepted address and data, from the three channels, until the access takes place.
        full = {channel: Signal(name=f"{channel}_full") for channel in ("aw", "w", "ar")}
        write_address = Signal.like(axi.awaddr, reset_less=True)
        read_address = Signal.like(axi.araddr, reset_less=True)
        data = Signal(32, reset_less=True)
        strobes = Signal(4, reset_less=True)
        for channel, registers in (("aw", [(write_address, axi.awaddr)]),
                                   ("ar", [(read_address, axi.araddr)]),
                                   ("w", [(data, axi.wdata), (strobes, axi.wstrb)])):
            ready = getattr(axi, f"{channel}ready")
            m.d.comb += ready.eq(~full[channel])
            with m.If(getattr(axi, f"{channel}valid") & ready):
                m.d.sync += [full[channel].eq(1),
                             *(register.eq(value) for register, value in registers)]

        wants_write = Signal()
        wants_read = Signal()
        starts = Signal()
        m.d.comb += [
            # Each access is followed by its response; meanwhile the other kind gets its turn.
            wants_write.eq(full["aw"] & full["w"] & ~axi.bvalid),
            wants_read.eq(full["ar"] & ~axi.rvalid),
            starts.eq(~access.valid & (wants_write | wants_read)),
        ]
        with m.If(axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        with m.If(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        with m.If(starts):
            m.d.sync += [
                access.write.eq(wants_write),
                access.address.eq(Cat(0, 0, Mux(wants_write, write_address, read_address)[2:])),
                access.data.eq(data),
                access.valid.eq(~wants_write | strobes.all()),
            ]
            with m.If(wants_write):
                m.d.sync += [full["aw"].eq(0), full["w"].eq(0)]
                with m.If(~strobes.all()):
                    m.d.sync += [axi.bvalid.eq(1), axi.bresp.eq(self._resp(strobes.any()))]
            with m.Else():
                m.d.sync += full["ar"].eq(0)
        with m.If(access.valid & access.done):
            m.d.sync += access.valid.eq(0)
            with m.If(access.write):
                m.d.sync += [axi.bvalid.eq(1), axi.bresp.eq(self._resp(access.error))]
            with m.Else():
                m.d.sync += [axi.rvalid.eq(1), axi.rresp.eq(self._resp(access.error)),
                             axi.rdata.eq(Mux(access.error, 0, access.value))]
        return m

    def _resp(self, error: Value) -> Value:
        return Mux(error, Resp.SLVERR.value, Resp.OKAY.value)


class AxiLiteMaster(wiring.Component):
    """Turns single accesses into reads and writes of an AXI4-Lite slave, one at a time.

    Parameters
    ----------
    address_bits : int
        Width of byte addresses, 1 to 64.

    Attributes
    ----------
    access : In(RegisterAccess)
        Accesses to execute. ``done`` is set when the slave responds; ``error`` is set with it if
        the response is not OKAY.
    axi : Out(Axi4Lite)
        To the slave.

    Raises
    ------
    TypeError, ValueError
        If ``address_bits`` is not an integer, or out of range.
    """

    def __init__(self, address_bits: int) -> None:
        super().__init__({"access": In(RegisterAccess(address_bits)),
                          "axi": Out(Axi4Lite(address_bits))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, access = self.axi, self.access
        m.d.comb += [
            axi.awaddr.eq(access.address), axi.araddr.eq(access.address),
            axi.wdata.eq(access.data), axi.wstrb.eq(0b1111),
            axi.bready.eq(1), axi.rready.eq(1), access.value.eq(axi.rdata),
        ]
        asked = []
        for channel, wanted in (("aw", access.write), ("w", access.write), ("ar", ~access.write)):
            valid, ready = (getattr(axi, channel + name) for name in ("valid", "ready"))
            taken = Signal(name=f"{channel}_taken")
            asked.append(taken)
            m.d.comb += valid.eq(access.valid & wanted & ~taken)
            with m.If(valid & ready):
                m.d.sync += taken.eq(1)
        with m.If(access.write):
            m.d.comb += [access.done.eq(axi.bvalid), access.error.eq(axi.bresp != Resp.OKAY.value)]
        with m.Else():
            m.d.comb += [access.done.eq(axi.rvalid), access.error.eq(axi.rresp != Resp.OKAY.value)]
        with m.If(access.done):
            m.d.sync += [taken.eq(0) for taken in asked]
        return m
