"""Calls on PyTorch's tensors: what they have in common is planned once and kept in _core.Calls."""

import os
from functools import lru_cache, partial

import torch

from dfa import _core
from dfa._plan import plan_of
from dfa._shapes import dense_strides, lies_apart, rows_before_heads, sizes_of, strides_of

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Unfit(ValueError):
    """The tensors are none that a kernel takes as they lie; dfa._torch_inputs makes them so."""

    def __init__(self):
        super().__init__("dfa::forward and dfa::backward take tensors as kernels do: of one batch, no size of 0, head dims "
                         "of multiples of 8, the last dimension contiguous, no element twice; dfa.attention takes others")


@lru_cache(maxsize=1024)
def calls_of(left, right, scale, deterministic, algorithm, threads):
    options = left, right, scale, deterministic, algorithm
    return _core.Calls(_table, _fields, _stream, partial(prepare, options, threads), _with_strides_of)


_table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # from PyTorch 2.10 on
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # where PyTorch has CUDA


def _fields(tensor):
    """What DLPack's functions tell of a tensor, for a PyTorch or a device that they do not know."""
    device = tensor.device
    _check_device(device)
    if tensor.layout != torch.strided or not torch._C._has_storage(tensor) or tensor.is_neg():
        raise Unfit
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), list(DTYPES).index(tensor.dtype)
            if tensor.dtype in DTYPES else -1, {"cpu": 1, "cuda": 2}.get(device.type, 0),
            device.index or 0)


def prepare(options, threads, passes, q, k, v):
    """What calls with tensors like these have in common: _core.Calls asks once."""
    types, devices = (q.dtype, k.dtype, v.dtype), (q.device, k.device, v.device)
    _check(types, devices)
    if not fits(q, k, v, written=passes == "bwd"):
        raise Unfit
    sizes = sizes_of(q.shape, k.shape, v.shape)
    left, right, scale, deterministic, algorithm = options
    plan = plan_of(passes, DTYPES[q.dtype], sizes, (left, right), scale, deterministic, planned_strides(q, k, v), q.device.type, algorithm, threads if q.device.type == "cpu" and not os.environ.get("DFA_THREADS") else 0)
    outputs = empty_outputs(q, v)
    if passes == "bwd":
        outputs = (*map(like, (q, k, v)), *outputs)  # the last two as the forward made them, to compare with
    workspace = None
    if plan.workspace_bytes:
        workspace = _maker(q.new_empty(plan.workspace_bytes, dtype=torch.uint8))
    return plan, [_maker(output) for output in outputs], workspace


def backward_of(calls, d_o, q, k, v, o, lse):
    """The gradients, also of tensors that a hook of autograd has kept in a layout that no kernel reads."""
    try:
        return calls.backward(d_o, q, k, v, o, lse)
    except Unfit:
        return calls.backward(d_o, q.contiguous(), k.contiguous(), v.contiguous(), o, lse)


def fits(q, k, v, written=True):
    """Do kernels take these as they lie? Where gradients are written, which lie alike, no element may be there twice.
    Shapes that do not belong together are not asked for here."""
    if not q.dim() == k.dim() == v.dim() == 4 or not q.shape[0] == k.shape[0] == v.shape[0]:
        return False
    if q.shape[3] % 8 or v.shape[3] % 8 or any(size == 0 for tensor in (q, k, v) for size in tensor.shape):
        return False
    return all(lies_apart(tensor.shape, tensor.stride()) or not written and _readable(tensor) for tensor in (q, k, v))


def _readable(tensor):
    """Rows that are dense and do not overlap; batches and heads may."""
    (b, h, s, d), (batch, head, row, column) = tensor.shape, tensor.stride()
    return column == 1 and (s == 1 or row >= d) and (b == 1 or batch > 0) and (h == 1 or head > 0)


def dense(tensor):
    """The tensor where it lies as kernels read and write it, else a copy."""
    return tensor if lies_apart(tensor.shape, tensor.stride()) else tensor.contiguous()


def _maker(tensor):
    """(make, like): make(like) is a tensor like this one; `like` itself gives its memory back."""
    tensor.untyped_storage().resize_(0)
    dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return torch.empty_like if dense else like, tensor


def _with_strides_of(tensor, other):
    return torch.empty_like(other).copy_(tensor)


def _check(types, devices):
    if len(set(devices)) > 1:
        raise ValueError(f"q, k, v are on {', '.join(map(str, devices))}; one device is expected")
    _check_device(devices[0])
    if len(set(types)) > 1:
        raise ValueError(f"q, k, v have element types {', '.join(map(str, types))}; one for all is "
                         "expected")
    if types[0] == torch.float8_e4m3fn:
        raise Unfit  # which dfa._torch_e4m3 takes
    if types[0] not in DTYPES:
        raise ValueError(f"element type {types[0]}; accepted: {', '.join(map(str, DTYPES))}")


def _check_device(device):
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {device}; accepted: cpu, cuda")


def planned_strides(q, k, v):
    """Of q, k, v and of o as empty_outputs() lays it out."""
    of_o = dense_strides((*q.shape[:3], v.shape[3]), rows_before_heads(q.shape, q.stride()))
    return *(strides_of(name, x.shape, x.stride()) for name, x in zip("qkv", (q, k, v))), of_o


def empty_outputs(q, v, dtype=None):
    """o, laid out in memory as q is and of its type unless another is given, and lse."""
    turned = rows_before_heads(q.shape, q.stride())
    b, hq, sq, _ = q.shape
    o = q.new_empty((b, sq, hq, v.shape[3]) if turned else (b, hq, sq, v.shape[3]), dtype=dtype)
    return o.transpose(1, 2) if turned else o, q.new_empty(q.shape[:3], dtype=torch.float32)


def laid_as_output(x, q):
    """As empty_outputs() lays o out, which the plan says."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if rows_before_heads(q.shape, q.stride()) else x.contiguous()


def like(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                               device=tensor.device)
