"""The problem line, `PASS DTYPE [MASK] bN hqN hkN sqN skN dN [dvN] …`, as a dict of columns.

Packed sequences, `lens(N,N,…)` in the place of b, sq and sk, are that many of the longest."""

import re

PASSES = ("fwd", "bwd", "fwdbwd")
DTYPES = ("fp32", "tf32", "fp16", "bf16", "e4m3")
SIZES = ("b", "hq", "hk", "sq", "sk", "d", "dv")
_SHORTHANDS = {"h": ("hq", "hk"), "s": ("sq", "sk")}
_LENGTHS = re.compile(r"(lens|lens_k)\(([0-9]+(?:,[0-9]+)*)\)")
_SIZE = re.compile(r"(hq|hk|sq|sk|dv|b|h|s|d)([1-9][0-9]*)")


def parse_problem(line):
    """Columns pass, dtype, mask, b, hq, hk, sq, sk, d, dv, width, lengths, extra; lengths: of packed sequences in words.

    ValueError names the token that is wrong.
    """
    tokens = line.split()
    if len(tokens) < 2 or tokens[0] not in PASSES or tokens[1] not in DTYPES:
        raise ValueError(f"problem '{line}' starts with neither of {', '.join(PASSES)} "
                         f"and one of {', '.join(DTYPES)}")
    columns = {"pass": tokens[0], "dtype": tokens[1], "mask": "full", "lengths": ""}
    extra = []
    for token in tokens[2:]:
        size = _SIZE.fullmatch(token)
        lengths = _LENGTHS.fullmatch(token)
        if lengths:
            _take_lengths(columns, lengths[1], [int(length) for length in lengths[2].split(",")])
        elif size:
            for name in _SHORTHANDS.get(size[1], (size[1],)):
                columns[name] = int(size[2])
        elif token in ("full", "causal") or token.startswith("window("):
            columns["mask"] = token
        else:
            extra.append(token)
    columns.setdefault("dv", columns.get("d"))
    missing = [name for name in SIZES if columns.get(name) is None]
    if missing:
        raise ValueError(f"problem '{line}' lacks {', '.join(missing)}")
    columns["width"] = columns["hq"] * columns["d"]
    columns["extra"] = " ".join(extra)
    return columns


def _take_lengths(columns, of, lengths):
    longest = max(*lengths, 1)
    if of == "lens":
        columns |= {"b": len(lengths), "sq": longest}
        columns.setdefault("sk", longest)
        low, high = min(lengths), max(lengths)
        columns["lengths"] = f"{len(lengths)} of {low}" + (f"–{high}" if high > low else "")
    else:
        columns["sk"] = longest
