"""Cycles of a step of data-parallel training on the cores of a pod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tools.forecast.fit import non_negative
from tools.forecast.samples import Program, StepSample
from tools.forecast.sums import SumModel
from tools.forecast.torus import CORES, shape_of

__all__ = ["Forecast", "StepModel"]

@dataclass(frozen=True)
class Forecast:
    """Speed, efficiency and cost of a step of training on some number of cores.

    Attributes
    ----------
    cores : int
    cycles : float
        Cycles of a step.
    measured : bool
        Whether ``cycles`` were measured in RTL; else they are predicted.
    batch : int
        Examples for each core.
    one : float
        Cycles of a step on one core with ``batch`` examples.
    compiled : bool
        Whether the program of the step sums the gradients; else `systolith.AllReduce` sums them
        after the step.
    """

    cores: int
    cycles: float
    measured: bool
    batch: int
    one: float
    compiled: bool = True

    @property
    def efficiency(self) -> float:
        """Speed, relative to ``cores`` times that of one core."""
        return self.one / self.cycles

    def speed(self, clock: float) -> float:
        """Return the examples in a second, at a clock of ``clock`` Hz."""
        return self.cores * self.batch * clock / self.cycles

    def cost(self, clock: float) -> float:
        """Return the chip-seconds for a million examples, at a clock of ``clock`` Hz.

        A chip counts for the whole time, even if one of its cores is not used.
        """
        return 1e6 * -(-self.cores // CORES) / self.speed(clock)


@dataclass(frozen=True)
class StepModel:
    """A step with the compiled sums of its gradients.

    On several chips, its cycles are those of a step on the two cores of one chip, plus the exposed
    share of the cycles of the sum over the torus.

    Attributes
    ----------
    sums : SumModel
        Model of the sums.
    chips : mapping of str to int
        Measured cycles of a step on one chip, by the program's name. For other programs, they are
        assumed to be those on one core.
    exposed : float
        Share of the sum over several chips during which the cores do nothing else.
    """

    sums: SumModel
    chips: Mapping[str, int]
    exposed: float

    def cycles(self, program: Program, cores: int) -> float:
        """Return the cycles of a step on ``cores`` cores."""
        if cores == 1:
            return program.cycles
        return (self.chips.get(program.name, program.cycles)
                + self.exposed * self.sums.ticks(shape_of(cores), program.sizes))

    @classmethod
    def fitted(cls, sums: SumModel, programs: Mapping[str, Program],
               samples: Sequence[StepSample]) -> "StepModel":
        """Fit `exposed` to steps on several chips, by least squares of relative errors.

        ``programs`` maps the name of each program in the samples to the program.

        Raises
        ------
        ValueError
            If no sample has several chips.
        """
        one = cls(sums, {each.program: each.cycles for each in samples if each.cores == CORES}, 0)
        used = [sample for sample in samples if sample.cores > CORES]
        [exposed] = non_negative(
            [[sums.ticks(shape_of(each.cores), programs[each.program].sizes)] for each in used],
            [each.cycles - one.cycles(programs[each.program], each.cores) for each in used],
            [1 / each.cycles for each in used])
        return replace(one, exposed=exposed)
