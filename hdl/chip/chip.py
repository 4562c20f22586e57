"""The chip: its cores, the host's control of them, and all pins."""

from amaranth import Cat, Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

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
from ..dma.remote import PLACE_PORTS
from ..link.format import frame_layout
from ..link.packet import link_config
from ..tiles import instantiate
from ..vpu.interface import check_vmem
from .control import ControlSlave
from .links import LINKS, ChipLinks
from .node import CoreNode
from .registers import CORE_REGISTERS

__all__ = ["REST_CYCLES", "Chip", "check_chip"]

REST_CYCLES = 64
"""After so many cycles without activity, the links are at rest: none of their registers changes."""


def check_chip(config: Config) -> None:
    """Check that a chip can have this configuration; a core without a chip permits others, too.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or ``array`` is not a power of two. If `channel_bits`
        refuses the width of a channel, or `check_vmem` the size of vector memory. If a chip with
        links has ``issue_cycles`` other than 1.
    """
    check_config(config)
    channel_bits(config)
    check_vmem(config)
    if config.link_bytes and config.issue_cycles > 1:
        raise ValueError(f"issue_cycles must be 1 for a chip with links, not "
                         f"{config.issue_cycles!r}")


class Chip(wiring.Component):
    """One or two cores behind AXI: the top of the design.

    Ports have the conventional AXI names. There is one clock, ``clk``, and one synchronous,
    active-high reset, ``rst``. Memory must be reset together with the chip, or be idle.

    Parameters
    ----------
    config : Config
        Parameters; ``array`` must be a power of two, and ``hbm_channels`` must divide a row into
        powers of two from 4 to 128 bytes.
    status : bool
        Whether the chip has the outputs ``status_{core}`` and ``pc_{core}``, from which a
        simulation reads the cores' registers STATUS and PC without a bus access.
    link_clock : bool
        Whether the links, and the components that send and receive packets for the cores, have a
        clock of their own, ``link_clk``. A simulation stops this clock while the links are at rest.
        Requires ``status``; it has no effect on a chip without links.
    probes : Component, optional
        A component with outputs only. It is instantiated in the chip, which gets the same outputs.

    Attributes
    ----------
    s_axil_* : In(Axi4Lite)
        The host's accesses to the registers of `hdl.chip.registers`, executed one at a time.
    m_axi_hbm{core}{channel}_* : Out(Axi4)
        Memory: ``hbm_channels`` masters for each core. All cores share one memory, in which row r
        lies at address r * channel_bytes of each channel.
    link_{xp,xn,yp,yn}_{rx,tx}_{valid,frame} : In or Out
        Wires from and to the neighbours in the four directions, present only if the chip has links:
        while ``valid`` is set, ``frame`` has the layout `hdl.link.format.frame_layout`.
    interrupt : Out(1)
        Level-sensitive: set while some bit is set in both INTERRUPT_STATUS and INTERRUPT_ENABLE.
    status_{core}, pc_{core} : Out(32)
        Values of the registers STATUS and PC of each core in this cycle; present only if ``status``
        is true.
    link_busy : Out(1)
        A packet is in this chip, or is not known to have left the buffer of the chip to which this
        chip sent it. If no chip of a torus is busy, no packet is under way, and all packets have
        had their effects. Present only if ``status`` is true and the chip has links.
    link_stalled : Out(4)
        As ``stalled`` of `ChipLinks`; present only with ``link_busy``.
    link_clk, link_wake : In(1), Out(1)
        Present only if ``link_clock`` is true and the chip has links. ``link_wake``: a core begins
        to send to another chip. A cycle is active if ``rst``, ``link_busy``, ``link_wake``, or
        ``valid`` of any wire from or to a neighbour is set. ``link_clk`` must rise together with
        ``clk`` at the end of each active cycle, and of the `REST_CYCLES` - 1 cycles after it. At
        the end of any other cycle, it may rise together with ``clk`` or not at all.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not valid for a chip.
    """

    def __init__(self, config: Config, *, status: bool = False, link_clock: bool = False,
                 probes: wiring.Component | None = None) -> None:
        check_chip(config)
        if link_clock and not status:
            raise ValueError("status must be True with link_clock, not False")
        self._config = config
        self._status = status
        self._link_clock = link_clock and config.link_bytes != 0
        self._probes = probes
        memory = Axi4(config.hbm_address_bits, channel_bits(config))
        self._prefixes = [[hbm_prefix(core, channel) for channel in range(config.hbm_channels)]
                          for core in range(config.cores)]
        super().__init__({
            "interrupt": Out(1),
            **flat_members({CONTROL_PREFIX: Axi4Lite(CONTROL_ADDRESS_BITS).flip()}),
            **flat_members({prefix: memory for core in self._prefixes for prefix in core}),
            **{f"{name}_{core}": Out(32) for name in ("status", "pc")
               for core in range(config.cores) if status},
            **(self._link_ports(config, status) if config.link_bytes else {}),
            **({"link_clk": In(1), "link_wake": Out(1)} if self._link_clock else {}),
            **(dict(probes.signature.members.items()) if probes else {}),
        })

    @staticmethod
    def _link_ports(config: Config, status: bool) -> dict[str, wiring.Member]:
        frame = frame_layout(link_config(config)).size
        ports: dict[str, wiring.Member] = (
            {"link_busy": Out(1), "link_stalled": Out(len(LINKS))} if status else {})
        for name in LINKS.values():
            ports |= {f"link_{name}_rx_valid": In(1), f"link_{name}_rx_frame": In(frame),
                      f"link_{name}_tx_valid": Out(1), f"link_{name}_tx_frame": Out(frame)}
        return ports

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        control = instantiate(m, platform, "control", "control_slave", lambda: ControlSlave(config))
        nodes = [instantiate(m, platform, f"node_{core}", "core_node",
                             lambda: CoreNode(config, link_clock=self._link_clock))
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
        if config.link_bytes:
            self._connect_links(m, platform, control, nodes)
        if self._status:
            self._show_status(m, control)
        if self._probes:
            probes = instantiate(m, platform, "probes", "probes", lambda: self._probes)
            m.d.comb += [getattr(self, name).eq(getattr(probes, name))
                         for name in probes.signature.members]
        return m

    def _connect_links(self, m: Module, platform: object, control: ControlSlave,
                       nodes: list[CoreNode]) -> None:
        """Connect the nodes to the links, and the links to the ports."""
        links = instantiate(m, platform, "links", "chip_links", lambda: ChipLinks(self._config),
                            clock=self.link_clk if self._link_clock else None)
        for unit in (links, *nodes):
            m.d.comb += [getattr(unit, name).eq(getattr(control, name)) for name in PLACE_PORTS]
        for number, node in enumerate(nodes):
            for outgoing, incoming in zip(node.flit, getattr(links, f"flit_{number}"), strict=True):
                connect(m, outgoing, incoming)
            connect(m, links.core[number], node.arrivals)
            m.d.comb += node.link_error.eq(links.error)
        for port, name in LINKS.items():
            m.d.comb += [
                links.rx_valid[port].eq(getattr(self, f"link_{name}_rx_valid")),
                links.rx_frame[port].eq(getattr(self, f"link_{name}_rx_frame")),
                getattr(self, f"link_{name}_tx_valid").eq(links.tx_valid[port]),
                getattr(self, f"link_{name}_tx_frame").eq(links.tx_frame[port])]
        if self._status:
            m.d.comb += [
                self.link_busy.eq(links.busy | Cat(node.link_busy for node in nodes).any()),
                self.link_stalled.eq(links.stalled)]
        if self._link_clock:
            m.d.comb += [self.link_wake.eq(Cat(node.link_wake for node in nodes).any()),
                         *(node.link_clk.eq(self.link_clk) for node in nodes)]

    def _show_status(self, m: Module, control: ControlSlave) -> None:
        """Drive the status ports from the status that the cores report to the control slave."""
        for number, core in enumerate(control.core):
            parts, end = [], 0
            for field in CORE_REGISTERS["STATUS"].fields:
                parts += [Const(0, field.low - end), getattr(core, field.name.lower())]
                end = field.low + field.width
            m.d.comb += [getattr(self, f"status_{number}").eq(Cat(parts)),
                         getattr(self, f"pc_{number}").eq(core.pc)]
