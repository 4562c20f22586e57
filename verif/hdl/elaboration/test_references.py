"""Designs are freed without the garbage collector, and formats and warnings are as before."""

import enum
import gc
import weakref
from collections.abc import Iterator

import pytest
from amaranth import Format, Module, Signal, UnusedElaboratable
from amaranth.back import rtlil
from amaranth.sim import SimulatorContext

from hdl.axi.master import BurstCutter
from hdl.config import Config
from hdl.elaboration.netlist import speed_up
from verif.hdl.simulation.simulator import simulate


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    speed_up()
    gc.disable()
    yield
    gc.enable()


def test_a_module_is_freed_with_what_it_contains() -> None:
    m, inner = Module(), Module()
    a, b = Signal(4), Signal(4)
    m.submodules.inner = inner
    with m.If(a == 3):
        m.d.comb += b.eq(a)
    inner.d.sync += a.eq(a + 1)
    assert "module" in rtlil.convert(m, ports=[b])
    objects = [weakref.ref(part) for part in (m, inner, a, b)]
    del m, inner, a, b
    assert [found() for found in objects] == [None] * 4


def test_a_component_is_freed_when_it_has_been_written_or_simulated() -> None:
    async def process(ctx: SimulatorContext) -> None:
        await ctx.tick()

    components = [BurstCutter(Config.preset("tiny")) for _ in range(2)]
    assert "module" in rtlil.convert(components[0])
    simulate(components[1], process)
    found = [weakref.ref(component) for component in components]
    components.clear()
    assert [component() for component in found] == [None, None]


class Colour(enum.Enum):
    RED = 0
    BLUE = 1


def test_a_signal_has_the_format_of_its_type() -> None:
    number, colour = Signal(4), Signal(Colour)
    [(value, spec)] = number._format._chunks
    assert value is number
    assert spec == ""
    assert isinstance(colour._format, Format.Enum)
    assert colour._format is colour._format
    assert hasattr(Signal, "_format")
    decoded = Signal(1, decoder=Colour)
    assert isinstance(decoded._format, Format.Enum)


def test_a_design_that_nothing_uses_is_reported_where_it_was_created() -> None:
    # Amaranth warns only in a process that has elaborated something.
    assert "module" in rtlil.convert(BurstCutter(Config.preset("tiny")))
    with pytest.warns(UnusedElaboratable, match="BurstCutter.* created but never used") as caught:
        BurstCutter(Config.preset("tiny"))
    assert caught[0].filename.endswith("test_references.py")
