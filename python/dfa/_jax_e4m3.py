"""dfa.attention of JAX arrays in float8_e4m3fn: a forward alone, o in bfloat16, with a factor for each batch and key head, or each block of their rows.

Works inside jit, vmap and shard_map; XLA's function dfa_scaled_forward has the factors as float32 [b, hk, blocks of rows], which are shared out
over devices as k is.
"""

import jax
import jax.numpy as jnp

from dfa._descales import check_descale_shape, descale_number, descale_rows_of, descale_sizes, refuse_others
from dfa._jax import _one_batch, _padded
from dfa._jax_calls import in_same_axes, placed_alike, scaled_forward
from dfa._shapes import flag_of, nothing_to_read, scale_at_width, scale_of, shown, sizes_of, window_of

_E4M3 = jnp.float8_e4m3fn


def attention(q, k, v, return_lse, descales, *, causal=False, window=None, scale=None, deterministic=False, dropout_p=0.0,
              descale_rows=None, **others):
    """As dfa.attention. descales: of q, k and v, each None, a number or an array [b, hk] with 1 where it is one for all, and with
    descale_rows [b, hk, blocks of so many rows]."""
    refuse_others("JAX arrays", dropout_p, others)
    if not q.dtype == k.dtype == v.dtype == _E4M3:
        raise ValueError(f"q, k, v have element types {q.dtype}, {k.dtype}, {v.dtype}; accepted with q_descale, k_descale or v_descale: "
                         "float8_e4m3fn for all")
    flag_of("deterministic", deterministic)
    if isinstance(scale, jax.core.Tracer):
        raise ValueError(f"scale is {shown(scale)}, which JAX traces; accepted beside float8_e4m3fn: a number, or None for 1 / sqrt(d)")
    q, k, v = _one_batch(q, k, v)
    sizes = sizes_of(q.shape, k.shape, v.shape)
    b, hq, hk, sq, sk, d, dv = sizes
    descale_rows = descale_rows_of(descale_rows)
    factors = [descale_of(f"{name}_descale", x, descale_sizes(b, hk, rows, descale_rows))
               for name, x, rows in zip("qkv", descales, (sq, sk, sk))]
    left, right = window_of(causal, window)
    scale = scale_of(scale)
    if nothing_to_read(sizes):
        o, lse = jnp.zeros((b, hq, sq, dv), jnp.bfloat16), jnp.full((b, hq, sq), -jnp.inf, jnp.float32)
        return (o, lse) if return_lse else o
    if d % 8:
        scale = scale_at_width(scale, d)
    q, k, v, *factors = in_same_axes(*map(_padded, (q, k, v)), *factors)
    o, lse = scaled_forward(*placed_alike(q, k, v), *factors, left=left, right=right, scale=scale, descale_rows=descale_rows)
    o = o[..., :dv]
    return (o, lse) if return_lse else o


def descale_of(name, given, sizes):
    """float32 [b, hk, blocks of rows], of which there is 1 unless the sizes have them; 1 for None."""
    try:
        given = jnp.asarray(1.0 if given is None else descale_number(name, given))
    except TypeError:
        raise TypeError(f"{name} is {shown(given)}; accepted: a number or an array [b, hk]") from None
    if not jnp.issubdtype(given.dtype, jnp.floating) and not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(f"{name} is of {given.dtype}; accepted: real numbers")
    check_descale_shape(name, given.shape, *sizes)
    given = given.astype(jnp.float32)
    return jnp.broadcast_to(given[..., None] if given.ndim == 2 else given, (*sizes, 1)[:3])
