"""PyTorch tensors: the operators dfa::forward and dfa::backward, and autograd around them."""

from functools import lru_cache
from typing import NamedTuple

import torch

from dfa._plan import plan_of
from dfa._shapes import dense_strides, rows_before_heads, scale_of, sizes_of, strides_of, window_of

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

_library = torch.library.Library("dfa", "DEF")
_library.define("forward(Tensor q, Tensor k, Tensor v, int left, int right, float scale, "
                "bool deterministic, str algorithm) -> (Tensor, Tensor)")
_library.define("backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, int left, "
                "int right, float scale, bool deterministic, str algorithm) "
                "-> (Tensor, Tensor, Tensor)")


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if torch._C._is_any_autocast_enabled():
        q, k, v = _autocast(q, k, v)
    left, right = window_of(causal, window)
    options = (left, right, scale_of(scale), deterministic, algorithm)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        o, lse = _Attention.apply(q, k, v, options)
    else:
        o, lse = _attention(q, k, v, options, return_lse)
    return (o, lse) if return_lse else o


def _attention(q, k, v, options, with_lse):
    """The operator is for compilers; it costs more than the call itself."""
    if torch.compiler.is_compiling():
        return torch.ops.dfa.forward(q, k, v, *options)
    return _run_forward(q, k, v, options, with_lse)


def _autocast(*tensors):
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors)


class _Call(NamedTuple):
    """What calls with tensors of one shape have in common."""
    plan: object
    like_q: bool  # o has the shape and the dense memory of q
    turned: bool  # memory of o as [b, s, h, d]
    o_shape: tuple  # in memory


@lru_cache(maxsize=1024)
def _call(passes, options, q, k, v, q_strides, k_strides, v_strides, *types_devices):
    shapes, strides = (q, k, v), (q_strides, k_strides, v_strides)
    types, devices = types_devices[:3], types_devices[3:]
    sizes = sizes_of(*shapes)
    _check(types, devices)
    turned = rows_before_heads(q, q_strides)
    o_shape = _o_shape(q, v, turned)
    left, right, scale, deterministic, algorithm = options
    planned = tuple(map(strides_of, "qkv", shapes, strides))
    o_strides = dense_strides((*q[:3], v[3]), turned)
    like_q = q[3] == v[3] and q_strides == (*o_strides, 1)
    plan = plan_of(passes, DTYPES[types[0]], sizes, (left, right), scale, deterministic,
                   (*planned, o_strides), devices[0].type, algorithm)
    return _Call(plan, like_q, turned, o_shape)


def _call_of(passes, q, k, v, options):
    return _call(passes, options, q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(),
                 q.dtype, k.dtype, v.dtype, q.device, k.device, v.device)


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


def _workspace(plan, q):
    """A tensor, which must outlive the call, and its address."""
    if plan.workspace_bytes == 0:
        return None, 0
    memory = q.new_empty(plan.workspace_bytes, dtype=torch.uint8)
    return memory, memory.data_ptr()


def _stream(q):
    return torch._C._cuda_getCurrentRawStream(q.device.index) if q.is_cuda else 0


def _run_forward(q, k, v, options, with_lse):
    plan, like_q, turned, o_shape = _call_of("fwd", q, k, v, options)
    if like_q:
        o = torch.empty_like(q)
    else:
        o = q.new_empty(o_shape)
        o = o.transpose(1, 2) if turned else o
    lse = q.new_empty(q.shape[:3], dtype=torch.float32) if with_lse else None
    memory, workspace = _workspace(plan, q)
    plan._forward(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(),
                  lse.data_ptr() if with_lse else 0, workspace, _stream(q))
    return o, lse


def _forward(q, k, v, *options):
    return _run_forward(q, k, v, options, True)


def _backward(d_o, q, k, v, o, lse, *options):
    plan = _call_of("bwd", q, k, v, options).plan
    if d_o.stride() != o.stride():
        d_o = torch.empty_like(o).copy_(d_o)
    dq, dk, dv = (_like(tensor) for tensor in (q, k, v))
    memory, workspace = _workspace(plan, q)
    plan._backward(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(),
                   d_o.data_ptr(), dq.data_ptr(), dk.data_ptr(), dv.data_ptr(), workspace, _stream(q))
    return dq, dk, dv


def _like(tensor):
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                               device=tensor.device)


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)


@torch.library.register_fake("dfa::forward")
def _fake_forward(q, k, v, left, right, scale, deterministic, algorithm):
    sizes_of(q.shape, k.shape, v.shape)
    turned = rows_before_heads(q.shape, q.stride())
    o = q.new_empty(_o_shape(q.shape, v.shape, turned))
    return o.transpose(1, 2) if turned else o, q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("dfa::backward")
def _fake_backward(d_o, q, k, v, o, lse, left, right, scale, deterministic, algorithm):
    return _like(q), _like(k), _like(v)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, options):
        o, lse = _attention(q, k, v, options, True)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, _):
        run = torch.ops.dfa.backward if torch.compiler.is_compiling() else _backward
        return *run(d_o, *ctx.saved_tensors, *ctx.options), None
