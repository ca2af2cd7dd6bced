"""dfa.attention on JAX arrays, inside jit, grad and vmap."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import dfa  # noqa: E402
from dfa import _core  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(_core, "jax_targets"), reason="dfa was built without JAX")


def inputs(dtype=jnp.float32, b=2, hq=4, hk=2, sq=33, sk=33, d=64, dv=64):
    keys = jax.random.split(jax.random.key(3), 3)
    shapes = (b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv)
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes)]


def plain(q, k, v, causal=False):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    with jax.default_matmul_precision("highest"):
        scores = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5
        if causal:
            scores = jnp.where(jnp.tri(*scores.shape[2:], dtype=bool), scores, -jnp.inf)
        return jax.nn.softmax(scores, axis=-1) @ v


def close(got, wanted, tolerance):
    return jnp.abs(got.astype(jnp.float32) - wanted).max() <= tolerance * (1 + jnp.abs(wanted).max())


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.float16, 4e-3),
                                              (jnp.bfloat16, 3e-2)])
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_gradients(dtype, tolerance, causal):
    q, k, v = inputs(dtype)
    o = jax.jit(lambda q, k, v: dfa.attention(q, k, v, causal=causal))(q, k, v)
    assert o.dtype == dtype and close(o, plain(q, k, v, causal), tolerance)

    def loss(attention):
        return lambda *x: (attention(*x, causal=causal).astype(jnp.float32) ** 2).sum()
    got = jax.jit(jax.grad(loss(dfa.attention), argnums=(0, 1, 2)))(q, k, v)
    wanted = jax.grad(loss(plain), argnums=(0, 1, 2))(q, k, v)
    for gradient, truth in zip(got, wanted):
        assert gradient.dtype == dtype and close(gradient, truth.astype(jnp.float32), 4 * tolerance)


def test_deterministic_gradients_are_the_same_in_every_run():
    inputs_of = inputs(jnp.bfloat16, d=192, dv=192)

    @jax.jit
    def gradients(q, k, v):
        def loss(*x):
            return dfa.attention(*x, deterministic=True).astype(jnp.float32).sum()
        return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)
    first, second = gradients(*inputs_of), gradients(*inputs_of)
    assert all(jnp.array_equal(a, b) for a, b in zip(first, second))


def test_vmap_counts_as_batch():
    q, k, v = (jnp.stack([x, x + 1]) for x in inputs())
    got = jax.vmap(dfa.attention)(q, k, v)
    assert jnp.array_equal(got, jnp.stack([dfa.attention(*x) for x in zip(q, k, v)]))
    one = jax.vmap(dfa.attention, in_axes=(0, None, None))(q, k[0], v[0])
    assert jnp.array_equal(one[1], dfa.attention(q[1], k[0], v[0]))


def test_lse():
    q, k, v = inputs(hk=4)
    _, lse = dfa.attention(q, k, v, return_lse=True)
    with jax.default_matmul_precision("highest"):
        wanted = jax.nn.logsumexp(q @ k.swapaxes(2, 3) / 8, axis=-1)
    assert lse.dtype == jnp.float32 and close(lse, wanted, 1e-5)


def test_what_cannot_be_taken():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="shapes do not match"):
        dfa.attention(q, k[:, :, :5], v)
    with pytest.raises(ValueError, match="element types"):
        dfa.attention(q.astype(jnp.float16), k, v)
    with pytest.raises(ValueError, match="accepted: auto, flash"):
        dfa.attention(q, k, v, algorithm="standard")
    with pytest.raises(Exception, match="head dim"):
        jax.block_until_ready(dfa.attention(*inputs(d=12, dv=12)))  # a GPU's error comes late
