"""dfa.attention of PyTorch's tensors in float8_e4m3fn: a forward alone, o in bfloat16, with a factor for each batch and key head.

The operator dfa::e4m3_forward takes tensors as kernels do; torch.compile and torch.export know of it, autograd and torch.func do not.
"""

import os

import torch

from torch.utils.flop_counter import register_flop_formula, sdpa_flop_count

from dfa._descales import check_descale_shape, descale_number, descale_rows_of, descale_sizes, refuse_others
from dfa._logits import slopes_of_batch
from dfa._plan import plan_of
from dfa._shapes import (flag_of, nothing_to_read, padded_width, positions_of, scale_at_width, scale_of,
                         shown, sizes_of, strides_of, window_of)
from dfa._torch import _refuse_what_has_no_rule, know_dtensor
from dfa._torch_calls import empty_outputs, fits, planned_strides
from dfa._torch_inputs import check_kind
from dfa._torch_operators import _spread
from dfa._torch_quantize import E4M3
from dfa._torch_undifferentiated import OF_E4M3, detached, learned_of, undifferentiated
from dfa._torch_checks import logits_of
from dfa._torch_varlen import _On, _pointer


_library = torch.library.Library("dfa", "FRAGMENT")
_library.define("e4m3_forward(Tensor q, Tensor k, Tensor v, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, "
                "Tensor? alibi_slopes, Tensor? sinks, int left, int right, float scale, float softcap, int chunk, int prefix, int descale_rows=0) "
                "-> (Tensor, Tensor)")


def attention(q, k, v, return_lse, descales, *, causal=False, window=None, scale=None, deterministic=False, softcap=None,
              alibi_slopes=None, sinks=None, chunk=None, prefix=None, dropout_p=0.0, descale_rows=None, **others):
    """As dfa.attention. descales: of q, k and v, each None, a number or float32 [b, hk] with 1 where it is one for all, and with
    descale_rows [b, hk, blocks of so many rows]."""
    refuse_others("tensors", dropout_p, others)
    check_e4m3(q, k, v, dims=4, expected="batch, heads, sequence, head dim")
    if not torch.compiler.is_compiling():
        _refuse_what_has_no_rule(q, k, v)
    if learned := learned_of(q, k, v, sinks):
        q, k, v, sinks = detached(q, k, v, sinks)
    flag_of("deterministic", deterministic)
    if isinstance(scale, torch.Tensor):
        raise ValueError("scale is a tensor; accepted beside float8_e4m3fn: a number, or None for 1 / sqrt(d)")
    q, k, v, dv, scale = _fitting(q, k, v, scale_of(scale))
    sizes = sizes_of(q.shape, k.shape, v.shape)
    b, hq, hk, sq, sk, *_ = sizes
    descale_rows = descale_rows_of(descale_rows)
    factors = [descale_of(f"{name}_descale", given, descale_sizes(b, hk, rows, descale_rows), q.device)
               for name, given, rows in zip("qkv", descales, (sq, sk, sk))]
    slopes, sinks, softcap = logits_of(alibi_slopes, sinks, softcap, q.device, b, hq)
    sides = window_of(causal, window)
    positions = positions_of(sides, chunk, prefix)
    if nothing_to_read(sizes):
        o, lse = _of_nothing(q, dv, sinks)
    else:
        o, lse = torch.ops.dfa.e4m3_forward(q, k, v, *factors, slopes, sinks, *sides, scale, softcap, *positions, descale_rows)
        o = o[..., :dv] if o.shape[3] != dv else o
    if learned:
        o, lse = undifferentiated(o, lse, learned, OF_E4M3)
    return (o, lse) if return_lse else o


def descale_of(name, given, sizes, device):
    """float32 of these sizes, b, hk and, of blocks of rows, their number, of strides 0 where it is one for all; None for none."""
    if given is None:
        return None
    given = descale_number(name, given)
    if isinstance(given, float):
        return torch.full((), given, dtype=torch.float32, device=device).expand(sizes)
    if not isinstance(given, torch.Tensor) or not given.is_floating_point() or given.layout != torch.strided:
        kind = given.dtype if isinstance(given, torch.Tensor) else shown(given)
        raise TypeError(f"{name} is {kind}; accepted: a number or a float32 tensor [b, hk]")
    if given.device != device:
        raise ValueError(f"{name} is on {given.device}, q on {device}; one device is expected")
    if learned_of(given):
        raise ValueError(f"{name} requires a gradient, which float8_e4m3fn has none of; accepted: {name}.detach()")
    check_descale_shape(name, given.shape, *sizes)
    given = given.float()
    return (given[..., None] if 0 < given.dim() < len(sizes) else given).expand(sizes)


def check_e4m3(*tensors, dims, expected):
    """q, k and v: plain tensors of one device, all in float8_e4m3fn, of so many dimensions, which `expected` names."""
    if len({x.dtype for x in tensors}) > 1:
        raise ValueError(f"q, k, v have element types {', '.join(str(x.dtype) for x in tensors)}; one for all is expected")
    if tensors[0].dtype != E4M3:
        raise ValueError(f"element type {tensors[0].dtype} with q_descale, k_descale, v_descale or descale_rows; accepted: {E4M3}")
    if len({x.device for x in tensors}) > 1:
        raise ValueError(f"q, k, v are on {', '.join(str(x.device) for x in tensors)}; one device is expected")
    for name, x in zip("qkv", tensors):
        check_kind(name, x)
        if know_dtensor((type(x),)):
            raise ValueError(f"{name} is a {type(x).__qualname__} in float8_e4m3fn; accepted: its part on this rank, to_local()")
        if x.dim() != dims:
            raise ValueError(f"{name} has {x.dim()} dimensions; {dims} are expected: {expected}")


def _fitting(q, k, v, scale):
    """q, k, v as kernels take them, the head dim of o, and the scale."""
    batches = [x.shape[0] for x in (q, k, v)]
    b = max(batches) if 0 not in batches else 0
    q, k, v = (x.expand(b, -1, -1, -1) if x.shape[0] in (1, b) else x for x in (q, k, v))
    *_, d, dv = sizes_of(q.shape, k.shape, v.shape)
    scale = scale_at_width(scale, d)
    q, k, v = map(_padded, (q, k, v))
    if not fits(q, k, v, written=False) or q.is_cuda:
        q, k, v = (x if fits(x, x, x, written=False) and _steps(x) else x.contiguous() for x in (q, k, v))
    return q, k, v, dv, scale


def _steps(x):
    """Can a GPU's copy engine step along this tensor? A processor goes anywhere."""
    return not x.is_cuda or all(size == 1 or stride % 16 == 0 for size, stride in zip(x.shape[:3], x.stride()))


def _padded(x):
    """As bytes: PyTorch pads no numbers of 8 bits, and the byte 0 is 0. A GPU's copy engine takes rows of 16 bytes."""
    width = padded_width(x.shape[-1])
    missing = (-(-width // 16) * 16 if x.is_cuda else width) - x.shape[-1]
    return torch.nn.functional.pad(x.view(torch.uint8), (0, missing)).view(E4M3) if missing else x


def _of_nothing(q, dv, sinks):
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    o = torch.zeros((*q.shape[:3], dv), dtype=torch.bfloat16, device=q.device)
    return o, lse if sinks is None else sinks[:, None].expand(q.shape[:3]).contiguous()


def descale_pointers(*factors):
    """As plans take them: pointers and strides of batch, head and block of rows."""
    return [(0, 0, 0, 0) if x is None else (x.data_ptr(), *x.stride(), *(0,) * (3 - x.dim())) for x in factors]


def _forward(q, k, v, q_descale, k_descale, v_descale, alibi_slopes, sinks, left, right, scale, softcap, chunk, prefix, descale_rows=0):
    threads = torch.get_num_threads() if q.device.type == "cpu" and not os.environ.get("DFA_THREADS") else 0
    with _On(q) as stream:
        plan = plan_of("fwd", "e4m3", sizes_of(q.shape, k.shape, v.shape), (left, right), scale, False, planned_strides(q, k, v), q.device.type, "auto", threads, (0, 0),
                       (softcap, alibi_slopes is not None, sinks is not None, ""), 0, (chunk, prefix), descale_rows=descale_rows)
        o, lse = empty_outputs(q, v, torch.bfloat16)
        workspace = q.new_empty(plan.workspace_bytes, dtype=torch.uint8)
        plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse)), workspace.data_ptr(), stream, descales=descale_pointers(q_descale, k_descale, v_descale),
                      logits=(_pointer(alibi_slopes), slopes_of_batch(alibi_slopes, q.shape[1]), _pointer(sinks), 0, (0, 0, 0)))
    return o, lse


for _device in ("CPU", "CUDA"):
    _library.impl("e4m3_forward", _forward, _device)


@torch.library.register_fake("dfa::e4m3_forward")
def _fake_forward(q, k, v, *rest):
    sizes_of(q.shape, k.shape, v.shape)
    return empty_outputs(q, v, torch.bfloat16)


@register_flop_formula(torch.ops.dfa.e4m3_forward)
def _forward_flops(q, k, v, *_, **__):
    return sdpa_flop_count(q, *_spread(q, k, v))
