"""Ring attention inside a shard_map: keys and values go from device to device by ppermute while each computes with those before.
Arrays are [b, h, s, d] as kernels take them; sums are float32. Gradients of keys travel with them and arrive after the last step."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from dfa._jax import with_gradients
from dfa._jax_calls import backward, forward, in_same_axes
from dfa._shapes import check_differentiable


# Inside of a shard_map JAX knows what gradients are not asked for in a jit alone.
@partial(jax.jit, static_argnums=(3, 4, 5, 6, 7))
@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6, 7))
def attend(q, k, v, axis, causal, zigzag, scale, deterministic):
    """(o, lse) of this device's rows and all devices' keys. zigzag: rows are pieces r and 2n-1-r of 2n."""
    return _round(q, k, v, axis, causal, zigzag, scale)


def _round(q, k, v, axis, causal, zigzag, scale):
    o, lse = forward(q, k, v, left=-1, right=0 if causal else -1, scale=scale)
    total = o.astype(jnp.float32)
    for step in range(1, jax.lax.axis_size(axis)):
        k, v = _next(axis, k, v)
        part, part_lse = _of_others(axis, step, causal, zigzag, partial(_outputs, scale), q, k, v)
        after = jnp.logaddexp(lse, part_lse)
        total = total * _share(lse, after) + part.astype(jnp.float32) * _share(part_lse, after)
        lse = after
    return total.astype(q.dtype), lse


def _keep(q, k, v, axis, causal, zigzag, scale, deterministic):
    q, k, v = q.value, k.value, v.value
    check_differentiable(q.shape[3])
    o, lse = _round(q, k, v, axis, causal, zigzag, scale)
    return (o, lse), (q, k, v, o, lse)


def _differentiate(axis, causal, zigzag, scale, deterministic, kept, gradients):
    q, k, v, o, lse = kept
    options = {"scale": scale, "deterministic": deterministic}

    def of_keys(q, k, v, o, lse, d_o, d_lse, **sides):
        dv = v.shape[3]
        v, o, d_o = with_gradients(v, o, lse, d_o, d_lse)
        d_q, d_k, d_v = backward(q, k, v, o, lse, d_o, **sides, **options)
        return tuple(x.astype(jnp.float32) for x in (d_q, d_k, d_v[..., :dv]))
    d_q, d_k, d_v = of_keys(q, k, v, o, lse, *gradients, left=-1, right=0 if causal else -1)
    for step in range(1, jax.lax.axis_size(axis)):
        k, v, d_k, d_v = _next(axis, k, v, d_k, d_v)
        parts = _of_others(axis, step, causal, zigzag, partial(_gradients, of_keys, o, lse, *gradients), q, k, v)
        d_q, d_k, d_v = (x + part for x, part in zip((d_q, d_k, d_v), parts))
    d_k, d_v = _next(axis, d_k, d_v)
    return d_q.astype(q.dtype), d_k.astype(q.dtype), d_v.astype(q.dtype)


attend.__wrapped__.defvjp(_keep, _differentiate, symbolic_zeros=True)


def _next(axis, *arrays):
    n = jax.lax.axis_size(axis)
    return tuple(jax.lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)]) for x in arrays)


def _of_others(axis, step, causal, zigzag, part, q, k, v):
    """part(q, k, v, first row of q, keys) of what these rows see of keys that have come `step` devices far."""
    rows, keys = q.shape[2], k.shape[2]
    if not causal:
        return part(q, k, v, 0, keys)
    before = jax.lax.axis_index(axis) >= step  # are they of a device before this one?
    if zigzag:
        return jax.lax.cond(before, lambda *x: part(*x, 0, keys // 2), lambda *x: part(*x, rows // 2, keys), q, k, v)
    return jax.lax.cond(before, lambda *x: part(*x, 0, keys), lambda *x: part(*x, rows, keys), q, k, v)


def _outputs(scale, q, k, v, first, keys):
    """(o, lse) of all rows: 0 and -inf before `first`."""
    if first == q.shape[2]:
        o, lse = jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), jnp.full(q.shape[:3], -jnp.inf, jnp.float32)
        return in_same_axes(o, lse, q, k, v)[:2]
    o, lse = forward(q[:, :, first:], k[:, :, :keys], v[:, :, :keys], left=-1, right=-1, scale=scale)
    return _behind(o, first), jnp.pad(lse, ((0, 0), (0, 0), (first, 0)), constant_values=-jnp.inf)


def _gradients(of_keys, o, lse, d_o, d_lse, q, k, v, first, keys):
    if first == q.shape[2]:
        zeros = (jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
        return in_same_axes(*zeros, q, k, v)[:3]
    of_rows = (x if isinstance(x, SymbolicZero) else x[:, :, first:] for x in (o, lse, d_o, d_lse))
    d_q, d_k, d_v = of_keys(q[:, :, first:], k[:, :, :keys], v[:, :, :keys], *of_rows, left=-1, right=-1)
    left = k.shape[2] - keys
    return _behind(d_q, first), *(jnp.pad(x, ((0, 0), (0, 0), (0, left), (0, 0))) for x in (d_k, d_v))


def _behind(x, first):
    return jnp.pad(x, ((0, 0), (0, 0), (first, 0), (0, 0)))


def _share(lse, total):
    return jnp.where(jnp.isneginf(total), 0, jnp.exp(lse - total))[..., None]
