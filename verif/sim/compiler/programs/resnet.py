"""ResNet-50, and ResNets with fewer and narrower stages: inference, and a step of training."""

from typing import Any

from sim.apps.resnet.network import STAGES, forward, images, parameters
from sim.apps.resnet.step import step
from verif.sim.compiler.programs.program import Program, tokens

__all__ = ["resnet_forward", "resnet_step"]


def resnet_forward(batch: int = 1, side: int = 32, stages: tuple[int, ...] = STAGES,
                   width: int = 64, classes: int = 1000) -> Program:
    """Inference: logits of images of shape (batch, side, side, 3)."""
    return Program(lambda parameters, x: forward(parameters, x, stages, False),
                   (parameters(stages, width, classes), images(batch, side)))


def resnet_step(batch: int = 1, side: int = 32, stages: tuple[int, ...] = STAGES,
                width: int = 64, classes: int = 1000) -> Program:
    """A step of gradient descent."""
    def update(parameters: Any, x: Any, labels: Any) -> Any:
        value, _, updated = step(parameters, x, labels, stages)
        return value, updated

    return Program(update, (parameters(stages, width, classes), images(batch, side),
                          tokens(1002, classes, batch)))
