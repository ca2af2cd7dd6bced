"""Tiles by the operators of this package. Tensors are [b, h, s, d] with d a multiple of 8."""

from typing import NamedTuple

import torch

from dfa import _torch_operators
from dfa._distributed_layout import pairs_of
from dfa._distributed_merge import Parts
from dfa._torch_calls import calls_of, dense, laid_as_output


class Options(NamedTuple):
    scale: float
    deterministic: bool
    softcap: float
    sm_margin: int | None = 0  # multiprocessors that a forward leaves to transfers beside it; None: by margin_beside()


# Below so many operations a byte that is sent a forward gains by leaving multiprocessors free: the rows ring and ring-8 of
# results/studies/context_parallel_h200x2.txt.
OPERATIONS_A_BYTE, FREE = 20_000, 8


def margin_beside(options, q, k, v, tiles, step):
    """What a forward of these tiles leaves to the transfer that `step` waits for."""
    if options.sm_margin is not None:
        return options.sm_margin
    rows = max(sum(end - begin for begin, end in spans) for spans in (step.sent, step.received))
    sent = k.shape[1] * (k.shape[3] + v.shape[3]) * k.element_size() * rows
    work = 2 * q.shape[1] * (q.shape[3] + v.shape[3]) * sum(map(pairs_of, tiles))
    return FREE if work < OPERATIONS_A_BYTE * sent else 0


def outputs_of(q, v):
    """The sum of o over tiles, and its lse: to be filled by add_tiles()."""
    shape = (*q.shape[:3], v.shape[3])
    return Parts(q if q.shape == shape else q.new_empty(shape), weighted=True)


def add_tiles(total, q, k, v, tiles, options):
    for tile in tiles:
        rows, keys = slice(tile.q, tile.q + tile.rows), slice(tile.k, tile.k + tile.keys)
        total.add(tile.q, *forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], tile.left, tile.right, options))


class Gradients:
    """dq of a rank's queries over all tiles; dk and dv of the keys of one call."""

    def __init__(self, d_o, d_lse, q, o, lse, options):
        self._of_rows, self._options = (d_o, d_lse, q, o, lse), options
        self._rows = {}  # what kernels read of some rows, copied once for all tiles that ask for them
        self.q = Parts(q, weighted=False)

    def add(self, k, v, tiles, sums=None):
        """Sums (of dk, of dv) of these keys, by this rank's queries; those that there are."""
        d_k, d_v = sums or (Parts(k, weighted=False), Parts(v, weighted=False))
        for tile in tiles:
            keys = slice(tile.k, tile.k + tile.keys)
            parts = backward(*self._rows_of(tile), k[:, :, keys], v[:, :, keys], tile.left, tile.right, self._options)
            for total, begin, part in zip((self.q, d_k, d_v), (tile.q, tile.k, tile.k), parts):
                total.add(begin, part)
        return d_k, d_v

    def _rows_of(self, tile):
        if tile.rows == self._of_rows[2].shape[2]:
            return self._of_rows
        key = tile.q, tile.rows
        if key not in self._rows:
            d_o, d_lse, q, o, lse = (None if x is None else x[:, :, tile.q:tile.q + tile.rows] for x in self._of_rows)
            d_o, o = (laid_as_output(x, q) for x in (d_o, o))
            self._rows[key] = d_o, d_lse, q, o, lse.contiguous()
        return self._rows[key]


def forward(q, k, v, left, right, options):
    q, k, v = map(dense, (q, k, v))
    if options.softcap:
        o, lse = torch.ops.dfa.varlen_forward(*map(_packed, (q, k, v)), *_begins(q, k), None, None, left, right, options.scale,
                                              options.deterministic, None, None, options.softcap)
        return _of_batch(o, q), lse.unflatten(1, (q.shape[0], -1)).transpose(0, 1).contiguous()
    calls = calls_of(left, right, options.scale, options.deterministic, "auto", torch.get_num_threads())
    return calls.forward_beside(q, k, v, True, options.sm_margin) if options.sm_margin else calls.forward(q, k, v, True)


def backward(d_o, d_lse, q, o, lse, k, v, left, right, options):
    q, k, v = map(dense, (q, k, v))
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
