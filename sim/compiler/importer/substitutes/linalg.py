"""Linear algebra as loops of array operations.

On a CPU or a GPU, JAX calls libraries for factorisations. Here factorisations are functions of JAX,
lowered as part of the user's program. Sums of products are computed by the vector unit in float32.
Matrices have shape (..., rows, columns). The algorithms are those of Golub and Van Loan, "Matrix
Computations".
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

__all__ = ["cholesky", "eigh", "geqrf", "householder_product", "svd", "triangular_solve"]

_SWEEPS = 12
"""Number of sweeps of Jacobi's methods: more than needed, because they converge quadratically."""


def _index(size: int) -> Any:
    return lax.iota("int32", size)


def _row(a: Any, i: Any) -> Any:
    """Return row i of a matrix, shape (..., columns)."""
    return lax.dynamic_index_in_dim(a, i, a.ndim - 2, keepdims=False)


def _column(a: Any, j: Any) -> Any:
    """Return column j of a matrix, shape (..., rows)."""
    return jnp.sum(jnp.where(_index(a.shape[-1]) == j, a, 0), -1)


def _with_row(a: Any, i: Any, row: Any) -> Any:
    return jnp.where((_index(a.shape[-2]) == i)[:, None], row[..., None, :], a)


def _with_column(a: Any, j: Any, column: Any) -> Any:
    return jnp.where(_index(a.shape[-1]) == j, column[..., :, None], a)


def _dot(a: Any, v: Any) -> Any:
    """Return the product of a matrix and a vector, shape (..., rows)."""
    return jnp.sum(a * v[..., None, :], -1)


def _turned(a: Any) -> Any:
    return jnp.swapaxes(a, -1, -2)


def _scaled(a: Any) -> tuple[Any, Any]:
    """Scale a matrix so that squares of its elements neither overflow nor underflow.

    Return the scaled matrix, and the factor by which it must be multiplied to get ``a``. The factor
    has shape (..., 1, 1). It is a power of two, so that no bits are lost.
    """
    largest = jnp.max(jnp.abs(a), (-2, -1), keepdims=True, initial=0)
    # Exponent bits of the largest element; the factor and its reciprocal must be normal numbers.
    bits = lax.bitcast_convert_type(largest.astype("float32"), "int32") & 0x7F800000
    bits = jnp.clip(bits, 1 << 23, 253 << 23)
    factor, reciprocal = (lax.bitcast_convert_type(each, "float32").astype(a.dtype)
                          for each in (bits, (254 << 23) - bits))
    return a * reciprocal, factor


def cholesky(a: Any, *, lower: bool = True) -> Any:
    """Return the lower Cholesky factor of a symmetric matrix or, without ``lower``, the upper one.

    Only this triangle of ``a`` is read. All elements of the factor are NaN if ``a`` is not positive
    definite.
    """
    if not lower:
        return _turned(cholesky(_turned(a)))
    size = a.shape[-1]
    if not size:
        return a

    def column(j: Any, factor: Any) -> Any:
        rest = _column(a, j) - _dot(factor, _row(factor, j))
        pivot = jnp.sum(jnp.where(_index(size) == j, rest, 0), -1, keepdims=True)
        return _with_column(factor, j, jnp.where(_index(size) >= j, rest / jnp.sqrt(pivot), 0))

    factor = lax.fori_loop(0, size, column, jnp.zeros_like(a))
    wrong = jnp.any(jnp.isnan(factor), (-2, -1), keepdims=True)
    return jnp.where(wrong, jnp.nan, factor)


def triangular_solve(a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool,
                     conjugate_a: bool, unit_diagonal: bool) -> Any:
    """Solve t x = b, or x t = b without ``left_side``, for a triangular matrix t.

    t is the lower triangle of ``a`` or, without ``lower``, the upper one. With ``transpose_a``, it
    is the transpose of this triangle. The other triangle is not read. With ``unit_diagonal``, the
    diagonal of ``a`` counts as ones and is not read. ``conjugate_a`` has no effect, because
    elements are real.
    """
    if not left_side:
        return _turned(triangular_solve(
            a, _turned(b), left_side=True, lower=lower, transpose_a=not transpose_a,
            conjugate_a=conjugate_a, unit_diagonal=unit_diagonal))
    a = jnp.tril(a, -int(unit_diagonal)) if lower else jnp.triu(a, int(unit_diagonal))
    if transpose_a:
        a, lower = _turned(a), not lower
    size = a.shape[-1]
    if not size:
        return b

    def row(step: Any, x: Any) -> Any:
        i = step if lower else size - 1 - step
        weights = _row(a, i)
        # Rows of x that are not solved yet are 0.
        rest = _row(b, i) - _dot(_turned(x), weights)
        pivot = jnp.sum(jnp.where(_index(size) == i, weights, 0), -1, keepdims=True)
        return _with_row(x, i, rest if unit_diagonal else rest / pivot)

    return lax.fori_loop(0, size, row, jnp.zeros_like(b))


def _reflected(a: Any, v: Any, tau: Any) -> Any:
    """Return the product of the Householder reflection I - tau v v' and a matrix."""
    return a - v[..., :, None] * (tau * _dot(_turned(a), v))[..., None, :]


def geqrf(a: Any) -> tuple[Any, Any]:
    """Compute a QR decomposition by Householder reflections.

    Return two arrays: a matrix of the same shape as ``a``, and the reflections' factors tau, shape
    (..., min(rows, columns)). The matrix holds the triangle R, and below it the reflections'
    vectors. Vector j is 1 at row j and 0 above it; these elements are not stored.
    """
    rows, columns = a.shape[-2:]
    a, factor = _scaled(a)
    count = min(rows, columns)
    at, across = _index(rows), _index(columns)

    def step(j: Any, state: Any) -> Any:
        a, taus = state
        x = _column(a, j)
        head = jnp.sum(jnp.where(at == j, x, 0), -1, keepdims=True)
        below = jnp.where(at > j, x, 0)
        rest = jnp.sum(below * below, -1, keepdims=True)
        length = jnp.sqrt(head * head + rest)
        beta = jnp.where(rest == 0, head, jnp.where(head < 0, length, -length))
        tau = jnp.where(rest == 0, 0, (beta - head) / jnp.where(beta == 0, 1, beta))
        v = jnp.where(at == j, 1, below / jnp.where(rest == 0, 1, head - beta))
        a = jnp.where(across > j, _reflected(a, v, tau), a)
        a = _with_column(a, j, jnp.where(at == j, beta, jnp.where(at > j, v, x)))
        return a, jnp.where(_index(count) == j, tau, taus)

    a, taus = lax.fori_loop(0, count, step, (a, jnp.zeros((*a.shape[:-2], count), a.dtype)))
    return jnp.where(at[:, None] <= across, a * factor, a), taus


def householder_product(a: Any, taus: Any) -> Any:
    """Return the matrix Q of a QR decomposition, of the shape of ``a``, with orthonormal columns.

    ``a`` has the vectors of the reflections below its diagonal, and ``taus`` has their factors, as
    `geqrf` returns them.
    """
    rows, columns = a.shape[-2:]
    at, count = _index(rows), taus.shape[-1]

    def step(number: Any, q: Any) -> Any:
        j = count - 1 - number
        v = jnp.where(at == j, 1, jnp.where(at > j, _column(a, j), 0))
        tau = jnp.sum(jnp.where(_index(count) == j, taus, 0), -1, keepdims=True)
        return _reflected(q, v, tau)

    return lax.fori_loop(0, count, step, jnp.broadcast_to(jnp.eye(rows, columns, dtype=a.dtype),
                                                          a.shape))


def _pairs(size: int) -> tuple[Any, Any]:
    """Return all pairs of indices i < j below ``size``, as an array of i and an array of j."""
    return jnp.triu_indices(size, 1)


def _rotation(p: Any, q: Any, r: Any) -> tuple[Any, Any]:
    """Return cosine and sine of the rotation that makes the matrix [[p, r], [r, q]] diagonal.

    `_rotated` applies it to the columns and, after a transpose, to the rows.
    """
    zero = r == 0
    theta = (q - p) / (2 * jnp.where(zero, 1, r))
    t = jnp.where(theta < 0, -1, 1) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1))
    t = jnp.where(zero, 0, t)
    c = 1 / jnp.sqrt(t * t + 1)
    return c, t * c


def _rotated(a: Any, i: Any, j: Any, c: Any, s: Any) -> Any:
    """Replace columns x = i and y = j of a matrix by c x - s y and s x + c y."""
    x, y = _column(a, i), _column(a, j)
    c, s = c[..., None], s[..., None]
    return _with_column(_with_column(a, i, c * x - s * y), j, s * x + c * y)


def _swept(size: int, turn: Any, state: Any) -> Any:
    """Apply ``state = turn(i, j, state)`` to all pairs i < j < ``size``, `_SWEEPS` times.

    Return the last state.
    """
    first, second = _pairs(size)
    count = len(first)
    if not count:
        return state

    def step(number: Any, state: Any) -> Any:
        pair = number % count
        return turn(first[pair], second[pair], state)

    return lax.fori_loop(0, _SWEEPS * count, step, state)


def eigh(a: Any, *, lower: bool, sort_eigenvalues: bool, subset_by_index: Any,
         algorithm: Any) -> tuple[Any, Any]:
    """Return eigenvectors, as columns, and eigenvalues of a symmetric matrix, by Jacobi's method.

    Only the lower triangle of ``a`` is read if ``lower``, else only the upper. Eigenvalues ascend
    if ``sort_eigenvalues``. ``subset_by_index`` is the range (start, end) of the eigenvalues to
    return, where end is excluded; None for all. ``algorithm`` is ignored.
    """
    size = a.shape[-1]
    half = jnp.tril(a) if lower else jnp.triu(a)
    a = half + _turned(half) - half * jnp.eye(size, dtype=a.dtype)

    def turn(i: Any, j: Any, state: Any) -> Any:
        a, v = state
        left, right = _column(a, i), _column(a, j)
        c, s = _rotation(_entry(left, i), _entry(right, j), _entry(left, j))
        a = _turned(_rotated(_turned(_rotated(a, i, j, c, s)), i, j, c, s))
        return a, _rotated(v, i, j, c, s)

    eye = jnp.broadcast_to(jnp.eye(size, dtype=a.dtype), a.shape)
    a, v = _swept(size, turn, (a, eye))
    values = jnp.sum(a * jnp.eye(size, dtype=a.dtype), -1)
    order = jnp.argsort(values, -1) if sort_eigenvalues else jnp.broadcast_to(
        _index(size), values.shape)
    if subset_by_index is not None:
        order = order[..., subset_by_index[0]:subset_by_index[1]]
    return (jnp.take_along_axis(v, order[..., None, :], -1),
            jnp.take_along_axis(values, order, -1))


def _entry(vector: Any, i: Any) -> Any:
    return jnp.sum(jnp.where(_index(vector.shape[-1]) == i, vector, 0), -1)


def svd(a: Any, *, full_matrices: bool, compute_uv: bool, subset_by_index: Any,
        algorithm: Any) -> tuple[Any, ...]:
    """Return singular values, and left and right singular vectors, by Jacobi's one-sided method.

    Singular values are in descending order; ``subset_by_index`` is the range (start, end) of those
    to return, where end is excluded; None for all. Vectors are returned only if ``compute_uv``:
    left ones as columns of a matrix, right ones as rows. With ``full_matrices``, both matrices are
    square. ``algorithm`` is ignored. Columns of ``a`` are rotated until they are orthogonal; their
    lengths are the singular values.
    """
    rows, columns = a.shape[-2:]
    if rows < columns:
        s, *vectors = svd(_turned(a), full_matrices=full_matrices, compute_uv=compute_uv,
                          subset_by_index=subset_by_index, algorithm=algorithm)
        return (s, *map(_turned, reversed(vectors)))

    a, factor = _scaled(a)

    def turn(i: Any, j: Any, state: Any) -> Any:
        a, v = state
        x, y = _column(a, i), _column(a, j)
        c, s = _rotation(jnp.sum(x * x, -1), jnp.sum(y * y, -1), jnp.sum(x * y, -1))
        return _rotated(a, i, j, c, s), _rotated(v, i, j, c, s)

    eye = jnp.eye(columns, dtype=a.dtype)
    a, v = _swept(columns, turn, (a, jnp.broadcast_to(eye, (*a.shape[:-2], columns, columns))))
    lengths = jnp.sqrt(jnp.sum(a * a, -2))
    order = jnp.argsort(-lengths, -1)
    if subset_by_index is not None:
        order = order[..., subset_by_index[0]:subset_by_index[1]]
    values = jnp.take_along_axis(lengths, order, -1)
    scaled = values * factor[..., 0]
    if not compute_uv:
        return (scaled,)
    a, v = (jnp.take_along_axis(m, order[..., None, :], -1) for m in (a, v))
    # For singular values of 0 and for further columns, QR supplies orthogonal vectors.
    u = a / jnp.where(values == 0, 1, values)[..., None, :]
    reflections, taus = geqrf(u)
    if full_matrices and rows > columns:
        reflections = jnp.pad(reflections, [(0, 0)] * (a.ndim - 1) + [(0, rows - columns)])
    q = householder_product(reflections, taus)
    sign = jnp.sign(jnp.sum(q[..., :columns] * u, -2))
    sign = jnp.where(sign == 0, 1, sign)
    sign = jnp.pad(sign, [(0, 0)] * (sign.ndim - 1) + [(0, q.shape[-1] - columns)],
                   constant_values=1)
    return scaled, q * sign[..., None, :], _turned(v)
