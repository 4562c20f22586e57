"""Fits the model to cycles of up to four chips in RTL, and compares it with those of more chips."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from hdl.config import Config
from tools.forecast.links import LinkModel
from tools.forecast.samples import LINKS, Program, Samples
from tools.forecast.step import Forecast, StepModel
from tools.forecast.sums import SumModel, streams
from tools.forecast.torus import CORES, Shape, shape_of

__all__ = ["MOST_CHIPS", "STRONG_BATCH", "Comparison", "Model"]

MOST_CHIPS = 4
"""The model is fitted to samples of at most this number of chips, and validated with the others."""
STRONG_BATCH = 2048
"""Examples of a step in `Model.strong`: the total over all cores, on any number of cores."""


@dataclass(frozen=True)
class Comparison:
    """A measured sample and its prediction.

    Attributes
    ----------
    what : str
        What was measured.
    shape : tuple of int
        Chips along X and along Y.
    measured, predicted : float
        Cycles.
    """

    what: str
    shape: Shape
    measured: float
    predicted: float

    @property
    def fitted(self) -> bool:
        """Whether the model was fitted to this sample."""
        return math.prod(self.shape) <= MOST_CHIPS

    @property
    def error(self) -> float:
        """(predicted - measured) / measured: positive if the prediction is too high."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        chips = "x".join(map(str, self.shape))
        return (f"{chips:>6}  {self.what:44}{self.measured:12,.0f}{self.predicted:12,.0f}"
                f"{self.error:+9.1%}  {'fitted' if self.fitted else 'validation'}")


@dataclass(frozen=True)
class Model:
    """The calibrated model.

    Attributes
    ----------
    samples : Samples
        The samples with which it was calibrated and validated.
    compiled : SumModel
        Model of compiled sums.
    links : LinkModel
        Model of `systolith.AllReduce`.
    step : StepModel
        Model of a step with compiled sums.
    """

    samples: Samples
    compiled: SumModel
    links: LinkModel
    step: StepModel

    @classmethod
    def fitted(cls, samples: Samples) -> "Model":
        """Fit all parameters to the samples of at most `MOST_CHIPS` chips.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters.
        """
        config = Config.preset(samples.config)
        small = [each for each in samples.sums if math.prod(each.shape) <= MOST_CHIPS]
        links = LinkModel.fitted(config, small)
        compiled = SumModel.fitted(config, links.times.latency, small)
        programs = {program.name: program for program in samples.programs}
        step = StepModel.fitted(compiled, programs, [
            each for each in samples.steps if math.prod(shape_of(each.cores)) <= MOST_CHIPS],
            samples.plans)
        return cls(samples, compiled, links, step)

    def comparisons(self) -> Iterator[Comparison]:
        """Yield all samples with their predictions."""
        for sums in self.samples.sums:
            size = f"{sum(sums.sizes) / 1024:,.0f} KiB"
            if sums.kind == LINKS:
                what = f"AllReduce, {size}, {sums.contributions} a chip"
                predicted = self.links.cycles(sums.shape, sums.sizes[0], sums.contributions)
            else:
                what = f"compiled sums, {size}, {len(sums.sizes)} arrays"
                predicted = self.compiled.cycles(sums.shape, sums.sizes)
            yield Comparison(what, sums.shape, sums.cycles, predicted)
        programs = {program.name: program for program in self.samples.programs}
        for step in self.samples.steps:
            if step.cores <= CORES:
                continue  # The model has these cycles.
            program = programs[step.program]
            yield Comparison(f"{program.title}, {step.cores} cores", shape_of(step.cores),
                             step.cycles, self.step.cycles(program, step.cores))

    def forecast(self, program: Program, cores: int) -> Forecast:
        """Return the forecast of a step with compiled sums, from measured cycles if there are any.

        Otherwise the cycles are predicted. The efficiency is relative to ``program.cycles``, the
        cycles on one core. If a step on several chips was not measured and the compiler does not
        stream its sums, the result is that of `at_link_rate`.
        """
        measured = {(each.program, each.cores): each.cycles for each in self.samples.steps}
        found = measured.get((program.name, cores))
        if cores == 1 and program.source == "RTL":
            found = program.cycles
        if found is None and cores > CORES and not streams(
                self.links.config, shape_of(cores), program.sizes):
            return self.at_link_rate(program, cores)
        cycles = self.step.cycles(program, cores) if found is None else found
        return Forecast(cores, cycles, found is not None, program.batch, program.cycles)

    def strong(self) -> list[Forecast]:
        """Return forecasts of steps with `STRONG_BATCH` examples in all, on more and more cores.

        Their `Forecast.one` is the cycles of a step with all examples on one core, divided by the
        number of cores: an efficiency of 1 is a linear speed-up.
        """
        [first] = (each for each in self.samples.strong if each.batch == STRONG_BATCH)
        programs = {each.batch: each for each in self.samples.programs if each.sizes == first.sizes}
        programs |= {each.batch: each for each in self.samples.strong}
        points = [(program, STRONG_BATCH // batch)
                  for batch, program in sorted(programs.items(), reverse=True)]
        return [replace(self.forecast(program, cores), one=first.cycles / cores)
                for program, cores in points]

    def at_link_rate(self, program: Program, cores: int) -> Forecast:
        """Predict a step on several chips, after which `systolith.AllReduce` sums the gradients.

        The sums do not overlap with the step. On one chip, the result is that of `forecast`.
        """
        if cores <= CORES:
            return self.forecast(program, cores)
        cycles = program.cycles + self.links.cycles(
            shape_of(cores), sum(program.sizes), CORES)
        return Forecast(cores, cycles, False, program.batch, program.cycles, compiled=False)

    def parameters(self) -> str:
        """Return a table of all parameters."""
        return "\n".join(f"{name:16}" + ", ".join(
            f"{each.name} {getattr(part, each.name):.3g}" for each in fields(part)
            if each.name not in ("config", "sums", "chips", "plans"))
            for name, part in (("AllReduce", self.links.times), ("compiled sums", self.compiled),
                               ("steps", self.step)))
