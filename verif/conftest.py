"""Groups and order of the tests when several processes run them, and how Ctrl-C reaches them."""

import signal

import pytest


def pytest_configure() -> None:
    """Takes interrupts even where they are ignored, as in a job that a shell starts with ``&``.

    Tests of Ctrl-C would otherwise wait for one that never arrives.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests for ``--dist loadgroup`` and puts long ones first.

    A file's tests share models, so they stay together unless they have a group of their own. A long
    test at the end would keep one process busy while the others wait.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    # The sort keeps the order of a group's tests.
    items.sort(key=lambda item: (item.path.stem != "test_cocotb", item.path not in slow))
