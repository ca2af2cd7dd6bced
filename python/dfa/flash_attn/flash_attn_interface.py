"""The functions of FlashAttention-3's module flash_attn_interface, by dfa. What is not supported raises ValueError by its name;
pack_gqa, which changes no result, is the library's own to choose, and num_splits in all names but flash_attn_with_kvcache, as
it is 1 there where nobody says anything."""

import torch
from torch.compiler import is_dynamo_compiling

from dfa._shapes import flag_of
from dfa._torch_again import recall
from dfa._torch_kvcache import known_on_device, with_kvcache
from dfa._torch_varlen import in_full, splits_of
from dfa.flash_attn._adapted import attend, both_begins, logits_of, refuse, split_heads, window_of

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache",
           "get_scheduler_metadata"]


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                    sm_margin=0, return_attn_probs=False):
    """q [b, sq, hq, d], k [b, sk, hk, d], v [b, sk, hk, dv] → o, or with return_attn_probs (o, lse), lse float32
    [b, hq, sq]. Of q, k, v in float8_e4m3fn o is bfloat16, and the descales are float32 [b, hk]."""
    key = None
    if not is_dynamo_compiling():
        key = ("flash3", q, k, v, softmax_scale, causal, qv, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap, num_splits,
               pack_gqa, deterministic, sm_margin, return_attn_probs)
        if (outputs := recall(key)) is not None:
            return outputs
    refuse(qv=qv, attention_chunk=attention_chunk, sm_margin=sm_margin)
    splits_of(num_splits, False)
    with_lse = flag_of("return_attn_probs", return_attn_probs)
    o, lse = attend(q, k, v, softmax_scale, causal, window_size, deterministic,
                    logits_of(softcap, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale), key,
                    "(ol)" if with_lse else "o")
    return (o, lse) if with_lse else o


def flash_attn_qkvpacked_func(qkv, softmax_scale=None, causal=False, q_descale=None, k_descale=None, v_descale=None,
                              window_size=(-1, -1), attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None,
                              sm_margin=0, return_attn_probs=False):
    """qkv [b, s, 3, h, d], or [b, s, hq + 2 · hk, d] with num_heads_q."""
    q, k, v = split_heads(qkv, num_heads_q)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk,
                           softcap, 1, None, deterministic, sm_margin, return_attn_probs)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None,
                           seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None,
                           v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None,
                           deterministic=False, sm_margin=0, return_attn_probs=False):
    """q [total_q, hq, d], k [total_k, hk, d], v [total_k, hk, dv], cu_seqlens int32 [b + 1], seqused int32 [b] → o, or with
    return_attn_probs (o, lse), lse float32 [hq, total_q]. Of q, k, v in float8_e4m3fn o is bfloat16, and the descales are float32
    [b, hk], of each sequence."""
    key = None
    if not is_dynamo_compiling():
        key = ("flash3_varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, None, None, None, k_descale, v_descale, max_seqlen_q,
               max_seqlen_k, softmax_scale, causal, qv, q_descale, window_size, attention_chunk, softcap, num_splits, pack_gqa,
               deterministic, sm_margin, return_attn_probs)
        if (outputs := recall(key)) is not None:
            return outputs
    refuse(qv=qv, attention_chunk=attention_chunk, sm_margin=sm_margin)
    splits_of(num_splits, False)
    with_lse = flag_of("return_attn_probs", return_attn_probs)
    o, lse = in_full(q, k, v, *both_begins(cu_seqlens_q, cu_seqlens_k), max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, None, key,
                     "(ol)" if with_lse else "o", causal=causal, window=window_of(window_size), scale=softmax_scale,
                     deterministic=deterministic,
                     **logits_of(softcap, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale))
    return (o, lse) if with_lse else o


def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
                            cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
                            max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None,
                            softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0,
                            rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
                            return_softmax_lse=False, *, batch_invariant=False):
    """As dfa.flash_attn.flash_attn_with_kvcache, and with cu_seqlens_q int32 [b + 1] q [total_q, hq, d] → o [total_q, hq, dv],
    lse [hq, total_q]; with cu_seqlens_k_new new k and v are packed likewise. page_table is the block_table there,
    and beside it cache_batch_idx says which of its rows are a sequence's; rotary_seqlens int32 [b] takes the place of cache_seqlens in
    rotations. scheduler_metadata is of get_scheduler_metadata.
    k_descale, v_descale: of a cache in float8_e4m3fn beside q of 16 or 32 bits, float32 [b, hk] with 1 where it is one for all; new k
    and v, of q's type, are divided by them as they are written. Of what is returned with lse, theirs has two tensors more where keys are split; here there are none."""
    key = None
    if not is_dynamo_compiling():
        cache_seqlens = known_on_device(cache_seqlens, q, cu_seqlens_q)
        key = ("flash3_kvcache", q, k_cache, v_cache, cache_seqlens, cache_batch_idx, cache_leftpad, page_table, None, cu_seqlens_q, k_descale, v_descale, k, v,
               rotary_cos, rotary_sin, cu_seqlens_k_new, rotary_seqlens, qv, max_seqlen_q, q_descale, softmax_scale,
               causal, window_size, attention_chunk, softcap, rotary_interleaved, _told(scheduler_metadata), num_splits, pack_gqa, sm_margin,
               return_softmax_lse, batch_invariant)
        if (outputs := recall(key)) is not None:
            return outputs
    refuse(qv=qv, q_descale=q_descale, attention_chunk=attention_chunk, sm_margin=sm_margin)
    if scheduler_metadata is not None and getattr(scheduler_metadata, "dtype", None) != torch.int32:
        raise ValueError(f"scheduler_metadata is {type(scheduler_metadata).__qualname__}; accepted: what get_scheduler_metadata "
                         "returns, or None")
    return with_kvcache(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad,
                        page_table, "page_table", cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q, rotary_seqlens,
                        softmax_scale=softmax_scale, causal=causal, window=window_of(window_size),
                        rotary_interleaved=rotary_interleaved, num_splits=num_splits, batch_invariant=batch_invariant, k_descale=k_descale, v_descale=v_descale,
                        with_lse=flag_of("return_softmax_lse", return_softmax_lse), logits=logits_of(softcap), key=key)


def _told(metadata):
    """For a key: nothing in what get_scheduler_metadata returns says anything."""
    return metadata is not None and (getattr(metadata, "dtype", None) is torch.int32 or metadata)


def get_scheduler_metadata(batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
                           qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, cache_leftpad=None,
                           page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), attention_chunk=0,
                           has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0):
    """What flash_attn_with_kvcache takes as scheduler_metadata: an int32 tensor [1] of zeros on the device of cache_seqlens, as
    kernels here are dealt out by the lengths of each call, ahead of nothing."""
    refuse(attention_chunk=attention_chunk, sm_margin=sm_margin)
    if not isinstance(cache_seqlens, torch.Tensor):
        raise TypeError(f"cache_seqlens is {type(cache_seqlens).__qualname__}; accepted: an int32 tensor [b]")
    return torch.zeros(1, dtype=torch.int32, device=cache_seqlens.device)
