"""Packed sequences of PyTorch: dfa.attention_varlen, and the operators dfa::varlen_forward and dfa::varlen_backward.

Kernels read lengths where they lie, on the device: nobody waits for them, so that CUDA graphs and torch.compile hold.
On a processor they are read here, and what cannot be is refused.
"""

import os
from operator import is_
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_dynamo_compiling

from dfa import _torch_again, _torch_operators
from dfa._torch_again import OF_ROWS, given_back, places_of, recall
from dfa._dropout import probability_of, refuse_seed
from dfa._logits import bias_text, check_bias_shape, short_texts_of, slopes_of_batch, texts_of
from dfa._plan import plan_of
from dfa._shapes import check_differentiable, flag_of, lies_apart, padded_width, positions_of, scale_at_width, scale_of, shown, varlen_sizes_of, window_of
from dfa._torch import DTYPES, PLAIN, _any_autocast, _autocast, _refuse_what_has_no_rule, _transformed, is_watched, know_dtensor
from dfa._torch_bias import as_read, bias_of, check_bias_holds, of_every_key
from dfa._torch_checks import check_integers, check_most, check_no_rows, check_operands, known_most, logits_of
from dfa._torch_dropout import state_of
from dfa._torch_quantize import E4M3
from dfa._torch_scale import scaled

_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k"
_OPTIONS = ("int left, int right, float scale, bool deterministic, Tensor? alibi_slopes=None, Tensor? sinks=None, "
            "float softcap=0.0, Tensor? bias=None, int chunk=0, int prefix=0, Tensor? dropout_state=None, float dropout_p=0.0, "
            'str mask_mod="", str score_mod=""')
_ASKED = "int num_splits=0, bool batch_invariant=False, SymInt most_q=0, SymInt most_k=0"
_library = torch.library.Library("dfa", "FRAGMENT")
_library.define(f"varlen_forward(Tensor q, Tensor k, Tensor v, {_LENGTHS}, {_OPTIONS}, {_ASKED}) -> (Tensor, Tensor)")
_library.define(f"varlen_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {_LENGTHS}, {_OPTIONS}, "
                "bool bias_gradient=False) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


class _Given(NamedTuple):
    """What the operators take behind their tensors."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    seqused_q: Tensor | None
    seqused_k: Tensor | None
    left: int
    right: int
    scale: float
    deterministic: bool
    alibi_slopes: Tensor | None = None
    sinks: Tensor | None = None
    softcap: float = 0.0
    bias: Tensor | None = None
    chunk: int = 0
    prefix: int = 0
    dropout_state: Tensor | None = None
    dropout_p: float = 0.0
    mask_mod: str = ""
    score_mod: str = ""
    bias_gradient: bool = False


class _Asked(NamedTuple):
    """What the forward takes behind all that: of no gradient's concern. most_q, most_k: rows that a sequence has at most, which
    choose a GPU's kernel and change no result; 0: not known."""

    num_splits: int = 0
    batch_invariant: bool = False
    most_q: int = 0
    most_k: int = 0


_GIVEN = len(_Given._fields) - 1  # without bias_gradient, which is of the backward
_BIAS_OPTION = _Given._fields.index("bias") - 4  # behind the lengths


def forward_options(rest):
    """(_Given, _Asked) of what varlen_forward takes behind q, k and v."""
    return _Given(*rest[:_GIVEN]), _Asked(*rest[_GIVEN:])


def attention_varlen(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None = None,
                     max_seqlen_q: int | Tensor | None = None, max_seqlen_k: int | Tensor | None = None, *,
                     causal: bool = False, window: tuple[int, int] | None = None, scale: float | Tensor | None = None,
                     softcap: float | None = None, alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
                     bias: Tensor | None = None, chunk: int | None = None, prefix: int | None = None,
                     dropout_p: float = 0.0, seed: int | torch.Generator | Tensor | None = None,
                     seqused_q: Tensor | None = None, seqused_k: Tensor | None = None,
                     block_table: Tensor | None = None, return_lse: bool = False,
                     deterministic: bool = False, num_splits: int = 0, batch_invariant: bool = False,
                     q_descale: float | Tensor | None = None, k_descale: float | Tensor | None = None,
                     v_descale: float | Tensor | None = None, mask_mod: str | None = None,
                     score_mod: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """dfa.attention of sequences of different lengths that follow each other: PyTorch tensors on one device.

    q: [total_q, hq, d]; k: [total_k, hk, d]; v: [total_k, hk, dv]. cu_seqlens_q, cu_seqlens_k: int32 [b + 1]; sequence i has
    the rows from cu_seqlens[i] to cu_seqlens[i + 1], none where both are the same; cu_seqlens_k is cu_seqlens_q unless given.
    seqused_q, seqused_k: int32 [b], how many of these rows count, from the first. causal and window are each sequence's,
    aligned to its last query and key; chunk and prefix, as in dfa.attention, too, counted from its first key.
    max_seqlen_q, max_seqlen_k: int, tensor of one, or None: on a GPU they choose the kernel, and a learned bias with 1 in the place of sq or sk is spread to them, but no result depends on them; on a processor a sequence with more rows is refused. scale, softcap, sinks, deterministic,
    return_lse: as in dfa.attention; alibi_slopes: likewise, [hq], or [b, hq] of each sequence; bias: likewise, b counts
    sequences, and rows and keys are those of each sequence, so that sq and sk are the longest ones' or more; dropout_p and seed:
    likewise, masks go by the number of the sequence and its own rows and keys; mask_mod and score_mod: likewise, b counts sequences, and
    q_idx, kv_idx, sq and sk are those of each sequence.

    block_table: int32 [b, columns]; keys and values then lie in pages of a cache, k [pages, page, hk, d], v [pages, page, hk, dv]
    with pages of any size: key j of sequence i is row j % page of page block_table[i, j // page]. How many there are say
    seqused_k, or else the steps of cu_seqlens_k. Nothing else of the cache is read, and entries that no query needs are free,
    -1 by custom. No gradients: a backward raises NotImplementedError. A cache of float8_e4m3fn goes with q of another type, which o has: its numbers times k_descale and
    v_descale are the keys and values, each a number, float32 [b, hk] with 1 where it is one for all, or None for 1; on a GPU beside q of
    16 bits, head dims in multiples of 16 up to 256.

    q_descale, k_descale, v_descale without block_table: of q, k, v in float8_e4m3fn, as in dfa.attention; b counts sequences. o is
    bfloat16, a backward raises NotImplementedError, and bias and dropout_p are refused. On processors, which widen to float32.

    num_splits: in how many splits a GPU's kernel may cut the keys of a query, which blocks then share: 0 as planned, 1 not at all, up
    to 256 so many at most. A processor never does. batch_invariant: o and lse of a sequence have the same bits whatever else is in
    the call, in which order and pages, on one device by one build. Processors promise it anyway; a GPU then takes the
    same tiles for all lengths, and of pages splits whose size follows from the sequence's own length (1024 keys, more beyond
    32768), so that prompts from pages are slower. Nothing is promised of
    gradients, and dropout_p goes by the number of a sequence, so that it is refused beside it.

    Returns o [total_q, hq, dv] and, with return_lse, (o, lse) with lse float32 [hq, total_q], natural logarithms. Rows that
    see no key, or are of no sequence, have o = 0, lse = -inf (or the sink, in a sequence) and gradients of 0. With autograd,
    torch.func (reverse mode, and vmap by turns), torch.compile and CUDA graphs.

    Raises ValueError on shapes, types and devices; on a processor also on cu_seqlens that do not begin with 0, fall, or pass
    the tensors, and on entries of block_table that are needed and no page. On a GPU lengths are not read here: kernels cut them
    to what is there, and read and write nothing else.
    """
    key = None
    if not is_dynamo_compiling():
        key = ("varlen", q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, alibi_slopes, sinks, block_table, k_descale, v_descale,
               max_seqlen_q, max_seqlen_k, causal, window, scale, softcap, bias, chunk, prefix, dropout_p, seed, return_lse, deterministic,
               num_splits, batch_invariant, q_descale, mask_mod, score_mod)
        if (outputs := recall(key)) is not None:
            return outputs
    o, lse = in_full(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, block_table, key,
                     "(ol)" if flag_of("return_lse", return_lse) else "o", causal=causal, window=window, scale=scale, softcap=softcap,
                     alibi_slopes=alibi_slopes, sinks=sinks, bias=bias, chunk=chunk, prefix=prefix, dropout_p=dropout_p, seed=seed,
                     deterministic=deterministic, num_splits=num_splits, batch_invariant=batch_invariant, q_descale=q_descale,
                     k_descale=k_descale, v_descale=v_descale, mask_mod=mask_mod, score_mod=score_mod)
    return (o, lse) if return_lse else o


def in_full(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, block_table, key, returns, *,
            causal=False, window=None, scale=None, softcap=None, alibi_slopes=None, sinks=None, bias=None, chunk=None, prefix=None,
            dropout_p=0.0, seed=None, deterministic=False, num_splits=0, batch_invariant=False, q_descale=None, k_descale=None,
            v_descale=None, mask_mod=None, score_mod=None):
    """(o, lse) of attention_varlen. key: the door's, of dfa._torch_again, with OF_ROWS, or None; what makes the call again, and gives back what
    `returns` says, is kept there."""
    asked = splits_of(num_splits, batch_invariant)
    if asked[1] and probability_of(dropout_p):
        raise ValueError("batch_invariant beside dropout_p is not supported, as masks go by the number of a sequence; accepted: dropout_p of 0")
    texts = texts_of(mask_mod, score_mod)
    if block_table is not None:
        if texts != ("", ""):
            raise ValueError("mask_mod and score_mod beside block_table are not supported; accepted: None")
        from dfa import _torch_paged
        if q_descale is not None:
            raise ValueError("q_descale beside block_table is not supported; accepted: None, and q of another type than the cache's")
        if bias is not None:
            raise ValueError("bias beside block_table is not supported; accepted: one of them")
        if chunk is not None or prefix is not None:
            raise ValueError("chunk and prefix beside block_table are not supported; accepted: None, causal and window")
        if probability_of(dropout_p) or seed is not None:
            raise ValueError("dropout_p beside block_table is not supported; accepted: 0, and no seed")
        flag_of("deterministic", deterministic)  # of gradients, which a cache has none of
        return _torch_paged.attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k,
                                      block_table, causal=causal, window=window, scale=scale, softcap=softcap,
                                      alibi_slopes=alibi_slopes, sinks=sinks, splits=asked, k_descale=k_descale, v_descale=v_descale,
                                      key=key, returns=returns)
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    if getattr(q, "dtype", None) == E4M3 or not q_descale is k_descale is v_descale is None:
        from dfa import _torch_e4m3_varlen
        return _torch_e4m3_varlen.attention(
            q, k, v, (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k), (max_seqlen_q, max_seqlen_k), (q_descale, k_descale, v_descale),
            asked, causal=causal, window=window, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, chunk=chunk,
            prefix=prefix, dropout_p=dropout_p, return_lse=True, deterministic=deterministic, bias=bias, seed=seed,
            mask_mod=mask_mod, score_mod=score_mod)
    for name, tensor in (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__qualname__}; accepted: a tensor")
    if not torch.compiler.is_compiling():
        _refuse_what_has_no_rule(q, k, v)
    if _any_autocast():
        q, k, v = _autocast(q, k, v)
    lengths = cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k
    _check(q, k, v, *lengths)
    known = q.device.type == "cpu" and not torch.compiler.is_compiling() and type(cu_seqlens_q) is not FakeTensor
    if known:
        check_most(cu_seqlens_q, max_seqlen_q, "max_seqlen_q")
        check_most(cu_seqlens_k, max_seqlen_k, "max_seqlen_k")
    _, _, hq, _, d, dv = varlen_sizes_of(q.shape, k.shape, v.shape)
    b = cu_seqlens_q.shape[0] - 1
    logits = *logits_of(alibi_slopes, sinks, softcap, q.device, b, hq), bias_of(bias, q.device, b, hq)
    check_bias_holds(logits[3], max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
    logits = *logits[:3], of_every_key(logits[3], max_seqlen_q, max_seqlen_k)
    deterministic = bool(flag_of("deterministic", deterministic) or torch.are_deterministic_algorithms_enabled())
    window = window_of(causal, window)
    positions = positions_of(window, chunk, prefix)
    given = q, k, v
    q, scale = scaled(q, scale)
    options = (*window, scale_at_width(scale_of(scale), d), deterministic, *logits, *positions, *_dropout_of(dropout_p, seed, q), *texts,
               *asked, known_most("max_seqlen_q", max_seqlen_q), known_most("max_seqlen_k", max_seqlen_k))
    q, k, v = (_fitting(x) for x in (q, k, v))
    if type(q) is not torch.Tensor and know_dtensor((type(q),)):
        from dfa._torch_dtensor import replicated
        if texts != ("", ""):
            raise ValueError("mask_mod and score_mod of DTensors are not supported, as b and h would be each device's own; accepted: None")
        lengths = tuple(replicated(x, q) for x in lengths)
        options = tuple(replicated(x, q) if isinstance(x, torch.Tensor) else x for x in options)
    if known and (q.shape[0] == 0 or k.shape[0] == 0):
        check_no_rows(q, k, *lengths)
    if 0 in q.shape or cu_seqlens_q.shape[0] == 1:
        o, lse = _of_nothing(q, k, v, [x for x in (logits[1], logits[3]) if x is not None])
    else:
        if k.shape[0] == 0:
            k, v, lengths = _with_a_key_of_none(k, v, lengths)
            options = *options[:_BIAS_OPTION], _with_a_column(options[_BIAS_OPTION]), *options[_BIAS_OPTION + 1:]
        o, lse = _way_of((q, k, v, *lengths, *options))(q, k, v, *lengths, *options)
        if key is not None and _are_plain(bias, dropout_p, seed, texts) and all(map(is_, (q, k, v), given)) and as_given(alibi_slopes, sinks):
            _keep_again(key, q, k, v, lengths, options, (max_seqlen_q, max_seqlen_k), (o, lse), returns)
    return o[..., :dv] if o.shape[2] != dv else o, lse


def _way_of(inputs):
    """The forward of these inputs: by the operator where somebody looks on, past PyTorch's dispatcher where nobody does."""
    if torch.compiler.is_compiling():
        return torch.ops.dfa.varlen_forward
    if _transformed():
        return _Forward.apply
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if is_watched() or not PLAIN.issuperset(map(type, tensors)):
        return torch.ops.dfa.varlen_forward
    return _Eager.apply if torch.is_grad_enabled() and any(x.requires_grad for x in tensors) else _forward


def as_given(*tensors):
    """Do kernels take these, or None, as they are: fp32, one element behind the other?"""
    return all(x is None or x.dtype == torch.float32 and x.is_contiguous() for x in tensors)


def _are_plain(bias, dropout_p, seed, texts):
    return bias is seed is None and texts == ("", "") and probability_of(dropout_p) == 0


def _keep_again(key, q, k, v, lengths, options, most, outputs, returns):
    """What makes the call of this key again."""
    given, asked = forward_options((*lengths, *options))
    if q.device.type == "cpu":
        before, behind = options[:4], options[6:]

        def call(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, slopes, sinks, *_):
            lengths = cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k, seqused_q, seqused_k
            for cu_seqlens, longest, of in zip(lengths, most, "qk"):
                check_most(cu_seqlens, longest, f"max_seqlen_{of}")
            return given_back(*_forward(q, k, v, *lengths, *before, slopes, sinks, *behind), returns)
        _torch_again.keep(key, call, OF_ROWS.values())
        return
    _torch_again.keep(key, launch_of(key, (q, k, v), given, asked, outputs, returns), OF_ROWS.values())


def launch_of(key, rows, given, asked, outputs, returns):
    """What makes a forward of rows [total, h, d] on a GPU again, of keys with OF_ROWS, as dfa._torch_again.launch has it."""
    with _On(rows[0]):
        plan = _planned("fwd", *rows, given, asked)[0]
    places = places_of(key, OF_ROWS)
    places.setdefault("cu_seqlens_k", places["cu_seqlens_q"])
    return _torch_again.launch(plan, places, *outputs, returns=returns,
                               steps={"alibi_slopes": [slopes_of_batch(given.alibi_slopes, rows[0].shape[1])]})


def splits_of(num_splits, batch_invariant):
    """(num_splits, batch_invariant) as plans take them."""
    if isinstance(num_splits, bool) or not isinstance(num_splits, int) or not 0 <= num_splits <= 256:
        raise ValueError(f"num_splits {shown(num_splits)}; accepted: 0 for the library's choice, 1 for none, or up to 256")
    batch_invariant = flag_of("batch_invariant", batch_invariant)
    if batch_invariant and num_splits > 1:
        raise ValueError(f"num_splits {num_splits} beside batch_invariant; accepted: 0 or 1, as splits follow from lengths there")
    return num_splits, batch_invariant


def _dropout_of(dropout_p, seed, q):
    """(dropout_state, dropout_p) as the operators take them."""
    probability = probability_of(dropout_p)
    if probability == 0:
        refuse_seed(seed)
        return None, 0.0
    if type(q) is not torch.Tensor and know_dtensor((type(q),)):
        raise ValueError("dropout_p of DTensors is not supported; accepted: 0")
    return state_of(seed, q.device), probability


def _check(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k):
    check_operands(q, k, v)
    b = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q.dim() == 1 else -1
    check_integers(q.device, cu_seqlens_q=(cu_seqlens_q, (b + 1,)), cu_seqlens_k=(cu_seqlens_k, (b + 1,)),
                   seqused_q=(seqused_q, (b,)), seqused_k=(seqused_k, (b,)))


def _fitting(x):
    """As kernels take it: head dims in multiples of 8, the last dimension dense, no element twice."""
    width = x.shape[2]
    if width != padded_width(width):
        x = torch.nn.functional.pad(x, (0, padded_width(width) - width))
    return x if lies_apart((1, *x.shape), (0, *x.stride())) else x.contiguous()


def _of_nothing(q, k, v, learned):
    """No rows, or none of a sequence."""
    nothing = sum(x[:0].sum() for x in (q, k, v, *learned))  # by which autograd knows of all
    lse = q.new_full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32) + nothing.float()
    return q.new_zeros(*q.shape[:2], v.shape[2]) + nothing, lse


def _with_a_key_of_none(k, v, lengths):
    """Kernels take tensors that have rows: one, of which no sequence has any."""
    k, v = (torch.cat([x, x.new_zeros(1, *x.shape[1:])]) for x in (k, v))
    return k, v, (lengths[0], torch.zeros_like(lengths[1]), lengths[2], None)


def _with_a_column(bias):
    """Of that key, where there are none."""
    return bias if bias is None or bias.shape[3] else torch.cat([bias, bias.new_zeros(*bias.shape[:3], 1)], 3)


def _planned(passes, q, k, v, given, asked=_Asked(), element=None):
    (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, left, right, scale, deterministic, alibi_slopes, sinks, softcap, bias,
     chunk, prefix, dropout_state, dropout_p, mask_mod, score_mod, _) = given
    total_q, total_k, hq, hk, d, dv = varlen_sizes_of(q.shape, k.shape, v.shape)
    longest, threads = (most_rows(asked.most_q, total_q), most_rows(asked.most_k, total_k)), 0
    if q.device.type == "cpu":
        longest = _longest(cu_seqlens_q, total_q), _longest(cu_seqlens_k, total_k)
        threads = 0 if os.environ.get("DFA_THREADS") else torch.get_num_threads()
    strides = *map(strides_of_rows, (q, k, v)), (0, dv, hq * dv)
    sizes = cu_seqlens_q.shape[0] - 1, hq, hk, *longest, d, dv
    if bias is not None:
        check_bias_shape(bias.shape, sizes[0], hq, *longest if q.device.type == "cpu" else (0, 0))
        if q.device.type != "cpu":  # lengths are not known here: as many as the bias is of
            longest = [size if size > 1 else total for size, total in zip(bias.shape[2:], longest)]
            sizes = *sizes[:3], *longest, d, dv
    plan = plan_of(passes, element or DTYPES[q.dtype], sizes, (left, right), scale, deterministic, strides, q.device.type, "auto",
                   threads, (total_q, total_k), (softcap, alibi_slopes is not None, sinks is not None,
                                                 "" if bias is None else bias_text(bias.shape, DTYPES[bias.dtype])),
                   0, (chunk, prefix), dropout_p, splits=asked[:2], text=(mask_mod, score_mod))
    lengths = [*map(_pointer, (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k))]
    logits = (_pointer(alibi_slopes), slopes_of_batch(alibi_slopes, hq), _pointer(sinks), _pointer(bias),
              (0, 0, 0) if bias is None else bias.stride()[:3])
    return plan, q.new_empty(plan.workspace_bytes, dtype=torch.uint8), (lengths, logits), _pointer(dropout_state)


def strides_of_rows(x):
    """(0, head, row) in elements of rows [total, h, d]; those of a dimension of one are dense, as libraries put anything there."""
    (total, heads, d), (row, head, _) = x.shape, x.stride()
    return 0, head if heads > 1 else d, row if total > 1 else heads * d


def most_rows(most, total):
    """Of a sequence in a plan, where it is known: rounded up, so that many lengths need few plans."""
    return min(total, 1 << (int(most) - 1).bit_length()) if 0 < most < total else total


def _pointer(tensor):
    return 0 if tensor is None else tensor.data_ptr()


def _longest(cu_seqlens, total):
    return min(max(1, int(cu_seqlens.diff().max())), total)


class _On:
    """The device of a tensor as the current one, and its current stream."""

    def __init__(self, tensor):
        self._device = torch.cuda.device(tensor.device) if tensor.is_cuda else None
        self._tensor = tensor

    def __enter__(self):
        if self._device is None:
            return 0
        self._device.__enter__()
        return torch.cuda.current_stream().cuda_stream

    def __exit__(self, *error):
        if self._device is not None:
            self._device.__exit__(*error)


def _empty_outputs(q, v):
    return q.new_empty(*q.shape[:2], v.shape[2]), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def check_begins(q, cu_seqlens_q, cu_seqlens_k):
    """Raises ValueError where they begin with another number than 0; on a processor, where they are read."""
    if q.device.type != "cpu":
        return
    for name, cu_seqlens in (("q", cu_seqlens_q), ("k", cu_seqlens_k)):
        if (begin := int(cu_seqlens[0])) != 0:
            raise ValueError(f"cu_seqlens_{name} does not begin with 0, but with {begin}")


def _forward(q, k, v, *rest):
    check_begins(q, *rest[:2])
    with _On(q) as stream:
        plan, workspace, data, dropout = _planned("fwd", q, k, v, *forward_options(rest))
        o, lse = _empty_outputs(q, v)
        plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse)), workspace.data_ptr(), stream, *data, dropout=dropout)
    return o, lse


def _backward(d_o, q, k, v, o, lse, *rest):
    d_o, o, lse = d_o.contiguous(), o.contiguous(), lse.contiguous()
    q, k, v, given = *map(_fitting, (q, k, v)), _Given(*map(as_read, rest))  # a hook of autograd may have kept them in another layout
    with _On(q) as stream:
        plan, workspace, data, dropout = _planned("bwd", q, k, v, given)
        *gradients, d_sinks, d_bias = _fake_backward(d_o, q, k, v, o, lse, *given)
        of_bias = (0, (0, 0, 0))
        if given.bias_gradient:  # of rows and keys beyond the longest sequence's, too
            of_bias = d_bias.zero_().data_ptr(), d_bias.stride()[:3]
        plan._backward(*(x.data_ptr() for x in (q, k, v, o, lse, d_o, *gradients)), workspace.data_ptr(), stream, *data,
                       (d_sinks.data_ptr(), *of_bias), dropout=dropout)
    return *gradients, d_sinks, d_bias


for _device in ("CPU", "CUDA"):
    _library.impl("varlen_forward", _forward, _device)
    _library.impl("varlen_backward", _backward, _device)


@torch.library.register_fake("dfa::varlen_forward")
def _fake_forward(q, k, v, *rest):
    given, _ = forward_options(rest)
    short_texts_of(given.mask_mod or None, given.score_mod or None)  # a fault is found where a graph is made
    return _empty_outputs(q, v)


@torch.library.register_fake("dfa::varlen_backward")
def _fake_backward(d_o, q, k, v, o, lse, *rest):
    """dq, dk, dv, of the sinks, or of none, and of the bias, if it is wanted."""
    given = _Given(*rest)
    shape = given.bias.shape if given.bias_gradient else (0,)
    d_sinks = q.new_empty(0 if given.sinks is None else given.sinks.shape[0], dtype=torch.float32)
    return *map(_torch_operators.like, (q, k, v)), d_sinks, q.new_empty(shape, dtype=torch.float32)


_BIAS = 3 + _Given._fields.index("bias")  # among the inputs, of which PyTorch leaves out what has its default at the end


def _keep(ctx, inputs, output):
    (q, k, v, cu_q, cu_k, used_q, used_k, *ctx.options, slopes, sinks, ctx.softcap, bias, chunk, prefix, dropout_state,
     ctx.dropout_p, mask_mod, score_mod) = inputs[:3 + _GIVEN]
    ctx.texts = mask_mod, score_mod
    if any(ctx.needs_input_grad):
        check_differentiable(q.shape[2])
    ctx.positions = chunk, prefix
    ctx.save_for_backward(q, k, v, *output, cu_q, cu_k, used_q, used_k, slopes, sinks, bias, dropout_state)
    ctx.set_materialize_grads(False)


def _differentiate(ctx, d_o, d_lse, backward=torch.ops.dfa.varlen_backward):
    q, k, v, o, lse, *lengths, slopes, sinks, bias, dropout_state = ctx.saved_tensors
    learned = bias is not None and ctx.needs_input_grad[_BIAS]
    options = *lengths, *ctx.options, slopes, sinks, ctx.softcap, bias, *ctx.positions, dropout_state, ctx.dropout_p, *ctx.texts, learned
    d_q, d_k, d_v, d_sinks, d_bias = _gradients(backward, d_o, d_lse, q, k, v, o, lse, *options)
    return (d_q, d_k, d_v, *(None,) * 9, None if sinks is None else d_sinks, None,
            d_bias.to(bias.dtype) if learned else None, *(None,) * (6 + len(_Asked._fields)))


def _gradients(backward, d_o, d_lse, q, k, v, o, lse, *options):
    if d_lse is None:
        return backward(torch.zeros_like(o) if d_o is None else d_o, q, k, v, o, lse, *options)
    d_o = torch.zeros_like(o) if d_o is None else d_o
    of_logits = []

    def of_one_batch(d_o, q, k, v, o, lse, *options):
        """As a batch of one, of which the columns for lse are made."""
        *gradients, d_sinks, d_bias = backward(*(x.squeeze(0).transpose(0, 1) for x in (d_o, q, k, v, o)), lse[0], *options)
        of_logits.extend((d_sinks, d_bias))
        return [x.transpose(0, 1).unsqueeze(0) for x in gradients]
    batch = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v, o)]
    gradients = _torch_operators.gradients(of_one_batch, d_o.transpose(0, 1).unsqueeze(0), d_lse[None], *batch, lse[None], *options)
    return *(x.squeeze(0).transpose(0, 1) for x in gradients), *of_logits


torch.library.register_autograd("dfa::varlen_forward", _differentiate, setup_context=_keep, lib=_library)
torch.library.register_autograd("dfa::varlen_backward", _torch_operators._refuse_to_differentiate,
                                setup_context=_torch_operators._keep_nothing, lib=_library)


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *inputs):
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, d_o, d_lse):
        # With create_graph the operator's own rule says that there is no second derivative.
        watched = torch.is_grad_enabled() or is_watched() or torch.compiler.is_compiling()
        return _differentiate(ctx, d_o, d_lse, torch.ops.dfa.varlen_backward if watched else _backward)


class _Backward(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(torch.ops.dfa.varlen_backward.default)
    setup_context = staticmethod(_torch_operators._keep_nothing)
    backward = staticmethod(_torch_operators._refuse_to_differentiate)


class _Forward(torch.autograd.Function):
    """The operator once more, for torch.func, which takes no operator's own rule for derivatives."""

    generate_vmap_rule = True
    forward = staticmethod(torch.ops.dfa.varlen_forward.default)
    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx, d_o, d_lse):
        return _differentiate(ctx, d_o, d_lse, _Backward.apply)


def _map_by_turns(operator):
    """torch.vmap of it: lengths may differ, so that what is mapped over does not fold into one call."""
    def rule(info, dims, *inputs):
        turns = [operator(*(x if dim is None else x.select(dim, turn) for x, dim in zip(inputs, dims)))
                 for turn in range(info.batch_size)]
        return tuple(map(torch.stack, zip(*turns))), (0,) * len(turns[0])
    return rule


for _name in ("varlen_forward", "varlen_backward"):
    torch.library.register_vmap(f"dfa::{_name}", _map_by_turns(getattr(torch.ops.dfa, _name).default), lib=_library)


from dfa import _torch_varlen_flops  # noqa: E402, F401: of operators that are there by now
