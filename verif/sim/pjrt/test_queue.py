"""The completions of jobs, in C++."""

import pathlib
import subprocess

from sim.pjrt import library
from sim.verilated.toolchain import Toolchain

_PROGRAM = """
#include <cassert>
#include "queue.hpp"
using namespace systolith::pjrt;
int main() {
    int copies = 0;
    auto copy = [&] { ++copies; };
    Completion done, cancelled, left;
    done.finish({}, copy);
    assert(copies == 1 && done.wait().ok());
    // After a wait that was cancelled, nothing is written.
    cancelled.finish({kCancelled, "interrupted"});
    cancelled.finish({}, copy);
    assert(copies == 1 && cancelled.wait().code == kCancelled);
    // In the child of a fork, what has not ended never does.
    Completion::abandoned = {kFailedPrecondition, "forked"};
    assert(left.wait().message == "forked" && done.wait().ok());
}
"""


def test_completions(tmp_path: pathlib.Path) -> None:
    source, program = tmp_path / "test.cpp", tmp_path / "test"
    source.write_text(_PROGRAM)
    tools = Toolchain.find()
    folder = pathlib.Path(library.__file__).with_name("cpp")
    subprocess.run([*tools.cxx, "-std=c++20", "-pthread", "-Wall", "-Werror", f"-I{folder}",
                    str(source), "-o", str(program), "-ldl"], check=True, env=tools.environment())
    subprocess.run([program], check=True, timeout=60)
