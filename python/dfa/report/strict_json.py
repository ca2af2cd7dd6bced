"""JSON by the letter."""

import json
import math


def _refuse_constant(token):
    raise ValueError(f"{token} is not a JSON number")


def _each_key_once(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:64]!r} is there twice in one object")
        found[key] = value
    return found


def _finite(text):
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the range of numbers")
    return value


def parse_json(text):
    """What the text says, by the letter of JSON: each key once, finite numbers. ValueError on everything else."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
