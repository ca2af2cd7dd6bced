"""For models written in PyTorch: a layer, and a switch for those that call PyTorch's function.

    dfa.torch.MultiheadAttention(512, 8)     # in the place of torch.nn.MultiheadAttention
    with dfa.torch.enable(): model(x)        # torch.nn.functional.scaled_dot_product_attention is ours
    torch.nn.attention.activate_flash_attention_impl("dfa")  # what PyTorch gives its flash kernels, is ours
    dfa.torch.varlen_attn(q, k, v, …)        # in the place of torch.nn.attention.varlen.varlen_attn
    dfa.torch.flex_attention(q, k, v, block_mask=…)  # in the place of torch.nn.attention.flex_attention.flex_attention
"""

import inspect
import threading
from contextlib import ContextDecorator

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.attention.bias import CausalBias, CausalVariant

from dfa import _torch as _operators  # noqa: F401: programs that torch.export has saved find them registered
from dfa import _torch_flash, _torch_masks, _torch_nested
from dfa._attention import attention
from dfa._dropout import options_of
from dfa._shapes import flag_of, shown
from dfa._torch_again import OF_DENSE, keep_dense, plan_of, recall
from dfa._torch_block_lists import BlockLists, block_lists
from dfa._torch_blocks import flex_attention
from dfa._torch_texts import block_mask, mask_mod
from dfa._torch_varlen_attn import varlen_attn, varlen_attn_out

__all__ = ["BlockLists", "MultiheadAttention", "block_lists", "block_mask", "enable", "flex_attention", "mask_mod",
           "scaled_dot_product_attention", "varlen_attn", "varlen_attn_out"]

_functional = torch.nn.functional
_torch_flash.register()


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *,
                                 scale=None, enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention, by dfa.attention.

    query [..., hq, sq, d], key [..., hk, sk, d], value [..., hk, sk, dv] → [..., hq, sq, dv]; what stands before sq and sk
    broadcasts, and with enable_gqa hq is a multiple of hk. As there, is_causal is aligned to the first query and key
    (dfa.attention aligns to the last).
    attn_mask: of torch.nn.attention.bias; or a tensor that broadcasts to [..., hq, sq, sk]: on a processor any, with its
    gradient; on a GPU boolean or of 0 and -inf, the same for all heads, that shows each query keys that lie together. Its
    elements are read at each call, for which a GPU is waited for. A query that sees no key gets zeros.
    Nested tensors of the jagged layout, all three: [b, heads, j, d] with a ragged j, packed sequences, in one call; o has the
    offsets of query. No attn_mask beside them. A GPU is waited for where key, value or, with is_causal, query have offsets of
    their own, or lengths beside them (holes), and where is_causal meets a sequence of more queries than keys it is refused.
    dropout_p: of dense tensors, by PyTorch's generator, though not by the numbers that PyTorch's own would draw.
    Raises ValueError on other masks: no kernel has them there.
    """
    again = None
    if not is_dynamo_compiling():
        again = "sdpa", query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        if (o := recall(again)) is not None:
            return o
    dropout = _check(query, key, value, dropout_p)
    is_causal, enable_gqa = flag_of("is_causal", is_causal), flag_of("enable_gqa", enable_gqa)
    if query.is_nested:
        return _of_nested(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if attn_mask is not None:
        if is_causal:
            raise ValueError("attn_mask beside is_causal=True; accepted: one of them")
        if not isinstance(attn_mask, CausalBias) and not _torch_masks.is_bias(attn_mask, query):
            _torch_masks.check_mask(attn_mask)
            attn_mask = _torch_masks.visible_by(attn_mask)
    if query.dim() == key.dim() == value.dim() == 4:
        return _of_four(query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout, again)
    return _of_any(query, key, value, attn_mask, is_causal, scale, enable_gqa, dropout)


def _check(query, key, value, dropout_p):
    dropout = options_of(dropout_p)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__qualname__}; accepted: a tensor")
        if tensor.dim() < 2:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; accepted: [..., sequence, head dim]")
    if query.is_nested or key.is_nested or value.is_nested:
        if dropout:
            raise ValueError(f"dropout_p={shown(dropout_p)} of nested tensors is not supported; accepted: 0")
        _torch_nested.check(query=query, key=key, value=value)
    return dropout


def _of_nested(query, key, value, mask, is_causal, scale, gqa):
    if mask is not None:
        raise ValueError("attn_mask beside nested tensors is not supported; accepted: None, and is_causal")
    if query._ragged_idx == 1:
        return _torch_nested.attend_within_rows(scaled_dot_product_attention, query, key, value, is_causal=is_causal, scale=scale)
    return _torch_nested.attend(query, key, value, is_causal, scale, lambda *rows: _with_heads(*rows, gqa))


def _of_four(query, key, value, mask, is_causal, scale, gqa, dropout, again=None):
    """again: the door's key, of dfa._torch_again, or None."""
    query, key, value = _with_heads(query, key, value, gqa)
    sq, sk = query.shape[2], key.shape[2]
    causal = False  # to the last key, as dfa.attention has it
    if isinstance(mask, CausalBias):
        if (mask.seq_len_q, mask.seq_len_kv) != (sq, sk):
            raise ValueError(f"attn_mask is of {mask.seq_len_q} queries and {mask.seq_len_kv} keys; expected are {sq} and {sk}")
        is_causal = mask.variant == CausalVariant.UPPER_LEFT
        causal, mask = not is_causal, None
    if mask is not None:
        b = torch.broadcast_shapes(query.shape[:1], key.shape[:1], value.shape[:1])[0]
        if mask.is_floating_point():
            if query.dtype == torch.float8_e4m3fn:
                raise ValueError("attn_mask of numbers is a bias, which is not supported beside float8_e4m3fn; accepted: boolean masks")
            return attention(query, key, value, bias=_torch_masks.of_four(mask, b, query, key), scale=scale, **dropout)
        return _torch_masks.masked(query.expand(b, -1, -1, -1), key, value, mask, scale=scale, **dropout)
    window = None
    if is_causal and sq > sk:
        causal, window = False, (-1, sq - sk)
    elif is_causal:
        causal = True
        if sk > sq:  # keys beyond the last query are seen by none
            key, value = key[:, :, :sq], value[:, :, :sq]
    o = attention(query, key, value, causal=causal, window=window, scale=scale, **dropout)
    if again is not None and not dropout:
        plan = plan_of(("dense", query, key, value, causal, window, scale, False, False, "auto"))
        if plan is not None:
            keep_dense(again, plan, OF_DENSE, (o, None), "o")
    return o


def _with_heads(query, key, value, gqa):
    """Heads, the second dimension, that broadcast are repeated, except one head of keys and values, which all of query read
    anyhow."""
    hq, hk, hv = (x.shape[1] for x in (query, key, value))
    if hq == hk == hv:
        return query, key, value
    if gqa:
        if hk != hv or not hk or hq % hk:
            raise ValueError(f"query has {hq} heads, key {hk}, value {hv}; with enable_gqa as many of value as of key, and a "
                             "multiple of them of query are expected")
        return query, key, value
    most = max(hq, hk, hv)
    if {hq, hk, hv} - {1, most}:
        raise ValueError(f"query has {hq} heads, key {hk}, value {hv}; enable_gqa=True lets them share")
    if hk == hv == 1:
        return query, key, value
    return (x.expand(-1, most, *x.shape[2:]) for x in (query, key, value))


def _of_any(query, key, value, mask, is_causal, scale, gqa, dropout):
    """Dimensions more or less than four: all before the heads make up one batch, and there are none without them."""
    no_heads = not gqa and max(x.dim() for x in (query, key, value)) < 4
    if no_heads:
        query, key, value = (x.unsqueeze(-3) for x in (query, key, value))
        if isinstance(mask, torch.Tensor) and mask.dim() > 2:
            mask = mask.unsqueeze(-3)
    try:
        batch = torch.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    except RuntimeError:
        raise ValueError(f"shapes do not match: query {list(query.shape)}, key {list(key.shape)}, value "
                         f"{list(value.shape)}; expected are batches that broadcast") from None
    query, key, value = (_one_batch(x, batch, x.shape[-3:] if x.dim() > 2 else (1, *x.shape)) for x in (query, key, value))
    if isinstance(mask, torch.Tensor) and mask.dim() > 3:
        mask = _one_batch(mask, batch, mask.shape[-3:])
    o = _of_four(query, key, value, mask, is_causal, scale, gqa, dropout)
    o = o.reshape(*batch, *o.shape[1:])
    return o.squeeze(-3) if no_heads else o


def _one_batch(x, batch, rest):
    count = 1
    for size in batch:
        count *= size
    try:
        return x.expand(*batch, *rest).reshape(count, *rest)
    except RuntimeError:
        raise ValueError(f"attn_mask has shape {list(x.shape)}; it has to broadcast to the batches {list(batch)}") from None


class enable(ContextDecorator):  # noqa: N801: used like a function
    """Calls of torch.nn.functional.scaled_dot_product_attention come here, inside the block.

    Blocks nest, and each puts back what it found, whatever another library has put there meanwhile. The switch is the
    process's: other threads come here too, until the last block of all threads has ended. Also a decorator of functions.
    Only calls by that name from Python come here: what PyTorch calls from C++ (its own transformer layers' fast path) and
    who has imported the function itself stay there. What is not supported raises ValueError and does not fall back.
    """

    def __init__(self):
        self._entered = []

    def __call__(self, function):
        if any(is_one(function) for is_one in (inspect.isgeneratorfunction, inspect.iscoroutinefunction,
                                               inspect.isasyncgenfunction)):
            raise TypeError(f"enable() cannot decorate {function.__qualname__}, which runs on after it was called; accepted: "
                            "a with block inside it")
        return super().__call__(function)

    def __enter__(self):
        block = _Block()
        with _lock:
            block.found = _functional.scaled_dot_product_attention
            _open.append(block)
            _functional.scaled_dot_product_attention = scaled_dot_product_attention
        self._entered.append(block)

    def __exit__(self, *_):
        block = self._entered.pop()
        with _lock:
            at = _open.index(block)
            _open.remove(block)
            if at < len(_open):  # a block of another thread was opened later: it will put back what this one found
                later = _open[at]
                later.found = block.found if later.found is scaled_dot_product_attention else later.found
            else:
                _functional.scaled_dot_product_attention = block.found


class _Block:
    found = None


_lock, _open = threading.Lock(), []


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention by dfa.attention: same parameters, same state_dict.

    Not supported, ValueError: bias_k and zero-attention keys, need_weights (whose default is False here), nested
    tensors, and masks that scaled_dot_product_attention of this module does not take.
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, add_bias_kv=False, add_zero_attn=False, *rest, **options):
        super().__init__(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, *rest, **options)
        self._check_parts()

    def forward(self, query, key, value, key_padding_mask=None, need_weights=False, attn_mask=None,
                average_attn_weights=True, is_causal=False):
        """query [b, sq, e], or [sq, b, e] unless batch_first, or [sq, e] → (output, None).

        key_padding_mask [b, sk] (or [sk]), attn_mask [sq, sk] or [b · heads, sq, sk]: true or -inf where a key is hidden.
        is_causal: causal, from the first query and key on; beside an attn_mask that says the same.
        """
        if need_weights:
            raise ValueError("need_weights=True is not supported: the weights are never in memory; accepted: False")
        self._check_parts()
        batched = self._check_inputs(query, key, value)
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        mask, is_causal = self._mask(query, key, attn_mask, key_padding_mask, flag_of("is_causal", is_causal))
        heads = (self._heads(x) for x in self._projected(query, key, value))
        o = scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=is_causal, dropout_p=self.dropout if self.training else 0.0)
        output = self.out_proj(o.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), None
        return (output if self.batch_first else output.transpose(0, 1)), None

    def _check_parts(self):
        if self.bias_k is not None or self.bias_v is not None or self.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn are not supported; accepted: False")

    def _check_inputs(self, query, key, value):
        if any(x.is_nested for x in (query, key, value)):
            raise ValueError("query, key or value is a nested tensor; accepted: dense tensors with a key_padding_mask")
        shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        if not query.dim() == key.dim() == value.dim() or query.dim() not in (2, 3):
            raise ValueError(f"{shapes}; accepted: three dimensions each, or two without a batch")
        batch = 0 if self.batch_first else 1
        if key.shape[:-1] != value.shape[:-1] or query.dim() == 3 and query.shape[batch] != key.shape[batch]:
            raise ValueError(f"{shapes}; expected are the same batch, and as many values as keys")
        return query.dim() == 3

    def _mask(self, query, key, attn_mask, padding, is_causal):
        """(mask of scaled_dot_product_attention, is_causal)"""
        b, sq, sk = query.shape[0], query.shape[1], key.shape[1]
        hidden = None
        if attn_mask is not None:
            shapes = (sq, sk), (b * self.num_heads, sq, sk)
            hidden = _hidden(attn_mask, "attn_mask", shapes, unread=is_causal and padding is None)
            hidden = hidden if hidden.dim() == 2 else hidden.view(b, self.num_heads, sq, sk)
            if is_causal and not _torch_masks.is_causal(hidden, sq, sk):
                raise ValueError("attn_mask is not causal, with is_causal=True beside it; accepted: one that is, or False")
        elif is_causal and padding is not None:
            hidden = _torch_masks.causally_hidden(sq, sk, query.device)
        if padding is None:
            return (None, True) if is_causal else (None if hidden is None else ~hidden, False)
        padded = _hidden(padding, "key_padding_mask", ((b, sk),))[:, None, None]
        return ~(padded if hidden is None else padded | hidden), False

    def _projected(self, query, key, value):
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return map(_functional.linear, (query, key, value), weights, biases)

    def _heads(self, x):
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)


def _hidden(mask, name, shapes, unread=False):
    """A mask of torch.nn.MultiheadAttention as true where a key is hidden; unread: only its shape matters when traced."""
    _torch_masks.check_mask(mask, name)
    if tuple(mask.shape) not in shapes:
        raise ValueError(f"{name} has shape {list(mask.shape)}; accepted: {' or '.join(str(list(shape)) for shape in shapes)}")
    if mask.dtype == torch.bool or (unread and torch.compiler.is_compiling()):
        return mask
    return _torch_masks.hidden_by(mask, name)
