"""One call of dfa.distributed.context_parallel_attention: what is given, checked on all ranks, and the method."""

import zlib
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch

from dfa._attention import attention
from dfa._distributed_agree import agree
from dfa._distributed_exchange import Exchange
from dfa._distributed_gather import Gathered, HeadsForRows, RowsForHeads
from dfa._distributed_layout import order_of, ring_of, rows_of, segments_of, tiles_of, whole
from dfa._distributed_ring import Ring
from dfa._distributed_tiles import Options
from dfa._logits import softcap_of
from dfa._shapes import check_differentiable, flag_of, padded_width, scale_at_width, scale_of, shown, sizes_of, window_of
from dfa._torch import DTYPES, _any_autocast, _autocast, _refuse_what_has_no_rule, _transformed
from dfa._torch_inputs import check_kind
from dfa._torch_varlen import attention_varlen

METHODS = ("auto", "ring", "allgather", "alltoall")
_NAME = "context_parallel_attention"


class _Call(NamedTuple):
    """What a rank was given, as the methods take it: q, k, v [b, h, rows, d], those of packed sequences with b = 1."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None
    slopes: torch.Tensor | None
    lengths: tuple | None  # (of q, of k) of packed sequences
    left: int
    right: int
    scale: float
    softcap: float
    zigzag: bool
    method: str
    stride: int
    deterministic: bool
    return_lse: bool
    timeout_s: float | None
    sm_margin: int | None

    def packed(self):
        return self.lengths is not None


def attend(q, k, v, places, *, check, timeout_s, **options):
    _refuse_what_has_no_rule(q, k, v)
    if _transformed():
        raise RuntimeError(f"torch.func and torch.vmap of {_NAME} are not supported; accepted: autograd's backward")
    call, error = None, ""
    try:
        call = _read(q, k, v, places, check, timeout_s, **options)
    except (TypeError, ValueError) as told:
        error = str(told)
    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    limit = timeout_s if _is_limit(timeout_s) else None
    # Rows of dense tensors say nothing of those of other ranks: 61 and 62 rows are 31 for the first of two, 30 and 31 for the second.
    check = "once" if check == "once" and call and call.packed() else "always"
    all_said = agree(_NAME, places, device, call and _said(call, places), error, check, limit)
    lengths = _lengths(call, places, all_said)
    o, lse = _by_method(call, places, lengths)
    if call.packed():
        o, lse = o[0].transpose(0, 1), lse if lse is None else lse[0]
    return (o, lse) if call.return_lse else o


def _read(q, k, v, places, check, timeout_s, *, causal, window, scale, softcap, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k,
          method, layout, heads_stride, sm_margin, return_lse, deterministic):
    if check not in ("always", "once"):
        raise ValueError(f"check is {shown(check)}; accepted: always, once")
    if not _is_limit(timeout_s) and timeout_s is not None:
        raise ValueError(f"timeout_s is {shown(timeout_s)}; accepted: seconds above 0, or None")
    if cu_seqlens_q is None and cu_seqlens_k is not None:
        raise ValueError("cu_seqlens_k without cu_seqlens_q; accepted: both, or cu_seqlens_q alone")
    packed = cu_seqlens_q is not None
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _check_tensor(name, tensor, packed)
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        raise ValueError(f"q, k, v have element types {q.dtype}, {k.dtype}, {v.dtype}; accepted: one of "
                         f"{', '.join(map(str, DTYPES))} for all")
    if not q.device == k.device == v.device or q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"q, k, v are on {q.device}, {k.device}, {v.device}; accepted: one CPU or CUDA device for all")
    if packed:
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    b, hq, hk, _, _, d, dv = sizes_of(q.shape, k.shape, v.shape)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        check_differentiable(d)
    if 0 in (b, hq, hk, d, dv):
        raise ValueError(f"q, k, v have shapes {list(q.shape)}, {list(k.shape)}, {list(v.shape)}; accepted: none of batch, heads and "
                         "head dims is 0")
    lengths = _packed_lengths(cu_seqlens_q, cu_seqlens_k) if packed else None
    scale = scale.detach() if isinstance(scale, torch.Tensor) and not torch.is_grad_enabled() else scale
    left, right = window_of(causal, window)
    for name, tensor in (("sinks", sinks), ("alibi_slopes", alibi_slopes)):
        _check_of_heads(name, tensor, hq, q.device)
    method = _method_of(method, places, hq, hk, left, right, alibi_slopes)
    deterministic = bool(flag_of("deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())
    return _Call(q, k, v, sinks, alibi_slopes, lengths, left, right, scale_at_width(scale_of(scale), d), softcap_of(softcap),
                 zigzag_of(causal, layout), method, _stride_of(heads_stride, hk, places), deterministic,
                 flag_of("return_lse", return_lse), timeout_s, _margin_of(sm_margin))


def _is_limit(timeout_s):
    return isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool) and timeout_s > 0


def _check_tensor(name, x, packed):
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} is {type(x).__qualname__}; accepted: a tensor")
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{name} is {type(x).__qualname__}; accepted: a plain tensor of this rank's rows (of a DTensor, to_local())")
    check_kind(name, x)
    dimensions = "rows, heads, head dim" if packed else "batch, heads, rows, head dim"
    if x.dim() != dimensions.count(",") + 1:
        raise ValueError(f"{name} has {x.dim()} dimensions; accepted: {dimensions}")
    if not x.is_contiguous() and not x.transpose(-3, -2).is_contiguous():
        raise ValueError(f"{name} is not contiguous, with strides {list(x.stride())} of shape {list(x.shape)}; accepted: shards of "
                         "shard(), or contiguous()")


def _check_of_heads(name, x, hq, device):
    if x is None:
        return
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        raise TypeError(f"{name} is {getattr(x, 'dtype', type(x).__qualname__)}; accepted: a floating-point tensor")
    if tuple(x.shape) != (hq,) or x.device != device:
        raise ValueError(f"{name} has shape {list(x.shape)} on {x.device}; accepted: [hq], here [{hq}], on {device}")
    if name == "alibi_slopes" and x.requires_grad and torch.is_grad_enabled():
        raise ValueError("alibi_slopes requires a gradient, which is not computed; accepted: slopes that are not learned")
    if device.type == "cpu":
        _check_values(name, x.detach().float())


def _check_values(name, x):
    """As kernels look at them on a processor, but before anything is sent: a rank that stopped there would leave the others waiting."""
    absent = name == "sinks"
    wrong = (~(x.isfinite() | x.isneginf() if absent else x.isfinite())).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(f"{name} has {float(x[at])} at index {at}; accepted: finite numbers{', and -inf for no sink' if absent else ''}")


def lengths_of(name, cu_seqlens):
    """Of each packed sequence, read from the device."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.dim() != 1:
        kind = cu_seqlens.dtype if isinstance(cu_seqlens, torch.Tensor) else type(cu_seqlens).__qualname__
        raise ValueError(f"{name} is {kind}; accepted: an int32 or int64 tensor [b + 1]")
    begins = cu_seqlens.tolist()
    lengths = tuple(end - begin for begin, end in zip(begins, begins[1:]))
    if not lengths or begins[0] != 0 or min(lengths) < 0:
        raise ValueError(f"{name} is {shown(begins)}; accepted: from 0 on, none less than the one before, of one sequence or more")
    return lengths


def _packed_lengths(cu_seqlens_q, cu_seqlens_k):
    of_q = lengths_of("cu_seqlens_q", cu_seqlens_q)
    of_k = of_q if cu_seqlens_k is None else lengths_of("cu_seqlens_k", cu_seqlens_k)
    if len(of_q) != len(of_k):
        raise ValueError(f"cu_seqlens_q is of {len(of_q)} sequences, cu_seqlens_k of {len(of_k)}; accepted: the same number")
    return of_q, of_k


def zigzag_of(causal, layout):
    if layout is not None and layout not in ("contiguous", "zigzag"):
        raise ValueError(f"layout is {shown(layout)}; accepted: contiguous, zigzag, or None for zigzag with causal")
    causal = flag_of("causal", causal)
    return causal if layout is None else layout == "zigzag"


def _method_of(method, places, hq, hk, left, right, slopes):
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"method is {shown(method)}; accepted: {', '.join(METHODS)}")
    heads = places.ways[-1]
    if len(places.ways) == 2:
        if method == "alltoall":
            raise ValueError("method alltoall of a mesh with two dimensions, the second of which exchanges heads anyhow; accepted: "
                             "auto, ring, allgather")
        method = "ring" if method == "auto" else method
    elif method == "auto":
        limited = left >= 0 or right > 0
        less = hk % heads == 0 and hk * heads > hq + hk
        method = "alltoall" if slopes is not None or less and not limited else "ring"
    if (method == "alltoall" or len(places.ways) == 2) and (hk % heads or hq % heads):
        raise ValueError(f"hq={hq} and hk={hk} heads are exchanged between {heads} ranks; accepted: multiples of it, or method ring "
                         "or allgather on a group")
    if slopes is not None and method != "alltoall":
        raise ValueError(f"alibi_slopes with method {method} is not supported; accepted: alltoall")
    return method


def _stride_of(heads_stride, hk, places):
    if heads_stride is None:
        heads = hk // places.ways[1] if len(places.ways) == 2 else hk
        return max(1, -(-heads // 4))
    if type(heads_stride) is not int or heads_stride < 1:
        raise ValueError(f"heads_stride is {shown(heads_stride)}; accepted: a number of heads from 1 on, or None")
    return heads_stride


def _margin_of(sm_margin):
    if sm_margin is not None and (type(sm_margin) is not int or sm_margin < 0):
        raise ValueError(f"sm_margin is {shown(sm_margin)}; accepted: a number of multiprocessors from 0 on, or None")
    return sm_margin


def _said(call, places):
    q, k, v = call.q, call.k, call.v
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, call.sinks))
    lengths = [zlib.crc32(repr(one).encode()) for one in call.lengths] if call.packed() else None
    return {"group": places.text(), "element type": str(q.dtype),
            "device": q.device.type, "batch": q.shape[0], "hq": q.shape[1], "hk": k.shape[1], "d": q.shape[3], "dv": v.shape[3],
            "method": call.method, "layout": "zigzag" if call.zigzag else "contiguous", "window": f"({call.left}, {call.right})",
            "scale": repr(call.scale), "softcap": repr(call.softcap), "sinks": call.sinks is not None,
            "alibi_slopes": call.slopes is not None, "cu_seqlens": f"of checksums {lengths}" if lengths else "None",
            "heads_stride": call.stride, "deterministic": call.deterministic, "return_lse": call.return_lse,
            "requires_grad": learns, "local rows": [q.shape[2], k.shape[2]]}


def _lengths(call, places, all_said):
    """(of q, of k) of each whole sequence."""
    lengths = []
    for at, name in enumerate("qk"):
        rows = [one["local rows"][at] for one in all_said]
        of = call.lengths[at] if call.packed() else (sum(rows),)
        wanted = [rows_of(of, places.ways, rank, call.zigzag) for rank in range(places.ranks)]
        if rows != wanted:
            raise ValueError(f"{_NAME}: {name} has {shown(rows)} rows by rank; accepted: {shown(wanted)}, as shard() cuts {sum(of)} in "
                             f"the layout {'zigzag' if call.zigzag else 'contiguous'}")
        if not sum(rows):
            raise ValueError(f"{_NAME}: {name} has no rows on any rank; accepted: one or more")
        lengths.append(of)
    return lengths


def _by_method(call, places, lengths):
    first = Exchange(places.groups[0], call.timeout_s)
    first.meet(call.q.device)
    if len(places.ways) == 2:
        heads = Exchange(places.groups[1], call.timeout_s)
        heads.meet(call.q.device)
        return _with_heads_exchanged(call, heads, lengths, places, lambda call: _on_rows(call, first, lengths))
    if call.method == "alltoall":
        return _with_heads_exchanged(call, first, lengths, places, lambda call: _on_whole(call, lengths))
    return _on_rows(call, first, lengths)


def _on_rows(call, exchange, lengths):
    dv, (q, k, v) = call.v.shape[3], map(_padded, (call.q, call.k, call.v))
    options = Options(call.scale, call.deterministic, call.softcap, call.sm_margin)
    sinks = None if call.sinks is None else call.sinks.float()
    if call.method == "ring":
        plan = ring_of(*lengths, exchange.ranks, exchange.rank, call.zigzag, call.left, call.right)
        o, lse = Ring.apply(q, k, v, sinks, plan, exchange, options)
    else:
        ways, (of_q, of_k) = (exchange.ranks,), lengths
        rows = segments_of(of_q, ways, exchange.rank, call.zigzag)
        tiles = tiles_of(rows, whole(of_k), call.left, call.right, tuple(sk - sq for sq, sk in zip(of_q, of_k)))
        order = order_of(of_k, ways, 0, call.zigzag)
        o, lse = Gathered.apply(q, k, v, sinks, tiles, order, call.stride, exchange, options)
    return o[..., :dv], lse


def _padded(x):
    width = padded_width(x.shape[3])
    return x if width == x.shape[3] else torch.nn.functional.pad(x, (0, width - x.shape[3]))


def _with_heads_exchanged(call, exchange, lengths, places, inner):
    """All rows of the ranks that exchange heads, of this rank's heads, through inner, and back."""
    of_q, of_k = (order_of(of, places.ways, places.rank // exchange.ranks, call.zigzag) for of in lengths)
    q, k, v = HeadsForRows.apply(exchange, (of_q, of_k, of_k), call.q, call.k, call.v)
    mine = slice(exchange.rank * q.shape[1], (exchange.rank + 1) * q.shape[1])
    sinks, slopes = (None if x is None else x[mine] for x in (call.sinks, call.slopes))
    o, lse = inner(call._replace(q=q, k=k, v=v, sinks=sinks, slopes=slopes))
    if not call.return_lse:
        return *RowsForHeads.apply(exchange, (of_q,), o), None
    o, lse = RowsForHeads.apply(exchange, (of_q, of_q), o, lse.unsqueeze(3))
    return o, lse.squeeze(3)


def _on_whole(call, lengths):
    options = {"window": (call.left, call.right), "scale": call.scale, "softcap": call.softcap or None, "sinks": call.sinks,
               "alibi_slopes": call.slopes, "deterministic": call.deterministic, "return_lse": True}
    if not call.packed():
        return attention(call.q, call.k, call.v, **options)
    begins = [_begins_of(of, call.q.device) for of in lengths]
    o, lse = attention_varlen(*(x[0].transpose(0, 1) for x in (call.q, call.k, call.v)), *begins, **options)
    return o.transpose(0, 1).unsqueeze(0), lse.unsqueeze(0)


@lru_cache(maxsize=64)
def _begins_of(lengths, device):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
