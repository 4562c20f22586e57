"""Estimates for larger FPGAs: cells of each unit, resources of cells, and the largest array."""

import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from amaranth import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.target import Target
from hdl.tiles import instantiate
from hdl.vpu.registers import RegisterFile
from tools.fpga import estimate
from tools.fpga.estimate import PARTS, largest, resources, xilinx_passes
from tools.fpga.units import Unit, synthesise_units, total


class Leaf(wiring.Component):
    """An accumulator of eight bits."""

    def __init__(self) -> None:
        super().__init__({"a": In(8), "total": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.total.eq(self.total + self.a)
        return m


class Pair(wiring.Component):
    """A parent with two leaves of each of two kinds, and a register."""

    def __init__(self) -> None:
        super().__init__({"a": In(8), "last": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        mixed: Value = self.a
        for kind in ("leaf", "flat"):
            for i in range(2):
                leaf = instantiate(m, platform, f"{kind}_{i}", kind, Leaf)
                m.d.comb += leaf.a.eq(self.a ^ i)
                mixed = mixed ^ leaf.total
        m.d.sync += self.last.eq(mixed)
        return m


def test_cells_of_a_unit_count_once_for_each_instance() -> None:
    units = dict(synthesise_units("pair", Pair, ("leaf", "absent"), Target.GENERIC,
                                  lambda top: "proc\nflatten\nopt_clean"))
    assert {name: unit.instances for name, unit in units.items()} == {"pair": 1, "leaf": 2}
    # Leaves of the other kind belong to the unit that contains them.
    assert (units["pair"].cells["$add"], units["leaf"].cells["$add"]) == (2, 1)
    assert units["pair"].cells.keys().isdisjoint({"leaf", "flat", "$scopeinfo"})
    assert total(units)["$add"] == 4


@pytest.mark.slow
def test_a_design_maps_to_cells_of_the_fpga() -> None:
    ((name, unit),) = synthesise_units("registers", lambda: RegisterFile(3, 1, 8), (),
                                       Target.XILINX, lambda top: xilinx_passes("xc7", top))
    assert (name, unit.instances, unit.cells["RAM32M"]) == ("registers", 1, 4)
    # A RAM32M has three read ports of two bits.
    assert resources(unit.cells) == {
        "luts": 16, "registers": 0, "block_rams": 0, "multipliers": 0}


def test_resources_of_cells_are_those_of_the_fpga() -> None:
    cells = {"LUT2": 3, "LUT6": 5, "RAM32M": 2, "RAMB18E1": 3, "FDRE": 7, "FDSE": 1, "MUXF7": 9,
             "DSP48E2": 4}
    assert resources(cells) == {
        "luts": 16, "registers": 8, "block_rams": 1.5, "multipliers": 4}
    with pytest.raises(ValueError, match="type of cell must be known, not 'LUT7'"):
        resources({"LUT7": 1})


def test_the_largest_array_that_fits_has_the_most_sublanes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = [], []

    def tiles(part: estimate.Part, config: Config) -> dict[str, Unit]:
        return {"mac_cell": Unit(config.array**2 * config.cores, Counter(LUT6=400)),
                "vpu_element": Unit(config.array * config.sublanes * config.cores,
                                    Counter(LUT6=2000))}

    def units(part: estimate.Part, config: Config) -> Iterator[tuple[str, Unit]]:
        begun.append((config.array, config.sublanes))
        yield "core", Unit(config.cores, Counter(LUT6=20_000))
        yield from tiles(part, config).items()
        ended.append((config.array, config.sublanes))

    monkeypatch.setattr(estimate, "_tiles", tiles)
    monkeypatch.setattr(estimate, "_units", units)
    config, found = largest(PARTS["xc7a200t"], 1)
    # 80 % of the part are 107,680 lookup tables. The tiles of 8 x 4 alone would fit.
    assert (config.array, config.sublanes, config.cores) == (8, 2, 1)
    assert begun == [(8, 4), (8, 2)]
    # The first unit with which a chip is too large is the last one.
    assert ended == [(8, 2)]
    assert resources(total(found))["luts"] == 64 * 400 + 16 * 2000 + 20_000
    assert (config.issue_cycles, config.vmem_vectors) == (3, 1024)
    with pytest.raises(ValueError, match="a chip of 2 cores does not fit"):
        largest(estimate.Part("xc7", {"luts": 10_000}), 2)


def test_an_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["estimate", "xc7a999t"])
    with pytest.raises(SystemExit):
        estimate.main()
    assert "part must be one of xc7a200t, xcvu9p, not 'xc7a999t'" in capsys.readouterr().err
