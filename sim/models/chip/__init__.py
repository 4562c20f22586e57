"""The simulated chip with its memory."""

from sim.models.chip.library import chip_library
from sim.models.chip.model import ChipModel
from sim.models.chip.registers import RegisterError
from sim.models.chip.simulation import Until
from sim.models.chip.transfers import DescriptorError, staging_rows

__all__ = ["ChipModel", "DescriptorError", "RegisterError", "Until", "chip_library",
           "staging_rows"]
