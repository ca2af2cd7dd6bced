"""A scale that is a tensor, one number or one for each query head, with its gradient."""

import torch
from torch.compiler import is_compiling

from dfa._shapes import scale_at_width


def scaled(q, scale):
    """(q, scale) as operators take them: q [b, hq, s, d] or [rows, hq, d], and a number or None.

    One number that can be read is the operator's scale, for which a GPU is waited for. All else multiplies q, which is rounded to its
    element type again: one of each head, 0, and what has no value here (in a graph that is for all values, or mapped over by vmap)."""
    if not isinstance(scale, torch.Tensor):
        return q, scale
    _check(q, scale)
    number = _number_of(scale) if scale.numel() == 1 else None
    scale = _beside(q, scale)
    if not number:
        return _folded(q, scale)
    return (_ScaledBy.apply(q, scale) if scale.requires_grad and torch.is_grad_enabled() else q), number


def _check(q, scale):
    hq = q.shape[1] if q.dim() > 1 else 1
    real = scale.is_floating_point() or not (scale.is_complex() or scale.is_quantized or scale.dtype == torch.bool)
    if not real or scale.is_nested or scale.layout != torch.strided or scale.numel() != 1 and tuple(scale.shape) != (hq,):
        raise ValueError(f"scale is a {scale.dtype} tensor {[*scale.shape]}, {scale.layout}; accepted: one real number, or [hq], here "
                         f"[{hq}], one for each query head")
    if scale.is_meta and not q.is_meta:
        raise ValueError(f"scale is on meta, q on {q.device}; accepted: a tensor with values")


def _number_of(scale):
    """None where it has no value that may be read."""
    if is_compiling() or scale.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    try:
        return float(scale.detach())
    except RuntimeError:  # mapped over by torch.vmap, or of a mode that looks on
        return None


def _beside(q, scale):
    """A plain tensor beside a DTensor is the same on all ranks."""
    if type(q) is torch.Tensor or is_compiling():
        return scale
    from dfa._torch import know_dtensor
    if not know_dtensor((type(q),)):
        return scale
    from dfa._torch_dtensor import replicated
    return replicated(scale, q)


def _folded(q, scale):
    usual = scale_at_width(0.0, q.shape[-1])  # by which the operator multiplies: q stays as large as it was
    factor = scale.to(q.device, torch.float32) / usual
    factor = factor.reshape(()) if scale.numel() == 1 else factor.reshape(-1, *[1] * (q.dim() - 2))
    return (q.float() * factor).to(q.dtype), usual


class _ScaledBy(torch.autograd.Function):
    """q as it is; its gradient also tells that of the scale, which is not 0, since scores are scale · q kᵀ."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, scale):
        return q.view_as(q)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, dq):
        q, scale = ctx.saved_tensors
        sum_of = (q.float() * dq.float()).sum(dtype=torch.float64)
        return dq, (sum_of / scale.double()).to(scale).reshape(scale.shape)
