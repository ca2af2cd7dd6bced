"""Tiles by the operators of this package, and their sums in float32. Tensors are [b, h, s, d] with d a multiple of 8."""

from typing import NamedTuple

import torch

from dfa import _torch_operators
from dfa._torch_calls import dense


class Options(NamedTuple):
    scale: float
    deterministic: bool
    softcap: float


class Sum:
    """o and lse of a rank's queries, of keys that come one tile after the other. The sum is float32 from the first tile to the
    last; a tile's o has the element type of q, which is how the kernels write it."""

    def __init__(self, q, dv):
        self.o = q.new_zeros((*q.shape[:3], dv), dtype=torch.float32)
        self.lse = q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)

    def add(self, q, k, v, tiles, options):
        for tile in tiles:
            rows, keys = slice(tile.q, tile.q + tile.rows), slice(tile.k, tile.k + tile.keys)
            o, lse = forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], tile.left, tile.right, options)
            before = self.lse[:, :, rows]
            after = torch.logaddexp(before, lse)
            self.o[:, :, rows].mul_(share(before, after)).add_(o.float().mul_(share(lse, after)))
            before.copy_(after)

    def add_sinks(self, sinks):
        """One more logit of each row of a head, without a value."""
        after = torch.logaddexp(self.lse, sinks.view(1, -1, 1))
        self.o.mul_(share(self.lse, after))
        self.lse = after


def share(lse, total):
    """[…, 1]: what part of the sum `total` one of its parts is; of rows that see nothing, 0."""
    return torch.where(total.isneginf(), 0, (lse - total).exp()).unsqueeze(-1)


class Gradients:
    """dq, dk, dv of tiles, summed in float32."""

    def __init__(self, q, k, v):
        self.q, self.k, self.v = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (q, k, v))

    def add(self, d_o, d_lse, q, k, v, o, lse, tiles, options, of_keys=None):
        """of_keys: (dk, dv) of another rank's keys, in the place of this rank's own."""
        d_k, d_v = of_keys or (self.k, self.v)
        for tile in tiles:
            rows, keys = slice(tile.q, tile.q + tile.rows), slice(tile.k, tile.k + tile.keys)
            of_rows = [None if x is None else x[:, :, rows] for x in (d_o, d_lse, q, o, lse)]
            parts = backward(*of_rows, k[:, :, keys], v[:, :, keys], tile.left, tile.right, options)
            for total, part in zip((self.q[:, :, rows], d_k[:, :, keys], d_v[:, :, keys]), parts):
                total.add_(part)


def forward(q, k, v, left, right, options):
    q, k, v = map(dense, (q, k, v))
    if options.softcap:
        o, lse = torch.ops.dfa.varlen_forward(*map(_packed, (q, k, v)), *_begins(q, k), None, None, left, right, options.scale,
                                              options.deterministic, None, None, options.softcap)
        return _of_batch(o, q), lse.unflatten(1, (q.shape[0], -1)).transpose(0, 1)
    return _torch_operators._forward(q, k, v, left, right, options.scale, options.deterministic, "auto")


def backward(d_o, d_lse, q, o, lse, k, v, left, right, options):
    q, k, v, o, d_o, lse = *map(dense, (q, k, v)), o.contiguous(), d_o.contiguous(), lse.contiguous()
    def call(d_o, q, k, v, o, lse):
        if not options.softcap:
            return _torch_operators._backward(d_o, q, k, v, o, lse, left, right, options.scale, options.deterministic, "auto")
        *gradients, _, _ = torch.ops.dfa.varlen_backward(
            *map(_packed, (d_o, q, k, v, o)), lse.transpose(0, 1).flatten(1).contiguous(), *_begins(q, k), None, None, left,
            right, options.scale, options.deterministic, None, None, options.softcap)
        return [_of_batch(x, like) for x, like in zip(gradients, (q, k, v))]
    return _torch_operators.gradients(call, d_o, d_lse, q, k, v, o, lse)


def _packed(x):
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _of_batch(x, like):
    return x.unflatten(0, (like.shape[0], -1)).transpose(1, 2)


def _begins(q, k):
    return [torch.arange(x.shape[0] + 1, dtype=torch.int32, device=x.device) * x.shape[2] for x in (q, k)]
