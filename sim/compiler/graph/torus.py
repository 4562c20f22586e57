"""The devices of a pod: their places on the torus, and how host arrays are divided between them.

Device number d is core d % 2 of chip d // 2, unless a `Torus` has another order. Chips are numbered
along X first: chip number c of a torus of width W has the coordinates (c % W, c // W). Without a
pod, the torus has one chip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CORES", "RINGS", "Division", "PodSharding", "Torus"]

CORES = 2
"""Number of devices of a chip."""
RINGS = "core", "x", "y"
"""Kinds of rings: the two cores of a chip, a row of chips along X, a column of chips along Y. All
devices of a row or a column have the same core number."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Torus:
    """A torus of chips, and its devices.

    Attributes
    ----------
    width, height : int
        Chips along X and along Y.
    order : tuple of int
        For each device, 2 * c + k if the device is core k of chip c. Empty if each device d is core
        d % 2 of chip d // 2.
    """

    width: int = 1
    height: int = 1
    order: tuple[int, ...] = ()

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.width * self.height

    @property
    def devices(self) -> int:
        """Number of devices: cores of all chips."""
        return CORES * self.chips

    @property
    def by_chip(self) -> list[tuple[int, ...]]:
        """The devices of each chip: its core 0, then its core 1."""
        numbers = self.order or range(self.devices)
        found = sorted(range(self.devices), key=lambda device: numbers[device])
        return [tuple(found[first:first + CORES]) for first in range(0, self.devices, CORES)]

    def place(self, device: int) -> tuple[int, int, int]:
        """Return the place of a device: (core, x, y), the order of the kinds in `RINGS`."""
        chip, core = divmod(self.order[device] if self.order else device, CORES)
        return core, chip % self.width, chip // self.width

    def hops(self, device: int, other: int) -> tuple[int, int]:
        """Return the signed hops (dx, dy) of the shortest way from a device to another one.

        If both ways round a ring are equally long, the hops are positive.
        """
        _, *here = self.place(device)
        _, *there = self.place(other)
        ways = []
        for start, end, side in zip(here, there, (self.width, self.height), strict=True):
            forward = (end - start) % side
            ways.append(forward if 2 * forward <= side else forward - side)
        return ways[0], ways[1]

    def neighbour(self, device: int, kind: str, steps: int) -> int:
        """Return the device ``steps`` places after ``device`` in its ring of kind ``kind``.

        ``kind`` is one of `RINGS`; negative ``steps`` count backward.
        """
        place, sides = list(self.place(device)), (CORES, self.width, self.height)
        axis = RINGS.index(kind)
        place[axis] = (place[axis] + steps) % sides[axis]
        core, x, y = place
        number = CORES * (y * self.width + x) + core
        return self.order.index(number) if self.order else number

    def ring(self, sources: Sequence[int], way: int = 1) -> str | None:
        """Return the kind of ring along which a permutation moves values by one step.

        Parameters
        ----------
        sources : sequence of int
            For each device, the device from which it receives; itself if it does not take part.
        way : int
            1, or -1 for a step backward.

        Returns
        -------
        str or None
            One of `RINGS`, if each device that takes part receives from its predecessor in a ring
            of that kind or, if ``way`` is -1, from its successor. None for other permutations.
        """
        moved = [(device, source) for device, source in enumerate(sources) if device != source]
        for kind in RINGS:
            if all(self.neighbour(source, kind, way) == device for device, source in moved):
                return kind
        return None


@dataclass(frozen=True)
class Division:
    """Division of a host array into equal parts, of which each device has one.

    Attributes
    ----------
    counts : tuple of int
        Number of parts along each dimension of the host array.
    parts : tuple of tuple of int
        For each device, the index of its part along each dimension. Several devices may have the
        same part.
    stacked : bool
        Whether the host array has one dimension more than the parts: its first one, with one index
        for each device.
    """

    counts: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    stacked: bool = False

    def shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the host array whose parts have the shape ``part``."""
        if self.stacked:
            part = (1, *part)
        return tuple(count * size for count, size in zip(self.counts, part, strict=True))

    def part_shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the parts of a host array of shape ``whole``.

        Raises
        ------
        ValueError
            If the array cannot be divided into equal parts.
        """
        for size, count in zip(whole, self.counts, strict=True):
            if size % count:
                raise ValueError(f"shape of an array must be divisible into {self.counts} equal "
                                 f"parts, not {whole}")
        part = tuple(size // count for size, count in zip(whole, self.counts, strict=True))
        return part[1:] if self.stacked else part

    def part(self, array: Array, device: int) -> Array:
        """Return the part of a host array that a device has, as a view."""
        found = array[self._slices(array.shape, device)]
        return found[0] if self.stacked else found

    def join(self, parts: Sequence[Array]) -> Array:
        """Return the host array, given the part of each device.

        This is the inverse of `part`. If several devices have the same part, that of the first of
        them is used.
        """
        whole = np.empty(self.shape(parts[0].shape), parts[0].dtype)
        for device in reversed(range(len(parts))):
            whole[self._slices(whole.shape, device)] = parts[device]
        return whole

    def _slices(self, whole: tuple[int, ...], device: int) -> tuple[slice, ...]:
        sizes = [size // count for size, count in zip(whole, self.counts, strict=True)]
        return tuple(slice(index * size, (index + 1) * size)
                     for index, size in zip(self.parts[device], sizes, strict=True))


@dataclass(frozen=True)
class PodSharding:
    """How host arrays are divided between the devices of a pod.

    Attributes
    ----------
    torus : Torus
        The pod's torus.
    inputs, outputs : tuple of (Division or None)
        For each input and output: its division; None if all devices have the whole array.
    """

    torus: Torus
    inputs: "tuple[Division | None, ...]"
    outputs: "tuple[Division | None, ...]"
