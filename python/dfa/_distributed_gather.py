"""Attention by all-gathers of keys and values, a few heads at a time, and by an all-to-all of heads for rows (Ulysses)."""

import torch
from torch.autograd.function import once_differentiable

from dfa._distributed_ring import sinks_gradient
from dfa._distributed_tiles import Gradients, Sum


class Gathered(torch.autograd.Function):
    """(o, lse) of a rank's queries and all ranks' keys. tiles: of its rows and of all keys in their order. places: where each
    row of each rank's belongs, a list for each rank. stride: heads of k in one transfer, the next beside the products."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, tiles, places, stride, exchange, options):
        shared = q.shape[1] // k.shape[1]
        total = Sum(q, v.shape[3])
        for heads, all_k, all_v in _by_heads(exchange, k, v, places, stride):
            of_q = slice(heads.start * shared, heads.stop * shared)
            part = Sum.__new__(Sum)
            part.o, part.lse = total.o[:, of_q], total.lse[:, of_q]
            part.add(q[:, of_q], all_k, all_v, tiles, options)
        if sinks is not None:
            total.add_sinks(sinks)
        o = total.o.to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, o, total.lse)
        ctx.rest = tiles, places, stride, exchange, options
        ctx.set_materialize_grads(False)
        return o, total.lse

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o, d_lse):
        q, k, v, sinks, o, lse = ctx.saved_tensors
        tiles, places, stride, exchange, options = ctx.rest
        d_o = torch.zeros_like(o) if d_o is None else d_o
        shared = q.shape[1] // k.shape[1]
        d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
        for heads, all_k, all_v in _by_heads(exchange, k, v, places, stride):
            of_q = slice(heads.start * shared, heads.stop * shared)
            rows = [None if x is None else x[:, of_q] for x in (d_o, d_lse, q, o, lse)]
            part = Gradients(rows[2], all_k, all_v)
            part.add(rows[0], rows[1], rows[2], all_k, all_v, rows[3], rows[4], tiles, options)
            d_q[:, of_q] = part.q
            d_k[:, heads], d_v[:, heads] = _given_back(exchange, part.k, part.v, places)
        d_sinks = None if sinks is None else sinks_gradient(sinks, d_o, d_lse, o, lse)
        return d_q, d_k, d_v, d_sinks, None, None, None, None, None


def _by_heads(exchange, k, v, places, stride):
    """(heads, all ranks' keys of them, values), while the next heads are on their way."""
    starts = range(0, k.shape[1], stride)
    coming = _start(exchange, k, v, places, starts[0], stride)
    for start in starts:
        came = exchange.finish(coming)
        if start + stride < k.shape[1]:
            coming = _start(exchange, k, v, places, start + stride, stride)
        joined = came[:, 0].new_empty((*came.shape[1:3], sum(map(len, places)), came.shape[4]))
        for rank, at in enumerate(places):
            joined[:, :, torch.tensor(at, dtype=torch.long, device=k.device)] = came[rank, :, :, :len(at)]
        yield slice(start, min(start + stride, k.shape[1])), joined[..., :k.shape[3]], joined[..., k.shape[3]:]


def _start(exchange, k, v, places, start, stride):
    """Ranks have a row more or less than others: all send as many as the longest."""
    heads, most = slice(start, start + stride), max(map(len, places))
    both = torch.cat((k[:, heads], v[:, heads]), 3)
    return exchange.gather(torch.nn.functional.pad(both, (0, 0, 0, most - both.shape[2])))


def _given_back(exchange, d_k, d_v, places):
    """This rank's sums of what all ranks have for its keys and values."""
    most, both = max(map(len, places)), torch.cat((d_k, d_v), 3)
    parts = both.new_zeros((len(places), *both.shape[:2], most, both.shape[3]))
    for rank, at in enumerate(places):
        parts[rank, :, :, :len(at)] = both[:, :, torch.tensor(at, dtype=torch.long, device=both.device)]
    mine = exchange.add_up(parts)[:, :, :len(places[exchange.rank])]
    return mine[..., :d_k.shape[3]], mine[..., d_k.shape[3]:]


class HeadsForRows(torch.autograd.Function):
    """[b, h, rows of this rank, d] → [b, h / ranks, rows of all ranks, d], rank after rank. rows: of each rank."""

    @staticmethod
    def forward(ctx, x, rows, exchange):
        ctx.rows, ctx.exchange = rows, exchange
        return _heads_for_rows(x, rows, exchange)

    @staticmethod
    def backward(ctx, d_x):
        return RowsForHeads.apply(d_x, ctx.rows, ctx.exchange), None, None


class RowsForHeads(torch.autograd.Function):
    """The way back."""

    @staticmethod
    def forward(ctx, x, rows, exchange):
        ctx.rows, ctx.exchange = rows, exchange
        return _rows_for_heads(x, rows, exchange)

    @staticmethod
    def backward(ctx, d_x):
        return HeadsForRows.apply(d_x, ctx.rows, ctx.exchange), None, None


def _heads_for_rows(x, rows, exchange):
    b, h, _, d = x.shape
    part = b * h // exchange.ranks * d
    sent = x.unflatten(1, (exchange.ranks, -1)).movedim(1, 0).contiguous().view(-1)
    came = exchange.deal(sent, [part * rows[exchange.rank]] * exchange.ranks, [part * count for count in rows])
    parts = came.split([part * count for count in rows])
    return torch.cat([one.view(b, h // exchange.ranks, count, d) for one, count in zip(parts, rows)], 2)


def _rows_for_heads(x, rows, exchange):
    b, h, _, d = x.shape
    part, mine = b * h * d, rows[exchange.rank]
    sent = torch.cat([one.flatten() for one in x.split(list(rows), 2)])
    came = exchange.deal(sent, [part * count for count in rows], [part * mine] * exchange.ranks)
    return came.view(exchange.ranks, b, h, mine, d).movedim(0, 1).flatten(1, 2)
