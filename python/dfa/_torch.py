"""PyTorch tensors: the operators dfa::forward and dfa::backward, and autograd around them.

An eager call goes past PyTorch's dispatcher, which costs more than all the rest of it: _core.Calls reads
the tensors, finds the plan of those read before, allocates and launches. What is traced, transformed or
watched (torch.compile, torch.func, dispatch modes, subclasses of tensors) takes the operators.
"""

from functools import lru_cache, partial

import torch
from torch.compiler import is_compiling

from dfa import _core
from dfa._plan import plan_of
from dfa._shapes import dense_strides, rows_before_heads, scale_of, sizes_of, strides_of, window_of

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

_library = torch.library.Library("dfa", "DEF")
_library.define("forward(Tensor q, Tensor k, Tensor v, int left, int right, float scale, "
                "bool deterministic, str algorithm) -> (Tensor, Tensor)")
_library.define("backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, int left, "
                "int right, float scale, bool deterministic, str algorithm) "
                "-> (Tensor, Tensor, Tensor)")


_transformed = torch._C._are_functorch_transforms_active
_watched = torch._C._len_torch_dispatch_stack
_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled


def attention_on(types):
    """The function for tensors of these types: what a subclass means, its own dispatch knows."""
    plain = set(types) <= {torch.Tensor, torch.nn.Parameter}
    return attention if plain else attention_by_operators


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if is_compiling() or _transformed() or _watched():
        return attention_by_operators(q, k, v, causal, window, scale, return_lse, deterministic,
                                      algorithm)
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    if isinstance(window, list):
        window = tuple(window)
    if scale is not None:
        scale = float(scale)
    call = _call(causal, window, scale, deterministic, algorithm)
    if _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _apply(q, k, v, call, return_lse)
    return call[0].forward(q, k, v, return_lse)


def attention_by_operators(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    options = (*window_of(causal, window), scale_of(scale), deterministic, algorithm)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        o, lse = _Operators.apply(q, k, v, options)
    else:
        o, lse = torch.ops.dfa.forward(q, k, v, *options)
    return (o, lse) if return_lse else o


def _autocast(*tensors):
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors)


@lru_cache(maxsize=1024)
def _call(causal, window, scale, deterministic, algorithm):
    """(_core.Calls, the operators' options) of the arguments of dfa.attention."""
    options = (*window_of(causal, window), scale_of(scale), deterministic, algorithm)
    return _calls(*options), options


@lru_cache(maxsize=1024)
def _calls(*options):
    return _core.Calls(_table, _fields, _stream, partial(_prepare, options), _with_strides_of)


_table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # from PyTorch 2.10 on
_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # where PyTorch has CUDA


def _fields(tensor):
    """What DLPack's functions tell of a tensor, for a PyTorch or a device that they do not know."""
    device = tensor.device
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), list(DTYPES).index(tensor.dtype)
            if tensor.dtype in DTYPES else -1, {"cpu": 1, "cuda": 2}.get(device.type, 0),
            device.index or 0)


def _prepare(options, passes, q, k, v):
    """What calls with tensors like these have in common: _core.Calls asks once."""
    types, devices = (q.dtype, k.dtype, v.dtype), (q.device, k.device, v.device)
    shapes, strides = (q.shape, k.shape, v.shape), (q.stride(), k.stride(), v.stride())
    sizes = sizes_of(*shapes)
    _check(types, devices)
    turned = rows_before_heads(q.shape, q.stride())
    left, right, scale, deterministic, algorithm = options
    planned = tuple(map(strides_of, "qkv", shapes, strides))
    o_strides = dense_strides((*q.shape[:3], v.shape[3]), turned)
    plan = plan_of(passes, DTYPES[q.dtype], sizes, (left, right), scale, deterministic,
                   (*planned, o_strides), q.device.type, algorithm)
    outputs = _empty_outputs(q, k, v, *options) if passes == "fwd" else map(_like, (q, k, v))
    workspace = None
    if plan.workspace_bytes:
        workspace = _maker(q.new_empty(plan.workspace_bytes, dtype=torch.uint8))
    return plan, [_maker(output) for output in outputs], workspace


def _maker(tensor):
    """(make, like): make(like) is a tensor like this one; `like` itself gives its memory back."""
    tensor.untyped_storage().resize_(0)
    dense = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return torch.empty_like if dense else _like, tensor


def _with_strides_of(tensor, like):
    return torch.empty_like(like).copy_(tensor)


def _check(types, devices):
    if len(set(devices)) > 1:
        raise ValueError(f"q, k, v are on {', '.join(map(str, devices))}; one device is expected")
    if devices[0].type not in ("cpu", "cuda"):
        raise ValueError(f"device {devices[0]}; accepted: cpu, cuda")
    if len(set(types)) > 1:
        raise ValueError(f"q, k, v have element types {', '.join(map(str, types))}; one for all is "
                         "expected")
    if types[0] not in DTYPES:
        raise ValueError(f"element type {types[0]}; accepted: {', '.join(map(str, DTYPES))}")


def _o_shape(q, v, turned):
    b, hq, sq, _ = q
    return (b, sq, hq, v[3]) if turned else (b, hq, sq, v[3])


def _like(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                               device=tensor.device)


def _forward(q, k, v, *options):
    return _calls(*options).forward(q, k, v, True)


def _backward(d_o, q, k, v, o, lse, *options):
    return _calls(*options).backward(d_o, q, k, v, o, lse)


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)


@torch.library.register_fake("dfa::forward")
def _empty_outputs(q, k, v, left, right, scale, deterministic, algorithm):
    sizes_of(q.shape, k.shape, v.shape)
    turned = rows_before_heads(q.shape, q.stride())
    o = q.new_empty(_o_shape(q.shape, v.shape, turned))
    return o.transpose(1, 2) if turned else o, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("dfa::backward")
def _empty_gradients(d_o, q, k, v, o, lse, left, right, scale, deterministic, algorithm):
    return _like(q), _like(k), _like(v)


class _Operators(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, options):
        o, lse = torch.ops.dfa.forward(q, k, v, *options)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, _):
        return *torch.ops.dfa.backward(d_o, *ctx.saved_tensors, *ctx.options), None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, call, return_lse):
        o, lse = call[0].forward(q, k, v, True)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = call
        if not return_lse:  # an output less for autograd to look after
            return o
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, *_):
        calls, options = ctx.call
        if is_compiling() or _watched():
            return *torch.ops.dfa.backward(d_o, *ctx.saved_tensors, *options), None, None
        return *calls.backward(d_o, *ctx.saved_tensors), None, None


# Function.apply without its care for torch.func, which does not come here.
_apply = super(torch.autograd.Function, _Attention).apply
