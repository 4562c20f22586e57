"""Which tests share a process, and which begin first, where several processes run them."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests for ``--dist loadgroup``, and puts those that take long at the beginning.

    A file's tests stay together, for the models that they share, if they do not say otherwise.
    Whoever comes last has nobody beside him: what takes minutes must not.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    # The sort keeps the order of a group's tests.
    items.sort(key=lambda item: (item.path.stem != "test_cocotb", item.path not in slow))
