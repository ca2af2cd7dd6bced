"""One sequence over several processes: context parallelism by torch.distributed.

    q, k, v = (dfa.distributed.shard(x, dim=2, causal=True) for x in (q, k, v))          # this rank's rows
    o = dfa.distributed.context_parallel_attention(q, k, v, causal=True)                 # of this rank's queries
    o = dfa.distributed.unshard(o, dim=2, causal=True)                                   # all rows again

Run with gloo on processors, by 2 and 4 processes, and with NCCL on two H200 (docs/design/0027-many-gpus.md).
"""

import itertools

import torch

from dfa._distributed_agree import Places
from dfa._distributed_calls import attend, lengths_of, zigzag_of
from dfa._distributed_context import context_parallel
from dfa._distributed_exchange import Exchange
from dfa._distributed_layout import rows_of, segments_of
from dfa._shapes import shown

__all__ = ["context_parallel", "context_parallel_attention", "shard", "unshard"]


def context_parallel_attention(q, k, v, *, group=None, causal=False, window=None, scale=None, softcap=None, sinks=None,
                               alibi_slopes=None, cu_seqlens_q=None, cu_seqlens_k=None, method="auto", layout=None,
                               heads_stride=None, sm_margin=None, return_lse=False, deterministic=False, check="always", timeout_s=None):
    """dfa.attention of sequences whose rows lie on the ranks of a group: each rank gives its rows and gets its rows of o.

    q: [b, hq, rows of q here, d]; k, v: [b, hk, rows of k here, d or dv], as shard(…, dim=2) cuts them; PyTorch tensors,
    contiguous as they are or as [b, rows, heads, d]. With cu_seqlens_q (and cu_seqlens_k, which is cu_seqlens_q unless given):
    packed sequences q [rows, hq, d], k, v [rows, hk, …], as shard(…, dim=0, cu_seqlens=…) cuts them. These are int32 or int64
    [b + 1], of the whole sequences and the same on all ranks, and are read here: on a GPU they are waited for.
    group: a ProcessGroup, None for all ranks, or a DeviceMesh; of a mesh with two dimensions the second exchanges heads, the
    first runs `method`. layout: contiguous or zigzag, which is what is meant with causal; as in shard().
    causal, window, scale, softcap, sinks, return_lse, deterministic: as in dfa.attention, of the whole sequences.
    alibi_slopes [hq]: with the method alltoall. The gradient of sinks is of this rank's rows (or heads): the sum over the group is
    that of the whole, as with all weights under context parallelism.

    method: ring sends each rank what it sees of another's keys beside the products with those before; allgather gathers
    heads_stride heads of k and v at a time, all of their rows (a fourth of them unless given); alltoall exchanges heads for rows,
    so that the ranks divide hk. auto: alltoall with alibi_slopes; else ring with a window; else alltoall where the ranks divide hk
    and hk · ranks > hq + hk, as it then sends less; else ring.
    Parts of o and of gradients cross the link in the element type, as kernels write them, and are added in float32, four at a time,
    on a GPU by a kernel of Triton where that is installed; ring has one for each other rank and sequence, allgather and alltoall one.
    sm_margin: multiprocessors that forward products leave free while a transfer runs beside them. Hopper's forward holds all of
    them from begin to end, so that what comes later waits; other kernels give way by themselves, and take no notice of it. None: 8 in
    a ring's step whose transfer takes more than a tenth of its products, as it does at 32k tokens of 16 heads; else 0.

    check: always compares what the ranks were given by one small transfer ahead of each call (on a GPU without gloo beside NCCL it
    is waited for); once does so, of packed sequences, for what this rank has not been given before: cu_seqlens say what all ranks have.
    Of others no rank knows how many rows the rest have, so that they are compared each time. timeout_s: how long other ranks are waited for on a
    processor and in the check; the group's own limit unless given.

    Returns o, or (o, lse), of the rows here. With autograd: all ranks take part in backward, too. No second derivatives.

    Raises ValueError on every rank if one of them was given what it cannot take, or other than the rest; RuntimeError where a rank
    has stopped or does not come.
    """
    call = _uncompiled() if torch.compiler.is_compiling() else attend
    return call(q, k, v, Places(group), causal=causal, window=window, scale=scale, softcap=softcap, sinks=sinks,
                alibi_slopes=alibi_slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, method=method, layout=layout,
                heads_stride=heads_stride, sm_margin=sm_margin, return_lse=return_lse, deterministic=deterministic, check=check, timeout_s=timeout_s)


def _uncompiled():
    """Transfers are no part of a graph. Made when it is asked for, as torch.compiler takes seconds to load."""
    return torch.compiler.disable(attend)


def shard(x, group=None, dim=2, *, causal=False, layout=None, cu_seqlens=None):
    """This rank's rows of a tensor that has all, a contiguous copy with its gradient.

    contiguous, without causal: as torch.tensor_split cuts. zigzag, with causal: pieces r and 2n-1-r of 2n, by which ranks have the
    same work. Any length will do. cu_seqlens: dim holds packed sequences, each of which is cut so. Also for what goes along with
    the rows: shard(torch.arange(s), dim=0, causal=True) is the positions of this rank's.

    Raises ValueError on a dim that is not there and on cu_seqlens that do not end with its length.
    """
    places, zigzag = Places(group), zigzag_of(causal, layout)
    dim = _dim_of(x, dim)
    spans = _spans(_lengths_of(cu_seqlens, x.shape[dim]), places, places.rank, zigzag)
    return torch.cat([x.narrow(dim, begin, rows) for begin, rows in spans] or [x.narrow(dim, 0, 0)], dim).contiguous()


def unshard(x, group=None, dim=2, *, causal=False, layout=None, cu_seqlens=None):
    """All rows, in their order, of what shard() has cut: on every rank, by an all-gather, without a gradient.

    Raises ValueError on a tensor that requires a gradient, and on every rank if rows are not as shard() cuts them.
    """
    places, zigzag = Places(group), zigzag_of(causal, layout)
    dim = _dim_of(x, dim)
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError("x requires a gradient, which unshard has none of; accepted: x.detach()")
    counts = _joined(x.new_tensor([x.shape[dim]], dtype=torch.long), places).flatten().tolist()
    lengths = _lengths_of(cu_seqlens, sum(counts))
    wanted = [rows_of(lengths, places.ways, rank, zigzag) for rank in range(places.ranks)]
    if counts != wanted:
        raise ValueError(f"x has {counts} rows by rank; accepted: {wanted}, as shard() cuts {sum(counts)}")
    x = x.movedim(dim, 0)
    padded = torch.cat((x, x.new_zeros((max(counts) - x.shape[0], *x.shape[1:])))).contiguous()
    parts = _joined(padded, places)
    result = x.new_empty((sum(counts), *x.shape[1:]))
    for rank in range(places.ranks):
        done = 0
        for begin, rows in _spans(lengths, places, rank, zigzag):
            result[begin:begin + rows] = parts[rank, done:done + rows]
            done += rows
    return result.movedim(0, dim).contiguous()


def _spans(lengths, places, rank, zigzag):
    """(first row among those of all sequences, rows) of each piece that a rank has, in its order."""
    begins = [0, *itertools.accumulate(lengths)]
    return [(begins[one.sequence] + one.position, one.rows) for one in segments_of(lengths, places.ways, rank, zigzag)]


def _joined(x, places):
    """[ranks, …]"""
    shape = x.shape
    for group in reversed(places.groups):
        exchange = Exchange(group, None)
        x = exchange.finish(exchange.gather(x.contiguous()))
    return x.reshape(-1, *shape)


def _dim_of(x, dim):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is {type(x).__qualname__}; accepted: a tensor")
    if type(dim) is not int or not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim is {shown(dim)}; accepted: a dimension of {list(x.shape)}")
    return dim % x.dim()


def _lengths_of(cu_seqlens, total):
    if cu_seqlens is None:
        return (total,)
    lengths = lengths_of("cu_seqlens", cu_seqlens)
    if sum(lengths) != total:
        raise ValueError(f"cu_seqlens ends with {sum(lengths)}; accepted: the {total} rows of x")
    return lengths
