"""The bias of a call of packed sequences: what is given, checked."""

import torch

from dfa._logits import check_bias_shape
from dfa._shapes import shown
from dfa._torch_calls import DTYPES


def bias_of(bias, device, b, hq):
    """As the operators take it: four dimensions, contiguous keys, and no values that lie where others do."""
    if bias is None:
        return None
    if not isinstance(bias, torch.Tensor) or bias.dtype not in DTYPES or bias.is_nested or bias.layout != torch.strided:
        kind = type(bias).__qualname__
        if isinstance(bias, torch.Tensor):
            kind = "a nested or sparse tensor" if bias.dtype in DTYPES else bias.dtype
        raise TypeError(f"bias is {kind}; accepted: a dense tensor of {', '.join(map(str, DTYPES))}")
    if bias.device != device:
        raise ValueError(f"bias is on {bias.device}, q on {device}; one device is expected")
    check_bias_shape(bias.shape, b, hq, 0, 0)
    learned = bias.requires_grad and torch.is_grad_enabled()
    for dim in range(4):
        if bias.shape[dim] > 1 and bias.stride(dim) == 0 and not learned:
            bias = bias.narrow(dim, 0, 1)
    dense = bias.stride(3) == 1 or bias.shape[3] == 1
    return bias if dense and all(bias.stride(dim) > 0 or bias.shape[dim] == 1 for dim in range(3)) else bias.contiguous()


def as_read(given):
    """A bias of four dimensions as kernels read it, another tensor without gaps, and what is no tensor."""
    if not isinstance(given, torch.Tensor) or given.dim() == 4 and (given.stride(3) == 1 or given.shape[3] == 1):
        return given
    return given.contiguous()


def check_bias_holds(bias, **most):
    for (name, longest), size in zip(most.items(), bias.shape[2:] if bias is not None else ()):
        if isinstance(longest, int) and 1 < size < longest:
            raise ValueError(f"bias has shape {list(bias.shape)}, but {name} is {longest}; accepted: as many, more, or 1")


def of_every_key(bias, max_seqlen_q, max_seqlen_k):
    """A GPU gives the gradient of a bias of every query and key alone: what is one for all of them is spread out, and autograd sums."""
    if bias is None or not bias.is_cuda or 1 not in bias.shape[2:] or not (bias.requires_grad and torch.is_grad_enabled()):
        return bias
    sizes = []
    for name, size, most in zip("qk", bias.shape[2:], (max_seqlen_q, max_seqlen_k)):
        if size == 1 and not isinstance(most, int):
            raise ValueError(f"bias has shape {list(bias.shape)} and requires a gradient, but max_seqlen_{name} is {shown(most)}; accepted: "
                             "an int, or a bias of every query and key")
        if size == most == 1:
            raise ValueError(f"bias requires a gradient on a GPU, where max_seqlen_{name} of 1 has none; accepted: bias.detach(), or "
                             "tensors on a processor")
        sizes.append(most if size == 1 else size)
    return bias.expand(-1, -1, *sizes).contiguous()
