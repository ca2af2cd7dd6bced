"""PyTorch tensors: dfa.attention with autograd, past PyTorch's dispatcher where nobody looks on.

An eager call goes past the dispatcher, which costs more than all the rest of it: without autograd one that was made before is made again
by dfa._torch_again; else _core.Calls reads the tensors, finds the plan of those read before, allocates and launches. What is compiled, transformed, profiled or watched
(torch.compile, torch.func, dispatch modes, subclasses of tensors) takes the operators of dfa._torch_operators; tensors that no
kernel takes as they lie go through dfa._torch_inputs first.
"""

import sys
from functools import lru_cache

import torch
from torch.autograd import forward_ad
from torch.autograd import profiler as _profiler
from torch.compiler import is_compiling, is_dynamo_compiling

from dfa import _torch_inputs, _torch_operators
from dfa._shapes import check_differentiable, flag_of, scale_of, window_of
from dfa._torch_again import OF_DENSE, keep_dense, recall
from dfa._torch_calls import DTYPES, Unfit, calls_of

__all__ = ["DTYPES", "attention", "attention_by_operators", "attention_on"]

_transformed = torch._C._are_functorch_transforms_active
_watched = torch._C._len_torch_dispatch_stack
_overridden = torch._C._len_torch_function_stack
_is_traced = torch._C._is_tracing
_Transform = torch._C._functorch.TransformType
_any_autocast = torch._C._is_any_autocast_enabled
_is_grad_enabled = torch.is_grad_enabled
_deterministic = torch._C._get_deterministic_algorithms
_threads = torch.get_num_threads


PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def is_watched():
    """Is a mode active, of dispatch or of functions, a profiler, or torch.jit.trace?"""
    return bool(_watched() or _overridden() or _profiler._is_profiler_enabled or _is_traced())


def attention_on(types):
    """The function for tensors of these types: what a subclass means, its own dispatch knows."""
    if PLAIN.issuperset(types):
        return attention
    know_dtensor(types)
    return attention_by_operators


def know_dtensor(types):
    """Sharding rules are registered when the first DTensor comes. Is one among them?"""
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if dtensor is None or not any(issubclass(kind, dtensor) for kind in types):
        return False
    from dfa import _torch_dtensor  # noqa: F401
    return True


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    learns = _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if not (learns or is_dynamo_compiling()):
        key = "dense", q, k, v, causal, window, scale, return_lse, deterministic, algorithm
        outputs = recall(key)
        if outputs is not None:
            return outputs
    if (is_dynamo_compiling() or _transformed() or _watched() or _profiler._is_profiler_enabled or _is_traced()
            or forward_ad._current_level >= 0 or (scale is not None and isinstance(scale, torch.Tensor))):
        return attention_by_operators(q, k, v, causal, window, scale, return_lse, deterministic,
                                      algorithm)
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    # Plain values, since equal keys of a cache may differ: True is 1, and a tensor's number changes.
    if window is not None and not (type(window) is tuple and {*map(type, window)} == {int}):
        window = window_of(False, window)
    if scale is not None and type(scale) is not float:
        scale = scale_of(scale)
    if not (causal is True or causal is False):
        causal = flag_of("causal", causal)
    if deterministic is not True:
        deterministic = _deterministic() or (deterministic is not False and flag_of("deterministic", deterministic))
    call = _call(causal, window, scale, deterministic, algorithm, _threads())
    try:
        if learns:
            return _apply(q, k, v, call, return_lse)
        outputs = call[0].forward(q, k, v, return_lse)
        keep_dense(key, call[0].plan(q, k, v), OF_DENSE, outputs if return_lse else (outputs, None), "(ol)" if return_lse else "o")
        return outputs
    except Unfit:
        return attention_by_operators(q, k, v, causal, window, scale, return_lse, deterministic, algorithm)


def attention_by_operators(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if q.dtype == k.dtype == v.dtype == torch.float8_e4m3fn:
        from dfa._attention import _of_e4m3
        return _of_e4m3(q, k, v, return_lse, algorithm, (None,) * 3,
                        {"causal": causal, "window": window, "scale": scale, "deterministic": deterministic})
    if not is_compiling():
        _refuse_what_has_no_rule(q, k, v)
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    deterministic = bool(flag_of("deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())
    by_function = not is_compiling() and _transformed()
    operator = _torch_operators.Forward.apply if by_function else _torch_operators.forward
    sides = window_of(causal, window)

    def call(q, k, v, scale, return_lse):
        o, lse = operator(q, k, v, *sides, scale_of(scale), deterministic, algorithm)
        return (o, lse) if return_lse else o

    return _torch_inputs.attend(call, q, k, v, scale, return_lse)


def _refuse_what_has_no_rule(*tensors):
    if _is_traced():
        raise RuntimeError("torch.jit.trace cannot record dfa.attention; accepted: torch.export and torch.compile")
    if forward_ad._current_level >= 0 or _is_active(_Transform.Jvp):
        raise RuntimeError("forward-mode derivatives (jvp, jacfwd, hessian) of dfa.attention are not supported; accepted: "
                           "reverse mode (grad, vjp, jacrev)")
    if _is_active(_Transform.Functionalize):
        raise RuntimeError("torch.func.functionalize of dfa.attention is not supported; accepted: torch.export and "
                           "torch.compile, which functionalize it themselves")


def _is_active(transform):
    if not _transformed():
        return False
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == transform for level in stack)


def _autocast(*tensors):
    """As PyTorch's own attention: all but double precision takes the type of autocast."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor.to(dtype) if tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
                 for tensor in tensors)


@lru_cache(maxsize=1024)
def _call(causal, window, scale, deterministic, algorithm, threads):
    """(_core.Calls, the operators' options) of the arguments of dfa.attention."""
    options = (*window_of(causal, window), scale_of(scale), bool(deterministic), algorithm)
    return calls_of(*options, threads), options


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, call, return_lse):
        if q.dim() == 4:  # else the call says so
            check_differentiable(q.shape[3])
        o, lse = call[0].forward(q, k, v, True)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.call = call
        if not return_lse:  # an output less for autograd to look after
            return o
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, d_o, d_lse=None):
        calls, options = ctx.call
        # With create_graph the operator's own rule says that there is no second derivative.
        alone = not (is_dynamo_compiling() or _watched() or _is_grad_enabled() or _profiler._is_profiler_enabled)
        if alone and d_lse is None and d_o is not None:
            try:
                return *calls.backward(d_o, *ctx.saved_tensors), None, None
            except Unfit:  # d_o of is_grads_batched, or what a hook has kept in another layout
                pass
        operators = _torch_operators
        return *operators.gradients(operators.backward, d_o, d_lse, *ctx.saved_tensors, *options), None, None


# Function.apply without its care for torch.func, which does not come here.
_apply = super(torch.autograd.Function, _Attention).apply
