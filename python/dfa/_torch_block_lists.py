"""BlockMasks of torch.nn.attention.flex_attention as the lists that kernels walk (BlockLists in dfa/attention.h)."""

from typing import NamedTuple

import torch
from torch import Tensor

_ABSENT, _WHOLE = -2, -1  # kAbsentBlock, kFullBlock
_PAIRS_AT_ONCE = 1 << 22  # of which mask_mod is evaluated together: what that takes is some 50 bytes a pair
_MOST_SIDE = 1 << 20


class BlockLists(NamedTuple):
    """Which blocks of queries and keys see each other; from dfa.torch.block_lists, for dfa.attention(…, block_mask=)."""

    sizes: tuple[int, int]  # sq, sk
    block_size: tuple[int, int]
    maps: tuple[int, int]  # batches and query heads, 1 where all have the same lists
    kv_counts: Tensor
    kv_indices: Tensor
    kv_bitmaps: Tensor | None
    q_counts: Tensor
    q_indices: Tensor
    q_bitmaps: Tensor | None
    bits: Tensor | None  # [bitmaps, block_q, words]

    @property
    def device(self) -> torch.device:
        return self.kv_counts.device

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self[3:]


@torch.compiler.disable  # what it makes depends on the mask's elements
def block_lists(block_mask) -> BlockLists:
    """A BlockMask as kernels take it, for more than one call: dfa.attention(q, k, v, block_mask=dfa.torch.block_lists(mask)).

    block_mask: of torch.nn.attention.flex_attention.create_block_mask or BlockMask.from_kv_blocks, block sizes in multiples of
    16, lists of int32 for 1 or all batches and for 1 or all query heads. mask_mod is evaluated for the blocks of kv_indices, at
    batch or head 0 where the lists are for all, and not again: what it reads must not change. Equal blocks share their bits, of
    which each takes block_q · block_k / 8 bytes; beside those there are 4 bytes for each pair of blocks, eight times.

    A GPU is waited for. Raises TypeError on what is no BlockMask, ValueError on lists that name no block, or one twice, and on
    block sizes.
    """
    from torch.nn.attention.flex_attention import BlockMask
    if not isinstance(block_mask, BlockMask):
        raise TypeError(f"block_mask is {type(block_mask).__qualname__}; accepted: a BlockMask of "
                        "torch.nn.attention.flex_attention, or dfa.torch.block_lists of one")
    with torch.no_grad():
        return _lists_of(block_mask)


def _lists_of(mask):
    block_q, block_k = map(int, mask.BLOCK_SIZE)
    for side in (block_q, block_k):
        if side % 16 or not 16 <= side <= _MOST_SIDE:
            raise ValueError(f"block_mask has BLOCK_SIZE {(block_q, block_k)}; accepted: multiples of 16, up to 2^20")
    sq, sk = map(int, mask.shape[-2:])
    batches, heads, rows = mask.kv_num_blocks.shape
    columns = -(-sk // block_k)
    if rows != -(-sq // block_q):
        raise ValueError(f"block_mask has lists of {rows} blocks of {block_q} queries for a length of {sq}; accepted: "
                         f"{-(-sq // block_q)}")
    states = torch.full((batches, heads, rows, columns), _ABSENT, dtype=torch.int32, device=mask.kv_num_blocks.device)
    flat = states.view(-1)
    if mask.full_kv_num_blocks is not None:
        flat[_places("full_kv", mask.full_kv_num_blocks, mask.full_kv_indices, states.shape)] = _WHOLE
    partial = _places("kv", mask.kv_num_blocks, mask.kv_indices, states.shape)
    if (flat[partial] == _WHOLE).any():
        raise ValueError("block_mask has a block in kv_indices and in full_kv_indices; accepted: each block once")
    flat[partial], bits = _bitmaps(mask.mask_mod, partial, states.shape, (sq, sk), (block_q, block_k))
    turned = states.transpose(2, 3).contiguous()
    by_queries, by_keys = _listed(states, bits), _listed(turned, bits)
    return BlockLists((sq, sk), (block_q, block_k), (batches, heads), *by_queries, *by_keys, bits)


def _places(name, counts, indices, shape):
    """Where, in all blocks [b, h, rows, columns] one after the other, those of a list are."""
    if indices is None or counts.shape != shape[:3] or indices.shape[:3] != shape[:3]:
        given = None if indices is None else list(indices.shape)
        raise ValueError(f"block_mask has {name}_num_blocks of shape {list(counts.shape)} and {name}_indices of shape {given}; "
                         f"accepted: {list(shape[:3])}, and as many rows of blocks")
    most = min(indices.shape[3], shape[3])
    if ((counts < 0) | (counts > most)).any():
        raise ValueError(f"block_mask has numbers from {int(counts.min())} to {int(counts.max())} in {name}_num_blocks; "
                         f"accepted: 0 to {most}")
    live = torch.arange(indices.shape[3], device=indices.device) < counts.unsqueeze(3)
    named = indices[live].long()
    if ((named < 0) | (named >= shape[3])).any():
        raise ValueError(f"block_mask names blocks from {int(named.min())} to {int(named.max())} in {name}_indices; accepted: 0 "
                         f"to {shape[3] - 1}")
    places = live.flatten(0, 2).nonzero()[:, 0] * shape[3] + named
    if places.unique().numel() != places.numel():
        raise ValueError(f"block_mask names a block twice in {name}_indices; accepted: each block once")
    return places


def _bitmaps(mask_mod, places, shape, sizes, block_size):
    """(number of the bitmap of each place, or whole, or absent; bits of them all, or None). Equal ones are one."""
    _, heads, rows, columns = shape
    states = torch.full_like(places, _WHOLE, dtype=torch.int32)
    parts = []
    at_once = max(1, _PAIRS_AT_ONCE // (block_size[0] * block_size[1]))
    for first in range(0, places.numel(), at_once):
        some = places[first:first + at_once]
        row, column = some // columns % rows, some % columns
        q, k = (_positions(blocks, side, size) for blocks, side, size in zip((row, column), block_size, sizes))
        seen = _seen(mask_mod, some // (columns * rows * heads), some // (columns * rows) % heads, q, k)
        seen &= _inside(row, block_size[0], sizes[0]).unsqueeze(2) & _inside(column, block_size[1], sizes[1]).unsqueeze(1)
        pairs = seen.sum((1, 2))
        all_pairs = _inside(row, block_size[0], sizes[0]).sum(1) * _inside(column, block_size[1], sizes[1]).sum(1)
        found = states[first:first + at_once]
        found[pairs == 0] = _ABSENT
        cut = (pairs > 0) & (pairs < all_pairs)
        found[cut] = 0
        parts.append(_packed(seen[cut]))
    if not any(len(part) for part in parts):
        return states, None
    bits, numbers = torch.cat(parts).unique(dim=0, return_inverse=True)
    states[states == 0] = numbers.to(torch.int32)
    return states, bits.contiguous()


def _positions(blocks, side, size):
    """Of the rows of blocks, [n, side]; those that are not there are the last, of which mask_mod may know."""
    return (blocks.unsqueeze(1) * side + torch.arange(side, device=blocks.device)).clamp_(max=size - 1)


def _inside(blocks, side, size):
    return blocks.unsqueeze(1) * side + torch.arange(side, device=blocks.device) < size


def _seen(mask_mod, b, h, q, k):
    """mask_mod of [n] batches and heads, [n, block_q] queries and [n, block_k] keys, as flex_attention calls it."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # documents[q], in vmap
    of_keys = torch.vmap(mask_mod, in_dims=(None, None, None, 0))
    of_blocks = torch.vmap(torch.vmap(of_keys, in_dims=(None, None, 0, None)))
    with TransformGetItemToIndex():
        seen = of_blocks(b, h, q, k)
    if seen.dtype != torch.bool:
        raise ValueError(f"block_mask has a mask_mod that returns {seen.dtype}; accepted: bool, True where a key is seen")
    return seen.clone()


def _packed(seen):
    """Bits of [n, block_q, block_k], 32 keys a word, as int32."""
    seen = torch.nn.functional.pad(seen, (0, -seen.shape[2] % 32)).unflatten(2, (-1, 32))
    return (seen.long() << torch.arange(32, device=seen.device)).sum(3).to(torch.int32)


def _listed(states, bits):
    """(counts, indices, bitmaps) of [b, h, lists, entries] states, entries ascending."""
    absent = states == _ABSENT
    order = absent.to(torch.uint8).argsort(dim=3, stable=True)
    bitmaps = None if bits is None else states.gather(3, order).clamp_(min=_WHOLE)
    return (~absent).sum(3, dtype=torch.int32), order.to(torch.int32), bitmaps
