"""softcap, alibi_slopes, bias, sinks, mask_mod and score_mod of a call: what is given, checked."""

import re

from dfa import _core
from dfa._shapes import number_of, shown


HIDES = -1e30  # a bias below hides its key, as -inf does (kBiasHides in dfa/mask.h)


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


def texts_of(mask_mod, score_mod):
    """(mask_mod, score_mod) as plans take them, "" for none. The planner reads them."""
    for name, text in (("mask_mod", mask_mod), ("score_mod", score_mod)):
        if text is not None and not isinstance(text, str):
            raise TypeError(f"{name} is {shown(text)}; accepted: a text of one C++ expression, or None")
        if text == "":
            raise ValueError(f"{name} is empty; accepted: a text of one C++ expression, or None")
    return mask_mod or "", score_mod or ""


def short_texts_of(mask_mod, score_mod):
    """Likewise, read here and in their shortest spelling. Raises ValueError where one is wrong."""
    return _core.short_texts(*texts_of(mask_mod, score_mod))


def texts_name(texts, *names):
    """Does one of the texts name one of these, such as "b"?"""
    return any(re.search(rf"\b(?:{'|'.join(names)})\b", text) for text in texts)


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


def bias_text(shape, dtype):
    """What the planner is told of a bias of four dimensions: "b,1,q,k,fp32", with 1 where it is one value for all."""
    return ",".join([*(name if size > 1 else "1" for name, size in zip("bhqk", shape)), dtype])


def check_bias_shape(shape, b, hq, sq, sk, more=True, name="bias"):
    """Raises ValueError unless a bias of this shape, or what has this name, is there for every batch, head, query and key.

    more: and for others yet."""
    if len(shape) == 4 and shape[0] in (1, b) and shape[1] in (1, hq) and all(
            size in (1, wanted) or (more and size > wanted) for size, wanted in zip(shape[2:], (sq, sk))):
        return
    raise ValueError(f"{name} has shape {list(shape)}; accepted: [b, hq, sq, sk] with 1 where it is one value for all, here "
                     f"{[b, hq, sq, sk]}")
