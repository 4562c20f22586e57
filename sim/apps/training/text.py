"""Text that Python itself contains: the topics of its documentation, which `help` shows."""

import pydoc_data.topics

import numpy as np
import numpy.typing as npt

__all__ = ["CHARACTERS", "decode", "topics"]

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""The alphabet of the text: 96 characters; all other characters are left out."""


def topics() -> npt.NDArray[np.int32]:
    """The text as indices into `CHARACTERS`, topic after topic: about 450,000 numbers."""
    text = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    return np.array([numbers[character] for character in text if character in numbers], np.int32)


def decode(numbers: npt.NDArray[np.int32]) -> str:
    """The text of an array of indices into `CHARACTERS`."""
    return "".join(CHARACTERS[number] for number in numbers)
