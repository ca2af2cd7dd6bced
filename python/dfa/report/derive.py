"""Columns that follow from the measured ones: ratios to standard attention, what to plot."""

import numpy as np

BASELINE = "standard"
_SAME = ["run", "suite", "problem"]


def _baseline(cases, column, usable):
    """Per row: `column` of the standard attention measured beside it, NaN where there is none."""
    rows = cases[(cases["algorithm"] == BASELINE) & usable]
    table = rows.groupby(_SAME)[column].last()
    keys = cases[_SAME].itertuples(index=False, name=None)
    return np.array([table.get(key, np.nan) for key in keys], dtype=float)


def with_ratios(cases):
    """Adds length and speedup, memory_ratio, energy_ratio: standard ÷ this, above 1 is better.

    A ratio needs both sides measured in the same file, suite and problem, and right: a case whose
    result was wrong has no speed.
    """
    cases = cases.copy()
    good = cases["status"] == "ok"
    cases["length"] = cases["sk"]
    cases["speedup"] = np.where(good, _baseline(cases, "time_ms", good) / cases["time_ms"], np.nan)
    relative = cases["time_half_width_ms"] / cases["time_ms"]
    base = (_baseline(cases, "time_half_width_ms", good) / _baseline(cases, "time_ms", good))
    cases["speedup_half_width"] = cases["speedup"] * np.hypot(relative, base)
    cases["memory_ratio"] = (_baseline(cases, "memory_peak_bytes", good)
                             / cases["memory_peak_bytes"].where(good))
    cases["energy_ratio"] = _baseline(cases, "energy_j", good) / cases["energy_j"].where(good)
    return cases


def with_device(study):
    """The cases with the column device."""
    return study.cases.assign(device=[study.runs[run].device for run in study.cases["run"]])


def newest(study):
    """Cases for the figures: what was measured twice on one device counts once, the newest."""
    cases = with_device(study)
    order = [(study.runs[run].created, run) for run in cases["run"]]
    cases = cases.iloc[sorted(range(len(order)), key=order.__getitem__)]
    keys = ["device", "suite", "problem", "algorithm", "backend"]
    return cases.drop_duplicates(keys, keep="last").sort_index()


def why_missing(study, field):
    """The reasons that the files give for a field that is null, without repetition."""
    rows = study.not_measured[study.not_measured["field"] == field]
    return list(dict.fromkeys(rows["reason"]))
