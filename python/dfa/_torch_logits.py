"""dfa.attention of PyTorch's dense tensors with softcap, ALiBi, a bias, a mask or sinks: sequences of one length, packed."""

import torch

from dfa._logits import check_bias_shape
from dfa._shapes import shown, sizes_of
from dfa._torch_inputs import check_kind
from dfa._torch_bias import bias_of
from dfa._torch_varlen import attention_varlen


def attention(q, k, v, return_lse, *, mask, **options):
    """q [b, hq, sq, d], k [b, hk, sk, d], v [b, hk, sk, dv], the options of attention_varlen, and a mask."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_kind(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; 4 are expected: batch, heads, sequence, head dim")
    b = max(q.shape[0], k.shape[0], v.shape[0]) if 0 not in (q.shape[0], k.shape[0], v.shape[0]) else 0
    q, k, v = (x.expand(b, -1, -1, -1) if x.shape[0] in (1, b) else x for x in (q, k, v))
    _, hq, _, sq, sk, _, _ = sizes_of(q.shape, k.shape, v.shape)
    if isinstance(bias := options["bias"], torch.Tensor):
        check_bias_shape(bias.shape, b, hq, sq, sk, more=False)
    if mask is not None:
        options["bias"] = _hidden(options["bias"], mask, q, (b, hq, sq, sk))
    begins = torch.arange(b + 1, dtype=torch.int32, device=q.device)
    o, lse = attention_varlen(*map(_rows_of, (q, k, v)), begins * sq, begins * sk, sq, sk, return_lse=True, **options)
    o = o.unflatten(0, (b, sq)).transpose(1, 2)
    return (o, lse.unflatten(1, (b, sq)).transpose(0, 1).contiguous()) if return_lse else o


def _hidden(bias, mask, q, sizes):
    """The bias, of q's type where there is none, with -inf where the mask is False."""
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        raise TypeError(f"mask is {shown(mask)}; accepted: a tensor of bool, True where a key is seen")
    check_kind("mask", mask)
    check_bias_shape(mask.shape, *sizes, more=False, name="mask")
    if mask.device != q.device:
        raise ValueError(f"mask is on {mask.device}, q on {q.device}; one device is expected")
    bias = torch.zeros((), dtype=q.dtype, device=q.device) if bias is None else bias_of(bias, q.device, *sizes[:2])
    return torch.where(mask, bias, -torch.inf)


def _rows_of(x):
    """[b · s, h, d] of [b, h, s, d]: without a copy where it lies in memory as [b, s, h, d]."""
    return x.transpose(1, 2).flatten(0, 1)
