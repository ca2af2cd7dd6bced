"""The attention function of transformers' models, by dfa.attention."""

import weakref
from operator import index

import numpy
import torch

from dfa._attention import attention
from dfa._dropout import options_of
from dfa._segments import attend, diagonal, everything, intervals_of, read, segments_of
from dfa._shapes import flag_of, shown
from dfa._torch_masks import bias_of
from dfa.transformers._mask import Mask, begins_of, known
from dfa.transformers._words import NAME, refuse

# What models hand on to every layer and attention has no part in, or what is already in q, k and v.
_NOT_OURS = {
    "cache_position", "hidden_states", "labels", "logits_to_keep", "max_length_k", "max_length_q", "num_items_in_batch",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings", "position_ids", "return_dict",
    "use_cache",
}


def attention_forward(module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, is_causal=None,
                      sliding_window=None, cu_seq_lens_q=None, cu_seq_lens_k=None, softcap=None, s_aux=None,
                      position_bias=None, deterministic=False, **options):
    """query [b, hq, sq, d], key [b, hk, sk, d], value [b, hk, sk, dv] → (output [b, sq, hq, dv], None).

    attention_mask: what attention_mask() of this package made; or a tensor [b or 1, 1 or hq, sq or 1, sk], boolean
    (true is seen) or added (0 is seen, -inf or the type's minimum is hidden); or [b, sk], true where a key is no padding; or
    None, and then is_causal decides (the module's own where it is None). cu_seq_lens_q, cu_seq_lens_k [n + 1]: where
    sequences that are packed in one row begin and end. softcap: a number, s_aux: sinks [hq], as dfa.attention's. On a processor
    position_bias [b or 1, hq or 1, sq or 1, sk] is added to scores, and a mask that is added may have any values.

    A query that sees no key gets zeros. dropout: by PyTorch's generator. Raises ValueError, with what is accepted, on biases on a GPU,
    attention weights that are asked for, and masks in which a query's keys do not lie together.
    """
    dropout = options_of(dropout)
    for name, asked in options.items():
        if asked is not None and asked is not False and name not in _NOT_OURS:
            refuse(f"{name} ({type(asked).__name__})")
    causal = flag_of("is_causal", getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if sliding_window is not None:
        sliding_window = _window_of(sliding_window)
    places = _places_of(options.get("position_ids"), query, key, causal, cu_seq_lens_q)
    if places is not None and attention_mask is None and torch.compiler.is_compiling():
        places = _assert_one_sequence(places)
    options = {"scale": scaling, "deterministic": flag_of("deterministic", deterministic)}
    options |= {name: given for name, given in (("softcap", softcap), ("sinks", s_aux)) if given is not None}
    options |= dropout
    if position_bias is not None:
        if cu_seq_lens_q is not None:
            refuse("position_bias beside cu_seq_lens_q")
        o = _biased(query, key, value, position_bias, attention_mask, causal, sliding_window, places, options)
        return o.transpose(1, 2).contiguous(), None
    if attention_mask is None and cu_seq_lens_q is None and sliding_window is None and places is None:
        return _unmasked(query, key, value, causal, options).transpose(1, 2).contiguous(), None
    by_segments = _by_segments_outside if torch.compiler.is_compiling() else _by_segments
    o = by_segments(query, key, value, attention_mask, causal, sliding_window, cu_seq_lens_q, cu_seq_lens_k, places, options)
    return o.transpose(1, 2).contiguous(), None  # as every other implementation's: some models take a view of it


def _window_of(sliding_window):
    try:
        if isinstance(sliding_window, bool) or index(sliding_window) < 1:
            raise ValueError
        return index(sliding_window)
    except (TypeError, ValueError):
        raise ValueError(f"sliding_window={shown(sliding_window)}; accepted: a whole number of keys, 1 or more, or None") from None


def _places_of(position_ids, query, key, causal, cu_q):
    """position_ids where they may say that sequences are packed, as transformers' flash attention asks them; else None. Masks
    say so too, but not of every model, and of none that has a cache."""
    sq = query.shape[2]
    if position_ids is None or not causal or cu_q is not None or sq == 1 or sq != key.shape[2]:
        return None
    if type(position_ids) is not torch.Tensor or position_ids.is_meta or position_ids.dim() != 2:
        return None  # not to be read, or of several axes
    return position_ids if position_ids.shape[1] == sq and position_ids.shape[0] in (1, query.shape[0]) else None


def _assert_one_sequence(position_ids):
    """In a graph, which does not read them: RuntimeError where they say that sequences are packed, on a GPU a failed assertion."""
    follow = (position_ids.diff(dim=1) == 1).all()
    torch._assert_async(follow, "position_ids tell packed sequences, which a compiled model without a mask does not serve; "
                                "accepted: cu_seq_lens_q, or a model that is not compiled")


def _unmasked(query, key, value, causal, options):
    sq, sk = query.shape[2], key.shape[2]
    if causal and sq > 1 and sq != sk:
        refuse(f"a causal attention without a mask, of {sq} queries and {sk} keys, which does not say where the queries are")
    return attention(query, key, value, causal=causal and sq > 1, **options)


def _by_segments(query, key, value, mask, causal, sliding_window, cu_q, cu_k, places, options):
    if isinstance(mask, Mask) and cu_q is None:
        _shapes_agree(mask.shape, query, key)
        return attend(query, key, value, mask.segments_for(query.shape[0], query.shape[2], places), **options)
    places = None if mask is not None else places  # one of the user's own says what it means

    def read_anew():
        intervals = known(_intervals_of(mask, query, key, causal, sliding_window))
        if cu_q is not None:
            intervals = _packed(intervals, query, key, cu_q, cu_k)
        begins = None if places is None else begins_of(places)
        if begins is not None:
            intervals = intervals.intersected(begins, key.shape[2])
        return segments_of(intervals, query.shape[0])

    if cu_q is None and sliding_window is None and (bias := _added(mask, query, key)) is not None:
        return attention(query, key, value, bias=bias, **options)
    others = [tuple(ends) for ends in (cu_q, cu_k) if ends is not None and not isinstance(ends, torch.Tensor)]
    facts = query.shape[:3], key.shape[2], causal, sliding_window, others
    return attend(query, key, value, _kept(read_anew, (mask, cu_q, cu_k, places), facts), **options)


_by_segments_outside = torch.compiler.disable(_by_segments)  # how often attention is called depends on the mask's elements


@torch.compiler.disable  # which keys a query sees is read from the mask
def _biased(query, key, value, bias, mask, causal, sliding_window, places, options):
    """o with a bias that is added to scores, and -inf where a mask hides a key."""
    if places is not None and begins_of(places) is not None:
        refuse("position_bias beside position_ids of several sequences in a row")
    if query.device.type != "cpu":
        refuse("position_bias on a GPU (accepted: on a processor)")
    if sliding_window is None and (added := _added(mask, query, key)) is not None:
        return attention(query, key, value, bias=bias + added, **options)
    intervals = known(_intervals_of(mask, query, key, causal, sliding_window))
    low, high = (torch.from_numpy(numpy.ascontiguousarray(ends))[:, None, :, None] for ends in (intervals.low, intervals.high))
    keys = torch.arange(key.shape[2])
    return attention(query, key, value, bias=bias.masked_fill((keys < low) | (keys >= high), -torch.inf), **options)


def _added(mask, query, key):
    """A mask of four dimensions as a bias, on a processor, where it holds other values than 0 and the type's minimum, or
    differs from head to head; else None."""
    if isinstance(mask, Mask) or not isinstance(mask, torch.Tensor) or query.device.type != "cpu" or mask.dim() != 4:
        return None
    heads_alike = (mask == mask[:, :1]).all()
    if mask.dtype == torch.bool:
        bias = None if heads_alike else bias_of(mask, query.dtype)
    elif mask.is_floating_point():
        hides = (mask == 0) | (mask <= torch.finfo(mask.dtype).min)
        bias = None if heads_alike and not mask.requires_grad and hides.all() else mask
    else:
        bias = None
    if bias is not None:
        _shapes_agree(mask.shape, query, key)
    return bias


_last = None  # of what layers were given last: tensors, weakly, and their copies; their versions and all else; the segments


def _kept(read_anew, given, facts):
    """The segments that are read from these tensors, once for all layers that get the same. A version does not tell what NumPy or
    Tensor.data have written: on a processor elements are held against a copy, on a GPU, which would be waited for, they are not."""
    global _last
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    if any(x.is_inference() for x in tensors) or torch._C._are_functorch_transforms_active():
        return read_anew()
    facts = facts, [*map(type, given)], [x._version for x in tensors]
    kept = _last
    if kept is None or kept[1] != facts or not all(ref() is x and _holds(x, copy) for (ref, copy), x in zip(kept[0], tensors)):
        kept = _last = [(weakref.ref(x), x.detach().clone() if x.device.type == "cpu" else None) for x in tensors], facts, read_anew()
    return kept[2]


def _holds(tensor, copy):
    return copy is None or torch.equal(tensor, copy)


def _shapes_agree(shape, query, key):
    b, heads, sq, sk = shape
    if b not in (1, query.shape[0]) or heads not in (1, query.shape[1]) or sq not in (1, query.shape[2]) or sk != key.shape[2]:
        refuse(f"a mask {list(shape)} for q {list(query.shape)}, k {list(key.shape)}")


def _intervals_of(mask, query, key, causal, sliding_window):
    """Intervals of everything a mask may be; None where a query's keys do not lie together."""
    if isinstance(mask, Mask):
        return mask.intervals
    sq, sk = query.shape[2], key.shape[2]
    if mask is not None and not isinstance(mask, torch.Tensor):
        refuse(f"a mask of type {type(mask).__name__}")
    if mask is not None and mask.dim() == 4:
        _shapes_agree(mask.shape, query, key)
        return _of_tensor(mask, sq)
    if mask is None and causal and sq not in (1, sk):
        _unmasked(query, key, None, True, {})
    intervals = diagonal(sq, sk, sk - sq) if causal else everything(sq, sk)
    if sliding_window is not None and sk > sliding_window:
        if not causal:
            refuse(f"sliding_window={sliding_window} without a causal mask")
        intervals = intervals.intersected(numpy.arange(sq) + sk - sq - sliding_window + 1, sk)
    if mask is None:
        return intervals
    if mask.dim() != 2 or tuple(mask.shape) != (query.shape[0], sk):
        refuse(f"a mask {list(mask.shape)} for q {list(query.shape)}, k {list(key.shape)}")
    ends = intervals_of(lambda rows: mask.bool()[:, None], mask.shape[0], 1, sk)
    return None if ends is None else intervals.intersected(ends.low, ends.high)


def _of_tensor(mask, sq):
    visible = mask
    if mask.is_floating_point():
        if mask.requires_grad:
            refuse("a mask that wants a gradient, which is a bias")
        visible = mask == 0
        if not (visible | (mask <= torch.finfo(mask.dtype).min)).all():
            refuse("a mask with values other than 0 and the type's minimum, which is a bias")
    elif mask.dtype != torch.bool:
        raise ValueError(f"a mask of {mask.dtype}; accepted: bool or floating point")
    if not (visible == visible[:, :1]).all():
        refuse("a mask that differs from head to head")
    visible = visible[:, 0].expand(-1, sq, -1)
    return intervals_of(lambda rows: visible[:, rows], visible.shape[0], sq, visible.shape[2])


def _packed(intervals, query, key, cu_q, cu_k):
    """These keys and only those of the query's own sequence."""
    if query.shape[0] != 1:
        refuse(f"cu_seq_lens_q with a batch of {query.shape[0]} (accepted: 1)")
    cu_q, cu_k = (numpy.asarray(read(ends) if isinstance(ends, torch.Tensor) else ends, dtype=numpy.int64)
                  for ends in (cu_q, cu_q if cu_k is None else cu_k))
    sq, sk = query.shape[2], key.shape[2]
    if len(cu_q) != len(cu_k) or not (cu_q[0] == cu_k[0] == 0 and cu_q[-1] == sq and cu_k[-1] == sk):
        refuse(f"cu_seq_lens_q {cu_q.tolist()}, cu_seq_lens_k {cu_k.tolist()} for {sq} queries and {sk} keys")
    if (numpy.diff(cu_q) < 0).any() or (numpy.diff(cu_k) < 0).any():
        refuse(f"cu_seq_lens_q {cu_q.tolist()}, cu_seq_lens_k {cu_k.tolist()} that fall")
    which = numpy.searchsorted(cu_q, numpy.arange(sq), side="right") - 1
    return intervals.intersected(cu_k[which], cu_k[which + 1])
