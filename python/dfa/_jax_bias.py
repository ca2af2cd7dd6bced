"""Biases and masks of JAX's function, as what is added to logits: of every batch and head, and -inf where a key is hidden."""

from functools import partial

import jax
import jax.numpy as jnp

from dfa._jax import _attended as _with_one_line_of_error
from dfa._jax import fitting, of_nothing, with_gradients
from dfa._jax_calls import biased_backward, biased_forward, in_same_axes
from dfa._shapes import check_differentiable


def checked(name, given, shape, accepted):
    """An array of four dimensions that broadcasts to this shape; of three it is one for the whole batch."""
    given = jnp.asarray(given)
    wide = given[None] if given.ndim == 3 else given
    if wide.ndim != 4 or any(size not in (1, wanted) for size, wanted in zip(wide.shape, shape)):
        raise ValueError(f"{name} has shape {list(given.shape)}; it has to broadcast to {list(shape)}")
    if given.dtype not in accepted:
        raise ValueError(f"{name} is {given.dtype}; accepted: {', '.join(jnp.dtype(one).name for one in accepted)}")
    return wide


def attend(q, k, v, bias, mask, rows, keys, window, scale, deterministic):
    """(o, lse) of q, k, v [b, h, s, d]; bias and mask broadcast to [b, hq, sq, sk], and either may be None. rows, keys: int32 [b],
    how many queries and keys count, or None. window: (left, right) from the first query and key on, None for no limit."""
    (b, hq, sq, _), sk, dv = q.shape, k.shape[2], v.shape[3]
    sides, inside = (-1, -1), None
    if sq == sk:  # first and last are the same
        sides = tuple(-1 if side is None else side for side in window)
    else:
        inside = _inside(window, sq, sk)
    seen = [mask, inside, None if rows is None else (jnp.arange(sq) < rows[:, None])[:, None, :, None],
            None if keys is None else (jnp.arange(sk) < keys[:, None])[:, None, None]]
    bias = jnp.zeros((1, 1, 1, 1), q.dtype) if bias is None else bias
    for one in seen:
        bias = bias if one is None else jnp.where(one, bias, -jnp.inf)
    if rows is not None:  # queries that do not count are multiplied, though nothing comes of it: they may hold anything
        q = jnp.where(seen[2], q, 0)
    if 0 in (b, sq, sk):
        return of_nothing(q, dv, scale)
    bias = jnp.broadcast_to(bias, (b, hq, *bias.shape[2:]))
    q, k, v, scale = fitting(q, k, v, scale)
    q, k, v, bias = in_same_axes(q, k, v, bias)
    o, lse = _with_one_line_of_error(q, k, v, *sides, scale, deterministic, by=partial(_biased, bias))
    return o[..., :dv], lse


def _inside(window, sq, sk):
    """True where the window, counted from the first query and key, shows a query a key; None where it shows all."""
    after = jnp.arange(sk) - jnp.arange(sq)[:, None]
    left, right = window
    if left is right is None:
        return None
    return ((after >= -(sq if left is None else left)) & (after <= (sk if right is None else right)))[None, None]


@partial(jax.jit, static_argnums=(4, 5, 6, 7))
@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _biased(bias, q, k, v, left, right, scale, deterministic):
    return biased_forward(q, k, v, bias, left=left, right=right, scale=scale)


def _keep(bias, q, k, v, left, right, scale, deterministic):
    learned = () if bias.perturbed else None  # a structure, which is known while it is traced
    bias, q, k, v = (x.value for x in (bias, q, k, v))
    check_differentiable(q.shape[3])
    o, lse = biased_forward(q, k, v, bias, left=left, right=right, scale=scale)
    return (o, lse), (bias, q, k, v, o, lse, learned)


def _backward(left, right, scale, deterministic, kept, gradients):
    bias, q, k, v, o, lse, learned = kept
    v, o, d_o = with_gradients(v, o, lse, *gradients)
    dq, dk, dv, d_bias = biased_backward(q, k, v, o, lse, d_o, bias, left=left, right=right, scale=scale,
                                         deterministic=deterministic, learned=learned is not None)
    d_bias = jnp.zeros_like(bias) if learned is None else d_bias.astype(bias.dtype)
    return d_bias, dq, dk, dv[..., :kept[3].shape[3]]


_biased.__wrapped__.defvjp(_keep, _backward, symbolic_zeros=True)
