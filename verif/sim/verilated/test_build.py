import ctypes
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hdl.store import cache_folder
from sim.verilated.build import build_model
from sim.verilated.model import Model
from sim.verilated.toolchain import Toolchain, build_folder, compile_for
from verif.sim.verilated.caches import COUNTER, OTHER_MACHINE, link_runtime

PAIR = """\
module pair(input clk, input rst, input [7:0] step, output [7:0] first, output [7:0] second);
  wire [7:0] twice = step << 1;
  counter one(.clk(clk), .rst(rst), .step(step), .count(first));
  counter two(.clk(clk), .rst(rst), .step(twice + first), .count(second));
endmodule
"""

BOTH = """\
module both(input clk, input rst, input [7:0] step, output [7:0] first, output [7:0] second);
  wire [7:0] between, spare;
  pair one(.clk(clk), .rst(rst), .step(step), .first(first), .second(between));
  other two(.clk(clk), .rst(rst), .step(between), .first(spare), .second(second));
  wire unused = |spare;
endmodule
"""


@pytest.fixture
def own_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A cache that contains only Verilator's run-time objects, which take long to build."""
    link_runtime(tmp_path / "build")
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    return tmp_path / "build" / "models"


def snapshot(folder: pathlib.Path) -> dict[pathlib.Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def finished(models: pathlib.Path) -> list[str]:
    return sorted(path.parent.name for path in models.glob("*/model.so"))


def test_second_build_does_nothing(own_folder: pathlib.Path) -> None:
    path = build_model("counter", {"counter": COUNTER}, optimise=None)
    before = snapshot(own_folder)
    assert path in before
    assert build_model("counter", {"counter.v": COUNTER}, optimise=None) == path
    assert snapshot(own_folder) == before


def test_changed_source_builds_anew(own_folder: pathlib.Path) -> None:
    paths = [build_model("counter", {"counter": text}, optimise=None)
             for text in (COUNTER, COUNTER.replace("+", "-"))]
    assert paths[0] != paths[1]
    counts = []
    for path in paths:
        with Model(path) as model:
            model.poke("step", 1)
            model.tick()
            counts.append(model.peek("count"))
    assert counts == [1, 255]


def test_models_of_one_source_differ_by_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    identities = []
    for march in ("x86-64", "x86-64-v3"):
        monkeypatch.setenv("SYSTOLITH_MARCH", march)
        identities.append(Toolchain.find().identity())
    assert identities[0] != identities[1]


def test_models_for_another_machine_are_built_within_a_context(
        own_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_MARCH", "native")
    usual = Toolchain.find()
    assert usual.march == "native"
    with compile_for(OTHER_MACHINE):
        with compile_for("x86-64-v2"):
            assert Toolchain.find().march == "x86-64-v2"
        other = Toolchain.find()
        path = build_model("counter", {"counter": COUNTER}, optimise=None)
    assert other.march == OTHER_MACHINE
    assert other.identity() != usual.identity()
    assert Toolchain.find() == usual
    assert f"-march={OTHER_MACHINE} " in (path.parent / "build.log").read_text()
    assert build_model("counter", {"counter": COUNTER}, optimise=None) != path


def test_broken_verilog_raises_with_the_message(own_folder: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"syntax error, unexpected endmodule"):
        build_model("broken", {"broken": "module broken(input clk)\nendmodule\n"})
    assert finished(own_folder) == []


def test_warnings_are_errors_unless_waived(own_folder: pathlib.Path) -> None:
    source = COUNTER.replace("count + step", "count + {8'd0, step}")
    with pytest.raises(RuntimeError, match="Warning-WIDTHTRUNC"):
        build_model("counter", {"counter": source})
    waivers = 'lint_off -rule WIDTHTRUNC -file "*counter.v"\nlint_off -rule WIDTHEXPAND'
    assert build_model("counter", {"counter": source}, waivers=waivers, optimise=None).is_file()


def test_broken_cpp_raises_with_the_message(own_folder: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"error: .*missing_type"):
        build_model("counter", {"counter": COUNTER}, cpp={"bad.cpp": "missing_type x;\n"},
                    optimise=None)
    assert finished(own_folder) == []


def test_unresolved_function_raises_at_build_time(own_folder: pathlib.Path) -> None:
    source = """\
module caller(input clk, output reg [31:0] y);
  import "DPI-C" function int nowhere(input int x);
  always @(posedge clk) y <= nowhere(y);
endmodule
"""
    with pytest.raises(RuntimeError, match="undefined reference to `nowhere'"):
        build_model("caller", {"caller": source}, optimise=None)


def test_cpp_is_called_over_dpi_and_exported() -> None:
    source = """\
module caller(input clk, input [31:0] x, output reg [31:0] y);
  import "DPI-C" function int twice(input int x);
  always @(posedge clk) y <= twice(x);
endmodule
"""
    cpp = {
        "twice.hpp": "inline int twice_of(int x) { return 2 * x; }\n",
        "twice.cpp": '#include "Vmodel__Dpi.h"\n#include "twice.hpp"\n'
                     "int twice(int x) { return twice_of(x); }\n",
        "driver.cpp": '#include "model.hpp"\n'
                      "#include <stdexcept>\n"
                      "SYSTOLITH_EXPORT int systolith_step(systolith::Model* model, int x) {\n"
                      "    return model->guard([&] {\n"
                      "        if (x < 0) throw std::invalid_argument(\"x is negative\");\n"
                      "        model->top.x = x;\n"
                      "        model->tick();\n"
                      "    });\n"
                      "}\n",
    }
    with Model(build_model("caller", {"caller": source}, cpp=cpp, optimise=None)) as model:
        model.poke("x", 21)
        model.tick()
        assert model.peek("y") == 42
        step = model.library.systolith_step
        step.argtypes = (ctypes.c_void_p, ctypes.c_int)
        model.check(step(model.handle, 4))
        assert (model.peek("y"), model.cycle) == (8, 2)
        with pytest.raises(RuntimeError, match="x is negative"):
            model.check(step(model.handle, -1))


def test_models_of_one_class_name_do_not_mix() -> None:
    # Each library has its own `Vmodel` and its own function `answer`.
    source = """\
module asker(input clk, output reg [31:0] y);
  import "DPI-C" function int answer();
  always @(posedge clk) y <= answer();
endmodule
"""
    paths = [build_model("asker", {"asker": source}, optimise=None, cpp={
        "answer.cpp": f'#include "Vmodel__Dpi.h"\nint answer() {{ return {number}; }}\n'})
        for number in (1, 2)]
    paths.append(build_model("counter", {"counter": COUNTER}, optimise=None))
    with Model(paths[0]) as one, Model(paths[1]) as two, Model(paths[2]) as counter:
        counter.poke("step", 5)
        for model in (one, two, counter):
            model.tick()
        assert (one.peek("y"), two.peek("y"), counter.peek("count")) == (1, 2, 5)


def test_hierarchical_build_equals_flat_build() -> None:
    """Blocks within a block, too: ``counter`` is in ``pair`` and in ``other``."""
    verilog = {"both": BOTH, "pair": PAIR, "other": PAIR.replace("module pair", "module other"),
               "counter": COUNTER}
    step = np.random.default_rng(11).integers(0, 256, 500, dtype=np.uint32)
    reset = (np.arange(500) % 97 == 0).astype(np.uint32)
    results = []
    for hierarchical in ((), ("counter",), ("counter", "pair", "other")):
        path = build_model("both", verilog, hierarchical=hierarchical, optimise=None)
        # The other instance must not disturb the blocks of the one under test.
        with Model(path) as other, Model(path) as model:
            other.tick(3)
            results.append(model.run({"step": step, "rst": reset}, ["first", "second"]))
    assert results[0]["second"].any()
    for name in ("first", "second"):
        for blocks in results[1:]:
            np.testing.assert_array_equal(results[0][name], blocks[name])


def test_hierarchical_block_that_does_not_exist_is_named(own_folder: pathlib.Path) -> None:
    with pytest.raises(RuntimeError, match=r"Verilator failed(.|\n)*'missing'"):
        build_model("pair", {"pair": PAIR, "counter": COUNTER}, hierarchical=["missing"])


def test_hierarchical_block_is_compiled_once(own_folder: pathlib.Path) -> None:
    path = build_model("pair", {"pair": PAIR, "counter": COUNTER}, hierarchical=["counter"],
                       optimise=False)
    symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    assert "Vcounter::eval_step()" in symbols
    other = build_model("pair", {"pair": PAIR + "// another\n", "counter": COUNTER},
                        hierarchical=["counter"], optimise=False)
    assert other != path
    made = [path.name[:13] for path in own_folder.with_name("objects").glob("Vcounter*.o")]
    assert sorted(made) == ["Vcounter-fast", "Vcounter-slow"]


def test_model_on_two_threads_equals_one() -> None:
    step = np.arange(300, dtype=np.uint32) % 256
    results = []
    for threads in (1, 2):
        path = build_model("pair", {"pair": PAIR, "counter": COUNTER}, threads=threads,
                           optimise=None)
        with Model(path) as model:
            model.reset()
            results.append(model.run({"step": step}, ["second"])["second"])
    assert results[0].any()
    np.testing.assert_array_equal(results[0], results[1])


SCRIPT = f"""\
from sim.verilated.build import build_model
print(build_model("counter", {{"counter": {COUNTER!r}}}, optimise=None))
"""


def start_build(**environment: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True,
                            start_new_session=True, env=os.environ | environment)


def commands(path: pathlib.Path) -> list[str]:
    lines = (path.parent / "build.log").read_text().splitlines()
    return [line for line in lines if line.startswith("$ ")]


def test_concurrent_callers_build_once(own_folder: pathlib.Path) -> None:
    with start_build() as process, ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(
            lambda _: build_model("counter", {"counter": COUNTER}, optimise=None), range(3)))
        paths.add(pathlib.Path(process.communicate()[0].strip()))
    assert process.returncode == 0
    (path,) = paths
    assert sum(" --cc " in line for line in commands(path)) == 1
    with Model(path) as model:
        model.tick()


def test_killed_build_leaves_nothing_that_looks_finished(own_folder: pathlib.Path,
                                                         tmp_path: pathlib.Path) -> None:
    begun, never, shell = (tmp_path / name for name in ("begun", "never", "sh"))
    os.mkfifo(begun)
    os.mkfifo(never)
    shell.write_text(f"#!/bin/bash\necho > {begun}; cat {never}\n")  # a shell runs Verilator
    shell.chmod(0o755)
    with start_build(PATH=f"{tmp_path}:{os.environ['PATH']}") as process:
        assert begun.read_text()
        assert list(own_folder.glob("counter-*.partial-*/counter.v"))
        os.killpg(process.pid, signal.SIGKILL)
    assert finished(own_folder) == []
    path = build_model("counter", {"counter": COUNTER}, optimise=None)
    assert finished(own_folder) == [path.parent.name]
    assert not list(own_folder.glob("counter-*.partial-*"))


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"top": "two words"}, ValueError, "module must be a Verilog identifier, not 'two words'"),
    ({"verilog": {"../up": ""}}, ValueError, "plain file name, not '../up.v'"),
    ({"verilog": {"counter": b""}}, TypeError, "source counter.v must be text, not b''"),
    ({"cpp": {"model.hpp": ""}}, ValueError, "not 'model.hpp'"),
    ({"cpp": {"ports.inc": ""}}, ValueError, "not 'ports.inc'"),
    ({"hierarchical": "counter"}, TypeError, "sequence of modules, not 'counter'"),
    ({"hierarchical": ["model"]}, ValueError, "another name, not 'model'"),
    ({"hierarchical": ["counter"]}, ValueError, "must be below the top module 'counter'"),
    ({"waivers": None}, TypeError, "waivers must be text, not None"),
    ({"threads": 0}, ValueError, "threads must be at least 1, not 0"),
    ({"threads": True}, TypeError, "threads must be an integer, not True"),
])
def test_wrong_argument_is_named(arguments: Mapping[str, Any], error: type[Exception],
                                 message: str) -> None:
    with pytest.raises(error, match=message):
        build_model(**{"top": "counter", "verilog": {"counter": COUNTER}, **arguments})


def test_inout_port_is_rejected(own_folder: pathlib.Path) -> None:
    source = "module pin(input clk, inout io);\n  assign io = clk ? 1'b1 : 1'bz;\nendmodule\n"
    with pytest.raises(RuntimeError, match="port io must be an input or an output, not inout"):
        build_model("pin", {"pin": source}, optimise=None)


def test_huge_pages_are_requested_unless_the_user_has_settings(
        monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, expected in ((None, "glibc.malloc.hugetlb=1"), ("glibc.malloc.check=1",) * 2):
        with monkeypatch.context() as patch:
            patch.delenv("GLIBC_TUNABLES", raising=False)
            if settings:
                patch.setenv("GLIBC_TUNABLES", settings)
            assert Toolchain.find().environment()["GLIBC_TUNABLES"] == expected


def test_missing_compiler_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_CXX", "no-such-compiler -x")
    with pytest.raises(RuntimeError, match=r"no-such-compiler.*apt-get install -y g\+\+"):
        build_model("counter", {"counter": COUNTER})


def test_unknown_machine_raises_with_the_compilers_message(own_folder: pathlib.Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYSTOLITH_MARCH", "foo")
    with pytest.raises(RuntimeError, match=r"SYSTOLITH_MARCH.* -march=foo [^\n]*\n.*error: .*foo"):
        build_model("counter", {"counter": COUNTER})


@pytest.mark.parametrize("command", [" ", "g++ '"])
def test_compiler_that_is_no_command_is_named(monkeypatch: pytest.MonkeyPatch,
                                              command: str) -> None:
    monkeypatch.setenv("SYSTOLITH_CXX", command)
    with pytest.raises(RuntimeError) as error:
        Toolchain.find()
    assert f"SYSTOLITH_CXX must be a command, not {command!r}" in str(error.value)


def test_build_folder_with_space_is_rejected(monkeypatch: pytest.MonkeyPatch,
                                             tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "a b"))
    with pytest.raises(RuntimeError, match=r"no white space in its path, not '.*a b'"):
        cache_folder()


def test_checkouts_and_installations_share_the_users_cache(monkeypatch: pytest.MonkeyPatch,
                                                                    tmp_path: pathlib.Path) -> None:
    monkeypatch.delenv("SYSTOLITH_BUILD", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for cache in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert cache_folder() == tmp_path / "home" / ".cache" / "systolith"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" / "systolith"
    assert build_folder() == pathlib.Path(__file__).resolve().parents[3] / "build"
    monkeypatch.setattr("sim.verilated.toolchain.__file__",
                        str(tmp_path / "site-packages" / "sim" / "verilated" / "toolchain.py"))
    assert build_folder() == cache_folder()
    monkeypatch.setenv("SYSTOLITH_BUILD", str(tmp_path / "build"))
    assert build_folder() == cache_folder() == tmp_path / "build"
