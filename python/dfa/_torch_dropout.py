"""Seed and offset of a dropout, where kernels read them: on the device, so that nobody waits and a CUDA graph draws anew."""

import torch

from dfa._dropout import words_of

_LEAST, _MOST = -2 ** 63, 2 ** 63 - 1


def state_of(seed, device):
    """int64 [2] on the device. seed: a whole number, with offset 0; a torch.Generator; such a tensor; or None: PyTorch's own
    generator of the device, which torch.manual_seed sets."""
    if isinstance(seed, torch.Tensor):
        if seed.dtype != torch.int64 or tuple(seed.shape) != (2,) or seed.device != device or not seed.is_contiguous():
            raise ValueError(f"seed is a tensor of {seed.dtype} {list(seed.shape)} on {seed.device}; accepted: int64 [2], seed and "
                             f"offset, contiguous, on {device}")
        return seed.detach()
    if seed is None or isinstance(seed, torch.Generator):
        if seed is not None and seed.device.type != device.type:
            raise ValueError(f"seed is a generator of {seed.device}, q is on {device}; one device is expected")
        return torch.randint(_LEAST, _MOST, (2,), dtype=torch.int64, device=device, generator=seed)
    words = words_of(seed, ", a torch.Generator, a tensor int64 [2] of seed and offset, or None for PyTorch's own generator")
    return torch.tensor(words, dtype=torch.int64, device=device)
