"""Parts added by one kernel of Triton: each element is read once of each part and written once, the sum is float32."""

import torch
import triton
import triton.language as tl

_ROWS = 16


@triton.jit
def _of_part(x, lse, begin, end, batch, head, row, b, h, heads, rows, columns, inside, WEIGHTED: tl.constexpr):
    """(values, lse) of these rows; where the part has none, 0 and -inf."""
    here = (rows >= begin) & (rows < end)
    at = (rows - begin).to(tl.int64)
    offsets = b * batch + h * head + at[:, None] * row + columns[None, :]
    values = tl.load(x + offsets, mask=here[:, None] & inside[None, :], other=0.0).to(tl.float32)
    if WEIGHTED:
        of = tl.load(lse + (b * heads + h) * (end - begin) + at, mask=here, other=-float("inf"))
    else:
        of = tl.zeros([rows.shape[0]], tl.float32)
    return values, of


# Where parts begin and end changes from call to call: no kernel of its own for each such number.
_ANY = [f"{name}{at}" for name in ("begin", "end") for at in range(4)] + ["all_rows", "blocks"]


@triton.jit(do_not_specialize=_ANY)
def _add(o, o_lse, sinks, x0, x1, x2, x3, l0, l1, l2, l3,
         begin0, end0, batch0, head0, row0, begin1, end1, batch1, head1, row1,
         begin2, end2, batch2, head2, row2, begin3, end3, batch3, head3, row3,
         heads, all_rows, blocks, o_batch, o_head, o_row, d,
         COUNT: tl.constexpr, WEIGHTED: tl.constexpr, SINKS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    b = (tl.program_id(0) // blocks // heads).to(tl.int64)
    h = (tl.program_id(0) // blocks % heads).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = columns < d
    v0, s0 = _of_part(x0, l0, begin0, end0, batch0, head0, row0, b, h, heads, rows, columns, inside, WEIGHTED)
    most = s0
    if COUNT > 1:
        v1, s1 = _of_part(x1, l1, begin1, end1, batch1, head1, row1, b, h, heads, rows, columns, inside, WEIGHTED)
        most = tl.maximum(most, s1)
    if COUNT > 2:
        v2, s2 = _of_part(x2, l2, begin2, end2, batch2, head2, row2, b, h, heads, rows, columns, inside, WEIGHTED)
        most = tl.maximum(most, s2)
    if COUNT > 3:
        v3, s3 = _of_part(x3, l3, begin3, end3, batch3, head3, row3, b, h, heads, rows, columns, inside, WEIGHTED)
        most = tl.maximum(most, s3)
    if WEIGHTED:
        if SINKS:
            sink = tl.load(sinks + h)
            most = tl.maximum(most, sink)
        base = tl.where(most == -float("inf"), 0.0, most)
        w0 = tl.exp(s0 - base)
        weight = w0
        total = v0 * w0[:, None]
        if COUNT > 1:
            w1 = tl.exp(s1 - base)
            weight += w1
            total += v1 * w1[:, None]
        if COUNT > 2:
            w2 = tl.exp(s2 - base)
            weight += w2
            total += v2 * w2[:, None]
        if COUNT > 3:
            w3 = tl.exp(s3 - base)
            weight += w3
            total += v3 * w3[:, None]
        if SINKS:
            weight += tl.exp(sink - base)
        nothing = weight == 0.0
        total = total / tl.where(nothing, 1.0, weight)[:, None]
        lse = tl.where(nothing, -float("inf"), base + tl.log(tl.where(nothing, 1.0, weight)))
        tl.store(o_lse + (b * heads + h) * all_rows + rows.to(tl.int64), lse, mask=rows < all_rows)
    else:
        total = v0
        if COUNT > 1:
            total += v1
        if COUNT > 2:
            total += v2
        if COUNT > 3:
            total += v3
    to = b * o_batch + h * o_head + rows.to(tl.int64)[:, None] * o_row + columns[None, :]
    tl.store(o + to, total.to(o.dtype.element_ty), mask=(rows < all_rows)[:, None] & inside[None, :])


def add(parts, like, dtype, weighted, sinks):
    """(x, lse) of all rows of `like`, laid out as it is."""
    o = torch.empty_like(like, dtype=dtype)
    b, h, rows, d = like.shape
    lse = torch.empty(b, h, rows, dtype=torch.float32, device=like.device) if weighted else None
    if rows == 0 or not parts:
        return o.zero_(), lse if lse is None else lse.fill_(-torch.inf if sinks is None else sinks.view(1, -1, 1))
    filled = [*parts, *[parts[0]] * (4 - len(parts))]
    xs = [part.x if part.x.stride(3) == 1 else part.x.contiguous() for part in filled]
    lses = [part.lse.contiguous() if weighted else part.x for part in filled]
    fields = [value for part, x in zip(filled, xs) for value in (part.begin, part.end(), *x.stride()[:3])]
    blocks = triton.cdiv(rows, _ROWS)
    with torch.cuda.device_of(like):
        _add[(blocks * b * h,)](o, lse if weighted else o, sinks if sinks is not None else o, *xs, *lses, *fields, h, rows, blocks,
                                *o.stride()[:3], d, COUNT=len(parts), WEIGHTED=weighted, SINKS=sinks is not None, ROWS=_ROWS,
                                COLUMNS=triton.next_power_of_2(d))
    return o, lse
