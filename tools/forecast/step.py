"""Cycles of a step of data-parallel training on the cores of a pod."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tools.forecast.fit import non_negative
from tools.forecast.samples import Program, StepSample
from tools.forecast.sums import SumModel
from tools.forecast.torus import CORES, shape_of

__all__ = ["Forecast", "StepModel"]

_CHIP = 1, 1


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
        Cycles of a step on one core with the same examples for each core.
    compiled : bool
        Whether the compiler makes the sums; else, `systolith.AllReduce` follows the step.
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
    """Parameters of a step with the compiled sums of its gradients.

    A step on one chip takes the cycles of one core, and a share of those of the sums. On several
    chips, the order of kernels differs, so the cycles of a core may grow.

    Attributes
    ----------
    sums : SumModel
        Model of the sums.
    near : float
        Share of the sums of a chip's two cores during which the cores do nothing else.
    far : float
        The same share of the cycles by which a sum over several chips takes longer than one over
        one chip.
    growth : float
        By what share of one core's cycles a step on several chips grows.
    """

    sums: SumModel
    near: float
    far: float
    growth: float

    def cycles(self, program: Program, cores: int) -> float:
        """Return the cycles of a step on ``cores`` cores."""
        return program.cycles + sum(
            share * cycles for share, cycles in zip(
                (self.near, self.far, self.growth), _parts(self.sums, program, cores),
                strict=True))

    @classmethod
    def fitted(cls, sums: SumModel, programs: Mapping[str, Program],
               samples: Iterable[StepSample]) -> "StepModel":
        """Fit the parameters to steps on several cores, by least squares of relative errors.

        ``programs`` maps the name of each program in the samples to the program.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters.
        """
        used = [sample for sample in samples if sample.cores > 1]
        found = non_negative(
            [_parts(sums, programs[each.program], each.cores) for each in used],
            [each.cycles - programs[each.program].cycles for each in used],
            [1 / each.cycles for each in used])
        return cls(sums, *found)


def _parts(sums: SumModel, program: Program, cores: int) -> tuple[float, float, float]:
    """Return the cycles that `StepModel.near`, ``far`` and ``growth`` are shares of."""
    if cores == 1:
        return 0, 0, 0
    near = sums.cycles(_CHIP, program.sizes)
    if cores <= CORES:
        return near, 0, 0
    return near, sums.cycles(shape_of(cores), program.sizes) - near, program.cycles
