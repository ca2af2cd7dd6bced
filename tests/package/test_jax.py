"""dfa.attention on JAX arrays, inside jit, grad and vmap."""

import os
import subprocess
import sys
from functools import partial

import numpy as np
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


def test_forward_and_gradients_as_users_compile_them():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k",
               "test_forward_and_gradients and True and not users"]
    run = subprocess.run(command, env=os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=3"},
                         capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and "3 passed" in run.stdout, run.stdout + run.stderr


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


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.float16, 8e-3), (jnp.bfloat16, 6e-2)])
def test_lse_and_its_gradient(dtype, tolerance):
    q, k, v = inputs(dtype, hk=4, d=16, dv=24)

    def both(attention):
        def loss(*x):
            o, lse = attention(*x)
            return (o.astype(jnp.float32) ** 2).sum() + (jnp.sin(lse) * 3).sum()
        return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))

    def exact(q, k, v):
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        with jax.default_matmul_precision("highest"):
            return plain(q, k, v), jax.nn.logsumexp(q @ k.swapaxes(2, 3) / 4, axis=-1)

    def ours(*x):
        return dfa.attention(*x, return_lse=True)
    lse = ours(q, k, v)[1]
    assert lse.dtype == jnp.float32 and close(lse, exact(q, k, v)[1], tolerance)
    for got, wanted in zip(both(ours)(q, k, v), both(exact)(q, k, v)):
        assert got.dtype == dtype and close(got, wanted.astype(jnp.float32), tolerance)
    alone = jax.jit(jax.grad(lambda q: ours(q, k, v)[1].sum()))(q)
    assert close(alone, jax.grad(lambda q: exact(q, k, v)[1].sum())(q).astype(jnp.float32), tolerance)


def test_the_gradient_of_lse_where_there_is_no_room_for_it():
    q, k, v = inputs(d=8, dv=512, sq=5, sk=5)
    assert jax.grad(lambda q: dfa.attention(q, k, v, return_lse=True)[0].sum())(q).shape == q.shape
    with pytest.raises(ValueError, match="gradient of lse takes eight columns"):
        jax.grad(lambda q: dfa.attention(q, k, v, return_lse=True)[1].sum())(q)


def test_the_gradient_of_lse_where_a_query_sees_no_key():
    q, k, v = inputs(sq=5, sk=3, d=8, dv=8)
    got = jax.grad(lambda q: jnp.exp(dfa.attention(q, k, v, causal=True, return_lse=True)[1]).sum())(q)
    assert (got[:, :, :2] == 0).all() and (got[:, :, 2:] != 0).any()


@pytest.mark.parametrize("d, dv", [(12, 20), (1, 3), (100, 7)])
def test_any_head_dim(d, dv):
    q, k, v = inputs(d=d, dv=dv)

    def loss(attention):
        return lambda *x: (attention(*x, causal=True) ** 2).sum()
    assert close(dfa.attention(q, k, v, causal=True), plain(q, k, v, True), 1e-5)
    for got, wanted in zip(*(jax.jit(jax.grad(loss(f), argnums=(0, 1, 2)))(q, k, v) for f in (dfa.attention, plain))):
        assert got.shape == wanted.shape and close(got, wanted, 4e-5)


def test_a_batch_of_one_is_there_for_every_batch():
    q, k, v = inputs()
    repeated = [jnp.broadcast_to(x[:1], x.shape) for x in (k, v)]
    assert jnp.array_equal(dfa.attention(q, k[:1], v[:1]), dfa.attention(q, *repeated))
    got = jax.grad(lambda k: (dfa.attention(q, k, v[:1]) ** 2).sum())(k[:1])
    assert close(got, jax.grad(lambda k: (plain(q, k, repeated[1]) ** 2).sum())(repeated[0]).sum(0, keepdims=True), 4e-5)


@pytest.mark.parametrize("sizes", [{"b": 0}, {"hq": 0}, {"hq": 0, "hk": 0}, {"sq": 0}, {"sk": 0}, {"sq": 0, "sk": 0},
                                   {"d": 0}, {"dv": 0}])
@pytest.mark.parametrize("jit", [jax.jit, lambda function: function])
def test_sizes_of_zero(sizes, jit):
    q, k, v = inputs(**{"d": 8, "dv": 8} | sizes)
    o, lse = jit(lambda *x: dfa.attention(*x, return_lse=True))(q, k, v)
    assert o.shape == (*q.shape[:3], v.shape[3]) and lse.shape == q.shape[:3]
    gradients = jit(jax.grad(lambda *x: dfa.attention(*x).sum(), argnums=(0, 1, 2)))(q, k, v)
    assert all(got.shape == x.shape for got, x in zip(gradients, (q, k, v)))
    assert not gradients[0].any() and not gradients[1].any()  # v counts where only d is zero
    if "sk" in sizes:
        assert not o.any() and (lse == -jnp.inf).all()
    if "d" in sizes:  # scores of zero
        assert close(o, jnp.repeat(v, 2, 1).mean(2, keepdims=True), 1e-5) and close(lse, jnp.log(33.0), 1e-5)


def test_vmap_over_none():
    x = jnp.ones((0, 1, 2, 3, 8))
    assert jax.vmap(dfa.attention)(x, x, x).shape == x.shape
    got = jax.jit(jax.vmap(jax.grad(lambda x: dfa.attention(x, x, x).sum())))(x)
    assert got.shape == x.shape


def test_vmap_of_gradients_and_gradients_of_vmap():
    q, k, v = (jnp.stack([x, x + 1, 2 * x]) for x in inputs(sq=9, sk=9, d=8, dv=8))

    def loss(q, k, v):
        return (dfa.attention(q, k, v, causal=True) ** 2).sum()
    each = [jax.grad(loss, argnums=(0, 1, 2))(q[i], k[0], v[i]) for i in range(3)]
    mapped = jax.vmap(jax.grad(loss, argnums=(0, 1, 2)), in_axes=(0, None, 0))(q, k[0], v)
    assert all(close(got[i], each[i][x], 1e-6) for x, got in enumerate(mapped) for i in range(3))
    shared = jax.grad(lambda k: jax.vmap(loss, in_axes=(0, None, 0))(q, k, v).sum())(k[0])
    assert close(shared, sum(x[1] for x in each), 1e-5)
    twice = jax.vmap(jax.vmap(loss), in_axes=2, axis_size=1)(*(x[:, :, None] for x in (q, k, v)))
    assert close(twice[0], jax.vmap(loss)(q, k, v), 1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2)])
def test_a_scale_that_is_learned(dtype, tolerance):
    q, k, v = inputs(dtype)

    def loss(attention, q, scale):
        return (attention(q, k, v, scale) ** 2).astype(jnp.float32).sum()

    def ours(q, k, v, scale):
        return dfa.attention(q, k, v, scale=scale)

    def exact(q, k, v, scale):
        return plain(q.astype(jnp.float32) * scale * 8, k, v)
    for scale in (jnp.float32(0.1), jnp.bfloat16(-0.5), 0.25):
        got = jax.jit(jax.grad(partial(loss, ours), argnums=(0, 1)))(q, scale)
        wanted = jax.grad(partial(loss, exact), argnums=(0, 1))(q, jnp.float32(scale))
        rounding = float(jnp.finfo(jnp.result_type(scale)).eps)
        assert close(got[0], wanted[0].astype(jnp.float32), 4 * tolerance)
        assert got[1].dtype == jnp.result_type(scale) and close(got[1], wanted[1], max(4 * tolerance, rounding))
    several = jax.vmap(lambda s: dfa.attention(q, k, v, scale=s))(jnp.array([0.1, 0.2]))
    assert close(several[1], dfa.attention(q, k, v, scale=0.2).astype(jnp.float32), tolerance)
    assert jnp.array_equal(dfa.attention(q, k, v, scale=jnp.float32(0.5)), dfa.attention(q, k, v, scale=0.5))


@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "causal": True}, {"sinks": jnp.arange(4.0)}])
def test_a_scale_of_each_query_head(options):
    q, k, v = inputs(hq=4)
    scales = jnp.array([0.1, 0.0, -0.3, 0.25])

    def ours(scales):
        return dfa.attention(q, k, v, scale=scales, **options)

    def by_heads(scales):  # a head at a time; each sink is a head's own
        group = q.shape[1] // k.shape[1]
        return jnp.concatenate([dfa.attention(q[:, h:h + 1] * scales[h], k[:, h // group:h // group + 1], v[:, h // group:h // group + 1],
                                              scale=1.0, **{name: x[h:h + 1] if name == "sinks" else x for name, x in options.items()})
                                for h in range(4)], 1)
    assert close(ours(scales), by_heads(scales), 1e-5) and close(jax.jit(ours)(scales), by_heads(scales), 1e-5)
    wanted = jax.grad(lambda s: (by_heads(s) ** 2).sum())(scales)
    assert close(jax.jit(jax.grad(lambda s: (ours(s) ** 2).sum()))(scales), wanted, 1e-4)
    several = jnp.stack([scales, 2 * scales])
    assert close(jax.vmap(ours)(several)[1], by_heads(2 * scales), 1e-5)
    for one in (jnp.array([0.3]), jnp.array([0.0]), jnp.array(0.0)):  # one for all, in a dimension or none, in a graph or not
        wanted = by_heads(jnp.full(4, one.item()))
        assert close(ours(one), wanted, 1e-5) and close(jax.jit(ours)(one), wanted, 1e-5)
        gradient = jax.grad(lambda s: (ours(s) ** 2).sum())(one)
        assert gradient.shape == one.shape and close(gradient.sum(), jax.grad(lambda s: (by_heads(s) ** 2).sum())(jnp.full(4, one.item())).sum(), 1e-4)
    for wrong in (jnp.ones(3), jnp.ones((4, 1)), jnp.ones(4, bool)):
        with pytest.raises(TypeError, match="scale .*one for each query head, here .4."):
            ours(wrong)


@pytest.mark.parametrize("derivative", [
    lambda f, q: jax.jvp(f, (q,), (q,)), lambda f, q: jax.jacfwd(f)(q), lambda f, q: jax.hessian(f)(q),
    lambda f, q: jax.grad(lambda q: jax.grad(f)(q).sum())(q), lambda f, q: jax.jit(jax.jacfwd(f))(q),
    lambda f, q: jax.jit(jax.hessian(f))(q), lambda f, q: jax.jacrev(jax.jacrev(f))(q)])
def test_derivatives_that_there_are_not(derivative):
    q, k, v = inputs(b=1, hq=2, sq=3, sk=3, d=8, dv=8)
    with pytest.raises((TypeError, ValueError), match=r"accepted: grad, vjp|differentiated once") as caught:
        derivative(lambda q: dfa.attention(q, k, v).sum(), q)
    assert "\n" not in str(caught.value)


def test_what_jax_does_with_functions():
    q, k, v = inputs(sq=9, sk=9, d=8, dv=8)

    def loss(q):
        return (dfa.attention(q, k, v, causal=True) ** 2).sum()
    wanted = jax.grad(loss)(q)
    assert close(jax.grad(jax.checkpoint(loss))(q), wanted, 1e-6)
    assert close(jax.grad(lambda q: jax.lax.scan(lambda sum, _: (sum + loss(q), None), 0.0, None, 3)[0])(q), 3 * wanted,
                 1e-5)
    assert close(jax.jit(jax.grad(loss)).lower(q).compile()(q), wanted, 1e-6)
    value, linear = jax.linearize(loss, q)
    assert close(value, loss(q), 1e-6) and close(jax.linear_transpose(linear, q)(jnp.float32(1))[0], wanted, 1e-6)
    checks = [jax.export.DisabledSafetyCheck.custom_call("dfa_forward")]
    assert close(jax.export.export(jax.jit(loss), disabled_checks=checks)(q).call(q), loss(q), 1e-6)


def test_no_tracer_is_left_behind():
    q, k, v = inputs(sq=9, sk=9, d=8, dv=8)
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda q: dfa.attention(q, k, v, window=(7, 7)).sum()))(q)


def test_double_precision_enabled():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        q, k, v = inputs(sq=9, sk=9, d=8, dv=8)
        o, lse = dfa.attention(q, k, v, causal=True, return_lse=True)
        assert o.dtype == lse.dtype == jnp.float32
        got = jax.grad(lambda q, s: dfa.attention(q, k, v, scale=s).sum(), argnums=(0, 1))(q, jnp.float64(0.5))
        assert got[0].dtype == jnp.float32 and got[1].dtype == jnp.float64
        with pytest.raises(ValueError, match="float64, float64, float64; accepted"):
            dfa.attention(*(x.astype(jnp.float64) for x in (q, k, v)))


def test_what_cannot_be_taken():
    q, k, v = inputs()
    with pytest.raises(ValueError, match="shapes do not match"):
        dfa.attention(q, k[:, :, :5], v)
    with pytest.raises(ValueError, match="element types"):
        dfa.attention(q.astype(jnp.float16), k, v)
    with pytest.raises(ValueError, match="accepted: auto, flash"):
        dfa.attention(q, k, v, algorithm="standard")
    with pytest.raises(ValueError, match="head dims are d=520, dv=520; accepted: up to 512"):
        dfa.attention(*inputs(d=520, dv=520))
    with pytest.raises(ValueError, match="d=576 has no gradient; accepted: up to 512"):
        jax.grad(lambda q, k, v: dfa.attention(q, k, v).sum())(*inputs(d=576, dv=512))
    with pytest.raises(ValueError, match="policy 'min_energy'.*accepted: None"):
        dfa.attention(q, k, v, policy=dfa.Policy("min_energy", profile="shipped"))
    with pytest.raises(TypeError, match="all of one library"):
        dfa.attention(q, np.asarray(k), v)


@pytest.mark.parametrize("name, value", [("causal", True), ("deterministic", True), ("window", 3), ("scale", 1j),
                                         ("scale", True), ("scale", jnp.ones(2))])
def test_options_that_jax_traces(name, value):
    q, k, v = inputs()

    def call(value):
        return dfa.attention(q, k, v, **{name: (value, 0) if name == "window" else value})
    with pytest.raises((TypeError, ValueError), match=f"^{name} .*; accepted: ") as caught:
        jax.jit(call)(value)
    assert "\n" not in str(caught.value)
