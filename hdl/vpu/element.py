"""Vector-unit element: the hardware of one sublane in one lane; and the grid of these elements.

In this package, an element is this hardware; elsewhere, it is the number at (sublane, lane).
"""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..sram import Sram
from ..tiles import Chain, Each, Link, Shared, TileGrid, instantiate
from .alu import FUNCTION_PORT_BITS, OP_BITS, SELECT_BITS, VectorAlu, enable_ports
from .interface import MASK_BITS, REGISTER_BITS, HostSpace
from .registers import MaskFile, RegisterFile

__all__ = ["CHAINS", "SLOTS", "VectorElement", "slot_ports", "vpu_grid"]

SLOTS = {"v0": False, "v1": True}
"""Vector slots; the value says whether the slot executes transcendental functions and `RANDOM`."""

CHAINS = ("x", "w", "xlu", "pop", "result", "host_out", "host_in")
"""Names of the chains, in which rows of vectors move south."""
_LOADED = ("x", "w", "xlu")
_READS = ("v0_a", "v0_b", "v1_a", "v1_b", "store_d", *(f"{chain}_source" for chain in _LOADED),
          "host_source")
"""Inputs that hold the number of a register to read, in the order of the read ports."""
_TURNS: tuple[dict[str, str], ...] = (
    {"w_source": "", "x_source": "x_load", "v0_a": "v0_read", "v1_a": "v1_read"},
    {"xlu_source": "", "v0_b": "v0_read", "v1_b": "v1_read"},
    {"host_source": "", "store_d": "store_read"})
"""For each read port of the register file, the element's inputs that share it if ``issue_cycles``
is 3. Each input is mapped to the signal that gives it its turn. The first input, which has no
signal, has its turn whenever no other input has."""
_MASK_READS = ("v0_p", "v0_q", "v1_p", "v1_q", "store_m")
_WRITES = ("v0", "v1", "load", "chain")
_WRITE_TURNS = (("v0", "v1"), ("load", "chain"))
"""Pairs of writers that share a write port of the register file if ``issue_cycles`` is 3."""


def slot_ports(transcendental: bool, iterative: bool = False) -> dict[str, int]:
    """Return names and widths, in bits, of a slot's ports from control pipeline to ALU.

    While ``read`` is set: numbers of registers ``a`` and ``b`` and of masks ``p`` and ``q``;
    ``use_scalar`` and ``scalar``. In later cycles: ports of `VectorAlu`. In the cycle of the
    result: ``write`` to register ``d``, or ``mask_write`` to mask ``mask_d``. ``transcendental``
    and ``iterative`` are those of `VectorAlu`.
    """
    ports = {"read": 1, "a": REGISTER_BITS, "b": REGISTER_BITS, "p": MASK_BITS, "q": MASK_BITS,
             "use_scalar": 1, "scalar": 32, "op": OP_BITS, "subtract": 1}
    if transcendental:
        ports["functions"] = FUNCTION_PORT_BITS
    ports |= {name: 1 for names in enable_ports(transcendental, iterative).values()
              for name in names}
    return ports | {"select": SELECT_BITS, "write": 1, "d": REGISTER_BITS,
                    "mask_write": 1, "mask_d": MASK_BITS}


def _shared_ports(config: Config) -> dict[str, int]:
    """Return the names and widths, in bits, of input ports whose value all elements share."""
    address = ceil_log2(config.vmem_vectors)
    ports = {f"{slot}_{name}": width for slot, full in SLOTS.items()
             for name, width in slot_ports(full, config.issue_cycles > 1).items()}
    for chain in _LOADED:
        ports |= {f"{chain}_load": 1, f"{chain}_source": REGISTER_BITS, f"{chain}_shift": 1}
    return ports | {
        "pop_shift": 1, "result_shift": 1,
        "chain_write": 1, "chain_d": REGISTER_BITS, "chain_from_xlu": 1,
        "vmem_read": 1, "vmem_read_address": address, "load_write": 1, "load_d": REGISTER_BITS,
        "store_read": 1, "store_d": REGISTER_BITS, "store_m": MASK_BITS,
        "vmem_write": 1, "vmem_write_host": 1, "vmem_write_address": address,
        "host_out_load": 1, "host_space": 2, "host_source": REGISTER_BITS, "host_out_shift": 1,
        "host_in_shift": 1,
    }


class VectorElement(wiring.Component):
    """One sublane of one lane: registers, masks, memory, ALUs, and a register of each chain.

    It has one word of each vector register, one bit of each mask register, and one word of each
    vector in vector memory.

    Except for the chains and ``position``, the inputs come from the control pipeline and are the
    same for all elements. There are no valid bits: registers load when their enable is set, and
    hold otherwise. All outputs are registered.

    Each slot has its own ALU, and each reader and writer of registers its own port. But if
    ``issue_cycles`` of the configuration is 3, there are one ALU, two write ports and three read
    ports. The slots share the ALU and a write port; loads and chains share the other write port.
    The readers share the read ports: operand a with x and w, operand b with xlu, the store with the
    host. No two of those that share a port may use it in the same cycle.

    Parameters
    ----------
    config : Config
        ``vmem_vectors`` is the depth of the memory, at least 2.

    Attributes
    ----------
    position : In(16)
        Constant: the lane in the lower half, the sublane in the upper half.
    v0_*, v1_* : In
        See `slot_ports`.
    {chain}_load, {chain}_source, {chain}_shift : In(1), In(REGISTER_BITS), In(1)
        For chains x, w and xlu: ``load`` loads the word of vector register ``source`` into the
        element's register of that chain, ``shift`` loads the word from the north; ``load`` has
        priority.
    pop_shift, result_shift, host_in_shift : In(1)
        Loads the word from the north into the element's register of that chain.
    chain_write, chain_d, chain_from_xlu : In(1), In(REGISTER_BITS), In(1)
        Writes vector register ``chain_d`` from the result chain if ``chain_from_xlu`` is set,
        otherwise from the pop chain.
    vmem_read, vmem_read_address : In(1), In(log2 vmem_vectors)
        Reads the element's part of vector memory.
    load_write, load_d : In(1), In(REGISTER_BITS)
        Writes vector register ``load_d`` with the word that was read last from vector memory.
    store_read, store_d, store_m : In(1), In(REGISTER_BITS), In(MASK_BITS)
        Reads vector register ``store_d`` and mask ``store_m`` for a store.
    vmem_write, vmem_write_host, vmem_write_address : In(1), In(1), In(log2 vmem_vectors)
        Writes the element's part of vector memory: the host's word if ``vmem_write_host`` is set,
        otherwise the word of the store, if its mask bit is set.
    host_out_load, host_space, host_source, host_out_shift : In(1), In(2), In(REGISTER_BITS), In(1)
        ``host_out_load`` loads the host_out chain with the word that was read last from vector
        memory, with vector register ``host_source``, or with the masks, as ``host_space``, a
        `HostSpace`, says. ``host_out_shift`` loads the word from the north.
    {chain}_north, {chain}_south : In(32), Out(32)
        For each chain: the word from the northern neighbour, and the word to the southern one.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        if config.vmem_vectors < 2:
            raise ValueError("vmem_bytes must be at least twice the bytes of a vector "
                             f"({config.row_bytes * config.sublanes}), not {config.vmem_bytes!r}")
        self._config = config
        super().__init__({
            "position": In(16),
            **{name: In(width) for name, width in _shared_ports(config).items()},
            **{f"{chain}_north": In(32) for chain in CHAINS},
            **{f"{chain}_south": Out(32) for chain in CHAINS},
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shared = self._config.issue_cycles > 1
        reads = len(_TURNS if shared else _READS)
        writes = len(_WRITE_TURNS if shared else _WRITES)
        registers = instantiate(m, platform, "registers", RegisterFile.module(reads, writes),
                                lambda: RegisterFile(reads, writes))
        masks = instantiate(m, platform, "masks", MaskFile.module(len(_MASK_READS), len(SLOTS)),
                            lambda: MaskFile(len(_MASK_READS), len(SLOTS)))
        words = self._read_in_turn(m, registers) if shared else self._read(m, registers, _READS)
        bits = self._read(m, masks, _MASK_READS)

        values = [self._share(m, platform, masks, words, bits)] if shared else [
            self._slot(m, platform, masks, slot, words, bits) for slot in SLOTS]
        word = self._memory(m, platform, words["store_d"], bits["store_m"])
        rows = self._chains(m, words, word, masks.masks)
        row = Signal(32)
        m.d.comb += row.eq(Mux(self.chain_from_xlu, rows["result"], rows["pop"]))
        if shared:
            values += [Mux(self.chain_write, row, word)]
            for i, (pair, value) in enumerate(zip(_WRITE_TURNS, values, strict=True)):
                (first, d), (second, other) = (
                    (getattr(self, f"{port}_write"), getattr(self, f"{port}_d")) for port in pair)
                self._write(m, registers, i, first | second, Mux(second, other, d), value)
        else:
            for i, (port, value) in enumerate(zip(_WRITES, [*values, word, row], strict=True)):
                self._write(m, registers, i, getattr(self, f"{port}_write"),
                            getattr(self, f"{port}_d"), value)
        return m

    def _write(self, m: Module, registers: RegisterFile, i: int, enable: Value, number: Value,
               value: Value) -> None:
        """Write ``value`` to register ``number`` through write port ``i`` of the registers."""
        write, d, data = registers.write_port(i)
        m.d.comb += [write.eq(enable), data.eq(value), d.eq(number)]

    def _read(self, m: Module, file: RegisterFile | MaskFile,
              ports: tuple[str, ...]) -> dict[str, Signal]:
        """Connect the inputs ``ports`` to read ports of ``file``; return the data by input."""
        read = {}
        for i, name in enumerate(ports):
            source, data = file.read_port(i)
            m.d.comb += source.eq(getattr(self, name))
            read[name] = data
        return read

    def _read_in_turn(self, m: Module, registers: RegisterFile) -> dict[str, Signal]:
        """Connect the inputs that share a read port to it; return the data by input.

        `_TURNS` says which inputs share a port, and when each of them uses it.
        """
        read: dict[str, Signal] = {}
        for i, ports in enumerate(_TURNS):
            source, data = registers.read_port(i)
            for name, turn in ports.items():
                with m.If(getattr(self, turn) if turn else 1):
                    m.d.comb += source.eq(getattr(self, name))
                read[name] = data
        return read

    def _share(self, m: Module, platform: object, masks: MaskFile, words: dict[str, Signal],
               bits: dict[str, Signal]) -> Signal:
        """Instantiate one ALU for both slots; return its result, which v0 or v1 writes.

        ``words`` and ``bits`` are the vector operands and mask bits that were read, by input.
        ``masks`` is the file to which mask results are written.

        The two slots never enable the same stage of a unit in one cycle: v1 is
        `hdl.vpu.interface.V1_DELAY` cycles behind v0, and bundles issue at most every third cycle.
        They never write in one cycle, because the sequencer reserves the write port for one of
        them.
        """
        alu = instantiate(m, platform, "alu", VectorAlu.module(True, True),
                          lambda: VectorAlu(True, True))

        def chosen(turn: str, name: str) -> Value:
            return Mux(getattr(self, f"v1_{turn}"), getattr(self, f"v1_{name}"),
                       getattr(self, f"v0_{name}"))

        b = Signal(32, name="operand")
        m.d.comb += [
            b.eq(Mux(chosen("read", "use_scalar"), chosen("read", "scalar"), words["v0_b"])),
            alu.read.eq(self.v0_read | self.v1_read), alu.a.eq(words["v0_a"]), alu.b.eq(b),
            *(getattr(alu, mask).eq(Mux(self.v1_read, bits[f"v1_{mask}"], bits[f"v0_{mask}"]))
              for mask in ("p", "q")),
            alu.lane.eq(self.position[:8]),
            alu.sublane.eq(self.position[8:8 + len(alu.sublane)]),
            alu.op.eq(chosen("simple_0", "op")), alu.subtract.eq(chosen("add_0", "subtract")),
            alu.functions.eq(self.v1_functions), alu.select.eq(chosen("write", "select")),
        ]
        for slot in SLOTS:
            write, d, value = masks.write_port(list(SLOTS).index(slot))
            m.d.comb += [write.eq(getattr(self, f"{slot}_mask_write")),
                         d.eq(getattr(self, f"{slot}_mask_d")), value.eq(alu.flag)]
        both = {name for names in enable_ports(False).values() for name in names}
        for names in enable_ports(True, True).values():
            for name in names:
                enable = getattr(self, f"v1_{name}")
                m.d.comb += getattr(alu, name).eq(
                    enable | getattr(self, f"v0_{name}") if name in both else enable)
        return alu.result

    def _slot(self, m: Module, platform: object, masks: MaskFile, slot: str,
              words: dict[str, Signal], bits: dict[str, Signal]) -> Signal:
        """Instantiate the ALU of ``slot``; return its result.

        ``words`` and ``bits`` are the vector operands and mask bits that were read, by input.
        ``masks`` is the file to which mask results are written.
        """
        full = SLOTS[slot]
        alu = instantiate(m, platform, slot, VectorAlu.module(full), lambda: VectorAlu(full))
        b = Signal(32, name=f"{slot}_operand")
        write, d, value = masks.write_port(list(SLOTS).index(slot))

        def port(name: str) -> Signal:
            return getattr(self, f"{slot}_{name}")

        m.d.comb += [
            b.eq(Mux(port("use_scalar"), port("scalar"), words[f"{slot}_b"])),
            alu.a.eq(words[f"{slot}_a"]), alu.b.eq(b),
            alu.p.eq(bits[f"{slot}_p"]), alu.q.eq(bits[f"{slot}_q"]),
            alu.lane.eq(self.position[:8]),
            alu.sublane.eq(self.position[8:8 + len(alu.sublane)]),
            write.eq(port("mask_write")), d.eq(port("mask_d")), value.eq(alu.flag),
        ]
        m.d.comb += [getattr(alu, name).eq(port(name)) for name in slot_ports(full)
                     if name in alu.signature.members and name not in ("a", "b", "p", "q")]
        return alu.result

    def _memory(self, m: Module, platform: object, word: Signal, bit: Signal) -> Signal:
        """Instantiate the element's part of vector memory; return the word that was read last.

        ``word`` and ``bit`` are the data of a store: from the vector register and from the mask.
        """
        depth = self._config.vmem_vectors
        memory = instantiate(m, platform, "memory", Sram.module(32, depth), lambda: Sram(32, depth))
        data = Signal(32, name="store_data", reset_less=True)
        masked = Signal(name="store_masked", reset_less=True)
        with m.If(self.store_read):
            m.d.sync += [data.eq(word), masked.eq(bit)]
        m.d.comb += [
            memory.read.eq(self.vmem_read),
            memory.read_address.eq(self.vmem_read_address),
            memory.write.eq(self.vmem_write_host | (self.vmem_write & masked)),
            memory.write_address.eq(self.vmem_write_address),
            memory.write_data.eq(Mux(self.vmem_write_host, self.host_in_south, data)),
        ]
        return memory.read_data

    def _chains(self, m: Module, words: dict[str, Signal], word: Signal,
                masks: Signal) -> dict[str, Signal]:
        """Connect the chains; return the word in the element's register of each chain.

        ``words``: the vector registers that were read, by input. ``word``: the word that was read
        last from vector memory. ``masks``: this element's bits of all masks.
        """
        host = Signal(32, name="host_word")
        with m.Switch(self.host_space):
            with m.Case(HostSpace.VREG):
                m.d.comb += host.eq(words["host_source"])
            with m.Case(HostSpace.MASK):
                m.d.comb += host.eq(masks)
            with m.Default():
                m.d.comb += host.eq(word)
        loads = {chain: words[f"{chain}_source"] for chain in _LOADED} | {"host_out": host}
        rows = {}
        for chain in CHAINS:
            row = rows[chain] = Signal(32, name=chain, reset_less=True)
            m.d.comb += getattr(self, f"{chain}_south").eq(row)
            with m.If(getattr(self, f"{chain}_shift")):
                m.d.sync += row.eq(getattr(self, f"{chain}_north"))
            if chain in loads:
                with m.If(getattr(self, f"{chain}_load")):
                    m.d.sync += row.eq(loads[chain])
        return rows


def _chain_links() -> list[Link]:
    entered = ("xlu", "pop", "result", "host_in")
    left = ("x", "w", "xlu", "host_out")
    return [Chain(f"{chain}_south", f"{chain}_north", "south",
                  first=f"{chain}_in" if chain in entered else None,
                  last=f"{chain}_out" if chain in left else None) for chain in CHAINS]


def vpu_grid(config: Config) -> TileGrid:
    """Return the ``sublanes`` x ``lanes`` grid of `VectorElement`, as module ``vpu_grid``.

    Row r of the grid holds sublane ``sublanes - 1 - r``. Rows of vectors move south. Sublane 0 of a
    vector leaves first. The first row of a vector that enters becomes sublane 0. Ports that are not
    shared have one word per lane: ``xlu_in``, ``pop_in``, ``result_in``, ``host_in_in``; ``x_out``,
    ``w_out``, ``xlu_out``, ``host_out_out``. ``position`` has one value per tile.
    """
    return TileGrid("vpu_grid", "vpu_element", lambda: VectorElement(config), config.sublanes,
                    config.lanes, [Each("position"), *map(Shared, _shared_ports(config)),
                                   *_chain_links()])
