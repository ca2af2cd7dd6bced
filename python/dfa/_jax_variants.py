"""Variants of attention of JAX arrays: what becomes of logits and probabilities, and packed sequences. Rules of differentiation.

What a variant has beside q, k and v is a dict of arrays (`_jax_calls.variant_forward`), which jit may trace.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from dfa._jax import fitting, of_nothing, reverse_mode_only, with_gradients
from dfa._jax_calls import Options, in_same_axes, sharing, variant_backward, variant_forward
from dfa._shapes import check_differentiable, nothing_to_read, sizes_of, window_of


def attention(q, k, v, beside, sides, scale, deterministic, **more):
    """(o, lse) of q, k, v [b, h, s, d]. beside: as variant_forward has it. sides: (left, right), aligned to the last query and key,
    of a sequence where there are lengths. more: softcap, chunk, prefix, dropout and texts, as in Options. A query that sees no key has o = 0
    and lse of -inf, or the sink; rows of no sequence have zeros and -inf."""
    sizes = sizes_of(q.shape, k.shape, v.shape)
    b, hq, *_, dv = sizes
    if nothing_to_read(sizes):
        o, lse = of_nothing(q, dv, scale)
        return o, lse if "sinks" not in beside else jnp.broadcast_to(beside["sinks"][..., None], lse.shape)
    q, k, v, scale = fitting(q, k, v, scale, shared=sharing(beside, more.get("mask_mod", ""), more.get("score_mod", "")))
    if "bias" in beside:
        beside = beside | {"bias": jnp.broadcast_to(beside["bias"], (b, hq, *beside["bias"].shape[2:]))}
    if floats := [name for name in beside if name in ("alibi", "sinks", "bias")]:
        q, k, v, *arrays = in_same_axes(q, k, v, *(beside[name] for name in floats))
        beside = beside | dict(zip(floats, arrays))
    left, right = window_of(False, sides)
    options = Options(left, right, scale, deterministic, **more)
    o, lse = reverse_mode_only(_attention, beside, q, k, v, options)
    return o[..., :dv], lse


@partial(jax.jit, static_argnums=4)
@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attention(beside, q, k, v, options):
    return variant_forward(q, k, v, beside, options)


def _keep(beside, q, k, v, options):
    def learned(name):
        return name in beside and beside[name].perturbed
    if learned("alibi"):
        raise ValueError("alibi_slopes has a gradient, which is not computed; accepted: jax.lax.stop_gradient(alibi_slopes)")
    wanted = () if learned("bias") else None  # a structure, which is known while it is traced
    beside, q, k, v = jax.tree.map(lambda x: x.value, (beside, q, k, v), is_leaf=lambda x: hasattr(x, "perturbed"))
    check_differentiable(q.shape[3])
    o, lse = variant_forward(q, k, v, beside, options)
    return (o, lse), (beside, q, k, v, o, lse, wanted)


def _backward(options, kept, gradients):
    beside, q, k, v, o, lse, wanted = kept
    without_sinks = {name: given for name, given in beside.items() if name != "sinks"}
    wide_v, wide_o, d_o = with_gradients(v, o, lse, *gradients)
    dq, dk, dv, d_bias = variant_backward(q, k, wide_v, wide_o, lse, d_o, without_sinks, options, learned=wanted is not None)
    d_beside = dict.fromkeys(beside)
    if wanted is not None:
        d_beside["bias"] = d_bias.astype(beside["bias"].dtype)
    if "sinks" in beside:
        d_beside["sinks"] = _of_sinks(beside["sinks"], o, lse, *gradients)
    return d_beside, dq, dk, dv[..., :v.shape[3]]


def _of_sinks(sinks, o, lse, d_o, d_lse):
    """A sink is a logit whose value is 0: of its probability P the gradient is P (0 - o · d_o + d_lse), summed over a head's rows."""
    towards = 0 if isinstance(d_lse, SymbolicZero) else d_lse
    if not isinstance(d_o, SymbolicZero):
        towards = towards - (o.astype(jnp.float32) * d_o.astype(jnp.float32)).sum(-1)
    share = jnp.where(jnp.isneginf(lse), 0, jnp.exp(sinks[..., None] - lse))
    return (share * towards).sum((0, 2))[None]


_attention.__wrapped__.defvjp(_keep, _backward, symbolic_zeros=True)
