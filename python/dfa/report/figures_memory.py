"""Peak memory against sequence length: N² of standard attention, N of FlashAttention."""

import dataclasses

import pandas as pd

from dfa.report.chart import Absent, Chart, Panel
from dfa.report.derive import BASELINE
from dfa.report.figures_time import length_sweeps, longest_pair
from dfa.report.sweeps import (AXES, marks_of, nothing_ran, panel_title, series_of, short,
                               source_of, sweeps)

MIB = 1.0 / (1 << 20)


def _panels(rows, cases):
    words = panel_title(rows, "length", cases)
    measured = series_of(rows, "length", "memory_peak_bytes", scale=MIB)
    measured = tuple(dataclasses.replace(s, variant="measured") for s in measured)
    planned = series_of(rows, "length", "memory_bytes", scale=MIB)
    planned = tuple(dataclasses.replace(s, variant="planned", dash="dot")
                    for s in planned)
    panels = [Panel(title=words, x_label=AXES["length"][1], y_label="tensors and workspace, MiB",
                    series=measured + planned, x_log=True, y_log=True, words=nothing_ran(rows),
                    marks=marks_of(rows, "length", y="memory_bytes", scale=MIB))]
    ratio = series_of(rows, "length", "memory_ratio", skip=(BASELINE,))
    if ratio:
        panels.append(Panel(title=f"standard ÷ this · {words}", x_label=AXES["length"][1],
                            y_label="peak of standard ÷ peak of this", series=ratio, kind="bars",
                            reference=1.0, reference_label="standard attention"))
    return panels


def _finding(parts):
    pairs = [pair for pair in map(longest_pair, parts) if pair is not None]
    pairs = [p for p in pairs if p[0]["memory_peak_bytes"] > 0 and p[1]["memory_peak_bytes"] > 0]
    if not pairs:
        return ""
    base, flash = max(pairs, key=lambda pair: pair[1]["length"])
    return (f"Length {flash['length']}: {short(flash['memory_peak_bytes'] * MIB)} MiB with "
            f"dfa, {short(base['memory_peak_bytes'] * MIB)} MiB with standard attention.")


def memory(study, cases):
    parts = sweeps(cases, "length", ("memory",)) or length_sweeps(cases)
    parts = [rows for rows in parts
             if rows["memory_peak_bytes"].notna().any() or rows["memory_bytes"].notna().any()]
    if not parts:
        return Absent("memory", "Memory", "no memory figures: `dfa bench --suite memory`")
    panels = tuple(panel for rows in parts for panel in _panels(rows, cases))
    return Chart("memory", "Peak memory", "Tensors and everything one run touched beyond them. "
                 "Solid: measured. Dotted: what the plan announced. Crosses: did not fit in memory.",
                 panels, source_of(study, pd.concat(parts)), _finding(parts), pairs=True)
