"""Least squares with coefficients that are not negative."""

from collections.abc import Sequence

import numpy as np

__all__ = ["non_negative"]


def non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float],
                 weights: Sequence[float]) -> tuple[list[float], float]:
    """Fit ``wanted`` by sums of the columns of ``rows`` with coefficients of 0 or more.

    Each equation is multiplied by its weight. While a coefficient is negative, the most negative
    one becomes 0, and the others are fitted again.

    Returns
    -------
    list of float
        The coefficients.
    float
        The sum of the squares of the weighted errors.

    Raises
    ------
    ValueError
        If the equations do not determine the coefficients.
    """
    if not rows:
        raise ValueError("samples must determine all parameters, but there are none")
    factors = np.asarray(weights, np.float64)
    matrix = np.asarray(rows, np.float64) * factors[:, None]
    target = np.asarray(wanted, np.float64) * factors
    used = list(range(matrix.shape[1]))
    if np.linalg.matrix_rank(matrix) < len(used):
        raise ValueError(f"samples must determine all {len(used)} parameters, "
                         f"unlike these {len(matrix)}")
    found = np.zeros(matrix.shape[1])
    while used:
        solution = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        if solution.min() >= 0:
            found[used] = solution
            break
        used.pop(int(solution.argmin()))
    return found.tolist(), float(((matrix @ found - target) ** 2).sum())
