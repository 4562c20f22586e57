"""Scalar memory, scalar registers and operands, the scalar ALU, and the branch unit."""

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from ..checks import instance
from ..config import Config
from ..isa import (
    BUNDLE_BITS,
    BUNDLE_LAYOUT,
    FIRST_IMMEDIATE,
    IMMEDIATES,
    INLINE_BASE,
    SLOTS,
    SOURCE_BITS,
    Kind,
    ScalarOp,
    Slot,
)
from ..sram import Sram
from ..tiles import instantiate
from ..vpu.interface import REGISTER_BITS
from ..vpu.registers import RegisterFile
from .decode import SCALAR_PORTS, kind_codes
from .interface import descriptor_words, write_words

__all__ = ["SCALAR_WRITERS", "WRITE_TURNS", "BranchUnit", "ScalarAlu", "ScalarMemory",
           "ScalarOperands", "ScalarSource"]

SCALAR_WRITERS = ("s0", "s1", "misc", "late")
"""Write ports of the scalar registers. Port ``late`` serves the host, and scalar loads, which write
one cycle after issue."""
WRITE_TURNS = (("s0", "late"), ("s1", "misc"))
"""Pairs of writers that share a write port of the register file if ``issue_cycles`` is 3."""
assert {writer for pair in WRITE_TURNS for writer in pair} == set(SCALAR_WRITERS)

_TURNS = (((Slot.S0, "a"), (Slot.S1, "a")), ((Slot.S0, "b"), (Slot.S1, "b")),
          ((Slot.LOAD, "a"), (Slot.S0, "d")), ((Slot.LOAD, "b"), (Slot.S1, "d")),
          ((Slot.STORE, "a"), (Slot.V0, "b")), ((Slot.STORE, "b"), (Slot.V1, "b")),
          ((Slot.MISC, "b"), None))
"""Pairs of operands that share a read port. Faults depend on the first operand; the second one is
needed only when the bundle issues. Where the second is None, the host shares the first's port."""
assert {port for pair in _TURNS for port in pair if port} == set(SCALAR_PORTS)

_OP_BITS = SLOTS[Slot.S0]["op"]


class ScalarMemory(wiring.Component):
    """Scalar memory, with one read and one write in each cycle.

    A read returns one word or `descriptor_words` words; a write stores one word or `write_words`
    words. There are `write_words` banks: consecutive words lie in different banks. A read in the
    cycle of a write to the same word returns the old value.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    read, read_address : In(1), In(log2 smem_words)
        Read port.
    descriptor_read, descriptor_address : In(1), In(log2 smem_words)
        Reads `descriptor_words` words from any address on; all of them must lie within the memory.
        Ignored in the cycle of a ``read``.
    read_data : Out(32 * descriptor_words)
        The words that the last read selected, held until the next one. After a ``read``, only the
        first is defined.
    write, write_address, write_data : In(1), In(log2 smem_words), In(32 * write_words)
        Writes `write_words` words from any address on; all of them must lie within the memory.
    write_one : In(1)
        With ``write``: writes only the first word.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        bits = ceil_log2(config.smem_words)
        super().__init__({
            "read": In(1), "read_address": In(bits),
            "descriptor_read": In(1), "descriptor_address": In(bits),
            "read_data": Out(32 * descriptor_words(config)),
            "write": In(1), "write_one": In(1), "write_address": In(bits),
            "write_data": In(32 * write_words(config)),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        number = write_words(self._config)
        bits = exact_log2(number)
        depth = max(2, -(-self._config.smem_words // number))
        first = Signal(bits)  # bank of the first word
        m.d.comb += first.eq(self.write_address)
        data = self.write_data
        for level in range(bits):
            rotated = Signal.like(data, name=f"rotated_{level}")
            m.d.comb += rotated.eq(Mux(first[level], data.rotate_left(32 << level), data))
            data = rotated
        places = self._places(m, number)
        words = []
        for bank in range(number):
            memory = instantiate(m, platform, f"bank_{bank}", Sram.module(32, depth),
                                 lambda: Sram(32, depth))
            wraps = bank < first if bank < number - 1 else 0
            m.d.comb += [
                memory.read.eq(self.read | self.descriptor_read),
                memory.read_address.eq(places[bank]),
                memory.write.eq(self.write & (~self.write_one | (first == bank))),
                memory.write_address.eq(self.write_address[bits:] + wraps),
                memory.write_data.eq(data.word_select(bank, 32)),
            ]
            words.append(memory.read_data)
        self._gather(m, words)
        return m

    def _places(self, m: Module, number: int) -> list[Value]:
        """Return the address to read in each of the ``number`` banks."""
        bits = exact_log2(number)
        one, several = self.read_address, self.descriptor_address
        line = several[bits:]
        following = Signal(line.shape())
        m.d.comb += following.eq(line + 1)
        if descriptor_words(self._config) == 1:
            return [Mux(self.read, one[bits:], line)] * number
        wraps = [bank < several[:bits] for bank in range(number - 1)]
        return [Mux(self.read, one[bits:], Mux(wrap, following, line)) for wrap in (*wraps, 0)]

    def _gather(self, m: Module, words: list[Value]) -> None:
        """Drive ``read_data`` with ``words``, one from each bank, the addressed word first."""
        bits = exact_log2(len(words))
        chosen = Signal(bits, reset_less=True)
        with m.If(self.read | self.descriptor_read):
            m.d.sync += chosen.eq(Mux(self.read, self.read_address, self.descriptor_address))
        if descriptor_words(self._config) == 1:
            m.d.comb += self.read_data.eq(Array(words)[chosen])
            return
        data: Value = Cat(words)
        for level in range(bits):
            rotated = Signal(32 * len(words), name=f"gathered_{level}")
            m.d.comb += rotated.eq(Mux(chosen[level], data.rotate_right(32 << level), data))
            data = rotated
        m.d.comb += self.read_data.eq(data)


class ScalarSource(wiring.Component):
    """Decodes a scalar source into its 32-bit value; combinational.

    Attributes
    ----------
    code : In(6)
        The encoded source.
    register : In(32)
        Value of the scalar register whose number is in the low bits of ``code``.
    imm_{i} : In(32)
        Immediates.
    value : Out(32)
        The value; defined for legal codes only.
    """

    combinational = True

    def __init__(self) -> None:
        super().__init__({"code": In(SOURCE_BITS), "register": In(32),
                          **{f"imm_{i}": In(32) for i in range(IMMEDIATES)}, "value": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        inline = Signal(32)
        m.d.comb += inline.eq(self.code - INLINE_BASE)
        with m.If(self.code < FIRST_IMMEDIATE):
            m.d.comb += self.value.eq(self.register)
        with m.Else():
            m.d.comb += self.value.eq(inline)
            for i in range(IMMEDIATES):
                with m.If(self.code == FIRST_IMMEDIATE + i):
                    m.d.comb += self.value.eq(getattr(self, f"imm_{i}"))
        return m


class ScalarOperands(wiring.Component):
    """The scalar registers, and the values of all scalar operands of a bundle.

    The registers are initially zero and are not reset; s0 is always zero. A read in the cycle of a
    write returns the old value. No two ports may write the same register in one cycle.

    Parameters
    ----------
    shared : bool
        If true, pairs of operands share a read port: operands that faults depend on are read first,
        the others in a later cycle. All values are valid one cycle after their read. Pairs of
        writers share a write port, see `WRITE_TURNS`: the two must not write in the same cycle.
    links : bool
        Whether the chip has links: operand a of slot `misc` then has a port, too. Requires
        ``shared`` to be false.

    Attributes
    ----------
    bundle : In(BUNDLE_BITS)
        The bundle, of `BUNDLE_LAYOUT`.
    keep, late : In(1), In(1)
        Present only if ``shared`` is true, and never both set. ``keep``: the operands that faults
        depend on are read and stored. ``late``: the other operands are read, and ``host_value`` is
        valid.
    {slot}_{field} : Out(32)
        Value of the scalar operand in this field, one port for each of `SCALAR_PORTS`; defined only
        if the slot's operation uses the field.
    write_{writer}, d_{writer}, value_{writer} : In(1), In(5), In(32)
        Write ports, one for each of `SCALAR_WRITERS`.
    host_register, host_value : In(5), Out(32)
        A read port for the host.
    """

    def __init__(self, shared: bool = False, links: bool = False) -> None:
        assert not (shared and links)
        self._shared = shared
        self._ports = (*SCALAR_PORTS, (Slot.MISC, "a")) if links else SCALAR_PORTS
        super().__init__({
            "bundle": In(BUNDLE_BITS), **({"keep": In(1), "late": In(1)} if shared else {}),
            **{f"{slot}_{field}": Out(32) for slot, field in self._ports},
            **{name: member for writer in SCALAR_WRITERS for name, member in (
                (f"write_{writer}", In(1)), (f"d_{writer}", In(REGISTER_BITS)),
                (f"value_{writer}", In(32)))},
            "host_register": In(REGISTER_BITS), "host_value": Out(32),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reads, writes = ((len(_TURNS), len(WRITE_TURNS)) if self._shared
                         else (len(self._ports) + 1, len(SCALAR_WRITERS)))  # 1: for the host
        registers = instantiate(m, platform, "registers", RegisterFile.module(reads, writes),
                                lambda: RegisterFile(reads, writes))
        (self._read_in_turn if self._shared else self._read)(m, platform, registers)
        if self._shared:
            for i, pair in enumerate(WRITE_TURNS):
                (write, d, value), (turn, later_d, later_value) = map(self._writer, pair)
                self._write(m, registers.write_port(i), write | turn, Mux(turn, later_d, d),
                            Mux(turn, later_value, value))
        else:
            for i, writer in enumerate(SCALAR_WRITERS):
                self._write(m, registers.write_port(i), *self._writer(writer))
        return m

    def _writer(self, writer: str) -> tuple[Signal, Signal, Signal]:
        """Return the ports ``write_{writer}``, ``d_{writer}`` and ``value_{writer}``."""
        return (getattr(self, f"write_{writer}"), getattr(self, f"d_{writer}"),
                getattr(self, f"value_{writer}"))

    def _write(self, m: Module, port: tuple[Signal, Signal, Signal], write: Value, number: Value,
               word: Value) -> None:
        """Write ``word`` to register ``number`` through a port of the register file."""
        enable, d, value = port
        m.d.comb += [enable.eq(write & (number != 0)), d.eq(number), value.eq(word)]

    def _read(self, m: Module, platform: object, registers: RegisterFile) -> None:
        """Connect each operand to a read port of its own."""
        fields = data.View(BUNDLE_LAYOUT, self.bundle)
        for i, (slot, field) in enumerate(self._ports):
            number, register = registers.read_port(i)
            code = fields[slot][field]
            value = getattr(self, f"{slot}_{field}")
            m.d.comb += number.eq(code)
            if kind_codes(slot, field, Kind.SOURCE, Kind.VECTOR_SOURCE):
                self._select(m, platform, slot, code, register, value)
            else:
                m.d.comb += value.eq(register)
        number, register = registers.read_port(len(self._ports))
        m.d.comb += [number.eq(self.host_register), self.host_value.eq(register)]

    def _read_in_turn(self, m: Module, platform: object, registers: RegisterFile) -> None:
        """Read two operands in turn through each read port: the second while ``late`` is set."""
        fields = data.View(BUNDLE_LAYOUT, self.bundle)
        for i, (first, second) in enumerate(_TURNS):
            slot, field = first
            number, register = registers.read_port(i)
            code = Signal(SOURCE_BITS, name=f"{slot}_{field}_code")
            other = self.host_register if second is None else fields[second[0]][second[1]]
            m.d.comb += [code.eq(Mux(self.late, other, fields[slot][field])), number.eq(code)]
            # The codes of registers are their numbers.
            read = Signal(32, name=f"{slot}_{field}_read")
            self._select(m, platform, f"{slot}_{field}", code, register, read)
            kept = Signal(32, name=f"{slot}_{field}_kept", reset_less=True)
            with m.If(self.keep):
                m.d.sync += kept.eq(read)
            m.d.comb += getattr(self, f"{slot}_{field}").eq(kept)
            if second is None:
                m.d.comb += self.host_value.eq(register)
            else:
                last = Signal(32, name=f"{second[0]}_{second[1]}_read_last", reset_less=True)
                m.d.sync += last.eq(read)
                m.d.comb += getattr(self, f"{second[0]}_{second[1]}").eq(last)

    def _select(self, m: Module, platform: object, name: str, code: Value, register: Signal,
                value: Signal) -> None:
        """Drive ``value`` with the value of the scalar source ``code``.

        ``register`` is the value of the scalar register that ``code`` selects, if any. ``name``
        names the submodule that decodes the source.
        """
        immediates = data.View(BUNDLE_LAYOUT, self.bundle).imm
        source = instantiate(m, platform, f"{name}_source", "scalar_source", ScalarSource)
        m.d.comb += [source.code.eq(code), source.register.eq(register), value.eq(source.value)]
        m.d.comb += [getattr(source, f"imm_{i}").eq(immediates[i]) for i in range(IMMEDIATES)]


class ScalarAlu(wiring.Component):
    """Computes the result of a scalar operation of `hdl.isa.Unit.SCALAR`; combinational.

    Attributes
    ----------
    op : In(6)
        A `ScalarOp`.
    a, b : In(32)
        Operands.
    result : Out(32)
        Result of the operation; 0 for other operations.
    """

    combinational = True

    def __init__(self) -> None:
        super().__init__({"op": In(_OP_BITS), "a": In(32), "b": In(32), "result": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        a, b = self.a, self.b
        far = Signal()  # a shift by 32 or more
        near = Signal(5)
        equal = Signal()
        less = Signal()
        below = Signal()
        m.d.comb += [
            far.eq(b[5:].any()),
            near.eq(b[:5]),
            equal.eq(a == b),
            less.eq(a.as_signed() < b.as_signed()),
            below.eq(a < b),
        ]
        results = {
            ScalarOp.ADD: a + b,
            ScalarOp.SUB: a - b,
            ScalarOp.MUL: a * b,
            ScalarOp.AND: a & b,
            ScalarOp.OR: a | b,
            ScalarOp.XOR: a ^ b,
            ScalarOp.SHL: Mux(far, 0, a << near),
            ScalarOp.SHR: Mux(far, 0, a >> near),
            ScalarOp.SAR: a.as_signed() >> Mux(far, 31, near),
            ScalarOp.EQ: equal,
            ScalarOp.NE: ~equal,
            ScalarOp.LT: less,
            ScalarOp.LTU: below,
            ScalarOp.MIN: Mux(less, a, b),
            ScalarOp.MAX: Mux(less, b, a),
        }
        with m.Switch(self.op):
            for op, result in results.items():
                with m.Case(op.value):
                    m.d.comb += self.result.eq(result)
        return m


class BranchUnit(wiring.Component):
    """Computes the next bundle's address, and the value that a branch writes to d; combinational.

    Attributes
    ----------
    bundle : In(BUNDLE_BITS)
        The bundle, of `BUNDLE_LAYOUT`; only slot `s1` matters.
    pc : In(32)
        Address of the bundle.
    a, b, d : In(32)
        Values of the operands of slot `s1`.
    next_pc : Out(32)
        Address of the next bundle: the target of a taken branch; ``pc`` itself for `HALT`.
    halt : Out(1)
        The core stops after the bundle.
    result : Out(32)
        The value that `CALL` and `LOOP` write to d.
    """

    combinational = True

    def __init__(self) -> None:
        super().__init__({"bundle": In(BUNDLE_BITS), "pc": In(32),
                          "a": In(32), "b": In(32), "d": In(32),
                          "next_pc": Out(32), "halt": Out(1), "result": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fields = data.View(BUNDLE_LAYOUT, self.bundle)
        op = fields.s1.op
        following = Signal(32)
        left = Signal(32)
        target = Signal(32)
        equal = Signal()
        less = Signal()
        below = Signal()
        taken = Signal()
        m.d.comb += [
            following.eq(self.pc + 1),
            left.eq(self.d - 1),
            self.result.eq(Mux(op == ScalarOp.CALL.value, following, left)),
            equal.eq(self.a == self.b),
            less.eq(self.a.as_signed() < self.b.as_signed()),
            below.eq(self.a < self.b),
        ]
        # A comparison uses both operands, so its target is an immediate.
        with m.If(op.matches(*kind_codes(Slot.S1, "d", Kind.IMMEDIATE))):
            m.d.comb += target.eq(fields.imm[0])
            for i in range(1, IMMEDIATES):
                with m.If(fields.s1.d == i):
                    m.d.comb += target.eq(fields.imm[i])
        with m.Else():
            m.d.comb += target.eq(self.b)
        conditions = {
            ScalarOp.JUMP: 1,
            ScalarOp.CALL: 1,
            ScalarOp.BEQ: equal,
            ScalarOp.BNE: ~equal,
            ScalarOp.BLT: less,
            ScalarOp.BGE: ~less,
            ScalarOp.BLTU: below,
            ScalarOp.BGEU: ~below,
            ScalarOp.LOOP: left != 0,
        }
        with m.Switch(op):
            for branch, condition in conditions.items():
                with m.Case(branch.value):
                    m.d.comb += taken.eq(condition)
        m.d.comb += [
            self.halt.eq(op == ScalarOp.HALT.value),
            self.next_pc.eq(Mux(self.halt, self.pc, Mux(taken, target, following))),
        ]
        return m
