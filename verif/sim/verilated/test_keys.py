"""After a change of a file, only what depends on the file is elaborated and built again."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from verif.sim.verilated.caches import link_runtime

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGES = ("golden", "hdl", "sim", "systolith", "tools", "verif")

SCRIPT = """\
import hdl.tiles
from hdl.config import Config
from sim.models.mxu import mxu_library
from sim.verilated import build

done = []
write = hdl.tiles.VerilogLibrary.write
hdl.tiles.VerilogLibrary.write = lambda *a, **k: done.append("elaborated") or write(*a, **k)
make = build._build
build._build = lambda *a, **k: done.append("built") or make(*a, **k)
mxu_library(Config.preset("tiny"))
print(*sorted(set(done)))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of the sources, with a cache of its own that holds the model."""
    checkout = tmp_path_factory.mktemp("keys") / "checkout"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, checkout / package,
                        ignore=shutil.ignore_patterns("__pycache__"))
    link_runtime(checkout.parent / "cache")
    assert done(checkout) == ["built", "elaborated"]
    return checkout


def done(checkout: pathlib.Path) -> list[str]:
    """The steps that the model of the matrix unit takes in this checkout."""
    environment = os.environ | {"SYSTOLITH_BUILD": str(checkout.parent / "cache")}
    return subprocess.run([sys.executable, "-c", SCRIPT], cwd=checkout, env=environment, text=True,
                          check=True, capture_output=True).stdout.split()


def edit(path: pathlib.Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, (path, before)
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_comments_tests_and_document_generators_rebuild_nothing(checkout: pathlib.Path) -> None:
    for name in ("hdl/mxu/cell.py", "hdl/config.py", "sim/kernel/compile.py"):
        path = checkout / name
        first, _, rest = path.read_text(encoding="utf-8").partition("\n")
        assert first.startswith('"""')
        path.write_text(f'"""Another docstring."""\n{rest}\n# A comment.\n'
                        if first.endswith('"""') else f"{first} More.\n{rest}\n# A comment.\n",
                        encoding="utf-8")
    for name in ("tools/docs/isa.py", "verif/hdl/mxu/test_cell.py", "golden/mxu.py",
                 "sim/driver/device.py", "hdl/xlu/xlu.py"):
        with (checkout / name).open("a", encoding="utf-8") as file:
            file.write("\nNEW = 1\n")
    assert done(checkout) == []


def test_changed_line_of_rtl_rebuilds_what_contains_it(checkout: pathlib.Path) -> None:
    path = checkout / "hdl/mxu/mac.py"
    edit(path, "\nGUARD = 3\n", "\nGUARD = 4\n")
    assert done(checkout) == ["built", "elaborated"]
    assert done(checkout) == []
    edit(path, "\nGUARD = 4\n", "\nGUARD = 3\n")
    assert done(checkout) == []


def test_changed_code_that_gives_the_same_verilog_builds_nothing(checkout: pathlib.Path) -> None:
    path = checkout / "hdl/mxu/mac.py"
    edit(path, "\nGUARD = 3\n", "\nGUARD = 2 + 1\n")
    assert done(checkout) == ["elaborated"]
