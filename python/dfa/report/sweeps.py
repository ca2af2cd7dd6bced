"""Finds in the cases what varies while the rest stands still, and makes panels of it."""

import math

from dfa.report import kernels, style
from dfa.report.chart import Mark, Panel, Series, doubling

FIELDS = ("device", "suite", "pass", "dtype", "mask", "b", "hq", "hk", "sq", "sk", "d", "dv",
          "extra")
AXES = {  # column: fields that may move with it, label
    "length": (("sq", "sk"), "sequence length"),
    "b": (("b",), "batch"),
    "hq": (("hq", "hk"), "heads"),
    "d": (("d", "dv"), "head dimension"),
    "width": (("hq", "hk"), "model width (heads × head dimension)"),
}
PASS_NAMES = {"fwd": "forward", "bwd": "backward", "fwdbwd": "forward + backward"}
STATUS_WORDS = {"out_of_memory": "out of memory", "unsupported": "unsupported",
                "failed": "wrong or failed"}
DASHES = ("solid", "dash", "dot")


def sweeps(cases, axis, suites, free=()):
    """Sub-frames in which `axis` takes two values or more; `free` fields may vary besides. Packed sequences, which are none of
    one length, have a figure of their own."""
    rows = cases[cases["suite"].isin(suites) & (cases["lengths"] == "")]
    moving = AXES[axis][0] + tuple(free)
    found = _varying(rows, axis, [f for f in FIELDS if f not in moving])
    if axis == "length":
        found = _or_constant_tokens(rows, found, [f for f in FIELDS if f not in (*moving, "b")])
    order = {suite: place for place, suite in enumerate(suites)}
    return sorted(found, key=lambda part: order[part["suite"].iloc[0]])


def _or_constant_tokens(rows, of_batch, fixed):
    """Where the tokens stand still instead of the batch: of the rows that are left, and of those
    whose line is longer so. A line of one batch that alone has a row stays, too."""
    rows = rows.assign(tokens=rows["b"] * rows["sq"])

    def of_tokens(rows):
        return _varying(rows, "length", [*fixed, "tokens"])
    rivals = of_tokens(rows)

    def is_shorter(part):
        return any(len(part.index.intersection(rival.index)) and
                   rival["length"].nunique() > part["length"].nunique() for rival in rivals)
    kept = [part for part in of_batch if not is_shorter(part)]
    found = kept + of_tokens(rows.drop(index=[i for part in kept for i in part.index]))
    shown = {i for part in found for i in part.index}
    return found + [part for part in of_batch
                    if is_shorter(part) and not shown.issuperset(part.index)]


def _varying(rows, axis, fixed):
    if rows.empty:
        return []
    parts = [part.sort_values(axis) for _, part in rows.groupby(fixed, sort=False)]
    return [part for part in parts if part[axis].nunique() >= 2]


def describe(rows, axis):
    """The fixed part of a sweep in a few words: `fp32 · b 1 · h 8 · d 64`."""
    first, moving = rows.iloc[0], AXES[axis][0]
    words = [first["dtype"]] if rows["dtype"].nunique() == 1 else []
    if rows["pass"].nunique() == 1 and first["pass"] != "fwd":
        words.append(PASS_NAMES[first["pass"]])
    if rows["mask"].nunique() == 1 and first["mask"] != "full":
        words.append(first["mask"])
    for name, field in (("b", "b"), ("h", "hq"), ("hk", "hk"), ("s", "sq"), ("d", "d")):
        same_heads = field == "hk" and (rows["hk"] == rows["hq"]).all()
        if field not in moving and not same_heads and rows[field].nunique() == 1:
            words.append(f"{name} {first[field]}")
    if rows["b"].nunique() > 1 and (rows["b"] * rows["sq"]).nunique() == 1:
        words.append(f"{int(first['b'] * first['sq'])} tokens")
    if rows["extra"].nunique() == 1 and first["extra"]:
        words.append(first["extra"])
    return " · ".join(words)


def describe_problem(problem):
    """Heads, head dimension and element type of a parsed problem line."""
    return f"{problem['dtype']} · h {problem['hq']} · d {problem['d']}"


def panel_title(rows, axis, all_cases):
    """Names the suite and the device only where there are several."""
    words = [describe(rows, axis)]
    if all_cases["device"].nunique() > 1:
        words.append(rows["device"].iloc[0])
    return " · ".join(w for w in words if w)


def short(value):
    """Three digits, and no exponent for what a reader compares: 0.0123, 12.3, 1235."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _finite(value):
    return value is not None and math.isfinite(value)


def series_of(rows, axis, y, error=None, vary=None, names=None, scale=1.0, skip=()):
    """A Series per algorithm (and per value of `vary`, told apart by dashes) of the good cases."""
    values = [v for v in (names or {None: ""}) if vary is None or v in set(rows[vary])]
    result = []
    for algorithm in style.ordered(rows["algorithm"]):
        for place, value in enumerate(values):
            part = rows[(rows["algorithm"] == algorithm) & (rows["status"] == "ok")]
            part = part if vary is None else part[part[vary] == value]
            part = part[part[y].notna()]
            if algorithm in skip or part.empty:
                continue
            result.append(Series(
                algorithm=algorithm, x=tuple(part[axis].tolist()),
                y=tuple((part[y] * scale).tolist()),
                error=tuple((part[error] * scale).tolist()) if error else (),
                variant=names[value] if vary else "", dash=DASHES[place % len(DASHES)]))
    return tuple(result)


def marks_of(rows, axis, y=None, scale=1.0):
    """A Mark for every case that is not ok; at y where that is known without measuring."""
    bad = rows[rows["status"] != "ok"]
    return tuple(
        Mark(algorithm=row["algorithm"], x=row[axis],
             y=row[y] * scale if y and _finite(row[y]) else None,
             reason=STATUS_WORDS[row["status"]])
        for _, row in bad.iterrows())


def nothing_ran(rows):
    """The words of a panel whose cases gave no number at all."""
    words = dict.fromkeys(f"{style.label(row['algorithm'])}: {STATUS_WORDS[row['status']]}"
                          for _, row in rows[rows["status"] != "ok"].iterrows())
    return "no number: " + ("; ".join(words) or "not measured")


def line_panel(rows, axis, y, y_label, all_cases, *, y_log=True, error=None, scale=1.0, vary=None,
               names=None, title=None):
    series = series_of(rows, axis, y, error=error, vary=vary, names=names, scale=scale)
    return Panel(title=title or panel_title(rows, axis, all_cases), x_label=AXES[axis][1],
                 y_label=y_label, series=series, marks=marks_of(rows, axis) if series else (),
                 x_log=doubling(rows[axis].tolist()), y_log=y_log,
                 words="" if series else nothing_ran(rows))


def period(runs):
    """When the runs were made: a time, or the first and the last."""
    made = sorted(run.created for run in runs)
    return made[0] if made[0] == made[-1] else f"{made[0]} to {made[-1]}"


def source_of(study, rows):
    """The footer: which kernels, how many samples, on what, by which command, from which source."""
    runs = [study.runs[index] for index in sorted(set(rows["run"]))]
    counts = rows.loc[rows["status"] == "ok", "n"].dropna()
    words = [told] if (told := kernels.named(rows)) else []
    if not counts.empty:
        low, high = int(counts.min()), int(counts.max())
        words.append(f"n = {low}" + ("" if low == high else f" to {high}") + " samples a point")
    commands = list(dict.fromkeys(run.command for run in runs))
    words += list(dict.fromkeys(run.card for run in runs))
    words += commands if len(commands) <= 3 else [f"{len(commands)} commands, in report.html"]
    words += list(dict.fromkeys(run.revision for run in runs))
    return " · ".join(words + [period(runs)])
