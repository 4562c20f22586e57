import os
import pathlib
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sim.verilated.build import build_model
from sim.verilated.objects import model_headers, runtime_objects, shared_objects
from sim.verilated.toolchain import Toolchain
from verif.sim.verilated.caches import OTHER_MACHINE, link_runtime

FILES = {
    "twice.cpp": '#include "twice.hpp"\n#include <cstdint>\nint twice(int x) { return TWO * x; }\n',
    "twice.hpp": '  #  include "number.hpp"\n',
    "number.hpp": "#define TWO 2\n",
    "other.hpp": "",
}


@pytest.fixture
def objects(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    return tmp_path / "build" / "objects"


def compile_shared(tmp_path: pathlib.Path, **changes: str) -> dict[str, pathlib.Path]:
    files = FILES | {name.replace("_", "."): text for name, text in changes.items()}
    units = [name for name in files if name.endswith(".cpp")]
    return shared_objects(units, files, Toolchain.find(), tmp_path / "log")


def compilations(tmp_path: pathlib.Path) -> int:
    return (tmp_path / "log").read_text().count("$ ")


def test_unit_is_compiled_once(objects: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = compile_shared(tmp_path)
    assert list(first) == ["twice.cpp"]
    assert compile_shared(tmp_path, other_hpp="#define OTHER\n") == first
    assert compilations(tmp_path) == 1
    assert {path.suffix for path in objects.iterdir()} == {".o", ".lock"}
    symbols = subprocess.run(["nm", "-C", first["twice.cpp"]], capture_output=True, text=True,
                             check=True).stdout
    assert "T twice(int)" in symbols


def test_kernels_share_precompiled_headers(objects: pathlib.Path, tmp_path: pathlib.Path) -> None:
    slow = FILES["twice.hpp"] + "#include <immintrin.h>\n"
    for unit in (FILES["twice.cpp"], FILES["twice.cpp"] + "int more;\n"):
        compile_shared(tmp_path, twice_cpp=unit, twice_hpp=slow)
    log = (tmp_path / "log").read_text()
    assert (log.count(" -x c++-header "), log.count(" -c twice.cpp ")) == (1, 2)
    assert log.count(" -include ") == 2


def test_changed_text_header_or_machine_compiles_anew(objects: pathlib.Path, tmp_path: pathlib.Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [compile_shared(tmp_path)["twice.cpp"],
             compile_shared(tmp_path, twice_cpp=FILES["twice.cpp"] + "int more;\n")["twice.cpp"],
             compile_shared(tmp_path, number_hpp="#define TWO 3\n")["twice.cpp"]]
    monkeypatch.setenv("SYSTOLITH_MARCH", "x86-64")
    paths.append(compile_shared(tmp_path)["twice.cpp"])
    assert len(set(paths)) == len(paths) == compilations(tmp_path)


@pytest.mark.parametrize("text", [
    '#include "Vmodel.h"\n',
    "#include <verilated.h>\n",
    "#include <Vmodel__Dpi.h>\n",
    "#include <svdpi.h>\n",
    '#define HEADER "number.hpp"\n#include HEADER\n',
])
def test_unit_that_may_depend_on_a_model_is_left_out(objects: pathlib.Path, tmp_path: pathlib.Path,
                                                     text: str) -> None:
    assert compile_shared(tmp_path, twice_hpp=text) == {}
    assert not objects.exists()


def test_broken_unit_raises_and_leaves_no_object(objects: pathlib.Path,
                                                 tmp_path: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"twice.hpp:1:.*error: .*missing_type"):
        compile_shared(tmp_path, twice_hpp="missing_type x;\n")
    assert {path.suffix for path in objects.iterdir()} == {".lock"}


SCRIPT = f"""\
import pathlib, sys
from sim.verilated.objects import shared_objects
from sim.verilated.toolchain import Toolchain
log = pathlib.Path(sys.argv[1])
shared_objects(["twice.cpp"], {FILES!r}, Toolchain.find(), log)
"""


def start(tmp_path: pathlib.Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "log")],
                            start_new_session=True)


def test_concurrent_callers_compile_once(objects: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with start(tmp_path) as process, ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: compile_shared(tmp_path), range(3)))
    assert process.returncode == 0
    assert all(result == results[0] for result in results)
    assert compilations(tmp_path) == 1


def test_killed_compilation_leaves_nothing_that_looks_finished(
        objects: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    begun, never = tmp_path / "begun", tmp_path / "never"
    os.mkfifo(begun)
    os.mkfifo(never)
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo > {begun}; cat {never};; esac\n'
                        'exec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("SYSTOLITH_CXX", str(compiler))
    with start(tmp_path) as process:
        assert begun.read_text()
        assert list(objects.glob("*.partial-*/twice.cpp"))
        os.killpg(process.pid, signal.SIGKILL)
    assert not list(objects.glob("*.o"))
    compiler.write_text('#!/bin/sh\nexec g++ "$@"\n')
    path = compile_shared(tmp_path)["twice.cpp"]
    assert list(objects.glob("*.o")) == [path]
    assert not list(objects.glob("*.partial-*"))


def test_headers_are_read_once(objects: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tools = Toolchain.find()
    flags = [*tools.flags, *tools.optimisation(None), "-DVM_TRACE=0"]
    found = [model_headers(flags, tools, tmp_path / "log") for _ in range(2)]
    assert found[0] == found[1]
    assert compilations(tmp_path) == 1
    unit = tmp_path / "unit.cpp"
    unit.write_text('#include "verilated.h"\nstd::string name = Verilated::productName();\n')
    done = subprocess.run(
        [*tools.cxx, *flags, *found[0], *tools.include_flags, "-H", "-Winvalid-pch", "-Werror",
         "-c", unit, "-o", tmp_path / "unit.o"], capture_output=True, text=True, check=True)
    # The compiler marks a precompiled header with "!"; others are marked with dots.
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()
            if "/headers.h.gch" in line or "/verilated.h" in line] == ["!", "."]


def test_machines_share_the_run_time_library(objects: pathlib.Path, tmp_path: pathlib.Path) -> None:
    tools = Toolchain.find()
    found = [runtime_objects(["verilated_dpi.cpp"], [*tools.flags, "-O0", "-DVM_TRACE=0"],
                             replace(tools, march=machine), tmp_path / "log")
             for machine in ("native", OTHER_MACHINE)]
    assert found[0] == found[1]
    assert compilations(tmp_path) == 1
    assert "-march" not in (tmp_path / "log").read_text()


def test_clang_gets_no_precompiled_headers_and_no_arguments_of_gcc(
        objects: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nexec g++ -D__clang__=1 "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("SYSTOLITH_CXX", str(compiler))
    tools = Toolchain.find()
    assert model_headers([*tools.flags, "-DVM_TRACE=0"], tools, tmp_path / "log") == ()
    for optimise in (True, False, None):
        assert tools.class_optimisation(optimise) == tools.optimisation(optimise)
    assert not objects.exists()


def test_models_share_the_object_of_a_unit(tmp_path: pathlib.Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    link_runtime(tmp_path / "build")
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    source = """\
module {name}(input clk, input [31:0] x, output reg [31:0] y);
  import "DPI-C" function int twice(input int x);
  always @(posedge clk) y <= twice(x);
endmodule
"""
    files = FILES | {"twice.cpp": FILES["twice.cpp"].replace("int twice", 'extern "C" int twice')}
    logs = [(build_model(name, {name: source.format(name=name)}, cpp=files,
                         optimise=None).parent / "build.log").read_text()
            for name in ("one", "two")]
    assert [" -c twice.cpp" in log for log in logs] == [True, False]
