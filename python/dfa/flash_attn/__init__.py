"""The functions of the package flash-attn (2.8), by dfa: in the place of `from flash_attn import …`.

    from dfa.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

Arguments, layouts and results are theirs; dropout_p above 0 draws from PyTorch's
generator. What no kernel here does raises ValueError by its name. Other than
there: lse of a row that sees no key is -inf (theirs +inf), S_dmask is None, and lse has a gradient; an argument that cannot be raises
ValueError or TypeError (theirs RuntimeError); o of a cache requires a gradient where an input does, and its backward raises
NotImplementedError (their flash_attn_with_kvcache drops it).
flash_attn_interface holds the variants of FlashAttention-3, cute those of FlashAttention-4.
"""

from torch.compiler import is_dynamo_compiling

from dfa._dropout import options_of
from dfa._shapes import flag_of
from dfa._torch_again import recall
from dfa._torch_kvcache import known_on_device, with_kvcache
from dfa._torch_varlen import in_full
from dfa.flash_attn._adapted import attend, both_begins, logits_of, unpacked, window_of

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
                    alibi_slopes=None, deterministic=False, return_attn_probs=False):
    """q [b, sq, hq, d], k [b, sk, hk, d], v [b, sk, hk, dv] → o [b, sq, hq, dv]; with return_attn_probs (o, lse, None), lse
    float32 [b, hq, sq]."""
    key = None
    if not is_dynamo_compiling():
        key = ("flash2", q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
        if (outputs := recall(key)) is not None:
            return outputs
    with_lse = flag_of("return_attn_probs", return_attn_probs)
    o, lse = attend(q, k, v, softmax_scale, causal, window_size, deterministic,
                    logits_of(softcap, alibi_slopes) | options_of(dropout_p), key, "(oln)" if with_lse else "o")
    return (o, lse, None) if with_lse else o


def flash_attn_kvpacked_func(q, kv, *options, **named):
    """kv [b, sk, 2, hk, d]; all else as flash_attn_func."""
    return flash_attn_func(q, *unpacked("kv", kv, 2, "b, sk, 2, hk, d"), *options, **named)


def flash_attn_qkvpacked_func(qkv, *options, **named):
    """qkv [b, s, 3, h, d]; all else as flash_attn_func."""
    return flash_attn_func(*unpacked("qkv", qkv, 2, "b, s, 3, h, d"), *options, **named)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, dropout_p=0.0,
                           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                           deterministic=False, return_attn_probs=False, block_table=None):
    """q [total_q, hq, d], k [total_k, hk, d], v [total_k, hk, dv], cu_seqlens int32 [b + 1] → o [total_q, hq, dv]; with
    return_attn_probs (o, lse, None), lse float32 [hq, total_q]. With block_table, int32 [b, columns], k is [pages, page, hk, d] and
    v [pages, page, hk, dv] with pages of any size, and cu_seqlens_k says how long sequences are."""
    key = None
    if not is_dynamo_compiling():
        key = ("flash2_varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, None, None, alibi_slopes, None, block_table, None, None, max_seqlen_q, max_seqlen_k,
               dropout_p, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs)
        if (outputs := recall(key)) is not None:
            return outputs
    begins = both_begins(cu_seqlens_q, cu_seqlens_k) if block_table is None else (cu_seqlens_q, cu_seqlens_k)
    with_lse = flag_of("return_attn_probs", return_attn_probs)
    o, lse = in_full(q, k, v, *begins, max_seqlen_q, max_seqlen_k, None, None, block_table, key, "(oln)" if with_lse else "o",
                     scale=softmax_scale, causal=causal, window=window_of(window_size), deterministic=deterministic,
                     **logits_of(softcap, alibi_slopes), **options_of(dropout_p))
    return (o, lse, None) if with_lse else o


def flash_attn_varlen_kvpacked_func(q, kv, *options, **named):
    """kv [total_k, 2, hk, d]; all else as flash_attn_varlen_func."""
    return flash_attn_varlen_func(q, *unpacked("kv", kv, 1, "total_k, 2, hk, d"), *options, **named)


def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen=None, *options, **named):
    """qkv [total, 3, h, d]; all else as flash_attn_varlen_func."""
    q, k, v = unpacked("qkv", qkv, 1, "total, 3, h, d")
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options, **named)


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
                            window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
                            return_softmax_lse=False, *, batch_invariant=False):
    """q [b, sq, hq, d], k_cache [b_cache, s, hk, d], v_cache [b_cache, s, hk, dv] → o [b, sq, hq, dv]; with return_softmax_lse
    (o, lse), lse float32 [b, hq, sq], a view of [hq, b, sq].

    cache_seqlens: int, or int32 [b]: rows that a sequence has, the whole cache where None. k, v [b, s_new, hk, d]: new rows, which
    are written to the cache behind those, and seen. block_table int32 [b, columns]: the cache lies in pages of any size,
    [pages, page, hk, d]. cache_batch_idx int32 [b]: which of the cache's batches are a sequence's; cache_leftpad int32 [b]: its
    first row there.
    rotary_cos, rotary_sin [positions, rotary_dim / 2]: k, as it is written, and q are rotated; row i of k by position
    cache_seqlens + i, and so of q where there is a mask, else all rows by cache_seqlens. num_splits and batch_invariant: as of
    dfa.attention_varlen.

    Raises ValueError on what cannot be, and where what is written, or the cache it is written to, requires a gradient; on a processor, before
    anything is written, also on new rows that the cache has no place for. A GPU, where lengths are not read here, writes
    none of these. Else a gradient is refused by the backward, with NotImplementedError.
    """
    key = None
    if not is_dynamo_compiling():
        cache_seqlens = known_on_device(cache_seqlens, q)
        key = ("flash2_kvcache", q, k_cache, v_cache, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes, None, None, None, k, v,
               rotary_cos, rotary_sin, None, None, softmax_scale, causal, window_size, softcap, rotary_interleaved, num_splits, return_softmax_lse,
               batch_invariant)
        if (outputs := recall(key)) is not None:
            return outputs
    return with_kvcache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
                        block_table, softmax_scale=softmax_scale, causal=causal, window=window_of(window_size),
                        rotary_interleaved=rotary_interleaved, num_splits=num_splits, batch_invariant=batch_invariant,
                        with_lse=flag_of("return_softmax_lse", return_softmax_lse), logits=logits_of(softcap, alibi_slopes), key=key)
