"""The golden pod: golden chips on a torus, and the packets between them, without timing.

Specifies what programs can observe of hdl/link: each packet arrives once and whole; packets from
one core to another by the same way arrive in order. All else happens in an arbitrary order, chosen
by a seed.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from golden.chip import GoldenChip, Run, stops
from golden.torus.egress import Packet
from golden.torus.route import Hop, route
from hdl.checks import instance, integer
from hdl.config import Config
from hdl.dma.format import unpack_remote
from hdl.link.format import MAX_SIDE, Direction

__all__ = ["GoldenPod", "Place", "PodRun"]

Place = tuple[int, int, int]
"""A core of the pod: coordinates of its chip, and its number there."""
_Way = tuple[int, int, int, int]
"""A core of the pod, as a `Place`, and a way that begins at it (`golden.torus.egress`)."""


@dataclass(frozen=True)
class PodRun(Run[Place]):
    """The outcome of a run of the pod; a core's name is its `Place`.

    Attributes
    ----------
    executed : dict of Place to int
        Number of bundles that each core executed.
    """

    executed: dict[Place, int]


class GoldenPod:
    """Chips on a torus as programs and the host see them.

    Parameters
    ----------
    shape : tuple of int
        Chips along X and along Y, 1 to 32 each.
    config : Config
        Parameters of each chip; ``link_bytes`` is not 0.
    seed : int
        Chooses the order of all events whose order is not defined: which core proceeds, which
        packet leaves, and which one arrives. Programs that synchronize correctly give the same
        results with each seed.

    Attributes
    ----------
    chips : dict of (int, int) to GoldenChip
        The chips by their coordinates. The pod sets ``torus`` and ``position`` of each.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range.
    """

    def __init__(self, shape: tuple[int, int], config: Config, seed: int = 0) -> None:
        width, height = (integer("side of the torus", side, 1, MAX_SIDE) for side in shape)
        instance("config", config, Config)
        if not config.link_bytes:
            raise ValueError("link_bytes must not be 0 for the chips of a pod")
        self._config = config
        self._shape = width, height
        self._random = random.Random(integer("seed", seed))
        self.chips: dict[tuple[int, int], GoldenChip] = {}
        for x, y in product(range(width), range(height)):
            chip = self.chips[x, y] = GoldenChip(config)
            chip.torus, chip.position = self._shape, (x, y)
        self._flying: dict[_Way, deque[Packet]] = {}
        self._dead: set[tuple[int, int, Direction]] = set()

    @property
    def config(self) -> Config:
        """Parameters of each chip."""
        return self._config

    @property
    def shape(self) -> tuple[int, int]:
        """Size of the torus, in chips along X and along Y."""
        return self._shape

    @property
    def quiet(self) -> bool:
        """Whether no packet is under way or about to leave."""
        return not self._flying and not any(
            core.egress.ways for chip in self.chips.values() for core in chip.cores)

    @property
    def rests(self) -> bool:
        """Whether no core runs or waits, and no packet is under way or about to leave."""
        return not any(core.running for chip in self.chips.values()
                       for core in chip.cores) and self.quiet

    def __getitem__(self, place: tuple[int, int]) -> GoldenChip:
        return self.chips[place]

    def cut(self, x: int, y: int, direction: Direction) -> None:
        """Cut the link that leaves chip (``x``, ``y``) in a direction: both of its wires.

        From then on, each packet that would cross the link is lost. The loss stops all cores of
        the chip that would send the packet over the link, with the fault LINK.

        Raises
        ------
        TypeError, ValueError
            If there is no such chip or direction.
        """
        integer("x", x, 0, self._shape[0] - 1)
        integer("y", y, 0, self._shape[1] - 1)
        direction = Direction(direction)
        self._dead.add((x, y, direction))
        step = direction.step
        there = ((x + step) % self._shape[0], y) if direction.is_x else (
            x, (y + step) % self._shape[1])
        self._dead.add((*there, direction.opposite))

    def run(self, max_bundles: int, turn: int = 16) -> PodRun:
        """Execute bundles and deliver packets until no core can continue and no packet is left.

        Parameters
        ----------
        max_bundles : int
            Maximum number of bundles that each core executes.
        turn : int
            Maximum number of bundles that a core executes in one turn; the actual number is random.

        Raises
        ------
        TypeError, ValueError
            If an argument is not an integer, ``max_bundles`` is negative, or ``turn`` is 0 or less.
        """
        integer("max_bundles", max_bundles, 0)
        integer("turn", turn, 1)
        chips = list(self.chips.items())
        executed = dict.fromkeys(self._places(), 0)
        going = True
        while going:
            self._random.shuffle(chips)
            going = False
            for (x, y), chip in chips:
                for number, core in enumerate(chip.cores):
                    place = x, y, number
                    count = core.run(min(self._random.randint(1, turn),
                                         max_bundles - executed[place]))
                    executed[place] += count
                    going |= count > 0
            going |= self._deliver(idle=not going)
        return self._outcome(executed)

    def _places(self) -> Iterator[Place]:
        for x, y in self.chips:
            for core in range(self._config.cores):
                yield x, y, core

    def _deliver(self, idle: bool) -> bool:
        """Let some packets leave and some arrive; return whether any did.

        ``idle`` says that no core can continue. Then at least one packet, if there is any, leaves
        or arrives.
        """
        events: list[tuple[bool, _Way]] = [(True, way) for way in self._flying]
        for place in self._places():
            egress = self.chips[place[:2]].cores[place[2]].egress
            events += [(False, (*place, way)) for way in egress.ways]
        self._random.shuffle(events)
        least = int(idle and bool(events))
        chosen = events[:self._random.randint(least, len(events))] if events else []
        for arrives, way in chosen:
            if arrives:
                self._arrive(way)
            else:
                self._leave(way)
        return bool(chosen)

    def _leave(self, way: _Way) -> None:
        x, y, number, word = way
        chip = self.chips[x, y]
        dx, dy, _, _ = unpack_remote(word)
        core = chip.cores[number]
        packet = core.egress.take(word, core.vmem, *chip.destination(dx, dy))
        self._flying.setdefault(way, deque()).append(packet)

    def _arrive(self, way: _Way) -> None:
        x, y, _, word = way
        packets = self._flying[way]
        packet = packets.popleft()
        if not packets:
            del self._flying[way]
        dx, dy, _, _ = unpack_remote(word)
        for hop in route(x, y, dx, dy, self._shape):
            if self._is_dead(hop):
                self.chips[hop.x, hop.y].link_fault()
                return
        self.chips[(x + dx) % self._shape[0], (y + dy) % self._shape[1]].receive(packet)

    def _is_dead(self, hop: Hop) -> bool:
        return (hop.x, hop.y, hop.direction) in self._dead

    def _outcome(self, executed: dict[Place, int]) -> PodRun:
        return PodRun(*stops({place: self.chips[place[:2]].cores[place[2]]
                              for place in self._places()}), executed)
