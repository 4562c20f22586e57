"""The test run: how processes share the tests, time limits, garbage collection, and Ctrl-C."""

import atexit
import functools
import gc
import json
import os
import pathlib
import platform
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType
from typing import Any

import pytest

from hdl.store import digest, keep
from verif.inputs import features
from verif.unchanged import CHOICES, Unchanged

DURATIONS = pathlib.Path(__file__).with_name("durations.json")
"""File with the seconds that each group of tests took with an empty cache. ``make test RECORD=1``
writes it."""

QUICK_LIMIT, SLOW_LIMIT = 900, 1800
"""Time limits of quick and of slow tests, in seconds. They include builds, and are many times what
a test takes on a machine that does nothing else."""


COLLECTION_LIMIT = 60
"""Seconds that processes wait at most until the first one has collected the tests."""

# JAX on the CPU is a reference: it runs once, and takes longer to compile than to run. JAX reads
# this when it is imported, in the processes that tests start, too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# XLA compiles with these options, of which none changes a result, in less than half of the time.
os.environ.setdefault("XLA_FLAGS", (
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_prefer_vector_width=128 "
    "--xla_cpu_parallel_codegen_split_count=1"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help=f"write {DURATIONS.name}")
    parser.addoption("--unchanged", choices=CHOICES, help=(
        "keep a record of the tests that pass; skip or run those that have passed with the same "
        "inputs"))


def pytest_configure(config: pytest.Config) -> None:
    """Lets Ctrl-C interrupt Python even in a job that a shell started with ``&``.

    Such a job ignores interrupts; tests of Ctrl-C would wait for an interrupt for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", {})
    if worker.get("workerid", "gw0") != "gw0":
        wait_for_bytecode(pathlib.Path(worker["collecting"]))
    # Collecting the tests makes hardly any garbage, and many objects that stay.
    gc.disable()
    # Of several processes, only the first has all results.
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())
    if config.getoption("--unchanged"):
        config.pluginmanager.register(Unchanged(config))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["collecting"] = str(collecting())


@functools.cache
def collecting() -> pathlib.Path:
    """Makes a file that exists until the first process has collected the tests."""
    handle, name = tempfile.mkstemp(prefix="systolith-collecting-")
    os.close(handle)
    path = pathlib.Path(name)
    atexit.register(path.unlink, missing_ok=True)
    return path


def wait_for_bytecode(path: pathlib.Path) -> None:
    """Waits until the first process has removed the file that `collecting` made.

    In a new checkout, it compiles all modules that it imports. The others then load its bytecode,
    instead of compiling the same modules at the same time. They do not wait if there is bytecode.
    """
    if pathlib.Path(__file__).with_name("models").joinpath("__pycache__").is_dir():
        return
    end = time.monotonic() + COLLECTION_LIMIT
    while not sys.dont_write_bytecode and path.exists() and time.monotonic() < end:
        time.sleep(0.05)


class Recorder:
    """Writes to `DURATIONS` how long each group of tests takes."""

    def __init__(self) -> None:
        self.groups: dict[str, str] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The plugin that spreads the tests appends the group to a test's name.
        group = dict(report.user_properties).get("group")
        self.seconds[str(group)] += report.duration

    def pytest_sessionfinish(self) -> None:
        seconds = {group: round(seconds, 1) for group, seconds in sorted(self.seconds.items())}
        DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n", encoding="utf-8")


def model_of(item: pytest.Item) -> str:
    """Name of a test's group. Tests of one file that use the same model are a group.

    Fixtures that outlive a test are models; their parameters are part of the name.
    """
    callspec = getattr(item, "callspec", None)
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    shared = [str(value) for name, value in sorted(callspec.params.items())
              if name in fixtures and fixtures[name][-1].scope != "function"] if callspec else []
    path = item.path.relative_to(DURATIONS.parent).as_posix()
    return "-".join([path, *shared])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Lets Python collect garbage rarely, which shortens compilations by a sixth at least.

    Python no longer examines the modules and tests that exist now, because they live to the end.
    """
    if path := getattr(session.config, "workerinput", {}).get("collecting"):
        pathlib.Path(path).unlink(missing_ok=True)
    if jax := sys.modules.get("jax"):
        keep_references(jax)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000_000, 20, 50)
    gc.enable()


def keep_references(jax: ModuleType) -> None:
    """Makes JAX store in the cache what it compiles for the CPU.

    This does not hold in processes that tests start: JAX compiles for the chip there, and the
    chip's platform has its own cache.
    """
    # It compiles for this processor.
    key = digest([version("jaxlib"), platform.platform(), features()])
    jax.config.update("jax_compilation_cache_dir", str(keep("xla", "cpu", key, pathlib.Path.mkdir)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_the_file() -> Iterator[None]:
    """Collects garbage after each test file; objects that were not closed fail its last test.

    The objects that are left then, mostly in caches, are not examined again after later files.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test, makes garbage collection examine the objects that test files left."""
    if nextitem is None:
        gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sets the group of each test for ``--dist loadgroup``; sorts the longest groups first.

    A long group at the end would keep one process busy while the others wait. A single process
    runs the tests in the order of the command line, so that the quickest ones can come first.
    """
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8"))
    groups: dict[pytest.Item, str] = {}
    for item in items:
        marker = item.get_closest_marker("xdist_group")
        groups[item] = marker.args[0] if marker else model_of(item)
        if marker is None:
            item.add_marker(pytest.mark.xdist_group(groups[item]))
        slow = item.get_closest_marker("slow") is not None
        item.add_marker(pytest.mark.timeout(SLOW_LIMIT if slow else QUICK_LIMIT, method="thread"))
        item.user_properties.append(("group", groups[item]))
    if not hasattr(config, "workerinput"):
        return
    # The sort keeps the order of a group's tests. Unknown groups come first.
    items.sort(key=lambda item: (-seconds.get(groups[item], 1e9), groups[item]))
