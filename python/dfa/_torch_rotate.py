"""A rotation of q and k that leaves q·k as it is and spreads outliers over the head dim, before they are rounded to 8 bits."""

import torch

from dfa._shapes import shown

_WORD = 2 ** 32


def rotate(x: torch.Tensor, seed: int) -> torch.Tensor:
    """x [..., d] with each row turned by one orthogonal matrix of d and the seed; of x's shape and type.

    Of q and k that are rotated with one seed, every q·k is what it was, to rounding, and so are dfa.attention's o and lse. A column
    that is large in every row becomes a small share of all columns, so that e4m3 rounds q and k as it rounds normal numbers. v is
    not to be rotated: o would be.

    The matrix is random signs of the columns, then a Hadamard matrix over sqrt(n), for all heads the same: QuaRot's (arXiv
    2404.00456) and FlashAttention-3's. n is the largest power of two that divides d; of other d (96, 192, 576) each block of n
    columns is rotated by itself. d: a multiple of 8. seed: a whole number from 0 to 2^32 - 1; equal signs on every device.
    Positions come first: RoPE does not commute with it, so rotate what RoPE has made, and rotate nothing that a call still gives
    RoPE to (rotary_cos of flash_attn_with_kvcache). A cache of keys that were rotated wants all later q and k with its seed.

    Computed in float32, in float64 for that; of float16 what exceeds 65504 becomes infinite. It costs log2(n) additions and one
    product a number, each a pass over x where torch.compile does not join them. It has a gradient. dfa.quantize(x, rotate=seed)
    rounds once where rotate and then quantize round twice.

    Raises TypeError on what is no tensor of float32, float16, bfloat16 or float64, ValueError on head dims and seeds it cannot take.
    """
    refuse_other_types(x)
    check_rotation(x, seed)
    return turned(x, seed).to(x.dtype)


def refuse_other_types(x):
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.itemsize == 1:
        kind = x.dtype if isinstance(x, torch.Tensor) else f"a {type(x).__qualname__}"
        raise TypeError(f"x is {kind}; accepted: a tensor of PyTorch, of float32, float16, bfloat16 or float64")


def check_rotation(x, seed, name="seed"):
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"{name} is {shown(seed)}; accepted: a whole number from 0 to 2^32 - 1, the same for q and k")
    if not 0 <= seed < _WORD:
        raise ValueError(f"{name} is {seed}; accepted: a whole number from 0 to 2^32 - 1, the same for q and k")
    if x.is_nested or x.layout != torch.strided or x.dim() == 0 or x.shape[-1] == 0 or x.shape[-1] % 8:
        found = "is not dense" if x.is_nested or x.layout != torch.strided else f"has shape {list(x.shape)}"
        raise ValueError(f"x {found}; accepted to be rotated: a dense tensor [..., d], d a multiple of 8, of which a power of two is rotated at once")


def turned(x, seed):
    """x, rotated, in float32 or float64. Sums by halves, as a product of matrices might be one of TF32, or of autocast's 16 bits."""
    x = x if x.dtype == torch.float64 else x.float()
    d = x.shape[-1]
    n = 1
    while d % (2 * n) == 0:  # under torch.compile d may be a symbol, which has no bits
        n *= 2
    x = x * (_signs(d, seed, x.device).to(x.dtype) * n ** -0.5)
    step = 1
    while step < n:
        a, b = x.unflatten(-1, (d // (2 * step), 2, step)).unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
        step *= 2
    return x


def _signs(d, seed, device):
    """1 and -1 [d]: a bit of a hash of column and seed, made where it is used, so that no copy waits for the host."""
    x = torch.arange(d, device=device) * 0x9E3779B1 % _WORD ^ seed
    for _ in range(2):
        x = (x ^ x >> 16) * 0x45D9F3B % _WORD
    return 1 - 2 * ((x ^ x >> 16) & 1)
