"""The functions of FlashAttention-4's module flash_attn.cute, by dfa. What is not supported raises ValueError by its name;
num_splits and pack_gqa, which change no result, are the library's own to choose."""

from torch.compiler import is_dynamo_compiling

from dfa._shapes import flag_of
from dfa._torch_again import recall
from dfa._torch_varlen import in_full, splits_of
from dfa.flash_attn._adapted import attend, logits_of, packed_rows, refuse_others, whole_pages, window_of

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0,
                    num_splits=1, pack_gqa=None, deterministic=False, return_lse=False, **others):
    """q [b, sq, hq, d], k [b, sk, hk, d], v [b, sk, hk, dv] → (o, lse): lse float32 [b, hq, sq], or None without return_lse."""
    key = None
    if not (others or is_dynamo_compiling()):
        key = ("flash4", q, k, v, softmax_scale, causal, window_size, learnable_sink, softcap, num_splits, pack_gqa, deterministic, return_lse)
        if (outputs := recall(key)) is not None:
            return outputs
    refuse_others(others)
    splits_of(num_splits, False)
    with_lse = flag_of("return_lse", return_lse)
    o, lse = attend(q, k, v, softmax_scale, causal, window_size, deterministic, logits_of(softcap, None, learnable_sink), key,
                    "(ol)" if with_lse else "(on)")
    return o, lse if with_lse else None


def flash_attn_varlen_func(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, seqused_q=None,
                           seqused_k=None, page_table=None, softmax_scale=None, causal=False, window_size=(None, None),
                           learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                           return_lse=False, *, scheduler_metadata=None, disable_scheduler_metadata=False, **others):
    """q [total_q, hq, d], k [total_k, hk, d], v [total_k, hk, dv], cu_seqlens int32 [b + 1], seqused int32 [b] → (o, lse): lse
    float32 [hq, total_q], or None without return_lse. With page_table, int32 [b, columns], k is [pages, page, hk, d] and
    v [pages, page, hk, dv] with pages of any size; seqused_k says how long sequences are, as long as
    their row of the table where None. Without cu_seqlens_q q is [b, sq, hq, d], and so
    is o, lse [b, hq, sq]; without cu_seqlens_k k is [b, sk, hk, d] and v likewise. scheduler_metadata is taken and says nothing."""
    key = None
    if not (others or is_dynamo_compiling()):
        key = ("flash4_varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, None, learnable_sink, page_table, None, None,
               max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, softcap, num_splits, pack_gqa, deterministic, return_lse,
               scheduler_metadata is None, disable_scheduler_metadata is True)
        if (outputs := recall(key)) is not None:
            return outputs
    refuse_others(others)
    splits_of(num_splits, False)
    if page_table is not None and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k beside page_table is not supported; accepted: seqused_k")
    with_lse, sizes = flag_of("return_lse", return_lse), None
    if cu_seqlens_q is None:
        (q, cu_seqlens_q), sizes, key = packed_rows("cu_seqlens_q", q, "q"), q.shape[:2], None
    if cu_seqlens_k is None and page_table is None:
        key = None
        (k, cu_seqlens_k), (v, _) = packed_rows("cu_seqlens_k", k, "k"), packed_rows("cu_seqlens_k", v, "v")
    if page_table is not None and seqused_k is None:
        seqused_k, key = whole_pages(page_table, k), None
    o, lse = in_full(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, page_table, key,
                     "(ol)" if with_lse else "(on)", causal=causal, window=window_of(window_size), scale=softmax_scale,
                     deterministic=deterministic, **logits_of(softcap, None, learnable_sink))
    if sizes is not None:
        o, lse = o.unflatten(0, sizes), lse.unflatten(1, sizes).transpose(0, 1)
    return o, lse if with_lse else None
