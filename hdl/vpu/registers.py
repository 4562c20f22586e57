"""The register files of one element: one word of each vector register, one bit of each mask."""

from amaranth import Array, Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..checks import integer
from ..isa import MASKS, VECTOR_REGISTERS
from ..target import Target
from ..tiles import instantiate
from .interface import MASK_BITS, REGISTER_BITS

__all__ = ["BankedRegisterFile", "MaskFile", "RegisterFile", "SplitRegisterFile", "WordSelect"]


def _ports(reads: int, writes: int, width: int) -> dict[str, wiring.Member]:
    """Return the ports of a register file: ``reads`` read ports and ``writes`` write ports."""
    ports: dict[str, wiring.Member] = {}
    for i in range(reads):
        ports |= {f"source_{i}": In(REGISTER_BITS), f"data_{i}": Out(width)}
    for i in range(writes):
        ports |= {f"write_{i}": In(1), f"d_{i}": In(REGISTER_BITS), f"value_{i}": In(width)}
    return ports


class RegisterFile(wiring.Component):
    """A register file with many ports. The registers are initially zero, and are not reset.

    Reads are combinational. A read in the cycle of a write returns the old value. No two ports may
    write the same register in one cycle.

    Parameters
    ----------
    reads, writes : int
        Number of read ports and of write ports, at least 1 each.
    width : int
        Bits of a register, at least 1. Formal proofs use 1, because bits do not affect each other.

    Attributes
    ----------
    source_{i}, data_{i} : In(REGISTER_BITS), Out(width)
        Read port i.
    write_{i}, d_{i}, value_{i} : In(1), In(REGISTER_BITS), In(width)
        Write port i.
    """

    def __init__(self, reads: int, writes: int, width: int = 32) -> None:
        self.reads = reads = integer("reads", reads, 1)
        self.writes = writes = integer("writes", writes, 1)
        self.width = width = integer("width", width, 1)
        super().__init__(_ports(reads, writes, width))

    def read_port(self, i: int) -> tuple[Signal, Signal]:
        """Return the signals ``source`` and ``data`` of read port ``i``."""
        return getattr(self, f"source_{i}"), getattr(self, f"data_{i}")

    def write_port(self, i: int) -> tuple[Signal, Signal, Signal]:
        """Return the signals ``write``, ``d`` and ``value`` of write port ``i``."""
        return getattr(self, f"write_{i}"), getattr(self, f"d_{i}"), getattr(self, f"value_{i}")

    @staticmethod
    def module(reads: int, writes: int, width: int = 32) -> str:
        """Name of the Verilog module of a register file with these parameters."""
        return f"registers_{reads}r{writes}w" + (f"_{width}b" if width != 32 else "")

    def variant(self, target: Target) -> "BankedRegisterFile | None":
        """Return an equivalent component that suits the synthesis ``target`` better, or None."""
        if target is Target.GENERIC:
            return None
        if target is Target.ECP5 and self.writes == SplitRegisterFile.WRITES:
            return SplitRegisterFile(self.reads, self.width)
        return BankedRegisterFile(self.reads, self.writes, self.width)

    def verilog(self) -> str:
        """Return the behavioural Verilog module; a macro of the target can replace it."""
        top, high = REGISTER_BITS - 1, self.width - 1
        ports = ["input clk", "input rst  /* unused: the words are not reset */"]
        for i in range(self.reads):
            ports += [f"input [{top}:0] source_{i}", f"output [{high}:0] data_{i}"]
        for i in range(self.writes):
            ports += [f"input write_{i}", f"input [{top}:0] d_{i}", f"input [{high}:0] value_{i}"]
        lines = [
            f"module {self.module(self.reads, self.writes, self.width)} (",
            ",\n".join(f"  {port}" for port in ports),
            ");",
            f"  reg [{high}:0] words [0:{VECTOR_REGISTERS - 1}];",
            "  integer i;",
            f"  initial for (i = 0; i < {VECTOR_REGISTERS}; i = i + 1) "
            f"words[i] = {self.width}'d0;",
            *(f"  assign data_{i} = words[source_{i}];" for i in range(self.reads)),
            "  always @(posedge clk) begin",
            *(f"    if (write_{i}) words[d_{i}] <= value_{i};" for i in range(self.writes)),
            "  end",
            "endmodule",
            "",
        ]
        return "\n".join(lines)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = Memory(shape=self.width, depth=VECTOR_REGISTERS, init=[])
        for i in range(self.reads):
            read = words.read_port(domain="comb")
            source, data = self.read_port(i)
            m.d.comb += [read.addr.eq(source), data.eq(read.data)]
        for i in range(self.writes):
            write = words.write_port()
            enable, d, value = self.write_port(i)
            m.d.comb += [write.en.eq(enable), write.addr.eq(d), write.data.eq(value)]
        return m


class BankedRegisterFile(wiring.Component):
    """A `RegisterFile` made of memories with one write port each, such as LUT RAM.

    Each write port has its own bank, which has room for all registers. A table records for each
    register the bank that holds the newest value, and each read port selects that bank. If several
    ports write one register in a cycle, the port with the highest number wins, as in the Verilog of
    `RegisterFile`.

    Parameters and attributes are those of `RegisterFile`.
    """

    def __init__(self, reads: int, writes: int, width: int = 32) -> None:
        self.reads = reads = integer("reads", reads, 1)
        self.writes = writes = integer("writes", writes, 1)
        self.width = width = integer("width", width, 1)
        super().__init__(_ports(reads, writes, width))

    read_port = RegisterFile.read_port
    write_port = RegisterFile.write_port

    def elaborate(self, platform: object) -> Module:
        m = Module()
        newest = Array(Signal(range(self.writes), name=f"newest_{number}", reset_less=True)
                       for number in range(VECTOR_REGISTERS))
        words: list[list[Signal]] = [[] for _ in range(self.reads)]
        for i in range(self.writes):
            write, d, _ = self.write_port(i)
            with m.If(write):
                m.d.sync += newest[d].eq(i)
            for r, found in enumerate(self._bank(m, i)):
                words[r] += found
        for r in range(self.reads):
            self._choose(m, platform, r, words[r], newest[self.read_port(r)[0]])
        return m

    def _bank(self, m: Module, i: int) -> list[list[Signal]]:
        """Add the bank of write port ``i``; return the words that each read port reads from it."""
        write, d, value = self.write_port(i)
        return [[word] for word in self._memory(m, f"bank_{i}", VECTOR_REGISTERS, write, d, value)]

    def _memory(self, m: Module, name: str, depth: int, enable: Value, d: Signal,
                value: Signal) -> list[Signal]:
        """Add a memory; return the word that each read port reads from it."""
        m.submodules[name] = memory = Memory(shape=self.width, depth=depth, init=[])
        port = memory.write_port()
        m.d.comb += [port.en.eq(enable), port.addr.eq(d), port.data.eq(value)]
        words = []
        for r in range(self.reads):
            read = memory.read_port(domain="comb")
            m.d.comb += read.addr.eq(self.read_port(r)[0])
            words.append(read.data)
        return words

    def _choose(self, m: Module, platform: object, r: int, words: list[Signal],
                bank: Value) -> None:
        """Drive the data of read port ``r`` with one of ``words``: the one at index ``bank``."""
        m.d.comb += self.read_port(r)[1].eq(Array(words)[bank])


class SplitRegisterFile(BankedRegisterFile):
    """A `BankedRegisterFile` with four write ports, made of memories of half the depth.

    A `WordSelect` for each read port chooses among the eight memories.

    Parameters
    ----------
    reads : int
        Number of read ports, at least 1.
    width : int
        Bits of a register, at least 1.

    Attributes are those of `RegisterFile`.
    """

    WRITES = 4

    def __init__(self, reads: int, width: int = 32) -> None:
        super().__init__(reads, self.WRITES, width)

    def _bank(self, m: Module, i: int) -> list[list[Signal]]:
        write, d, value = self.write_port(i)
        halves = [self._memory(m, f"bank_{i}_{half}", VECTOR_REGISTERS // 2,
                               write & (d[-1] == half), d[:-1], value) for half in range(2)]
        return [list(words) for words in zip(*halves, strict=True)]

    def _choose(self, m: Module, platform: object, r: int, words: list[Signal],
                bank: Value) -> None:
        source, data = self.read_port(r)
        select = instantiate(m, platform, f"select_{r}", WordSelect.module(self.width),
                             lambda: WordSelect(self.width))
        m.d.comb += [select.words.eq(Cat(words)), select.choice.eq(Cat(source[-1], bank)),
                     data.eq(select.word)]


class WordSelect(wiring.Component):
    """Chooses one of eight words; combinational.

    An FPGA may have special cells for it (`tools/fpga/select.v`).

    Parameters
    ----------
    width : int
        Bits of a word.

    Attributes
    ----------
    words : In(8 * width)
        The words, the first in the lowest bits.
    choice : In(3)
        Number of the word to choose.
    word : Out(width)
        This word.
    """

    combinational = True

    def __init__(self, width: int) -> None:
        self._width = width
        super().__init__({"words": In(8 * width), "choice": In(3), "word": Out(width)})

    @staticmethod
    def module(width: int) -> str:
        """Name of the Verilog module for words of ``width`` bits."""
        return f"select_8x{width}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        words = Array(self.words.word_select(i, self._width) for i in range(8))
        m.d.comb += self.word.eq(words[self.choice])
        return m


class MaskFile(wiring.Component):
    """One bit of each mask register. m0 is always one.

    The other masks are initially zero, and are not reset. Ports behave like those of
    `RegisterFile`, for bits instead of words; writes to m0 are ignored.

    Attributes
    ----------
    masks : Out(MASKS)
        The bits of all masks; m0 is the lowest.
    source_{i}, data_{i} : In(MASK_BITS), Out(1)
        Read port i.
    write_{i}, d_{i}, value_{i} : In(1), In(MASK_BITS), In(1)
        Write port i.
    """

    def __init__(self, reads: int, writes: int) -> None:
        reads, writes = integer("reads", reads, 1), integer("writes", writes, 1)
        self.reads = reads
        self.writes = writes
        ports: dict[str, wiring.Member] = {"masks": Out(MASKS)}
        for i in range(reads):
            ports |= {f"source_{i}": In(MASK_BITS), f"data_{i}": Out(1)}
        for i in range(writes):
            ports |= {f"write_{i}": In(1), f"d_{i}": In(MASK_BITS), f"value_{i}": In(1)}
        super().__init__(ports)

    @staticmethod
    def module(reads: int, writes: int) -> str:
        """Name of the Verilog module of a mask file with these numbers of ports."""
        return f"masks_{reads}r{writes}w"

    read_port = RegisterFile.read_port
    write_port = RegisterFile.write_port

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.masks[0].eq(1)
        for number in range(1, MASKS):
            # Separate signals of one bit, which tile kernels compute for many elements at once.
            bit = Signal(name=f"m{number}", reset_less=True)
            for i in range(self.writes):
                write, d, value = self.write_port(i)
                chosen = Signal(name=f"m{number}_write_{i}")
                m.d.comb += chosen.eq(write & (d == number))
                with m.If(chosen):
                    m.d.sync += bit.eq(value)
            m.d.comb += self.masks[number].eq(bit)
        for i in range(self.reads):
            source, data = self.read_port(i)
            with m.Switch(source):
                for number in range(MASKS):
                    with m.Case(number):
                        m.d.comb += data.eq(self.masks[number])
        return m
