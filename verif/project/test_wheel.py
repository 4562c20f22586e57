"""The package works when it is installed from its wheel, away from the checkout."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from hdl.store import cache_folder

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("golden", "hdl", "sim", "systolith")

SCRIPT = """\
import pathlib
import sys

import numpy as np

import golden, hdl, sim, systolith
from systolith import Config, Device

for package in (golden, hdl, sim, systolith):
    assert pathlib.Path(package.__file__).is_relative_to(sys.prefix), package.__file__
a = np.arange(24, dtype=np.float32).reshape(4, 6)
b = np.eye(6, 5, dtype=np.float32)
for backend in ("golden", "rtl"):
    with Device.open(Config.preset("tiny"), backend=backend) as device:
        assert np.array_equal(device.matmul(a, b), a[:, :5]), backend
        print(backend)
"""


def run(*command: str | pathlib.Path, cwd: pathlib.Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items()
             if name not in ("PYTHONPATH", "SYSTOLITH_BUILD", "XDG_CACHE_HOME", "VIRTUAL_ENV")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean | environment,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    # Built from a copy: setuptools writes to the folder of its sources.
    source = tmp_path_factory.mktemp("wheel") / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
        "--no-build-isolation", "--no-deps", "--wheel-dir", "..", ".", cwd=source)
    (path,) = source.parent.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_holds_the_packages_and_their_cpp_files(wheel: pathlib.Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for suffix in (".py", ".cpp", ".hpp"):
        expected = {str(path.relative_to(ROOT)) for name in PACKAGES
                    for path in (ROOT / name).rglob(f"*{suffix}")}
        assert expected
        assert {name for name in names if name.endswith(suffix)} == expected


@pytest.mark.slow
def test_wheel_has_the_command_and_tells_jax_of_the_platform(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        text = archive.read(name).decode()
    assert text.split() == ["[console_scripts]", "systolith", "=", "systolith.__main__:main",
                            "[jax_plugins]", "systolith", "=", "sim.pjrt"]


@pytest.mark.slow
def test_installed_package_multiplies_on_both_backends(wheel: pathlib.Path,
                                                       tmp_path: pathlib.Path) -> None:
    venv, home = tmp_path / "venv", tmp_path / "home"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python",
        venv / "bin" / "python", "install", "--quiet", "--no-compile", "--no-deps", wheel,
        cwd=tmp_path)
    # Dependencies come from the environment that runs the tests. Files that extend the path, such
    # as that of an editable installation, have no effect in a folder that is itself such an entry.
    (site,) = (venv / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text("".join(
        f"{path}\n" for path in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    # Only object files, and what modules import, so that the package elaborates, synthesises and
    # builds a chip itself.
    cache = home / ".cache" / "systolith"
    cache.mkdir(parents=True)
    for name in ("objects", "code"):
        (cache_folder() / name).mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(cache_folder() / name)
    (tmp_path / "script.py").write_text(SCRIPT)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output = run(venv / "bin" / "python", tmp_path / "script.py", cwd=elsewhere, HOME=str(home))
    assert output.split() == ["golden", "rtl"]
    assert list((cache / "models").glob("chip-*/model.so"))
    assert not list(elsewhere.iterdir())
