"""The functions of FlashAttention-3's module flash_attn_interface, by dfa. What is not supported raises ValueError by its name;
num_splits and pack_gqa, which change no result, are the library's own to choose."""

from dfa._shapes import flag_of
from dfa._torch_varlen import attention_varlen
from dfa.flash_attn._adapted import attend, both_begins, logits_of, refuse, split_heads, window_of

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"]


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
                    window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
                    sm_margin=0, return_attn_probs=False):
    """q [b, sq, hq, d], k [b, sk, hk, d], v [b, sk, hk, dv] → o, or with return_attn_probs (o, lse), lse float32
    [b, hq, sq]."""
    refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk,
           sm_margin=sm_margin)
    o, lse = attend(q, k, v, softmax_scale, causal, window_size, deterministic, logits_of(softcap))
    return (o, lse) if flag_of("return_attn_probs", return_attn_probs) else o


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
    return_attn_probs (o, lse), lse float32 [hq, total_q]."""
    refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk,
           sm_margin=sm_margin)
    o, lse = attention_varlen(q, k, v, *both_begins(cu_seqlens_q, cu_seqlens_k), max_seqlen_q, max_seqlen_k, causal=causal,
                              window=window_of(window_size), scale=softmax_scale, seqused_q=seqused_q, seqused_k=seqused_k,
                              deterministic=deterministic, return_lse=True, **logits_of(softcap))
    return (o, lse) if flag_of("return_attn_probs", return_attn_probs) else o
