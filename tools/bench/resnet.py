"""ResNet-50's forward pass on both cores of the chip: four images of 224 x 224."""

from hdl.config import Config
from sim.apps.resnet.__main__ import SIDE, arguments, compile_forward, run
from sim.driver.device import Device

__all__ = ["resnet_figures"]


def resnet_figures(config: Config, side: int = SIDE) -> dict[str, float]:
    """Measure the arrays' utilization, the cycles, and the seconds that the simulation takes.

    Images have ``side`` x ``side`` pixels.
    """
    values = arguments(config.cores, side)
    executable = compile_forward(config, values, config.cores)
    with Device.open(config) as device:
        result = run(device, executable, values)
    return {"resnet50_forward": result.share, "resnet50_cycles": result.cycles,
            "resnet50_seconds": result.seconds}
