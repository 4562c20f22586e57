"""Properties of devices that JAX reports."""

import pytest

from sim.pjrt.options import Assignment, read_assignment


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


@pytest.mark.parametrize(("assignment", "replicas", "partitions"), [
    (Assignment(1, 1, (0,)), 1, 1), (Assignment(1, 1, (1,)), 1, 1),
    (Assignment(1, 2, (0, 1)), 1, 2), (Assignment(1, 2, (1, 0)), 1, 2),
    (Assignment(2, 1, (1, 0)), 2, 1), (Assignment(2, 2, (3, 200, 1, 70000)), 2, 2)])
def test_assignment_is_what_was_serialized(assignment: Assignment, replicas: int,
                                           partitions: int) -> None:
    build = bytes([4 << 3, replicas, 5 << 3, partitions]) + field(9, assignment.serialize())
    # A fixed field of 32 bits and one of 64 that nobody reads.
    options = b"\x0d1234" + field(3, build) + b"\x1112345678"
    assert read_assignment(options) == assignment


def test_missing_fields_mean_one_device_that_is_open() -> None:
    assert read_assignment(b"") == Assignment(1, 1, ())
    assert read_assignment(field(3, b"")) == Assignment(1, 1, ())


def test_ids_may_come_one_by_one() -> None:
    computations = field(3, b"\x08\x01") + field(3, b"\x08\x00")
    assert read_assignment(field(3, field(9, computations))).devices == (1, 0)
