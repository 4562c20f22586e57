"""All test programs, at small sizes."""

from collections.abc import Callable

from verif.sim.compiler.programs.networks import cnn_step, lstm_step, mlp_step, transformer_step
from verif.sim.compiler.programs.numbers import (
    bits,
    normal_numbers,
    permutation,
    search,
    uniform_numbers,
)
from verif.sim.compiler.programs.program import Program
from verif.sim.compiler.programs.resnet import resnet_forward, resnet_step
from verif.sim.compiler.programs.updates import adam_step

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp_step": mlp_step,
    "cnn_step": cnn_step,
    "lstm_step": lstm_step,
    "transformer_step": transformer_step,
    "adam_step": adam_step,
    "bits": bits,
    "normal_numbers": normal_numbers,
    "uniform_numbers": uniform_numbers,
    "permutation": permutation,
    "search": search,
    "small_resnet_forward": lambda: resnet_forward(side=16, stages=(1, 2), width=4, classes=5),
    "small_resnet_step": lambda: resnet_step(side=16, stages=(1, 2), width=4, classes=5),
}
"""Functions that make the programs, by name; the ResNets have fewer, narrower stages than usual."""
