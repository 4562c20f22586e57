"""Parts of a plan that all writers of code share."""

from dataclasses import dataclass, field

from hdl.config import Config
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.control.counters import Counters
from sim.compiler.program.places.constants import Constants
from sim.compiler.program.places.places import Places
from sim.compiler.program.tilings import Tilings

__all__ = ["Context"]


@dataclass(eq=False)
class Context:
    """The state of a core's program while it is planned.

    Attributes
    ----------
    config : Config
        The chip.
    tilings : dict of Value to Tiling
        Tilings of all values.
    own_transfers : bool
        Kernels may start transfers of operands from HBM, and of results, themselves. The addresses
        of their buffers are then in the code.
    stream : Stream
        Takes the code.
    places : Places
        Places of values.
    constants : Constants
        Takes constants in HBM.
    memory : ScalarMemory
        Map of scalar memory.
    counters : Counters
        Counters of loops.
    """

    config: Config
    tilings: Tilings
    own_transfers: bool = True
    stream: Stream = field(init=False)
    places: Places = field(init=False)
    constants: Constants = field(init=False)
    memory: ScalarMemory = field(init=False)
    counters: Counters = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream()
        self.places = Places(self.stream, self.config, self.tilings)
        self.constants = Constants(self.config)
        self.memory = ScalarMemory(self.config)
        self.counters = Counters(self.memory.counters)
