"""The exported Verilog: complete, reproducible, lint-clean."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import pytest

from hdl.config import Config
from hdl.target import Target
from hdl.tiles import VerilogLibrary
from hdl.verilog import Export, export
from hdl.vpu.registers import RegisterFile
from sim.verilated.toolchain import Toolchain
from tools import verilog


@pytest.fixture(scope="module")
def design() -> Export:
    return export(Config.preset("tiny"))


def test_each_block_is_one_module_and_instantiated_often(design: Export) -> None:
    totals = design.totals()
    assert totals["core"] == 2
    assert totals["mac_cell"] == 2 * 16
    assert totals["mxu_lane"] == 2 * 4
    text = "\n".join(design.sources.values())
    for name in totals:
        assert text.count(f"\nmodule {name}(") + text.count(f"module {name} (") == 1


def test_description_lists_modules_ports_and_parameters(design: Export,
                                                        tmp_path: pathlib.Path) -> None:
    files = verilog.write(design, tmp_path / "tiny")
    described = json.loads((tmp_path / "tiny" / "design.json").read_text())
    assert described["parameters"]["array"] == 4
    assert described["modules"]["mac_cell"]["inputs"]["p"] == 32
    assert {path.name for path in files} == {
        "design.json", "lint.vlt", *(module["file"] for module in described["modules"].values())}


def test_lint_is_clean_and_sees_what_is_not(design: Export,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    assert [text for _, text in verilog.lint(design) if text] == []
    broken = dict(design.sources)
    broken["mac_round"] = broken["mac_round"].replace("input [27:0]", "input [26:0]", 1)
    assert broken != design.sources
    complaints = {name: text for name, text in verilog.lint(replace(design, sources=broken))
                  if text}
    assert "%Error: mac_round.v" in complaints["mac_round"]
    # A module with warnings is linted each time.
    monkeypatch.setattr(Toolchain, "verilator", ("false",))
    assert {name: text for name, text in verilog.lint(replace(design, sources=broken)) if text} == {
        name: f"{name}.v: Verilator failed (1)\n" for name in complaints}


def registers(target: Target) -> Export:
    library = VerilogLibrary(target)
    sources = library.write("registers", lambda: RegisterFile(9, 4))
    return Export(Config.preset("tiny"), sources, library.modules, target)


def test_a_clean_module_is_linted_once(monkeypatch: pytest.MonkeyPatch,
                                       tmp_path: pathlib.Path) -> None:
    design = registers(Target.ECP5)
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path))
    clean = [(name, "") for name in design.sources]
    assert list(verilog.lint(design)) == clean
    monkeypatch.setattr(Toolchain, "verilator", ("false",))
    assert list(verilog.lint(design)) == clean
    # A module is linted again after a change to its text, or to the ports of a module in it.
    name = next(name for name in design.sources if design.modules[name].instances)
    changed = replace(design, sources={name: design.sources[name] + "\n"})
    assert list(verilog.lint(changed)) == [(name, f"{name}.v: Verilator failed (1)\n")]
    child = next(iter(design.modules[name].instances))
    wider = {**design.modules[child].inputs, "more": 1}
    changed = replace(design, modules={
        **design.modules, child: replace(design.modules[child], inputs=wider)})
    assert dict(verilog.lint(changed))[name]
    for attribute, other in (("verilator_version", lambda: "other"), ("LINT_WAIVERS", "// none")):
        with monkeypatch.context() as patch:
            patch.setattr(verilog, attribute, other)
            assert all(text for _, text in verilog.lint(design))


def test_lint_needs_no_writable_cache(monkeypatch: pytest.MonkeyPatch,
                                      tmp_path: pathlib.Path) -> None:
    design = registers(Target.XILINX)
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path))

    def fail(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(verilog, "keep_text", fail)
    assert [text for _, text in verilog.lint(design) if text] == []


@pytest.mark.slow
def test_lint_for_an_fpga_is_clean() -> None:
    design = export(Config.preset("fpga"), Target.ECP5)
    assert "newest" in design.sources["registers_3r2w"]
    assert "bank_1" in design.sources["semaphores"]
    assert json.loads(design.description())["target"] == "ecp5"
    assert [text for _, text in verilog.lint(design) if text] == []


def test_lint_of_register_files_for_fpgas_is_clean() -> None:
    for target in (Target.ECP5, Target.XILINX):
        assert [text for _, text in verilog.lint(registers(target)) if text] == []


def test_export_is_byte_identical_in_another_process(design: Export) -> None:
    script = ("import hashlib\nfrom hdl.config import Config\nfrom hdl.verilog import export\n"
              "design = export(Config.preset('tiny'))\n"
              "text = ''.join(design.sources.values()) + design.description()\n"
              "print(hashlib.sha256(text.encode()).hexdigest())\n")
    text = "".join(design.sources.values()) + design.description()
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # not this process's
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                           check=True, env=os.environ | {"PYTHONHASHSEED": seed}).stdout
    assert other.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_command_line_refuses_an_unknown_preset(monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["verilog", "v9"])
    with pytest.raises(SystemExit):
        verilog.main()
    assert "v9" in capsys.readouterr().err
