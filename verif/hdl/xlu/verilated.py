"""The cross-lane unit as a verilated model between the checker's chains and registers."""

from dataclasses import asdict

from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.xlu.reduce import reduce_nodes
from hdl.xlu.transpose import transpose_banks
from hdl.xlu.xlu import Xlu
from sim.models.kernels import with_kernels
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model
from verif.models.xlu import Op, Outputs, Reset, Scenario, XluChecker, run

__all__ = ["VerilatedXlu", "xlu_model"]


def xlu_model(config: Config, *, kernels: bool = False) -> Model:
    """The unit's model in pure Verilog, or with tile kernels for its tree and banks."""
    grids = (reduce_nodes(config), transpose_banks(config)) if kernels else ()
    sources = cached_json("xlu", [asdict(config), kernels],
                          lambda: with_kernels("xlu", lambda: Xlu(config), grids))
    return Model(build_model("xlu", sources["verilog"], cpp=sources["cpp"], waivers=LINT_WAIVERS,
                             optimise=None))


class VerilatedXlu:
    """Drives a model's pins: plays scenarios on the model, under a new `XluChecker`.

    Attributes
    ----------
    checker : XluChecker
    """

    def __init__(self, model: Model, config: Config) -> None:
        self._model = model
        self.checker = XluChecker(config)
        self.reset()

    def reset(self) -> None:
        self._model.poke("start__valid", 0)
        self._model.reset()
        self.checker.restart()
        self.checker.begin(self._outputs())

    def cycle(self, op: Op | None = None) -> None:
        """Runs a cycle, in which ``op`` is offered."""
        poke = self._model.poke
        poke("row", self.checker.row)
        poke("start__valid", int(op is not None))
        if op is not None:
            for name in ("op", "d", "a", "amount"):
                poke(f"start__{name}", int(getattr(op, name)))
        self.checker.end(op)
        self._model.tick()
        self.checker.begin(self._outputs())

    def play(self, scenario: Scenario) -> None:
        """Runs a scenario to its end."""
        for step in scenario:
            if isinstance(step, Reset):
                self.reset()
            else:
                self.cycle(step)

    def run(self, *ops: Op) -> None:
        """Runs operations, in order and each as soon as possible, until the unit is idle."""
        self.play(run(self.checker, ops))

    def _outputs(self) -> Outputs:
        peek = self._model.peek
        return Outputs(
            ready=bool(peek("ready")), free=bool(peek("free")), busy=bool(peek("busy")),
            pending=peek("pending__d") if peek("pending__valid") else None,
            load=peek("chain__source") if peek("chain__load") else None,
            shift=bool(peek("chain__shift")),
            row=self._model.peek_words("result__row") if peek("result__shift") else None,
            write=peek("write__d") if peek("write__valid") else None)
