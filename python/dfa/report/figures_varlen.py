"""Packed sequences: their rate, and what they gain over the same ones padded to the longest."""

import pandas as pd

from dfa.report.chart import Absent, Chart, Panel, Series
from dfa.report.sweeps import PASS_NAMES, source_of

_SHAPE = ["device", "pass", "dtype", "mask", "b", "hq", "hk", "sq", "d", "dv", "extra"]  # that a list and its padded twin share


def _with_padded(rows):
    """Packed rows, with the time of the same sequences as a dense batch of the longest, where that was measured."""
    padded = rows[rows["lengths"] == ""].drop_duplicates(_SHAPE)[[*_SHAPE, "time_ms"]]
    return rows[rows["lengths"] != ""].merge(padded, on=_SHAPE, how="left", suffixes=("", "_padded"))


def _names(rows):
    """An axis text for each list; head dim and heads only where a list comes with several."""
    shapes = rows.groupby("lengths")["d"].transform("nunique") > 1
    return [f"{lengths}, d {d}" if several else lengths for lengths, d, several in zip(rows["lengths"], rows["d"], shapes)]


def _bars(rows, column, title, label, **more):
    rows = rows[rows[column].notna()]
    series = tuple(Series(algorithm, tuple(_names(part)), tuple(part[column]))
                   for algorithm, part in rows.groupby("algorithm", sort=False))
    return Panel(title=title, x_label="sequences of rows", y_label=label, series=series, kind="bars", **more)


def varlen(study, cases):
    rows = cases[(cases["suite"] == "varlen") & (cases["status"] == "ok")]
    packed = _with_padded(rows)
    if packed.empty:
        return Absent("varlen", "Packed sequences", "not in these results: `dfa bench --suite varlen`")
    packed["gain"] = packed["time_ms_padded"] / packed["time_ms"]
    panels = []
    for (device, of), part in packed.groupby(["device", "pass"], sort=False):
        words = PASS_NAMES[of] + (f" · {device}" if cases["device"].nunique() > 1 else "")
        panels.append(_bars(part, "tflops", f"rate · {words}", "TFLOP/s by true lengths", unit=""))
        if part["gain"].notna().any():
            panels.append(_bars(part, "gain", f"gain · {words}", "time padded ÷ time packed", reference=1.0,
                                reference_label="padded to the longest"))
    return Chart("varlen", "Packed sequences", "Sequences of lengths of their own in one call, and the same ones padded to the "
                 "longest: padding is computed and thrown away.", tuple(panels),
                 source_of(study, pd.concat([rows])), pairs=True)
