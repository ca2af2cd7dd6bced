"""dfa.attention of PyTorch's tensors over lists of blocks, and flex_attention's name for it."""

import torch
from torch import Tensor

from dfa import _torch_dense
from dfa._dropout import probability_of
from dfa._logits import texts_of
from dfa._shapes import flag_of, positions_of, scale_of, window_of
from dfa._torch import _any_autocast, _autocast, _refuse_what_has_no_rule, _transformed
from dfa._torch_block_lists import BlockLists, block_lists
from dfa._torch_checks import check_operands, logits_of
from dfa._torch_inputs import attend


@torch.compiler.disable  # lists are made and held against the tensors here, outside of a graph
def attention(q, k, v, return_lse, block_mask, *, causal, window, scale, deterministic, softcap, alibi_slopes, sinks, bias,
              chunk, prefix, mask, dropout_p, seed, mask_mod, score_mod):
    """q [b, hq, sq, d], k [b, hk, sk, d], v [b, hk, sk, dv], the options of dfa.attention, and a BlockMask or its lists."""
    _check(q, k, v, bias=bias, mask=mask, dropout_p=probability_of(dropout_p) or None, seed=seed)
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    lists = block_mask if isinstance(block_mask, BlockLists) else block_lists(block_mask)
    b = max(x.shape[0] for x in (q, k, v))
    _check_lists(lists, q.device, b, q.shape[1], q.shape[2], k.shape[2])
    slopes, sinks, softcap = logits_of(alibi_slopes, sinks, softcap, q.device, b, q.shape[1])
    window = window_of(causal, window)
    deterministic = bool(flag_of("deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())
    positions, texts = positions_of(window, chunk, prefix), texts_of(mask_mod, score_mod)

    def call(q, k, v, scale, return_lse):
        options = _torch_dense.Options(*window, scale_of(scale), deterministic, softcap, positions, 0.0, texts)
        o, lse, _ = _torch_dense.attend(q, k, v, _torch_dense.Beside(sinks, None, slopes, None), options, lists)
        return (o, lse) if return_lse else o

    return attend(call, q, k, v, scale, flag_of("return_lse", return_lse))


def _check(q, k, v, **beside):
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"{name} is {type(tensor).__qualname__}; accepted beside block_mask: plain tensors")
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; 4 are expected: batch, heads, sequence, head dim")
    check_operands(q, k, v)
    for name, given in beside.items():
        if given is not None:
            raise ValueError(f"{name} beside block_mask is not supported; accepted: one of them")
    _refuse_what_has_no_rule(q, k, v)
    if _transformed():
        raise RuntimeError("block_mask inside torch.func is not supported; accepted: autograd")


def _check_lists(lists, device, b, hq, sq, sk):
    if lists.device != device:
        raise ValueError(f"block_mask is on {lists.device}, q on {device}; one device is expected")
    if lists.sizes != (sq, sk):
        raise ValueError(f"block_mask is of {lists.sizes[0]} queries and {lists.sizes[1]} keys, but there are {sq} and {sk}; "
                         "accepted: one that was made for these lengths")
    if lists.maps[0] not in (1, b) or lists.maps[1] not in (1, hq):
        raise ValueError(f"block_mask is of {lists.maps[0]} batches and {lists.maps[1]} heads, but there are {b} and {hq}; "
                         "accepted: 1, or as many")


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod=None, block_mask=None, scale: float | None = None,
                   enable_gqa: bool = False, return_lse: bool = False, kernel_options=None, *, return_aux=None):
    """torch.nn.attention.flex_attention.flex_attention by dfa.attention: with a BlockMask, and with score_mod as a text.

    query [b, hq, sq, d], key [b, hk, sk, d], value [b, hk, sk, dv] → [b, hq, sq, dv], and with return_lse (o, lse). With enable_gqa
    hq is a multiple of hk. block_mask: as of dfa.attention, for these lengths; None: every query sees every key. return_aux: an
    AuxRequest of lse, with which (o, AuxOutput) is returned. score_mod: a text, as of dfa.attention. Raises ValueError on functions
    in its place (softcap and slopes are arguments of dfa.attention), on kernel_options and on max_scores.
    """
    from dfa._attention import attention as attend_by_lists
    if kernel_options:
        raise ValueError("kernel_options is not supported; accepted: None")
    if score_mod is not None and not isinstance(score_mod, str):
        raise ValueError("score_mod of a function is not supported; accepted: a text of one C++ expression, or None")
    if return_aux is not None:
        return _with_aux(return_aux, return_lse, query, key, value, score_mod=score_mod, block_mask=block_mask, scale=scale,
                         enable_gqa=enable_gqa)
    if not flag_of("enable_gqa", enable_gqa) and query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1]:
        raise ValueError(f"query has {query.shape[1]} heads, key {key.shape[1]}; enable_gqa=True lets them share")
    return attend_by_lists(query, key, value, score_mod=score_mod, block_mask=block_mask, scale=scale, return_lse=return_lse)


def _with_aux(request, return_lse, *tensors, **options):
    """(o, AuxOutput)"""
    from torch.nn.attention.flex_attention import AuxOutput, AuxRequest
    if not isinstance(request, AuxRequest):
        raise TypeError(f"return_aux is {type(request).__qualname__}; accepted: an AuxRequest of torch.nn.attention.flex_attention")
    if return_lse:
        raise ValueError("return_lse beside return_aux; accepted: one of them")
    if request.max_scores:
        raise ValueError("max_scores of return_aux is not supported; accepted: AuxRequest(lse=True)")
    o, lse = flex_attention(*tensors, return_lse=True, **options)
    return o, AuxOutput(lse=lse if request.lse else None)
