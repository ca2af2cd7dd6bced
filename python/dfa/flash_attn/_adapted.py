"""What the three generations of names have in common."""

import torch

from dfa._attention import attention
from dfa._shapes import shown
from dfa._shapes import window_of as sides_of
from dfa._torch_again import OF_DENSE, keep_dense, plan_of

# Values that ask for nothing.
_NOTHING = {"dropout_p": (0,), "attention_chunk": (0, None), "num_splits": (0, 1, None), "sm_margin": (0, None)}


def refuse(**arguments):
    """Raises on what no kernel here does, by the name of the argument."""
    for name, value in arguments.items():
        accepted = _NOTHING.get(name, (None,))
        if not any(value is one or isinstance(value, (int, float)) and not isinstance(value, bool) and value == one
                   for one in accepted):
            raise ValueError(f"{name} is not supported; accepted: {accepted[0]}")


# Further arguments of FlashAttention-4's functions, none of which is supported.
_OF_CUTE = {"qv", "score_mod", "score_mod_bwd", "mask_mod", "aux_tensors", "block_sparse_tensors", "block_sparse_tensors_bwd",
            "full_block_cnt", "full_block_idx", "mask_block_cnt", "mask_block_idx", "block_size", "q_descale", "k_descale", "v_descale",
            "gather_kv_indices", "aux_scalars", "min_seqlen_k", "seqlen_k_per_split"}


def refuse_others(others):
    """Arguments by name that a signature does not list: FlashAttention-4's are not supported, others are none."""
    for name in others:
        if name not in _OF_CUTE:
            raise TypeError(f"got an unexpected keyword argument '{name}'")
    refuse(**others)


def window_of(window_size):
    """dfa's: -1 on a side without a limit, which FlashAttention-4 calls None."""
    if window_size is None or type(window_size) is tuple and {*map(type, window_size)} == {int}:
        return window_size
    try:
        if getattr(window_size, "ndim", None) == 1:  # a tensor, as flash-attn's own tests draw it
            window_size = window_size.tolist()
        if not isinstance(window_size, (tuple, list)):
            raise ValueError
        return sides_of(False, tuple(-1 if side is None else side for side in window_size))
    except ValueError:
        raise ValueError(f"window_size {shown(window_size)}; accepted: (left, right), whole numbers of keys, -1 or None for no "
                         "limit") from None


def logits_of(softcap, alibi_slopes=None, sinks=None, **more):
    """Options of dfa.attention: only what is there, as its usual call is the faster. A softcap of the number 0 is none."""
    if isinstance(softcap, (int, float)) and not isinstance(softcap, bool) and softcap == 0:
        softcap = None
    given = {"softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks, **more}
    return {name: value for name, value in given.items() if value is not None}


def unpacked(name, tensor, place, dimensions):
    """What is stacked in a dimension of a tensor of these, which are named, a number where that one is: (q, k, v) or (k, v)."""
    count = int(dimensions.split(", ")[place])
    _check_tensor(name, tensor)
    if tensor.dim() != dimensions.count(",") + 1 or tensor.shape[place] != count:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; accepted: [{dimensions}]")
    return tensor.unbind(place)


def split_heads(qkv, num_heads_q):
    """(q, k, v) of qkv [b, s, hq + 2 · hk, d]. One that is stacked, [b, s, 3, h, d], has no need of num_heads_q."""
    _check_tensor("qkv", qkv)
    if qkv.dim() == 5:
        return unpacked("qkv", qkv, 2, "b, s, 3, h, d")
    if qkv.dim() != 4:
        raise ValueError(f"qkv has shape {list(qkv.shape)}; accepted: [b, s, 3, h, d], or [b, s, hq + 2 · hk, d] with num_heads_q")
    heads = qkv.shape[2]
    if num_heads_q is None or type(num_heads_q) is not int or not 0 < num_heads_q < heads or (heads - num_heads_q) % 2:
        raise ValueError(f"num_heads_q is {shown(num_heads_q)}; accepted: the heads of q, which leave an even number of the {heads} "
                         "of qkv")
    shared = (heads - num_heads_q) // 2
    return qkv.split([num_heads_q, shared, shared], dim=2)


def both_begins(cu_seqlens_q, cu_seqlens_k):
    """Raises where a name's cu_seqlens are not both there; dfa.attention_varlen's own may leave out those of keys."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise ValueError("cu_seqlens_q or cu_seqlens_k is None; accepted: int32 [b + 1] for packed q, k and v")
    return cu_seqlens_q, cu_seqlens_k


def packed_rows(name, x, x_name):
    """(rows [b · s, h, d], their cu_seqlens) of x [b, s, h, d], which comes without cu_seqlens of this name."""
    _check_tensor(x_name, x)
    if x.dim() != 4:
        raise ValueError(f"{name} is None beside {x_name} of {x.dim()} dimensions; accepted: int32 [b + 1] for packed rows, or {x_name} [b, s, h, d]")
    (b, s), steps = x.shape[:2], torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device)
    if b * s >= 2 ** 31:
        raise ValueError(f"{x_name} has {b} · {s} rows; accepted without {name}: less than 2^31")
    return x.flatten(0, 1), steps * s


def whole_pages(page_table, k):
    """The seqused_k of sequences that have all rows of all their pages."""
    for name, tensor, count, expected in (("page_table", page_table, 2, "[b, columns]"), ("k", k, 4, "[pages, page, hk, d]")):
        _check_tensor(name, tensor)
        if tensor.dim() != count:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; accepted: {expected}")
    return torch.full((page_table.shape[0],), page_table.shape[1] * k.shape[1], dtype=torch.int32, device=page_table.device)


def _check_tensor(name, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {type(tensor).__qualname__}; accepted: a tensor")


def attend(q, k, v, scale, causal, window_size, deterministic, logits, key=None, returns="(ol)"):
    """(o, lse) of [b, s, h, d] tensors; o likewise. logits: of logits_of(). key: the door's, of dfa._torch_again, whose q, k and v come
    first, and what it returns, as a launch() there says it."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; 4 are expected: batch, sequence, heads, head dim")
    turned, window = [x.transpose(1, 2) for x in (q, k, v)], window_of(window_size)
    o, lse = attention(*turned, causal=causal, window=window, scale=scale, deterministic=deterministic, return_lse=True, **logits)
    o = o.transpose(1, 2)
    if key is not None and not logits:
        plan = plan_of(("dense", *turned, causal, window, scale, True, deterministic, "auto"))
        if plan is not None:
            keep_dense(key, plan, OF_DENSE, (o, lse), returns)
    return o, lse
