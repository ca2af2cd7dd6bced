"""The mask that a model of transformers asks for, kept as what each query sees."""

import weakref

import numpy
import torch
from transformers.masking_utils import (and_masks, bidirectional_mask_function, causal_mask_function,
                                        padding_mask_function, sdpa_mask)

from dfa._segments import Intervals, diagonal, everything, intervals_of, read, segments_of
from dfa.transformers._words import NAME, refuse


class Mask(torch.Tensor):
    """A boolean mask [b, 1, sq, sk] without memory: the keys [low, high) that each query sees.

    Models hand it from where they make masks to their attention, whole, sliced or moved to another device. Everything else a
    model does with a mask belongs to an attention of its own, which would read what is no number: ValueError.
    """

    @staticmethod
    def __new__(cls, intervals, shape, device, padding=None):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)

    def __init__(self, intervals, shape, device, padding=None):
        self.intervals = intervals  # None where a query sees keys that do not lie together
        self._segments, self._padding, self._begins = {}, padding, None

    def segments_for(self, b, sq, position_ids=None):
        """Its Segments for b sequences of sq queries, to which one of it broadcasts: made once for all layers. position_ids: of
        queries that are keys as well, None where they do not matter."""
        begins = None if position_ids is None else self._begins_in(position_ids)
        asked = b, sq, begins is not None
        if asked not in self._segments:
            low, high = (numpy.broadcast_to(ends, (ends.shape[0], sq)) for ends in known(self.intervals))
            intervals = Intervals(low, high)
            self._segments[asked] = segments_of(intervals if begins is None else intervals.intersected(begins, self.shape[3]), b)
        return self._segments[asked]

    def _begins_in(self, position_ids):
        """begins_of(position_ids), read once for all layers; None where what is padding has positions of its own."""
        version = None if position_ids.is_inference() else position_ids._version
        kept = self._begins
        if kept is None or kept[0]() is not position_ids or kept[1] != version:
            begins = begins_of(position_ids)
            if begins is not None and self._padding is not None and not self._padding.all():
                begins = None
            self._begins = kept = weakref.ref(position_ids), version, begins
            self._segments = {asked: segments for asked, segments in self._segments.items() if not asked[2]}
        return kept[2]

    def __repr__(self, **_):
        return f"<dfa.transformers.Mask {list(self.shape)} on {self.device}>"

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        name = getattr(function, "__name__", "")
        if name in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*arguments, **(keywords or {}))
        if name not in _KEPT:
            refuse(f"attention of the model's own, which reads its mask by {name},")
        return _KEPT[name](*arguments, **(keywords or {}))

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        refuse(f"attention of the model's own, which reads its mask by {function},")


# Questions about a tensor that have nothing to do with its elements; __get__ is that of shape, device and the like.
_FACTS = {"__get__", "__len__", "dim", "size", "ndimension", "numel", "is_floating_point", "is_complex", "is_contiguous", "get_device",
          "is_inference"}


def _same(mask, *_, **__):
    return mask


def _moved(mask, *arguments, **keywords):
    device, dtype, *_ = torch._C._nn._parse_to(*arguments, **keywords)
    if dtype not in (None, torch.bool):
        refuse(f"attention of the model's own, which reads its mask as {dtype},")
    return Mask(mask.intervals, mask.shape, device if device is not None else mask.device, mask._padding)


def _sliced(mask, index):
    """mask[batch, :, queries, keys] with slices of step one; a single ellipsis stands for what is not said."""
    index = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in index:
        place = index.index(Ellipsis)
        index[place:place + 1] = [slice(None)] * (5 - len(index))
    index += [slice(None)] * (4 - len(index))
    if len(index) > 4 or any(not isinstance(part, slice) or part.step not in (None, 1) for part in index):
        refuse("attention of the model's own, which reads elements of its mask,")
    shape = [len(range(size)[part]) for size, part in zip(mask.shape, index)]
    intervals = mask.intervals
    if intervals is not None:
        batch = index[0] if intervals.low.shape[0] > 1 else slice(None)
        low, high = (ends[batch, index[2]] - range(mask.shape[3])[index[3]].start for ends in intervals)
        intervals = Intervals(low, high).intersected(0, shape[3])
    return Mask(intervals, shape, mask.device, mask._padding)


_KEPT = {"__getitem__": _sliced, "to": _moved, "detach": _same, "contiguous": _same, "clone": _same, "bool": _same}


def begins_of(position_ids):
    """Where the sequence of each query begins, int64 [b or 1, sq], by the rule of transformers: a position that does not follow
    the one before begins another one. None where there are no two. Waits for the GPU."""
    places = read(position_ids).astype(numpy.int64)
    new = numpy.diff(places, axis=1, prepend=places[:, :1] - 1) != 1
    if not new.any():
        return None
    return numpy.maximum.accumulate(numpy.where(new, numpy.arange(places.shape[1]), 0), axis=1)


def known(intervals):
    if intervals is None:
        refuse("a query sees keys that do not lie together (padding inside a sequence, blocks that are skipped)")
    return intervals


def attention_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function,
                   attention_mask=None, device="cpu", use_vmap=False, **options):
    """For AttentionMaskInterface: what the model asks for, as a Mask.

    Query i is the position i + q_offset, key j the position j + kv_offset; mask_function(batch, head, query, key) tells
    what is seen, attention_mask [b, positions] which positions are no padding. Reading either waits for the GPU.
    """
    if torch.compiler.is_compiling():
        return _traced(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device,
                       use_vmap, options)
    return _read(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, device, use_vmap)


def _traced(b, sq, sk, q_offset, kv_offset, mask_function, padding, device, use_vmap, options):
    """While torch.compile looks on: None for the mask that is_causal says, as with sdpa; else read it outside."""
    asked = dict(batch_size=b, q_length=sq, kv_length=sk, q_offset=q_offset, kv_offset=kv_offset,
                 mask_function=mask_function, attention_mask=padding, device=device)
    if padding is None and (mask_function is bidirectional_mask_function or sq == sk):
        skips = {name: options.get(name, default) for name, default in
                 (("allow_is_causal_skip", True), ("allow_is_bidirectional_skip", False), ("local_size", None))}
        skips["allow_is_causal_skip"] &= mask_function is causal_mask_function or skips["local_size"] is not None
        if (skips["allow_is_causal_skip"] or skips["allow_is_bidirectional_skip"]) and sdpa_mask(**asked, **skips) is None:
            return None
    return _read_outside(b, sq, sk, q_offset, kv_offset, mask_function, padding, device, use_vmap)


def _read(b, sq, sk, q_offset, kv_offset, mask_function, padding, device, use_vmap):
    q_offset, kv_offset = int(q_offset), int(kv_offset)
    intervals = _closed_form(b, sq, sk, q_offset, kv_offset, mask_function, padding)
    if intervals is None:
        intervals = _evaluated(b, sq, sk, q_offset, kv_offset, mask_function, padding, device, use_vmap)
    return Mask(intervals, (b, 1, sq, sk), device, padding)


_read_outside = torch.compiler.disable(_read)


def _closed_form(b, sq, sk, q_offset, kv_offset, mask_function, padding):
    """Intervals of a causal or a full mask with padding at the ends, without looking at sq · sk elements."""
    if mask_function is causal_mask_function:
        intervals = diagonal(sq, sk, q_offset - kv_offset)
    elif mask_function is bidirectional_mask_function:
        intervals = everything(sq, sk)
    else:
        return None
    if padding is None:
        return intervals
    kept = read(padding[:, kv_offset:kv_offset + sk]) != 0  # at once: where it lies on a GPU, each look at it waits
    if kept.shape[1] < sk:  # positions behind it are none
        kept = numpy.concatenate([kept, numpy.zeros((len(kept), sk - kept.shape[1]), dtype=bool)], 1)
    if kept.all():
        return intervals
    ends = _ends_of(kept)
    return None if ends is None else intervals.intersected(*ends)


def _ends_of(kept):
    """Intervals of the keys that are no padding, kept bool [b, sk]; None where they do not lie together."""
    seen = kept.sum(1)
    first = numpy.where(seen > 0, kept.argmax(1), 0)
    end = numpy.where(seen > 0, kept.shape[1] - kept[:, ::-1].argmax(1), 0)
    return Intervals(first[:, None], end[:, None]) if (end - first == seen).all() else None


def _evaluated(b, sq, sk, q_offset, kv_offset, mask_function, padding, device, use_vmap):
    if padding is not None:
        padding = torch.nn.functional.pad(padding, (0, max(0, kv_offset + sk - padding.shape[1])))
        mask_function = and_masks(mask_function, padding_mask_function(padding))

    def visible(rows):
        block = sdpa_mask(batch_size=b, q_length=rows.stop - rows.start, kv_length=sk, q_offset=q_offset + rows.start,
                          kv_offset=kv_offset, mask_function=mask_function, allow_is_causal_skip=False,
                          use_vmap=use_vmap, device=device)
        return block[:, 0]

    return intervals_of(visible, b, sq, sk)
