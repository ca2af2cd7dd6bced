"""What calls of float8_e4m3fn have in common, whatever library their arrays are of: descales, and options that they do not take."""

from numbers import Real
from operator import index

from dfa._dropout import probability_of
from dfa._shapes import shown

_MOST = float.fromhex("0x1.fffffep+127")  # of float32
_MOST_ROWS = 2 ** 40


def descale_number(name, value):
    """The value where it is no number of Python's or NumPy's, else one that float32 has. Raises ValueError where it has none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return value
    if not abs(value) <= _MOST:
        raise ValueError(f"{name} is {shown(value)}; accepted: a finite number of float32")
    return float(value)


def descale_rows_of(value):
    """How many rows share a factor; 0 for None: all. Raises TypeError and ValueError on what is no multiple of 64."""
    if value is None:
        return 0
    try:
        rows = index(None if isinstance(value, bool) else value)
    except TypeError:
        raise TypeError(f"descale_rows is {shown(value)}; accepted: a whole number, a multiple of 64, or None") from None
    if not 64 <= rows <= _MOST_ROWS or rows % 64:
        raise ValueError(f"descale_rows is {rows}; accepted: a multiple of 64 up to 2^40, or None")
    return rows


def check_descale_shape(name, shape, *sizes):
    """Raises ValueError on other shapes than [], [b, hk], and the sizes' own, which are these, or with the number of blocks of
    rows; 1 where it is one for all."""
    def fits(given, whole):
        return len(given) == len(whole) and all(x in (1, size) for x, size in zip(given, whole))
    if len(shape) and not fits(shape, sizes) and not fits(shape, sizes[:2]):
        kinds = "[b, hk]" if len(sizes) == 2 else "[b, hk, blocks of descale_rows] or [b, hk]"
        raise ValueError(f"{name} has shape {list(shape)}; accepted: {kinds} with 1 where it is one for all, here {list(sizes)}, or []")


def descale_sizes(b, hk, rows, descale_rows):
    """Of the factors of so many rows: b, hk, and the number of blocks where descale_rows is not 0."""
    return (b, hk, (rows + descale_rows - 1) // descale_rows) if descale_rows else (b, hk)


def refuse_others(kind, dropout_p, others):
    """Raises ValueError where options are given that these calls do not take. kind: what they are of."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} is not supported beside {kind} in float8_e4m3fn; accepted: None")
    if probability_of(dropout_p):
        raise ValueError(f"dropout_p is {dropout_p}, which is not supported beside {kind} in float8_e4m3fn; accepted: 0")
