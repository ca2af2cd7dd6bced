"""Attention by all-gathers of keys and values, a few heads at a time, and by an all-to-all of heads for rows (Ulysses)."""

import torch
from torch.autograd.function import once_differentiable

from dfa._distributed_ring import sinks_gradient
from dfa._distributed_tiles import Gradients, add_tiles, outputs_of
from dfa._torch_operators import once


class Gathered(torch.autograd.Function):
    """(o, lse) of a rank's queries and all ranks' keys. tiles: of its rows and of all keys in their order. order: of layout's
    order_of(), where ranks' keys belong. stride: heads of k in one transfer, the next beside the products."""

    @staticmethod
    def forward(ctx, q, k, v, sinks, tiles, order, stride, exchange, options):
        shared = q.shape[1] // k.shape[1]
        parts = []
        for heads, all_k, all_v in _by_heads(exchange, k, v, order, stride):
            of_q = slice(heads.start * shared, heads.stop * shared)
            total = outputs_of(q[:, of_q], v)
            add_tiles(total, q[:, of_q], all_k, all_v, tiles, options)
            parts.append(total.result(None if sinks is None else sinks[of_q]))
        o, lse = (x[0] if len(x) == 1 else torch.cat(x, 1) for x in zip(*parts))
        ctx.save_for_backward(q, k, v, sinks, o, lse)
        ctx.rest = tiles, order, stride, exchange, options
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once
    def backward(ctx, saved, d_o, d_lse):
        q, k, v, sinks, o, lse = saved
        tiles, order, stride, exchange, options = ctx.rest
        d_o = torch.zeros_like(o) if d_o is None else d_o
        shared = q.shape[1] // k.shape[1]
        d_q, d_k, d_v = (torch.empty_like(x) for x in (q, k, v))
        for heads, all_k, all_v in _by_heads(exchange, k, v, order, stride):
            of_q = slice(heads.start * shared, heads.stop * shared)
            total = Gradients(*(None if x is None else x[:, of_q] for x in (d_o, d_lse, q, o, lse)), options)
            sums = [keys.result(dtype=torch.float32)[0] for keys in total.add(all_k, all_v, tiles)]
            d_q[:, of_q] = total.q.result()[0]
            d_k[:, heads], d_v[:, heads] = _given_back(exchange, *sums, order)
        d_sinks = None if sinks is None else sinks_gradient(sinks, d_o, d_lse, o, lse)
        return d_q, d_k, d_v, d_sinks, None, None, None, None, None


def _by_heads(exchange, k, v, order, stride):
    """(heads, all ranks' keys of them, values), while the next heads are on their way."""
    starts = range(0, k.shape[1], stride)
    coming = _start(exchange, k, v, order, starts[0], stride)
    for start in starts:
        came = exchange.finish(coming)
        if start + stride < k.shape[1]:
            coming = _start(exchange, k, v, order, start + stride, stride)
        joined = torch.cat([came[rank, :, :, begin:begin + rows] for rank, begin, rows, _ in order.pieces], 2)
        yield slice(start, min(start + stride, k.shape[1])), joined[..., :k.shape[3]], joined[..., k.shape[3]:]


def _start(exchange, k, v, order, start, stride):
    """Ranks have a row more or less than others: all send as many as the longest."""
    heads, rows = slice(start, start + stride), k.shape[2]
    width = k.shape[3]
    both = k.new_empty((k.shape[0], k[:, heads].shape[1], max(order.rows), width + v.shape[3]))
    both[:, :, :rows, :width], both[:, :, :rows, width:] = k[:, heads], v[:, heads]
    return exchange.gather(both)


def _given_back(exchange, d_k, d_v, order):
    """This rank's sums of what all ranks have for its keys and values."""
    width = d_k.shape[3]
    parts = d_k.new_zeros((len(order.rows), *d_k.shape[:2], max(order.rows), width + d_v.shape[3]))
    for rank, begin, rows, at in order.pieces:
        parts[rank, :, :, begin:begin + rows, :width] = d_k[:, :, at:at + rows]
        parts[rank, :, :, begin:begin + rows, width:] = d_v[:, :, at:at + rows]
    mine = exchange.add_up(parts)[:, :, :order.rows[exchange.rank]]
    return mine[..., :width], mine[..., width:]


class HeadsForRows(torch.autograd.Function):
    """Tensors [b, h, rows of this rank, d] → [b, h / ranks, all rows in their order, d]. orders: of layout's order_of(), of each."""

    @staticmethod
    def forward(ctx, exchange, orders, *tensors):
        ctx.exchange, ctx.orders = exchange, orders
        return _heads_for_rows(exchange, orders, tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        return None, None, *_rows_for_heads(ctx.exchange, ctx.orders, gradients)


class RowsForHeads(torch.autograd.Function):
    """The way back."""

    @staticmethod
    def forward(ctx, exchange, orders, *tensors):
        ctx.exchange, ctx.orders = exchange, orders
        return _rows_for_heads(exchange, orders, tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        return None, None, *_heads_for_rows(ctx.exchange, ctx.orders, gradients)


def _heads_for_rows(exchange, orders, tensors):
    """All are on their way before the first is waited for."""
    started = [_send_heads(exchange, order.rows, x) for order, x in zip(orders, tensors)]
    return tuple(_all_rows(exchange.finish(one), order, x) for one, order, x in zip(started, orders, tensors))


def _send_heads(exchange, rows, x):
    b, h, _, d = x.shape
    part = b * h // exchange.ranks * d
    sent = x.unflatten(1, (exchange.ranks, -1)).movedim(1, 0).contiguous().view(-1)
    return exchange.deal(sent, [part * rows[exchange.rank]] * exchange.ranks, [part * count for count in rows])


def _all_rows(came, order, x):
    b, h, _, d = x.shape
    ranks = len(order.rows)
    parts = came.split([b * h // ranks * d * count for count in order.rows])
    parts = [one.view(b, h // ranks, count, d) for one, count in zip(parts, order.rows)]
    return torch.cat([parts[rank][:, :, begin:begin + rows] for rank, begin, rows, _ in order.pieces], 2)


def _rows_for_heads(exchange, orders, tensors):
    started = [_send_rows(exchange, order, x) for order, x in zip(orders, tensors)]
    return tuple(_all_heads(exchange.finish(one), exchange, order, x) for one, order, x in zip(started, orders, tensors))


def _send_rows(exchange, order, x):
    b, h, all_rows, d = x.shape
    part = b * h * d
    sent = x.new_empty(part * all_rows)
    views = [one.view(b, h, count, d) for one, count in zip(sent.split([part * count for count in order.rows]), order.rows)]
    for rank, begin, rows, at in order.pieces:
        views[rank][:, :, begin:begin + rows] = x[:, :, at:at + rows]
    return exchange.deal(sent, [part * count for count in order.rows], [part * order.rows[exchange.rank]] * exchange.ranks)


def _all_heads(came, exchange, order, x):
    b, h, _, d = x.shape
    return came.view(exchange.ranks, b, h, order.rows[exchange.rank], d).movedim(0, 1).flatten(1, 2)
