"""A program with its arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

__all__ = ["Program", "normal", "tokens"]


@dataclass(frozen=True)
class Program:
    """A function and the arguments of one call.

    Attributes
    ----------
    function : callable
        Takes and returns pytrees of arrays.
    arguments : tuple
        Pytrees of numpy arrays.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @property
    def arrays(self) -> list[Any]:
        """The arrays of the arguments, in order."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.arguments)]

    def lower(self, platform: str = "cpu") -> Any:
        """The program in StableHLO, as JAX lowers it for a platform; a module object of jaxlib."""
        return jax.jit(self.function, keep_unused=True).trace(*self.arguments).lower(
            lowering_platforms=(platform,)).compiler_ir("stablehlo")

    def expected(self) -> list[Any]:
        """The results that JAX computes on the CPU, as arrays, in order."""
        results = jax.jit(self.function)(*self.arguments)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def normal(seed: int, *shape: int, scale: float = 1.0) -> Any:
    """Normal float32 numbers."""
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def tokens(seed: int, limit: int, *shape: int) -> Any:
    """Whole numbers below ``limit``, as int32."""
    return np.random.default_rng(seed).integers(0, limit, shape).astype(np.int32)
