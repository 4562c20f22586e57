"""State that all writers of a program's code share."""

from dataclasses import dataclass, field

from hdl.config import Config
from sim.compiler.graph.ir import Value
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.control.counters import Counters
from sim.compiler.program.places.constants import Constants
from sim.compiler.program.places.places import Places
from sim.compiler.program.tilings import Tilings

__all__ = ["Context"]


@dataclass(eq=False)
class Context:
    """Shared state while one core's program is planned.

    Attributes
    ----------
    config : Config
        The chip.
    tilings : dict of Value to Tiling
        The tiling of each value.
    own_transfers : bool
        Whether kernels may themselves start transfers of their operands from HBM, and of their
        results to HBM. The code then contains the HBM addresses of these operands and results.
    alike : bool
        Whether all devices execute the same operations.
    compact : bool
        Whether joining kernels must save many cycles for each bundle that it adds to the code.
        The aim is that all code stays in instruction memory.
    stream : Stream
        Collects the code.
    places : Places
        Tracks where each value lies.
    constants : Constants
        Collects the constants in HBM.
    memory : ScalarMemory
        Address map of scalar memory.
    counters : Counters
        Allocates words of scalar memory for loop counters.
    needed : dict of Value to tuple of range
        Values of which this core needs only some vectors, and the numbers of these vectors.
    ends : dict of Value to Rows
        Results of the program's last operation of which this core writes only `needed` vectors to
        HBM, and the HBM rows of all vectors.
    """

    config: Config
    tilings: Tilings
    own_transfers: bool = True
    alike: bool = False
    compact: bool = False
    stream: Stream = field(init=False)
    places: Places = field(init=False)
    constants: Constants = field(init=False)
    memory: ScalarMemory = field(init=False)
    counters: Counters = field(init=False)
    needed: dict[Value, tuple[range, ...]] = field(default_factory=dict, init=False)
    ends: dict[Value, Rows] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.stream = Stream()
        self.places = Places(self.stream, self.config, self.tilings)
        self.constants = Constants(self.config)
        self.memory = ScalarMemory(self.config)
        self.counters = Counters(self.memory.counters)
