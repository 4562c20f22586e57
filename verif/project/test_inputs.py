"""`verif.inputs` and `verif.unchanged`: after a change, every test runs that it may affect."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from verif import inputs
from verif.inputs import CODE, ENVIRONMENT, HARMLESS, REACHES, REVIEWED, ROOT, Project, surroundings

TREE = {"verif/project/test_documents.py", "verif/project/test_host.py",
        "verif/project/test_inputs.py", "verif/project/test_layers.py",
        "verif/project/test_limits.py", "verif/project/test_readme.py",
        "verif/project/test_tutorial.py", "verif/project/test_wheel.py",
        "verif/sim/verilated/test_keys.py", "verif/mutation/test_mutate.py",
        "verif/tools/test_diagram.py", "verif/tools/test_fusesoc.py"}
"""Tests that have all files of the checkout as inputs."""


@pytest.fixture(scope="module")
def project() -> Project:
    return Project()


def seers(project: Project, name: str) -> set[str]:
    """The tests that have the file ``name`` as an input."""
    assert name in project.files
    return {test for test in project.tests if name in project.inputs(test)}


def test_a_key_changes_with_the_contents_of_an_input(project: Project,
                                                     tmp_path: pathlib.Path) -> None:
    for name in project.files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)
    changed = "hdl/xlu/reduce.py"
    with (tmp_path / changed).open("a") as file:
        file.write("# More.\n")
    copy = Project(tmp_path)
    assert project.tests == copy.tests
    assert seers(project, changed) == {test for test in project.tests
                                       if copy.key(test) != project.key(test)}


def test_the_cross_lane_unit_is_an_input_of_what_contains_it(project: Project) -> None:
    found = seers(project, "hdl/xlu/reduce.py")
    assert found >= TREE | {
        "verif/benches/test_cocotb.py", "verif/hdl/chip/test_chip.py",
        "verif/hdl/core/test_core.py", "verif/hdl/xlu/test_kernel.py",
        "verif/hdl/xlu/test_xlu.py", "verif/sim/apps/test_training.py",
        "verif/sim/models/test_chip.py", "verif/sim/driver/test_device.py",
        "verif/sim/pjrt/test_programs.py", "verif/system/test_random_programs.py"}
    assert not found & {
        "verif/golden/test_numerics.py", "verif/golden/test_xlu.py", "verif/hdl/axi/test_axi.py",
        "verif/hdl/core/test_sequencer.py", "verif/hdl/dma/test_dma.py",
        "verif/hdl/mxu/test_cell.py", "verif/hdl/mxu/test_mxu.py", "verif/hdl/vpu/test_float.py",
        "verif/sim/asm/test_assembler.py", "verif/sim/kernel/test_cells.py"}


def test_pages_and_examples_are_inputs_of_the_tests_that_read_them(project: Project) -> None:
    for name, readers in {
            "README.md": {"verif/sim/driver/test_serial.py"},
            "docs/numerics.md": {"verif/golden/test_numerics.py", "verif/golden/test_vpu.py"},
            "examples/perceptron.py": {"verif/sim/apps/test_examples.py"}}.items():
        assert seers(project, name) == TREE | readers


def test_data_of_a_package_are_inputs_of_its_users(project: Project) -> None:
    found = seers(project, "sim/kernel/vec.hpp")
    assert found >= {"verif/sim/kernel/test_cells.py", "verif/hdl/xlu/test_kernel.py"}
    assert not found & {"verif/golden/test_xlu.py", "verif/hdl/mxu/test_traffic.py"}


def test_settings_and_the_plugin_are_inputs_of_all_tests(project: Project) -> None:
    for test in project.tests:
        assert project.inputs(test) >= {
            test, "pyproject.toml", "verif/conftest.py", "verif/inputs.py", "verif/unchanged.py"}


def test_a_module_that_jax_imports_is_an_input_of_its_users(project: Project) -> None:
    assert "sim/pjrt/platform.py" in project.inputs("verif/sim/jit/test_jit.py")


def test_surroundings_change_with_variables_and_packages(
        monkeypatch: pytest.MonkeyPatch) -> None:
    before = surroundings()
    for name in ("TERM", "SYSTOLITH_BUILD", "SYSTOLITH_CACHE_GB"):
        monkeypatch.setenv(name, "x")
    assert surroundings() == before
    for name in ("SYSTOLITH_DUMP", "JAX_ENABLE_X64", "PYTHONHASHSEED"):
        with monkeypatch.context() as change:
            change.setenv(name, "1")
            assert surroundings() != before, name
    distributions = list(metadata.distributions())
    monkeypatch.setattr(inputs.metadata, "distributions", lambda: distributions[1:])
    assert surroundings() != before


def test_variables_that_the_project_reads_are_in_the_key(project: Project) -> None:
    read = re.compile(r"""os\.environ(?:\.get\(|\[)f?["'](\w+)["']""")
    names = {name for file in project.files
             if file.startswith(("golden/", "hdl/", "sim/", "systolith/")) and file.endswith(".py")
             for name in read.findall((ROOT / file).read_text(encoding="utf-8"))}
    assert {"SYSTOLITH_MARCH", "SYSTOLITH_POD"} <= names
    assert all(map(ENVIRONMENT.fullmatch, names - {"XDG_CACHE_HOME"}))


def test_reviewed_files_exist_and_need_a_review(project: Project) -> None:
    for name, patterns in REVIEWED.items():
        assert name in project.files, name
        text = (ROOT / name).read_text(encoding="utf-8")
        assert REACHES.search(HARMLESS.sub("", text)), name
        for pattern in set(patterns) - set(CODE):
            assert list(ROOT.glob(pattern)), pattern


TESTS = """
import pathlib
import pytest

def test_that_passes():
    pass

@pytest.mark.parametrize("word", ["good", "a b@c"])
def test_data(word):
    assert word in pathlib.Path(__file__).with_name("words.txt").read_text()

@pytest.mark.slow
def test_slow():
    pass

def test_that_is_skipped():
    pytest.skip("never")
"""


class Run:
    """Runs tests in a small project, which has only what these tests need."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        for name in (*Project().inputs("verif/conftest.py"), "verif/durations.json"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, root / name)
        (root / "verif/unit").mkdir()
        (root / "verif/unit/__init__.py").touch()
        self.write("test_data.py", TESTS)
        self.write("words.txt", "good")

    def write(self, name: str, text: str) -> None:
        (self.root / "verif/unit" / name).write_text(text)

    def __call__(self, *options: str) -> tuple[str, str]:
        """Returns pytest's last line without the time, and the whole output."""
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("PYTEST_")}
        environment["SYSTOLITH_BUILD"] = str(self.root / "cache")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options], text=True,
            cwd=self.root, env=environment, capture_output=True, check=False, timeout=300)
        last = done.stdout.strip().splitlines()[-1]
        assert (done.returncode == 0) == ("failed" not in last), done.stdout + done.stderr
        return last.partition(" in ")[0], done.stdout


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Run:
    return Run(tmp_path)


@pytest.mark.slow
def test_only_what_passed_is_left_out(run: Run) -> None:
    assert run("--unchanged=skip", "-m", "not slow")[0] == (
        "1 failed, 2 passed, 1 skipped, 1 deselected")
    # A test that was not selected is not left out.
    spread = "--numprocesses", "1", "--dist", "loadgroup"
    assert run("--unchanged=skip", *spread)[0] == (
        "1 failed, 1 passed, 1 skipped, 2 unchanged since they passed")
    run.write("words.txt", "good, a b@c")
    assert run("--unchanged=skip")[0] == "4 passed, 1 skipped"
    assert run("--unchanged=skip", "-k", "not skipped", *spread)[0] == (
        "4 unchanged since they passed")


@pytest.mark.slow
def test_a_test_that_fails_is_left_out_no_more(run: Run) -> None:
    # It depends on what is no input: a file outside of the checkout.
    mark = run.root.parent / f"{run.root.name}.mark"
    run.write("test_data.py", f"import os\n\ndef test_it():\n    assert os.path.exists('{mark}')\n")
    mark.touch()
    assert run("--unchanged=skip")[0] == "1 passed"
    mark.unlink()
    assert run("--unchanged=run")[0] == "1 failed"
    assert run("--unchanged=skip")[0] == "1 failed"


@pytest.mark.slow
def test_a_test_that_opens_what_is_no_input_always_runs(run: Run) -> None:
    run.write("test_data.py", "open('page.md').close()\n\ndef test_file():\n    pass\n")
    # The name of the module is no constant.
    run.write("test_more.py", "def test_it():\n    open('page.md').close()\n\n"
                              "def test_import():\n    exec('import ver' + 'if.other')\n")
    (run.root / "page.md").touch()
    (run.root / "verif" / "other.py").touch()
    for _ in range(2):
        last, output = run("--unchanged=skip")
        assert last == "3 passed"
        assert "verif/unit/test_data.py opens page.md, which must" in output
        assert "verif/unit/test_more.py opens page.md, verif/other.py, which must" in output
