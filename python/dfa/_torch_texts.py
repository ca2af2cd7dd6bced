"""mask_mod texts as functions of PyTorch's tensors, and the BlockMasks that they say.

The tree is walked with the library's own arithmetic (docs/design/0036-user-text.md): ints of 32 bits that wrap around, floats of fp32.
"""

import torch
from torch import Tensor

from dfa import _core
from dfa._logits import texts_name, texts_of
from dfa._shapes import shown

_TYPES = {"bool": torch.bool, "int": torch.int32, "float": torch.float32}
_PAIRS_AT_ONCE = 1 << 22  # what the operations of a text take of memory is some 20 bytes a pair


def _picked(chosen):
    """min or max: of a NaN and a number the number."""
    return lambda a, b: torch.where((a != a) | chosen(b, a), b, a)


def _of_64_bits(divide):
    """Of ints: 0 where the divisor is, and the least int by -1 wraps around."""
    def divided(a, b):
        return torch.where(b == 0, 0, divide(a.long(), torch.where(b == 0, 1, b).long())).int()
    return divided


def _quotient(a, b):
    return a / b if a.dtype == torch.float32 else _truncated_quotient(a, b)


def _integer(x):
    if x.dtype != torch.float32:
        return x.int()
    return x.double().nan_to_num(nan=0.0).clamp(-2.0 ** 31, 2.0 ** 31 - 1).int()


_truncated_quotient = _of_64_bits(lambda a, b: torch.div(a, b, rounding_mode="trunc"))
_OF_ONE = {"-": torch.neg, "!": torch.logical_not, "~": torch.bitwise_not, "": lambda x: x != 0, "int": _integer,
           "float": lambda x: x.to(torch.float32), "abs": torch.abs, "tanh": torch.tanh, "exp": torch.exp, "log": torch.log,
           "sqrt": torch.sqrt, "sin": torch.sin, "cos": torch.cos}
_OF_TWO = {"+": torch.add, "-": torch.sub, "*": torch.mul, "/": _quotient, "%": _of_64_bits(torch.fmod), "<": torch.lt, "<=": torch.le,
           ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne, "&": torch.bitwise_and, "|": torch.bitwise_or,
           "^": torch.bitwise_xor, "&&": torch.logical_and, "||": torch.logical_or, "<<": lambda a, b: a << (b & 31),
           ">>": lambda a, b: a >> (b & 31), "min": _picked(torch.lt), "max": _picked(torch.gt), "pow": torch.pow}
_OPERATIONS = {1: _OF_ONE, 2: _OF_TWO, 3: {"": torch.where}}


def mask_mod(text: str, sq: int, sk: int):
    """A mask_mod text as flex_attention has them: a function of the tensors b, h, q_idx and kv_idx, for so many queries and keys.

        create_block_mask(dfa.torch.mask_mod("kv_idx <= q_idx + sk - sq", sq, sk), None, None, sq, sk)

    Raises TypeError on what is no text, ValueError on its faults."""
    nodes = _core.mask_mod_nodes(_given(text))

    def sees(b, h, q_idx, kv_idx):
        names = {"b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx, "sq": sq, "sk": sk}
        values = []
        for symbol, kind, value, operands in nodes:
            if operands:
                values.append(_OPERATIONS[len(operands)][symbol](*(values[at] for at in operands)))
            else:
                value = names.get(symbol, value)
                values.append(value.int() if isinstance(value, Tensor) else
                              torch.full((), _number(value, kind), dtype=_TYPES[kind], device=q_idx.device))
        return values[-1]

    return sees


def _given(text):
    if text is None:
        raise TypeError("mask_mod is None; accepted: a text of one C++ expression")
    return texts_of(text, None)[0]


def _number(value, kind):
    return value if kind == "float" else int(value)


def block_mask(text: str, b: int, h: int, sq: int, sk: int, *, device: torch.device | str = "cpu", block_size: int | tuple[int, int] = 128):
    """The blocks that a mask_mod text shows, as a BlockMask of torch.nn.attention.flex_attention: what dfa.attention(…, block_mask=)
    and flex_attention take. Blocks that it hides whole are in no list, so that GPUs pass over them.

        blocks = dfa.torch.block_lists(dfa.torch.block_mask("kv_idx <= q_idx && q_idx - kv_idx < 1024", b, h, sq, sk, device="cuda"))
        o = dfa.attention(q, k, v, block_mask=blocks)

    text: as mask_mod= of dfa.attention; b, h: batches and query heads, of which a text that does not name them needs 1. It is
    evaluated once for all queries and keys, on the device, some rows of blocks at a time. block_size: of queries and keys, or one
    for both; dfa.attention takes multiples of 16. Raises TypeError and ValueError."""
    from torch.nn.attention.flex_attention import BlockMask
    sees = mask_mod(text, sq, sk)
    sides = block_size if isinstance(block_size, tuple) and len(block_size) == 2 else (block_size, block_size)
    for name, size in zip(("b", "h", "sq", "sk", "block_size", "block_size"), (b, h, sq, sk, *sides)):
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2 ** 31:
            raise ValueError(f"{name} is {shown(size)}; accepted: a whole number from 1 on")
    maps = tuple(size if texts_name([text], name) else 1 for name, size in (("b", b), ("h", h)))
    places = ((batch, head) for batch in range(maps[0]) for head in range(maps[1]))
    counts = torch.stack([_counted(sees, *at, (sq, sk), sides, device) for at in places]).unflatten(0, maps)
    whole = counts == sides[0] * sides[1]
    lists = *_listed((counts > 0) & ~whole), *_listed(whole)
    return BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=sides, mask_mod=sees, seq_lengths=(sq, sk))


def _counted(sees, batch, head, sizes, sides, device):
    """How many pairs of each block are seen, [rows, columns]."""
    (sq, sk), (block_q, block_k) = sizes, sides
    b, h = (torch.tensor(at, device=device) for at in (batch, head))
    keys = torch.arange(sk, device=device)
    at_once = max(1, _PAIRS_AT_ONCE // (block_q * sk)) * block_q
    parts = []
    for first in range(0, sq, at_once):
        queries = torch.arange(first, min(first + at_once, sq), device=device)[:, None]
        seen = sees(b, h, queries, keys).expand(len(queries), sk)
        seen = torch.nn.functional.pad(seen, (0, -sk % block_k, 0, -len(queries) % block_q))
        parts.append(seen.unflatten(1, (-1, block_k)).unflatten(0, (-1, block_q)).sum((1, 3)))
    return torch.cat(parts)


def _listed(blocks):
    """(how many, which) of the blocks [b, h, rows, columns] that are True, as BlockMask has them."""
    return blocks.sum(3, dtype=torch.int32), (~blocks).to(torch.uint8).argsort(dim=3, stable=True).to(torch.int32)
