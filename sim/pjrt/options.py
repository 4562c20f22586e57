"""Reads and writes the device assignment of a program in JAX's protocol buffers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Assignment", "read_assignment"]

_BUILD_OPTIONS = 3
"""Field number of the ExecutableBuildOptionsProto in CompileOptionsProto."""
_REPLICAS, _PARTITIONS, _ASSIGNMENT = 4, 5, 9
"""Field numbers in ExecutableBuildOptionsProto: replicas, partitions, and the
DeviceAssignmentProto."""
_COMPUTATIONS, _DEVICE_IDS = 3, 1
"""Field numbers: computations in DeviceAssignmentProto, and devices in a computation."""


@dataclass(frozen=True)
class Assignment:
    """The devices that run a program.

    Attributes
    ----------
    replicas, partitions : int
        Numbers of replicas and partitions. One of them is 1; the product is the number of devices.
    devices : tuple of int
        Numbers of the devices, replica by replica; empty if JAX does not choose them.
    """

    replicas: int
    partitions: int
    devices: tuple[int, ...]

    def serialize(self) -> bytes:
        """Return the assignment as a serialized DeviceAssignmentProto."""
        per_part = [self.devices[part::self.partitions] for part in range(self.partitions)]
        parts = b"".join(_field(_COMPUTATIONS, _field(_DEVICE_IDS, b"".join(map(_varint, ids))))
                         for ids in per_part)
        return b"\x08" + _varint(self.replicas) + b"\x10" + _varint(self.partitions) + parts


def read_assignment(options: bytes) -> Assignment:
    """Read the device assignment from a serialized CompileOptionsProto."""
    build = _last(options, _BUILD_OPTIONS, b"")
    replicas, partitions = _last(build, _REPLICAS, 1), _last(build, _PARTITIONS, 1)
    assignment = _last(build, _ASSIGNMENT, b"")
    columns = [_ids(value) for number, value in _fields(assignment) if number == _COMPUTATIONS]
    devices = tuple(device for row in zip(*columns, strict=True) for device in row)
    return Assignment(max(replicas, 1), max(partitions, 1), devices)


def _ids(computation: bytes) -> list[int]:
    """Return the device ids in ``computation``, a message of one replica or partition.

    Protocol buffers may encode them as one packed field or as one field for each id.
    """
    found: list[int] = []
    for number, value in _fields(computation):
        if number == _DEVICE_IDS and isinstance(value, int):
            found.append(value)
        elif number == _DEVICE_IDS:
            at = 0
            while at < len(value):
                item, at = _read_varint(value, at)
                found.append(item)
    return found


def _last(message: bytes, wanted: int, default: Any) -> Any:
    """Return the value of field number ``wanted`` in ``message``: the last one, if it is repeated.

    If there is no such field, return ``default``.
    """
    return next((value for number, value in reversed(list(_fields(message)))
                 if number == wanted), default)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) for each field of a message; a value is an integer or bytes."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _read_varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _read_varint(message, at)
        else:
            size = {1: 8, 5: 4}[kind]
        yield tag >> 3, message[at:at + size]
        at += size


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read the varint at index ``at``; return its value and the index after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data
