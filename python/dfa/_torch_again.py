"""Calls of packed sequences and of caches that are made again: past their checks and PyTorch's dispatcher, where nobody looks on.

What is checked, and what a plan depends on, is the key of a call: shapes, strides, types and devices of its tensors, and its numbers. The
values of lengths are no part of it: a GPU's calls do not read them here, and a processor's check them each time.
"""

import torch
from torch.autograd import forward_ad
from torch.autograd import profiler as _profiler
from torch.compiler import is_dynamo_compiling

from dfa._torch import _any_autocast, _deterministic, _is_grad_enabled, _is_traced, _transformed, _watched

_MOST = 1024
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_NUMBERS = {type(None), bool, int, float}
_has_function_modes = torch._C._len_torch_function_stack
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_calls = {}


def key_of(door, tensors, numbers):
    """None where a call has to be made in full: under a transform, a mode, a profiler or autocast, or where autograd or the kind of a
    tensor or a number asks for more."""
    if (is_dynamo_compiling() or _transformed() or _watched() or _has_function_modes() or _profiler._is_profiler_enabled or _is_traced()
            or forward_ad._current_level >= 0 or _any_autocast()):
        return None
    learns, key = _is_grad_enabled(), [door, _deterministic()]
    for x in tensors:
        if x is None:
            key.append(None)
        elif (type(x) not in _PLAIN or x.layout is not torch.strided or x.is_nested or (learns and x.requires_grad) or x.is_neg()
              or x._is_zerotensor()):
            return None
        else:
            key.append((x.shape, x.stride(), x.dtype, x.device))
    for number in numbers:  # True is 1, but not as an argument
        kind = type(number)
        if kind not in _NUMBERS and not (kind is tuple and {*map(type, number)} <= {int}):
            return None
        key.append((kind, number))
    return tuple(key)


def call_of(key):
    """What was kept for it, or None."""
    return None if key is None else _calls.get(key)


def keep(key, call):
    """Nothing of a call that a CUDA graph records: its tensors have no values yet."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    if len(_calls) >= _MOST:
        _calls.clear()
    _calls[key] = call


class Launch:
    """A plan's forward on a GPU, for tensors like those that it was planned for."""

    def __init__(self, plan, device):
        self._forward, self._fits, self._bytes, self._device = plan._forward, plan._fits_context, plan.workspace_bytes, device.index

    def fits(self):
        """Is the tensors' GPU the current one, with the part of it that the plan is for?"""
        return _current_device() == self._device and self._fits()

    def __call__(self, q, k, v, o, lse, *pointers):
        workspace = q.new_empty(self._bytes, dtype=torch.uint8)
        self._forward(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), workspace.data_ptr(),
                      _current_stream(self._device), *pointers)
