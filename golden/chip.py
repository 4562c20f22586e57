"""The golden chip: golden machines that share an HBM and signal each other, still without time."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from golden.core import GoldenCore
from golden.dma import allocate_hbm
from hdl.checks import integer
from hdl.config import Config
from hdl.isa import Fault

__all__ = ["ChipRun", "GoldenChip"]


@dataclass(frozen=True)
class ChipRun:
    """How a run of a chip ended.

    Attributes
    ----------
    executed : tuple of int
        Bundles that each core executed.
    running : tuple of int
        Cores that could go on: the bundles allowed were too few.
    waiting : tuple of int
        Cores that wait for a semaphore. If no core can go on, only the host can end that.
    faults : dict of int to Fault
        Cores that stopped with a fault, and which.
    """

    executed: tuple[int, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    faults: dict[int, Fault]

    @property
    def done(self) -> bool:
        """Whether all cores stopped, none with a fault."""
        return not (self.running or self.waiting or self.faults)


class GoldenChip:
    """A chip as programs and host see it.

    Parameters
    ----------
    config : Config
        Its parameters; ``config.cores`` machines.

    Attributes
    ----------
    cores : tuple of GoldenCore
        The cores; all that a `GoldenCore` can do, they can.
    hbm : array of uint32, shape (hbm_rows, lanes)
        What they share. May be read and written in place; it takes memory only where it is written.

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

    @property
    def config(self) -> Config:
        """The chip's parameters."""
        return self._config

    def run(self, max_bundles: int, turn: int = 1) -> ChipRun:
        """Executes bundles of all cores in turn until none can go on.

        Where programs wait for each other as they must, ``turn`` changes nothing but the order in
        which things happen.

        Parameters
        ----------
        max_bundles : int
            How many at most, of each core.
        turn : int
            How many a core executes until it is the next one's turn; fewer if it stops or waits.

        Raises
        ------
        TypeError, ValueError
            If an argument is not an integer, ``max_bundles`` is negative, or ``turn`` not positive.
        """
        integer("max_bundles", max_bundles, 0)
        integer("turn", turn, 1)
        executed = [0] * len(self.cores)
        going = True
        while going:
            going = False
            for number, core in enumerate(self.cores):
                count = core.run(min(turn, max_bundles - executed[number]))
                executed[number] += count
                going |= count > 0
        numbered = list(enumerate(self.cores))
        return ChipRun(
            tuple(executed),
            tuple(number for number, core in numbered if core.running and not core.waiting),
            tuple(number for number, core in numbered if core.waiting),
            {number: core.fault for number, core in numbered if core.fault is not Fault.NONE})
