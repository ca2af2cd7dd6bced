"""dfa.attention of PyTorch's dense tensors with what stands beside them (softcap, ALiBi, a bias, sinks, texts, dropout, chunks, a prefix,
lists of blocks), as they lie in memory: eager calls that nobody looks on, past PyTorch's dispatcher.

What is compiled, transformed, profiled or watched, and tensors that no kernel takes as they lie, are packed sequences (dfa._torch_logits);
lists of blocks have dfa._torch_blocks for these.
"""

import os
from typing import NamedTuple

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from dfa import _torch_again, _torch_operators
from dfa._logits import bias_text, slopes_of_batch, texts_of
from dfa._plan import plan_of
from dfa._shapes import check_differentiable, flag_of, positions_of, scale_at_width, scale_of, sizes_of, window_of
from dfa._torch import PLAIN, _any_autocast, _transformed, is_watched
from dfa._torch_again import OF_LOGITS, places_of
from dfa._torch_bias import as_read, bias_of, of_every_key
from dfa._torch_calls import DTYPES, dense, empty_outputs, fits, laid_as_output, like, planned_strides
from dfa._torch_checks import check_operands, logits_of
from dfa._torch_scale import scaled
from dfa._torch_varlen import _dropout_of, _On, _pointer, as_given


class Beside(NamedTuple):
    """Tensors, or None."""
    sinks: torch.Tensor | None
    bias: torch.Tensor | None
    slopes: torch.Tensor | None
    dropout_state: torch.Tensor | None


class Options(NamedTuple):
    left: int
    right: int
    scale: float
    deterministic: bool
    softcap: float
    positions: tuple[int, int]  # chunk, prefix
    dropout_p: float
    texts: tuple[str, str]  # mask_mod, score_mod


def takes(q, k, v, given):
    """Does attention() take these tensors, and the options, of which some may be tensors?"""
    if is_compiling() or _transformed() or is_watched() or _any_autocast() or forward_ad._current_level >= 0:
        return False
    if not PLAIN.issuperset(map(type, (q, k, v, *(x for x in given.values() if isinstance(x, torch.Tensor))))):
        return False
    check_operands(q, k, v)
    return fits(q, k, v)


def attention(q, k, v, return_lse, key, *, causal, window, scale, deterministic, softcap, alibi_slopes, sinks, bias, chunk, prefix, dropout_p,
              seed, mask_mod, score_mod):
    """o, and with return_lse (o, lse). key: the door's, of dfa._torch_again."""
    given = q, sinks, alibi_slopes
    b, hq, _, sq, sk, d, _ = sizes_of(q.shape, k.shape, v.shape)
    texts = texts_of(mask_mod, score_mod)
    slopes, sinks, softcap = logits_of(alibi_slopes, sinks, softcap, q.device, b, hq)
    bias = of_every_key(bias_of(bias, q.device, b, hq), sq, sk)
    deterministic = bool(flag_of("deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())
    window = window_of(causal, window)
    q, scale = scaled(q, scale)
    state, dropout_p = _dropout_of(dropout_p, seed, q)
    options = Options(*window, scale_at_width(scale_of(scale), d), deterministic, softcap, positions_of(window, chunk, prefix), dropout_p, texts)
    beside = Beside(sinks, bias, slopes, state)
    o, lse, plan = attend(q, k, v, beside, options)
    if plan is not None and bias is state is None and texts == ("", "") and q is given[0] and as_given(*given[1:]):
        made = _torch_again.launch(plan, places_of(key, OF_LOGITS), o, lse, returns="(ol)" if return_lse else "o",
                                   steps={"alibi_slopes": [slopes_of_batch(slopes, hq)]})
        _torch_again.keep(key, made, OF_LOGITS.values())
    return (o, lse) if return_lse else o


def attend(q, k, v, beside, options, lists=None):
    """(o, lse, the plan, or None where there is a graph) of tensors that fit(), and lists of blocks."""
    learned = (q, k, v, beside.sinks, beside.bias)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in learned):
        return *_Dense.apply(q, k, v, *beside, options, lists), None
    return _forward(q, k, v, beside, options, lists)


def _planned(passes, q, k, v, beside, options, lists):
    """The plan, its workspace, and what it is given beside tensors."""
    sinks, bias, slopes, state = beside
    threads = 0 if os.environ.get("DFA_THREADS") or q.device.type != "cpu" else torch.get_num_threads()
    logits = options.softcap, slopes is not None, sinks is not None, "" if bias is None else bias_text(bias.shape, DTYPES[bias.dtype])
    blocks = {} if lists is None else {"blocks": (*lists.block_size, lists.maps[0] > 1, lists.maps[1] > 1, lists.bits is not None)}
    plan = plan_of(passes, DTYPES[q.dtype], sizes_of(q.shape, k.shape, v.shape), options[:2], options.scale, options.deterministic,
                   planned_strides(q, k, v), q.device.type, "auto", threads, (0, 0), logits, 0, options.positions, options.dropout_p,
                   text=options.texts, **blocks)
    data = {"logits": (_pointer(slopes), slopes_of_batch(slopes, q.shape[1]), _pointer(sinks), _pointer(bias),
                       (0, 0, 0) if bias is None else bias.stride()[:3]),
            "dropout": _pointer(state)}
    if lists is not None:
        data["blocks"] = [*map(_pointer, lists.tensors)], 0 if lists.bits is None else lists.bits.shape[0]
    return plan, q.new_empty(plan.workspace_bytes, dtype=torch.uint8), data


def _forward(q, k, v, *rest):
    with _On(q) as stream:
        plan, workspace, data = _planned("fwd", q, k, v, *rest)
        o, lse = empty_outputs(q, v)
        plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse)), workspace.data_ptr(), stream, **data)
    return o, lse, plan


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, bias, slopes, state, options, lists):
        check_differentiable(q.shape[3])
        beside = Beside(sinks, bias, slopes, state)
        o, lse, _ = _forward(q, k, v, beside, options, lists)
        ctx.save_for_backward(q, k, v, o, lse, *beside)
        ctx.rest = options, lists
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @_torch_operators.once
    def backward(ctx, saved, d_o, d_lse):
        tensors, beside, of_logits = saved[:5], Beside(*saved[5:]), []

        def run(*tensors):
            *gradients, d_sinks, d_bias = _backward(*tensors, beside, *ctx.rest, ctx.needs_input_grad[4])
            of_logits.extend((d_sinks, d_bias))
            return gradients

        gradients = _torch_operators.gradients(run, d_o, d_lse, *tensors)
        return *gradients, *of_logits, *(None,) * 4


def _backward(d_o, q, k, v, o, lse, beside, options, lists, learned):
    """dq, dk, dv, of the sinks, and of the bias if it is learned."""
    q, k, v = map(dense, (q, k, v))  # a hook of autograd may have kept what was saved in another layout
    d_o, o, lse = *(laid_as_output(x, q) for x in (d_o, o)), lse.contiguous()
    beside = Beside(*map(as_read, beside))
    with _On(q) as stream:
        plan, workspace, data = _planned("bwd", q, k, v, beside, options, lists)
        gradients = [*map(like, (q, k, v))]
        d_sinks = None if beside.sinks is None else torch.empty_like(beside.sinks)
        d_bias = beside.bias.new_empty(beside.bias.shape, dtype=torch.float32) if learned else None
        plan._backward(*(x.data_ptr() for x in (q, k, v, o, lse, d_o, *gradients)), workspace.data_ptr(), stream, **data,
                       gradients=(_pointer(d_sinks), _pointer(d_bias), d_bias.stride()[:3] if learned else (0, 0, 0)))
    return *gradients, d_sinks, d_bias.to(beside.bias.dtype) if learned else None
