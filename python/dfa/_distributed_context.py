"""torch.distributed.tensor.experimental.context_parallel's block, with dfa's ring inside."""

import contextlib
import threading

import torch

from dfa._distributed_agree import Places
from dfa._shapes import flag_of, shown

_functional = torch.nn.functional
_open = threading.Lock()  # the switch is the process's, and ranks cannot be in two blocks


@contextlib.contextmanager
def context_parallel(mesh, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None, method="auto"):
    """In the place of torch.distributed.tensor.experimental.context_parallel: inside the block, buffers hold this rank's rows, in
    zigzag pieces, and torch.nn.functional.scaled_dot_product_attention is of whole sequences whose rows lie on the ranks.

        with dfa.distributed.context_parallel(mesh, buffers=[tokens, labels, positions], buffer_seq_dims=[1, 1, 0]):
            loss = model(tokens, positions, labels)
            loss.backward()

    buffers are cut in place along buffer_seq_dims and put back afterwards, except no_restore_buffers; none may require a gradient.
    Lengths need not divide. mesh: a DeviceMesh, also ring × heads; a ProcessGroup, or None for all ranks. method: as in
    context_parallel_attention.

    Of the function inside: as many rows of query as of key on each rank; is_causal, scale, enable_gqa, gradients. attn_mask and
    dropout_p raise ValueError by their names. Calls that PyTorch makes from C++ do not come here, nor do those of modules that
    imported the function itself; flex_attention stays what it is. The switch is the process's: one block at a time.
    """
    from dfa.distributed import shard
    Places(mesh)  # says what cannot be a group
    buffers, dims, left = _checked(buffers, buffer_seq_dims, no_restore_buffers)
    if not _open.acquire(blocking=False):
        raise RuntimeError("context_parallel inside of a context_parallel; accepted: one block at a time")
    found, cut = _functional.scaled_dot_product_attention, []
    try:
        with torch.no_grad():
            parts = [shard(x, mesh, dim, layout="zigzag") for x, dim in zip(buffers, dims)]
            for x, part in zip(buffers, parts):  # each gets memory of its own: other tensors may be views of what it lies in
                whole = x.detach()
                x.set_(part)
                cut.append((x, whole))
        _functional.scaled_dot_product_attention = _attention_over(mesh, method)
        try:
            yield
        finally:
            cut = [(x, whole) for x, whole in cut if not any(x is one for one in left)]
    finally:
        _functional.scaled_dot_product_attention = found
        with torch.no_grad():
            for x, whole in cut:
                x.set_(whole)
        _open.release()


def _checked(buffers, dims, left):
    buffers, dims, left = list(buffers or ()), list(dims or ()), list(left or ())
    if len(buffers) != len(dims):
        raise ValueError(f"buffer_seq_dims has {len(dims)} dimensions for {len(buffers)} buffers; accepted: one for each")
    for at, x in enumerate(buffers):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"buffers[{at}] is {type(x).__qualname__}; accepted: a tensor")
        if x.requires_grad:
            raise ValueError(f"buffers[{at}] requires a gradient and cannot be cut in place; accepted: shard() of it, in the block")
        if any(x is one for one in buffers[:at]):
            raise ValueError(f"buffers[{at}] is there twice; accepted: each tensor once")
    if not all(any(one is x for x in buffers) for one in left):
        raise ValueError("no_restore_buffers has a tensor that is none of buffers; accepted: some of them")
    return buffers, dims, left


def _attention_over(mesh, method):
    from dfa.distributed import context_parallel_attention

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
        """torch.nn.functional.scaled_dot_product_attention of whole sequences, each rank's rows."""
        if attn_mask is not None:
            raise ValueError("attn_mask in a context_parallel block is not supported; accepted: None, and is_causal")
        if dropout_p != 0:
            raise ValueError(f"dropout_p={shown(dropout_p)} in a context_parallel block is not supported; accepted: 0")
        if query.dim() != 4 or key.dim() != 4 or query.shape[2] != key.shape[2]:
            raise ValueError(f"query {list(query.shape)} and key {list(key.shape)} in a context_parallel block; accepted: [b, heads, rows, "
                             "d] with as many rows of each, this rank's")
        if not flag_of("enable_gqa", enable_gqa) and query.shape[1] != key.shape[1]:
            raise ValueError(f"query has {query.shape[1]} heads, key {key.shape[1]}; enable_gqa=True lets them share")
        return context_parallel_attention(*map(_lying, (query, key, value)), group=mesh, causal=flag_of("is_causal", is_causal),
                                          scale=scale, method=method, layout="zigzag", check="once")
    return scaled_dot_product_attention


def _lying(x):
    return x if x.is_contiguous() or x.transpose(1, 2).is_contiguous() else x.contiguous()
