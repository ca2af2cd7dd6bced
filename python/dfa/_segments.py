"""A mask of PyTorch's as calls of dfa.attention that serve it exactly.

A query that sees the keys [low, high) is one row. Rows of which both ends stay or move by one key a row are a
segment: one call on a slice of queries and keys, full, causal or with a window. Packed sequences, chunks, prefixes,
blocks of images, padding and the unused end of a cache are such segments, one after the other. Segments of one window
that see keys of their own are packed sequences: one call of dfa.attention_varlen serves them all.
"""

from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad

from dfa._attention import attention
from dfa._logits import softcap_of
from dfa._shapes import lies_apart, scale_of, window_of
from dfa._torch_calls import DTYPES
from dfa._torch_varlen import attention_varlen

_BLOCK = 1 << 24  # elements of a mask that are looked at together
_MOST_ROWS = 1 << 28  # of all packed sequences, for kernels
# Keys that a sequence has on average, above which a GPU has a call for each: of packed sequences portable kernels run, dense
# ones have Hopper's. Alone, sequences of 512 came to 80 TFLOP/s on an H200, of 630 to 200; where they are even is not measured.
_MOST_KEYS_ON_GPU = 768


class Segment(NamedTuple):
    """attention(query[batch, :, rows], key[batch, :, keys], …, window=window); without keys, zeros."""

    batch: slice
    rows: slice
    keys: slice
    window: tuple[int, int] | None


class Segments(tuple):
    """The segments of a mask in the order of batch and rows. Layers that share it share what it keeps on devices."""

    @cached_property
    def packed(self):
        """As packed sequences, a Packed; None where they are none: windows differ, keys are seen by several segments or
        not in the order of rows, or there are not two segments that see keys."""
        seen = [segment for segment in self if _sees_keys(segment)]
        if len(seen) < 2 or any(a.batch == b.batch and b.keys.start < a.keys.stop for a, b in pairwise(seen)):
            return None
        if any(segment.window != (0, 0) for segment in seen):
            seen = [row for segment in seen for row in _single_rows(segment)]
        window = _window_of_all(seen)
        return None if window is None else Packed(seen, window)


class Packed:
    """Segments as packed sequences, the same window (left, right) for all."""

    def __init__(self, segments, window):
        self.window = window
        batches = ([*group] for _, group in groupby(segments, key=lambda segment: segment.batch))
        places = [(entry, rows.start, rows.stop, keys.start, keys.stop) for group in batches
                  for entry in range(group[0].batch.start, group[0].batch.stop) for _, rows, keys, _ in group]
        self._places = numpy.array(places, dtype=numpy.int64).T
        self.mean_keys = float((self._places[4] - self._places[3]).mean()) if places else 0.0
        self._lengths = {}

    def lengths(self, device, q_pitch, k_pitch):
        """cu_seqlens_q, cu_seqlens_k [n + 1], seqused_q, seqused_k [n] of tensors in which a batch entry begins so many rows
        after the one before: int32, copied to the device the first time that they are asked for."""
        asked = device, q_pitch, k_pitch
        if asked not in self._lengths:
            table = torch.from_numpy(self._table(q_pitch, k_pitch))
            with torch.inference_mode(False):  # what is kept serves gradients, too
                table = table.to(device, copy=True)
            self._lengths[asked] = table[0], table[1], table[2, :-1], table[3, :-1]
        return self._lengths[asked]

    def _table(self, q_pitch, k_pitch):
        entry, q_begin, q_end, k_begin, k_end = self._places
        begins = numpy.stack([entry * q_pitch + q_begin, entry * k_pitch + k_begin])
        used = numpy.stack([q_end - q_begin, k_end - k_begin])
        if begins[:, 0].any():  # a sequence without rows, since the first begins with 0
            begins, used = (numpy.insert(rows, 0, 0, axis=1) for rows in (begins, used))
        ends = begins[:, -1:] + used[:, -1:]
        return numpy.concatenate([numpy.hstack([begins, ends]), numpy.hstack([used, ends])]).astype(numpy.int32)


def _sees_keys(segment):
    return segment.rows.start < segment.rows.stop and segment.keys.start < segment.keys.stop


def _single_rows(segment):
    """Sequences of one row each, where each row sees its own key; else the segment."""
    batch, rows, keys, window = segment
    if window != (0, 0):
        return [segment]
    return [Segment(batch, slice(row, row + 1), slice(key, key + 1), None)
            for row, key in zip(range(rows.start, rows.stop), range(keys.start, keys.stop))]


def _window_of_all(segments):
    """The window (left, right) that shows each of the segments what its own does; None where there is none. A side without
    a limit is one with a limit that reaches to the end of the keys."""
    sides = [segment.window or (-1, -1) for segment in segments]
    lefts, rights = ({side[at] for side in sides} - {-1} for at in (0, 1))
    if len(lefts) > 1 or len(rights) > 1:
        return None
    left, right = (limits.pop() if limits else -1 for limits in (lefts, rights))
    for (own_left, own_right), (_, rows, keys, _) in zip(sides, segments):
        if own_left < left < keys.stop - keys.start - 1 or own_right < right < rows.stop - rows.start - 1:
            return None
    return left, right


class Intervals(NamedTuple):
    """Query i of batch b sees the keys [low[b, i], high[b, i]): NumPy, int64 [b or 1, sq]."""

    low: numpy.ndarray
    high: numpy.ndarray

    def intersected(self, low, high):
        """These keys and only those in [low, high) as well."""
        low, high = numpy.maximum(self.low, low), numpy.minimum(self.high, high)
        return Intervals(numpy.where(low < high, low, 0), numpy.where(low < high, high, 0))


def everything(sq, sk):
    """Each query sees each key."""
    return Intervals(numpy.zeros((1, sq), dtype=numpy.int64), numpy.full((1, sq), sk, dtype=numpy.int64))


def diagonal(sq, sk, offset):
    """Query i sees the keys up to i + offset."""
    return everything(sq, sk).intersected(0, numpy.arange(1, sq + 1) + offset)


def intervals_of(visible, b, sq, sk):
    """Intervals of the mask of which visible(rows) is a part: bool [b, len(rows), sk]. None where a query sees
    keys that do not lie together."""
    low, high, seen = [], [], []
    step = max(1, _BLOCK // max(1, b * sk))
    for begin in range(0, sq, step):
        block = visible(slice(begin, min(begin + step, sq)))
        whole = block.to(torch.uint8)
        seen.append(block.sum(-1))
        low.append(whole.argmax(-1) if sk else torch.zeros_like(seen[-1]))
        high.append(sk - whole.flip(-1).argmax(-1) if sk else torch.zeros_like(seen[-1]))
    if not low:
        return everything(0, sk)
    low, high, seen = read(torch.stack([torch.cat(part, 1) for part in (low, high, seen)]))
    low, high = numpy.where(seen > 0, low, 0), numpy.where(seen > 0, high, 0)
    return Intervals(low, high) if numpy.array_equal(high - low, seen) else None


def read(tensor):
    """Its elements, in NumPy; waits for the GPU. Inside torch.func.grad every tensor is wrapped, also one that is new.
    RuntimeError where torch.vmap maps over it."""
    tensor = tensor.cpu()
    if not torch._C._are_functorch_transforms_active():
        return tensor.numpy()
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    if torch._C._functorch.is_batchedtensor(tensor):
        raise RuntimeError("torch.vmap maps over the elements of a mask: one mask for all is accepted")
    with temporarily_clear_interpreter_stack():
        return tensor.numpy()


def segments_of(intervals, b):
    """The segments of a mask for b sequences, in the order of batch and rows."""
    low, high = intervals
    if low.shape[0] == 1:
        return Segments(_segments_of_rows(slice(0, b), low[0], high[0]))
    same = numpy.all((low[1:] == low[:-1]) & (high[1:] == high[:-1]), axis=1)
    begins = numpy.concatenate([[0], numpy.flatnonzero(~same) + 1, [b]]).tolist()
    return Segments(segment for begin, end in zip(begins[:-1], begins[1:])
                    for segment in _segments_of_rows(slice(begin, end), low[begin], high[begin]))


def _segments_of_rows(batch, low, high):
    empty = low == high
    low_step, high_step = numpy.diff(low), numpy.diff(high)
    breaks = ((low_step < 0) | (low_step > 1) | (high_step < 0) | (high_step > 1)
              | (empty[1:] != empty[:-1])) & ~(empty[1:] & empty[:-1])
    # Within a segment the lower end first stays and then moves, the upper end first moves and then stays.
    turned = (low_step[1:] < low_step[:-1]) | (high_step[1:] > high_step[:-1])
    turned &= ~breaks[:-1]
    # A row that shares no key with the one before, and sees one, is the first of what follows: of the next sequence.
    alone = turned & (low_step[:-1] == 1) & (high_step[:-1] == 1) & (low[1:-1] == high[:-2])
    breaks[1:] |= turned & ~alone
    breaks[:-1] |= alone
    begins = [0, *(numpy.flatnonzero(breaks) + 1).tolist(), len(low)]
    return [_segment(batch, slice(begin, end), low[begin:end], high[begin:end])
            for begin, end in zip(begins[:-1], begins[1:])]


def _segment(batch, rows, low, high):
    if not len(low) or low[0] == high[-1]:
        return Segment(batch, rows, slice(0, 0), None)
    begin, end, count = int(low[0]), int(high[-1]), len(low)
    # Query i of the segment stands at key i + last of the slice: its last query at its last key.
    last = end - begin - count
    left = last - (int(low[-1]) - begin - (count - 1)) if low[-1] > low[0] else -1
    right = int(high[0]) - begin - 1 - last if high[-1] > high[0] else -1
    return Segment(batch, rows, slice(begin, end), None if left == right == -1 else (left, right))


def attend(query, key, value, segments, **options):
    """o [b, hq, sq, dv] of q, k, v [b, h, s, d] and the Segments of a mask: one call for packed sequences, else one for each
    segment. A query that sees no key has zeros. options: scale, softcap, sinks, deterministic, dropout_p, as in dfa.attention.
    Raises as it does."""
    whole = slice(0, query.shape[0]), slice(0, query.shape[2])
    if len(segments) == 1 and segments[0][:2] == whole:
        return _attend(query, key, value, segments[0], options)
    if segments.packed is not None and _may_be_packed(query, key, value, segments.packed, **options):
        return _attend_packed(query, key, value, segments.packed, **options)
    batches = {}
    for segment in segments:
        part = _attend(query[segment.batch, :, segment.rows], key[segment.batch], value[segment.batch], segment,
                       options)
        batches.setdefault(segment.batch.start, []).append(part)
    return torch.cat([torch.cat(parts, 2) for parts in batches.values()], 0)


def _attend(query, key, value, segment, options):
    if not _sees_keys(segment):
        nothing = sum(x[..., :0].sum() for x in (query, key, value))  # by which autograd knows of all three
        return query.new_zeros(*query.shape[:3], value.shape[3]) + nothing
    if segment.keys != slice(0, key.shape[2]):
        key, value = key[:, :, segment.keys], value[:, :, segment.keys]
    return attention(query, key, value, window=segment.window, **options)


def _may_be_packed(query, key, value, packed, scale=None, **_):
    """Not inside transforms, with subclasses of tensors, scales that are tensors, or batches that broadcast: these are
    dfa.attention's, to serve or to refuse. Nor where a call for each sequence is the faster."""
    b, sk = query.shape[0], key.shape[2]
    if query.is_cuda and query.shape[2] > 1 and packed.mean_keys > _MOST_KEYS_ON_GPU:
        return False
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0 or torch._C._is_tracing()
    return (not transformed and not isinstance(scale, torch.Tensor)
            and all(type(x) in (torch.Tensor, torch.nn.Parameter) and x.shape[0] == b for x in (query, key, value))
            and value.shape[2] == sk and 0 < b * max(query.shape[2], sk) <= _MOST_ROWS)


def _attend_packed(query, key, value, packed, scale=None, deterministic=False, softcap=None, sinks=None, dropout_p=0.0):
    b, _, sq, _ = query.shape
    pitch = None if dropout_p else _pitch_to_read(query, key, value)
    q, lengths = _rows_of(query), packed.lengths(query.device, sq, pitch or key.shape[2])
    if pitch is None:
        cu_q, cu_k, used_q, used_k = lengths
        o = attention_varlen(q, _rows_of(key), _rows_of(value), cu_q, cu_k, window=packed.window, scale=scale,
                             seqused_q=used_q, seqused_k=used_k, deterministic=deterministic, softcap=softcap,
                             sinks=sinks, dropout_p=dropout_p)
    else:
        q = q if lies_apart((1, *q.shape), (0, *q.stride())) else q.contiguous()
        k, v = (_rows_at(x, pitch) for x in (key, value))
        sinks = None if sinks is None else sinks.float()
        o, _ = torch.ops.dfa.varlen_forward(q, k, v, *lengths, *window_of(False, packed.window), scale_of(scale), False,
                                            None, sinks, softcap_of(softcap))
    return o.unflatten(0, (b, sq)).transpose(1, 2)


def _rows_of(x):
    """[b · s, h, d] of [b, h, s, d]: without a copy where it lies in memory as [b, s, h, d]."""
    return x.transpose(1, 2).flatten(0, 1)


def _rows_at(x, pitch):
    """[rows, h, d] of [b, h, s, d] as it lies, batch entry i from row i · pitch on. In the rows between two entries, and in
    those of dense heads, elements are there more than once: this is to be read only."""
    b, h, s, d = x.shape
    _, head, row, _ = x.stride()
    return x.as_strided(((b - 1) * pitch + s, h, d), (row, head, 1))


def _pitch_to_read(query, key, value):
    """Rows from one batch entry to the next of k and v of which no gradient is asked, and which lie otherwise than
    [b, s, h, d]: a cache of dense heads, or part of one. None: _rows_of takes them."""
    tensors, device = (query, key, value), query.device.type
    if all(map(_is_flat, (key, value))) or torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return None
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) != query.dtype:
        return None
    if query.dtype not in DTYPES or any(x.dtype != query.dtype or x.device != query.device for x in tensors):
        return None
    if any(x.shape[3] % 8 or not x.numel() for x in tensors):
        return None
    pitch = _pitch_of(key)
    return pitch if pitch == _pitch_of(value) else None


def _is_flat(x):
    b, _, s, _ = x.shape
    return b == 1 or s == 1 or x.stride(0) == s * x.stride(2)


def _pitch_of(x):
    """None where batch entries are no whole number of rows apart, too far or too near, or kernels do not read such rows."""
    b, h, s, d = x.shape
    batch, head, row, column = x.stride()
    if column != 1 or row < d or h > 1 and head < d or batch % row or batch < s * row:
        return None
    pitch = batch // row
    return pitch if (b - 1) * pitch + s <= _MOST_ROWS else None
