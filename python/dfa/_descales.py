"""What calls of float8_e4m3fn have in common, whatever library their arrays are of: descales, and options that they do not take."""

from numbers import Real

from dfa._dropout import probability_of
from dfa._shapes import shown

_MOST = float.fromhex("0x1.fffffep+127")  # of float32


def descale_number(name, value):
    """The value where it is no number of Python's or NumPy's, else one that float32 has. Raises ValueError where it has none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return value
    if not abs(value) <= _MOST:
        raise ValueError(f"{name} is {shown(value)}; accepted: a finite number of float32")
    return float(value)


def check_descale_shape(name, shape, b, hk):
    """Raises ValueError on other shapes than [], and [b, hk] with 1 where it is one for all."""
    if len(shape) not in (0, 2) or len(shape) == 2 and (shape[0] not in (1, b) or shape[1] not in (1, hk)):
        raise ValueError(f"{name} has shape {list(shape)}; accepted: [b, hk] with 1 where it is one for all, here {[b, hk]}, or []")


def refuse_others(kind, dropout_p, others):
    """Raises ValueError where options are given that these calls do not take. kind: what they are of."""
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} is not supported beside {kind} in float8_e4m3fn; accepted: None")
    if probability_of(dropout_p):
        raise ValueError(f"dropout_p is {dropout_p}, which is not supported beside {kind} in float8_e4m3fn; accepted: 0")
