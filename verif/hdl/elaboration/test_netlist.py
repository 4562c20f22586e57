"""Tests of the faster netlist: what it writes, and the cycles that it finds."""

import gc
import subprocess
import sys
import weakref
from typing import Any

import amaranth
import pytest
from amaranth import Cat, Format, Module, Signal
from amaranth.back import rtlil
from amaranth.hdl import _ir
from amaranth.hdl._nir import CombinationalCycle, Netlist
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.axi.master import BurstCutter
from hdl.config import Config
from hdl.elaboration.netlist import VERSION, speed_up

BOTH = """
import amaranth
from hdl.elaboration.netlist import VERSION, speed_up

def both():
    for version in ("0.0", VERSION):
        amaranth.__version__ = version
        speed_up.cache_clear()
        assert speed_up() == (version == VERSION)
        yield
"""
"""How the programs begin that compare what Amaranth does without `speed_up`, and then with it."""

PROGRAM = """
from hdl import yosys
from hdl.chip.arbiter import VectorPort
from hdl.config import Config
from hdl.mxu.mxu import Mxu
from hdl.tiles import VerilogLibrary

written = []
yosys.write_verilog = lambda modules: written[-1].update(modules) or modules
for _ in both():
    written.append({})
    VerilogLibrary().write("mxu", lambda: Mxu(Config.preset("tiny")))
    VerilogLibrary().write("port", lambda: VectorPort(Config.preset("tiny"), 2))
assert len(written[0]) > 10
assert written[0] == written[1]
"""


def test_modules_are_the_same_as_without_it() -> None:
    subprocess.run([sys.executable, "-c", BOTH + PROGRAM], check=True)


PARTS = """
import enum
from amaranth import Cat, Instance, Module, Signal
from amaranth.back import rtlil
from amaranth.lib import data

class Colour(enum.Enum):
    RED = 0
    BLUE = 1

def design():
    m, inner, least = Module(), Module(), Module()
    a, b, undriven = Signal(4, init=5), Signal(6), Signal(3, init=6)
    colour, pair = Signal(Colour), Signal(data.StructLayout({"first": 2, "second": Colour}))
    m.submodules.inner = inner
    inner.submodules.least = least
    m.submodules.source = Instance("source", o_y=Cat(b[1:3], b[4]), o_z=Signal(0), i_a=a)
    with inner.FSM():
        with inner.State("ONE"):
            inner.d.sync += a.eq(a + 1)
            inner.next = "TWO"
        with inner.State("TWO"):
            inner.next = "ONE"
    least.d.comb += [colour.eq(a == 3), pair.first.eq(undriven), b[0].eq(pair.second)]
    with m.If(colour == 1):
        m.d.sync += pair.second.eq(Colour.BLUE)
    return m, [b, pair.as_value()]

texts = []
for _ in both():
    m, ports = design()
    texts.append(rtlil.convert(m, ports=ports, emit_src=True))
assert texts[0].count("module ") == 3 and "<string>:" in texts[0]
assert texts[0] == texts[1], texts
"""


def test_modules_within_modules_are_the_same_with_the_places_of_their_source() -> None:
    subprocess.run([sys.executable, "-c", BOTH + PARTS], check=True)


def test_the_version_of_amaranth_is_known() -> None:
    assert amaranth.__version__ == VERSION
    assert speed_up()


class Wires(wiring.Component):
    """Three bits, of which each may depend on the one below it, or on the bit that ``to`` gives."""

    def __init__(self, to: int | None, direct: bool) -> None:
        super().__init__({"a": In(1), "y": Out(3)})
        self.to = to
        self.direct = direct

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = Signal(3)
        first = self.a if self.to is None else bits[self.to]
        m.d.comb += self.y.eq(bits)
        if self.direct:
            m.d.comb += bits.eq(Cat(first, bits[:2]))
        else:
            with m.If(self.a):
                m.d.comb += bits[0].eq(first & self.a)
            m.d.comb += [bits[1].eq(~bits[0]), bits[2].eq(bits[1] ^ self.a)]
        return m


@pytest.mark.parametrize("direct", [False, True])
def test_bits_of_a_signal_may_depend_on_lower_bits(direct: bool) -> None:
    speed_up()
    assert "module" in rtlil.convert(Wires(None, direct))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("to", [0, 1, 2])
def test_a_bit_that_depends_on_itself_is_found(to: int, direct: bool) -> None:
    speed_up()
    with pytest.raises(CombinationalCycle, match=rf"^Combinational cycle (.|\n)*bits bit {to}\n"):
        rtlil.convert(Wires(to, direct))


CYCLE = """
from amaranth import Module, Signal
from amaranth.back import rtlil

messages = []
for _ in both():
    m, x, w, z = Module(), Signal(name="x"), Signal(name="w"), Signal(name="z")
    m.d.comb += [x.eq(~z), z.eq(w), w.eq(x)]
    try:
        rtlil.convert(m, ports=[z])
    except amaranth.hdl._nir.CombinationalCycle as error:
        messages.append(str(error))
assert all(f"signal {name} bit 0" in messages[0] for name in "xwz"), messages
assert messages[0] == messages[1], messages
"""


def test_cycles_are_reported_with_all_signals() -> None:
    subprocess.run([sys.executable, "-c", BOTH + CYCLE], check=True)


CONFLICT = """
from amaranth import Cat, Instance, Module, Signal
from amaranth.back import rtlil

messages = []
for _ in both():
    for first, second in ((slice(0, 2), slice(2, 4)), (slice(0, 3), slice(2, 4)), (None, None)):
        m, x = Module(), Signal(4, name="x")
        if first is None:
            m.submodules += Instance("source", o_y=Cat(x[1], x[1]))
        else:
            m.submodules += [Instance("source", o_y=x[first]), Instance("source", o_y=x[second])]
        try:
            messages.append(rtlil.convert(m, ports=[x], emit_src=False))
        except amaranth.hdl.DriverConflict as error:
            messages.append(str(error).split(": ")[0])
assert messages[:3] == messages[3:], messages
assert [message[:5] for message in messages[1:3]] == ["Bit 2", "Bit 1"], messages
"""


def test_a_bit_with_two_drivers_is_named() -> None:
    subprocess.run([sys.executable, "-c", BOTH + CONFLICT], check=True)


@pytest.mark.parametrize("width", [1 << 16, 1 << 17])
def test_ports_that_netlists_cannot_number_are_refused(width: int) -> None:
    speed_up()
    m, wide = Module(), Signal(width)
    total = Signal()
    m.d.comb += total.eq(wide.xor())
    with pytest.raises(AssertionError):
        rtlil.convert(m, ports=[wide, total])


def test_the_netlist_is_freed_when_the_module_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a collection of garbage."""
    speed_up()
    build = _ir.build_netlist
    netlists: list[weakref.ref[Netlist]] = []

    def noted(*args: Any, **options: Any) -> Netlist:
        netlist = build(*args, **options)
        netlists.append(weakref.ref(netlist))
        return netlist

    monkeypatch.setattr(_ir, "build_netlist", noted)
    gc.disable()
    try:
        rtlil.convert(BurstCutter(Config.preset("tiny")))
    finally:
        gc.enable()
    assert [netlist() for netlist in netlists] == [None]


def test_only_a_format_that_shows_a_value_alone_is_not_parsed() -> None:
    speed_up()
    bits = Signal(4)
    for text, spec in (("{}", ""), ("{:x}", "x")):
        [(value, found)] = Format(text, bits)._chunks
        assert (value is bits, found) == (True, spec)
    assert Format("{}", "text")._chunks == ("text",)
    with pytest.raises(ValueError, match="positional argument 1 was not used"):
        Format("{}", bits, bits)
    with pytest.raises(ValueError, match="keyword argument 'more' was not used"):
        Format("{}", bits, more=bits)
