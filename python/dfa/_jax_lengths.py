"""JAX's masks as kernels have them: theirs count from the last query and key of a sequence, JAX's from the first, and how
many queries and keys count may be traced."""

import jax
import jax.numpy as jnp
import numpy

from dfa import _jax, _jax_variants


def attend(q, k, v, rows, keys, window, beside, **options):
    """(o, lse) of q, k, v [b, h, s, d]. rows, keys: int32 [b], how many queries and keys count, or None. window: (left, right)
    from the first query and key on, None for no limit. beside, options: as _jax_variants.attention has them. Queries that do not
    count have zeros and -inf, those that see no key zeros and -inf, or the sink."""
    sq, sk = q.shape[2], k.shape[2]
    counts = None if rows is None else jnp.arange(sq) < rows[:, None]
    if rows is not None:  # queries that do not count are multiplied, though nothing comes of it: they may hold anything
        q = jnp.where(counts[:, None, :, None], q, 0)
    if keys is None or 0 in (sq, sk):
        o, lse = _dense(q, k, v, window, beside, **options)
    else:
        o, lse = _of_lengths(q, k, v, sq if rows is None else jnp.clip(rows, 0, sq), jnp.clip(keys, 0, sk),
                             _within_reach(window, sq, sk), _more_queries(rows, keys, sq, sk),
                             lambda *given: _attended(beside, options, *given))
    if "sinks" in beside:  # rows of no sequence have -inf, without the sink
        lse = jnp.where(jnp.isneginf(lse), beside["sinks"][..., None], lse)
    if rows is None:
        return o, lse
    return jnp.where(counts[:, None, :, None], o, 0), jnp.where(counts[:, None], lse, -jnp.inf)


def _dense(q, k, v, window, beside, scale, deterministic, **more):
    """Keys that no query sees and queries that see none are at the end: without them the masks have one distance."""
    sq, sk = q.shape[2], k.shape[2]
    left, right = window
    seen = sk if right is None else min(sk, sq + right)
    seeing = sq if left is None else min(sq, seen + left)
    shift = seen - seeing
    sides = -1 if left is None else left + shift, -1 if right is None else right - shift
    q, k, v = q[:, :, :seeing], k[:, :, :seen], v[:, :, :seen]
    if beside or more:
        o, lse = _jax_variants.attention(q, k, v, beside, sides, scale, deterministic, **more)
    else:
        o, lse = _jax.attention(q, k, v, False, sides, scale, True, deterministic, "auto")
    return _longer(o, sq), _longer(lse, sq, -jnp.inf)


def _of_lengths(q, k, v, rows, keys, window, beyond, attended):
    """Of each entry of the batch two sequences. One has as many queries as keys, and there first and last are the same: the
    queries that have a key at their own place, which see what the window says. The other, where there is one, has the queries
    beyond the last key."""
    sq, sk = q.shape[2], k.shape[2]
    left, right = window
    if left is right is None:
        return attended(q, k, v, (0, sq), (0, sk), rows, keys, (-1, -1))
    together = keys if right is None else jnp.minimum(keys, rows + right)
    longest = max(sq, sk if right is None else min(sk, sq + right))
    sides = -1 if left is None else left, -1 if right is None else right
    o, lse = attended(_longer(q, longest), k, v, (0, longest), (0, sk), together, together, sides)
    o, lse = o[:, :, :sq], lse[:, :, :sq]
    if not beyond or left == 0:
        return o, lse
    # Query keys + t, beyond the last key, sees the last left - t keys: a triangle, of which all rows have to be there.
    most = sq if left is None else sq + left
    others = jnp.maximum(rows - keys, 0) if left is None else jnp.where(rows > keys, left, 0)
    begin = jnp.minimum(keys, most)
    no_rows = jnp.zeros_like(others)
    far, far_lse = attended(_longer(q, most), k, v, (0, begin, most), (0, 0, sk), (no_rows, others), (no_rows, keys),
                            (-1 if left is None else 0, -1))
    is_far = jnp.arange(sq) >= keys[:, None]
    return (jnp.where(is_far[:, None, :, None], far[:, :, :sq], o), jnp.where(is_far[:, None], far_lse[:, :, :sq], lse))


def _attended(beside, options, q, k, v, begins_q, begins_k, rows, keys, sides):
    b = q.shape[0]

    def together(parts):
        columns = [jnp.broadcast_to(jnp.asarray(part, jnp.int32), (b,)) for part in (parts if isinstance(parts, tuple) else (parts,))]
        return jnp.stack(columns, 1)
    lengths = tuple(map(together, (begins_q, begins_k, rows, keys)))
    return _jax_variants.attention(q, k, v, beside | {"lengths": lengths}, sides, **options)


def _longer(x, rows, value=0):
    missing = rows - x.shape[2]
    if not missing:
        return x
    return jnp.pad(x, ((0, 0), (0, 0), (0, missing), *((0, 0),) * (x.ndim - 3)), constant_values=value)


def _within_reach(window, sq, sk):
    """The window without limits that are beyond all queries and keys."""
    left, right = window
    return None if left is not None and left >= sq - 1 else left, None if right is not None and right >= sk - 1 else right


def _more_queries(rows, keys, sq, sk):
    """May an entry of the batch have more queries than keys?"""
    if rows is keys and sq <= sk:
        return False
    if isinstance(keys, jax.core.Tracer) or isinstance(rows, jax.core.Tracer):
        return True
    rows = sq if rows is None else numpy.clip(numpy.asarray(rows), 0, sq)
    return bool((rows > numpy.clip(numpy.asarray(keys), 0, sk)).any())
