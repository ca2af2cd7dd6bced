"""What calls of PyTorch's tensors are given beside and in q, k and v, checked, and as the operators take it."""

from operator import index

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dfa._logits import check_shapes, softcap_of
from dfa._shapes import shown
from dfa._torch_calls import DTYPES
from dfa._torch_inputs import check_kind


def check_operands(q, k, v):
    """Dense tensors of one element type, on one device."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if type(tensor) is not torch.Tensor and isinstance(tensor, torch.masked.MaskedTensor):
            check_kind(name, tensor)
        if tensor.is_nested or tensor.layout != torch.strided:
            raise ValueError(f"{name} is a {'nested' if tensor.is_nested else tensor.layout} tensor; accepted: dense tensors")
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have element types {q.dtype}, {k.dtype}, {v.dtype}; accepted: one of "
                         f"{', '.join(map(str, DTYPES))} for all")
    if q.device.type not in ("cpu", "cuda") or not q.device == k.device == v.device:
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}; accepted: one CPU or CUDA device for all")


def check_integers(device, **tensors):
    """name=(tensor or None, shape): int32, on the device, rows contiguous."""
    for name, (tensor, shape) in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int32:
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__qualname__
            raise ValueError(f"{name} is {kind}; accepted: an int32 tensor")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, q on {device}; one device is expected")
        if -1 in shape or tuple(tensor.shape) != shape or (len(shape) == 1 and not tensor.is_contiguous()):
            expected = "[b, columns]" if len(shape) == 2 else "[b + 1]" if name.startswith("cu_") else "[b]"
            raise ValueError(f"{name} has shape {list(tensor.shape)}; accepted: {expected}, contiguous, of one b for all")


def logits_of(alibi_slopes, sinks, softcap, device, b, hq):
    """(alibi_slopes, sinks, softcap) as the operators take them."""
    for name, tensor in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if tensor is not None and not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__qualname__
            raise TypeError(f"{name} is {kind}; accepted: a floating-point tensor")
        if tensor is not None and tensor.layout != torch.strided:
            raise ValueError(f"{name} is a {tensor.layout} tensor; accepted: a dense tensor")
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, q on {device}; one device is expected")
    check_shapes(alibi_slopes, sinks, b, hq)
    if alibi_slopes is not None and alibi_slopes.requires_grad and torch.is_grad_enabled():
        raise ValueError("alibi_slopes requires a gradient, which is not computed; accepted: slopes that are not learned")
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.detach().float().contiguous()
    return alibi_slopes, None if sinks is None else sinks.float().contiguous(), softcap_of(softcap)


def check_most(cu_seqlens, most, name):
    if most is None:
        return
    most = whole(name, most)
    if cu_seqlens.shape[0] < 2:
        return
    try:
        longest = int(cu_seqlens.diff().max())
    except RuntimeError:
        raise ValueError(f"{name} beside cu_seqlens_{name[-1]} without values here (mapped over by torch.vmap); accepted: None") from None
    if most < longest:
        raise ValueError(f"{name} is {most}, but a sequence has {longest} rows")


def known_most(name, most):
    """As the operator takes it. A compiled call is for all lengths, so that none of them is looked at."""
    if most is None or torch.compiler.is_compiling() or isinstance(most, torch.Tensor) and (most.device.type != "cpu" or type(most) is FakeTensor):
        return 0
    return max(0, whole(name, most))


def whole(name, most):
    try:
        if isinstance(most, bool):
            raise TypeError
        return index(most)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors without a value
        raise TypeError(f"{name} is {shown(most)}; accepted: a whole number, a tensor of one, or None") from None


def check_no_rows(q, k, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
    """Of what has no rows, which comes to no kernel that would look at it."""
    for of, x, cu_seqlens, seqused in (("q", q, cu_seqlens_q, seqused_q), ("k", k, cu_seqlens_k, seqused_k)):
        if x.shape[0] == 0 and cu_seqlens.any():
            raise ValueError(f"cu_seqlens_{of} is {shown(cu_seqlens.tolist())}, but the tensor has 0 rows; accepted: zeros")
        if x.shape[0] == 0 and seqused is not None and seqused.any():
            raise ValueError(f"seqused_{of} is {shown(seqused.tolist())}, but the tensor has 0 rows; accepted: zeros")
