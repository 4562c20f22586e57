"""Top modules around a unit with AXI ports; the ports' signals have the names that AXI defines."""


from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from hdl.axi.interface import (
    CONTROL_ADDRESS_BITS,
    CONTROL_PREFIX,
    Axi4,
    Axi4Lite,
    channel_bits,
    connect_flat,
    flat_members,
    hbm_prefix,
)
from hdl.axi.master import HbmPort
from hdl.chip.control import ControlSlave, CoreSide
from hdl.config import Config
from hdl.tiles import instantiate

__all__ = ["ControlTop", "HbmPortTop"]


class HbmPortTop(wiring.Component):
    """The `HbmPort` of core 0; its streams have the same names as in the core."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._prefixes = [hbm_prefix(0, c) for c in range(config.hbm_channels)]
        port = HbmPort(config)
        port._MustUse__used = True
        super().__init__({
            **{name: member for name, member in port.signature.members.items() if name != "axi"},
            **flat_members(dict.fromkeys(
                self._prefixes, Axi4(config.hbm_address_bits, channel_bits(config)))),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        port = instantiate(m, platform, "port", "hbm_masters", lambda: HbmPort(self._config))
        for name in ("hbm_read", "hbm_write", "hbm_write_rows"):
            connect(m, flipped(getattr(self, name)), getattr(port, name))
        for name in ("hbm_rows", "hbm_write_done"):
            connect(m, getattr(port, name), flipped(getattr(self, name)))
        m.d.comb += [port.discard.eq(self.discard), self.busy.eq(port.busy)]
        for prefix, axi in zip(self._prefixes, port.axi, strict=True):
            connect_flat(m, self, prefix, axi)
        return m


class ControlTop(wiring.Component):
    """A `ControlSlave`; names of signals between it and core 0 begin with ``core__0__``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "core": Out(CoreSide()).array(config.cores), "interrupt": Out(1),
            **flat_members({CONTROL_PREFIX: Axi4Lite(CONTROL_ADDRESS_BITS).flip()}),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        slave = instantiate(m, platform, "slave", "control_slave",
                            lambda: ControlSlave(self._config))
        for inside, outside in zip(slave.core, self.core, strict=True):
            connect(m, inside, flipped(outside))
        m.d.comb += self.interrupt.eq(slave.interrupt)
        connect_flat(m, self, CONTROL_PREFIX, slave.axi)
        return m
