"""The chip: its cores, the host's control of them, and all pins."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect

from ..axi.interface import (
    CONTROL_ADDRESS_BITS,
    CONTROL_PREFIX,
    Axi4,
    Axi4Lite,
    channel_bits,
    connect_flat,
    flat_members,
    hbm_prefix,
)
from ..config import Config
from ..dma.interface import check_config
from ..tiles import place
from .control import ControlSlave
from .node import CoreNode

__all__ = ["Chip"]


class Chip(wiring.Component):
    """One or two cores behind AXI: the top of the design.

    Ports have the names that are usual for AXI. One clock, ``clk``; one reset, ``rst``, synchronous
    and set by 1, which is only right if memory is reset too or nothing is under way.

    Parameters
    ----------
    config : Config
        Parameters; ``array`` must be a power of two, and ``hbm_channels`` divide a row into powers
        of two from 4 to 128 bytes.

    Attributes
    ----------
    s_axil_* : In(Axi4Lite)
        The host, at the registers of `hdl.chip.registers`; an access at a time.
    m_axi_hbm{core}{channel}_* : Out(Axi4)
        Memory: of each core ``hbm_channels`` masters. All cores reach the same memory, in which row
        r lies at r * channel_bytes of each channel.
    interrupt : Out(1)
        Level: a bit is set both in INTERRUPT_STATUS and in INTERRUPT_ENABLE.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not one of a chip.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        memory = Axi4(config.hbm_address_bits, channel_bits(config))
        self._prefixes = [[hbm_prefix(core, channel) for channel in range(config.hbm_channels)]
                          for core in range(config.cores)]
        super().__init__({
            "interrupt": Out(1),
            **flat_members({CONTROL_PREFIX: Axi4Lite(CONTROL_ADDRESS_BITS).flip()}),
            **flat_members({prefix: memory for core in self._prefixes for prefix in core}),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        control = place(m, platform, "control", "control_slave", lambda: ControlSlave(config))
        nodes = [place(m, platform, f"node_{core}", "core_node", lambda: CoreNode(config))
                 for core in range(config.cores)]
        connect_flat(m, self, CONTROL_PREFIX, control.axi)
        m.d.comb += self.interrupt.eq(control.interrupt)
        for node, side, prefixes in zip(nodes, control.core, self._prefixes, strict=True):
            connect(m, side, node.control)
            for prefix, axi in zip(prefixes, node.axi, strict=True):
                connect_flat(m, self, prefix, axi)
        if len(nodes) == 2:
            connect(m, nodes[0].peer, nodes[1].guest)
            connect(m, nodes[1].peer, nodes[0].guest)
        return m
