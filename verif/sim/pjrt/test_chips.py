"""The thread that runs jobs on the chips, called directly, without JAX."""

import ctypes

import pytest

from sim.pjrt.chips import Chips
from sim.pjrt.library import Job, Kind
from systolith import Device


@pytest.mark.parametrize(("kind", "numbers", "message"), [
    (Kind.DOWNLOAD, (), "the array has been deleted or donated"),
    (Kind.SHARE, (5, 0), "the array has been deleted or donated"),
    (Kind.EXECUTE, (1, 0, 1, 0, 8), "the program has been deleted")])
def test_what_another_thread_has_deleted_is_an_invalid_argument(
        kind: int, numbers: tuple[int, ...], message: str) -> None:
    job = Job(kind=kind, target=7, _count=len(numbers),
              _numbers=(ctypes.c_int64 * len(numbers))(*numbers))
    with Device.open("tiny", "golden") as device:
        chips, before = Chips(device, lambda *stats: None), device.free_bytes
        assert chips.work(job) == (3, message)
        assert device.free_bytes == before
