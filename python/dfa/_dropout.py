"""dropout_p and seed of a call: what is given, checked."""

from operator import index

from dfa._shapes import number_of, shown

SEEDS = "a whole number from 0 to 2^64 - 1"


def probability_of(dropout_p):
    """The planner's dropout, for which 0 means none. Raises TypeError on what is no number, ValueError outside of [0, 1)."""
    value = dropout_p
    if type(value) is not float:
        value = number_of("dropout_p", value, "one number from 0 on and below 1", "a number that is not learned")
    if not 0 <= value < 1:  # true of NaN, and what torch.compile can trace
        raise ValueError(f"dropout_p {value}; accepted: from 0 on and below 1")
    return value


def options_of(dropout_p):
    """Options of dfa.attention, whose mask is of PyTorch's own generator: none where nothing is dropped, as its usual call is the
    faster. Raises as probability_of()."""
    probability = probability_of(dropout_p)
    return {"dropout_p": probability} if probability else {}


def words_of(seed, others=""):
    """Seed and offset as two 64-bit integers with a sign. Raises ValueError on what is no seed."""
    try:
        if isinstance(seed, bool) or not 0 <= index(seed) < 2 ** 64:
            raise ValueError
        return (index(seed) + 2 ** 63) % 2 ** 64 - 2 ** 63, 0
    except (TypeError, ValueError):
        raise ValueError(f"seed {shown(seed)}; accepted: {SEEDS}{others}") from None


def refuse_seed(seed):
    """Raises where a seed is given beside no dropout."""
    if seed is not None:
        raise ValueError(f"seed {shown(seed)} beside dropout_p of 0; accepted: None")
