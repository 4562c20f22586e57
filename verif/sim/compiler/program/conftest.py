"""Devices for tests of whole programs."""

from collections.abc import Iterator

import pytest

from systolith import Device


@pytest.fixture(params=["golden", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A tiny chip: each test runs once on the golden model and once on the RTL."""
    with Device.open("tiny", request.param) as opened:
        yield opened


@pytest.fixture
def golden() -> Iterator[Device]:
    """A tiny golden chip."""
    with Device.open("tiny", "golden") as opened:
        yield opened
