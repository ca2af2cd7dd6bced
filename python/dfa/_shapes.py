"""Sizes, strides and options of one call, checked and put as the planner wants them."""

from operator import index

MOST_WIDE = 512  # head dims of the kernels: multiples of 8 up to this
MOST_WIDE_FORWARD = 576  # d where no gradient is asked for: latent heads have d 576 and dv 512
_MOST_POSITIONS = 1 << 40  # of a chunk or a prefix
_NO_LIMIT = 1 << 41  # keys: twice the longest sequence that there is
_LEAST_SCALE, _MOST_SCALE = 2.0 ** -126, 2.0 ** 127  # what the kernels' float32 holds


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
    if hq % hk != 0 if hk else hq != 0:
        raise ValueError(f"hq={hq} is not a multiple of hk={hk}: each head of k and v is that of "
                         "hq / hk heads of q")
    check_dims(d, dv)
    return b, hq, hk, sq, sk, d, dv


def check_dims(d, dv):
    """Raises ValueError above the head dims of the kernels."""
    if d > MOST_WIDE_FORWARD or dv > MOST_WIDE:
        raise ValueError(f"head dims are d={d}, dv={dv}; accepted: up to {MOST_WIDE}, d up to {MOST_WIDE_FORWARD} without gradients")


def check_differentiable(d):
    """Raises ValueError where d has a forward alone."""
    if d > MOST_WIDE:
        raise ValueError(f"head dim d={d} has no gradient; accepted: up to {MOST_WIDE}, or tensors that require none")


def varlen_sizes_of(q, k, v):
    """(total_q, total_k, hq, hk, d, dv) of shapes [total_q, hq, d], [total_k, hk, d], [total_k, hk, dv]."""
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 3:
            raise ValueError(f"{name} has {len(shape)} dimensions; 3 are expected: rows of all sequences, heads, head dim")
    total_k, hk, dv = v
    if tuple(k) != (total_k, hk, q[2]):
        raise ValueError(f"shapes do not match: q {tuple(q)}, k {tuple(k)}, v {tuple(v)}; expected q [total_q, hq, d], "
                         "k [total_k, hk, d], v [total_k, hk, dv]")
    _, hq, _, _, _, d, dv = sizes_of((1, q[1], q[0], q[2]), (1, hk, total_k, q[2]), (1, hk, total_k, dv))
    return q[0], total_k, hq, hk, d, dv


def nothing_to_read(sizes):
    """Is there no query or no key? Then o is zeros and lse is -inf, as of queries that see no key."""
    b, hq, _, sq, sk, _, _ = sizes
    return 0 in (b, hq, sq, sk)


def padded_width(width):
    """The head dim at which the kernels run: columns of zeros beyond `width` change no score."""
    return max(8, -(-width // 8) * 8)


def scale_at_width(scale, d):
    """The scale of scale_of for q and k that are padded from d columns: 1 / sqrt(d) in the place of
    0. Without columns all scores are 0, whatever the scale."""
    return scale or (d ** -0.5 if d else 1.0)


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


def lies_apart(shape, strides):
    """Is no element of [b, h, s, d] at the place of another, and the last dimension dense? Strides are in elements."""
    long = [(stride, size) for size, stride in zip(shape, strides) if size > 1]
    if shape[3] > 1 and strides[3] != 1 or any(stride == 0 for stride, _ in long):
        return False
    span = 1
    while long:
        least = 0  # by hand: torch.compile does not sort what it knows as symbols
        for at, (stride, _) in enumerate(long):
            if stride < long[least][0]:
                least = at
        stride, size = long.pop(least)
        if stride < span:
            return False
        span += stride * (size - 1)
    return True


def window_of(causal, window):
    """(left, right): keys a query sees on each side of its own position, -1 for no limit."""
    left, right = (-1, -1) if window is None else _sides_of(window)
    return (left, 0) if flag_of("causal", causal) else (left, right)


def _sides_of(window):
    try:
        if not isinstance(window, (tuple, list)):
            raise TypeError
        left, right = map(_side_of, window)
    except (TypeError, ValueError, RuntimeError):  # the last of tensors without a value: mapped, fake, on no device
        raise ValueError(f"window {shown(window)}; accepted: (left, right), whole numbers of keys, "
                         "-1 for no limit") from None
    if min(left, right) < -1:
        raise ValueError(f"window ({left}, {right}); -1 or more on each side")
    return left, right


def _side_of(side):
    if type(side) is not int:
        if isinstance(side, bool) or "bool" in str(getattr(side, "dtype", "")):
            raise TypeError
        side = index(side)
    return -1 if side >= _NO_LIMIT else side


def positions_of(window, chunk, prefix):
    """The planner's (chunk, prefix), for which 0 means none. window: what window_of made."""
    chunk, prefix = _positions_of("chunk", chunk), _positions_of("prefix", prefix)
    if chunk and prefix:
        raise ValueError(f"chunk={chunk} beside prefix={prefix}; accepted: one of them")
    if prefix and window != (-1, 0):
        raise ValueError(f"prefix={prefix} without causal, or beside a window; accepted: causal=True and no window")
    return chunk, prefix


def _positions_of(name, value):
    if value is None:
        return 0
    if type(value) is not int:
        try:
            if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
                raise TypeError
            value = index(value)
        except (TypeError, ValueError, RuntimeError):  # the last of tensors without a value: mapped, fake, on no device
            raise TypeError(f"{name} is {shown(value)}; accepted: a whole number of positions, or None") from None
    if not 1 <= value <= _MOST_POSITIONS:
        raise ValueError(f"{name}={value}; accepted: 1 to 2^40 positions, or None for none")
    return value


def flag_of(name, value):
    """A bool of Python or NumPy. All else has a truth that may not be meant: "no", arrays, tensors."""
    if value is True or value is False:
        return value
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name} is {shown(value)}; accepted: True or False")


def scale_of(scale):
    """The planner's scale, for which 0 means 1 / sqrt(d)."""
    if scale is None:
        return 0.0
    if type(scale) is not float:
        scale = number_of("scale", scale, "one real number, or None for 1 / sqrt(d)", "a number, with q multiplied by what is learned")
    if not _LEAST_SCALE <= abs(scale) <= _MOST_SCALE:
        raise ValueError(f"scale {scale:g}; accepted: a number other than 0 in float32's range, or None "
                         "for 1 / sqrt(d)")
    return scale


def number_of(name, value, accepted, unlearned):
    """The float of a number or of an array without dimensions that is no more than one. accepted: what a TypeError says;
    unlearned: what there is in the place of one that requires a gradient."""
    if getattr(value, "requires_grad", False):
        raise ValueError(f"{name} requires a gradient, which is not computed; accepted: {unlearned}")
    kind = str(getattr(value, "dtype", type(value).__name__))
    try:
        if getattr(value, "shape", ()) != () or any(word in kind for word in ("bool", "complex", "time")):
            raise TypeError
        if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
            raise TypeError
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError, RuntimeError):  # the last of tensors without a value: mapped, fake, on no device
        raise TypeError(f"{name} {shown(value)}; accepted: {accepted}") from None


def shown(value):
    """What was given, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def rows_before_heads(shape, strides):
    """Does the memory lie as [b, s, h, d]? The output is then laid out so, too."""
    return shape[1] > 1 and shape[2] > 1 and strides[1] < strides[2]


def dense_strides(shape, rows_first):
    """(batch, head, row) of a dense array of this shape, in the order that rows_first says."""
    _, heads, rows, columns = shape
    if rows_first:
        return heads * rows * columns, columns, heads * columns
    return heads * rows * columns, rows * columns, columns
