"""For models written in JAX: the function jax.nn.dot_product_attention, by the kernels of dfa.attention.

    o = dfa.jax.dot_product_attention(q, k, v, is_causal=True, key_value_seq_lengths=lengths)   # [b, s, heads, d]
    o = dfa.jax.dot_product_attention(q, k, v, is_causal=True, segment_ids=ids)                 # packed sequences
    o = dfa.jax.ring_attention(q, k, v, "x", is_causal=True)       # in a shard_map: one sequence over the devices of an axis
"""

from operator import index
from typing import NamedTuple

import jax
import jax.numpy as jnp

import numpy

from dfa import _jax, _jax_bias, _jax_dropout, _jax_lengths, _jax_logits, _jax_ring, _jax_segments
from dfa._logits import texts_name
from dfa._shapes import flag_of, shown


class SegmentIds(NamedTuple):
    """Numbers of the sequences that queries, q [b, sq], and keys, kv [b, sk], are of: as JAX's own kernels have them."""

    q: jax.Array
    kv: jax.Array


def dot_product_attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False, query_seq_lengths=None,
                          key_value_seq_lengths=None, local_window_size=None, implementation=None, return_residual=False,
                          segment_ids=None, max_segments_per_seq=None, deterministic=False, softcap=None, alibi_slopes=None,
                          sinks=None, dropout_p=0.0, dropout_key=None, mask_mod=None, score_mod=None):
    """jax.nn.dot_product_attention, by the kernels of dfa.attention: inside jit, grad and vmap.

    query [b, sq, hq, d], key [b, sk, hk, d], value [b, sk, hk, dv], or all without b → [b, sq, hq, dv], and with
    return_residual (o, lse), lse [b, sq, hq]. hq is a multiple of hk. As there, is_causal and local_window_size count from the
    first query and key: query i sees keys up to i; keys from i - left to i + right, and one number is both. query_seq_lengths,
    key_value_seq_lengths: int32 [b], how many of each count.
    segment_ids: integers [b, s] for queries and keys, or SegmentIds(q [b, sq], kv [b, sk]), those of JAX's kernels too; a query
    sees keys of its own number alone. Numbers may come in any order and again. What is causal, has a window or slopes
    needs one array for both. max_segments_per_seq: of how many numbers an entry of the batch has at most, s unless given; the fewer, the less
    there is to look through.

    bias: float32, float16 or bfloat16, mask: boolean, true where a key is seen; both broadcast to [b, hq, sq, sk]. They are read for
    every batch and head, so that memory of that size is taken, and not beside segment_ids.

    softcap, alibi_slopes, sinks: as in dfa.attention, with a gradient of sinks; a slope goes by the distance of query i and key j,
    |i - j|, and takes as many keys as queries. dropout_p: likewise, not beside segment_ids; dropout_key: a key of jax.random, one for
    all batches and heads, which may be traced: the same key drops the same, in the backward, under jit, and in each of what vmap maps.
    Devices do not share a call that drops: each computes all of it, unless a shard_map shares, where each draws by the key it is given.
    mask_mod, score_mod: texts, as in dfa.attention, not beside segment_ids; q_idx and kv_idx count from the first query and key, sq and
    sk are those of the arrays, whatever lengths say. Beside lengths, and where sq or sk is named and they differ beside is_causal or
    local_window_size, memory of a bias is taken. Devices do not share batches or heads that a text names.

    Other than there: a query that sees no key has zeros and lse of -inf, or the sink, there the mean of all values; lse is float32;
    d and dv may differ. What only the values of traced arrays would tell gives NaN in the place of an error: more segments than
    max_segments_per_seq in their rows, and a number that comes again, with a window or slopes.
    deterministic: as in dfa.attention.

    Raises ValueError on implementation, which is always this one, and on other shapes and types.
    """
    if implementation is not None:
        raise ValueError("implementation is not supported; accepted: None")
    query, key, value = (_array(*named) for named in (("query", query), ("key", key), ("value", value)))
    batched = query.ndim == 4
    if {query.ndim, key.ndim, value.ndim} - {3, 4} or not query.ndim == key.ndim == value.ndim:
        raise ValueError(f"query, key, value have {query.ndim}, {key.ndim}, {value.ndim} dimensions; accepted: [b, s, heads, d] "
                         "or [s, heads, d] for all")
    if not batched:
        query, key, value = (x[None] for x in (query, key, value))
    _check(query, key, value)
    q, k, v = (x.swapaxes(1, 2) for x in (query, key, value))
    window = _window(flag_of("is_causal", is_causal), local_window_size)
    options = {"scale": scale, "deterministic": flag_of("deterministic", deterministic)}
    rows = _lengths("query_seq_lengths", query_seq_lengths, q.shape[0])
    same = query_seq_lengths is key_value_seq_lengths
    keys = rows if same else _lengths("key_value_seq_lengths", key_value_seq_lengths, q.shape[0])
    wide = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    if bias is not None:
        bias = _jax_bias.checked("bias", bias, wide, _jax.TYPES)
    if mask is not None:
        mask = _jax_bias.checked("mask", mask, wide, (jnp.bool_,))
    beside, logits = _jax_logits.logits_of(softcap, alibi_slopes, sinks, *wide[:2])
    dropout, dropped = _jax_dropout.beside_of_key(dropout_p, dropout_key)
    texts = _jax_logits.texts_of_call(mask_mod, score_mod)
    beside, options = beside | dropout, options | logits | dropped | texts
    if "alibi" in beside and wide[2] != wide[3]:
        raise ValueError(f"alibi_slopes with {wide[2]} queries and {wide[3]} keys; accepted: as many of both, or dfa.attention")
    if segment_ids is None:
        if max_segments_per_seq is not None:
            raise ValueError("max_segments_per_seq without segment_ids; accepted: None")
        if bias is not None or mask is not None or _counts_places(not rows is keys is None, beside, texts, window, wide):
            o, lse = _jax_bias.attend(q, k, v, bias, mask, rows, keys, window, beside, **options)
        else:
            o, lse = _jax_lengths.attend(q, k, v, rows, keys, window, beside, **options)
    else:
        refused = ("bias or mask" if bias is not None or mask is not None else "dropout_p" if dropped else
                   "mask_mod or score_mod" if texts else None)
        if refused:
            raise ValueError(f"segment_ids beside {refused}; accepted: one of them")
        if rows is not None or keys is not None:
            raise ValueError("segment_ids beside query_seq_lengths or key_value_seq_lengths; accepted: one of them, and a number "
                             "of its own for what is padding")
        o, lse = _jax_segments.attend(q, k, v, segment_ids, max_segments_per_seq, window, beside, **options)
    o, lse = (x.swapaxes(1, 2) if batched else x[0].swapaxes(0, 1) for x in (o, lse))
    return (o, lse) if flag_of("return_residual", return_residual) else o


def _counts_places(has_lengths, beside, texts, window, wide):
    """Does what becomes of logits go by places in the whole arrays, where sequences would else be cut out of them?"""
    if has_lengths:
        return bool(texts) or not {"alibi", "dropout"}.isdisjoint(beside)
    return wide[2] != wide[3] and window != (None, None) and texts_name(texts.values(), "sq", "sk")


def ring_attention(query, key, value, axis_name, *, is_causal=False, scale=None, layout=None, deterministic=False,
                   return_residual=False):
    """Attention of one sequence whose rows lie on the devices of an axis, inside a shard_map, with gradients.

        spec = P(None, "x")                                       # of [b, s, heads, d]
        ring = jax.shard_map(lambda q, k, v: dfa.jax.ring_attention(q, k, v, "x", is_causal=True), mesh=mesh,
                             in_specs=(spec,) * 3, out_specs=spec)
        o = dfa.jax.zigzag(ring(*(dfa.jax.zigzag(x, 4) for x in (q, k, v))), 4, back=True)

    query [b, rows, hq, d], key [b, keys, hk, d], value [b, keys, hk, dv] of this device → [b, rows, hq, dv]; with return_residual
    (o, lse), lse float32 [b, rows, hq]. Keys and values go round by ppermute, which XLA puts beside the products; what is left of
    them in each step is computed, under is_causal no more than half.
    layout: contiguous, or zigzag, which is what is meant with is_causal: of 2n pieces of the sequence a device has two, as zigzag()
    orders them, so that all have the same work.

    Raises ValueError on shapes, on rows that differ from keys under is_causal, and on an odd number of rows in a zigzag; NameError
    outside of a shard_map over axis_name.
    """
    query, key, value = (_array(*named) for named in (("query", query), ("key", key), ("value", value)))
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ValueError(f"query, key, value have {query.ndim}, {key.ndim}, {value.ndim} dimensions; accepted: [b, rows, heads, d]")
    _check(query, key, value)
    if 0 in (*query.shape, *key.shape, *value.shape):
        raise ValueError(f"query, key, value have shapes {list(query.shape)}, {list(key.shape)}, {list(value.shape)}; accepted: no size of 0")
    causal = flag_of("is_causal", is_causal)
    if layout not in (None, "contiguous", "zigzag"):
        raise ValueError(f"layout is {shown(layout)}; accepted: contiguous, zigzag, or None for zigzag with is_causal")
    zigzag = causal and layout != "contiguous"
    if causal and query.shape[1] != key.shape[1] or zigzag and query.shape[1] % 2:
        raise ValueError(f"a device has {query.shape[1]} rows and {key.shape[1]} keys; accepted with is_causal: as many of both, in a zigzag "
                         "an even number")
    q, k, v, scale = _jax.fitting(*(x.swapaxes(1, 2) for x in (query, key, value)), scale)
    o, lse = _jax_ring.attend(q, k, v, axis_name, causal, zigzag, scale, flag_of("deterministic", deterministic))
    o, lse = (x.swapaxes(1, 2) for x in (o[..., :value.shape[3]], lse))
    return (o, lse) if flag_of("return_residual", return_residual) else o


def zigzag(x, devices, axis=1, *, back=False):
    """The rows of a whole array along `axis`, ordered so that each of so many devices gets pieces r and 2n-1-r of 2n; with back the
    way back. Raises ValueError where 2n does not divide them."""
    rows = x.shape[axis]
    if type(devices) is not int or devices < 1 or rows % (2 * devices):
        raise ValueError(f"{rows} rows over {shown(devices)} devices; accepted: a multiple of two rows for each device")
    pieces = numpy.arange(rows).reshape(2 * devices, -1)
    order = numpy.concatenate([pieces[at] for device in range(devices) for at in (device, 2 * devices - 1 - device)])
    return jnp.take(x, numpy.argsort(order) if back else order, axis=axis)


def _array(name, given):
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {shown(given)}; accepted: an array") from None


def _check(query, key, value):
    _jax.check_types(query, key, value)
    (b, _, hq, d), (_, _, hk, _) = query.shape, key.shape
    if key.shape[:3] != value.shape[:3] or key.shape[0] != b or key.shape[3] != d or (hq % hk if hk else hq):
        raise ValueError(f"shapes do not match: query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}; "
                         "expected are [b, sq, hq, d], [b, sk, hk, d], [b, sk, hk, dv], with hq a multiple of hk")


def _window(is_causal, sides):
    """(left, right): how many keys before and after its own place a query sees, None where there is no limit."""
    left, right = None, None
    if sides is not None:
        try:
            left, right = map(_side, sides if isinstance(sides, (tuple, list)) else (sides, sides))
        except (TypeError, ValueError):
            raise ValueError(f"local_window_size {shown(sides)}; accepted: a whole number of keys, 0 or more, or (left, right)"
                             ) from None
    return left, 0 if is_causal else right


def _side(side):
    if isinstance(side, (bool, jax.core.Tracer)) or index(side) < 0:
        raise ValueError
    return index(side)


def _lengths(name, given, b):
    if given is None:
        return None
    given = _jax.integers(name, given)
    if given.dtype != jnp.int32 or given.shape != (b,):
        raise ValueError(f"{name} is {given.dtype} {list(given.shape)}; accepted: int32 [{b}]")
    return given
