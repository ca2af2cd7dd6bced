"""Tensors that no kernel takes as they lie, made into such: shapes, strides and scales, with their gradients."""

import torch
from torch.compiler import is_compiling

from dfa._shapes import nothing_to_read, padded_width, scale_at_width, scale_of, sizes_of
from dfa._torch_calls import dense, fits

_pad = torch.nn.functional.pad


def attend(call, q, k, v, scale, return_lse):
    """(o, lse) or o of call(q, k, v, scale, return_lse) on tensors that fit."""
    for name, tensor in zip("qkv", (q, k, v)):
        check_kind(name, tensor)
    if isinstance(scale, torch.Tensor):
        q, scale = _with_scale(q, scale)
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


class _ScaledBy(torch.autograd.Function):
    """q as it is; its gradient also tells that of the scale, since scores are scale · q kᵀ."""

    @staticmethod
    def forward(q, scale):
        return q.view_as(q)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dq):
        q, scale = ctx.saved_tensors
        return dq, ((q.double() * dq.double()).sum() / scale.double()).to(scale.dtype).reshape(scale.shape)


def _with_scale(q, scale):
    if scale.numel() != 1 or not scale.is_floating_point() or scale.layout != torch.strided:
        raise ValueError(f"scale is a {scale.dtype} tensor {list(scale.shape)}, {scale.layout}; accepted: one floating-point "
                         "number")
    if is_compiling():  # a graph for all values of the scale
        return (q.float() * scale.float().reshape(())).to(q.dtype), 1.0
    try:
        value = float(scale.detach())
    except RuntimeError:
        raise ValueError("scale is a tensor without one value here (mapped over by torch.vmap, or on the device meta); accepted: "
                         "one number for all") from None
    return (_ScaledBy.apply(q, scale) if scale.requires_grad and torch.is_grad_enabled() else q), value
