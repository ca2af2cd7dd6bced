"""dfa.attention of PyTorch's dense tensors with softcap, ALiBi, a bias, a mask or sinks: as they lie where dfa._torch_dense takes them, else
sequences of one length, packed.

Where batches lie apart, [b, h, s, d] without gaps, rows of packed sequences would be a copy. One sequence of b · h heads is none: a batch's
heads read their own keys, as those of a group follow each other.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling

from dfa import _torch_dense
from dfa._logits import check_bias_shape, texts_name
from dfa._shapes import shown, sizes_of
from dfa._torch import know_dtensor
from dfa._torch_again import recall
from dfa._torch_bias import bias_of
from dfa._torch_calls import laid_as_output
from dfa._torch_inputs import check_kind
from dfa._torch_varlen import attention_varlen


def attention(q, k, v, return_lse, *, mask, **options):
    """q [b, hq, sq, d], k [b, hk, sk, d], v [b, hk, sk, dv], the options of attention_varlen, and a mask."""
    key = None
    if not is_compiling():
        tensors = "alibi_slopes", "sinks"
        key = ("logits", q, k, v, *map(options.get, tensors), return_lse, mask, *(x for name, x in options.items() if name not in tensors))
        if (outputs := recall(key)) is not None:
            return outputs
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
    if _torch_dense.takes(q, k, v, options):
        return _torch_dense.attention(q, k, v, return_lse, key, **options)
    if (heads := _of_heads(q, k, v, options)) is not None:
        begins = torch.arange(2, dtype=torch.int32, device=q.device)
        o, lse = attention_varlen(*(x.flatten(0, 1).transpose(0, 1) for x in (q, k, v)), begins * sq, begins * sk, sq, sk, return_lse=True,
                                  **options | heads)
        o = _laid(o.unflatten(1, (b, hq)).permute(1, 2, 0, 3), q)
        return (o, lse.unflatten(0, (b, hq))) if return_lse else o
    begins = torch.arange(b + 1, dtype=torch.int32, device=q.device)
    o, lse = attention_varlen(*map(_rows_of, (q, k, v)), begins * sq, begins * sk, sq, sk, return_lse=True, **options)
    o = _laid(o.unflatten(0, (b, sq)).transpose(1, 2), q)
    return (o, lse.unflatten(1, (b, sq)).transpose(0, 1).contiguous()) if return_lse else o


def _laid(o, q):
    """A fake call stands for an eager one, whose o lies as q does. Of others that come here it stays as it is, which is no copy."""
    return laid_as_output(o, q) if type(q) is FakeTensor and not is_compiling() else o


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


def _of_heads(q, k, v, options):
    """The options that say of each head whose it is, for one sequence of all batches' heads. None where they cannot, where that needs a copy,
    or where rows need none."""
    b, hq = q.shape[:2]
    if is_compiling() or know_dtensor((type(q), type(k), type(v))) or any(x.numel() == 0 for x in (q, k, v)):
        return None
    if all(_are_rows(x) for x in (q, k, v)) or any(x.stride(0) != x.shape[1] * x.stride(1) for x in (q, k, v)):
        return None
    if texts_name([text for name in ("mask_mod", "score_mod") if isinstance(text := options[name], str)], "b", "h"):
        return None
    given = {name: x for name in ("sinks", "alibi_slopes", "scale", "bias") if isinstance(x := options[name], torch.Tensor)}
    if any(x.is_nested or x.layout != torch.strided for x in given.values()):
        return None
    bias = given.pop("bias", None)
    if bias is not None and bias.shape[:2] != (1, 1) and (bias.shape[:2] != (b, hq) or bias.stride(0) != hq * bias.stride(1)):
        return None
    of_all = {} if bias is None or bias.shape[:2] == (1, 1) else {"bias": bias.flatten(0, 1)[None]}
    for name, x in given.items():
        if name == "scale" and x.numel() == 1:
            continue
        if x.shape == (hq,):
            of_all[name] = x.repeat(b)
        elif name == "alibi_slopes" and x.shape == (b, hq):
            of_all[name] = x.flatten()
        else:
            return None
    return of_all


def _are_rows(x):
    return x.shape[0] == 1 or x.stride(0) == x.shape[2] * x.stride(2)


def _rows_of(x):
    """[b · s, h, d] of [b, h, s, d]: without a copy where it lies in memory as [b, s, h, d]."""
    return x.transpose(1, 2).flatten(0, 1)
