"""The operators dfa::forward and dfa::backward, and what PyTorch's transforms ask of them.

They take tensors as kernels do: [b, h, s, d] with d a multiple of 8. autograd and torch.func differentiate the forward
once; vmap folds what it maps over into the batch; a second derivative raises. torch.func does not take an operator's own rule
for derivatives, but functions: Forward and Backward are the operators once more.
"""

from functools import wraps

import torch
from torch.utils.flop_counter import register_flop_formula, sdpa_backward_flop_count, sdpa_flop_count

from dfa._shapes import MOST_WIDE, check_differentiable, sizes_of
from dfa._torch_calls import backward_of, calls_of, dense, empty_outputs, like

_library = torch.library.Library("dfa", "DEF")
_library.define("forward(Tensor q, Tensor k, Tensor v, int left, int right, float scale, "
                "bool deterministic, str algorithm) -> (Tensor, Tensor)")
_library.define("backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, int left, "
                "int right, float scale, bool deterministic, str algorithm) "
                "-> (Tensor, Tensor, Tensor)")
forward, backward = torch.ops.dfa.forward.default, torch.ops.dfa.backward.default


def _forward(q, k, v, *options):
    return calls_of(*options, torch.get_num_threads()).forward(q, k, v, True)


def _backward(d_o, q, k, v, o, lse, *options):
    return backward_of(calls_of(*options, torch.get_num_threads()), d_o, q, k, v, o, lse)


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)


@torch.library.register_fake("dfa::forward")
def _fake_forward(q, k, v, *options):
    sizes_of(q.shape, k.shape, v.shape)
    return empty_outputs(q, v)


@torch.library.register_fake("dfa::backward")
def _fake_backward(d_o, q, k, v, o, lse, *options):
    return like(q), like(k), like(v)


def _keep(ctx, inputs, output):
    q, k, v, *ctx.options = inputs
    check_differentiable(q.shape[3])
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, d_o, d_lse):
    return *gradients(backward, d_o, d_lse, *ctx.saved_tensors, *ctx.options), *(None,) * 5


def gradients(backward, d_o, d_lse, q, k, v, o, lse, *options):
    """dq, dk, dv by a backward of this module; d_o or d_lse may be None, 0. What lse adds to a score's gradient, P d_lse,
    comes by eight columns more of v, o and d_o, in which o · d_o, that is subtracted from each dP, is d_lse less. Two of
    them hold d_lse, the second what the element type rounds off."""
    if d_o is None:
        d_o = torch.zeros_like(o)
    if d_lse is None:
        return backward(d_o, q, k, v, o, lse, *options)
    dv = v.shape[3]
    if dv + 8 > MOST_WIDE:
        raise ValueError(f"the gradient of lse takes eight columns more than dv={dv}; accepted: dv up to {MOST_WIDE - 8}, or "
                         "lse.detach()")
    d_lse = torch.where(lse.isneginf(), 0, d_lse).unsqueeze(-1)
    high = d_lse.to(o.dtype)
    low = (d_lse - high.float()).to(o.dtype)
    ones = torch.ones_like(high)

    def widened(*columns):
        joined = torch.cat(columns, 3)
        return torch.nn.functional.pad(joined, (0, dv + 8 - joined.shape[3]))
    d_q, d_k, d_v = backward(widened(d_o, ones, ones), q, k, widened(v), widened(o, -high, -low), lse, *options)
    return d_q, d_k, d_v[..., :dv]


def _keep_nothing(ctx, inputs, output):
    pass


def _refuse_to_differentiate(ctx, *_):
    raise RuntimeError("the second derivative of dfa.attention is not supported; accepted: first derivatives (for "
                       "second ones use torch.nn.functional.scaled_dot_product_attention with its math backend)")


torch.library.register_autograd("dfa::forward", _differentiate, setup_context=_keep, lib=_library)
torch.library.register_autograd("dfa::backward", _refuse_to_differentiate, setup_context=_keep_nothing, lib=_library)


def once(backward):
    """backward(ctx, saved, *gradients) of an autograd.Function: what it computes has no second derivative, and says so.
    PyTorch's once_differentiable does where an incoming gradient requires one, and drops it in silence where a saved tensor does."""
    @wraps(backward)
    def refusing(ctx, *gradients):
        saved = ctx.saved_tensors
        with torch.no_grad():
            computed = backward(ctx, saved, *gradients)
        learned = [x for x in (*saved, *gradients) if x is not None and x.requires_grad]
        if not (torch.is_grad_enabled() and learned):
            return computed
        places = [place for place, x in enumerate(computed) if x is not None]
        connected = _Once.apply(len(places), *(computed[place] for place in places), *learned)
        return tuple(connected[places.index(place)] if place in places else None for place in range(len(computed)))
    return refusing


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, count, *tensors):
        return tuple(x.clone() for x in tensors[:count])

    backward = staticmethod(_refuse_to_differentiate)


class Backward(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(backward)
    setup_context = staticmethod(_keep_nothing)
    backward = staticmethod(_refuse_to_differentiate)


class Forward(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(forward)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, *ctx.options = inputs
        if any(ctx.needs_input_grad):
            check_differentiable(q.shape[3])
        ctx.save_for_backward(q, k, v, *output)
        ctx.set_materialize_grads(False)  # a transform asks for any output's derivative: None where it does not

    @staticmethod
    def backward(ctx, d_o, d_lse):
        return *gradients(Backward.apply, d_o, d_lse, *ctx.saved_tensors, *ctx.options), *(None,) * 5


def _folded(info, dims, tensors):
    """Each tensor with the mapped dimension in front of its batch, as one: [n, b, …] as [n · b, …]."""
    for dim, tensor in zip(dims, tensors):
        mapped = tensor.unsqueeze(0).expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        yield mapped.flatten(0, 1)


def _mapped(info, outputs):
    return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


@torch.library.register_vmap("dfa::forward", lib=_library)
def _map_forward(info, dims, q, k, v, *options):
    return _mapped(info, forward(*map(dense, _folded(info, dims, (q, k, v))), *options))


@torch.library.register_vmap("dfa::backward", lib=_library)
def _map_backward(info, dims, d_o, q, k, v, o, lse, *options):
    d_o, q, k, v, o, lse = _folded(info, dims, (d_o, q, k, v, o, lse))
    return _mapped(info, backward(d_o, *map(dense, (q, k, v)), o, lse, *options))


@register_flop_formula(torch.ops.dfa.forward)
def _forward_flops(q, k, v, *_, **__):
    """As PyTorch counts its own attention: every query with every key, whatever a mask hides."""
    return sdpa_flop_count(q, *_spread(q, k, v))


@register_flop_formula(torch.ops.dfa.backward)
def _backward_flops(d_o, q, k, v, *_, **__):
    return sdpa_backward_flop_count(d_o, q, *_spread(q, k, v))


def _spread(q, k, v):
    """Shapes of k and v with a head for each head of q."""
    return [(shape[0], q[1], *shape[2:]) for shape in (k, v)]
