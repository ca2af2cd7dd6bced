"""PyTorch tensors as float8_e4m3fn and the factors that undo the rounding's scale."""

from functools import lru_cache

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from dfa._descales import descale_rows_of
from dfa._shapes import shown
from dfa._torch_rotate import check_rotation, refuse_other_types, turned

E4M3 = torch.float8_e4m3fn
_LARGEST = torch.finfo(E4M3).max
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def rounded(x):
    """x as float8_e4m3fn: what is larger than its largest number becomes that, where PyTorch's cast makes NaN of it."""
    return x.clamp(-_LARGEST, _LARGEST).to(E4M3)


def quantize(x: torch.Tensor, scale: str = "head", *, heads: int | None = None,
             rotate: int | None = None, descale_rows: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(x8, descale) of x [b, h, s, d]: x8 is float8_e4m3fn of x's shape, descale float32 [b, hk], and x8 · descale is x, rounded.

    scale: "head", a factor for each batch and head of keys, or "tensor", one for all, of shape []. heads: hk, of which a group of
    h / hk heads each share a factor, as q needs where it has more heads than k and v; h unless given. The factor makes the
    largest number of its part 448, the largest of the type; where all are 0 it is 1. A part with NaN or infinity has no factor:
    it becomes NaN, as its numbers do. x may be float32, float16, bfloat16 or float64, which is rounded to float32 first, on any device.
    rotate: a seed, with which x is dfa.rotate(x, seed) before it is rounded, in float32. Of q and k, with one seed, it leaves o as it
    is and takes the error that outliers of columns make away (docs/design/0033-fp8.md); after RoPE, and not of v. None: x as it is.
    descale_rows: a multiple of 64; each block of so many rows has a factor of its own, descale is [b, hk, blocks], and dfa.attention
    wants the same number. It guards small rows beside large ones, further apart than e4m3 reaches. torch.export of lengths that vary takes
    more than one block of rows, as PyTorch has a graph of its own for a dimension of 1.
    On a GPU of 8.9 or later with Triton two kernels do it, which read x twice and write x8; their bits are those of the operators.

    Raises TypeError on what is no tensor of these types, ValueError on shapes, scales, heads and seeds it cannot take, on x that
    requires a gradient, which the rounding has none of, and on a processor on finite numbers of float64 that float32 has not (elsewhere: infinities).
    """
    refuse_other_types(x)
    if x.is_nested or x.layout != torch.strided or x.dim() != 4:
        raise ValueError(f"x has {x.dim()} dimensions, or is not dense; accepted: a dense tensor [b, h, s, d]")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("x requires a gradient, which rounding to float8_e4m3fn has none of; accepted: x.detach()")
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        raise ValueError("x has a tangent, which rounding to float8_e4m3fn has none of; accepted: x without one")
    if not isinstance(scale, str) or scale not in ("head", "tensor"):
        raise ValueError(f"scale is {shown(scale)}; accepted: 'head', 'tensor'")
    b, h = x.shape[:2]
    heads = h if heads is None else heads
    if type(heads) is not int or heads < 1 or h % heads:
        raise ValueError(f"heads is {shown(heads)}; accepted: a divisor of the {h} heads of x, 1 or more")
    _refuse_beyond_float32(x)
    block = descale_rows_of(descale_rows)
    if block and scale == "tensor":
        raise ValueError(f"descale_rows is {block} beside scale 'tensor'; accepted: 'head'")
    if rotate is not None:
        check_rotation(x, rotate, "rotate")
        x = turned(x, rotate)
    if x.numel() > 0 and _takes_kernels(x):
        x8, largest = _kernels()(x, heads if scale == "head" else None, block)
        factors = _factors(largest)
        return x8, factors if block else factors.squeeze(2) if scale == "head" else factors.reshape(())
    if block:
        return _by_blocks(x.float(), heads, block)
    of_part = x.numel() if scale == "tensor" else h // heads * x.shape[2] * x.shape[3]
    parts = x.float().reshape((b, heads, of_part) if scale == "head" else (1, 1, of_part))
    if of_part == 0:
        factors = torch.ones(parts.shape[:2], dtype=torch.float32, device=x.device)
    else:
        factors = _factors(parts.abs().amax(2))
    return rounded(parts / factors.unsqueeze(2)).reshape(x.shape), factors if scale == "head" else factors.reshape(())


def _refuse_beyond_float32(x):
    """A processor reads numbers of float64 for it. Where they are not read here, one of them is an infinity, and its part NaN."""
    if x.dtype != torch.float64 or x.device.type != "cpu" or type(x) not in _PLAIN or torch.compiler.is_compiling() \
            or is_in_torch_dispatch_mode() or torch._C._are_functorch_transforms_active():
        return
    beyond = x.float().isinf() & x.isfinite()
    if beyond.any():
        raise ValueError(f"x has {float(x[beyond][0])}, which float32 has not; accepted: finite numbers up to 3.4e38, infinity and NaN")


def seen_by_kernels(*tensors):
    """May kernels of our own, past the dispatcher, read and write these, of which None are none? Plain tensors of a GPU whose numbers are as
    they lie. torch.compile makes its own kernels, and transforms and traces have to see operators."""
    if torch.compiler.is_compiling() or not all(x is None or x.is_cuda and type(x) in _PLAIN and not x.is_neg() for x in tensors):
        return False
    return not is_in_torch_dispatch_mode() and not torch._C._are_functorch_transforms_active() and not torch._C._is_tracing()


def _takes_kernels(x):
    return seen_by_kernels(x) and torch.cuda.get_device_capability(x.device) >= (8, 9) and _kernels() is not None


@lru_cache(maxsize=1)
def _kernels():
    """quantize(x, heads, block) of Triton, or None where it is not installed."""
    try:
        from dfa._torch_quantize_kernel import quantize as by_kernels
    except ImportError:
        return None
    return by_kernels


def _by_blocks(x, heads, block):
    """x [b, h, s, d] in float32, of which each block of rows of a key head has a factor."""
    b, h, s, d = x.shape
    if not torch.compiler.is_compiling():
        block = min(block, max(s, 1))  # a block longer than the sequence
    blocks = (s + block - 1) // block
    if x.numel() == 0:
        return rounded(x), torch.ones(b, heads, blocks, dtype=torch.float32, device=x.device)
    x = x.reshape(b, heads, h // heads, s, d)
    # By places, not by slices, so that torch.export asks nothing of how many rows there are: a last block has its last row again.
    rows = torch.arange(blocks * block, device=x.device).clamp(max=s - 1)
    factors = _factors(x.abs().amax((2, 4)).index_select(2, rows).unflatten(2, (-1, block)).amax(3))
    own = factors.index_select(2, torch.arange(s, device=x.device) // block)
    return rounded(x / own[:, :, None, :, None]).reshape(b, h, s, d), factors


def _factors(largest):
    factors = largest / torch.full_like(largest, _LARGEST)  # on a GPU a number would be turned around and multiplied by: another last bit
    return torch.where(largest == 0, 1.0, factors.clamp(min=2.0 ** -126))  # of smaller ones float32 loses digits
