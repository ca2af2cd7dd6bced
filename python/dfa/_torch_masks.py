"""Masks that PyTorch's users give as tensors, read: which keys each query sees."""

import torch
from torch.compiler import is_compiling

from dfa._attention import attention
from dfa._logits import HIDES
from dfa._segments import attend, intervals_of, segments_of

ACCEPTED = ("accepted: a boolean mask, or one of 0 and -inf, that is the same for all heads and shows each query keys that lie "
            "together (causal, windows, padding, packed sequences)")


def check_mask(mask, name="attn_mask"):
    """Raises on what is no mask: a bias that is learned or added, integers, no tensor at all."""
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"{name} is {type(mask).__qualname__}; accepted: a tensor, or None")
    if mask.is_nested or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ValueError(f"{name} is a {'nested tensor' if mask.is_nested else mask.dtype}; {ACCEPTED}")
    if mask.requires_grad:
        raise ValueError(f"{name} requires a gradient: no kernel here adds a bias to scores; {ACCEPTED}")


@torch.compiler.disable  # whether it is a mask depends on its elements
def is_bias(mask, query):
    """Is it a bias to add to scores, where one can be, on a processor? What only hides keys is a mask."""
    if query.device.type != "cpu" or not isinstance(mask, torch.Tensor) or mask.is_nested or not mask.is_floating_point():
        return False
    learned = mask.requires_grad and torch.is_grad_enabled()
    try:
        _check_rows(mask, "attn_mask")
        return learned or not ((mask <= torch.finfo(mask.dtype).min) | (mask == 0)).all().item()
    except RuntimeError:  # torch.func, fake tensors
        return learned


def _low(mask):
    """True where all keys of a query are hidden, and not all by -inf: PyTorch weighs these by such numbers alone."""
    hidden = (mask <= torch.finfo(mask.dtype).min) | (mask < HIDES)
    return (hidden.all(-1) & (mask != -torch.inf).any(-1)).any()


def _check_rows(mask, name):
    if _low(mask).item():
        raise ValueError(f"{name} hides all keys of a query by numbers that are not all -inf, of which alone PyTorch would make weights; "
                         "accepted: -inf, or False of a boolean mask, for a query that sees no key and gets zeros")


def bias_of(visible, dtype):
    """What a boolean mask adds to scores."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, -torch.inf)


def of_four(mask, b, query, key):
    """With four dimensions."""
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    wanted = b, query.shape[1], query.shape[2], key.shape[2]
    if len(shape) != 4 or any(size not in (1, one) for size, one in zip(shape, wanted)):
        raise ValueError(f"attn_mask has shape {list(mask.shape)}; it has to broadcast to {list(wanted)}")
    return mask.reshape(shape)


def hidden_by(mask, name="attn_mask"):
    """True where a mask of floating-point numbers, which are added to scores, hides a key."""
    hidden = mask <= torch.finfo(mask.dtype).min
    # It hides a key as -inf does, except where it stands for all keys of a query.
    if (_low(mask) | ~(hidden | (mask == 0)).all()).item():
        _check_rows(mask, name)
        raise ValueError(f"{name} holds other numbers than 0 and -inf: no kernel here adds a bias to scores; {ACCEPTED}")
    return hidden


@torch.compiler.disable  # whether it is a mask depends on its elements
def visible_by(mask):
    """True where a mask of check_mask shows a query a key."""
    try:
        return mask if mask.dtype == torch.bool else ~hidden_by(mask)
    except RuntimeError:
        raise _unread() from None


@torch.compiler.disable  # how often attention is called depends on the mask's elements
def masked(query, key, value, visible, **options):
    """o of q, k, v [b, h, s, d] and a boolean mask that broadcasts to [b, hq, sq, sk]. Reading it waits for the GPU."""
    b, sq, sk = query.shape[0], query.shape[2], key.shape[2]
    visible = of_four(visible, b, query, key)
    anything = query.device.type == "cpu" and query.dtype != torch.float8_e4m3fn  # which adds no bias
    try:
        intervals = _intervals(visible, sq, sk, anything)
    except RuntimeError:  # torch.func, fake tensors
        raise _unread() from None
    if intervals is None and anything:
        return attention(query, key, value, bias=bias_of(visible, query.dtype), **options)
    if intervals is None:
        raise ValueError(f"attn_mask shows a query keys that do not lie together; {ACCEPTED}")
    return attend(query, *(x.expand(b, -1, -1, -1) for x in (key, value)), segments_of(intervals, b), **options)


def _intervals(visible, sq, sk, anything):
    if visible.shape[1] > 1 and not (visible == visible[:, :1]).all().item():
        if anything:
            return None
        raise ValueError(f"attn_mask differs from head to head; {ACCEPTED}")
    visible = visible[:, 0].expand(-1, sq, sk) if visible.shape[1] else visible.new_ones(1, sq, sk)
    return intervals_of(lambda rows: visible[:, rows], visible.shape[0], sq, sk)


def _unread():
    return ValueError("attn_mask has elements that are not known while it is traced or mapped; accepted here: None, is_causal, "
                      "torch.nn.attention.bias")


def is_causal(hidden, sq, sk):
    """Does a mask, true where it hides, say what is_causal says? While it is traced its elements are not known, and it is
    taken at its word, as PyTorch does."""
    if is_compiling():
        return True
    return torch.equal(hidden.expand(*hidden.shape[:-2], sq, sk),
                       causally_hidden(sq, sk, hidden.device).expand(*hidden.shape[:-2], sq, sk))


def causally_hidden(sq, sk, device):
    return torch.ones(sq, sk, dtype=torch.bool, device=device).triu(1)
