"""Lowering rules of JAX's primitives for the platform."""

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from sim.pjrt import rules
from verif.sim.pjrt.process import run


def test_random_bits_continue_with_the_next_key() -> None:
    key = jax.numpy.array([1, 2, 0xFFFFFFFE, 7], np.uint32)
    following, bits = rules.rng_bit_generator(key, shape=(2, 3), dtype=np.uint32, algorithm=None)
    assert following.tolist() == [1, 2, 1, 8]
    assert len(set(bits.ravel().tolist())) == 6
    _, small = rules.rng_bit_generator(key, shape=(6,), dtype=np.uint8, algorithm=None)
    np.testing.assert_array_equal(small, bits.ravel() >> 24)
    with pytest.raises(NotImplementedError, match="at most 32 bits, not 64"):
        rules.rng_bit_generator(key, shape=(2,), dtype=np.float64, algorithm=None)


def test_chip_runs_them() -> None:
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np

        a = np.random.default_rng(3).normal(size=(4, 4)).astype(np.float32)
        a = a + a.T
        values, vectors = jax.jit(jnp.linalg.eigh)(a)
        assert values.devices() == {jax.devices("systolith")[0]}
        np.testing.assert_allclose(values, np.linalg.eigvalsh(a), rtol=1e-4, atol=1e-5)
        # Products of numpy: those of the chip have bfloat16 operands.
        values, vectors = np.asarray(values), np.asarray(vectors)
        np.testing.assert_allclose(vectors * values @ vectors.T, a, rtol=1e-4, atol=1e-5)
        q, r = map(np.asarray, jax.jit(jnp.linalg.qr)(np.float32(1e30) * a))
        np.testing.assert_allclose(q @ r * 1e-30, a, rtol=1e-4, atol=1e-5)
        mesh = jax.sharding.Mesh(jax.devices(), ("core",))
        split = jax.sharding.PartitionSpec("core")
        inverses = jax.jit(jax.shard_map(jnp.linalg.inv, mesh=mesh, in_specs=split,
                                         out_specs=split))(np.stack([a, 2 * a]))
        np.testing.assert_allclose(np.asarray(inverses) @ np.stack([a, 2 * a]),
                                   np.broadcast_to(np.eye(4), (2, 4, 4)), atol=1e-4)
        # JAX's default rule needs 64 bits, before the plugin sees the program.
        words = np.array([0x12345678, 0xFFFFFFFF], np.uint32)
        np.testing.assert_array_equal(jax.jit(jax.lax.mulhi)(words, words),
                                      words.astype(np.uint64) ** 2 >> np.uint64(32))
        key = jax.random.key(1, impl="rbg")
        first, second = (jax.random.bits(part, (4,)) for part in jax.random.split(key))
        assert len({*np.asarray(first).tolist(), *np.asarray(second).tolist()}) == 8

    run(program)
