"""Yosys: its output and its errors; the Verilog of a module depends on that module alone."""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Cat, Elaboratable, Instance, Module, Mux, Signal

from hdl import yosys

COUNTER = """\
module counter(input clk, output reg [3:0] count);
  always @(posedge clk) count <= count + 1;
endmodule
"""


FACTORS = """\
module factors(input [31:0] a, b, output good);
  assign good = a < 2 || b < 2 || {32'd0, a} * {32'd0, b} != 64'd8670687648630721837;
endmodule
"""
"""To prove ``good`` false, a solver would have to factor the product of two primes of 32 bits."""


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def processes_of(group: int) -> bool:
    """Whether a process of a process group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Accumulator(Elaboratable):
    """A design with enables, resets and multiplexers, all of which Yosys names."""

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
    """A design of instances only, with wires between slices of their ports."""

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


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yosys, "_NAME", "pyosys_that_is_missing")
    with pytest.raises(RuntimeError, match=r"not found: pyosys_that_is_missing; install with: .*"
                       r"python\S* -m pip install pyosys_that_is_missing"):
        yosys.run("stat\n")


def test_an_error_is_raised_with_the_log_until_then(tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)^Yosys failed \(1\):.*first.*"
                       r"ERROR: File `missing.v' not found[^\n]*$"):
        yosys.run("log first\nread_verilog missing.v\nlog later\n", cwd=tmp_path)


def test_an_interrupt_ends_yosys_within_a_command(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hard.v").write_text(FACTORS)
    (tmp_path / "hard.ys").write_text("read_verilog hard.v\nproc\nwrite_rtlil started.il\n"
                                      "sat -prove good 1 factors\n")
    program = "from hdl import yosys; yosys._outputs(yosys._RUN_EACH, ['hard.ys'], None, None)"
    root = str(pathlib.Path(yosys.__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, start_new_session=True,
                          env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.PIPE,
                          encoding="utf-8") as process:
        wait_until((tmp_path / "started.il").exists)
        os.killpg(process.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate()[1]
    wait_until(lambda: not processes_of(process.pid))


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


def test_a_run_that_takes_too_long_is_ended(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hard.v").write_text(FACTORS)
    with pytest.raises(RuntimeError, match=r"^Yosys has not ended within 0\.5 s$"):
        yosys.run("read_verilog hard.v\nproc\nsat -prove good 1 factors\n", cwd=tmp_path,
                  seconds=0.5)
