"""Sharding rules of the operators for torch.distributed.tensor: what each rank may compute with its shards alone.

Along each dimension of a mesh: all replicated; or the batch sharded; or the heads, where every rank gets whole groups of query heads
with their key heads; with one key head the query heads alone; without a mask the rows of q. Packed sequences: all, or the heads.
Whatever else a tensor is placed as, DTensor redistributes first, which costs what it says there and changes no value.
"""

from itertools import combinations
from math import prod

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from dfa import _torch_operators
from dfa._torch_varlen import _GIVEN, _Given, forward_options

_R, _SUM = Replicate(), Partial()


def replicated(x, like):
    """A plain tensor that all ranks have alike, beside a DTensor."""
    if x is None or isinstance(x, DTensor):
        return x
    mesh = like.device_mesh
    return DTensor.from_local(x, mesh, [_R] * mesh.ndim, run_check=False)


def _whole_groups(q, k, heads):
    """Do ranks that share heads get whole groups, however many dimensions of the mesh share them? heads: their dimension."""
    sizes = [size for size in q.mesh.shape if size > 1]
    hk = k.shape[heads]
    if hk % prod(sizes) == 0:
        return True
    twice = [a * b for a, b in combinations(sizes, 2)]  # DTensor gives no rank less than one head
    return all(hk % size == 0 for size in sizes) and all(shares > hk for shares in twice)


@register_sharding(_torch_operators.forward)
def _forward(q, k, v, left, right, *rest):
    return [(outputs, inputs + [None] * (2 + len(rest))) for outputs, inputs, _ in _dense(q, k, left, right)]


@register_sharding(_torch_operators.backward)
def _backward(d_o, q, k, v, o, lse, left, right, *rest):
    return [(gradients, [outputs[0], *inputs, *outputs] + [None] * (2 + len(rest)))
            for outputs, inputs, gradients in _dense(q, k, left, right)]


def _dense(q, k, left, right):
    """([o, lse], [q, k, v], [dq, dk, dv]) along a dimension of a mesh."""
    rules = [([_R] * 2, [_R] * 3, [_R] * 3), ([Shard(0)] * 2, [Shard(0)] * 3, [Shard(0)] * 3)]
    if _whole_groups(q, k, 1):
        rules.append(([Shard(1)] * 2, [Shard(1)] * 3, [Shard(1)] * 3))
    elif k.shape[1] == 1:
        rules.append(([Shard(1)] * 2, [Shard(1), _R, _R], [Shard(1), _SUM, _SUM]))
    if left == right == -1:
        rules.append(([Shard(2)] * 2, [Shard(2), _R, _R], [Shard(2), _SUM, _SUM]))
    return rules


@register_sharding(torch.ops.dfa.varlen_forward.default)
def _varlen_forward(q, k, v, *rest):
    given, _ = forward_options(rest)
    others = [None] * max(0, len(rest) - _GIVEN)
    return [(outputs, inputs + _of_given(given, sharded, len(rest) - len(others)) + others) for outputs, inputs, sharded in _packed(q, k)]


@register_sharding(torch.ops.dfa.varlen_backward.default)
def _varlen_backward(d_o, q, k, v, o, lse, *rest):
    given = _Given(*rest)
    return [(inputs + [_sinks(given, sharded) or _R, _bias_gradient(given, sharded)],
             [outputs[0], *inputs, *outputs] + _of_given(given, sharded, len(rest))) for outputs, inputs, sharded in _packed(q, k)]


def _packed(q, k):
    """([o, lse], [q, k, v], are heads sharded?)"""
    rules = [([_R] * 2, [_R] * 3, False)]
    if _whole_groups(q, k, 1):
        rules.append(([Shard(1), Shard(0)], [Shard(1)] * 3, True))
    return rules


def _of_given(given, sharded, count):
    placed = _Given(*[_R if value is not None and name.startswith(("cu_", "seqused")) else None
                             for name, value in zip(given._fields, given)])
    placed = placed._replace(sinks=_sinks(given, sharded), alibi_slopes=_slopes(given, sharded), bias=_bias(given, sharded))
    return list(placed)[:count]


def _sinks(given, sharded):
    return None if given.sinks is None else Shard(0) if sharded else _R


def _slopes(given, sharded):
    if given.alibi_slopes is None:
        return None
    return Shard(len(given.alibi_slopes.shape) - 1) if sharded else _R


def _bias(given, sharded):
    """Of [b, hq, sq, sk], or of one head for all."""
    if given.bias is None:
        return None
    return Shard(1) if sharded and given.bias.shape[1] > 1 else _R


def _bias_gradient(given, sharded):
    if not given.bias_gradient or not sharded:
        return _R
    return Shard(1) if given.bias.shape[1] > 1 else _SUM
