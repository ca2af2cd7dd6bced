"""A mask of PyTorch's as calls of dfa.attention that serve it exactly.

A query that sees the keys [low, high) is one row. Rows of which both ends stay or move by one key a row are a
segment: one call on a slice of queries and keys, full, causal or with a window. Packed sequences, chunks, prefixes,
blocks of images, padding and the unused end of a cache are such segments, one after the other. Segments of one window
that see keys of their own are packed sequences: one call of dfa.attention_varlen serves them all.
"""

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy
import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from dfa._attention import attention
from dfa._segments_packed import Packed, may_be_packed

_BLOCK = 1 << 24  # elements of a mask that are looked at together


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
    if len(low) == 1:  # of a token that is generated: without what follows, which costs more than its attention
        return [_segment(batch, slice(0, 1), low, high)]
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
    if (packed := segments.packed) is not None:
        if isinstance(sinks := options.get("sinks"), torch.Tensor) and sinks.is_floating_point():
            options["sinks"] = sinks.float()
        if (o := packed.recall(query, key, value, **options)) is not None:
            return o
        if may_be_packed(query, key, value, **options):
            return packed.attend(query, key, value, **options)
    batches = {}
    for segment in segments:
        part = _attend(query[segment.batch, :, segment.rows], key[segment.batch], value[segment.batch], segment,
                       options)
        batches.setdefault(segment.batch.start, []).append(part)
    return torch.cat([torch.cat(parts, 2) for parts in batches.values()], 0)


def _attend(query, key, value, segment, options):
    if not _sees_keys(segment):
        learned = [x for x in (query, key, value, options.get("sinks")) if isinstance(x, torch.Tensor)]
        nothing = sum(x[..., :0].sum() for x in learned)  # by which autograd knows of them all
        return query.new_zeros(*query.shape[:3], value.shape[3]) + nothing
    if segment.keys != slice(0, key.shape[2]):
        key, value = key[:, :, segment.keys], value[:, :, segment.keys]
    return attention(query, key, value, window=segment.window, **options)
