"""The test run: how processes share the tests, time limits, garbage collection, and Ctrl-C."""

import gc
import json
import os
import pathlib
import platform
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType

import pytest

from hdl.store import digest, keep
from verif.inputs import features
from verif.unchanged import CHOICES, Unchanged

DURATIONS = pathlib.Path(__file__).with_name("durations.json")
"""Seconds that each group of tests took in an empty cache: ``make test RECORD=1`` writes it."""

QUICK_LIMIT, SLOW_LIMIT = 900, 1800
"""Seconds per test, builds included: many times what it takes on a quiet machine."""


# JAX on the CPU is a reference: it runs once, and takes longer to compile than to run. JAX reads
# this when it is imported, in the processes that tests start, too.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help=f"write {DURATIONS.name}")
    parser.addoption("--unchanged", choices=CHOICES, help=(
        "keep a record of the tests that pass; skip or run those that have passed with the same "
        "inputs"))


def pytest_configure(config: pytest.Config) -> None:
    """Takes interrupts even where they are ignored, as in a job that a shell starts with ``&``.

    Tests of Ctrl-C would otherwise wait for one that never arrives.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Collecting the tests makes hardly any garbage, and many objects that stay.
    gc.disable()
    # Of several processes, only the first has all results.
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())
    if config.getoption("--unchanged"):
        config.pluginmanager.register(Unchanged(config))


class Recorder:
    """Writes how long each group takes."""

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
    """What a test shares with the others of its group: its file, and the model that it uses.

    Fixtures that outlive a test are models, so their parameters tell one model from another.
    """
    callspec = getattr(item, "callspec", None)
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009
    shared = [str(value) for name, value in sorted(callspec.params.items())
              if name in fixtures and fixtures[name][-1].scope != "function"] if callspec else []
    path = item.path.relative_to(DURATIONS.parent).as_posix()
    return "-".join([path, *shared])


def pytest_collection_finish() -> None:
    """Look for garbage less often: a compilation takes a sixth less time.

    Modules and tests live to the end, so they are not looked at again.
    """
    if jax := sys.modules.get("jax"):
        keep_references(jax)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def keep_references(jax: ModuleType) -> None:
    """Have JAX keep in the cache what it compiles for the CPU.

    Not in the processes that tests start: their platform is the chip, which keeps its own.
    """
    # It compiles for this processor.
    key = digest([version("jaxlib"), platform.platform(), features()])
    jax.config.update("jax_compilation_cache_dir", str(keep("xla", "cpu", key, pathlib.Path.mkdir)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_the_file() -> Iterator[None]:
    """Collect garbage after each file, whose last test then reports what was not closed.

    What is left, mostly in caches, is not looked at again after each of the following files.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Let the last collection find what has become garbage after the end of its file, too."""
    if nextitem is None:
        gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests for ``--dist loadgroup`` by the model that they build, the longest group first.

    A long group at the end would keep one process busy while the others wait.
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
    # The sort keeps the order of a group's tests. Unknown groups come first.
    items.sort(key=lambda item: (-seconds.get(groups[item], 1e9), groups[item]))
