"""PyTorch's nested tensors of the jagged layout, as packed sequences: their values are rows of all sequences one after the
other already, and their offsets say where each begins. Lengths beside offsets are rows that count of each."""

import torch
from torch.nested._internal.nested_tensor import NestedTensor

from dfa._torch_varlen import attention_varlen

_pad = torch.nn.functional.pad
_ACCEPTED = "accepted: [b, heads, j, d] with a ragged j, which is [b, j, heads, d].transpose(1, 2)"


def check(**tensors):
    """Raises where some of the tensors are nested and they are not all jagged and ragged in the same dimension."""
    for name, x in tensors.items():
        if not x.is_nested:
            raise ValueError(f"{name} is a dense tensor beside nested ones; accepted: all nested, or none")
        if not isinstance(x, NestedTensor):
            raise ValueError(f"{name} is a nested tensor of the strided layout; accepted: layout=torch.jagged")
        if x.dim() != 4 or x._ragged_idx not in (1, 2):
            raise ValueError(f"{name} is a nested tensor of {x.dim()} dimensions, ragged in dimension {x._ragged_idx}; "
                             f"{_ACCEPTED}")
    if len({x._ragged_idx for x in tensors.values()}) > 1:
        raise ValueError(f"nested tensors are ragged in dimensions {', '.join(str(x._ragged_idx) for x in tensors.values())}; "
                         f"one for all is expected, {_ACCEPTED}")
    if len({x.shape[0] for x in tensors.values()}) > 1:
        raise ValueError(f"nested tensors have batches of {', '.join(str(x.shape[0]) for x in tensors.values())}; one for all "
                         "is expected")


def attend(query, key, value, is_causal, scale, spread):
    """o, with the offsets of query, of nested tensors that were checked. spread(q, k, v): what hands out heads, the second
    dimension. is_causal: from the first query and key of each sequence on."""
    if not _alike(key, value):
        raise ValueError("key and value are nested tensors of other lengths; expected are the same for both")
    rows_q, rows_k = (x.transpose(1, 2) for x in (query, key))
    q, k, v = spread(rows_q.values(), rows_k.values(), value.transpose(1, 2).values())
    options = _lengths(query, key, is_causal and not _alike(query, key))
    o = attention_varlen(q, k, v, causal=is_causal, scale=scale, **options)
    return _like(o, rows_q).transpose(1, 2)


def attend_within_rows(attention, query, key, value, **options):
    """o of nested tensors [b, j, s, d], ragged in j: each of the j is a batch of its own, as PyTorch has it."""
    if not _alike(query, key) or not _alike(key, value):
        raise ValueError(f"nested tensors that are ragged in dimension 1 have other lengths; expected are the same; "
                         f"{_ACCEPTED}")
    return _like(attention(*(x.values() for x in (query, key, value)), **options), query)


def _like(values, nested):
    return torch.nested.nested_tensor_from_jagged(values, nested.offsets(), nested.lengths(),
                                                  min_seqlen=nested._maybe_min_seqlen, max_seqlen=nested._maybe_max_seqlen)


def _alike(one, other):
    """Are the lengths of both the same? Where offsets are not one tensor they are read, for which a GPU is waited for."""
    if one.shape[one._ragged_idx] == other.shape[other._ragged_idx]:
        return True
    if torch.compiler.is_compiling():
        raise ValueError("nested tensors of offsets of their own, whose lengths are not known while they are traced; accepted "
                         "here: the same offsets for query, key and value")
    apart = [(x.lengths() if x.lengths() is not None else x.offsets()) for x in (one, other)]
    return (one.lengths() is None) == (other.lengths() is None) and torch.equal(*apart) and torch.equal(
        one.offsets(), other.offsets())


def _lengths(query, key, from_the_first):
    """cu_seqlens and seqused of attention_varlen. from_the_first: keys that the causal mask of an attention from the first
    query and key on hides from all are none of the sequence, and so it is one to the last query and key as well."""
    holes = query.lengths() is not None or key.lengths() is not None
    if holes and not torch.compiler.is_compiling():
        _check_holes(query, key)
    q, k = (_lengths_of(x, holes) for x in (query, key))
    if from_the_first:
        rows, keys = (cu.diff() if used is None else used for cu, used in (q, k))
        if (rows > keys).any():
            raise ValueError("is_causal=True, and a nested tensor has more queries than keys in a sequence; accepted: as many, "
                             "or fewer")
        k = k[0], torch.minimum(rows, keys)
    return {"cu_seqlens_q": q[0], "cu_seqlens_k": k[0], "seqused_q": q[1], "seqused_k": k[1]}


def _lengths_of(nested, holes):
    """(begins, used lengths or None). Where there are holes the first sequence may begin behind row 0: one without rows goes
    ahead of it."""
    device, lengths = nested.values().device, nested.lengths()
    begins = nested.offsets().to(device, torch.int32)
    if not holes:
        return begins, None
    return _pad(begins, (1, 0)), None if lengths is None else _pad(lengths.to(device, torch.int32), (1, 0))


def _check_holes(*nested):
    for x in nested:
        if x.lengths() is not None and (x.offsets()[:-1] + x.lengths() > x.offsets()[1:]).any():
            raise ValueError("a nested tensor has lengths that pass the next offset: sequences that share rows; accepted: each with "
                             "rows of its own")
