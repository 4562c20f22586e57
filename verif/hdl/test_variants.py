"""Proofs that variants of components for FPGAs equal the generic ones; wrong variants fail."""

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.core.decode import BundleDecoder
from hdl.core.interface import SEMAPHORE_BITS
from hdl.core.scalar import SCALAR_WRITERS, WRITE_TURNS
from hdl.core.semaphores import BankedSemaphores, Semaphores
from hdl.target import Target
from hdl.vpu.registers import RegisterFile
from hdl.vpu.simple import Shift
from hdl.vpu.transcendental import EXPONENT_BITS, FIXED_BITS, EarlyBias, Transcendental
from verif.hdl.equivalence import prove, verilog_of


def variants(component: wiring.Component, *arguments: object, target: Target = Target.ECP5,
             change: tuple[str, str] | None = None) -> tuple[str, str]:
    """Verilog of a component, and of its variant for ``target``; ``change`` edits the latter."""
    component._MustUse__used = True  # it only serves for its ports
    wanted = verilog_of(type(component), *arguments)
    found = verilog_of(type(component), *arguments, target=target)
    assert found != wanted
    if change is not None:
        assert change[0] in found
        found = found.replace(*change, 1)
    return wanted, found


def prove_registers(reads: int, writes: int, change: tuple[str, str] | None = None,
                    target: Target = Target.ECP5) -> None:
    """Proves register files equal; registers of one bit suffice, as all bits move alike."""
    component = RegisterFile(reads, writes, 1)
    prove(component, *variants(component, reads, writes, 1, target=target, change=change),
          held=[f"source_{i}" for i in range(reads)])


@pytest.mark.parametrize(("reads", "writes", "target"), [
    (3, 2, Target.ECP5), (7, len(WRITE_TURNS), Target.ECP5), (2, len(SCALAR_WRITERS), Target.ECP5),
    (2, len(SCALAR_WRITERS), Target.XILINX)], ids=["vector", "scalar", "four-ecp5", "four-xilinx"])
def test_banks_equal_the_behavioural_registers(reads: int, writes: int, target: Target) -> None:
    prove_registers(reads, writes, target=target)


@pytest.mark.parametrize(("writes", "target", "change"), [
    (2, Target.ECP5, ("bank_1[d_1] <= value_1", "bank_1[d_1] <= value_0")),
    (4, Target.ECP5, ("bank_3_1[d_3[3:0]] <= value_3", "bank_3_1[d_3[3:0]] <= value_2")),
    (4, Target.XILINX, ("bank_3[d_3] <= value_3", "bank_3[d_3] <= value_2"))])
def test_a_wrong_bank_of_registers_is_found(writes: int, target: Target, change: tuple[str, str]
                                            ) -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_registers(1, writes, change, target)


def test_a_registered_read_address_is_refused() -> None:
    """Held read addresses never change, so that the proof alone would not notice the delay."""
    with pytest.raises(RuntimeError, match="selection is not empty"):
        prove_registers(1, 2, (
            "assign read__data = bank_0[source_0];",
            "reg [4:0] late = 0; always @(posedge clk) late <= source_0;\n"
            "  assign read__data = bank_0[late];"))


def prove_decoder(change: tuple[str, str] | None = None) -> None:
    component = BundleDecoder()
    prove(component, *variants(component, change=change))


@pytest.mark.parametrize(("component", "arguments"), [
    (BundleDecoder, ()), (Semaphores, ()), (Shift, ()), (Transcendental, ()),
    (RegisterFile, (7, len(WRITE_TURNS)))])
def test_variants_for_other_fpgas_are_the_same(component: type[wiring.Component],
                                               arguments: tuple[object, ...]) -> None:
    original = component(*arguments)
    ecp5, xilinx = (original.variant(target) for target in (Target.ECP5, Target.XILINX))
    assert type(ecp5) is type(xilinx) is not type(None)
    assert original.variant(Target.GENERIC) is None


def test_compared_numbers_equal_united_sets() -> None:
    prove_decoder()


def test_a_wrong_comparison_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_decoder(("assign push_overwritten = | ", "assign push_overwritten = & "))


class Storage(wiring.Component):
    """Only the storage of semaphores, with one read port: variants differ in nothing else."""

    def __init__(self, kind: type[Semaphores]) -> None:
        self._kind = kind
        super().__init__({"read": In(SEMAPHORE_BITS), "semaphore": Out(32), **{
            f"{name}_{port}": In(width) for port in range(2)
            for name, width in (("write", 1), ("index", SEMAPHORE_BITS), ("value", 32))}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        read, write = self._kind.storage(m)
        m.d.comb += self.semaphore.eq(read(self.read))
        for port in range(2):
            write(port, *(getattr(self, f"{name}_{port}") for name in ("write", "index", "value")))
        return m


def prove_semaphores(change: tuple[str, str] = ("", "")) -> None:
    component = Storage(Semaphores)
    component._MustUse__used = True  # it only serves for its ports
    found = verilog_of(Storage, BankedSemaphores)
    assert change[0] in found
    prove(component, verilog_of(Storage, Semaphores), found.replace(*change, 1), held=["read"])


def test_banks_equal_the_behavioural_semaphores() -> None:
    prove_semaphores()


def test_a_wrong_bank_of_semaphores_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_semaphores(("bank_0[index_0] <= value_0", "bank_0[index_1] <= value_0"))


class Power(wiring.Component):
    """Only the exponent of 2**x in the transcendental unit: variants differ in nothing else."""

    combinational = True

    def __init__(self, kind: type[Transcendental]) -> None:
        self._kind = kind
        super().__init__({"negate": In(1), "whole": In(8), "fixed": In(FIXED_BITS),
                          "power": Out(EXPONENT_BITS)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.power.eq(self._kind.power(m, self.negate, self.whole, self.fixed))
        return m


def prove_power(change: tuple[str, str] = ("", "")) -> None:
    component = Power(Transcendental)
    component._MustUse__used = True  # it only serves for its ports
    found = verilog_of(Power, EarlyBias)
    assert change[0] in found
    prove(component, verilog_of(Power, Transcendental), found.replace(*change, 1))


def test_an_early_bias_gives_the_same_exponent() -> None:
    prove_power()


def test_a_wrong_early_bias_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_power(("9'h080", "9'h081"))


def prove_shifter(change: tuple[str, str] | None = None) -> None:
    component = Shift()
    prove(component, *variants(component, change=change))


def test_one_shifter_equals_two() -> None:
    prove_shifter()


def test_a_shifter_without_a_reversal_is_found() -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_shifter(("left ?", "1'b0 ?"))
