"""The check of the host requires what the README names; a slow Python is not the default;
`make fresh` reads the host's settings.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from tools import fresh

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def check_host(**environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items()
            if name not in ("PYTHON", "SYSTOLITH_CXX")}
    return subprocess.run(["/bin/sh", str(ROOT / ".ci" / "check_host.sh")], check=False, text=True,
                          capture_output=True, env={**kept, **environment})


def stub_python(folder: pathlib.Path, *, packaged: bool = True, old: bool = False,
                bare: bool = False) -> str:
    """A fake Python: of a distribution or not, too old or not, without venv and library or not."""
    path = folder / "python"
    path.write_text(f"""#!/bin/sh
case "$*" in
  *base_prefix*) exit {int(not packaged)};;
  *"version_info <"*) exit {int(old)};;
  *ensurepip* | -) exit {int(bare)};;
  *) exec {sys.executable} "$@";;
esac
""")
    path.chmod(0o755)
    return str(path)


def test_this_host_is_accepted() -> None:
    result = check_host(PYTHON=sys.executable)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_empty_host_is_told_what_the_readme_names(tmp_path: pathlib.Path) -> None:
    result = check_host(PATH=str(tmp_path))
    assert result.returncode == 1
    asked = result.stderr.splitlines()[-1].removeprefix("  apt-get install -y ").split()
    assert sorted(asked) == sorted(fresh.packages(README))


def test_the_compiler_may_be_another(tmp_path: pathlib.Path) -> None:
    result = check_host(PYTHON=sys.executable, SYSTOLITH_CXX="no-such-compiler -O2")
    assert "apt-get install -y g++\n" in result.stderr


def test_parts_of_a_distributions_python_are_packages(tmp_path: pathlib.Path) -> None:
    result = check_host(PYTHON=stub_python(tmp_path, bare=True))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert result.returncode == 1
    assert f"apt-get install -y python{version}-venv libpython{version}\n" in result.stderr


def test_a_built_python_without_its_parts_is_refused(tmp_path: pathlib.Path) -> None:
    result = check_host(PYTHON=stub_python(tmp_path, packaged=False, bare=True))
    assert result.returncode == 1
    assert "modules venv and ensurepip" in result.stderr


def test_an_old_python_is_refused(tmp_path: pathlib.Path) -> None:
    result = check_host(PYTHON=stub_python(tmp_path, old=True))
    assert result.returncode == 1
    assert "needs Python 3.11 or later" in result.stderr


@pytest.mark.parametrize(("slow", "complete", "found"), [
    (True, True, "system"), (True, False, "python3"), (False, True, "python3")])
def test_a_slow_python_gives_way_to_a_complete_one_of_the_system(
        tmp_path: pathlib.Path, slow: bool, complete: bool, found: str) -> None:
    settings = "'--enable-shared'" if slow else "'--enable-shared' '--enable-optimizations'"
    # The Python on PATH is this one. It says that it was built elsewhere with these settings.
    (tmp_path / "sysconfig.py").write_text(
        "import sys\nsys.base_prefix = '/opt/python'\n"
        f"def get_config_var(name): return {settings!r}\n")
    first = tmp_path / "bin" / "python3"
    first.parent.mkdir()
    first.write_text(f"""#!/bin/sh
exec env PYTHONPATH={tmp_path} {sys.executable} "$@"
""")
    first.chmod(0o755)
    system = stub_python(tmp_path, bare=not complete)
    result = subprocess.run(["/bin/sh", str(ROOT / ".ci" / "find_python.sh"), system], check=True,
                            text=True, capture_output=True, timeout=60,
                            env={**os.environ, "PATH": f"{first.parent}:{os.environ['PATH']}"})
    assert result.stdout.strip() == (system if found == "system" else "python3")


@pytest.mark.parametrize(("sources", "mirror"), [
    ({"sources.list": "deb http://one.example/debian bookworm main contrib\n"},
     ["http://one.example/debian"]),
    ({"sources.list": "deb [arch=amd64] http://one.example/debian bookworm main\n"},
     ["http://one.example/debian"]),
    ({"sources.list": "# deb http://one.example/debian bookworm main\n",
      "sources.list.d/debian.sources":
      "Types: deb\nURIs: http://two.example/debian\nSuites: bookworm bookworm-updates\n"
      "Components: main\n"}, ["http://two.example/debian"]),
    ({"sources.list": "deb http://three.example/ubuntu noble main\n"}, []),
    ({}, []),
])
def test_mirror_is_that_of_the_host(tmp_path: pathlib.Path, sources: dict[str, str],
                                    mirror: list[str]) -> None:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    assert fresh.mirror(tmp_path) == mirror


def test_local_paths_of_a_setting_are_lent(tmp_path: pathlib.Path) -> None:
    (tmp_path / "simple").mkdir()
    simple = tmp_path / "simple"
    value = f"{simple} file://{simple} https://index.example/simple {tmp_path}/absent"
    assert set(fresh.local_paths("find-links", value)) == {str(simple)}
    assert set(fresh.local_paths("extra-index-url", value)) == {str(tmp_path)}
    assert not set(fresh.local_paths("timeout", "180"))


def test_what_the_host_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert str(fresh.problem()).startswith("tools are missing; install them with: apt-get install")
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/true")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert fresh.problem() == "a chroot needs root; run it as root"
