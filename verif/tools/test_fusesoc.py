"""The core file for FuseSoC, with FuseSoC itself."""

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from hdl.config import Config
from hdl.verilog import TOP, export
from sim.verilated.toolchain import Toolchain
from tools.fusesoc_generator import generate

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_fusesoc_generates_the_chip_and_verilator_accepts_it(tmp_path: pathlib.Path) -> None:
    tools = Toolchain.find()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in (("verilator", tools.verilator), ("python3", (sys.executable,))):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**tools.environment(), "XDG_CONFIG_HOME": str(tmp_path),
                   "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "fusesoc.main", "--cores-root", str(ROOT), "run", "--target",
         "lint", "systolith"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = tmp_path.glob("build/*/lint")
    [arguments] = folder.glob("*.vc")
    listed = arguments.read_text().split()
    assert listed[listed.index("--top-module") + 1] == TOP
    modules = export(Config.preset("fpga")).sources
    assert {pathlib.Path(path).stem for path in listed if path.endswith(".v")} == set(modules)
    for path in (pathlib.Path(folder, path) for path in listed if path.endswith(".v")):
        assert path.read_text() == modules[path.stem]


@pytest.mark.parametrize(("parameters", "message"), [
    ({}, "parameters must be preset, target, not none"),
    ({"preset": "fpga", "target": "ecp5", "cores": "2"}, "not preset, target, cores"),
    ({"preset": "huge", "target": "ecp5"}, "preset must be one of .*, not 'huge'"),
    ({"preset": "fpga", "target": "vacuum"},
     "target must be one of generic, ecp5, xilinx, not 'vacuum'")])
def test_wrong_parameters_are_refused(parameters: dict[str, str], message: str,
                                      tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=message):
        generate("::systolith-test:0", parameters, tmp_path)
    assert not list(tmp_path.iterdir())
