"""softcap, alibi_slopes and sinks of a call: what is given, checked."""

from dfa._shapes import number_of


def softcap_of(softcap):
    """The planner's softcap, for which 0 means none."""
    if softcap is None:
        return 0.0
    value = softcap
    if type(value) is not float:
        value = number_of("softcap", value, "one number from 0 on, or None for none", "a number that is not learned")
    if not (value == 0 or 2.0 ** -100 <= value <= 2.0 ** 100):  # false of NaN, and what torch.compile can trace
        raise ValueError(f"softcap {value}; accepted: 2^-100 to 2^100, or 0 or None for none")
    return value


def check_shapes(alibi_slopes, sinks, b, hq):
    """Raises ValueError unless slopes have the shape [hq] or [b, hq], and sinks [hq]."""
    if alibi_slopes is not None and tuple(alibi_slopes.shape) not in ((hq,), (b, hq)):
        raise ValueError(f"alibi_slopes has shape {list(alibi_slopes.shape)}; accepted: [hq] or [b, hq], here [{hq}] or "
                         f"[{b}, {hq}]")
    if sinks is not None and tuple(sinks.shape) != (hq,):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; accepted: [hq], here [{hq}]")


def slopes_of_batch(alibi_slopes, hq):
    """Elements from one batch's slopes to the next's."""
    return hq if alibi_slopes is not None and len(alibi_slopes.shape) == 2 else 0
