"""What the three generations of names have in common."""

from dfa._attention import attention

# Values that ask for nothing.
_NOTHING = {"dropout_p": (0,), "attention_chunk": (0, None), "num_splits": (0, 1, None), "sm_margin": (0, None)}


def refuse(**arguments):
    """Raises on what no kernel here does, by the name of the argument."""
    for name, value in arguments.items():
        accepted = _NOTHING.get(name, (None,))
        if not any(value is one or isinstance(value, (int, float)) and not isinstance(value, bool) and value == one
                   for one in accepted):
            raise ValueError(f"{name} is not supported; accepted: {accepted[0]}")


# Further arguments of FlashAttention-4's functions, none of which is supported.
_OF_CUTE = {"qv", "score_mod", "score_mod_bwd", "mask_mod", "aux_tensors", "block_sparse_tensors", "block_sparse_tensors_bwd",
            "full_block_cnt", "full_block_idx", "mask_block_cnt", "mask_block_idx", "block_size", "q_descale", "k_descale", "v_descale"}


def refuse_others(others):
    """Arguments by name that a signature does not list: FlashAttention-4's are not supported, others are none."""
    for name in others:
        if name not in _OF_CUTE:
            raise TypeError(f"got an unexpected keyword argument '{name}'")
    refuse(**others)


def window_of(window_size):
    """dfa's: -1 on a side without a limit, which FlashAttention-4 calls None."""
    if window_size is None:
        return None
    return tuple(-1 if side is None else side for side in window_size)


def logits_of(softcap, alibi_slopes=None, sinks=None):
    """Options of dfa.attention: only what is there, as its usual call is the faster."""
    given = {"softcap": softcap or None, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return {name: value for name, value in given.items() if value is not None}


def attend(q, k, v, scale, causal, window_size, deterministic, logits):
    """(o, lse) of [b, s, h, d] tensors; o likewise. logits: of logits_of()."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dimensions; 4 are expected: batch, sequence, heads, head dim")
    o, lse = attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal, window=window_of(window_size), scale=scale,
                       deterministic=deterministic, return_lse=True, **logits)
    return o.transpose(1, 2), lse
