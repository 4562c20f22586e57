"""Cycles of a step of data-parallel training on the cores of a pod."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tools.forecast.fit import non_negative
from tools.forecast.samples import Plan, Program, StepSample
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

    On several chips, a step takes the cycles of its kernels, of sums while no kernel runs, and of
    whatever else a step on one core takes besides its kernels. The compiler predicts the cycles of
    kernels (`Plan`). A sum during which kernels run for longer than the sum takes no cycles of its
    own. Otherwise, it takes the cycles of its ticks and `start`, and saves `led` if it leads a
    kernel.

    Attributes
    ----------
    sums : SumModel
        Model of the sums.
    chips : mapping of str to int
        Measured cycles of a step on one chip, by the program's name. For other programs, they are
        assumed to be those on one core.
    plans : sequence of Plan
        Plans of the programs, on 1 core and on several chips.
    start : float
        Cycles of a sum besides its ticks.
    led : float
        Cycles that a step saves for each row of a sum that leads a kernel: the core computes and
        stores results while the sum is in progress.
    """

    sums: SumModel
    chips: Mapping[str, int]
    plans: Sequence[Plan]
    start: float
    led: float

    def cycles(self, program: Program, cores: int) -> float:
        """Return the cycles of a step on ``cores`` cores.

        Raises
        ------
        ValueError
            If there is no plan of the program on one core, or on ``cores`` cores.
        """
        if cores == 1:
            return program.cycles
        if cores == CORES:
            return self.chips.get(program.name, program.cycles)
        constant, sums, rows = self._parts(program, cores)
        return constant + self.start * sums - self.led * rows

    def _parts(self, program: Program, cores: int) -> tuple[float, float, float]:
        """Return the cycles of a step on several chips without `start` and `led`, and two factors.

        The cycles are the first number plus ``start`` times the second, minus ``led`` times the
        third.
        """
        alone, plan = self._plan(program.name, 1), self._plan(program.name, cores)
        constant, sums, rows = float(plan.kernels + program.cycles - alone.kernels), 0, 0
        for item in plan.sums:
            ticks = self.sums.ticks(shape_of(cores), item)
            if not (item.apart and item.kernels >= ticks):
                constant, sums = constant + ticks, sums + 1
                rows += item.leads * item.vectors * self.sums.config.sublanes
        return constant, sums, rows

    def _plan(self, name: str, cores: int) -> Plan:
        for plan in self.plans:
            if (plan.program, plan.cores) == (name, cores):
                return plan
        raise ValueError(f"there must be a plan of {name} on {cores} core{'s' * (cores > 1)}")

    @classmethod
    def fitted(cls, sums: SumModel, programs: Mapping[str, Program], samples: Sequence[StepSample],
               plans: Sequence[Plan]) -> "StepModel":
        """Fit `start` and `led` to steps on several chips, by least squares of relative errors.

        ``programs`` maps the name of each program in the samples to the program.

        Raises
        ------
        ValueError
            If the samples do not determine the parameters, or if a plan is missing.
        """
        chips = {each.program: each.cycles for each in samples if each.cores == CORES}
        model = cls(sums, chips, plans, 0, 0)
        used = [sample for sample in samples if sample.cores > CORES]
        parts = [model._parts(programs[each.program], each.cores) for each in used]
        start, led = non_negative(
            [[number, -rows] for _, number, rows in parts],
            [each.cycles - constant for each, (constant, _, _) in zip(used, parts, strict=True)],
            [1 / each.cycles for each in used])
        return replace(model, start=start, led=led)
