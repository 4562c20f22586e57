"""``make digits``: a classifier of handwritten digits, trained on the host, run on the chip in RTL.

The data are the 1,797 images of 8x8 pixels of the UCI optical recognition set, which scikit-learn
contains. The host trains a network with one hidden layer in float32 with numpy. Then the simulated
chip classifies the test set: both layers, with bias and ReLU, are one program on both cores. The
host writes images and parameters to the chip's memory, and reads the logits from there.
"""

import argparse
import json
import pathlib
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.mxu import dense
from hdl.config import PRESETS
from sim.apps.output import parse, print_trace
from sim.compiler.dense.layers import Dense
from sim.driver.device import Device

__all__ = ["Network", "load", "main", "report", "train"]

SEED = 2017
TEST_SHARE = 0.25
HIDDEN = 128
CLASSES = 10
EPOCHS = 120
BATCH = 32
RATE = 0.1
MOMENTUM = 0.9
DECAY = 1e-4
TOLERANCE = 0.005
"""Largest permitted loss of accuracy by bfloat16 arithmetic, as a fraction of the test images."""

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """Training set and test set: images as rows of 64 pixels from 0 to 1, and their labels."""

    train_images: Array
    train_labels: Labels
    test_images: Array
    test_labels: Labels


def load() -> Digits:
    """Load the data set, and split it at random with a fixed seed.

    The test set has the fraction `TEST_SHARE` of the images.

    Raises
    ------
    ImportError
        If scikit-learn is missing.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn, which `make setup` installs"
                          ) from error
    data = load_digits()
    images = (data.data / 16).astype(np.float32)
    order = np.random.default_rng(SEED).permutation(len(images))
    tests = round(TEST_SHARE * len(images))
    test, rest = order[:tests], order[tests:]
    return Digits(images[rest], data.target[rest], images[test], data.target[test])


@dataclass
class Network:
    """``relu(x @ w1 + b1) @ w2 + b2``: weights of shape (64, hidden) and (hidden, 10)."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    @property
    def layers(self) -> list[Dense]:
        """Return the network's layers as `Device.dense` takes them."""
        return [Dense(self.w1, self.b1, relu=True), Dense(self.w2, self.b2)]

    def outputs(self, images: Array) -> list[Array]:
        """Compute each layer in float32, shapes (images, hidden) and (images, 10)."""
        hidden = np.maximum(images @ self.w1 + self.b1, np.float32(0))
        return [hidden, hidden @ self.w2 + self.b2]

    def golden_outputs(self, images: Array, array: int) -> list[Array]:
        """Compute each layer with the golden arithmetic of a systolic array of size ``array``."""
        outputs, x = [], images
        for layer in self.layers:
            x = dense(x, layer.weights, array, layer.bias, relu=layer.relu)
            outputs.append(x)
        return outputs


def train(digits: Digits, *, progress: bool = False) -> Network:
    """Train a network by stochastic gradient descent with momentum, in float32."""
    rng = np.random.default_rng(SEED)
    pixels = digits.train_images.shape[1]

    def weights(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)

    net = Network(weights(pixels, HIDDEN), np.zeros(HIDDEN, np.float32),
                  weights(HIDDEN, CLASSES), np.zeros(CLASSES, np.float32))
    parameters = [net.w1, net.b1, net.w2, net.b2]
    velocity = [np.zeros_like(parameter) for parameter in parameters]
    wanted = np.eye(CLASSES, dtype=np.float32)[digits.train_labels]
    for _ in tqdm(range(EPOCHS), "training in float32", unit="epoch", disable=not progress,
                  leave=False):
        for batch in np.array_split(rng.permutation(len(wanted)), len(wanted) // BATCH):
            x = digits.train_images[batch]
            hidden = np.maximum(x @ net.w1 + net.b1, np.float32(0))
            scores = hidden @ net.w2 + net.b2
            exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = exponentials / exponentials.sum(axis=1, keepdims=True) - wanted[batch]
            error /= np.float32(len(batch))
            back = (error @ net.w2.T) * (hidden > 0)
            gradients = [x.T @ back, back.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
            for parameter, speed, gradient in zip(parameters, velocity, gradients, strict=True):
                step = np.float32(RATE) * (gradient + np.float32(DECAY) * parameter)
                np.subtract(np.float32(MOMENTUM) * speed, step, out=speed)
                np.add(parameter, speed, out=parameter)
    return net


def _classify(outputs: list[Array]) -> Labels:
    """Return, for each image, the class with the largest logit in the last of ``outputs``.

    ``outputs`` has the result of each layer, as `Network.outputs` returns them.
    """
    return outputs[-1].argmax(axis=1)


def _accuracy(predicted: Labels, labels: Labels) -> float:
    return float((predicted == labels).mean())


def _macs(net: Network, images: int) -> int:
    """Count the multiply-accumulates of both layers for ``images`` images, without padding."""
    return images * (net.w1.size + net.w2.size)


def report(config: str = "v2", *, progress: bool = False, trace: pathlib.Path | None = None
           ) -> tuple[dict[str, Any], Digits, Labels]:
    """Train a network, classify the test set in RTL and on the golden model, and compare.

    ``progress`` shows progress bars. If ``trace`` is given, the run in RTL is traced: to this path
    with ``.json`` added, and to this path with ``.vcd`` added.

    Returns
    -------
    dict
        The figures of ``build/digits.json``.
    Digits
        The data set.
    array of int
        The digits that the chip recognised.
    """
    digits = load()
    net = train(digits, progress=progress)
    exact = _classify(net.outputs(digits.test_images))

    started = time.perf_counter()
    with Device.open(config, trace=trace) as device:
        opened = time.perf_counter()
        outputs = device.dense(digits.test_images, net.layers)
        seconds = time.perf_counter() - opened
        cores = list(device.last_run.values())
        total = device.counters(0)["cycles"]
        array = device.config.array
    expected = net.golden_outputs(digits.test_images, array)
    predicted = _classify(outputs)
    images = len(digits.test_labels)
    cycles = max(core["cycles"] for core in cores)
    figures: dict[str, Any] = {
        "config": config,
        "test_images": images,
        "accuracy_float32": _accuracy(exact, digits.test_labels),
        "accuracy": _accuracy(predicted, digits.test_labels),
        # Both layers, because the second may hide a difference in the first.
        "bit_exact": all(np.array_equal(got.view(np.uint32), want.view(np.uint32))
                         for got, want in zip(outputs, expected, strict=True)),
        "cycles": cycles,
        "cycles_with_loading": total,
        "cores": cores,
        "mxu_utilisation": _macs(net, images) / (cycles * len(cores) * array ** 2),
        "mxu_active": sum(core["mxu_active_cycles"] for core in cores) / (cycles * len(cores)),
        "cycles_per_second": total / seconds,
        "open_seconds": opened - started,
    }
    return figures, digits, predicted


def _draw(digits: Digits, predicted: Labels, path: pathlib.Path) -> None:
    """Draw test digits with their predicted classes to ``path``, wrong predictions first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    wrong = np.flatnonzero(predicted != digits.test_labels)
    right = np.flatnonzero(predicted == digits.test_labels)
    shown = np.concatenate([wrong, right])[:40]
    figure, axes = pyplot.subplots(4, 10, figsize=(10, 4.8), layout="constrained")
    for axis, index in zip(axes.flat, shown, strict=True):
        good = predicted[index] == digits.test_labels[index]
        axis.imshow(digits.test_images[index].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(f"{predicted[index]}" if good else
                       f"{predicted[index]}, not {digits.test_labels[index]}",
                       color="black" if good else "crimson", fontsize=10)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.suptitle("Digits as the chip read them (its mistakes first, in red)", fontsize=11)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make digits", description=__doc__.splitlines()[0])
    parser.add_argument("--config", choices=PRESETS, default="v2", help="preset to simulate")
    arguments, folder, trace = parse(parser, "the run")
    figures, digits, predicted = report(arguments.config, progress=True, trace=trace)
    (folder / "digits.json").write_text(json.dumps(figures, indent=2) + "\n")
    _draw(digits, predicted, folder / "digits.png")
    chip = PRESETS[arguments.config]
    cores = f"{chip.cores} x {chip.array}x{chip.array}"
    print(f"""
Handwritten digits on a chip of {cores} in RTL, {figures['test_images']} test images
  accuracy in float32      {figures['accuracy_float32']:8.2%}
  accuracy on the chip     {figures['accuracy']:8.2%}
  every bit as golden      {'yes' if figures['bit_exact'] else 'NO':>8}
  cycles                   {figures['cycles']:8,}  from the start of the programs to their end
  arrays active            {figures['mxu_active']:8.1%}  of the cycles
  array utilisation        {figures['mxu_utilisation']:8.1%}  of the peak, counting only the \
network's own products
  simulation speed         {figures['cycles_per_second']:8,.0f}  cycles/s
figures: {folder / 'digits.json'}
picture: {folder / 'digits.png'}""")
    print_trace(trace)
    lost = float(figures["accuracy_float32"]) - float(figures["accuracy"])
    if lost > TOLERANCE:
        print(f"the chip loses {lost:.2%} of accuracy, more than {TOLERANCE:.2%}",
              file=sys.stderr)
    return 0 if figures["bit_exact"] and lost <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
