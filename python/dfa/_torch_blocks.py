"""dfa.attention of PyTorch's tensors over lists of blocks, and flex_attention's name for it."""

import os

import torch
from torch import Tensor

from dfa import _torch_operators
from dfa._dropout import probability_of
from dfa._logits import slopes_of_batch, texts_of
from dfa._plan import plan_of
from dfa._shapes import check_differentiable, dense_strides, flag_of, positions_of, rows_before_heads, scale_of, sizes_of, strides_of, window_of
from dfa._torch import _any_autocast, _autocast, _refuse_what_has_no_rule, _transformed
from dfa._torch_block_lists import BlockLists, block_lists
from dfa._torch_bias import as_read
from dfa._torch_calls import DTYPES, dense, empty_outputs, laid_as_output, like
from dfa._torch_inputs import attend
from dfa._torch_varlen import _logits_of, _On, _pointer, check_operands


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
    slopes, sinks, softcap = _logits_of(alibi_slopes, sinks, softcap, q.device, b, q.shape[1])
    window = window_of(causal, window)
    deterministic = bool(flag_of("deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())
    options = *window, *positions_of(window, chunk, prefix), deterministic, softcap, texts_of(mask_mod, score_mod)

    def call(q, k, v, scale, return_lse):
        o, lse = _Blocks.apply(q, k, v, sinks, slopes, lists, (scale_of(scale), *options))
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


def _planned(passes, q, k, v, sinks, slopes, lists, options):
    scale, left, right, chunk, prefix, deterministic, softcap, texts = options
    threads = 0 if os.environ.get("DFA_THREADS") or q.device.type != "cpu" else torch.get_num_threads()
    o_shape = *q.shape[:3], v.shape[3]
    strides = *(strides_of(name, x.shape, x.stride()) for name, x in (("q", q), ("k", k), ("v", v))), dense_strides(
        o_shape, rows_before_heads(q.shape, q.stride()))
    blocks = *lists.block_size, lists.maps[0] > 1, lists.maps[1] > 1, lists.bits is not None
    plan = plan_of(passes, DTYPES[q.dtype], sizes_of(q.shape, k.shape, v.shape), (left, right), scale, deterministic, strides,
                   q.device.type, "auto", threads, (0, 0), (softcap, slopes is not None, sinks is not None, ""), 0,
                   (chunk, prefix), 0.0, blocks, text=texts)
    data = {"logits": (_pointer(slopes), slopes_of_batch(slopes, q.shape[1]), _pointer(sinks), 0, (0, 0, 0)),
            "blocks": ([*map(_pointer, lists.tensors)], 0 if lists.bits is None else lists.bits.shape[0])}
    return plan, q.new_empty(plan.workspace_bytes, dtype=torch.uint8), data


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, slopes, lists, options):
        if any(ctx.needs_input_grad):
            check_differentiable(q.shape[3])
        with _On(q) as stream:
            plan, workspace, data = _planned("fwd", q, k, v, sinks, slopes, lists, options)
            o, lse = empty_outputs(q, v)
            plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse)), workspace.data_ptr(), stream, **data)
        ctx.save_for_backward(q, k, v, o, lse, sinks, slopes)
        ctx.lists, ctx.options = lists, options
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @_torch_operators.once
    def backward(ctx, saved, d_o, d_lse):
        q, k, v, o, lse, sinks, slopes = saved
        of_sinks = []

        def run(d_o, q, k, v, o, lse):
            return _backward(d_o, q, k, v, o, lse, sinks, slopes, ctx.lists, ctx.options, of_sinks)

        gradients = _torch_operators.gradients(run, d_o, d_lse, q, k, v, o, lse)
        return *gradients, of_sinks[0] if of_sinks else None, None, None, None


def _backward(d_o, q, k, v, o, lse, sinks, slopes, lists, options, of_sinks):
    """dq, dk, dv; the sinks' gradient is put into of_sinks."""
    q, k, v = map(dense, (q, k, v))  # a hook of autograd may have kept what was saved in another layout
    d_o, o, lse = *(laid_as_output(x, q) for x in (d_o, o)), lse.contiguous()
    sinks, slopes = map(as_read, (sinks, slopes))
    with _On(q) as stream:
        plan, workspace, data = _planned("bwd", q, k, v, sinks, slopes, lists, options)
        gradients = [*map(like, (q, k, v))]
        d_sinks = None if sinks is None else torch.empty_like(sinks)
        plan._backward(*(x.data_ptr() for x in (q, k, v, o, lse, d_o, *gradients)), workspace.data_ptr(), stream, **data,
                       gradients=(_pointer(d_sinks), 0, (0, 0, 0)))
    if sinks is not None:
        of_sinks.append(d_sinks)
    return gradients


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
