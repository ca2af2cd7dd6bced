"""What the user wants: parsed by the library, and how a call's plan is chosen by it."""

import functools
import os

from dfa import _core

_TURNS_CARD = ("limit", "clock")
_CHOOSES = ("max_performance", "min_energy", "edp", "latency")  # a plan a call; caps hold over time


class Policy:
    """max_performance, min_energy, edp, power_cap:500W, temp_cap:70C or latency:2ms.

        tuned = dfa.Policy("min_energy", profile="h200.db")     # rows of `dfa tune`
        o = dfa.attention(q, k, v, policy=tuned)

    profile: the SQLite file of `dfa tune`, which must hold a row of these sizes or of a problem of the same kind within
    a factor of four (then in proportion to the work: the plan says so), measured on this machine with this version;
    strides and scale do not matter. "shipped" names the rows that this library brings for some
    cards. Without one only max_performance, the library's own choice,
    can be followed. Caps are held over time: dfa.Governor. limit:450W and clock:1200MHz turn the levers of
    a card that is lent: dfa power, dfa privileges.

    goal and value tell what was parsed (watts, degrees Celsius, seconds, MHz, or 0). Raises ValueError that
    names the text and what is accepted.
    """

    goal: str
    value: float
    profile: str | None

    def __init__(self, text: str, profile: str | os.PathLike[str] | None = None):
        if not isinstance(text, str):
            raise TypeError(f"policy is {type(text).__qualname__}; accepted: a text such as power_cap:500W")
        self._text, self.goal, self.value = _core.parse_policy(text)
        self.profile = profile if profile in (None, "shipped") else os.path.abspath(profile)

    def __str__(self):
        return self._text

    def __repr__(self):
        profile = f", profile={self.profile!r}" if self.profile else ""
        return f"dfa.Policy({self._text!r}{profile})"

    def __eq__(self, other):
        return isinstance(other, Policy) and (self._text, self.profile) == (other._text, other.profile)

    def __hash__(self):
        return hash((self._text, self.profile))


def choice_of(algorithm, policy):
    """How a plan is chosen, in one text that passes through operators: an algorithm's name, or
    POLICY@PROFILE."""
    if isinstance(policy, Policy):
        return _constant_choice(algorithm, policy._text, policy.profile)
    if not isinstance(policy, str):
        raise TypeError(f"policy is {type(policy).__qualname__}; accepted: a text or dfa.Policy")
    return _constant_choice(algorithm, policy, None)


def _constant_choice(algorithm, text, profile):
    return _choice_of(algorithm, text, profile)


_constant_choice._dynamo_marked_constant = True  # as torch.compiler.assume_constant_result says: a graph holds the text


@functools.lru_cache(maxsize=256)
def _choice_of(algorithm, text, profile):
    policy = Policy(text, profile)
    if policy.goal in _TURNS_CARD:
        raise ValueError(f"policy {policy} turns a lever of the card itself, not a call: use dfa power, or ask the daemon of "
                         f"dfa privileges; accepted here: {', '.join(_CHOOSES)}")
    if policy.goal not in _CHOOSES:
        raise ValueError(f"policy {policy} holds over time, not for one call: use dfa.Governor; "
                         f"accepted here: {', '.join(_CHOOSES)}")
    if algorithm not in ("auto", "flash"):
        raise ValueError(f"algorithm '{algorithm}' with a policy, which chooses among tiles of "
                         "flash; accepted: auto, flash")
    if policy.profile is None and policy.goal == "max_performance":
        return algorithm
    if policy.profile is None:
        raise ValueError(f"policy {policy} chooses by what was measured: "
                         f"dfa.Policy('{policy}', profile=FILE), of `dfa tune`")
    if policy.profile != "shipped" and not os.path.exists(policy.profile):
        raise FileNotFoundError(f"profile '{policy.profile}' is not there; `dfa tune` makes one")
    return f"{policy}@{policy.profile}"


def split(choice):
    """(algorithm, policy, profile) of what choice_of made."""
    policy, at, profile = choice.partition("@")
    return ("flash", policy, profile) if at else (choice, "", "")
