"""bias and mask of dfa.jax.dot_product_attention beside jax.nn.dot_product_attention's, inside jit, grad and vmap."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

pytest.importorskip("dfa")

from dfa import _core  # noqa: E402

if not hasattr(_core, "jax_targets"):
    pytest.skip("dfa was built without JAX", allow_module_level=True)
if jax.default_backend() != "cpu":
    pytest.skip("the bounds are those of processors", allow_module_level=True)

import dfa.jax  # noqa: E402

ours, theirs = dfa.jax.dot_product_attention, jax.nn.dot_product_attention
SHAPES = [(2, 4, 9, 13), (1, 4, 9, 13), (2, 1, 9, 13), (1, 1, 1, 13), (1, 4, 9, 1), (4, 9, 13)]


def inputs(sq=9, sk=13, hq=4, hk=2, d=16, dtype=jnp.float32, b=2):
    keys = jax.random.split(jax.random.key(5), 3)
    return [jax.random.normal(key, (b, s, h, d), dtype) for key, s, h in zip(keys, (sq, sk, sk), (hq, hk, hk))]


def biased(shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(7), shape, dtype)


def hidden(shape):
    """About a third, but no query's first key."""
    return jax.random.bernoulli(jax.random.key(8), 0.6, shape).at[..., 0].set(True)


def close(got, wanted, bound=2e-5):
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(*(np.asarray(x, np.float64) for x in (one, other)), atol=bound, rtol=bound)


def gradients(function, *arrays, **options):
    def total(arrays):
        o = function(*arrays, **options)
        return (o * jnp.cos(jnp.arange(o.size, dtype=o.dtype).reshape(o.shape))).sum()
    return jax.grad(total)(arrays)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"local_window_size": (4, 2)}], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_bias_and_its_gradient(shape, options):
    arrays = *inputs(), biased(shape)
    close(ours(*arrays, **options), theirs(*arrays, **options))
    close(gradients(ours, *arrays, **options), gradients(theirs, *arrays, **options))
    close(jax.jit(lambda *x: ours(*x, **options))(*arrays), theirs(*arrays, **options))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 9, 13), (1, 1, 9, 13), (2, 1, 1, 13)], ids=str)
def test_a_mask_with_and_without_a_bias(shape, options):
    arrays, mask = inputs(), hidden(shape)
    for bias in (None, biased((1, 4, 9, 13))):
        close(ours(*arrays, bias=bias, mask=mask, **options), theirs(*arrays, bias=bias, mask=mask, **options))
        close(gradients(ours, *arrays, bias=bias, mask=mask, **options), gradients(theirs, *arrays, bias=bias, mask=mask, **options))


def test_of_as_many_queries_as_keys_the_kernels_have_the_window():
    arrays, bias = inputs(sq=13), biased((1, 4, 13, 13))
    for options in ({"is_causal": True}, {"local_window_size": 3}, {"is_causal": True, "local_window_size": (2, 0)}):
        close(ours(*arrays, bias, **options), theirs(*arrays, bias, **options))


def test_lengths_beside_a_bias():
    arrays, bias = inputs(), biased((2, 1, 9, 13))
    rows, keys = jnp.array([5, 9], jnp.int32), jnp.array([13, 4], jnp.int32)
    got = ours(*arrays, bias, query_seq_lengths=rows, key_value_seq_lengths=keys)
    close(got, theirs(*arrays, bias, query_seq_lengths=rows, key_value_seq_lengths=keys))
    assert (got[0, 5:] == 0).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype, bound", [(jnp.bfloat16, 4e-2), (jnp.float16, 5e-3)], ids=str)
def test_of_16_bits(dtype, bound):
    arrays = *inputs(dtype=dtype), biased((1, 4, 9, 13), dtype)
    close(ours(*arrays), theirs(*arrays), bound)
    close(gradients(ours, *arrays), gradients(theirs, *arrays), bound)
    mixed = *inputs(dtype=dtype), biased((1, 4, 9, 13))
    assert ours(*mixed).dtype == dtype and gradients(ours, *mixed)[3].dtype == jnp.float32


def test_vmap_and_a_query_without_a_batch():
    q, k, v = inputs()
    bias = biased((3, 4, 9, 13))
    got = jax.vmap(lambda bias: ours(q, k, v, bias[None]))(bias)
    close(got, jnp.stack([theirs(q, k, v, one[None]) for one in bias]))
    close(ours(q[0], k[0], v[0], bias[0]), theirs(q[0], k[0], v[0], bias[0]))

    def of_all(function):
        return jax.grad(lambda bias: (jax.vmap(lambda one: function(q, k, v, one[None]))(bias) ** 2).sum())(bias)
    close(of_all(ours), of_all(theirs), 1e-4)


def test_what_is_hidden_whole_has_zeros():
    q, k, v = inputs()
    mask = hidden((2, 1, 9, 13)).at[:, :, 4].set(False)
    o, lse = ours(q, k, v, mask=mask, return_residual=True)
    assert (o[:, 4] == 0).all() and (lse[:, 4] == -jnp.inf).all()
    assert all(jnp.isfinite(x).all() for x in gradients(ours, q, k, v, mask=mask))


def test_the_gradient_of_lse_reaches_a_bias():
    q, k, v = inputs()
    bias = biased((1, 4, 9, 13))
    got = jax.grad(lambda bias: (ours(q, k, v, bias, return_residual=True)[1] ** 2).sum())(bias)

    def lse(bias):
        logits = jnp.einsum("bthd,bshd->bhts", q, jnp.repeat(k, 2, 2)) / 4 + bias
        return jax.nn.logsumexp(logits, -1)
    close(got, jax.grad(lambda bias: (lse(bias) ** 2).sum())(bias), 1e-4)


@pytest.mark.parametrize("message, options", [
    (r"bias has shape \[2, 4, 9, 12\]; it has to broadcast to \[2, 4, 9, 13\]", {"bias": jnp.zeros((2, 4, 9, 12))}),
    (r"bias has shape \[9, 13\]", {"bias": jnp.zeros((9, 13))}), ("bias is int32", {"bias": jnp.zeros((1, 1, 9, 13), int)}),
    ("mask is float32; accepted: bool", {"mask": jnp.zeros((1, 1, 9, 13))}),
    (r"mask has shape \[2, 3, 9, 13\]", {"mask": jnp.zeros((2, 3, 9, 13), bool)}),
    ("segment_ids beside bias or mask", {"mask": jnp.ones((1, 1, 9, 13), bool), "segment_ids": jnp.zeros((2, 9), int)})])
def test_what_is_refused(message, options):
    with pytest.raises(ValueError, match=message):
        ours(*inputs(), **options)
