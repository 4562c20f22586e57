"""Proofs that modules behave alike: found for changes without effect, never for others."""

from functools import partial

import pytest
from amaranth import Instance, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hdl.tiles import VerilogLibrary, instantiate
from verif.mutation.proof import _alike, behave_alike

PRIMITIVE = """
module primitive #(parameter SIZE = 1) (input [3:0] a, output [3:0] y);
  assign y = a + SIZE;
endmodule
"""


class Child(wiring.Component):
    """A child that the subject instantiates."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": In(4), "o": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.o.eq(self.a - self.b)
        return m


class Subject(wiring.Component):
    """Clamps, counts, remembers and subtracts, with one ``change``, which is named by a text."""

    def __init__(self, change: str) -> None:
        self._change = change
        super().__init__({"a": In(4), "b": In(4), "least": Out(4), "count": Out(4), "kept": Out(4),
                          "found": Out(4), "seen": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        change = self._change
        less = self.a <= self.b if change == "either of equal numbers" else self.a < self.b
        with m.If(less):
            m.d.comb += self.least.eq(self.a)
        with m.Else():
            m.d.comb += self.least.eq(self.b + (change == "other output"))
        count = Signal(5 if change == "bit that nothing reads" else 4, name="counted",
                       init=3 if change == "initial value" else 2, reset_less=True)
        m.d.sync += count.eq(count + (2 if change == "next value" else 1))
        m.d.comb += self.count.eq(~count)
        m.submodules.memory = memory = Memory(
            shape=4, depth=4, init=[change == "memory's initial value"])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [write.addr.eq(self.a[:2]), write.data.eq(self.b), read.addr.eq(self.b[:2]),
                     write.en.eq(self.a[3] & (1 if change == "write" else self.a[2])),
                     self.kept.eq(read.data)]
        child = instantiate(m, platform, "child", "other" if change == "module" else "child", Child)
        operands = (self.b, self.a) if change == "operands" else (self.a, self.b)
        parameters = {"p_SIZE": 3} if change == "parameter" else {}
        m.submodules.primitive = Instance("primitive", i_a=self.a, o_y=self.seen, **parameters)
        m.d.comb += [child.a.eq(operands[0]), child.b.eq(operands[1]), self.found.eq(child.o)]
        return m


def verilog(change: str = "") -> dict[str, str]:
    library = VerilogLibrary()
    library.write("other", Child)
    return library.write("subject", lambda: Subject(change)) | {"primitive": PRIMITIVE}


@pytest.mark.parametrize("change", ["either of equal numbers", "bit that nothing reads"])
def test_a_change_without_effect_is_proved(change: str) -> None:
    original, changed = verilog(), verilog(change)
    assert original != changed
    assert behave_alike(original, changed)


@pytest.mark.parametrize("change", [
    "other output", "initial value", "next value", "memory's initial value", "write", "module",
    "operands", "parameter"])
def test_a_change_with_an_effect_is_not_proved(change: str) -> None:
    original, changed = verilog(), verilog(change) | {"child": verilog()["child"]}
    assert original.keys() == changed.keys()
    assert original != changed
    # The changed module is proved to be like itself, unless a parameter could be its ports' width.
    assert _alike("subject", changed, changed) == (change != "parameter")
    assert not behave_alike(original, changed)


class Table(wiring.Component):
    """Reads three words, and the last of them at address 3 as well, if ``limits``."""

    def __init__(self, limits: bool) -> None:
        self._limits = limits
        super().__init__({"a": In(2), "b": In(4), "o": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=4, depth=3, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        m.d.comb += [write.addr.eq(self.b[:2]), write.data.eq(self.b), write.en.eq(1),
                     read.addr.eq(Mux(self.a == 3, 2, self.a) if self._limits else self.a),
                     self.o.eq(read.data)]
        return m


def test_a_word_that_does_not_exist_is_not_any_word() -> None:
    limited, unlimited = (VerilogLibrary().write("table", partial(Table, limits))
                          for limits in (True, False))
    assert _alike("table", limited, limited)
    assert _alike("table", unlimited, unlimited)
    assert not behave_alike(limited, unlimited)


@pytest.mark.parametrize("text", [
    "always @(negedge clk) y <= a;", "always @(posedge clk or posedge a) y <= ~a & y;",
    "always @* if (clk) y = a;", "other other (.a(a));"])
def test_logic_that_is_not_understood_is_never_proved(text: str) -> None:
    found = {"top": f"module top (input clk, input a, output reg y); {text} endmodule"}
    assert not _alike("top", found, found)


def test_designs_of_other_modules_are_not_compared() -> None:
    assert not behave_alike(verilog(), verilog() | {"more": ""})
