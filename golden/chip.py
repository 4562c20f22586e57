"""The golden chip, without timing: golden cores that share HBM and add to each other's semaphores.

Specifies hdl/chip, as far as programs and transfers can observe it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from golden.core import GoldenCore
from golden.dma import allocate_hbm
from golden.torus.egress import Packet
from hdl.checks import integer
from hdl.config import Config
from hdl.isa import Fault
from hdl.link.format import MAX_SIDE

__all__ = ["ChipRun", "GoldenChip", "Run", "stops"]

Name = TypeVar("Name")


@dataclass(frozen=True)
class Run(Generic[Name]):
    """The state of several cores after a run.

    Attributes
    ----------
    running : tuple
        Names of the cores that reached the limit of bundles and could continue.
    waiting : tuple
        Names of the cores that wait for a semaphore. If ``running`` is empty, only the host can
        signal them.
    faults : dict of Fault
        Fault of each core that stopped with one, by the core's name.
    """

    running: tuple[Name, ...]
    waiting: tuple[Name, ...]
    faults: dict[Name, Fault]

    @property
    def done(self) -> bool:
        """Whether all cores halted without a fault."""
        return not (self.running or self.waiting or self.faults)


@dataclass(frozen=True)
class ChipRun(Run[int]):
    """The state of the cores after `GoldenChip.run`; the names of cores are their numbers.

    Attributes
    ----------
    executed : tuple of int
        Number of bundles that each core executed.
    """

    executed: tuple[int, ...]


def stops(cores: Mapping[Name, GoldenCore]
          ) -> tuple[tuple[Name, ...], tuple[Name, ...], dict[Name, Fault]]:
    """Return ``running``, ``waiting`` and ``faults`` of a `Run` that has just ended.

    ``cores`` are its cores, by name.
    """
    return (tuple(name for name, core in cores.items() if core.running and not core.waiting),
            tuple(name for name, core in cores.items() if core.waiting),
            {name: core.fault for name, core in cores.items() if core.fault is not Fault.NONE})


class GoldenChip:
    """A chip as its programs and the host see it.

    Parameters
    ----------
    config : Config
        Parameters of the chip; it has ``config.cores`` cores.

    Attributes
    ----------
    cores : tuple of GoldenCore
        The cores.
    hbm : array of uint32, shape (hbm_rows, lanes)
        The memory that the cores share. May be read and written in place; rows that were never
        written take no memory of the host.

    Raises
    ------
    TypeError
        If ``config`` is not a `Config`.
    """

    def __init__(self, config: Config) -> None:
        self.hbm: NDArray[Any] = allocate_hbm(config)
        self._config = config
        self.cores = tuple(GoldenCore(config, self.hbm) for _ in range(config.cores))
        if len(self.cores) == 2:
            self.cores[0].connect(self.cores[1])
        self._position = 0, 0

    @property
    def config(self) -> Config:
        """The chip's parameters."""
        return self._config

    @property
    def torus(self) -> tuple[int, int]:
        """Size of the torus of the chip, in chips along X and along Y: register TORUS.

        Raises
        ------
        TypeError, ValueError
            If the new sides are not two integers up to 32, each greater than the coordinate in
            `position`.
        """
        return self.cores[0].torus

    @torus.setter
    def torus(self, shape: tuple[int, int]) -> None:
        width, height = (integer("side of the torus", side, at + 1, MAX_SIDE)
                         for side, at in zip(shape, self._position, strict=True))
        for core in self.cores:
            core.torus = width, height

    @property
    def position(self) -> tuple[int, int]:
        """Coordinates of the chip on its `torus`: register POSITION.

        Raises
        ------
        TypeError, ValueError
            If the new coordinates are not two integers, each from 0 to the torus's side minus 1.
        """
        return self._position

    @position.setter
    def position(self, place: tuple[int, int]) -> None:
        x, y = (integer("coordinate on the torus", at, 0, side - 1)
                for at, side in zip(place, self.torus, strict=True))
        self._position = x, y

    def destination(self, dx: int, dy: int) -> tuple[int, int]:
        """Return x and y of the chip ``dx`` hops along X and ``dy`` hops along Y from this one."""
        return (self.position[0] + dx) % self.torus[0], (self.position[1] + dy) % self.torus[1]

    def receive(self, packet: Packet) -> None:
        """Write the vector of an arriving packet to vector memory, then add to its semaphore.

        A packet is dropped if it names another chip, a core that this chip does not have, or an
        address beyond vector memory. Then all cores of this chip stop with the fault LINK.
        """
        if ((packet.x, packet.y) != self.position or packet.core >= len(self.cores)
                or packet.address >= self._config.vmem_vectors):
            self.link_fault()
            return
        core = self.cores[packet.core]
        if packet.data is not None:
            core.vmem[packet.address] = packet.data
        core.signal(packet.semaphore, packet.amount)

    def link_fault(self) -> None:
        """Stop all cores with the fault LINK."""
        for core in self.cores:
            core.stop(Fault.LINK)

    def run(self, max_bundles: int, turn: int = 1) -> ChipRun:
        """Execute bundles of the cores in turn, until no core can continue.

        If programs synchronize correctly, their results do not depend on ``turn``.

        Parameters
        ----------
        max_bundles : int
            Maximum number of bundles that each core executes.
        turn : int
            Number of bundles that a core executes in one turn; fewer if it stops or waits.

        Raises
        ------
        TypeError, ValueError
            If an argument is not an integer, ``max_bundles`` is negative, or ``turn`` is 0 or less.
        """
        integer("max_bundles", max_bundles, 0)
        integer("turn", turn, 1)
        executed = [0] * len(self.cores)
        going = True
        while going:
            going = False
            running = [(number, core) for number, core in enumerate(self.cores) if core.running]
            # Nobody takes turns with the last core that runs.
            most = turn if len(running) > 1 else max_bundles
            for number, core in running:
                count = core.run(min(most, max_bundles - executed[number]))
                executed[number] += count
                going |= count > 0
        return ChipRun(*stops(dict(enumerate(self.cores))), tuple(executed))
