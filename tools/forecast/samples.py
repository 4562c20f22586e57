"""Measured cycles, from which the model is calibrated, and the file that keeps them."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sim.compiler.program.compiled import SumRecord

__all__ = ["COMPILED", "FILE", "LINKS", "Plan", "Program", "Samples", "StepSample", "SumSample",
           "load", "save"]

FILE = pathlib.Path(__file__).with_name("calibration.json")
COMPILED = "compiled"
LINKS = "links"


@dataclass(frozen=True)
class SumSample:
    """Cycles of a program in RTL that adds arrays over all cores or chips, from HBM to HBM.

    Attributes
    ----------
    kind : str
        `COMPILED`: ``psum`` of arrays over all cores. `LINKS`: `systolith.AllReduce` of an array.
    shape : tuple of int
        Chips along X and along Y.
    sizes : tuple of int
        Bytes of each array.
    contributions : int
        Number of arrays of each chip: 1, or 2 if each core has its own, which the chip adds first.
    cycles : int
        From the common start of all cores to the end of the last program.
    """

    kind: str
    shape: tuple[int, int]
    sizes: tuple[int, ...]
    contributions: int
    cycles: int


@dataclass(frozen=True)
class StepSample:
    """Cycles in RTL of a step of training on ``cores`` cores; ``program`` is a `Program`'s name."""

    program: str
    cores: int
    cycles: int


@dataclass(frozen=True)
class Program:
    """A step of training on one core.

    Attributes
    ----------
    name, title : str
        Name of one word, and title of one line.
    batch : int
        Examples for each core.
    unit : str
        What an example is, in the plural.
    sizes : tuple of int
        Bytes of each array of gradients, which all cores sum.
    cycles : int
        Cycles of a step on one core.
    source : str
        Where ``cycles`` come from: "RTL" or "compiler", if predicted.
    """

    name: str
    title: str
    batch: int
    unit: str
    sizes: tuple[int, ...]
    cycles: int
    source: str


@dataclass(frozen=True)
class Plan:
    """How the compiler plans a step of training.

    Attributes
    ----------
    program : str
        Name of a `Program`.
    cores : int
    kernels : int
        Predicted cycles of the kernels of the core whose kernels take the longest, without sums.
        The code of a sum that is written within a kernel counts.
    sums : tuple of SumRecord
        The sums over all cores; none if the program exchanges values instead.
    """

    program: str
    cores: int
    kernels: int
    sums: tuple[SumRecord, ...]


@dataclass(frozen=True)
class Samples:
    """All samples.

    Attributes
    ----------
    config : str
        Preset of the chips.
    revisions : mapping of str to str
        For each group of samples (`tools.forecast.measure.GROUPS`), the commit that was measured.
    programs, sums, steps : tuple
    strong : tuple of Program
        Measurements of one of ``programs``, each with another number of examples for each core.
    plans : tuple of Plan
        Plans of the programs in ``programs`` and ``strong``, on 1 core and on several chips.
    """

    config: str
    revisions: Mapping[str, str]
    programs: tuple[Program, ...]
    sums: tuple[SumSample, ...]
    steps: tuple[StepSample, ...]
    strong: tuple[Program, ...]
    plans: tuple[Plan, ...]


def save(samples: Samples, path: pathlib.Path = FILE) -> None:
    """Write samples to a file, one on each line."""
    told = asdict(samples)
    parts = [f'"{name}": {json.dumps(told[name])}' for name in ("config", "revisions")]
    parts += [f'"{name}": [\n  ' + ",\n  ".join(map(json.dumps, told[name])) + "\n ]"
              for name in ("programs", "sums", "steps", "strong", "plans")]
    path.write_text("{\n " + ",\n ".join(parts) + "\n}\n", encoding="utf-8")


def load(path: pathlib.Path = FILE) -> Samples:
    """Read the samples that `save` wrote.

    Raises
    ------
    ValueError
        If the file has other contents.
    """
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return Samples(
            told["config"], told["revisions"], _programs(told["programs"]),
            tuple(SumSample(**each | {"shape": _pair(each["shape"]),
                                      "sizes": tuple(each["sizes"])}) for each in told["sums"]),
            tuple(StepSample(**each) for each in told["steps"]), _programs(told["strong"]),
            tuple(Plan(**each | {"sums": tuple(SumRecord(**item) for item in each["sums"])})
                  for each in told["plans"]))
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} must have samples: {error!r}") from error


def _programs(told: Sequence[Mapping[str, Any]]) -> tuple[Program, ...]:
    return tuple(Program(**{**each, "sizes": tuple(each["sizes"])}) for each in told)


def _pair(shape: Sequence[int]) -> tuple[int, int]:
    width, height = shape
    return width, height
