"""Devices for the tests."""

from collections.abc import Iterator

import pytest

from sim.driver.backend import SIMULATED
from systolith import Device


@pytest.fixture(scope="module")
def tiny() -> Iterator[Device]:
    with Device.open("tiny") as device:
        yield device


@pytest.fixture(params=SIMULATED)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with Device.open("tiny", backend=request.param) as opened:
        yield opened
