"""torch.nn.attention.activate_flash_attention_impl("dfa"): PyTorch's own flash operators, by these kernels.

What PyTorch sends to its flash operators comes here then: scaled_dot_product_attention where it chooses flash, varlen_attn,
nested tensors. On the CPU also, where PyTorch has flash operators of another name and none of packed sequences. Which calls
are flash's, PyTorch decides ahead of it (torch.nn.attention.sdpa_kernel); what it sends to others stays there. What comes here
and no kernel does is refused. All of this is written for any device; only the dispatcher's key differs.
"""

import warnings

import torch

from dfa import _torch_inputs, _torch_operators
from dfa._shapes import padded_width, scale_at_width, scale_of, window_of
from dfa._torch_calls import dense
from dfa._torch_varlen import attention_varlen

NAME = "dfa"
_pad = torch.nn.functional.pad


def register():
    """Makes the name known to PyTorch, where it has such names (from 2.11 on); nothing else changes until it is activated."""
    if hasattr(torch.nn.attention, "register_flash_attention_impl"):
        torch.nn.attention.register_flash_attention_impl(NAME, register_fn=Activated)


class Activated:
    """The operators as they are overridden; remove() puts PyTorch's back."""

    def __init__(self):
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # that there was one to override, which is what was asked for
            warnings.filterwarnings("ignore", message="(?s).*overrid", category=UserWarning)
            self._override()

    def _override(self):
        for name, function in _OPERATORS.items():
            if not hasattr(torch.ops.aten, name):  # of a later PyTorch
                continue
            for key in ("CPU",) if "_for_cpu" in name else ("CPU", "CUDA"):
                self._library.impl(name, function, key)

    def remove(self):
        if self._library is not None:
            self._library._destroy()
        self._library = None


def scaled_dot_product(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """aten::_scaled_dot_product_flash_attention: [b, h, s, d] → (o, lse, None, None, sq, sk, two of random numbers, no mask).
    Causal is aligned to the last query and key."""
    _refuse(dropout_p=dropout_p, return_debug_mask=return_debug_mask)
    o, lse = _forward(query, key, value, *window_of(is_causal, None), scale)
    return _laid_as(o, query), lse, None, None, query.shape[2], key.shape[2], *_no_random_numbers(query)


def scaled_dot_product_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
                                is_causal, philox_seed, philox_offset, *, scale=None):
    _refuse(dropout_p=dropout_p)
    gradients = _backward(grad_out, query, key, value, out, logsumexp, *window_of(is_causal, None), scale)
    return tuple(map(_laid_as, gradients, (query, key, value)))


def scaled_dot_product_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    """aten::_scaled_dot_product_flash_attention_for_cpu: [b, h, s, d] → (o, lse). Causal is aligned to the first query and key."""
    _refuse(dropout_p=dropout_p, attn_mask=attn_mask)
    key, value, window = _from_the_first(query, key, value, is_causal)
    o, lse = _forward(query, key, value, *window, scale)
    return _laid_as(o, query), _rows_first(lse)


def scaled_dot_product_cpu_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None,
                                    scale=None):
    _refuse(dropout_p=dropout_p, attn_mask=attn_mask)
    seen_key, seen_value, window = _from_the_first(query, key, value, is_causal)
    dq, dk, dv = _backward(grad_out, query, seen_key, seen_value, out, logsumexp, *window, scale)
    unseen = key.shape[2] - seen_key.shape[2]
    return tuple(map(_rows_first, (dq, _pad(dk, (0, 0, 0, unseen)), _pad(dv, (0, 0, 0, unseen)))))


def flash(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *, scale=None,
          window_size_left=None, window_size_right=None, seqused_k=None, **others):
    """aten::_flash_attention_forward: [b, s, h, d], or packed [total, h, d] with cum_seq_q and cum_seq_k → (o, lse, two of random
    numbers, no mask)."""
    _refuse(dropout_p=dropout_p, return_debug_mask=return_debug_mask, **others)
    window = _window(is_causal, window_size_left, window_size_right)
    if cum_seq_q is None:
        _refuse(cum_seq_k=cum_seq_k, seqused_k=seqused_k)
        o, lse = _forward(*(x.transpose(1, 2) for x in (query, key, value)), *window, scale)
        o = o.transpose(1, 2)
    else:
        if seqused_k is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise ValueError("seqused_k where a gradient is asked for, of which PyTorch's operator does not tell its backward; "
                             "accepted: dfa.attention_varlen or dfa.torch.varlen_attn")
        o, lse = attention_varlen(query, key, value, cum_seq_q, _given(cum_seq_k), max_q, max_k, window=window, scale=scale,
                                  seqused_k=seqused_k, return_lse=True)
    return _laid_as(o, query), lse, *_no_random_numbers(query)


def flash_inplace(out, query, *inputs, **options):
    """aten::_flash_attention_forward_no_dropout_inplace: lse; o is written to out."""
    o, lse, *_ = flash(query, *inputs, **options)
    if out.shape != o.shape or out.dtype != o.dtype:
        raise ValueError(f"out is {list(out.shape)} of {out.dtype}; expected is {list(o.shape)} of {o.dtype}")
    out.copy_(o)
    return lse


def flash_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal,
                   rng_state, unused, *, scale=None, window_size_left=None, window_size_right=None):
    _refuse(dropout_p=dropout_p)
    window = _window(is_causal, window_size_left, window_size_right)
    tensors = grad_out, query, key, value, out
    if cum_seq_q is None:
        gradients = _backward(*(x.transpose(1, 2) for x in tensors), logsumexp, *window, scale)
        gradients = [x.transpose(1, 2) for x in gradients]
    else:
        gradients = _packed_backward(*tensors, logsumexp, cum_seq_q, _given(cum_seq_k), *window, scale)
    return tuple(map(_laid_as, gradients, (query, key, value)))


_OPERATORS = {
    "_scaled_dot_product_flash_attention": scaled_dot_product,
    "_scaled_dot_product_flash_attention_backward": scaled_dot_product_backward,
    "_scaled_dot_product_flash_attention_for_cpu": scaled_dot_product_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward": scaled_dot_product_cpu_backward,
    "_flash_attention_forward": flash,
    "_flash_attention_forward_no_dropout_inplace": flash_inplace,
    "_flash_attention_backward": flash_backward,
}


def _refuse(**arguments):
    for name, value in arguments.items():
        if value is not None and value is not False and not (name == "dropout_p" and value == 0):
            raise ValueError(f"{name} is not supported by activate_flash_attention_impl('{NAME}'); accepted: "
                             f"{0 if name == 'dropout_p' else None}, or restore_flash_attention_impl()")


def _given(cum_seq_k):
    if cum_seq_k is None:
        raise ValueError("cum_seq_k is None beside cum_seq_q; accepted: both, or none")
    return cum_seq_k


def _window(is_causal, left, right):
    return window_of(is_causal, (-1 if left is None else left, -1 if right is None else right))


def _from_the_first(query, key, value, is_causal):
    """(key, value, window) with which a mask to the last query and key is one from the first on."""
    sq, sk = query.shape[2], key.shape[2]
    if is_causal and sk > sq:
        return key[:, :, :sq], value[:, :, :sq], (-1, 0)
    return key, value, (-1, sq - sk if is_causal else -1)


def _options(left, right, scale):
    return left, right, scale_of(scale), torch.are_deterministic_algorithms_enabled(), "auto"


def _forward(q, k, v, left, right, scale):
    def call(q, k, v, scale, return_lse):
        return _torch_operators._forward(q, k, v, *_options(left, right, scale))
    return _torch_inputs.attend(call, q, k, v, scale, True)


def _backward(d_o, q, k, v, o, lse, left, right, scale):
    if 0 in (*q.shape[:3], *k.shape[:3]):
        return [torch.zeros_like(x) for x in (q, k, v)]
    widths = q.shape[3], k.shape[3], v.shape[3]
    options = _options(left, right, scale_at_width(scale_of(scale), q.shape[3]))
    d_o, q, k, v, o = (dense(_torch_inputs._padded(x)) for x in (d_o, q, k, v, o))
    gradients = _torch_operators._backward(d_o, q, k, v, o, lse.contiguous(), *options)
    return [x[..., :width] for x, width in zip(gradients, widths)]


def _packed_backward(d_o, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, left, right, scale):
    if 0 in (*q.shape, *k.shape):
        return [torch.zeros_like(x) for x in (q, k, v)]
    widths = q.shape[2], k.shape[2], v.shape[2]
    scale = scale_at_width(scale_of(scale), q.shape[2])
    d_o, q, k, v, o = (dense(_pad(x, (0, padded_width(x.shape[2]) - x.shape[2]))[None])[0] for x in (d_o, q, k, v, o))
    *gradients, _, _ = torch.ops.dfa.varlen_backward(d_o, q, k, v, o, lse.contiguous(), cu_seqlens_q, cu_seqlens_k, None, None,
                                                  left, right, scale, torch.are_deterministic_algorithms_enabled())
    return [x[..., :width] for x, width in zip(gradients, widths)]


def _laid_as(x, other):
    """In memory as PyTorch says ahead of a call that its operators leave it: as empty_like(other)."""
    if x.shape != other.shape or x.stride() == other.stride():
        return x
    wanted = torch.empty_like(other)
    return x if x.stride() == wanted.stride() else wanted.copy_(x)


def _rows_first(x):
    """[b, h, s, …] lying as [b, s, h, …], as PyTorch's operators for the CPU leave it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _no_random_numbers(like):
    """Seed, offset and mask of a dropout of 0, which nobody reads."""
    return (like.new_empty(2, dtype=torch.uint64), like.new_empty((), dtype=torch.uint64), like.new_empty(0))
