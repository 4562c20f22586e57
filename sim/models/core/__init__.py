"""The simulated core."""

from sim.models.core.library import core_grids, core_library, core_sources
from sim.models.core.model import CoreModel
from sim.models.core.processor import Processor

__all__ = ["CoreModel", "Processor", "core_grids", "core_library", "core_sources"]
