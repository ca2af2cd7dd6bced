"""The functions of the package ring-flash-attn (0.1), by dfa.distributed: in the place of `from ring_flash_attn import …`.

    from dfa.ring_flash_attn import zigzag_ring_flash_attn_func

Arguments, layouts and results are theirs: each rank gives its rows, of ring_ one piece, of zigzag_ring_ pieces r and 2n-1-r of 2n.
What is not supported raises ValueError by its name. Other than there, windows, key heads that are shared and packed sequences run
in all of them, and ranks that were given different things say so.
"""

import torch

from dfa._shapes import flag_of
from dfa.distributed import context_parallel_attention
from dfa.flash_attn._adapted import refuse, unpacked, window_of

_ABSENT = {
    **{f"stripe_flash_attn{form}_func": "its rows are dealt one by one, which no layout here does; accepted: zigzag_ring_flash_attn"
       f"{form}_func" for form in ("", "_kvpacked", "_qkvpacked")},
    **{name: "it cuts packed rows wherever they fall; accepted: zigzag_ring_flash_attn_varlen_func, which cuts each sequence"
       for name in ("llama3_flash_attn_varlen_func", "llama3_flash_attn_prepare_cu_seqlens", "llama3_flash_attn_varlen_kvpacked_func",
                    "llama3_flash_attn_varlen_qkvpacked_func")},
    **{name: "it rewrites transformers, in llama3's layout; accepted: dfa.distributed.context_parallel_attention in a registered "
       "attention" for name in ("substitute_hf_flash_attn", "update_ring_flash_attn_params")},
}


def __getattr__(name):
    if name in _ABSENT:
        raise AttributeError(f"{name} is not supported: {_ABSENT[name]}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def ring_flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
                         deterministic=False, return_attn_probs=False, group=None):
    """q [b, rows, hq, d], k, v [b, rows, hk, d] of this rank, contiguous pieces → o [b, rows, hq, d]; with return_attn_probs
    (o, lse, None), lse float32 [b, hq, rows]. group: a ProcessGroup, None for all ranks."""
    return _dense("contiguous", q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs,
                  group)


def zigzag_ring_flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), alibi_slopes=None,
                                deterministic=False, return_attn_probs=False, group=None):
    """As ring_flash_attn_func, of zigzag pieces."""
    return _dense("zigzag", q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic, return_attn_probs, group)


def ring_flash_attn_varlen_func(q, k, v, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
                                alibi_slopes=None, deterministic=False, return_attn_probs=False, group=None):
    """q [rows, hq, d], k, v [rows, hk, d] of this rank, cu_seqlens int32 [b + 1] of these: a sequence is so many times as long as
    there are ranks. → o [rows, hq, d]; with return_attn_probs (o, lse, None), lse float32 [hq, rows]. max_seqlen is not looked at."""
    return _packed("contiguous", q, k, v, cu_seqlens, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic,
                   return_attn_probs, group)


def zigzag_ring_flash_attn_varlen_func(q, k, v, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False,
                                       window_size=(-1, -1), alibi_slopes=None, deterministic=False, return_attn_probs=False,
                                       group=None):
    """As ring_flash_attn_varlen_func, each sequence in zigzag pieces."""
    return _packed("zigzag", q, k, v, cu_seqlens, dropout_p, softmax_scale, causal, window_size, alibi_slopes, deterministic,
                   return_attn_probs, group)


def _dense(layout, q, k, v, dropout_p, scale, causal, window_size, alibi_slopes, deterministic, probs, group):
    refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor) or x.dim() != 4:
            raise ValueError(f"{name} is {getattr(x, 'shape', type(x).__qualname__)}; accepted: a tensor [b, rows, heads, d]")
        if layout == "zigzag" and x.shape[1] % 2:
            raise ValueError(f"{name} has {x.shape[1]} rows a rank; accepted: an even number, two pieces of one length")
    o, lse = context_parallel_attention(*(x.contiguous().transpose(1, 2) for x in (q, k, v)), group=group, method="ring", layout=layout,
                                        causal=causal, window=window_of(window_size), scale=scale, deterministic=deterministic,
                                        return_lse=True)
    o = o.transpose(1, 2)
    return (o, lse, None) if flag_of("return_attn_probs", probs) else o


def _packed(layout, q, k, v, cu_seqlens, dropout_p, scale, causal, window_size, alibi_slopes, deterministic, probs, group):
    refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    if not isinstance(cu_seqlens, torch.Tensor):
        raise ValueError(f"cu_seqlens is {type(cu_seqlens).__qualname__}; accepted: an int32 tensor [b + 1]")
    whole = cu_seqlens * torch.distributed.get_world_size(group)
    _check_pieces(layout, cu_seqlens)
    o, lse = context_parallel_attention(*(x.contiguous() for x in (q, k, v)), group=group, method="ring", layout=layout, causal=causal,
                                        window=window_of(window_size), scale=scale, deterministic=deterministic, return_lse=True,
                                        cu_seqlens_q=whole)
    return (o, lse, None) if flag_of("return_attn_probs", probs) else o


def _check_pieces(layout, cu_seqlens):
    """Two pieces of one length each: what is odd would be cut otherwise than the caller has."""
    if layout == "zigzag" and bool((cu_seqlens % 2).any()):
        raise ValueError(f"cu_seqlens has sequences of an odd number of rows a rank, {cu_seqlens.diff().tolist()[:8]}; accepted: even ones, "
                         "two pieces of one length")


def _of_kv(function, dim, shape):
    def packed(q, kv, *options, **named):
        return function(q, *unpacked("kv", kv, dim, shape), *options, **named)
    return packed


def _of_qkv(function, dim, shape):
    def packed(qkv, *options, **named):
        return function(*unpacked("qkv", qkv, dim, shape), *options, **named)
    return packed


ring_flash_attn_kvpacked_func = _of_kv(ring_flash_attn_func, 2, "b, rows, 2, hk, d")
ring_flash_attn_qkvpacked_func = _of_qkv(ring_flash_attn_func, 2, "b, rows, 3, h, d")
zigzag_ring_flash_attn_kvpacked_func = _of_kv(zigzag_ring_flash_attn_func, 2, "b, rows, 2, hk, d")
zigzag_ring_flash_attn_qkvpacked_func = _of_qkv(zigzag_ring_flash_attn_func, 2, "b, rows, 3, h, d")
ring_flash_attn_varlen_kvpacked_func = _of_kv(ring_flash_attn_varlen_func, 1, "rows, 2, hk, d")
ring_flash_attn_varlen_qkvpacked_func = _of_qkv(ring_flash_attn_varlen_func, 1, "rows, 3, h, d")
zigzag_ring_flash_attn_varlen_kvpacked_func = _of_kv(zigzag_ring_flash_attn_varlen_func, 1, "rows, 2, hk, d")
zigzag_ring_flash_attn_varlen_qkvpacked_func = _of_qkv(zigzag_ring_flash_attn_varlen_func, 1, "rows, 3, h, d")
