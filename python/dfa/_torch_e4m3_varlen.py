"""dfa.attention_varlen of PyTorch's tensors in float8_e4m3fn: a forward alone, o in bfloat16, with a factor for each sequence and key
head. The operator is dfa::e4m3_varlen_forward.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula

from dfa import _torch_varlen as varlen
from dfa._descales import refuse_others
from dfa._shapes import flag_of, positions_of, scale_at_width, scale_of, varlen_sizes_of, window_of
from dfa._torch import _refuse_what_has_no_rule
from dfa._torch_checks import check_integers, check_most, check_no_rows, known_most, logits_of
from dfa._torch_e4m3 import _padded, check_e4m3, descale_of, descale_pointers
from dfa._torch_undifferentiated import OF_E4M3, detached, learned_of, undifferentiated
from dfa._torch_varlen_flops import forward_flops

varlen._library.define("e4m3_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
                       f"{varlen._LENGTHS}, {varlen._OPTIONS}, {varlen._ASKED}) -> (Tensor, Tensor)")


def attention(q, k, v, lengths, most, descales, splits, *, causal, window, scale, softcap, alibi_slopes, sinks, chunk, prefix, dropout_p,
              return_lse, deterministic, **others):
    """dfa.attention_varlen's, without pages. lengths: cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k. most: of rows a sequence, of q
    and k. descales: of q, k and v, each None, a number or float32 [b, hk] with 1 where it is one for all."""
    refuse_others("packed tensors", dropout_p, others)
    cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k = lengths
    for name, x in (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__qualname__}; accepted: a tensor")
    check_e4m3(q, k, v, dims=3, expected="rows of all sequences, heads, head dim")
    if not torch.compiler.is_compiling():
        _refuse_what_has_no_rule(q, k, v)
    if learned := learned_of(q, k, v, sinks):
        q, k, v, sinks = detached(q, k, v, sinks)
    b = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q.dim() == 1 else -1
    check_integers(q.device, cu_seqlens_q=(cu_seqlens_q, (b + 1,)), cu_seqlens_k=(cu_seqlens_k, (b + 1,)),
                          seqused_q=(seqused_q, (b,)), seqused_k=(seqused_k, (b,)))
    _, _, hq, hk, d, dv = varlen_sizes_of(q.shape, k.shape, v.shape)
    factors = [descale_of(f"{name}_descale", given, (b, hk), q.device) for name, given in zip("qkv", descales)]
    if q.device.type == "cpu" and not torch.compiler.is_compiling() and type(cu_seqlens_q) is not FakeTensor:
        check_most(cu_seqlens_q, most[0], "max_seqlen_q")
        check_most(cu_seqlens_k, most[1], "max_seqlen_k")
        if q.shape[0] == 0 or k.shape[0] == 0:
            check_no_rows(q, k, *lengths)
    slopes, sinks, softcap = logits_of(alibi_slopes, sinks, softcap, q.device, b, hq)
    sides = window_of(causal, window)
    options = (*sides, scale_at_width(scale_of(scale), d), bool(flag_of("deterministic", deterministic)), slopes, sinks, softcap, None,
               *positions_of(sides, chunk, prefix), None, 0.0, "", "", *splits, *map(known_most, ("max_seqlen_q", "max_seqlen_k"), most))
    return_lse = flag_of("return_lse", return_lse)
    if 0 in q.shape or b == 0:
        o, lse = _empty_outputs(q, v)
        o, lse = o.zero_(), lse.fill_(-torch.inf)
    else:
        if k.shape[0] == 0:  # kernels take tensors that have rows: one, of which no sequence has any
            k, v, lengths = varlen._with_a_key_of_none(k, v, lengths)
        o, lse = torch.ops.dfa.e4m3_varlen_forward(*(varlen._fitting(_padded(x)) for x in (q, k, v)), *factors, *lengths, *options)
        o = o[..., :dv] if o.shape[2] != dv else o
    if learned:
        o, lse = undifferentiated(o, lse, learned, OF_E4M3)
    return (o, lse) if return_lse else o


def _empty_outputs(q, v):
    return (q.new_empty((*q.shape[:2], v.shape[2]), dtype=torch.bfloat16),
            q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32))


def _forward(q, k, v, q_descale, k_descale, v_descale, *rest):
    varlen.check_begins(q, *rest[:2])
    with varlen._On(q) as stream:
        plan, workspace, data, _ = varlen._planned("fwd", q, k, v, *varlen.forward_options(rest), element="e4m3")
        o, lse = _empty_outputs(q, v)
        plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse)), workspace.data_ptr(), stream, *data,
                      descales=descale_pointers(q_descale, k_descale, v_descale))
    return o, lse


for _device in ("CPU", "CUDA"):
    varlen._library.impl("e4m3_varlen_forward", _forward, _device)


@torch.library.register_fake("dfa::e4m3_varlen_forward")
def _fake_forward(q, k, v, *rest):
    return _empty_outputs(q, v)


torch.library.register_vmap("dfa::e4m3_varlen_forward", varlen._map_by_turns(torch.ops.dfa.e4m3_varlen_forward.default),
                            lib=varlen._library)


@register_flop_formula(torch.ops.dfa.e4m3_varlen_forward, get_raw=True)
def _forward_flops(q, k, v, q_descale, k_descale, v_descale, *rest, **__):
    return forward_flops(q, k, v, *rest)
