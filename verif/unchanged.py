"""Leaves out tests that have passed before and whose inputs have not changed since.

This is a plugin of pytest for the option ``--unchanged``. For each test file, the cache has a
record of the file's tests that passed. The record's key is a digest of all inputs of the file, see
`verif.inputs`. A test that fails is removed from the record; a skipped test is never in it.
"""

import contextlib
import functools
import json
import os
import pathlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from hdl.store import change_text, kept_text
from verif.inputs import ROOT, Project, surroundings

__all__ = ["CHOICES", "Unchanged"]

CHOICES = ("skip", "run")
_LABEL = "unchanged since they passed"


class Unchanged:
    """The plugin, in the main process and in each of the processes that share the tests.

    The main process reads the records when the run starts, and tells the other processes which
    tests to leave out. It writes the records at the end, unless inputs have changed meanwhile.
    While tests run, each process watches which files of the checkout it opens. If such a file is
    not among the test file's inputs, `verif.inputs` is incomplete. Nothing is recorded for the test
    file then, so that it always runs, and the summary says so.

    Parameters
    ----------
    config : pytest.Config
        The option ``--unchanged`` is ``skip``, or ``run`` in order to run all tests.
    root : path, optional
        The checkout's folder.
    """

    def __init__(self, config: pytest.Config, root: pathlib.Path = ROOT) -> None:
        self._root = root
        self._worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._workers = 0
        if self._worker is None:
            self._project = Project(root, surroundings())
            self._keys = {test: self._project.key(test) for test in self._project.tests}
            skip = config.getoption("--unchanged") == "skip"
            self._passed = {test: _record(test, key) for test, key in self._keys.items()
                            } if skip else {}
        else:
            self._passed = {test: set(names) for test, names in self._worker["passed"].items()}
        self._left_out = 0
        self._results: defaultdict[str, dict[str, bool | None]] = defaultdict(dict)
        self._opened: defaultdict[str, set[str]] = defaultdict(set)
        self._strays: dict[str, list[str]] = {}
        self._now: str | None = None

        # Python calls this thousands of times a second: a function takes less time than a method.
        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and self._now is not None:
                self._note(self._now, arguments[0])

        sys.addaudithook(watch)

    # What is opened while a test file is imported, and while its tests run.

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        self._now = _file(collector.nodeid) if isinstance(collector, pytest.Module) else None
        try:
            return (yield)
        finally:
            self._now = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._now = _file(item.nodeid)
        try:
            return (yield)
        finally:
            self._now = None

    def _note(self, test: str, path: object) -> None:
        """Note that a file was opened while the test file ``test`` was imported or ran."""
        if isinstance(path, str | bytes | os.PathLike):  # else a descriptor
            self._opened[test].add(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100

    def _names(self) -> dict[str, list[str]]:
        """By test file, the names of the checkout's files that were opened."""
        root = f"{self._root}{os.sep}"
        return {test: sorted({_name(path, root) for path in paths} - {""})
                for test, paths in self._opened.items()}

    # Which tests run.

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        left = [item for item in items
                if _test(item.nodeid, item.user_properties)
                not in self._passed.get(_file(item.nodeid), ())]
        self._left_out = len(items) - len(left)
        items[:] = left

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._workers += 1
        node.workerinput["passed"] = {test: sorted(names) for test, names in self._passed.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        if "opened" in output:
            self._workers -= 1
            self._left_out = output["left_out"]
            for test, names in output["opened"].items():
                self._find_strays(test, names)

    def _find_strays(self, test: str, opened: Sequence[str]) -> None:
        """Note the files that the test file ``test`` opened, but that are not its inputs."""
        strays = (set(opened) & self._project.files) - self._project.inputs(test)
        if strays:
            self._strays[test] = sorted(strays.union(self._strays.get(test, ())))

    # Results.

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results = self._results[_file(report.nodeid)]
        test = _test(report.nodeid, report.user_properties)
        if report.failed or results.get(test) is False:
            results[test] = False
        elif report.skipped or hasattr(report, "wasxfail"):
            results[test] = None
        elif report.when == "teardown" and test not in results:
            results[test] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._now = None
        if self._worker is not None:
            output = getattr(session.config, "workeroutput")  # noqa: B009
            output["left_out"] = self._left_out
            output["opened"] = self._names()
            return
        for test, names in self._names().items():
            self._find_strays(test, names)
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._left_out:
            session.exitstatus = pytest.ExitCode.OK
        self._write()

    def _write(self) -> None:
        project = Project(self._root, surroundings())
        for test, results in self._results.items():
            key = self._keys.get(test)
            if test not in project.files or project.key(test) != key:
                continue
            # What a process that was killed has opened is not known.
            good = not self._workers and test not in self._strays
            passed = {name for name, result in results.items() if result and good}
            failed = {name for name, result in results.items() if result is False}
            with contextlib.suppress(OSError):  # the cache may be read-only
                change_text(*_entry(test, key),
                            functools.partial(_changed, passed=passed, failed=failed))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, names in sorted(self._strays.items()):
            terminalreporter.write_line(
                f"{test} opens {', '.join(names)}, which must be in REVIEWED of verif/inputs.py: "
                "it will run each time", yellow=True)
        if self._left_out:
            # The last line counts reports by category.
            terminalreporter.stats[_LABEL] = [None] * self._left_out


def _entry(test: str, key: str) -> tuple[str, str, str]:
    return "passed", f"{pathlib.Path(test).stem}.json", key


def _record(test: str, key: str) -> set[str]:
    return set(json.loads(kept_text(*_entry(test, key)) or "[]"))


def _changed(text: str, passed: set[str], failed: set[str]) -> str:
    return json.dumps(sorted((set(json.loads(text or "[]")) | passed) - failed))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _test(nodeid: str, properties: Sequence[tuple[str, object]]) -> str:
    """A test's name without its group, which the plugin pytest-xdist appends."""
    return nodeid.partition("::")[2].removesuffix(f"@{dict(properties).get('group')}")


def _name(path: str, root: str) -> str:
    """Name of a file relative to the folder ``root``; "" for a file elsewhere.

    A file of bytecode gets the name of its module.
    """
    if not path.startswith(root):
        return ""
    folder, _, name = path.removeprefix(root).replace(os.sep, "/").rpartition("/")
    if folder.endswith("__pycache__"):
        return f"{folder.removesuffix('__pycache__')}{name.partition('.')[0]}.py"
    return f"{folder}/{name}" if folder else name
