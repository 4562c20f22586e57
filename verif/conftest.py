"""Groups and order of the tests when several processes run them."""

import pytest


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
