"""``make sim``: a model that is trained on the chip in RTL.

Random weights, all steps of training, and the classes of held-out inputs are computed on both cores
of the chip, from a program that is plain JAX. The host writes the data to the chip's memory, starts
a call of some epochs, and reads the losses.
"""

import argparse
import json
import pathlib
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from hdl.config import PRESETS, Config
from sim.apps.training.cnn import cnn
from sim.apps.training.perceptron import perceptron
from sim.apps.training.pictures import draw_cycles, draw_loss
from sim.apps.training.resnet import resnet
from sim.apps.training.run import (
    GoldenCheck,
    Run,
    accuracy,
    float32_accuracy,
    measure_step,
    products,
    show,
    trace_step,
    train,
)
from sim.apps.training.task import Task
from sim.apps.training.transformer import transformer
from sim.driver.device import Device
from sim.verilated.toolchain import build_folder

__all__ = ["MODELS", "main", "report"]

MODELS: dict[str, Callable[..., Task]] = {
    "perceptron": perceptron, "cnn": cnn, "resnet": resnet, "transformer": transformer}
"""What can be trained, by name."""


_LOOK_SECONDS = 0.5
"""Time between two updates of the progress bar."""


class _Bar:
    """A progress bar: steps, and what the chip does."""

    def __init__(self, task: Task, bar: tqdm) -> None:
        self._task = task
        self._bar = bar
        self._next = 0.0

    def __call__(self, run: Run, cycles: int, seconds: float) -> None:
        """Show a run. Within a call, steps are estimated from cycles."""
        if cycles and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK_SECONDS
        done = len(run.losses)
        more = int(cycles / (run.cycles / done if done else run.step_cycles))
        self._bar.n = min(done + min(more, self._task.steps_per_call - 1), self._task.steps)
        speed = (run.cycles + cycles) / max(run.seconds + seconds, 1e-9)
        shown = {"loss": f"{run.losses[-1]:.4f}"} if done else {}
        self._bar.set_postfix({**shown, "cycles/s": f"{speed:,.0f}"}, refresh=False)
        self._bar.refresh()


def report(task: Task, config: Config, *, everything: bool = False, progress: bool = False,
           folder: pathlib.Path | None = None, trace: pathlib.Path | None = None
           ) -> dict[str, Any]:
    """Train in RTL, compare with the golden model and with float32, and draw pictures.

    Parameters
    ----------
    task : Task
    config : Config
    everything : bool
        The golden model repeats all steps, not a sample.
    progress : bool
        Show progress bars.
    folder : path, optional
        Where pictures go, if anywhere.
    trace : path, optional
        Common prefix of the files of a trace of one more step, as in `Device.open`.

    Returns
    -------
    dict
        The figures of ``build/report.json``.
    """
    exact = float32_accuracy(task)
    started = time.perf_counter()
    with Device.open(config) as device:
        opened = time.perf_counter()
        with tqdm(total=task.steps, desc="training in RTL", unit="step", leave=False,
                  disable=not progress) as bar:
            run = train(task, device, _Bar(task, bar))
        total = device.counters(0)["cycles"]
        shown = show(task, run.states[-1], device)
        if folder is not None:
            draw_loss(run.losses, task.title, folder / "loss.png")
            draw_cycles(measure_step(task, run.states[-1], device),
                        f"A step of one core's part of the batch: {task.title}",
                        folder / "cycles.png")
    if trace is not None:
        trace_step(task, run.states[-1], config, trace)
    assert run.predicted is not None
    check = GoldenCheck(task, config, everything=everything)
    same = [equal for _, equal in tqdm(check.compare(run), "golden model", len(check.steps),
                                       unit="step", leave=False, disable=not progress)]
    cores, cycles = run.cores, run.cycles
    return {
        "model": task.name,
        "title": task.title,
        "config": f"{config.cores} x {config.array}x{config.array}",
        "test_images": len(task.labels),
        "accuracy_float32": exact,
        "accuracy": accuracy(run.predicted, task.labels),
        "bit_exact": all(same),
        "loss_bit_exact": all(same),
        "losses_compared": len(same),
        "first_loss": float(run.losses[0]),
        "final_loss": float(run.losses[-1]),
        "train_steps": task.steps,
        "batch": task.batch,
        "cycles": cycles,
        "cycles_with_loading": total,
        "cycles_per_step": cycles / task.steps,
        "cores": cores,
        "mxu_utilisation": products(task, config) * task.steps / (
            cycles * len(cores) * config.array ** 2),
        "mxu_active": sum(core["mxu_active_cycles"] for core in cores) / (cycles * len(cores)),
        "cycles_per_second": cycles / run.seconds,
        "open_seconds": opened - started,
        **({} if shown is None else {"shown": shown}),
    }


def _table(figures: dict[str, Any]) -> str:
    return f"""
Training in RTL on {figures['config']}: {figures['title']}
  steps                    {figures['train_steps']:8,}  of {figures['batch']} examples
  loss                     {figures['final_loss']:8.4f}  at the end; {figures['first_loss']:.4f} \
at the start
  accuracy                 {figures['accuracy']:8.2%}  of {figures['test_images']:,} held-out \
examples
  accuracy in float32      {figures['accuracy_float32']:8.2%}  after the same training by JAX on \
the host
  losses as golden         {'yes' if figures['loss_bit_exact'] else 'NO':>8}  in every bit, in \
{figures['losses_compared']} steps
  cycles a step            {figures['cycles_per_step']:8,.0f}  {figures['cycles']:,} in all
  arrays active            {figures['mxu_active']:8.1%}  of the cycles
  array utilisation        {figures['mxu_utilisation']:8.1%}  of the peak, counting only the \
model's own products
  simulation speed         {figures['cycles_per_second']:8,.0f}  cycles/s"""


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS, nargs="?", default="perceptron")
    parser.add_argument("--check", choices=("some", "all"), default="some",
                        help="steps that the golden model repeats")
    parser.add_argument("--trace", action="store_true",
                        help="write a trace and waveforms of one more step")
    arguments = parser.parse_args()
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / "trace" if arguments.trace else None
    figures = report(MODELS[arguments.model](), PRESETS["v2"],
                     everything=arguments.check == "all", progress=True, folder=folder,
                     trace=trace)
    (folder / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(_table(figures))
    if "shown" in figures:
        print(f"what the model writes:\n{textwrap.indent(figures['shown'], '    ')}")
    print(f"figures: {folder / 'report.json'}")
    print(f"picture: {folder / 'loss.png'}, the loss")
    print(f"picture: {folder / 'cycles.png'}, where the cycles of a step went")
    if trace is not None:
        print(f"trace:   {trace}.json (open it at https://ui.perfetto.dev)")
        print(f"waves:   {trace}.vcd (for a waveform viewer, such as GTKWave or Surfer)")
    return 0 if figures["loss_bit_exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
