"""dfa.quantize by two kernels of Triton: the largest of each part, then its numbers as float8_e4m3fn. x is read twice, x8 written once."""

import torch
import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)  # of float8_e4m3fn
_SMALLEST_FACTOR = tl.constexpr(2.0 ** -126)  # of smaller ones float32 loses digits
_TILE = 4096  # elements of a program


@triton.jit
def _tile_of(x, per_head, h, s, d, rows, batch, head, row, column, group, of_batch, of_head, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's rows of one block of one head: (values as float32, offsets in x8, which are there, the place of their factor)."""
    tiles = (rows + ROWS - 1) // ROWS
    which, of = tl.program_id(0) // per_head, tl.program_id(0) % per_head
    b, h_of, block = (which // h).to(tl.int64), (which % h).to(tl.int64), of // tiles
    inner = of % tiles * ROWS + tl.arange(0, ROWS)
    at = block.to(tl.int64) * rows + inner
    columns = tl.arange(0, COLUMNS)
    here = ((inner < rows) & (at < s))[:, None] & (columns < d)[None, :]
    offsets = b * batch + h_of * head + at[:, None] * row + columns.to(tl.int64)[None, :] * column
    values = tl.load(x + offsets, mask=here, other=0.0).to(tl.float32)
    return values, (which.to(tl.int64) * s + at)[:, None] * d + columns[None, :], here, b * of_batch + h_of // group * of_head + block * (of_head > 0)


@triton.jit
def _find_largest(x, bits, per_head, h, s, d, rows, batch, head, row, column, group, of_batch, of_head, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    values, to, here, part = _tile_of(x, per_head, h, s, d, rows, batch, head, row, column, group, of_batch, of_head, ROWS, COLUMNS)
    # Numbers without a sign are in the order of their bits, infinity and then NaN above all.
    tl.atomic_max(bits + part, tl.max(tl.max(tl.abs(values).to(tl.int32, bitcast=True), 1), 0))


@triton.jit
def _round(x, x8, largest, per_head, h, s, d, rows, batch, head, row, column, group, of_batch, of_head, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    values, to, here, part = _tile_of(x, per_head, h, s, d, rows, batch, head, row, column, group, of_batch, of_head, ROWS, COLUMNS)
    most = tl.load(largest + part)
    factor = tl.math.div_rn(most, _LARGEST)
    factor = tl.where(most == 0.0, 1.0, tl.where(factor < _SMALLEST_FACTOR, _SMALLEST_FACTOR, factor))
    values = tl.math.div_rn(values, factor)
    values = tl.where(values > _LARGEST, _LARGEST, tl.where(values < -_LARGEST, -_LARGEST, values))  # NaN stays NaN
    tl.store(x8 + to, values.to(x8.dtype.element_ty), mask=here)


def quantize(x, heads, block, dtype=torch.float8_e4m3fn):
    """(x8, largest) of x [b, h, s, d], none of them 0; x8 has dtype. largest, float32, is that of each batch, key head and block of rows,
    [b, heads, blocks], or where heads is None that of all, [1, 1, 1]."""
    b, h, s, d = x.shape
    rows = min(block or s, s)
    blocks = triton.cdiv(s, rows)
    columns = triton.next_power_of_2(d)
    of_tile = min(max(1, _TILE // columns), triton.next_power_of_2(rows))
    of = (1, 0, 0) if heads is None else (h // heads, heads * blocks, blocks)
    bits = torch.zeros((1, 1, 1) if heads is None else (b, heads, blocks), dtype=torch.int32, device=x.device)
    largest = bits.view(torch.float32)
    x8 = torch.empty(x.shape, dtype=dtype, device=x.device)
    per_head = blocks * triton.cdiv(rows, of_tile)
    sizes = (per_head, h, s, d, rows, *x.stride(), *of)
    with torch.cuda.device_of(x):
        _find_largest[(b * h * per_head,)](x, bits, *sizes, ROWS=of_tile, COLUMNS=columns)
        _round[(b * h * per_head,)](x, x8, largest, *sizes, ROWS=of_tile, COLUMNS=columns)
    return x8, largest
