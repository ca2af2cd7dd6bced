"""Segments that are packed sequences, in one call of dfa.attention_varlen.

Layers that share a mask ask for the same call with other tensors: what made the first one makes theirs (dfa._torch_again).
"""

from itertools import groupby

import numpy
import torch
from torch.autograd import forward_ad

from dfa import _torch_again
from dfa._shapes import lies_apart, scale_of, window_of
from dfa._torch_again import OF_ROWS, recall
from dfa._torch_calls import DTYPES
from dfa._torch_checks import logits_of
from dfa._torch_varlen import as_given, attention_varlen, forward_options, launch_of

_MOST_ROWS = 1 << 28  # of all packed sequences, for kernels


class Packed:
    """Segments as packed sequences, the same window (left, right) for all."""

    def __init__(self, segments, window):
        self.window = window
        batches = ([*group] for _, group in groupby(segments, key=lambda segment: segment.batch))
        places = [(entry, rows.start, rows.stop, keys.start, keys.stop) for group in batches
                  for entry in range(group[0].batch.start, group[0].batch.stop) for _, rows, keys, _ in group]
        self._places = numpy.array(places, dtype=numpy.int64).reshape(-1, 5).T
        _, q_begin, q_end, k_begin, k_end = self._places
        self._most = _power_above(q_end - q_begin), _power_above(k_end - k_begin)
        self._lengths, self._again = {}, {}

    def recall(self, query, key, value, *, dropout_p=0.0, **options):
        """o of a call that attend() has made with tensors that lie as these do; or None."""
        if not self._again or dropout_p:
            return None
        known = self._again.get(_layout_of(query, key, value))
        return None if known is None else recall(self._call(query, key, value, *known, **options))

    def attend(self, query, key, value, *, dropout_p=0.0, **options):
        """o [b, hq, sq, dv] of q, k, v [b, h, s, d]. options: scale, softcap, sinks, deterministic, as in attention_varlen."""
        b, _, sq, _ = query.shape
        pitch = None if dropout_p else _pitch_to_read(query, key, value)
        rows, lengths = _rows(query, key, value, pitch), self.lengths(query.device, sq, pitch or key.shape[2])
        if pitch is None:
            cu_q, cu_k, used_q, used_k = lengths
            most = self._most if query.is_cuda else (None, None)  # processors count rows that no sequence has, too
            o, lse = attention_varlen(*rows, cu_q, cu_k, *most, window=self.window, seqused_q=used_q, seqused_k=used_k,
                                      dropout_p=dropout_p, return_lse=True, **options)
        else:
            o, lse = torch.ops.dfa.varlen_forward(*rows, *lengths, *self._options(query, **options))
        o = o.unflatten(0, (b, sq)).transpose(1, 2)
        if not dropout_p and as_given(options.get("sinks")) and _are_read_where_they_lie(rows, (query, key, value), pitch):
            self._keep(query, key, value, pitch, rows, lengths, (o, lse), options)
        return o

    def _options(self, query, scale=None, deterministic=False, softcap=None, sinks=None):
        """What dfa::varlen_forward takes behind lengths. deterministic is of gradients."""
        _, sinks, softcap = logits_of(None, sinks, softcap, query.device, query.shape[0], query.shape[1])
        return (*window_of(False, self.window), scale_of(scale), False, None, sinks, softcap, None, 0, 0, None, 0.0, "", "",
                0, False, *self._most)

    def _call(self, query, key, value, pitch, lengths, scale=None, deterministic=False, softcap=None, sinks=None):
        """A key of dfa._torch_again, with OF_ROWS."""
        return ("segments", query, key, value, *lengths, None, sinks, None, None, None, pitch, *self._most, self.window, scale,
                deterministic, softcap)

    def _keep(self, query, key, value, pitch, rows, lengths, outputs, options):
        call = self._call(query, key, value, pitch, lengths, **options)
        if query.is_cuda:
            made = launch_of(call, rows, *forward_options((*lengths, *self._options(query, **options))), outputs, "o")
        else:
            made = self._forward_of(pitch, options)
        _torch_again.keep(call, made, OF_ROWS.values())
        self._again[_layout_of(query, key, value)] = pitch, lengths

    def _forward_of(self, pitch, options):
        def forward(query, key, value, cu_q, cu_k, used_q, used_k, _, sinks, *more):
            b, _, sq, _ = query.shape
            rows, lengths = _rows(query, key, value, pitch), (cu_q, cu_k, used_q, used_k)
            o, _ = torch.ops.dfa.varlen_forward(*rows, *lengths, *self._options(query, **options | {"sinks": sinks}))
            return o.unflatten(0, (b, sq)).transpose(1, 2)
        return forward

    def lengths(self, device, q_pitch, k_pitch):
        """cu_seqlens_q, cu_seqlens_k [n + 1], seqused_q, seqused_k [n] of tensors in which a batch entry begins so many rows
        after the one before: int32, copied to the device the first time that they are asked for."""
        asked = device, q_pitch, k_pitch
        if asked not in self._lengths:
            table = torch.from_numpy(self._table(q_pitch, k_pitch))
            with torch.inference_mode(False):  # what is kept serves gradients, too
                table = table.to(device, copy=True, non_blocking=True)  # pageable memory has been read when it returns
            self._lengths[asked] = table[0], table[1], table[2, :-1], table[3, :-1]
        return self._lengths[asked]

    def _table(self, q_pitch, k_pitch):
        entry, q_begin, q_end, k_begin, k_end = self._places
        begins = entry * q_pitch + q_begin, entry * k_pitch + k_begin
        first = int(begins[0][0] > 0 or begins[1][0] > 0)  # a sequence without rows, since the first begins with 0
        table = numpy.zeros((4, first + len(entry) + 1), dtype=numpy.int32)
        for at, (begin, used) in enumerate(zip(begins, (q_end - q_begin, k_end - k_begin))):
            table[at, first:-1], table[2 + at, first:-1] = begin, used
            table[[at, 2 + at], -1] = begin[-1] + used[-1]
        return table


def _power_above(lengths):
    """Of two, as plans take what a sequence has at most: many lengths need few of them."""
    return 1 << (int(lengths.max(initial=1)) - 1).bit_length()


def _layout_of(*tensors):
    return tensors[0].device, *((x.shape, x.stride()) for x in tensors)


def may_be_packed(query, key, value, scale=None, **_):
    """Not inside transforms, with subclasses of tensors, scales that are tensors, or batches that broadcast: these are
    dfa.attention's, to serve or to refuse."""
    b, sk = query.shape[0], key.shape[2]
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0 or torch._C._is_tracing()
    return (not transformed and not isinstance(scale, torch.Tensor)
            and all(type(x) in (torch.Tensor, torch.nn.Parameter) and x.shape[0] == b for x in (query, key, value))
            and value.shape[2] == sk and 0 < b * max(query.shape[2], sk) <= _MOST_ROWS)


def _rows(query, key, value, pitch):
    """q, k, v [rows, h, d] of [b, h, s, d], keys and values as they lie where there is a pitch."""
    if pitch is None:
        return tuple(map(_rows_of, (query, key, value)))
    q = _rows_of(query)
    return q if lies_apart((1, *q.shape), (0, *q.stride())) else q.contiguous(), _rows_at(key, pitch), _rows_at(value, pitch)


def _are_read_where_they_lie(rows, tensors, pitch):
    """Do kernels read the tensors' own memory?"""
    return (all(x.data_ptr() == tensor.data_ptr() and x.shape[2] % 8 == 0 for x, tensor in zip(rows, tensors))
            and all(lies_apart((1, *x.shape), (0, *x.stride())) for x in (rows if pitch is None else rows[:1])))


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
