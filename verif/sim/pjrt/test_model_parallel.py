"""Model parallel over the four cores of a pod: columns of weights, heads, and a vocabulary."""

import pytest

from verif.sim.pjrt.process import run


@pytest.mark.parametrize("backend", ["golden", pytest.param("rtl", marks=pytest.mark.slow)])
def test_losses_are_those_of_one_core(backend: str) -> None:
    """A transformer layer is divided by GSPMD; its losses are equal to within bf16 rounding."""
    def program() -> None:
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        words, heads, size, wide, long = 16, 4, 8, 16, 4
        rng = np.random.default_rng(3)
        shapes = {"table": ((words, size), P("model")),
                  "queries": ((size, heads, size // heads), P(None, "model")),
                  "keys": ((size, heads, size // heads), P(None, "model")),
                  "values": ((size, heads, size // heads), P(None, "model")),
                  "mix": ((heads, size // heads, size), P("model")),
                  "up": ((size, wide), P(None, "model")), "down": ((wide, size), P("model")),
                  "scores": ((size, words), P(None, "model"))}
        first = {name: (rng.standard_normal(shape) / 2).astype(np.float32)
                 for name, (shape, _) in shapes.items()}
        text = rng.integers(0, words, long + 1).astype(np.int32)

        def loss(w, text):  # type: ignore[no-untyped-def]
            x = jax.nn.one_hot(text[:-1], words) @ w["table"]
            q, k, v = (jnp.einsum("td,dhc->htc", x, w[name])
                       for name in ("queries", "keys", "values"))
            weights = jax.nn.softmax(jnp.einsum("htc,hsc->hts", q, k), -1)
            x += jnp.einsum("hts,hsc,hcd->td", weights, v, w["mix"])
            x += jax.nn.relu(x @ w["up"]) @ w["down"]
            chances = jax.nn.log_softmax(x @ w["scores"])
            return -(chances * jax.nn.one_hot(text[1:], words)).sum(1).mean()

        @jax.jit
        def step(w, text):  # type: ignore[no-untyped-def]
            value, slopes = jax.value_and_grad(loss)(w, text)
            return value, jax.tree.map(lambda one, other: one - 0.1 * other, w, slopes)

        mesh = Mesh(jax.devices(), ("model",))
        divided = {name: jax.device_put(first[name], NamedSharding(mesh, spec))
                   for name, (_, spec) in shapes.items()}
        spread = jax.device_put(text, NamedSharding(mesh, P()))
        whole, curves = first, [[], []]  # type: ignore[var-annotated]
        for _ in range(3):
            one, whole = step(whole, text)
            four, divided = step(divided, spread)
            curves[0].append(float(one))
            curves[1].append(float(four))
        assert divided["queries"].sharding.spec[:2] == (None, "model")
        assert curves[0][-1] < curves[0][0] - 0.1, curves
        # bf16 has 8 significant bits.
        np.testing.assert_allclose(curves[1], curves[0], rtol=2 ** -8)

    run(program, SYSTOLITH_POD="2x1", SYSTOLITH_BACKEND=backend)
