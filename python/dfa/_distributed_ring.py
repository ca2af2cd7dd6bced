"""Ring attention: in step t each rank sends to rank + t what that one sees of its keys and values, while it computes with what
came in the step before. Gradients of keys come back the same way in float32."""

import torch
from torch.autograd.function import once_differentiable

from dfa._distributed_exchange import add_spans, pack, room, unpack
from dfa._distributed_tiles import Gradients, Sum


class Ring(torch.autograd.Function):
    """(o, lse) of a rank's queries and all ranks' keys. plan: of layout's ring_of()."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, plan, exchange, options):
        own, steps = plan
        total = Sum(q, v.shape[3])
        coming = _next(exchange, k, v, steps, 0)
        total.add(q, k, v, own, options)
        for at, step in enumerate(steps):
            came, coming = exchange.finish(coming), _next(exchange, k, v, steps, at + 1)
            if step.tiles:
                total.add(q, *unpack(came, (k, v)), step.tiles, options)
        if sinks is not None:
            total.add_sinks(sinks)
        o = total.o.to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, o, total.lse)
        ctx.plan, ctx.exchange, ctx.options = plan, exchange, options
        ctx.set_materialize_grads(False)
        return o, total.lse

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o, d_lse):
        q, k, v, sinks, o, lse = ctx.saved_tensors
        (own, steps), exchange, options = ctx.plan, ctx.exchange, ctx.options
        d_o = torch.zeros_like(o) if d_o is None else d_o
        total = Gradients(q, k, v)
        coming, returning = _next(exchange, k, v, steps, 0), None
        total.add(d_o, d_lse, q, k, v, o, lse, own, options)
        for at, step in enumerate(steps):
            came, coming = exchange.finish(coming), _next(exchange, k, v, steps, at + 1)
            back = None
            if step.tiles:
                back = torch.zeros_like(came, dtype=torch.float32)
                total.add(d_o, d_lse, q, *unpack(came, (k, v)), o, lse, step.tiles, options, unpack(back, (k, v)))
            if returning:
                _put(exchange, total, k, v, *returning)
            started = exchange.swap(back, step.source, room((k, v), step.sent, torch.float32), step.destination)
            returning = started, step.sent
        if returning:
            _put(exchange, total, k, v, *returning)
        d_sinks = None if sinks is None else sinks_gradient(sinks, d_o, d_lse, o, lse)
        return total.q.to(q.dtype), total.k.to(k.dtype), total.v.to(v.dtype), d_sinks, None, None, None


def _next(exchange, k, v, steps, at):
    """Starts the transfer that step `at` waits for."""
    if at == len(steps):
        return None
    step = steps[at]
    return exchange.swap(pack((k, v), step.sent), step.destination, room((k, v), step.received), step.source)


def _put(exchange, total, k, v, started, spans):
    came = exchange.finish(started)
    if spans:
        add_spans((total.k, total.v), unpack(came, (k, v)), spans)


def sinks_gradient(sinks, d_o, d_lse, o, lse):
    """This rank's part of it: of its own rows."""
    weight = torch.where(lse.isneginf(), 0, (sinks.view(1, -1, 1) - lse).exp())
    slope = -(d_o.float() * o.float()).sum(3)
    if d_lse is not None:
        slope = slope + d_lse
    return (weight * slope).sum((0, 2)).to(sinks.dtype)
