"""PyTorch tensors: the operators dfa::forward and dfa::backward, and autograd around them."""

import torch

from dfa._plan import plan_of
from dfa._shapes import dense_strides, rows_before_heads, sizes_of, strides_of, window_of

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}

_library = torch.library.Library("dfa", "DEF")
_library.define("forward(Tensor q, Tensor k, Tensor v, int left, int right, float scale, "
                "bool deterministic, str algorithm) -> (Tensor, Tensor)")
_library.define("backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, int left, "
                "int right, float scale, bool deterministic, str algorithm) "
                "-> (Tensor, Tensor, Tensor)")


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    _check_devices(q, k, v)
    q, k, v = _autocast(q, k, v)
    _check_types(q, k, v)
    left, right = window_of(causal, window)
    options = (left, right, scale or 0.0, deterministic, algorithm)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        o, lse = _Attention.apply(q, k, v, *options)
    elif torch.compiler.is_compiling():
        o, lse = torch.ops.dfa.forward(q, k, v, *options)
    else:
        o, lse = _forward(q, k, v, *options)
    return (o, lse) if return_lse else o


def _autocast(*tensors):
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors)


def _check_devices(q, k, v):
    devices = [q.device, k.device, v.device]
    if len(set(devices)) > 1:
        raise ValueError(f"q, k, v are on {', '.join(map(str, devices))}; one device is expected")
    if q.device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {q.device}; accepted: cpu, cuda")


def _check_types(q, k, v):
    types = [q.dtype, k.dtype, v.dtype]
    if len(set(types)) > 1:
        raise ValueError(f"q, k, v have element types {', '.join(map(str, types))}; one for all is "
                         "expected")
    if q.dtype not in DTYPES:
        raise ValueError(f"element type {q.dtype}; accepted: {', '.join(map(str, DTYPES))}")


def _output(q, k, v):
    """An empty o, laid out in memory as q is."""
    sizes_of(q.shape, k.shape, v.shape)
    b, hq, sq, _ = q.shape
    if rows_before_heads(q.shape, q.stride()):
        return q.new_empty(b, sq, hq, v.shape[3]).transpose(1, 2)
    return q.new_empty(b, hq, sq, v.shape[3])


def _plan(passes, q, k, v, o, left, right, scale, deterministic, algorithm):
    strides = tuple(strides_of(name, tensor.shape, tensor.stride())
                    for name, tensor in (("q", q), ("k", k), ("v", v), ("o", o)))
    return plan_of(passes, DTYPES[q.dtype], sizes_of(q.shape, k.shape, v.shape), (left, right), scale,
                   deterministic, strides, q.device.type, algorithm)


def _workspace(plan, q):
    """A tensor, which must outlive the call, and its address."""
    if plan.workspace_bytes == 0:
        return None, 0
    memory = q.new_empty(plan.workspace_bytes, dtype=torch.uint8)
    return memory, memory.data_ptr()


def _stream(q):
    return torch._C._cuda_getCurrentRawStream(q.device.index) if q.is_cuda else 0


def _forward(q, k, v, left, right, scale, deterministic, algorithm):
    o = _output(q, k, v)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    plan = _plan("fwd", q, k, v, o, left, right, scale, deterministic, algorithm)
    memory, workspace = _workspace(plan, q)
    plan._forward(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), lse.data_ptr(), workspace,
                  _stream(q))
    return o, lse


def _backward(d_o, q, k, v, o, lse, left, right, scale, deterministic, algorithm):
    if d_o.stride() != o.stride():
        d_o = torch.empty_like(o).copy_(d_o)
    dq, dk, dv = (_like(tensor) for tensor in (q, k, v))
    plan = _plan("bwd", q, k, v, o, left, right, scale, deterministic, algorithm)
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
    return _output(q, k, v), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("dfa::backward")
def _fake_backward(d_o, q, k, v, o, lse, left, right, scale, deterministic, algorithm):
    return _like(q), _like(k), _like(v)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, *options):
        return torch.ops.dfa.forward(q, k, v, *options)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:3], *output)
        ctx.options = inputs[3:]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o, _):
        q, k, v, o, lse = ctx.saved_tensors
        gradients = torch.ops.dfa.backward(d_o, q, k, v, o, lse, *ctx.options)
        return *gradients, *(None for _ in ctx.options)
