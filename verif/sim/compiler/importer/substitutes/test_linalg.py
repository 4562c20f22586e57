"""Linear algebra as loops of array operations, run by JAX on the CPU."""

import itertools

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from sim.compiler.importer.substitutes import linalg

RNG = np.random.default_rng(11)
MATRICES = RNG.normal(size=(2, 4, 4)).astype(np.float32)
DEFINITE = MATRICES @ MATRICES.swapaxes(-1, -2) + 2 * np.eye(4, dtype=np.float32)


def close(found: object, wanted: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-5, atol=2e-5)


def test_cholesky_is_nan_where_the_matrix_is_not_positive_definite() -> None:
    found = np.asarray(jax.jit(linalg.cholesky)(np.stack([DEFINITE[0], -DEFINITE[1]])))
    close(found[0], np.linalg.cholesky(DEFINITE[0]))
    assert np.isnan(found[1]).all()


def test_triangular_solve_reads_one_triangle() -> None:
    b = RNG.normal(size=(2, 4, 4)).astype(np.float32)
    for left, lower, transposed, unit in itertools.product((False, True), repeat=4):
        triangle = np.tril(DEFINITE) if lower else np.triu(DEFINITE)
        if unit:
            triangle = triangle * (1 - np.eye(4)) + np.eye(4)
        if transposed:
            triangle = triangle.swapaxes(-1, -2)
        # What is not read may be anything.
        unread = ~(np.tri(4, dtype=bool) if lower else np.tri(4, dtype=bool).T)
        unread |= np.eye(4, dtype=bool) & unit
        x = np.asarray(linalg.triangular_solve(
            np.where(unread, np.float32(np.nan), DEFINITE), b, left_side=left, lower=lower,
            transpose_a=transposed, conjugate_a=False, unit_diagonal=unit))
        np.testing.assert_allclose(triangle @ x if left else x @ triangle, b, rtol=1e-3,
                                   atol=1e-3 * np.abs(x).max())


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 3, 3)])
def test_singular_values_and_vectors(shape: tuple[int, ...]) -> None:
    a = RNG.normal(size=shape).astype(np.float32)
    a[..., 1] = 0 if shape == (5, 3) else a[..., 1]
    s, u, vt = map(np.asarray, jax.jit(lambda a: linalg.svd(
        a, full_matrices=True, compute_uv=True, subset_by_index=None, algorithm=None))(a))
    close(s, np.linalg.svd(a, compute_uv=False))
    count = s.shape[-1]
    close(u[..., :count] * s[..., None, :] @ vt[..., :count, :], a)
    for q in (u, vt):
        close(q @ q.swapaxes(-1, -2), np.broadcast_to(np.eye(q.shape[-1]), q.shape))


@pytest.mark.parametrize("scale", [0, 1e-30, 1e-20, 1e20, 1e37])
def test_decompositions_of_large_and_small_matrices(scale: float) -> None:
    a = np.stack([MATRICES[0] * np.float32(scale), MATRICES[1]])
    s, u, vt = map(np.asarray, jax.jit(lambda a: linalg.svd(
        a, full_matrices=True, compute_uv=True, subset_by_index=None, algorithm=None))(a))
    packed, taus = map(np.asarray, jax.jit(linalg.geqrf)(a))
    q = np.asarray(linalg.householder_product(packed, taus))
    # The sums of products in float64: those of the test must not overflow either.
    unit = np.array([scale or 1, 1]).reshape(2, 1, 1)
    close(u @ (s[..., None] / unit * vt), a / unit)
    close(q @ (np.triu(packed) / unit), a / unit)
    for orthogonal in (u, vt, q):
        close(orthogonal @ orthogonal.swapaxes(-1, -2), np.broadcast_to(np.eye(4), a.shape))
