"""Packed sequences of JAX arrays: where they lie is an array as well, which jit may trace. Rules of differentiation."""

from functools import partial

import jax

from dfa._jax import _attended as _with_one_line_of_error
from dfa._jax import fitting, of_nothing, with_gradients
from dfa._jax_calls import packed_backward, packed_forward
from dfa._shapes import check_differentiable, nothing_to_read, sizes_of, window_of


def attention(q, k, v, lengths, window, scale, deterministic):
    """(o, lse) of q, k, v [b, h, s, d] and int32 lengths: begins of sequences in each entry of the batch, of q and k [b, n + 1],
    and how many rows of each count, of q and k [b, n]. window (left, right), aligned to a sequence's last query and key. Rows
    of no sequence have zeros and -inf."""
    sizes = sizes_of(q.shape, k.shape, v.shape)
    dv = sizes[-1]
    left, right = window_of(False, window)
    if nothing_to_read(sizes):
        return of_nothing(q, dv, scale)
    q, k, v, scale = fitting(q, k, v, scale)
    o, lse = _with_one_line_of_error(q, k, v, left, right, scale, deterministic, by=partial(_attention, lengths))
    return o[..., :dv], lse


@partial(jax.jit, static_argnums=(4, 5, 6, 7))
@partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6, 7))
def _attention(lengths, q, k, v, left, right, scale, deterministic):
    return packed_forward(q, k, v, lengths, left=left, right=right, scale=scale)


def _keep(lengths, q, k, v, left, right, scale, deterministic):
    lengths = tuple(x.value for x in lengths)
    q, k, v = q.value, k.value, v.value
    check_differentiable(q.shape[-1])
    o, lse = packed_forward(q, k, v, lengths, left=left, right=right, scale=scale)
    return (o, lse), (lengths, q, k, v, o, lse)


def _backward(left, right, scale, deterministic, kept, gradients):
    lengths, q, k, v, o, lse = kept
    dv = v.shape[3]
    v, o, d_o = with_gradients(v, o, lse, *gradients)
    d_q, d_k, d_v = packed_backward(q, k, v, o, lse, d_o, lengths, left=left, right=right, scale=scale,
                                    deterministic=deterministic)
    return (None,) * len(lengths), d_q, d_k, d_v[..., :dv]


_attention.__wrapped__.defvjp(_keep, _backward, symbolic_zeros=True)
