"""``make sim``: trains a model on the chip in RTL.

Both cores of the chip compute the random weights, all training steps, and the classes of held-out
inputs; the program is plain JAX. A call of the chip makes several steps, during which the host
writes batches to the chip's memory and reads losses from it. After each call, the host writes a
checkpoint.
"""

import argparse
import json
import pathlib
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from hdl.config import PRESETS, Config
from sim.apps.output import parse, print_trace
from sim.apps.training.checkpoint import Checkpoint
from sim.apps.training.models.cnn import cnn
from sim.apps.training.models.perceptron import perceptron
from sim.apps.training.models.resnet import resnet
from sim.apps.training.models.transformer import transformer
from sim.apps.training.pictures import draw_cycles, draw_loss
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
from sim.driver.device import Device

__all__ = ["MODELS", "main", "report"]

MODELS: dict[str, Callable[..., Task]] = {
    "perceptron": perceptron, "cnn": cnn, "resnet": resnet, "transformer": transformer}
"""Functions that make the tasks of the models, by model name."""


_INTERRUPTED = 130
"""Exit status after Ctrl-C, by the convention of shells."""
_LOOK_SECONDS = 0.5
"""Seconds between two updates of the progress bar."""


class _Bar:
    """Progress bar of a training: steps, most recent loss, and simulated cycles per second."""

    def __init__(self, task: Task, bar: tqdm) -> None:
        self._task = task
        self._bar = bar
        self._next = 0.0

    def __call__(self, run: Run, cycles: int, seconds: float) -> None:
        """Show the state of ``run``, including the losses of the chip's call in progress.

        So far, the chip's call has taken ``cycles`` cycles, and ``seconds`` seconds of host time.
        Both are 0 after its end.
        """
        if cycles and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOOK_SECONDS
        losses = [*run.losses, *run.shown]
        self._bar.n = len(losses)
        speed = (run.cycles + cycles) / max(run.seconds + seconds, 1e-9)
        shown = {"loss": f"{losses[-1]:.4f}"} if losses else {}
        self._bar.set_postfix({**shown, "cycles/s": f"{speed:,.0f}"}, refresh=False)
        self._bar.refresh()


def report(task: Task, config: Config, *, everything: bool = False, progress: bool = False,
           folder: pathlib.Path | None = None, trace: pathlib.Path | None = None,
           run: Run | None = None, save: Callable[[Run], object] = lambda run: None
           ) -> dict[str, Any]:
    """Train in RTL, compare with the golden model and with float32, and draw pictures.

    Parameters
    ----------
    task : Task
    config : Config
    everything : bool
        Compare all steps with the golden model, not only a sample (`GoldenCheck`).
    progress : bool
        Show progress bars.
    folder : path, optional
        Folder for the pictures; without it, none are drawn.
    trace : path, optional
        Run one more step, and trace it to two files: this path with ``.json``, and with ``.vcd``.
    run : Run, optional
        An interrupted training to continue.
    save : callable
        Called with the run so far after each call of the chip.

    Returns
    -------
    dict
        The figures of ``build/report.json``. A resumed training has no ``cycles_with_loading``.
        ``bit_exact`` and ``loss_bit_exact`` are the same flag: whether the losses that the golden
        model computed again have the same bits. Only losses are compared.
    """
    exact, resumed = float32_accuracy(task), run is not None
    started = time.perf_counter()
    with Device.open(config) as device:
        open_seconds = time.perf_counter() - started
        with tqdm(total=task.steps, desc="training in RTL", unit="step", leave=False,
                  disable=not progress) as bar:
            run = train(task, device, _Bar(task, bar), run=run, save=save)
        # Unknown for a resumed training, whose first calls and loading another process executed.
        total = None if resumed else device.counters(0)["cycles"]
        shown = show(task, run.state, device)
        if folder is not None:
            _draw(task, run, device, folder)
    if trace is not None:
        trace_step(task, run.state, config, trace)
    check = GoldenCheck(task, config, everything=everything)
    same = [equal for _, equal in tqdm(check.compare(run), "golden model", len(check.steps(run)),
                                       unit="step", leave=False, disable=not progress)]
    return {
        **_results(task, run, config, exact, same),
        **_costs(task, run, config, total),
        "open_seconds": open_seconds,
        **({} if shown is None else {"shown": shown}),
    }


def _draw(task: Task, run: Run, device: Device, folder: pathlib.Path) -> None:
    """Draw a training's losses to ``loss.png`` and a step's cycles to ``cycles.png`` in ``folder``.

    For the latter, ``device`` runs one more step, whose cycles are shown by cause.
    """
    draw_loss(run.losses, task.title, folder / "loss.png")
    draw_cycles(measure_step(task, run.state, device),
                f"A step of one core's part of the batch: {task.title}", folder / "cycles.png")


def _results(task: Task, run: Run, config: Config, exact: float, same: Sequence[bool]
             ) -> dict[str, Any]:
    """Figures of the report that describe the trained model and its accuracy.

    ``exact`` is the accuracy after the same training in float32. ``same`` has a flag for each loss
    that was compared with the golden model: whether both have the same bits.
    """
    assert run.predicted is not None
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
    }


def _costs(task: Task, run: Run, config: Config, total: int | None) -> dict[str, Any]:
    """Figures of the report for the cycles and the speed of a training.

    ``total`` is the training's number of cycles including the loading of programs and data; None if
    unknown.
    """
    cores, cycles = run.cores, run.cycles
    return {
        "cycles": cycles,
        **({} if total is None else {"cycles_with_loading": total}),
        "cycles_per_step": cycles / task.steps,
        "cores": cores,
        "mxu_utilisation": products(task, config) * task.steps / (
            cycles * len(cores) * config.array ** 2),
        "mxu_active": sum(core["mxu_active_cycles"] for core in cores) / (cycles * len(cores)),
        "cycles_per_second": cycles / run.seconds,
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


def _resumed(checkpoint: Checkpoint) -> Run | None:
    run = checkpoint.load()
    print(f"{checkpoint.path}: "
          + (f"goes on after step {len(run.losses)} of {checkpoint.task.steps}" if run
             else "no such checkpoint; starts with step 1"))
    return run


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS, nargs="?", default="perceptron")
    parser.add_argument("--check", choices=("some", "all"), default="some",
                        help="steps to compare with the golden model")
    parser.add_argument("--resume", action="store_true", help="continue from the latest checkpoint")
    arguments, folder, trace = parse(parser, "one more step")
    task, config = MODELS[arguments.model](), PRESETS["v2"]
    checkpoint = Checkpoint(folder / f"{arguments.model}.npz", task, config)
    try:
        run = _resumed(checkpoint) if arguments.resume else None
    except (OSError, ValueError) as error:
        parser.error(str(error))
    kept = run is not None

    def save(run: Run) -> None:
        nonlocal kept
        checkpoint.save(run)
        kept = True

    try:
        figures = report(task, config, everything=arguments.check == "all", progress=True,
                         folder=folder, trace=trace, run=run, save=save)
    except KeyboardInterrupt:
        print(f"interrupted: `make sim MODEL={arguments.model} RESUME=1` goes on from the last "
              f"checkpoint, {checkpoint.path}" if kept else
              "interrupted before the first checkpoint")
        return _INTERRUPTED
    (folder / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(_table(figures))
    if "shown" in figures:
        print(f"what the model writes:\n{textwrap.indent(figures['shown'], '    ')}")
    print(f"figures: {folder / 'report.json'}")
    print(f"weights: {checkpoint.path}")
    print(f"picture: {folder / 'loss.png'}, the loss")
    print(f"picture: {folder / 'cycles.png'}, where the cycles of a step went")
    print_trace(trace)
    return 0 if figures["loss_bit_exact"] else 1


if __name__ == "__main__":
    sys.exit(main())
