"""FLOPs of the operators of packed sequences, for PyTorch's counter."""

import torch
from torch.utils.flop_counter import register_flop_formula


@register_flop_formula(torch.ops.dfa.varlen_forward, get_raw=True)
def forward_flops(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, *_, **__):
    """Every query with every key of its sequence, whatever a mask hides, as PyTorch counts its own."""
    pairs = _pairs(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    return 2 * pairs * q.shape[1] * (q.shape[2] + v.shape[2])


@register_flop_formula(torch.ops.dfa.varlen_backward, get_raw=True)
def _backward_flops(d_o, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, *_, **__):
    pairs = _pairs(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k)
    return 2 * pairs * q.shape[1] * (3 * q.shape[2] + 2 * v.shape[2])


def _pairs(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
    rows, keys = (cu.diff() if used is None else used for cu, used in ((cu_seqlens_q, seqused_q), (cu_seqlens_k, seqused_k)))
    return int((rows.long() * keys.long()).sum())
