"""Grids of tiles: invalid wiring is refused, and each module is written once."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import SimulatorContext

from hdl.tiles import Chain, Each, Link, Shared, TileGrid, VerilogLibrary, instantiate
from verif.hdl.simulation.simulator import fast_simulator


class Adder(wiring.Component):
    """Passes ``x`` east, and the sum of all ``x`` and ``bias`` above south."""

    def __init__(self) -> None:
        super().__init__({
            "x": In(4), "x_east": Out(4), "total": In(8), "total_south": Out(8), "bias": In(8),
            "enable": In(1)})

    def elaborate(self, platform: VerilogLibrary | None) -> Module:
        m = Module()
        with m.If(self.enable):
            m.d.sync += [
                self.x_east.eq(self.x),
                self.total_south.eq(self.total + self.x + self.bias),
            ]
        return m


X = Chain("x_east", "x", "east", first="x", last="x_end")
TOTAL = Chain("total_south", "total", "south", last="sums")
LINKS: tuple[Link, ...] = (X, TOTAL, Each("bias"), Shared("enable"))


def adders(rows: int = 2, cols: int = 3, links: Sequence[Link] = LINKS) -> TileGrid:
    return TileGrid("grid", "adder", Adder, rows, cols, links)


@pytest.mark.parametrize("name", ["rows", "cols"])
@pytest.mark.parametrize(("value", "error", "message"), [
    (0, ValueError, "must be at least 1, not 0"),
    (-2, ValueError, "must be at least 1, not -2"),
    (2.0, TypeError, r"must be an integer, not 2\.0"),
    (True, TypeError, "must be an integer, not True"),
    ("2", TypeError, "must be an integer, not '2'"),
])
def test_size_that_is_no_count_is_refused(name: str, value: float | str, error: type[Exception],
                                          message: str) -> None:
    with pytest.raises(error, match=f"^{name} {message}$"):
        adders(**cast(Any, {name: value}))


def test_clock_without_a_library_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^clock must be None without a VerilogLibrary, not "):
        instantiate(Module(), None, "name", "module", adders, clock=Signal())


@pytest.mark.parametrize("toward", ["north", "East", "", None])
def test_chain_toward_another_side_is_refused(toward: Any) -> None:
    with pytest.raises(ValueError, match=f"^toward must be 'east' or 'south', not {toward!r}$"):
        Chain("x_east", "x", toward)


@pytest.mark.parametrize(("link", "replaced", "widths"), [
    (Chain("x_east", "total", "south"), TOTAL, "4 and 8"),
    (Chain("total_south", "x", "east", first="x"), X, "8 and 4"),
])
def test_chain_between_ports_of_two_widths_is_refused(link: Chain, replaced: Chain,
                                                      widths: str) -> None:
    links = [link if old is replaced else old for old in LINKS]
    with pytest.raises(ValueError, match=f"the same width, not {widths} bits: ") as error:
        adders(links=links)
    assert str(error.value).endswith(repr(link))


@pytest.mark.parametrize("missing", LINKS)
def test_input_that_is_never_linked_is_named(missing: Chain | Each | Shared) -> None:
    name = missing.sink if isinstance(missing, Chain) else missing.port
    with pytest.raises(ValueError, match=f"tile input {name!r} must be linked once, not 0 times"):
        adders(links=[link for link in LINKS if link is not missing])


@pytest.mark.parametrize(("again", "name"), [
    (Chain("x_east", "x", "south"), "x"), (Each("total"), "total"), (Shared("bias"), "bias"),
    (Each("enable"), "enable")])
def test_input_that_is_linked_twice_is_named(again: Chain | Each | Shared, name: str) -> None:
    with pytest.raises(ValueError, match=f"tile input {name!r} must be linked once, not 2 times"):
        adders(links=[*LINKS, again])


@pytest.mark.parametrize("link", [
    Chain("nothing", None, "east", last="end"),
    Chain("x_east", "nothing", "east"),
    Chain("x", None, "east", last="end"),  # an input is no source
    Chain("x_east", None, "south", first="nowhere"),  # and without a sink nothing can be first
    Each("nothing"),
    Shared("nothing"),
    Shared("x_east"),  # no one signal can be what all tiles drive
], ids=repr)
def test_link_of_an_unknown_port_is_named(link: Chain | Each | Shared) -> None:
    with pytest.raises(ValueError, match=r"^link must name ports of the tile, not ") as error:
        adders(links=[*LINKS, link])
    assert str(error.value).endswith(repr(link))


@pytest.mark.parametrize(("rows", "modules"), [
    (1, {"grid": {"adder": 3}, "adder": {}}),
    (2, {"grid": {"grid_row": 2}, "grid_row": {"adder": 3}, "adder": {}})])
def test_verilog_of_a_grid_has_each_module_once(rows: int,
                                                modules: Mapping[str, dict[str, int]]) -> None:
    library = VerilogLibrary()
    sources = library.write("grid", lambda: adders(rows))
    assert {name: library.modules[name].instances for name in sources} == modules
    text = "\n".join(sources.values())
    for name in modules:
        assert text.count(f"module {name}(") == 1
    assert text.count("endmodule") == len(modules)
    assert library.modules["grid"].inputs == {
        "clk": 1, "rst": 1, "x": 4 * rows, "bias": 8 * 3 * rows, "enable": 1}
    assert library.modules["grid"].outputs == {"x_end": 4 * rows, "sums": 8 * 3}


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 3), (2, 3), (3, 1)])
def test_grid_adds_along_its_columns(rows: int, cols: int) -> None:
    grid = adders(rows, cols)
    x = [5 * r + 2 for r in range(rows)]
    bias = [[20 * r + 3 * c + 1 for c in range(cols)] for r in range(rows)]
    sums = [sum(x) + sum(row[c] for row in bias) for c in range(cols)]

    def packed(values: Sequence[int], width: int) -> int:
        return sum(value << width * index for index, value in enumerate(values))

    async def testbench(ctx: SimulatorContext) -> None:
        ctx.set(grid.x, packed(x, 4))
        ctx.set(grid.bias, packed([value for row in bias for value in row], 8))
        ctx.set(grid.enable, 0)
        await ctx.tick().repeat(rows + cols)
        assert ctx.get(grid.x_end) == ctx.get(grid.sums) == 0
        ctx.set(grid.enable, 1)
        await ctx.tick().repeat(rows + cols)
        assert ctx.get(grid.x_end) == packed(x, 4)
        assert ctx.get(grid.sums) == packed(sums, 8)

    simulator = fast_simulator(grid)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
