"""Calls that are made again: past their checks and PyTorch's dispatcher, where nobody looks on.

A door asks recall(key) first, its key a tuple of its name and all its arguments. What is checked of a call, and what its plan depends on, is
in the key: of tensors shapes, strides, types and devices, of all else the values (_core.Again reads them). A call that was made in
full leaves under its key what makes it again: a launch() of the plan, or on a processor, where the values of lengths are checked each
time, a function. Nothing is recalled under a transform, a mode, a profiler or autocast, or where a tensor requires a gradient.
"""

import torch
from torch.autograd import forward_ad
from torch.autograd import profiler as _profiler

from dfa import _core

_TYPES = {dtype: number for number, dtype in enumerate(sorted({x for x in vars(torch).values() if isinstance(x, torch.dtype)}, key=str))}


def _fields(tensor):
    """What DLPack's functions tell of a tensor, for a PyTorch without them. An address of 0: not of this one."""
    device = tensor.device
    if device.type not in ("cpu", "cuda") or tensor.layout != torch.strided or not torch._C._has_storage(tensor) or tensor.is_neg():
        return 0, (), (), 0, 0, 0
    return tensor.data_ptr(), tensor.shape, tensor.stride(), _TYPES[tensor.dtype], 1 + (device.type == "cuda"), device.index or 0


_again = _core.Again(
    getattr(torch.Tensor, "__dlpack_c_exchange_api__", None), _fields, [torch.Tensor, torch.nn.Parameter],
    [torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack,
     torch._C._is_tracing, torch._C._is_any_autocast_enabled],
    [(_profiler, "_is_profiler_enabled", False), (forward_ad, "_current_level", -1)],
    torch.is_grad_enabled, [torch._C._get_deterministic_algorithms], [torch.get_num_threads])
recall, kept = _again.recall, _again.kept
_current_device = getattr(torch._C, "_cuda_getDevice", None)
_current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
# What torch.compile's own code allocates with: torch.empty_strided past the dispatcher, on the current device.
_makers = {kind: getattr(torch._C._dynamo.guards, f"_empty_strided_{kind}", None) for kind in ("cpu", "cuda")}


def _places(*names):
    return {name: place for place, name in enumerate(names, 1)}


# Where tensors that are taken as they come stand in the keys of doors: of dense tensors, of packed sequences, of dense tensors beside
# softcap and the like, of caches.
OF_DENSE = _places("q", "k", "v")
OF_ROWS = _places("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "alibi_slopes", "sinks", "block_table",
                  "k_descale", "v_descale")
OF_LOGITS = _places("q", "k", "v", "alibi_slopes", "sinks")
OF_CACHES = _places("q", "k", "v", "seqused_k", "cache_batch_idx", "leftpad_k", "block_table", "alibi_slopes", "cu_seqlens_q", "k_descale",
                    "v_descale", "new_k", "new_v", "rotary_cos", "rotary_sin", "cu_seqlens_k_new", "rotary_seqlens")


def places_of(key, places):
    """Those of tensors that the key has."""
    return {name: place for name, place in places.items() if key[place] is not None}


def is_recorded():
    """Does a CUDA graph record here? Nothing of such calls is kept: their tensors have no values yet."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def keep(key, made, tensors):
    """tensors: places in the key of those that are taken as they come; a call with others is not kept."""
    if not is_recorded():
        _again.keep(key, made, list(tensors))


def launch(plan, places, o, lse, *, returns, steps=None, constants=None, prepare=None, prepared=()):
    """A plan's forward for keys in which tensors stand at these places, by the names of dfa::Sequences and dfa::Logits. o, lse: tensors like
    those that it makes. returns: "o", or a tuple's parts, l for lse, n for None: "(ol)", "(on)", "(oln)"; nothing makes an lse that is
    not among them. steps: strides by name, as _core.Launch has them. constants: tensors that are the same in each call, by name.
    prepare(*arguments of the key): called before the launch; the tensors of the names `prepared`, or None: the call is to be made in full."""
    constants, device = constants or {}, o.device
    workspace = _maker((plan.workspace_bytes,), (1,), torch.uint8, device) if plan.workspace_bytes else None
    return _core.Launch(plan, places, {name: x.data_ptr() for name, x in constants.items()}, steps or {}, _maker_of(o),
                        _maker_of(lse) if "l" in returns else None, workspace, returns, constants,
                        device.index if device.type == "cuda" else -1, _current_device, _current_stream, is_recorded if constants else None, prepare, list(prepared))


def given_back(o, lse, returns):
    """What `returns` of a launch says."""
    parts = tuple({"o": o, "l": lse, "n": None}[part] for part in returns.strip("()"))
    return parts if returns[0] == "(" else parts[0]


def _maker_of(tensor):
    return _maker(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _maker(shape, strides, dtype, device):
    make = _makers.get(device.type)
    if make is None:
        return torch.empty_strided, (shape, strides), {"dtype": dtype, "device": device}
    return make, (shape, strides, dtype), {}


def keep_dense(key, plan, places, outputs, returns):
    """Keeps the launch of a plan of dense tensors: places are those of q, k and v in the key, outputs as of launch()."""
    keep(key, launch(plan, places, *outputs, returns=returns), places.values())


def plan_of(key):
    """Of the launch that is kept for a key, or None."""
    return getattr(kept(key), "plan", None)


def clear():
    _again.clear()


def count():
    """How many calls are kept."""
    return len(_again)
