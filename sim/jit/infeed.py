"""`Infeed`: an argument of a jitted function whose batches the host writes during the run."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.checks import integer

__all__ = ["Infeed", "Stacked", "batches", "stacked", "to_numpy"]


class Infeed:
    """Batches for a ``lax.scan`` in a function that `jit` compiles, in place of its ``xs``.

    The device reads the batches from HBM, and the host writes them there while the function runs,
    a few batches ahead of the device. The function sees arrays with an additional first dimension
    of size ``steps``, and must pass them to one ``lax.scan`` and to nothing else.

    Parameters
    ----------
    batches : iterable
        The batches: pytrees of arrays, all of the same structure, shapes and types. The first one
        is taken when the function is traced. Batches after the first ``steps`` are not used.
    steps : int
        Number of iterations of the scan.

    Raises
    ------
    TypeError, ValueError
        If ``batches`` is not iterable, or ``steps`` is not a positive integer.
    """

    def __init__(self, batches: Iterable[Any], steps: int) -> None:
        if not isinstance(batches, Iterable):
            raise TypeError(f"batches must be iterable, not {batches!r}")
        self.steps = integer("steps", steps, 1)
        self._batches = iter(batches)
        self._first: list[Any] = []

    @property
    def first(self) -> Any:
        """The next batch, which is not consumed: `take` yields it again as its first.

        Raises
        ------
        ValueError
            If there are no more batches.
        """
        if not self._first:
            try:
                self._first.append(next(self._batches))
            except StopIteration:
                raise ValueError("infeed must have at least one batch") from None
        return self._first[0]

    def take(self) -> Iterator[Any]:
        """Return an iterator over the remaining batches; each can be taken only once."""
        taken, self._first = self._first, []
        return chain(taken, self._batches)


class Stacked:
    """Shape and type of an array that stacks one array of each batch along a new first dimension.

    The batches are those of an `Infeed`. JAX traces a function with this object in place of the
    stacked array.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype


def _is_infeed(leaf: Any) -> bool:
    return isinstance(leaf, Infeed)


def stacked(arguments: Any) -> Any:
    """Replace each `Infeed` in the pytree ``arguments`` by a pytree of `Stacked`.

    This pytree has the structure of a batch, with a `Stacked` in place of each array.
    """
    import jax

    def replaced(leaf: Any) -> Any:
        if not isinstance(leaf, Infeed):
            return leaf
        return jax.tree.map(
            lambda array: Stacked((leaf.steps, *np.shape(array)), _dtype(array)), leaf.first)

    return jax.tree.map(replaced, arguments, is_leaf=_is_infeed)


def _dtype(array: Any) -> Any:
    """Return the type that JAX gives an array or a number."""
    import jax

    return jax.dtypes.canonicalize_dtype(
        getattr(array, "dtype", None) or np.asarray(array).dtype, allow_extended_dtype=True)


def to_numpy(leaf: Any, kind: Any) -> npt.NDArray[Any]:
    """Convert a leaf of the arguments to a numpy array.

    ``kind`` is an object whose ``dtype`` is the type that JAX gives the leaf. A random key becomes
    an array of the words that it consists of.
    """
    import jax

    if jax.dtypes.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf, kind.dtype)


def batches(arguments: Any, types: Sequence[Any]) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield the leaves of the next batch of every `Infeed`, until an `Infeed` has no more batches.

    Each list holds the leaves for one iteration. ``arguments`` is a pytree with one or more
    `Infeed` objects. ``types`` has, for each leaf, an object whose ``dtype`` is the type to which
    the leaf is converted.

    Raises
    ------
    TypeError
        If an array of a batch has another type than the same array of the first batch.
    ValueError
        If the structure of a batch differs from that of the first batch, or if an `Infeed` occurs
        twice.
    """
    import jax

    feeds = [leaf for leaf in jax.tree.leaves(arguments, is_leaf=_is_infeed) if _is_infeed(leaf)]
    if len(set(feeds)) < len(feeds):
        # The arguments would take turns: each would get only a part of the batches.
        raise ValueError("an Infeed must be passed once, not as several arguments: one iteration "
                         "of the scan can use its batch several times")
    wanted = [jax.tree.structure(feed.first) for feed in feeds]
    for parts in zip(*(feed.take() for feed in feeds), strict=False):
        found = [jax.tree.structure(part) for part in parts]
        if found != wanted:
            raise ValueError(f"all batches must have the structure of the first one, {wanted}, "
                             f"not {found}")
        leaves = jax.tree.leaves(parts)
        for leaf, kind in zip(leaves, types, strict=True):
            if _dtype(leaf) != kind.dtype:
                raise TypeError("arrays of all batches must have the types of the first batch, "
                                f"{kind.dtype}, not {_dtype(leaf)}")
        yield [to_numpy(leaf, kind) for leaf, kind in zip(leaves, types, strict=True)]
