"""JAX arrays: rules of differentiation around XLA's foreign functions. Works inside jit, grad, vmap and shard_map."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy
from jax.custom_derivatives import SymbolicZero

from dfa._jax_calls import backward, forward, in_same_axes, placed_alike
from dfa._shapes import (MOST_WIDE, check_differentiable, flag_of, nothing_to_read, padded_width, scale_at_width, scale_of, shown,
                         sizes_of, window_of)

TYPES = (jnp.float32, jnp.float16, jnp.bfloat16)
_FORWARD_MODE = "forward-mode"  # in JAX's own words about a custom_vjp


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if "@" in algorithm:
        raise ValueError(f"policy '{algorithm.partition('@')[0]}' chooses tiles, which no call of JAX takes; accepted: "
                         "None or max_performance")
    if algorithm not in ("auto", "flash"):
        raise ValueError(f"algorithm '{algorithm}' with JAX; accepted: auto, flash")
    if q.dtype == k.dtype == v.dtype == jnp.float8_e4m3fn:
        from dfa._attention import _of_e4m3
        return _of_e4m3(q, k, v, return_lse, algorithm, (None,) * 3,
                        {"causal": causal, "window": window, "scale": scale, "deterministic": deterministic})
    check_types(q, k, v)
    q, k, v = _one_batch(q, k, v)
    sizes = sizes_of(q.shape, k.shape, v.shape)
    dv = sizes[-1]
    left, right = window_of(causal, window)
    deterministic = flag_of("deterministic", deterministic)
    if nothing_to_read(sizes):
        o, lse = of_nothing(q, dv, scale)
    else:
        q, k, v, scale = fitting(q, k, v, scale)
        o, lse = reverse_mode_only(_attention, q, k, v, left, right, scale, deterministic)
        o = o[..., :dv]
    return (o, lse) if return_lse else o


def integers(name, given):
    """jnp.asarray, where it keeps them: it cuts what NumPy has beyond 32 bits, unless JAX is told to have 64."""
    if not isinstance(given, jax.Array):
        try:
            known = numpy.asarray(given)
        except (TypeError, ValueError):  # lists with traced numbers in them, or of different lengths: JAX's to tell
            return jnp.asarray(given)
        if known.dtype.kind in "iuO" and known.size:
            kept = numpy.iinfo(jax.dtypes.canonicalize_dtype(known.dtype) if known.dtype.kind != "O" else "int64")
            for number in (known.min(), known.max()):
                if not kept.min <= number <= kept.max:
                    raise ValueError(f"{name} has the number {number}; accepted: {kept.min} to {kept.max}")
    return jnp.asarray(given)


def check_types(q, k, v):
    if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype not in TYPES:
        raise ValueError(f"q, k, v have element types {q.dtype}, {k.dtype}, {v.dtype}; accepted: one of "
                         "float32, float16, bfloat16 for all")


def _one_batch(*arrays):
    """An array of batch 1 is there for every batch of the others."""
    batches = {x.shape[0] for x in arrays if x.ndim == 4}
    b = max(batches - {1}, default=1)
    if batches != {1, b} or any(x.ndim != 4 for x in arrays):
        return arrays
    return (jnp.broadcast_to(x, (b, *x.shape[1:])) for x in arrays)


def of_nothing(q, dv, scale):
    """(o, lse) of queries that see no key."""
    q, _ = _scaled(q, scale)  # which refuses what is no scale
    return jnp.zeros((*q.shape[:3], dv), q.dtype), jnp.full(q.shape[:3], -jnp.inf, jnp.float32)


def fitting(q, k, v, scale, shared=(True, True)):
    """q, k, v and scale as kernels take them: head dims in multiples of 8, each on the devices that share batches and heads, where
    these may be shared."""
    d = q.shape[3]
    q, scale = _scaled(q, scale)
    if d % 8 or not d:
        scale = scale_at_width(scale, d)
    return *placed_alike(*in_same_axes(*map(_padded, (q, k, v))), shared), scale


def _scaled(q, scale):
    """(q, the kernels' scale). One that JAX traces, one of each query head, and an array of 0 multiply q: kernels take a number that is
    known before they run, and is not 0."""
    if getattr(scale, "shape", ()) == (1,):
        scale = scale.reshape(())
    real = hasattr(scale, "dtype") and (jnp.issubdtype(scale.dtype, jnp.floating) or jnp.issubdtype(scale.dtype, jnp.integer))
    if not isinstance(scale, jax.core.Tracer) and getattr(scale, "ndim", 0) == 0:
        if not (isinstance(scale, jax.Array) and real and scale == 0):
            return q, scale_of(scale)
    if not real or scale.shape not in ((), (q.shape[1],)):
        raise TypeError(f"scale {shown(scale)}; accepted: one real number, one for each query head, here [{q.shape[1]}], or None for "
                        "1 / sqrt(d)")
    usual = scale_at_width(0.0, q.shape[3])  # by which the kernels multiply: q stays as large as it was
    factor = jnp.asarray(scale).astype(jnp.float32) / usual
    return (q.astype(jnp.float32) * (factor if factor.ndim == 0 else factor[:, None, None])).astype(q.dtype), usual


def _padded(x):
    missing = padded_width(x.shape[3]) - x.shape[3]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x


def reverse_mode_only(call, *given):
    """call(*given); forward mode, which it has not, is refused in one line."""
    try:
        return call(*given)
    except TypeError as error:
        if _FORWARD_MODE not in str(error):
            raise
        raise TypeError("dfa.attention has no forward-mode derivative (jvp, jacfwd, hessian); accepted: grad, vjp, "
                        "jacrev") from None


# Every forward gives the same bits in every run: `deterministic` is for the backward.
@partial(jax.jit, static_argnums=(3, 4, 5, 6))
@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _attention(q, k, v, left, right, scale, deterministic):
    return forward(q, k, v, left=left, right=right, scale=scale)


def _keep(q, k, v, left, right, scale, deterministic):
    q, k, v = q.value, k.value, v.value
    check_differentiable(q.shape[3])
    o, lse = forward(q, k, v, left=left, right=right, scale=scale)
    return (o, lse), (q, k, v, o, lse)


def _backward(left, right, scale, deterministic, kept, gradients):
    q, k, v, o, lse = kept
    v, o, d_o = with_gradients(v, o, lse, *gradients)
    dq, dk, dv = backward(q, k, v, o, lse, d_o, left=left, right=right, scale=scale, deterministic=deterministic)
    return dq, dk, dv[..., :kept[2].shape[3]]


def with_gradients(v, o, lse, d_o, d_lse):
    """v, o, d_o as the backward takes them, wider where there is a gradient of lse."""
    if isinstance(d_o, SymbolicZero):
        d_o = jnp.zeros_like(o)
    return (v, o, d_o) if isinstance(d_lse, SymbolicZero) else _with_gradient_of_lse(v, o, d_o, lse, d_lse)


def _with_gradient_of_lse(v, o, d_o, lse, d_lse):
    """v, o, d_o with eight columns more, in which o · d_o, that is subtracted from each dP, is d_lse less: the scores'
    gradient is P (dP - o · d_o + d_lse). Two columns hold d_lse, the second what the element type rounds off."""
    if v.shape[3] + 8 > MOST_WIDE:
        raise ValueError(f"the gradient of lse takes eight columns more than dv={v.shape[3]}; accepted: dv up to "
                         f"{MOST_WIDE - 8}, or jax.lax.stop_gradient(lse)")
    d_lse = jnp.where(jnp.isneginf(lse), 0, d_lse)[..., None]
    high = d_lse.astype(o.dtype)
    low = (d_lse - high.astype(jnp.float32)).astype(o.dtype)
    ones = jnp.ones_like(high)

    def widened(*columns):
        joined = jnp.concatenate(columns, axis=3)
        return jnp.pad(joined, ((0, 0), (0, 0), (0, 0), (0, v.shape[3] + 8 - joined.shape[3])))

    return widened(v), widened(o, -high, -low), widened(d_o, ones, ones)


_attention.__wrapped__.defvjp(_keep, _backward, symbolic_zeros=True)
