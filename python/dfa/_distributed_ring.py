"""Ring attention: in step t each rank sends to rank + t what that one sees of its keys and values, while it computes with what
came in the step before. Gradients of keys come back the same way. All that crosses the link has the element type.

On a GPU nothing here waits for it. A transfer begins when what is queued so far is done, which are the products of two steps before
and what is packed, and runs on NCCL's stream beside the products that are queued next; these wait for the transfer before.
A tensor is freed when the current stream has been told to wait for its transfer, so that what takes its memory comes later.
"""

import torch

from dfa._distributed_exchange import rooms, spans_of_rows, taken
from dfa._distributed_layout import halves_of
from dfa._distributed_tiles import Gradients, add_tiles, margin_beside, outputs_of
from dfa._torch_operators import once


class Ring(torch.autograd.Function):
    """(o, lse) of a rank's queries and all ranks' keys. plan: of layout's ring_of()."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, plan, exchange, options):
        own, steps = plan
        coming = _next(exchange, k, v, steps, 0)
        total = outputs_of(q, v)
        add_tiles(total, q, k, v, own, _beside(options, q, k, v, own, steps, 0))
        for at, step in enumerate(steps):
            came, coming = exchange.finish(coming), _next(exchange, k, v, steps, at + 1)
            if step.tiles:
                add_tiles(total, q, *came, step.tiles, _beside(options, q, k, v, step.tiles, steps, at + 1))
        o, lse = total.result(sinks)
        ctx.save_for_backward(q, k, v, sinks, o, lse)
        ctx.plan, ctx.exchange, ctx.options = plan, exchange, options
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once
    def backward(ctx, saved, d_o, d_lse):
        q, k, v, sinks, o, lse = saved
        (own, steps), exchange, options = ctx.plan, ctx.exchange, ctx.options
        d_o = torch.zeros_like(o) if d_o is None else d_o
        coming, returning = _next(exchange, k, v, steps, 0), None
        total = Gradients(d_o, d_lse, q, o, lse, options)
        before, after = halves_of(own) if steps else (own, ())  # the last gradients return beside the second half
        own_keys = total.add(k, v, before)
        for at, step in enumerate(steps):
            came, coming = exchange.finish(coming), _next(exchange, k, v, steps, at + 1)
            back = tuple(keys.result()[0].contiguous() for keys in total.add(*came, step.tiles)) if step.tiles else None
            _put(exchange, own_keys, returning)
            returning = exchange.swap(back, step.source, rooms((k, v), step.sent), step.destination), step.sent
        total.add(k, v, after, own_keys)
        _put(exchange, own_keys, returning)
        d_sinks = None if sinks is None else sinks_gradient(sinks, d_o, d_lse, o, lse)
        return total.q.result()[0], own_keys[0].result()[0], own_keys[1].result()[0], d_sinks, None, None, None


def _next(exchange, k, v, steps, at):
    """Starts the transfer that step `at` waits for."""
    if at == len(steps):
        return None
    step = steps[at]
    return exchange.swap(taken((k, v), step.sent), step.destination, rooms((k, v), step.received), step.source)


def _beside(options, q, k, v, tiles, steps, at):
    """As tiles take them beside the transfer that step `at` waits for; behind the last step there is none."""
    return options._replace(sm_margin=0 if at == len(steps) else margin_beside(options, q, k, v, tiles, steps[at]))


def _put(exchange, own_keys, returning):
    """Adds what another rank has computed for some of this rank's keys."""
    if returning is None:
        return
    started, spans = returning
    came = exchange.finish(started)
    for total, x in zip(own_keys, came or ()):
        for begin, part in spans_of_rows(x, spans):
            total.add(begin, part)


def sinks_gradient(sinks, d_o, d_lse, o, lse):
    """This rank's part of it: of its own rows."""
    weight = torch.where(lse.isneginf(), 0, (sinks.view(1, -1, 1) - lse).exp())
    slope = -(d_o.float() * o.float()).sum(3)
    if d_lse is not None:
        slope = slope + d_lse
    return (weight * slope).sum((0, 2)).to(sinks.dtype)
