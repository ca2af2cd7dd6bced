"""New rows of a cache by one kernel of Triton: keys are rotated, both are rounded and go to their places, queries are rotated to a tensor of
their own, and each sequence's rows are counted. What has no place in the cache, by its length or its page, is not written. A row whose
position the table of rotations lacks becomes NaN."""

import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)  # of float8_e4m3fn
_TILE = 2048  # elements of a program
# Of tensors these are read one number at a time; of numbers these differ from batch to batch.
_FEW = ("table", "before", "used", "cos", "sin", "base", "k_descale", "v_descale", "cu_q", "cu_new")
_OF_BATCHES = ("b", "sq", "s_new", "rows_new", "pages", "columns", "table_row", "positions")
_CONSTANTS = 11  # numbers that are compiled in, the last ones


@triton.jit
def _sequence_of(row, begins, b):
    """Of packed rows: b where the row is of none."""
    low, high = row * 0, row * 0 + b
    while low < high:
        middle = (low + high) // 2
        behind = tl.load(begins + middle + 1) <= row
        low, high = tl.where(behind, middle + 1, low), tl.where(behind, high, middle)
    return low


@triton.jit
def _place_of(row, begins, b, rows):
    """(sequence, row of it, whether it is of one): of `rows` each, or packed."""
    if begins is None:
        sequence = row // rows
        begin = sequence * rows
    else:
        sequence = _sequence_of(row, begins, b)
        begin = tl.load(begins + tl.minimum(sequence, b))
    return sequence, row - begin, (sequence < b) & (begin <= row)


@triton.jit
def _turned(x, head, heads, here, cos, sin, cos_row, sin_row, positions, position, turns, D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
            COLUMNS: tl.constexpr):
    """(values of heads of a row at x, of its type, which of them are there), rotated where `turns`."""
    columns = tl.arange(0, COLUMNS)
    there = here[:, None] & (columns < D)[None, :]
    from_row = x + heads.to(tl.int64)[:, None] * head
    values = tl.load(from_row + columns[None, :], mask=there, other=0.0)
    if HALF > 0:
        if INTERLEAVED:
            first, pair = columns % 2 == 0, columns // 2
            other = tl.where(first, columns + 1, columns - 1)
        else:
            first = columns < HALF
            pair = tl.where(first, columns, columns - HALF)
            other = tl.where(first, columns + HALF, columns - HALF)
        in_pairs = columns < tl.where(turns, 2 * HALF, 0)
        known = columns < tl.where((position >= 0) & (position < positions), 2 * HALF, 0)
        c = tl.load(cos + position * cos_row + pair, mask=known, other=float("nan")).to(tl.float32)[None, :]
        s = tl.load(sin + position * sin_row + pair, mask=known, other=float("nan")).to(tl.float32)[None, :]
        partner = tl.load(from_row + other[None, :], mask=there & in_pairs[None, :], other=0.0).to(tl.float32)
        own = values.to(tl.float32)
        rotated = tl.where(first[None, :], own * c - partner * s, partner * s + own * c)
        values = tl.where(in_pairs[None, :], rotated.to(values.dtype), values)
    return values, there


@triton.jit
def _store(cache, at, head, heads, values, there, descale, of_sequence, of_head, E4M3: tl.constexpr, COLUMNS: tl.constexpr):
    if E4M3:
        values = values.to(tl.float32)
        if descale is not None:
            factors = tl.load(descale + of_sequence + heads * of_head, mask=tl.max(there.to(tl.int32), 1) > 0, other=1.0)
            values = tl.math.div_rn(values, factors[:, None])
        values = tl.where(values > _LARGEST, _LARGEST, tl.where(values < -_LARGEST, -_LARGEST, values))  # NaN stays NaN
    to = cache + at + heads.to(tl.int64)[:, None] * head + tl.arange(0, COLUMNS)[None, :]
    tl.store(to, values.to(cache.dtype.element_ty), mask=there)


@triton.jit
def _new_row(k, v, k_cache, v_cache, table, before, cos, sin, base, k_descale, v_descale, cu_new, b, s_new, pages, columns, table_row, positions,
             k_batch, v_batch, page, cos_row, sin_row, k_row, k_head, v_row, v_head, k_page, k_cache_row, k_cache_head, v_page, v_cache_row, v_cache_head,
             k_of_sequence, k_of_head, v_of_sequence, v_of_head, row, heads, HK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
             HALF: tl.constexpr, INTERLEAVED: tl.constexpr, E4M3: tl.constexpr, COLUMNS: tl.constexpr, COLUMNS_V: tl.constexpr):
    sequence, at, there = _place_of(row, cu_new, b, s_new)
    sequence = sequence.to(tl.int64)
    position = tl.load(before + sequence, mask=there, other=-1).to(tl.int64) + at
    column = position // page
    there = there & (position >= 0) & (column < columns)
    if table is None:
        number = sequence
    else:
        number = tl.load(table + sequence * table_row + column, mask=there, other=-1).to(tl.int64)
    here = heads < tl.where(there & (number >= 0) & (number < pages), HK, 0)
    if cu_new is None:
        k_at, v_at = sequence * k_batch + at * k_row, sequence * v_batch + at * v_row
    else:
        k_at, v_at = row.to(tl.int64) * k_row, row.to(tl.int64) * v_row
    angle = position
    if HALF > 0:
        angle = tl.load(base + sequence, mask=there, other=-1).to(tl.int64) + at
    inside = position - column * page
    keys, stored = _turned(k + k_at, k_head, heads, here, cos, sin, cos_row, sin_row, positions, angle, there, D, HALF, INTERLEAVED, COLUMNS)
    _store(k_cache, number * k_page + inside * k_cache_row, k_cache_head, heads, keys, stored, k_descale, sequence * k_of_sequence, k_of_head, E4M3, COLUMNS)
    values, kept = _turned(v + v_at, v_head, heads, here, cos, sin, cos_row, sin_row, positions, angle, there, DV, 0, INTERLEAVED, COLUMNS_V)
    _store(v_cache, number * v_page + inside * v_cache_row, v_cache_head, heads, values, kept, v_descale, sequence * v_of_sequence, v_of_head, E4M3, COLUMNS_V)


@triton.jit
def _query(q, turned, cos, sin, base, cu_q, b, sq, positions, q_batch, cos_row, sin_row, q_row, q_head, row, heads, HQ: tl.constexpr,
           D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, MOVES: tl.constexpr, COLUMNS: tl.constexpr):
    sequence, at, there = _place_of(row, cu_q, b, sq)
    sequence = sequence.to(tl.int64)
    if cu_q is None:
        q_at = sequence * q_batch + at * q_row
    else:
        q_at = row.to(tl.int64) * q_row
    angle = tl.load(base + sequence, mask=there, other=-1).to(tl.int64)
    if MOVES:
        angle += at
    values, stored = _turned(q + q_at, q_head, heads, heads < HQ, cos, sin, cos_row, sin_row, positions, angle, there, D, HALF, INTERLEAVED, COLUMNS)
    to = turned + (row.to(tl.int64) * HQ + heads[:, None]) * D + tl.arange(0, COLUMNS)[None, :]
    tl.store(to, values, mask=stored)


@triton.jit(do_not_specialize=_OF_BATCHES, do_not_specialize_on_alignment=_FEW)
def _append(q, k, v, turned, k_cache, v_cache, table, before, used, cos, sin, base, k_descale, v_descale, cu_q, cu_new,
            b, sq, s_new, rows_new, pages, columns, table_row, positions, q_batch, k_batch, v_batch, page, cos_row, sin_row,
            q_row, q_head, k_row, k_head, v_row, v_head, k_page, k_cache_row, k_cache_head, v_page, v_cache_row, v_cache_head,
            k_of_sequence, k_of_head, v_of_sequence, v_of_head,
            HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
            MOVES: tl.constexpr, E4M3: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr, COLUMNS_V: tl.constexpr):
    """A program: heads of one new row, or of one row of q behind them."""
    row, heads = tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    if tl.program_id(1) == 0:  # 128 sequences a program, further ones by turns
        for begin in range(row * 128, b, tl.num_programs(0) * 128):
            at = begin + tl.arange(0, 128)
            more = s_new
            if cu_new is not None:
                more = tl.load(cu_new + at + 1, mask=at < b, other=0) - tl.load(cu_new + at, mask=at < b, other=0)
            tl.store(used + at, tl.load(before + at, mask=at < b, other=0) + more, mask=at < b)
    if row < rows_new:
        _new_row(k, v, k_cache, v_cache, table, before, cos, sin, base, k_descale, v_descale, cu_new, b, s_new, pages, columns, table_row, positions,
                 k_batch, v_batch, page, cos_row, sin_row, k_row, k_head, v_row, v_head, k_page, k_cache_row, k_cache_head, v_page, v_cache_row,
                 v_cache_head, k_of_sequence, k_of_head, v_of_sequence, v_of_head, row, heads, HK, D, DV, HALF, INTERLEAVED, E4M3, COLUMNS, COLUMNS_V)
    elif HALF > 0:
        _query(q, turned, cos, sin, base, cu_q, b, sq, positions, q_batch, cos_row, sin_row, q_row, q_head, row - rows_new, heads,
               HQ, D, HALF, INTERLEAVED, MOVES, COLUMNS)


def launch_of(rows_q, numbers, hq, hk, d, dv, half, interleaved, moves, e4m3):
    """What a call of append() needs beside its tensors: (grid, numbers in the kernel's order). numbers: from b to v_of_head; rows_q: of q, which
    are rotated, 0 without rotation. None
    where that would be too many programs, or sequences."""
    columns, columns_v = triton.next_power_of_2(d), triton.next_power_of_2(dv)
    heads = min(triton.next_power_of_2(hk), max(1, _TILE // max(columns, columns_v)))
    grid = numbers[3] + rows_q, triton.cdiv(max(hk, hq if rows_q else 0), heads)
    if max(grid[0], numbers[0]) >= 2 ** 24 or grid[1] > 65535:
        return None
    return grid, (*numbers, hq, hk, d, dv, half, interleaved, moves, e4m3, heads, columns, columns_v)


def append(grid, tensors, numbers):
    """tensors: from q to cu_new, None for those that are not there. Returns what Triton compiled, None where it interprets. Products and sums
    round one by one, so that bits are those of PyTorch's operators."""
    compiled = _append[grid](*tensors, *numbers, enable_fp_fusion=False)
    _ready.add(_kind_of(tensors, numbers))
    return compiled


_ready = set()  # kinds of calls whose kernel is on their device


def is_ready(tensors, numbers):
    """Does append() find its kernel on the device, so that a CUDA graph may record it? While one records no kernel may be loaded."""
    return _kind_of(tensors, numbers) in _ready


def _kind_of(tensors, numbers):
    """Calls for which Triton compiles one kernel."""
    of_batches, others, constants = numbers[:len(_OF_BATCHES)], numbers[len(_OF_BATCHES):-_CONSTANTS], numbers[-_CONSTANTS:]
    return (tensors[0].device, tuple(None if x is None else x.dtype for x in tensors), tuple(n < 2 ** 31 for n in of_batches),
            tuple((n < 2 ** 31, n % 16 == 0, n == 1) for n in others), constants)


def again(compiled, grid):
    """launch(addresses, numbers, stream) of what append() compiled, past Triton's search for it; None where Triton has no such way.
    Addresses in the places of the first six tensors are to be multiples of 16, as they were then."""
    if compiled is None or not hasattr(type(compiled), "__getitem__") or tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        return None
    runner = compiled[(*grid, 1)]

    def launch(addresses, numbers, stream):
        runner(*addresses, *numbers, stream=stream)
    return launch
