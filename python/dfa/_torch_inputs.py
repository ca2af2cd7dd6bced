"""Tensors that no kernel takes as they lie, made into such: shapes, strides and scales, with their gradients."""

import torch

from dfa._shapes import nothing_to_read, padded_width, scale_at_width, scale_of, sizes_of
from dfa._torch_calls import dense, fits
from dfa._torch_scale import scaled

_pad = torch.nn.functional.pad


def attend(call, q, k, v, scale, return_lse):
    """(o, lse) or o of call(q, k, v, scale, return_lse) on tensors that fit."""
    for name, tensor in zip("qkv", (q, k, v)):
        check_kind(name, tensor)
    q, scale = scaled(q, scale)
    if fits(q, k, v):
        return call(q, k, v, scale, return_lse)
    if not q.dim() == k.dim() == v.dim() == 4:
        sizes_of(q.shape, k.shape, v.shape)  # names the one that has other dimensions
    b = max(q.shape[0], k.shape[0], v.shape[0]) if 0 not in (q.shape[0], k.shape[0], v.shape[0]) else 0
    q, k, v = (x.expand(b, -1, -1, -1) if x.shape[0] in (1, b) else x for x in (q, k, v))
    sizes = sizes_of(q.shape, k.shape, v.shape)
    *_, d, dv = sizes
    if nothing_to_read(sizes):
        return _of_nothing(q, k, v, return_lse)
    scale = scale_at_width(scale_of(scale), d)
    q, k, v = (dense(_padded(x)) for x in (q, k, v))
    o, *lse = _listed(call(q, k, v, scale, return_lse))
    o = o[..., :dv] if o.shape[3] != dv else o
    return (o, *lse) if return_lse else o


def _listed(result):
    return result if isinstance(result, (tuple, list)) else [result]


def check_kind(name, tensor):
    if tensor.is_nested or tensor.layout != torch.strided:
        raise ValueError(f"{name} is a {'nested' if tensor.is_nested else tensor.layout} tensor; accepted: dense tensors")
    if isinstance(tensor, torch.masked.MaskedTensor):
        raise ValueError(f"{name} is a masked tensor; accepted: dense tensors, and causal or window for a mask")
    if tensor.is_complex() or tensor.is_quantized:
        raise ValueError(f"{name} has element type {tensor.dtype}; accepted: float32, float16, bfloat16")


def _padded(tensor):
    width = tensor.shape[3]
    return tensor if width == padded_width(width) else _pad(tensor, (0, padded_width(width) - width))


def _of_nothing(q, k, v, return_lse):
    """No queries, or no keys to see: zeros, of which autograd knows."""
    nothing = sum(x[..., :0].sum() for x in (q, k, v))
    o = q.new_zeros(*q.shape[:3], v.shape[3]) + nothing
    if not return_lse:
        return o
    return o, q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)
