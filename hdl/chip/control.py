"""The control slave: the host's registers behind AXI4-Lite."""

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..axi.interface import CONTROL_ADDRESS_BITS, Axi4Lite
from ..axi.lite import AxiLiteSlave, RegisterAccess
from ..checks import instance
from ..config import Config
from ..core.interface import (
    FAULT_BITS,
    REQUEST_ADDRESS_BITS,
    REQUEST_WORD_BITS,
    SPACE_BITS,
    Response,
    Space,
    core_request,
    semaphore_addition,
)
from ..dma.format import DESCRIPTOR_WORDS
from ..dma.remote import PLACE_PORTS
from ..isa import BUNDLE_WORDS
from ..link.format import MAX_SIDE
from ..mxu.mxu import COUNTER_BITS
from ..tiles import instantiate
from .registers import (
    ACCESS_ADDRESS_BITS,
    CORE_REGISTERS,
    COUNTER_REGISTERS,
    EVENT_PITCH,
    EVENTS,
    GLOBAL_REGISTERS,
    LINK_REGISTERS,
    MAX_CORES,
    OFFSET_BITS,
    WAIT_CYCLES,
    Register,
    RegisterBlock,
    chip_registers,
    parameters,
)

__all__ = ["ControlSlave", "CoreControl", "CoreSide"]

_COUNTERS = tuple(name.lower() for name in COUNTER_REGISTERS)
"""Ports of a core's counters, in the order of the registers."""


class CoreSide(wiring.Signature):
    """The host's control of one core, from the control slave to the core's node.

    Commands to the core, each a pulse of one cycle: ``start``, ``stop``, ``clear_counters``,
    ``reset_request``. Values: ``start_pc`` and ``watchdog``. ``resetting`` must be set from the
    cycle after ``reset_request`` until the core can be used again.

    Status of the core: ``running``, ``waiting``, ``idle``, ``fault``, ``pc`` and the counters, as
    in `hdl.core.core.Core`. ``dma_busy``: transfers are in progress or queued. ``transfer_done``: a
    transfer of the host ended in this cycle. ``transfer_failed``: that transfer failed.

    Offers to the core, one at a time: ``request``, with its ``response`` in a later cycle;
    ``signal``, an addition to a semaphore; ``host_descriptor`` with ``host_valid``, which the
    engine answers with ``host_ready`` and a ``host_fault``, like a `hdl.core.interface.DmaIssue`.
    **The slave may withdraw an offer** that the core has not accepted, if the offer has lasted
    `WAIT_CYCLES` or ``resetting`` is set; a withdrawn offer must have no effect.

    Parameters
    ----------
    links : bool
        Whether the chip has links, and so the fault LINK.
    """

    def __init__(self, links: bool = False) -> None:
        super().__init__({
            "start": Out(1), "start_pc": Out(32), "stop": Out(1), "clear_counters": Out(1),
            "watchdog": Out(32), "reset_request": Out(1), "resetting": In(1),
            "running": In(1), "waiting": In(1), "idle": In(1), "fault": In(FAULT_BITS + links),
            "pc": In(32), "dma_busy": In(1), "transfer_done": In(1), "transfer_failed": In(1),
            "request": Out(stream.Signature(core_request())), "response": In(Response()),
            "signal": Out(stream.Signature(semaphore_addition())),
            "host_descriptor": Out(32 * DESCRIPTOR_WORDS), "host_valid": Out(1),
            "host_ready": In(1), "host_fault": In(FAULT_BITS),
            **{counter: In(COUNTER_BITS) for counter in _COUNTERS},
        })

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoreSide) and self.members == other.members

    def __hash__(self) -> int:
        return hash(CoreSide)


def _fields(register: Register, word: Signal) -> dict[str, Signal]:
    """Return slices of ``word``, one for each field of ``register``, by name."""
    return {field.name: word[field.low:field.low + field.width] for field in register.fields}


class CoreControl(wiring.Component):
    """The registers of one core.

    Parameters
    ----------
    links : bool
        Whether the chip has links.

    Attributes
    ----------
    access : In(RegisterAccess)
        Accesses; their addresses are offsets in the core's register block.
    core : Out(CoreSide)
        Control of the core.
    events : Out(4)
        Events of this cycle, as listed in `EVENTS`.
    startable : Out(1)
        Present if the chip has links: the core is stopped and not being reset.
    start_together : In(1)
        Present if the chip has links: starts the core, which must be ``startable``.
    """

    def __init__(self, links: bool = False) -> None:
        super().__init__({"access": In(RegisterAccess(OFFSET_BITS)), "core": Out(CoreSide(links)),
                          "events": Out(len(EVENTS)),
                          **({"startable": Out(1), "start_together": In(1)} if links else {})})
        self._links = links

    def elaborate(self, platform: object) -> Module:
        m = Module()
        core = self.core
        block = instantiate(m, platform, "block", "core_registers",
                            lambda: RegisterBlock(CORE_REGISTERS))
        connect(m, flipped(self.access), block.access)
        status = _fields(CORE_REGISTERS["STATUS"], block.status)
        m.d.comb += [
            *(status[name.upper()].eq(getattr(core, name))
              for name in ("running", "waiting", "idle", "dma_busy", "resetting", "fault")),
            block.pc.eq(core.pc),
            core.start_pc.eq(block.start_pc),
            core.watchdog.eq(block.watchdog),
        ]
        self._command(m, block)
        expired = self._watch(m)
        self._access_words(m, block, expired)
        self._add_to_semaphore(m, block, expired)
        self._start_transfer(m, block, expired)
        self._take_counters(m, block)
        self._find_events(m)
        return m

    def _command(self, m: Module, block: RegisterBlock) -> None:
        core = self.core
        bits = _fields(CORE_REGISTERS["CONTROL"], self.access.data)
        good = Signal()
        started = good & bits["START"]
        if self._links:
            m.d.comb += self.startable.eq(~core.running & ~core.resetting)
        m.d.comb += [
            block.control_done.eq(1),
            block.control_error.eq(bits["START"] & (bits["STOP"] | bits["RESET"] | core.running
                                                    | core.resetting)),
            good.eq(block.control_write & ~block.control_error),
            core.start.eq(started | self.start_together if self._links else started),
            core.stop.eq(good & bits["STOP"]),
            core.clear_counters.eq(good & bits["CLEAR_COUNTERS"]),
            core.reset_request.eq(good & bits["RESET"]),
        ]

    def _watch(self, m: Module) -> Signal:
        """Return a signal that is set when the current access has waited for `WAIT_CYCLES`."""
        waited = Signal(range(WAIT_CYCLES))
        expired = Signal()
        m.d.comb += expired.eq(waited == WAIT_CYCLES - 1)
        with m.If(~self.access.valid):
            m.d.sync += waited.eq(0)
        with m.Elif(~expired):
            m.d.sync += waited.eq(waited + 1)
        return expired

    def _access_words(self, m: Module, block: RegisterBlock, expired: Signal) -> None:
        """Send the core a request for each access to ACCESS_DATA, and update ACCESS_ADDRESS.

        ``block`` has the core's registers; ``expired`` is the result of `_watch`.
        """
        core = self.core
        request = core.request.payload
        address = Signal(ACCESS_ADDRESS_BITS)
        space = Signal(SPACE_BITS)
        wanted = Signal()
        allowed = Signal()
        sent = Signal()
        beside = Signal()
        m.d.comb += [
            block.access_address.eq(Cat(address, space)),
            block.access_address_done.eq(1),
            wanted.eq(block.access_data_read | block.access_data_write),
            allowed.eq(~address[REQUEST_ADDRESS_BITS:].any() & ~core.resetting
                       & (beside | ~core.running)),
            core.request.valid.eq(wanted & allowed & ~sent & ~expired),
            request.write.eq(self.access.write),
            request.space.eq(space),
            request.address.eq(address),
            request.data.eq(self.access.data),
            block.access_data.eq(core.response.data),
        ]
        # Accesses that are possible while a program runs.
        with m.Switch(space):
            with m.Case(Space.IMEM.value):
                m.d.comb += beside.eq(self.access.write)
            with m.Case(Space.SMEM.value):
                m.d.comb += beside.eq(1)
            with m.Case(Space.SEMAPHORE.value):
                m.d.comb += beside.eq(~self.access.write)
        with m.If(sent):
            m.d.comb += [block.access_data_done.eq(core.response.valid),
                         block.access_data_error.eq(core.response.error)]
        with m.Else():
            m.d.comb += [block.access_data_done.eq(~allowed | expired),
                         block.access_data_error.eq(1)]
        with m.If(core.request.valid & core.request.ready):
            m.d.sync += sent.eq(1)
        with m.Elif(core.response.valid):
            m.d.sync += sent.eq(0)
        with m.If(block.access_address_write):
            m.d.sync += Cat(address, space).eq(self.access.data)
        with m.Elif(wanted & block.access_data_done & ~block.access_data_error):
            with m.If((space == Space.IMEM.value)
                      & (address[:REQUEST_WORD_BITS] == BUNDLE_WORDS - 1)):
                m.d.sync += address.eq(
                    address + (1 << REQUEST_WORD_BITS) - (BUNDLE_WORDS - 1))
            with m.Else():
                m.d.sync += address.eq(address + 1)

    def _add_to_semaphore(self, m: Module, block: RegisterBlock, expired: Signal) -> None:
        core = self.core
        fields = _fields(CORE_REGISTERS["SEMAPHORE_ADD"], self.access.data)
        gives_up = Signal()
        m.d.comb += [
            gives_up.eq(core.resetting | expired),
            core.signal.valid.eq(block.semaphore_add_write & ~gives_up),
            core.signal.payload.index.eq(fields["INDEX"]),
            core.signal.payload.amount.eq(fields["AMOUNT"]),
            block.semaphore_add_done.eq(core.signal.ready | gives_up),
            block.semaphore_add_error.eq(gives_up),
        ]

    def _start_transfer(self, m: Module, block: RegisterBlock, expired: Signal) -> None:
        core = self.core
        gives_up = Signal()
        go = Signal()
        fault = Signal(FAULT_BITS)
        busy = Signal()
        result = _fields(CORE_REGISTERS["DMA_FAULT"], block.dma_fault)
        m.d.comb += [
            core.host_descriptor.eq(Cat(getattr(block, f"dma_descriptor_{word}")
                                        for word in range(DESCRIPTOR_WORDS))),
            go.eq(block.dma_start_write & self.access.data[0]),
            gives_up.eq(core.resetting | expired),
            core.host_valid.eq(go & ~gives_up),
            block.dma_start_done.eq(~go | core.host_ready | gives_up),
            block.dma_start_error.eq(go & (gives_up | (core.host_fault != 0))),
            result["FAULT"].eq(fault),
            result["BUSY"].eq(busy),
        ]
        with m.If(go & block.dma_start_done):
            m.d.sync += busy.eq(gives_up)
            with m.If(gives_up):
                m.d.sync += fault.eq(0)
            with m.Else():
                m.d.sync += fault.eq(core.host_fault)

    def _take_counters(self, m: Module, block: RegisterBlock) -> None:
        """Connect the counter registers in ``block``: a read of CYCLES_LO captures all others."""
        m.d.comb += [
            block.cycles_lo.eq(self.core.cycles[:32]),
            block.cycles_lo_done.eq(1),
        ]
        for name, counter in zip(COUNTER_REGISTERS, _COUNTERS, strict=True):
            value = getattr(self.core, counter)
            low = Signal(32, name=f"{name.lower()}_low")
            high = Signal(COUNTER_BITS - 32, name=f"{name.lower()}_high")
            with m.If(block.cycles_lo_read):
                m.d.sync += Cat(low, high).eq(value)
            m.d.comb += getattr(block, f"{name.lower()}_hi").eq(high)
            if name != "CYCLES":
                m.d.comb += getattr(block, f"{name.lower()}_lo").eq(low)

    def _find_events(self, m: Module) -> None:
        core = self.core
        was_running = Signal()
        last_fault = Signal(core.fault.shape())
        m.d.sync += [was_running.eq(core.running), last_fault.eq(core.fault)]
        m.d.comb += self.events.eq(Cat(was_running & ~core.running,
                                       (core.fault != 0) & (core.fault != last_fault),
                                       core.transfer_done, core.transfer_failed))


class ControlSlave(wiring.Component):
    """All registers of `hdl.chip.registers`, behind AXI4-Lite.

    Parameters
    ----------
    config : Config
        Parameters.

    Attributes
    ----------
    axi : In(Axi4Lite)
        Accesses of the host. `hdl.axi.lite.AxiLiteSlave` defines the responses.
    core : Out(CoreSide).array(cores)
        Control of each core.
    interrupt : Out(1)
        Level-sensitive: some bit is set in both INTERRUPT_STATUS and INTERRUPT_ENABLE.
    width, height, x, y : Out
        Present if the chip has links: the fields of the registers TORUS and POSITION.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        self._links = config.link_bytes != 0
        super().__init__({"axi": In(Axi4Lite(CONTROL_ADDRESS_BITS)),
                          "core": Out(CoreSide(self._links)).array(config.cores),
                          "interrupt": Out(1),
                          **(self._place_ports() if self._links else {})})

    @staticmethod
    def _place_ports() -> dict[str, wiring.Member]:
        registers = [LINK_REGISTERS[name] for name in ("TORUS", "POSITION")]
        start = {field: value for register in registers
                 for field, value in register.unpack(register.reset or 0).items()}
        return {name: Out(width, init=start[name.upper()]) for name, width in PLACE_PORTS.items()}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        slave = instantiate(m, platform, "slave", "axi_lite_slave",
                            lambda: AxiLiteSlave(CONTROL_ADDRESS_BITS))
        block = instantiate(m, platform, "block", "chip_registers",
                            lambda: RegisterBlock(chip_registers(self._config)))
        cores = [instantiate(m, platform, f"control_{k}", "core_control",
                             lambda: CoreControl(self._links))
                 for k in range(self._config.cores)]
        connect(m, flipped(self.axi), slave.axi)
        for core, port in zip(cores, self.core, strict=True):
            connect(m, core.core, flipped(port))
        self._choose(m, slave.access, [block.access, *(core.access for core in cores)])
        self._show(m, block)
        if self._links:
            self._place(m, block)
            self._start(m, block, cores)
        pending = Signal(len(block.interrupt_status))
        m.d.comb += [
            block.interrupt_status_set.eq(Cat(
                Cat(core.events, Const(0, EVENT_PITCH - len(EVENTS)))
                for core in cores)),
            pending.eq(block.interrupt_status & block.interrupt_enable),
        ]
        m.d.sync += self.interrupt.eq(pending.any())
        return m

    def _choose(self, m: Module, access: wiring.PureInterface,
                blocks: list[wiring.PureInterface]) -> None:
        """Route ``access`` to the block that its upper address bits select, or refuse it.

        ``blocks`` are the access ports of the register blocks, in the order of their addresses.
        """
        number = access.address[OFFSET_BITS:]
        m.d.comb += [access.done.eq(1), access.error.eq(1)]
        for k, block in enumerate(blocks):
            m.d.comb += [block.write.eq(access.write), block.data.eq(access.data),
                         block.address.eq(access.address[:OFFSET_BITS])]
            with m.If(number == k):
                m.d.comb += [block.valid.eq(access.valid), access.done.eq(block.done),
                             access.error.eq(block.error), access.value.eq(block.value)]

    def _show(self, m: Module, block: RegisterBlock) -> None:
        constants = parameters(self._config) | {
            name: register.reset for name, register in GLOBAL_REGISTERS.items()
            if name in ("ID", "VERSION")}
        for name, value in constants.items():
            m.d.comb += getattr(block, name.lower()).eq(value)

    def _place(self, m: Module, block: RegisterBlock) -> None:
        """Connect the registers TORUS and POSITION, which refuse a position outside the torus."""
        written = {name: _fields(LINK_REGISTERS[name], block.access.data)
                   for name in ("TORUS", "POSITION")}
        side, at = written["TORUS"], written["POSITION"]
        wrong = {"TORUS": [side["WIDTH"] <= self.x, side["HEIGHT"] <= self.y,
                           side["WIDTH"] > MAX_SIDE, side["HEIGHT"] > MAX_SIDE],
                 "POSITION": [at["X"] >= self.width, at["Y"] >= self.height]}
        for register, fields in written.items():
            name = register.lower()
            write, error = (getattr(block, f"{name}_{end}") for end in ("write", "error"))
            m.d.comb += [getattr(block, f"{name}_done").eq(1),
                         error.eq(write & Cat(wrong[register]).any())]
            shown = _fields(LINK_REGISTERS[register], getattr(block, name))
            for field, value in fields.items():
                port = getattr(self, field.lower())
                m.d.comb += shown[field].eq(port)
                with m.If(write & ~error):
                    m.d.sync += port.eq(value)

    def _start(self, m: Module, block: RegisterBlock, cores: list[CoreControl]) -> None:
        """Connect the register START, which starts several cores in the same cycle."""
        chosen = block.access.data[:MAX_CORES]
        wrong = Signal()
        m.d.comb += [
            wrong.eq((chosen & ~Cat(*(core.startable for core in cores),
                                    Const(0, MAX_CORES - len(cores)))).any()),
            block.start_done.eq(1),
            block.start_error.eq(wrong),
            *(core.start_together.eq(block.start_write & chosen[number] & ~wrong)
              for number, core in enumerate(cores)),
        ]
