"""Run ``make sim`` and ``make test`` on a fresh machine: a minimal Debian 12 in a chroot.

``python3 -m tools.fresh [WORD ...]`` bootstraps Debian 12 in a temporary folder, installs exactly
the packages that the README names, and clones the current commit. There it runs both commands as an
ordinary user with an empty home, cache and build folder. It prints the time that each step takes.
Words choose other targets of the Makefile; a word ``NAME=value`` goes to every make.

The host lends only its settings for package indexes. These are pip's configuration and the local
folders that it names, ``PIP_*``, proxies, certificates, and the Debian mirror of the host's apt.

Each command has its own mount namespace, which vanishes with its mounts when the command ends,
even if it is killed. So the temporary folder never holds a mount when it is removed. The module
imports nothing outside the standard library, because it runs before there is a virtual environment.
"""

import configparser
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

__all__ = ["local_paths", "main", "mirror", "packages", "problem"]

_SUITE = "bookworm"
_TARGETS = ("sim", "test")
_USER = 1000
_HOME = "/home/user"
_CHECKOUT = f"{_HOME}/systolith"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_TOOLS = {"debootstrap": "debootstrap", "unshare": "util-linux", "mount": "util-linux",
          "chroot": "coreutils", "git": "git"}
"""Commands that the host must have, and the Debian package of each."""

_SETTINGS = re.compile(r"PIP_\w+|(?:https?|ftp|all|no)_proxy|SSL_CERT_(?:FILE|DIR)"
                       r"|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE", re.IGNORECASE)
"""Pattern of the environment variables that configure access to package indexes."""

_APT_SETTINGS = re.compile(r"^Acquire::(?:https?|ftp|Check-\w+|Retries)\b.*;$", re.MULTILINE)


def main() -> int:
    """Run the targets on a fresh machine; return 1 if one fails or if the host lacks something."""
    words = sys.argv[1:]
    settings = [word for word in words if "=" in word]
    targets = [word for word in words if "=" not in word] or list(_TARGETS)
    lacking = problem()
    if lacking:
        print(f"make fresh: {lacking}", file=sys.stderr)
        return 1
    # A termination request cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    source = pathlib.Path(__file__).resolve().parents[1]
    wanted = packages((source / "README.md").read_text(encoding="utf-8"))
    begin = time.monotonic()
    try:
        with _temporary_folder() as folder:
            root = folder / "root"
            _bootstrap(root, source, wanted)
            shares = _lend_settings(root)
            for target in targets:
                with _timed(f"make {shlex.join([target, *settings])}"):
                    _run_as_user(root, shares, ["make", target, *settings])
    except subprocess.CalledProcessError as error:
        print(f"make fresh: failed with status {error.returncode}: {shlex.join(error.cmd[-4:])}",
              file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"make fresh: {error}", file=sys.stderr)
        return 1
    _report("all of it", begin)
    return 0


def problem() -> str | None:
    """Describe a missing permission or command of the host; None if nothing is missing."""
    missing = sorted({package for tool, package in _TOOLS.items()
                      if shutil.which(tool, path=_path()) is None})
    if not sys.platform.startswith("linux"):
        return "a chroot of Debian needs Linux"
    if missing:
        return f"tools are missing; install them with: apt-get install -y {' '.join(missing)}"
    if os.geteuid() != 0:
        return "a chroot needs root; run it as root"
    return None


def _path() -> str:
    # An ordinary user's path may lack the folders of system tools.
    return f"{os.environ.get('PATH', '')}:{_PATH}"


def packages(readme: str) -> list[str]:
    """The packages that the README tells its reader to install."""
    [command] = re.findall(r"apt-get install -y ([^`\n]+)", readme)
    return command.split()


@contextmanager
def _temporary_folder() -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="systolith-fresh-"))
    try:
        yield folder
    finally:
        # Processes of a namespace that was just killed may still be about to end.
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.2)
        else:
            print(f"make fresh: not removed: {folder}", file=sys.stderr)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    print(f"== {what}", flush=True)
    begin = time.monotonic()
    yield
    _report(what, begin)


def _report(what: str, begin: float) -> None:
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    print(f"== {what}: {minutes} min {seconds:02} s", flush=True)


def _bootstrap(root: pathlib.Path, source: pathlib.Path, wanted: Sequence[str]) -> None:
    """Install Debian in ``root``, with the packages ``wanted``, a user, and a clone of ``source``.

    ``source`` is a folder with a git repository, whose current commit is cloned.
    """
    with _timed(f"Debian ({_SUITE}, minbase)"):
        _run_isolated([["debootstrap", "--variant=minbase", _SUITE, str(root), *mirror()]],
                      quiet=True)
    (root / "etc/apt/apt.conf.d/90host").write_text(_apt_settings())
    shutil.copyfile("/etc/hosts", root / "etc/hosts")
    git = ["git", "-c", f"safe.directory={source}", "-C", str(source)]
    if subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True).stdout:
        print("== changes that are not committed are left out", flush=True)
    _run_in(root, ["useradd", "--create-home", "--home-dir", _HOME, "--uid", str(_USER),
                   "--user-group", "user"])
    clone = root / _CHECKOUT.lstrip("/")
    subprocess.run([*git, "clone", "--quiet", "--no-hardlinks", str(source), str(clone)],
                   check=True)
    _run_in(root, ["chown", "-R", "user:user", _CHECKOUT])
    _require_complaint(root, wanted)
    with _timed(f"apt-get install -y {shlex.join(wanted)}"):
        _run_in(root, ["apt-get", "-qq", "update"])
        _run_in(root, ["apt-get", "-qq", "install", "-y", *wanted], quiet=True)


def _require_complaint(root: pathlib.Path, wanted: Sequence[str]) -> None:
    """Require that .ci/check_host.sh asks for the packages ``wanted``, which are not installed."""
    check = subprocess.run(["chroot", str(root), "sh", f"{_CHECKOUT}/.ci/check_host.sh"],
                           check=False, text=True, capture_output=True)
    asked = packages(check.stderr) if "apt-get" in check.stderr else []
    if sorted(asked) != sorted(wanted):
        raise RuntimeError(f".ci/check_host.sh must ask for what the README names, {wanted}, "
                           f"not {asked}\n{check.stderr}")


def mirror(apt: pathlib.Path = pathlib.Path("/etc/apt")) -> list[str]:
    """Return a list with the URL of the first mirror of Debian 12 in the host's apt configuration.

    The list is empty if there is no such mirror.
    """
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]:
        text = path.read_text(errors="replace") if path.is_file() else ""
        match = re.search(rf"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+{_SUITE}\s+main\b", text, re.MULTILINE)
        if match:
            return [match[1]]
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            fields = dict(re.findall(r"^([\w-]+):\s*(.*)$", stanza, re.MULTILINE))
            if _SUITE in fields.get("Suites", "").split() and \
                    "main" in fields.get("Components", "").split():
                return fields.get("URIs", "").split()[:1]
    return []


def _apt_settings() -> str:
    """The host's apt settings for downloads, such as a proxy."""
    if shutil.which("apt-config") is None:
        return ""
    dump = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True).stdout
    return "".join(f"{line}\n" for line in _APT_SETTINGS.findall(dump))


def _lend_settings(root: pathlib.Path) -> list[str]:
    """Give the fresh machine the host's pip configuration.

    Return the files and folders of the host to which the configuration and ``PIP_*`` refer.
    """
    config = configparser.RawConfigParser()
    config.read(_pip_files(), encoding="utf-8")
    with (root / "etc/pip.conf").open("w", encoding="utf-8") as file:
        config.write(file)
    options = [option for section in config.sections() for option in config.items(section)]
    options += [(name.removeprefix("PIP_").lower().replace("_", "-"), value)
                for name, value in _settings().items()]
    return sorted({path for name, value in options for path in local_paths(name, value)})


def _pip_files() -> list[pathlib.Path]:
    """Paths of pip's configuration files, which need not exist; each overrides those before it."""
    home = pathlib.Path.home()
    folders = os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    user = pathlib.Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*(pathlib.Path(folder) / "pip/pip.conf" for folder in reversed(folders)),
             pathlib.Path("/etc/pip.conf"), home / ".pip/pip.conf", user / "pip/pip.conf"]
    if os.environ.get("PIP_CONFIG_FILE"):
        files.append(pathlib.Path(os.environ["PIP_CONFIG_FILE"]))
    return files


def _settings() -> dict[str, str]:
    # The configuration file is merged into the fresh machine's own.
    return {name: value for name, value in os.environ.items()
            if _SETTINGS.fullmatch(name) and name != "PIP_CONFIG_FILE"}


def local_paths(name: str, value: str) -> Iterator[str]:
    """Yield the host's existing files and folders that the ``value`` of setting ``name`` needs.

    For the URL of a package index, this is the folder that contains the index.
    """
    for word in value.split():
        path = pathlib.Path(word.removeprefix("file://"))
        if not path.is_absolute() or not path.exists():
            continue
        # An index refers to files next to its own folder.
        yield str(path.parent if name.endswith("index-url") else path)


def _run_as_user(root: pathlib.Path, shares: Iterable[str], command: Sequence[str]) -> None:
    """Run a command in the fresh machine's checkout, as its user.

    The host's files and folders ``shares`` are mounted at the same paths.
    """
    mounts = [["mount", "-t", "proc", "proc", f"{root}/proc"],
              ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", f"{root}/dev/shm"],
              # For pseudo-terminals, behind which a simulated board is.
              ["mount", "-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5",
               "devpts", f"{root}/dev/pts"]]
    for share in shares:
        target = root / share.lstrip("/")
        if pathlib.Path(share).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        mounts += [["mount", "--bind", share, str(target)],
                   ["mount", "-o", "remount,bind,ro", str(target)]]
    environment = {"HOME": _HOME, "USER": "user", "LOGNAME": "user", "PATH": _PATH,
                   "LANG": "C.UTF-8", **_settings()}
    script = f"cd {_CHECKOUT} && exec {shlex.join(command)}"
    _run_isolated([*mounts, [
        "chroot", f"--userspec={_USER}:{_USER}", str(root), "env", "-i",
        *(f"{name}={value}" for name, value in environment.items()), "sh", "-c", script]])


def _run_in(root: pathlib.Path, command: Sequence[str], *, quiet: bool = False) -> None:
    """Run a command as root of the fresh machine; if ``quiet``, print only a failure's output."""
    proxies = {name: value for name, value in _settings().items() if "proxy" in name.lower()}
    environment = {"PATH": _PATH, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **proxies}
    _run_isolated([
        ["mount", "-t", "proc", "proc", f"{root}/proc"],
        ["chroot", str(root), "env", "-i",
         *(f"{name}={value}" for name, value in environment.items()), *command]], quiet=quiet)


def _run_isolated(commands: Sequence[Sequence[str]], *, quiet: bool = False) -> None:
    """Run commands one after the other, in a new mount namespace and a new process namespace.

    If this process ends or stops waiting, all processes of the commands end, too, and their mounts
    vanish.

    Raises
    ------
    subprocess.CalledProcessError
        If a command fails. If ``quiet`` is true, its output is printed only then.
    """
    script = " && ".join(shlex.join(command) for command in commands)
    isolated = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                "sh", "-c", script]
    try:
        subprocess.run(isolated, check=True, stdin=subprocess.DEVNULL, text=True,
                       env={**os.environ, "PATH": _path()},
                       stdout=subprocess.PIPE if quiet else None,
                       stderr=subprocess.STDOUT if quiet else None)
    except subprocess.CalledProcessError as error:
        print(error.stdout or "", end="", file=sys.stderr)
        raise


if __name__ == "__main__":
    sys.exit(main())
