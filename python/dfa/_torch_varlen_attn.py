"""torch.nn.attention.varlen's functions by dfa.attention_varlen: the arguments of PyTorch 2.11 to 2.15, by name."""

import torch

from dfa._shapes import flag_of, shown
from dfa._torch_varlen import attention_varlen


def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1),
                enable_gqa=False, seqused_k=None, block_table=None, num_splits=None):
    """torch.nn.attention.varlen.varlen_attn, by dfa.attention_varlen: on the CPU as well, in float32 too, and lse has
    a gradient.

    query [total_q, hq, d], key [total_k, hk, d], value [total_k, hk, dv], cu_seq_q, cu_seq_k int32 [b + 1] → o
    [total_q, hq, dv], or (o, lse) where return_aux.lse is True, as of torch.nn.attention.varlen.AuxRequest: lse float32 [hq, total_q].
    window_size (left, right): (-1, -1) all keys, (-1, 0) causal, aligned to a sequence's last query and key. With enable_gqa hq
    is a multiple of hk, else hq = hk. seqused_k int32 [b]: how many keys of a sequence count; gradients are computed as well.
    max_q, max_k: choose a GPU's kernel; on a processor a longer sequence is refused. num_splits: None as planned, or as of
    dfa.attention_varlen.
    block_table int32 [b, columns], beside seqused_k: key [pages, page, hk, d] and value [pages, page, hk, dv] lie in pages of any
    size (as of dfa.attention_varlen: without gradients), and cu_seq_k, which may be None, says nothing.

    Raises ValueError where dfa.attention_varlen does.
    """
    if block_table is not None and seqused_k is None:
        raise ValueError("seqused_k is None; accepted beside block_table: an int32 tensor [b]")
    if cu_seq_k is None and block_table is None:
        raise ValueError("cu_seq_k is None; accepted: an int32 tensor [b + 1]")
    lse = _wants_lse(return_aux)
    _check_heads(query, key, flag_of("enable_gqa", enable_gqa), block_table is not None)
    o, *rest = _listed(attention_varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window=window_size, scale=scale,
                                        seqused_k=seqused_k, block_table=block_table, return_lse=lse,
                                        num_splits=0 if num_splits is None else num_splits))
    return (o, *rest) if lse else o


def varlen_attn_out(out, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options):
    """torch.nn.attention.varlen.varlen_attn_out: o of varlen_attn, copied to out, which is returned in its place.

    Raises as varlen_attn does, and ValueError on an out of another shape, type or device and on inputs of which a gradient is
    asked for.
    """
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in (out, query, key, value)):
        raise ValueError("a gradient is asked for, which varlen_attn_out does not compute; accepted: varlen_attn, or "
                         "torch.no_grad()")
    result = varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)
    o, *rest = _listed(result)
    if not isinstance(out, torch.Tensor) or (out.shape, out.dtype, out.device) != (o.shape, o.dtype, o.device):
        raise ValueError(f"out is {_described(out)}; expected is {_described(o)}")
    out.copy_(o)
    return (out, *rest) if rest else out


def _wants_lse(aux):
    if aux is None:
        return False
    if not hasattr(aux, "lse"):
        raise TypeError(f"return_aux is {shown(aux)}; accepted: None, or torch.nn.attention.varlen.AuxRequest")
    for name in getattr(aux, "_fields", ()):
        if name != "lse" and getattr(aux, name):
            raise ValueError(f"return_aux.{name} is not supported; accepted: return_aux.lse")
    return flag_of("return_aux.lse", aux.lse)


def _check_heads(query, key, gqa, paged):
    for name, x, pages in (("query", query, False), ("key", key, paged)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__qualname__}; accepted: a tensor")
        if x.dim() != 3 + pages:
            raise ValueError(f"{name} has {x.dim()} dimensions; {3 + pages} are expected: "
                             f"{'pages, rows of a page' if pages else 'rows of all sequences'}, heads, head dim")
    if not gqa and query.shape[1] != key.shape[-2]:
        raise ValueError(f"query has {query.shape[1]} heads, key {key.shape[-2]}; enable_gqa=True lets them share")


def _listed(result):
    return result if isinstance(result, tuple) else (result,)


def _described(x):
    if not isinstance(x, torch.Tensor):
        return type(x).__qualname__
    return f"{list(x.shape)} of {x.dtype} on {x.device}"
