"""Keys and values in pages of a cache: dfa.attention_varlen with block_table, and the operator dfa::paged_forward.

A dense cache [b, s, hk, d] is one whose pages are its batches: flash_attn_with_kvcache comes here as well (_torch_kvcache).
"""

import os
from operator import is_

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import register_flop_formula

from dfa import _torch_again
from dfa._torch_again import OF_ROWS, given_back, places_of
from dfa._logits import slopes_of_batch
from dfa._plan import plan_of
from dfa._shapes import check_dims, padded_width, scale_at_width, scale_of, window_of
from dfa._torch import DTYPES, _autocast, _any_autocast, _refuse_what_has_no_rule, _transformed
from dfa._torch_undifferentiated import OF_CACHE, detached, learned_of, undifferentiated
from dfa._torch_e4m3 import E4M3, _padded as padded_e4m3, descale_of, descale_pointers
from dfa._torch_scale import scaled
from dfa._torch_checks import check_integers, check_most, check_operands, known_most, logits_of, whole
from dfa._torch_varlen import _empty_outputs, _fitting, _library, _longest, _On, _pointer, as_given, most_rows, strides_of_rows

_library.define("paged_forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? seqused_q, Tensor seqused_k, "
                "Tensor block_table, Tensor? leftpad_k, int left, int right, float scale, Tensor? alibi_slopes=None, "
                "Tensor? sinks=None, float softcap=0.0, SymInt most_q=0, int num_splits=0, bool batch_invariant=False, "
                "Tensor? k_descale=None, Tensor? v_descale=None) -> (Tensor, Tensor)")
_STEP = 256  # keys: plans of a processor are for the next multiple, so that a sequence that grows needs few


def attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, block_table, *, key,
              returns, **options):
    """dfa.attention_varlen's, with a block_table. key, returns: as of in_full there."""
    for name, tensor in (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("block_table", block_table)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__qualname__}; accepted: a tensor")
    if seqused_k is None and cu_seqlens_k is None:
        raise ValueError("seqused_k is None; accepted with block_table: how many keys each sequence has, or cu_seqlens_k")
    b = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q.dim() == 1 else -1
    check_integers(q.device, cu_seqlens_q=(cu_seqlens_q, (b + 1,)), cu_seqlens_k=(cu_seqlens_k, (b + 1,)))
    on_cpu = q.device.type == "cpu"
    known = on_cpu and not torch.compiler.is_compiling() and type(cu_seqlens_q) is not FakeTensor and not _transformed()
    if known:
        _check_steps(cu_seqlens_k, seqused_k, k, block_table)
    if seqused_k is None:
        seqused_k = cu_seqlens_k.diff()
    if known:
        check_most(cu_seqlens_q, max_seqlen_q, "max_seqlen_q")
        _check_most_used(seqused_k, max_seqlen_k)
    most = known_most("max_seqlen_q", max_seqlen_q)

    def keep(plan, forward, outputs, steps):
        if not on_cpu and cu_seqlens_k is not None:  # the steps are made anew for each call
            return
        if not on_cpu:
            places = places_of(key, OF_ROWS)
            made = _torch_again.launch(plan, places, *outputs, returns=returns, steps=steps)
            _torch_again.keep(key, made, places.values())
            return

        def call(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, slopes, sinks, block_table, *_):
            _check_steps(cu_seqlens_k, seqused_k, k, block_table)
            if seqused_k is None:
                seqused_k = cu_seqlens_k.diff()
            check_most(cu_seqlens_q, max_seqlen_q, "max_seqlen_q")
            _check_most_used(seqused_k, max_seqlen_k)
            return given_back(*forward(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, slopes, sinks), returns)
        _torch_again.keep(key, call, OF_ROWS.values())
    return attend(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, None, most_q=most, keep=None if key is None else keep, **options)


def _check_steps(cu_seqlens_k, seqused_k, k, block_table):
    """Of a cache, whose kernels do not read cu_seqlens_k: where seqused_k is None its steps are the keys."""
    if cu_seqlens_k is None or cu_seqlens_k.shape[0] == 0:
        return
    if (begin := int(cu_seqlens_k[0])) != 0:
        raise ValueError(f"cu_seqlens_k does not begin with 0, but with {begin}")
    falls = (cu_seqlens_k[1:] < cu_seqlens_k[:-1]).nonzero()
    if len(falls):
        n = int(falls[0])
        raise ValueError(f"cu_seqlens_k falls from {int(cu_seqlens_k[n])} to {int(cu_seqlens_k[n + 1])} of sequence {n}")
    if seqused_k is not None or block_table.dim() != 2 or k.dim() != 4:
        return
    steps, columns, page = cu_seqlens_k.diff(), block_table.shape[1], k.shape[1]
    beyond = (steps > columns * page).nonzero()
    if len(beyond):
        n = int(beyond[0])
        raise ValueError(f"cu_seqlens_k has {int(steps[n])} keys, but block_table has {columns} pages of {page} rows of sequence {n}")


def _check_most_used(seqused_k, most):
    if most is None:
        return
    most = whole("max_seqlen_k", most)
    if isinstance(seqused_k, torch.Tensor) and seqused_k.numel() and most < (longest := int(seqused_k.max())):
        raise ValueError(f"max_seqlen_k is {most}, but a sequence has {longest} keys")


def attend(q, k, v, *rows, scale=None, sinks=None, keep=None, **options):
    """_attend(), which has no gradients: the backward of outputs raises where one is asked of an input."""
    if not torch.compiler.is_compiling():
        _refuse_what_has_no_rule(q, k, v)
        if _transformed():
            raise RuntimeError("torch.func's transforms of a cache are not supported; accepted: none, and torch.compile")
    learned = learned_of(q, k, v, scale, sinks)
    if not learned:
        return _attend(q, k, v, *rows, scale=scale, sinks=sinks, keep=keep, **options)
    q, k, v, scale, sinks = detached(q, k, v, scale, sinks)
    return undifferentiated(*_attend(q, k, v, *rows, scale=scale, sinks=sinks, **options), learned, OF_CACHE)


def _attend(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, leftpad_k, *, causal=False, window=None, scale=None,
            softcap=None, alibi_slopes=None, sinks=None, most_q=0, splits=(0, False), k_descale=None, v_descale=None, write=None,
            keep=None):
    """(o, lse): q [total_q, hq, d], k [pages, page, hk, d], v [pages, page, hk, dv] → o [total_q, hq, dv], lse [hq, total_q].

    cu_seqlens_q None: each sequence has as many rows of q. leftpad_k [b]: the first row that counts of each one's pages. most_q: how
    many rows of q a sequence has at most, which chooses a GPU's kernel and changes no result; 0: not known. splits: of splits_of.
    k_descale, v_descale: of a cache in float8_e4m3fn, which q of any other type may have: as of descales_of. write:
    called when all is checked, to append to the cache. keep: called by _keep_again() where kernels take the tensors as they are."""
    cache = k, v
    if _any_autocast():
        q, k, v = _autocast(q, k, v) if not is_e4m3_cache(k, v) else (_autocast(q)[0], k, v)
    if block_table.dim() != 2:
        raise ValueError(f"block_table has shape {list(block_table.shape)}; accepted: [b, columns]")
    b, columns = block_table.shape
    check_tensors(q, k, v)
    check_integers(q.device, cu_seqlens_q=(cu_seqlens_q, (b + 1,)), seqused_q=(seqused_q, (b,)), seqused_k=(seqused_k, (b,)),
                   block_table=(block_table, (b, columns)), leftpad_k=(leftpad_k, (b,)))
    factors = descales_of(k, v, b, k_descale, v_descale)
    hq, d, dv = q.shape[1], q.shape[2], v.shape[3]
    given = q, k, v, block_table, sinks
    slopes, sinks, softcap = logits_of(alibi_slopes, sinks, softcap, q.device, b, hq)
    q, scale = scaled(q, scale)
    options = *window_of(causal, window), scale_at_width(scale_of(scale), d), slopes, sinks, softcap
    if write is not None:
        if not torch.compiler.is_compiling() and 0 not in (*q.shape, *k.shape, *block_table.shape):
            fitted = _fitting(q), _fitting_pages(k), _fitting_pages(v)
            with _On(q):  # what the planner refuses has written nothing
                _planned(*fitted, cu_seqlens_q, seqused_k, block_table, *options, most_q, splits, is_e4m3_cache(k, v))
        _check_values(slopes, sinks)
        write()
        if k is not cache[0] or v is not cache[1]:  # autocast's copies, which lack the new rows
            _, k, v = _autocast(q, *cache)
    if 0 in q.shape or b == 0:
        return q.new_zeros(*q.shape[:2], dv), q.new_full((hq, q.shape[0]), -torch.inf, dtype=torch.float32)
    if 0 in k.shape or columns == 0:  # a cache without a row: it serves sequences without keys
        k, v, factors = k.new_zeros(1, 1, 1, d), v.new_zeros(1, 1, 1, dv), (None, None)
        block_table = block_table.new_full((b, 1), -1)
    block_table = block_table if block_table.stride(1) == 1 or columns == 1 else block_table.contiguous()
    q, k, v = _fitting(q), _fitting_pages(k), _fitting_pages(v)
    o, lse = torch.ops.dfa.paged_forward(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, leftpad_k, *options, most_q, *splits,
                                         *factors)
    as_they_are = all(map(is_, (q, k, v, block_table, sinks), given)) and as_given(alibi_slopes)
    as_they_are = as_they_are and all(x is None or isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in (k_descale, v_descale))
    if keep is not None and as_they_are and not (q.device.type == "cpu" and is_e4m3_cache(k, v)):
        _keep_again(keep, q, k, v, cu_seqlens_q, seqused_k, block_table, options, most_q, splits, factors, (o, lse))
    return o[..., :dv] if o.shape[2] != dv else o, lse


def _keep_again(keep, q, k, v, cu_seqlens_q, seqused_k, block_table, options, most_q, splits, factors, outputs):
    """keep(plan, forward, outputs, steps of a launch): what makes a call like this one again, forward on a processor."""
    plan = forward = None
    if q.device.type == "cpu":
        before, softcap = options[:3], options[5]

        def forward(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, slopes, sinks):
            return _forward(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, None, *before, slopes, sinks, softcap, most_q, *splits)
    else:
        with _On(q):
            plan = _planned(q, k, v, cu_seqlens_q, seqused_k, block_table, *options, most_q, splits, is_e4m3_cache(k, v))
    steps = {"block_table": [block_table.stride(0)], "alibi_slopes": [slopes_of_batch(options[3], q.shape[1])]}
    keep(plan, forward, outputs, steps | {name: x.stride() for name, x in zip(("k_descale", "v_descale"), factors) if x is not None})


def _check_values(slopes, sinks):
    """What a kernel on the CPU refuses of them, in its words, before anything is written: torch.compile breaks its graph here, as it
    does where pages are read."""
    for name, x, legal, accepted in (("alibi_slopes", slopes, torch.isfinite, "finite numbers"),
                                     ("sinks", sinks, lambda x: x < torch.inf, "finite numbers, and -inf for no sink")):
        if x is None or x.device.type != "cpu":
            continue
        wrong = (~legal(x)).flatten().nonzero()
        if len(wrong):
            n = int(wrong[0])
            raise ValueError(f"{name} has {float(x.flatten()[n])} at index {n}; accepted: {accepted}")


def is_e4m3_cache(k, v):
    return k.dtype == v.dtype == E4M3


def descales_of(k, v, b, k_descale, v_descale):
    """Of a cache in float8_e4m3fn: (k_descale, v_descale), each float32 [b, hk] or None for 1."""
    given = {"k_descale": k_descale, "v_descale": v_descale}
    for name, descale in given.items():
        if descale is not None and not is_e4m3_cache(k, v):
            raise ValueError(f"{name} beside k and v of {k.dtype}; accepted: None, or a cache of {E4M3}")
    return tuple(descale_of(name, descale, (b, k.shape[2]), k.device) for name, descale in given.items())


def check_tensors(q, k, v):
    if not is_e4m3_cache(k, v):
        check_operands(q, k, v)
    else:
        if q.dtype not in DTYPES:
            raise ValueError(f"q has element type {q.dtype}; accepted beside a cache of {E4M3}: {', '.join(map(str, DTYPES))}")
        check_operands(q, q, q)
        for name, x in (("k", k), ("v", v)):
            if x.layout != torch.strided or x.device != q.device:
                raise ValueError(f"{name} is a {x.layout} tensor on {x.device}; accepted: a dense tensor on {q.device}, as q")
    for name, tensor, count in (("q", q, 3), ("k", k, 4), ("v", v, 4)):
        if tensor.dim() != count:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; {count} are expected: "
                             f"{'rows of all sequences' if count == 3 else 'pages, rows of a page'}, heads, head dim")
    if k.shape[:3] != v.shape[:3] or k.shape[3] != q.shape[2]:
        raise ValueError(f"shapes do not match: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; expected q "
                         "[total_q, hq, d], k [pages, page, hk, d], v [pages, page, hk, dv]")
    hq, hk = q.shape[1], k.shape[2]
    if hq % hk if hk else hq:
        raise ValueError(f"hq={hq} is not a multiple of hk={hk}: each head of k and v is that of hq / hk heads of q")
    check_dims(q.shape[2], v.shape[3])


def _fitting_pages(x):
    """As kernels take it: head dims in multiples of 8, rows that do not overlap and are dense."""
    width = x.shape[3]
    if width != padded_width(width):
        return padded_e4m3(x) if x.dtype == E4M3 else torch.nn.functional.pad(x, (0, padded_width(width) - width))
    dense = x.stride(3) == 1 and (x.shape[1] == 1 or x.stride(1) >= width)
    return x if dense else x.contiguous()


def _strides_of(x):
    """(page, head, row) in elements."""
    return x.stride(0), x.stride(2), x.stride(1) if x.shape[1] > 1 else x.shape[3]


def _planned(q, k, v, cu_seqlens_q, seqused_k, block_table, left, right, scale, alibi_slopes, sinks, softcap, most_q, splits, e4m3_cache):
    (total_q, hq, d), (pages, page, hk, dv) = q.shape, v.shape
    b, columns = block_table.shape
    rows, keys, threads = total_q if cu_seqlens_q is not None else total_q // b, columns * page, 0
    rows = most_rows(most_q, rows)
    if q.device.type == "cpu":
        rows = rows if cu_seqlens_q is None else _longest(cu_seqlens_q, total_q)
        keys = min(max(1, -(-int(seqused_k.max()) // _STEP)) * _STEP, keys)
        threads = 0 if os.environ.get("DFA_THREADS") else torch.get_num_threads()
    strides = strides_of_rows(q), _strides_of(k), _strides_of(v), (0, dv, hq * dv)
    return plan_of("fwd", DTYPES[q.dtype], (b, hq, hk, rows, keys, d, dv), (left, right), scale, False, strides, q.device.type,
                   "auto", threads, (total_q, pages * page), (softcap, alibi_slopes is not None, sinks is not None, ""),
                   page, splits=splits, e4m3_cache=e4m3_cache)


def _forward(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, leftpad_k, left, right, scale, alibi_slopes=None,
             sinks=None, softcap=0.0, most_q=0, num_splits=0, batch_invariant=False,
             k_descale=None, v_descale=None):
    if q.device.type == "cpu" and cu_seqlens_q is not None and (begin := int(cu_seqlens_q[0])) != 0:
        raise ValueError(f"cu_seqlens_q does not begin with 0, but with {begin}")
    with _On(q) as stream:
        plan = _planned(q, k, v, cu_seqlens_q, seqused_k, block_table, left, right, scale, alibi_slopes, sinks, softcap, most_q,
                        (num_splits, batch_invariant), is_e4m3_cache(k, v))
        workspace = q.new_empty(plan.workspace_bytes, dtype=torch.uint8)
        o, lse = _empty_outputs(q, v[0])
        lengths = [_pointer(cu_seqlens_q), 0, _pointer(seqused_q), _pointer(seqused_k)]
        logits = _pointer(alibi_slopes), slopes_of_batch(alibi_slopes, q.shape[1]), _pointer(sinks), 0, (0, 0, 0)
        pages = _pointer(block_table), block_table.stride(0), _pointer(leftpad_k)
        plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse)), workspace.data_ptr(), stream, lengths, logits, pages,
                      descales=descale_pointers(None, k_descale, v_descale))
    return o, lse


for _device in ("CPU", "CUDA"):
    _library.impl("paged_forward", _forward, _device)


@torch.library.register_fake("dfa::paged_forward")
def _fake_forward(q, k, v, *rest):
    return _empty_outputs(q, v[0])


@register_flop_formula(torch.ops.dfa.paged_forward, get_raw=True)
def _forward_flops(q, k, v, cu_seqlens_q, seqused_q, seqused_k, block_table, leftpad_k, *_, **__):
    """Every query with every key of its sequence, whatever a mask hides, as PyTorch counts its own."""
    b = block_table.shape[0]
    rows = seqused_q if seqused_q is not None else cu_seqlens_q.diff() if cu_seqlens_q is not None else q.shape[0] // b
    keys = seqused_k.long() if leftpad_k is None else seqused_k.long() - leftpad_k
    return 2 * int((rows * keys).sum()) * q.shape[1] * (q.shape[2] + v.shape[3])
