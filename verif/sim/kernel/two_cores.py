"""Two cores side by side, for tests of how threads share the work of their kernels."""

import pathlib
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hdl.config import Config
from hdl.core.core import Core
from hdl.core.interface import REQUEST_ADDRESS_BITS, REQUEST_WORD_BITS, Space
from hdl.encoding import bundle_words
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary, instantiate
from sim.models.core import core_sources
from sim.models.kernels import ModelSources
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

__all__ = ["TwoCores", "TwoCoresModel", "two_cores_library"]

TOP = "two_cores"
CORES = 2


class TwoCores(wiring.Component):
    """Two cores that share only the clock and the reset: ports ``core_0`` and ``core_1``.

    Parameters
    ----------
    config : Config
        Parameters of each core.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        # Only its signature is used; it is not part of the design.
        self._shape = Core(config)
        self._shape._MustUse__used = True
        super().__init__({f"core_{number}": Out(self._shape.signature)
                          for number in range(CORES)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for number in range(CORES):
            core = instantiate(m, platform, f"placed_{number}", "core", lambda: Core(self.config))
            wiring.connect(m, core, wiring.flipped(getattr(self, f"core_{number}")))
        return m


def _sources(config: Config) -> ModelSources:
    core = core_sources(config, kernels=True)
    around = VerilogLibrary().write(TOP, lambda: TwoCores(config), leave_out=["core"])
    return {"verilog": {**around, **core["verilog"]}, "cpp": core["cpp"]}


def two_cores_library(config: Config) -> pathlib.Path:
    """The model's library of `TwoCores`, with kernels.

    Several threads may share the work of a kernel's step.
    """
    sources = cached_json(TOP, asdict(config), lambda: _sources(config))
    return build_model(TOP, sources["verilog"], cpp=sources["cpp"], optimise=None,
                       waivers=LINT_WAIVERS)


class TwoCoresModel:
    """Drives a model of `TwoCores` through the cores' ports to the host.

    Parameters
    ----------
    model : Model
        The verilated module.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        model.reset()

    def load_program(self, core: int, bundles: Sequence[int]) -> None:
        """Writes bundles to a core's instruction memory, a word a cycle."""
        rows = []
        for address, bundle in enumerate(bundles):
            for number, word in enumerate(bundle_words(bundle)):
                at = (address << REQUEST_WORD_BITS) + number
                request = (1 | Space.IMEM.value << 1 | at << 3
                           | int(word) << (3 + REQUEST_ADDRESS_BITS))
                rows.append((request & 0xFFFFFFFF, request >> 32))
        name = f"core_{core}__request"
        self.model.poke(f"{name}__valid", 1)
        seen = self.model.run({f"{name}__payload": np.array(rows, np.uint32)}, [f"{name}__ready"])
        self.model.poke(f"{name}__valid", 0)
        if not seen[f"{name}__ready"].all():
            raise RuntimeError(f"core {core} did not take its program at a word a cycle")
        self.model.tick(4)

    def start(self, core: int) -> None:
        """Starts a core at bundle 0."""
        self.model.poke(f"core_{core}__start", 1)
        self.model.tick()
        self.model.poke(f"core_{core}__start", 0)
