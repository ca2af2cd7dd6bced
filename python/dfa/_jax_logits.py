"""dfa.attention of JAX arrays with softcap, ALiBi, sinks, a bias, a mask, texts, chunks, prefixes or dropout."""

import jax.numpy as jnp

from dfa import _jax_variants
from dfa._jax import TYPES, _one_batch, check_types
from dfa._jax_bias import hidden
from dfa._jax_dropout import beside_of
from dfa._logits import check_bias_shape, check_shapes, short_texts_of, softcap_of
from dfa._shapes import flag_of, positions_of, shown, sizes_of, window_of


def attention(q, k, v, return_lse, *, causal, window, scale, deterministic, softcap, alibi_slopes, sinks, bias, chunk, prefix, mask,
              mask_mod, score_mod, dropout_p, seed):
    """As dfa.attention."""
    check_types(q, k, v)
    q, k, v = _one_batch(q, k, v)
    b, hq, _, sq, sk, _, _ = sizes_of(q.shape, k.shape, v.shape)
    sides = window_of(causal, window)
    chunk, prefix = positions_of(sides, chunk, prefix)
    beside, more = logits_of(softcap, alibi_slopes, sinks, b, hq)
    given, dropped = beside_of(dropout_p, seed)
    more |= texts_of_call(mask_mod, score_mod)
    bias = _bias_of(bias, mask, q.dtype, (b, hq, sq, sk))
    if bias is not None:
        given["bias"] = bias
    o, lse = _jax_variants.attention(q, k, v, beside | given, sides, scale, flag_of("deterministic", deterministic), chunk=chunk,
                                     prefix=prefix, **more, **dropped)
    return (o, lse) if return_lse else o


def logits_of(softcap, alibi_slopes, sinks, b, hq):
    """({"alibi": [b, hq], "sinks": [1, hq]}, {"softcap": c}), as _jax_variants.attention has them, of what is given."""
    alibi_slopes, sinks = (_floats(*named) for named in (("alibi_slopes", alibi_slopes), ("sinks", sinks)))
    check_shapes(alibi_slopes, sinks, b, hq)
    beside = {} if alibi_slopes is None else {"alibi": jnp.broadcast_to(alibi_slopes, (b, hq))}
    if sinks is not None:
        beside["sinks"] = sinks[None]
    softcap = softcap_of(softcap)
    return beside, {"softcap": softcap} if softcap else {}


def texts_of_call(mask_mod, score_mod):
    """{"mask_mod": text, "score_mod": text} as _jax_variants.attention has them, empty where there are none. Read here, where a fault
    raises ValueError: inside of a program XLA would have it."""
    texts = short_texts_of(mask_mod, score_mod)
    return {} if texts == ("", "") else dict(zip(("mask_mod", "score_mod"), texts))


def _floats(name, given):
    if given is None:
        return None
    dtype = _array(name, given).dtype
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise TypeError(f"{name} is of {dtype}; accepted: real numbers")
    return jnp.asarray(given, jnp.float32)  # of what is given: JAX's own integers may have 32 bits


def _bias_of(bias, mask, dtype, sizes):
    """The bias, of this type where there is none, with -inf where the mask is False; None for none."""
    if bias is not None:
        bias = _array("bias", bias)
        if bias.dtype not in TYPES:
            raise TypeError(f"bias is of {bias.dtype}; accepted: {', '.join(jnp.dtype(one).name for one in TYPES)}")
        check_bias_shape(bias.shape, *sizes, more=False)
    if mask is None:
        return bias
    mask = _array("mask", mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(f"mask is of {mask.dtype}; accepted: bool, True where a key is seen")
    check_bias_shape(mask.shape, *sizes, more=False, name="mask")
    return hidden(bias, mask, dtype)


def _array(name, given):
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {shown(given)}; accepted: an array") from None
