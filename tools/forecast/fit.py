"""Least squares with coefficients that are not negative."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls

__all__ = ["non_negative"]


def non_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float],
                 weights: Sequence[float]) -> list[float]:
    """Fit ``wanted`` by sums of the columns of ``rows`` with coefficients of 0 or more.

    Each equation is multiplied by its weight.

    Raises
    ------
    ValueError
        If the equations do not determine the coefficients.
    """
    if not rows:
        raise ValueError("samples must determine all parameters, but there are no samples")
    factors = np.asarray(weights, np.float64)
    matrix = np.asarray(rows, np.float64) * factors[:, None]
    samples, parameters = matrix.shape
    if np.linalg.matrix_rank(matrix) < parameters:
        raise ValueError(f"samples must determine all {parameters} parameters, "
                         f"but these {samples} do not")
    found, _ = nnls(matrix, np.asarray(wanted, np.float64) * factors)
    return [float(each) for each in found]
