"""Sizes, strides and masks of one call, checked and put as the planner wants them."""


def sizes_of(q, k, v):
    """(b, hq, hk, sq, sk, d, dv) of shapes [b, hq, sq, d], [b, hk, sk, d], [b, hk, sk, dv]."""
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise ValueError(f"{name} has {len(shape)} dimensions; 4 are expected: "
                             "batch, heads, sequence, head dim")
    b, hq, sq, d = q
    _, hk, sk, dv = v
    if tuple(k) != (b, hk, sk, d) or v[0] != b:
        raise ValueError(f"shapes do not match: q {tuple(q)}, k {tuple(k)}, v {tuple(v)}; expected "
                         "q [b, hq, sq, d], k [b, hk, sk, d], v [b, hk, sk, dv]")
    return b, hq, hk, sq, sk, d, dv


def strides_of(name, shape, strides):
    """(batch, head, row) in elements. A dimension of one element gets its dense stride: libraries
    put anything there."""
    _, heads, rows, columns = shape
    if columns > 1 and strides[3] != 1:
        raise ValueError(f"{name} is not contiguous in its last dimension (stride {strides[3]}); "
                         "make it so before the call")
    batch, head, row = strides[:3]
    if rows == 1:
        row = columns
    if heads == 1:
        head = rows * row
    if shape[0] == 1:
        batch = max(heads * head, rows * row)
    if 0 in (batch, head, row):
        raise ValueError(f"{name} repeats its elements (stride 0, from broadcasting); copy it first")
    return batch, head, row


def window_of(causal, window):
    """(left, right): keys a query sees on each side of its own position, -1 for no limit."""
    if window is None:
        window = (-1, -1)
    if (not isinstance(window, (tuple, list)) or len(window) != 2 or isinstance(window[0], float)
            or isinstance(window[1], float)):
        raise ValueError(f"window {window!r}; accepted: (left, right), whole numbers of keys, -1 for no limit")
    left, right = window
    if min(left, right) < -1:
        raise ValueError(f"window ({left}, {right}); -1 or more on each side")
    return (left, 0) if causal else (left, right)


def scale_of(scale):
    """The planner's scale, for which 0 means 1 / sqrt(d)."""
    if scale is None:
        return 0.0
    if scale == 0:
        raise ValueError("scale 0; a number other than 0 is expected, or None for 1 / sqrt(d)")
    return float(scale)


def rows_before_heads(shape, strides):
    """Does the memory lie as [b, s, h, d]? The output is then laid out so, too."""
    return shape[1] > 1 and shape[2] > 1 and strides[1] < strides[2]


def dense_strides(shape, rows_first):
    """(batch, head, row) of a dense array of this shape, in the order that rows_first says."""
    _, heads, rows, columns = shape
    if rows_first:
        return heads * rows * columns, columns, heads * columns
    return heads * rows * columns, rows * columns, columns
