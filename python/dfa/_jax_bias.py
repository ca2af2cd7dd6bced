"""Biases and masks of JAX's function, as what is added to logits: of every batch and head, and -inf where a key is hidden."""

import jax.numpy as jnp

from dfa import _jax_variants


def checked(name, given, shape, accepted):
    """An array of four dimensions that broadcasts to this shape; of three it is one for the whole batch."""
    given = jnp.asarray(given)
    wide = given[None] if given.ndim == 3 else given
    if wide.ndim != 4 or any(size not in (1, wanted) for size, wanted in zip(wide.shape, shape)):
        raise ValueError(f"{name} has shape {list(given.shape)}; it has to broadcast to {list(shape)}")
    if given.dtype not in accepted:
        raise ValueError(f"{name} is {given.dtype}; accepted: {', '.join(jnp.dtype(one).name for one in accepted)}")
    return wide


def hidden(bias, mask, dtype):
    """The bias, zeros of this type where there is none, with -inf where the mask is False."""
    return jnp.where(mask, jnp.zeros((1, 1, 1, 1), dtype) if bias is None else bias, -jnp.inf)


def attend(q, k, v, bias, mask, rows, keys, window, beside, scale, deterministic, **more):
    """(o, lse) of q, k, v [b, h, s, d]; bias and mask broadcast to [b, hq, sq, sk], and either may be None. rows, keys: int32 [b],
    how many queries and keys count, or None. window: (left, right) from the first query and key on, None for no limit. beside, more:
    as _jax_variants.attention has them."""
    sq, sk = q.shape[2], k.shape[2]
    sides, inside = (-1, -1), None
    if sq == sk:  # first and last are the same
        sides = tuple(-1 if side is None else side for side in window)
    else:
        inside = _inside(window, sq, sk)
    counts = None if rows is None else (jnp.arange(sq) < rows[:, None])[:, None, :, None]
    kept = None if keys is None else (jnp.arange(sk) < keys[:, None])[:, None, None]
    for one in (mask, inside, kept):
        if one is not None:
            bias = hidden(bias, one, q.dtype)
    if bias is not None:
        beside = beside | {"bias": bias}
    # What does not count is multiplied, though nothing comes of it: it may hold anything.
    if rows is not None:
        q = jnp.where(counts, q, 0)
    if keys is not None:
        k, v = (jnp.where(kept.swapaxes(2, 3), x, 0) for x in (k, v))
    o, lse = _jax_variants.attention(q, k, v, beside, sides, scale, deterministic, **more)
    return (o, lse) if rows is None else (jnp.where(counts, o, 0), jnp.where(counts[..., 0], lse, -jnp.inf))


def _inside(window, sq, sk):
    """True where the window, counted from the first query and key, shows a query a key; None where it shows all."""
    after = jnp.arange(sk) - jnp.arange(sq)[:, None]
    left, right = window
    if left is right is None:
        return None
    return ((after >= -(sq if left is None else left)) & (after <= (sk if right is None else right)))[None, None]
