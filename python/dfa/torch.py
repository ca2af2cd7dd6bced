"""For models written in PyTorch: a layer, and a switch for those that call PyTorch's function.

    dfa.torch.MultiheadAttention(512, 8)     # in the place of torch.nn.MultiheadAttention
    with dfa.torch.enable(): model(x)        # torch.nn.functional.scaled_dot_product_attention is ours
"""

import contextlib
import threading

import torch

from dfa import _torch as _operators  # noqa: F401: programs that torch.export has saved find them registered
from dfa._attention import attention

_functional = torch.nn.functional


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False,
                                 scale=None, enable_gqa=False):
    """torch.nn.functional.scaled_dot_product_attention, by dfa.attention.

    query [b, hq, sq, d], key [b, hk, sk, d], value [b, hk, sk, dv] → [b, hq, sq, dv]. As there,
    is_causal is aligned to the first query and key (dfa.attention aligns to the last).
    Raises ValueError on attn_mask and dropout_p: no kernel here has them.
    """
    if attn_mask is not None:
        raise ValueError("attn_mask is not supported; accepted: None, with is_causal for a causal mask")
    if dropout_p != 0:
        raise ValueError(f"dropout_p={dropout_p} is not supported; accepted: 0")
    sq, sk = query.shape[-2], key.shape[-2]
    window = None
    if is_causal and sk > sq:  # keys beyond the last query are seen by none
        key, value = key[..., :sq, :], value[..., :sq, :]
    elif is_causal and sq > sk:
        is_causal, window = False, (-1, sq - sk)
    if key.shape[1] != query.shape[1] and not enable_gqa:
        raise ValueError(f"query has {query.shape[1]} heads, key {key.shape[1]}; enable_gqa=True lets "
                         "them share")
    return attention(query, key, value, causal=is_causal, window=window, scale=scale)


@contextlib.contextmanager
def enable():
    """Calls of torch.nn.functional.scaled_dot_product_attention come here, inside the block.

    The switch is the process's: other threads come here too, until the last block of all threads has ended; then the
    function that the first one found is put back. Only calls by that name from Python: what PyTorch calls from C++ (its own
    transformer layers' fast path) stays there. What is not supported raises ValueError and does not fall back.
    """
    global _blocks, _found
    with _lock:
        if _blocks == 0:
            _found = _functional.scaled_dot_product_attention
        _blocks += 1
        _functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _functional.scaled_dot_product_attention = _found


_lock = threading.Lock()
_blocks, _found = 0, None  # how many blocks are open; what the first of them found


class MultiheadAttention(torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention by dfa.attention: same parameters, same state_dict.

    Not supported, ValueError: dropout, bias_k and zero-attention keys, key_padding_mask, attn_mask
    other than with is_causal, need_weights (whose default is False here).
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0, **options):
        if dropout:
            raise ValueError(f"dropout={dropout} is not supported; accepted: 0")
        if options.get("add_bias_kv") or options.get("add_zero_attn"):
            raise ValueError("add_bias_kv and add_zero_attn are not supported")
        super().__init__(embed_dim, num_heads, **options)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=False, attn_mask=None,
                average_attn_weights=True, is_causal=False):
        """query [b, sq, e], or [sq, b, e] unless batch_first, or [sq, e] → (output, None)."""
        if need_weights:
            raise ValueError("need_weights=True is not supported: the weights are never in memory")
        if key_padding_mask is not None or (attn_mask is not None and not is_causal):
            raise ValueError("masks are not supported; accepted: is_causal=True")
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        heads = (self._heads(x) for x in self._projected(query, key, value))
        o = scaled_dot_product_attention(*heads, is_causal=is_causal)
        output = self.out_proj(o.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), None
        return (output if self.batch_first else output.transpose(0, 1)), None

    def _projected(self, query, key, value):
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return map(_functional.linear, (query, key, value), weights, biases)

    def _heads(self, x):
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)
