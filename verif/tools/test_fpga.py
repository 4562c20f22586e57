"""``make fpga``: pins, area by module, and the report."""

import json
import pathlib
import re
import sys
from collections import Counter
from typing import Any

import pytest

from hdl import yosys
from hdl.tiles import ModuleInterface, VerilogLibrary
from hdl.vpu.registers import WordSelect
from tools.bench.fpga import placed_figures
from tools.fpga import __main__ as command
from tools.fpga.area import areas, owners
from tools.fpga.picture import draw, parts, tiles
from tools.fpga.report import figures, steps, write_report
from tools.fpga.synthesis import CARRY, SELECT, SHIFT, comb, passes

_CHILD = """\
module child(input clk, input [7:0] a, input [7:0] b, output reg [7:0] sum);
  always @(posedge clk) sum <= a + b;
endmodule
"""
_PARENT = """\
module parent(input clk, input [7:0] a, output [7:0] out);
  wire [7:0] sum;
  reg [7:0] last;
  child adder(.clk(clk), .a(a), .b(last), .sum(sum));
  always @(posedge clk) last <= sum ^ {a[0], a[7:1]} ^ {sum[0], sum[7:1]};
  assign out = last;
endmodule
"""
_MODULES = {
    "child": ModuleInterface({"clk": 1, "a": 8, "b": 8}, {"sum": 8}, {}),
    "parent": ModuleInterface({"clk": 1, "a": 8}, {"out": 8}, {"child": 1})}


@pytest.mark.slow
def test_cells_belong_to_the_module_that_drives_them(tmp_path: pathlib.Path) -> None:
    (tmp_path / "child.v").write_text(_CHILD)
    (tmp_path / "parent.v").write_text(_PARENT)
    yosys.run(f"read_verilog child.v parent.v\n{passes('parent')}\nwrite_json parent.json\n",
              cwd=tmp_path)
    netlist = json.loads((tmp_path / "parent.json").read_text())["modules"]["parent"]
    found = areas(netlist, owners(netlist, "parent", _MODULES))
    assert set(found) == {"", "adder"}
    assert (found[""]["TRELLIS_FF"], found["adder"]["TRELLIS_FF"]) == (16, 8)
    # The carry chain and the sum of its bit 0 are the child's, the exclusive or the parent's.
    assert found["adder"]["CCU2C"] == found[""]["CCU2C"] > 0
    assert (found[""]["LUT4"], found["adder"]["LUT4"]) == (9, 1)
    assert found[""]["COMB"] == comb(found[""]) > found["adder"]["COMB"]


def test_only_ends_of_carry_chains_without_effect_are_opened() -> None:
    from tools.fpga.flow import open_carries

    def carry(carry_in: int | str, carry_out: int, init: str = "1001", pin: str = "1",
              total: int = 8) -> dict:
        return {"type": "CCU2C", "parameters": {"INIT0": f"{init}000000001000"},
                "port_directions": {"C0": "input", "D0": "input", "CIN": "input",
                                    "S0": "output", "COUT": "output"},
                "connections": {"C0": [pin], "D0": ["1"], "S0": [total], "CIN": [carry_in],
                                "COUT": [carry_out]}}

    netlist = {"ports": {"out": {"bits": [9]}}, "cells": {
        "first": carry("0", 2), "last": carry(2, 3), "pin": carry("1", 9), "logic": carry(3, 4),
        "lut": {"type": "LUT4", "port_directions": {"A": "input", "Z": "output"},
                "connections": {"A": [4], "Z": [5]}},
        "other": carry("x", 6), "again": carry("x", 7),
        "ignored": carry("0", 4, "0000"), "unused": carry("1", 10, "0000"),
        "takes": carry("0", 4, "0000", pin="0"), "driven": carry(2, 4, "0000"),
        "sum": carry("0", 4, "0000", total=9)}}
    assert open_carries(netlist) == 5
    left = [(cell["connections"]["CIN"][0], cell["connections"]["COUT"][0])
            for cell in netlist["cells"].values() if cell["type"] == "CCU2C"]
    assert left == [("0", 2), (2, 3), ("1", 9), (3, 4), ("x", "x"), ("x", "x"), ("x", 4),
                    ("x", "x"), ("0", 4), (2, 4), ("0", 4)]


def prove_carries(tmp_path: pathlib.Path, width: int, change: tuple[str, str] = ("", "")) -> None:
    """Compare adders and subtracters of ``carry.v`` with those of Yosys, for all inputs."""
    kinds = [(carry_in, invert) for carry_in in (0, 1) for invert in (0, 1)]
    ports = [f"output [{width - 1}:0] X{kind}, Y{kind}, CO{kind}" for kind in range(len(kinds))]
    adders = [f"\\$alu #(.A_SIGNED(1), .B_SIGNED(1), .A_WIDTH({width}), .B_WIDTH({width - 1}), "
              f".Y_WIDTH({width})) alu{kind} (.A(A), .B(B), .CI(1'b{carry_in}), .BI(1'b{invert}), "
              f".X(X{kind}), .Y(Y{kind}), .CO(CO{kind}));"
              for kind, (carry_in, invert) in enumerate(kinds)]
    (tmp_path / "subject.v").write_text("\n".join([
        f"module subject(input [{width - 1}:0] A, input [{width - 2}:0] B,", ",\n".join(ports),
        ");", *adders, "endmodule\n"]))
    text = CARRY.read_text()
    assert text.count("1'bx") == 1
    assert change[0] in text
    script = ["read_verilog -icells subject.v", "techmap", "rename subject wanted",
              "design -stash wanted"]
    for open_carry in (0, 1):
        (tmp_path / f"carry_{open_carry}.v").write_text(
            text.replace("1'bx", f"1'b{open_carry}").replace(*change, 1))
        script += [
            "design -reset", "read_verilog -icells subject.v", f"techmap -map carry_{open_carry}.v",
            f"select -assert-count {4 * ((width + 1) // 2)} t:CCU2C", "techmap",
            "read_verilog -D NO_INCLUDES +/ecp5/cells_sim.v",
            "hierarchy -top subject", "proc", "flatten", "rename subject found",
            "design -copy-from wanted wanted", "miter -equiv -flatten wanted found miter",
            "hierarchy -top miter", "opt_clean", "sat -verify -prove trigger 0 miter"]
    yosys.run("\n".join(script), cwd=tmp_path)


@pytest.mark.parametrize("width", [5, 8])
def test_adders_without_a_carry_input_equal_those_of_yosys(
        width: int, tmp_path: pathlib.Path) -> None:
    """They are equal for any value of the open carry input."""
    prove_carries(tmp_path, width)


@pytest.mark.parametrize("change", [
    ("16'hb : 16'h2", "16'hb : 16'h8"), (".C1(BI)", ".C1(1'b0)"), ("X[0] ^ CI", "X[0]"),
    ("sum[Y_WIDTH] ^ BI", "sum[Y_WIDTH]")])
def test_a_wrong_adder_is_found(change: tuple[str, str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_carries(tmp_path, 5, change)


def prove_shifters(tmp_path: pathlib.Path, change: tuple[str, str] = ("", "")) -> None:
    """Compare shifters of ``shift.v`` with those of Yosys, for all inputs."""
    text = SHIFT.read_text()
    assert change[0] in text
    (tmp_path / "shift.v").write_text(text.replace(*change, 1))
    script = []
    for kind, signed, width, out in (("shl", 0, 32, 63), ("shr", 0, 32, 32), ("sshr", 1, 32, 32),
                                     ("shr", 0, 27, 25)):
        name = f"{kind}_{width}"
        (tmp_path / f"{name}.v").write_text(f"""\
module subject(input [{width - 1}:0] A, input [4:0] B, output [{out - 1}:0] Y);
  \\${kind} #(.A_SIGNED({signed}), .B_SIGNED(0), .A_WIDTH({width}), .B_WIDTH(5), .Y_WIDTH({out}))
    shift (.A(A), .B(B), .Y(Y));
endmodule
""")
        script += [
            "design -reset", f"read_verilog -icells {name}.v", "techmap", "rename subject wanted",
            "design -stash wanted", f"read_verilog -icells {name}.v",
            "techmap -max_iter 1 -map shift.v", "select -assert-count 2 t:$mul", "techmap",
            "rename subject found", "design -copy-from wanted wanted",
            "miter -equiv -flatten wanted found miter", "hierarchy -top miter", "opt_clean",
            "sat -verify -prove trigger 0 miter"]
    yosys.run("\n".join(script), cwd=tmp_path)


def test_shifters_of_multipliers_equal_those_of_yosys(tmp_path: pathlib.Path) -> None:
    prove_shifters(tmp_path)


@pytest.mark.parametrize("change", [("B[4] ?", "B[3] ?"), ("far[31-i] ^ flip", "far[31-i]")])
def test_a_wrong_shifter_is_found(change: tuple[str, str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_shifters(tmp_path, change)


def prove_select(tmp_path: pathlib.Path, change: tuple[str, str] = ("", "")) -> None:
    """Compare the cells of ``select.v`` with the `WordSelect` that they replace."""
    name = WordSelect.module(32)
    (wanted,) = VerilogLibrary().write(name, lambda: WordSelect(32)).values()
    text = SELECT.read_text()
    assert change[0] in text
    (tmp_path / "wanted.v").write_text(wanted)
    (tmp_path / "found.v").write_text(text.replace(*change, 1))
    yosys.run("\n".join([
        "read_verilog wanted.v", "proc", f"rename {name} wanted", "design -stash wanted",
        "read_verilog found.v", "read_verilog -D NO_INCLUDES +/ecp5/cells_sim.v",
        f"hierarchy -top {name}", "proc", "flatten", f"rename {name} found",
        "design -copy-from wanted wanted", "miter -equiv -flatten wanted found miter",
        "hierarchy -top miter", "opt_clean", "sat -verify -prove trigger 0 miter"]), cwd=tmp_path)


def test_multiplexers_of_slices_equal_the_choice_of_a_word(tmp_path: pathlib.Path) -> None:
    prove_select(tmp_path)


@pytest.mark.parametrize("change", [
    (".ALUT(pair[3]), .BLUT(pair[2])", ".ALUT(pair[2]), .BLUT(pair[3])"),
    (".SD(choice[2])", ".SD(choice[1])")])
def test_a_wrong_choice_is_found(change: tuple[str, str], tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match="proof did fail"):
        prove_select(tmp_path, change)


_ROUTED = {
    "utilization": {"TRELLIS_COMB": {"used": 500, "available": 2000},
                    "DCUA": {"used": 0, "available": 2}},
    "fmax": {"clk": {"achieved": 31.254, "constraint": 25.0}},
    "critical_paths": [
        {"from": "<async>", "to": "posedge clk", "path": [
            {"type": "routing", "delay": 50.0, "from": {"cell": "pin"}, "to": {"cell": "x"}}]},
        {"from": "posedge clk25", "to": "posedge clk25", "path": [
            {"type": "routing", "delay": 9.0, "from": {"cell": "y"}, "to": {"cell": "z"}}]},
        {"from": "posedge clk", "to": "posedge clk", "path": [
            {"type": "clk-to-q", "delay": 0.5, "from": {"cell": "a"}, "to": {"cell": "a"}},
            {"type": "routing", "delay": 1.25, "from": {"cell": "a"}, "to": {"cell": "b"},
             "net": "system.chip.node_0.done"}]}]}
_HOPS = [{"kind": kind, "delay_ns": delay, "to": name} for kind, delay, name in (
    ("clk-to-q", 0.5, "core.alu.a_TRELLIS_FF_Q_10"),
    ("routing", 2.25, "core.alu.a"),
    ("logic", 0.25, "core.alu.word_LUT4_Z_D_CCU2C_S1_COUT$CCU2_COMB0"),
    ("routing", 1.5, "core.alu.word_TRELLIS_FF_Q_14_DI_LUT4_Z[3]"),
    ("logic", 3.0, "core.alu.word_MULT18X18D_P15"),
    ("setup", 0.0, "core.alu.a_FF_LUT4_Z[0]"))]
_AREA = {"": Counter({"COMB": 1000, "TRELLIS_FF": 7}), "system": Counter({"COMB": 990}),
         "system.tiny": Counter({"COMB": 4})}


def test_report_has_clock_path_cells_and_area(tmp_path: pathlib.Path) -> None:
    found = figures(_ROUTED, 25_000_000, 7, {"pyosys": "0.70", "other": "1"})
    assert (found["clock_mhz"], found["achieved_mhz"]) == (25.0, 31.25)
    assert found["utilisation"] == {
        "TRELLIS_COMB": {"used": 500, "available": 2000, "percent": 25.0}}
    assert placed_figures(found) == {
        "fpga_comb": 500, "fpga_ff": 0, "fpga_ebr": 0, "fpga_dsp": 0, "fpga_comb_percent": 25.0,
        "fpga_fmax_mhz": 31.25}
    path = found["critical_path"]
    assert path["delay_ns"] == 1.75
    assert [hop["to"] for hop in path["hops"]] == ["a", "system.chip.node_0.done"]
    assert steps(_HOPS) == [
        {"signal": "core.alu.a", "cells": 1, "logic_ns": 0.5, "routing_ns": 2.25},
        {"signal": "core.alu.word", "cells": 2, "logic_ns": 3.25, "routing_ns": 1.5},
        {"signal": "core.alu.a_FF", "cells": 1, "logic_ns": 0.0, "routing_ns": 0.0}]
    text = write_report(tmp_path, found, _AREA).read_text()
    assert "| `a` | 1 | 0.50 | 0.00 |\n| `system.chip.node_0.done` | 0 | 0.00 | 1.25 |\n" in text
    assert "\n\nMade with seed 7, by pyosys 0.70, other 1.\n\n" in text
    assert "the slowest path allows 31.25 MHz.\n" in text
    assert "| `all` | 1,000 | 100.0 | 7 | 0 | 0 |\n| `system` | 990 | 99.0 | 0 | 0 | 0 |" in text
    assert "tiny" not in text
    assert json.loads((tmp_path / "report.json").read_text())["area"]["system.tiny"]["COMB"] == 4
    slow = figures(_ROUTED, 40_000_000, 7, {})
    assert "TOO SLOW" in write_report(tmp_path, slow, _AREA).read_text()


def _placed(name: str, kind: str, place: str) -> dict[str, dict[str, Any]]:
    return {name: {"type": kind, "attributes": {"NEXTPNR_BEL": place} if place else {}}}


def test_picture_has_the_tiles_of_each_module() -> None:
    placed = {"cells": {
        **_placed("chip.core.sum", "TRELLIS_COMB", "X3/Y4/SLICEA.K0"),
        **_placed("chip.core.add$CCU2_COMB1", "TRELLIS_COMB", "X3/Y4/SLICEA.K1"),
        **_placed("chip.core.ram.0.0$RAMW_SLICE", "TRELLIS_RAMW", "X4/Y4/SLICEC.RAMW"),
        **_placed("chip.dma.row", "TRELLIS_FF", "X3/Y4/SLICEB.FF0"),
        **_placed("chip.dma.last", "TRELLIS_FF", "X5/Y90/SLICEB.FF0"),
        **_placed("$nextpnr_CCU2C_0$CCU2_COMB0", "TRELLIS_COMB", "X126/Y4/SLICEA.K0"),
        **_placed("clk", "TRELLIS_IO", "")}}
    owner = {"chip.core.sum": "chip.core.alu", "chip.core.add": "chip.core",
             "chip.core.ram.0.0": "chip.core.ram", "chip.dma.row": "chip.dma",
             "chip.dma.last": "chip.dma"}
    area = {path: Counter(COMB=share) for path, share in (
        ("", 1000), ("chip", 990), ("chip.core", 249), ("chip.core.alu", 120), ("chip.dma", 20),
        ("chip.port", 19), ("line", 10))}
    assert parts(area) == ["chip.core", "chip.dma"]
    assert parts(area | {"chip.core": Counter(COMB=250)}) == ["chip.core.alu", "chip.dma"]
    assert tiles(placed, owner) == {
        (3, 4): {"chip.core.alu": Counter(TRELLIS_COMB=1), "chip.core": Counter(TRELLIS_COMB=1),
                 "chip.dma": Counter(TRELLIS_FF=1)},
        (4, 4): {"chip.core.ram": Counter(TRELLIS_RAMW=1)},
        (5, 90): {"chip.dma": Counter(TRELLIS_FF=1)}, (126, 4): {"": Counter(TRELLIS_COMB=1)}}
    text = draw(placed, owner, area)
    squares = dict(re.findall(r'<path d="([^"]*)" class="(p[0-9] s[0-9])"', text))
    assert sorted(squares.values()) == ["p0 s1", "p0 s4", "p1 s1", "p2 s1"]
    assert [path.split("h")[0] for path in squares] == ["M41 80", "M48 80", "M55 682", "M902 80"]
    assert re.findall(r">([^<]* [0-9.]+ %)<", text) == [
        "chip.core 24.9 %", "chip.dma 2.0 %", "rest 73.1 %"]


def test_pins_are_those_of_the_board() -> None:
    from tools.fpga.pins import DEVICE, constraints

    assert DEVICE == ("--85k", "--package", "CABGA381", "--speed", "6")
    lines = constraints().splitlines()
    assert 'LOCATE COMP "clk25" SITE "G2";' in lines
    assert 'FREQUENCY PORT "clk25" 25 MHZ;' in lines
    assert 'LOCATE COMP "line_in" SITE "M1";' in lines
    assert 'IOBUF PORT "line_in" IO_TYPE=LVCMOS33 PULLMODE=UP;' in lines
    assert 'LOCATE COMP "line_out" SITE "L4";' in lines
    assert sum(line.startswith("LOCATE") for line in lines) == 6


def test_pins_of_sdram_and_spi_are_those_of_the_board() -> None:
    from tools.fpga.pins import constraints

    lines = constraints(sdram=True, spi=True).splitlines()
    for port, pin in (("sdram_clk", "F19"), ("sdram_clk_en", "F20"), ("sdram_a[12]", "G19"),
                      ("sdram_ba[0]", "P19"), ("sdram_dq[15]", "J17"), ("sdram_dqm[1]", "E20"),
                      ("spi_clock", "B11"), ("spi_select", "A10"), ("line_in", "A9"),
                      ("line_out", "B9")):
        assert f'LOCATE COMP "{port}" SITE "{pin}";' in lines
    assert 'IOBUF PORT "spi_select" IO_TYPE=LVCMOS33 PULLMODE=UP;' in lines
    located = [line.split('"')[1] for line in lines if line.startswith("LOCATE")]
    assert len(located) == len(set(located)) == 8 + 6 + 2 + 13 + 16 + 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["--clock", "50", "--memory", "sdram"], "clock_hz must be at most 40000000 with an SDRAM"),
    (["--clock", "nan"], "argument --clock: must be a finite number, not 'nan'"),
    (["--clock", "inf"], "argument --clock: must be a finite number, not 'inf'"),
    (["--clock", "26"], "clock_hz must be a multiple of 25000000 / n"),
    (["--baud", "9000000"], "baud must be within 2% of 25000000 / n"),
    ([], "not installed: no_such_package; `make fpga` installs them")])
def test_wrong_clocks_and_missing_packages_are_refused(
        arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fpga", *arguments])
    monkeypatch.setattr(command, "_NEEDED", ("json", "no_such_package"))
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err
