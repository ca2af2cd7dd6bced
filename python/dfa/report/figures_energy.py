"""Energy, power and efficiency; where no counter was read, the words for it, never a number."""

import dataclasses

import pandas as pd

from dfa.report.chart import Chart, Panel, doubling
from dfa.report.derive import why_missing
from dfa.report.figures_time import length_sweeps
from dfa.report.problem import DTYPES
from dfa.report.sweeps import (AXES, PASS_NAMES, line_panel, panel_title, series_of, source_of,
                               sweeps)


def no_energy(study, field="energy_j"):
    reasons = why_missing(study, field)
    return "not measured" + (f": {'; '.join(reasons)}" if reasons else "")


def _words_panel(study, y_label, field, title=""):
    return Panel(title=title, x_label=AXES["length"][1], y_label=y_label,
                 words=no_energy(study, field))


def _with(parts, column):
    return [rows for rows in parts if rows.loc[rows["status"] == "ok", column].notna().any()]


def _chart(name, title, caption, panels, study, parts, cases):
    rows = pd.concat(parts) if parts else cases
    return Chart(name, title, caption, tuple(panels), source_of(study, rows))


def efficiency(study, cases):
    parts = _with(length_sweeps(cases), "gflop_per_j")
    panels = [line_panel(rows, "length", "gflop_per_j", "GFLOP per joule", cases, y_log=False)
              for rows in parts]
    both = _with(sweeps(cases, "length", ("forward_backward",), free=("pass",)), "gflop_per_j")
    panels += [line_panel(rows, "length", "gflop_per_j", "GFLOP per joule", cases, y_log=False,
                          vary="pass", names=PASS_NAMES,
                          title=f"by pass · {panel_title(rows, 'length', cases)}") for rows in both]
    return _chart("efficiency", "Energy efficiency", "Useful arithmetic per joule, the same as "
                  "GFLOP/s per watt; higher is better.",
                  panels or [_words_panel(study, "GFLOP per joule", "gflop_per_j")], study,
                  parts + both, cases)


def power(study, cases):
    parts = _with(length_sweeps(cases), "power_avg_w")
    panels = []
    for rows in parts:
        series = ()
        for column, word, dash in (("power_avg_w", "average", "solid"),
                                   ("power_max_w", "maximum", "dash")):
            series += tuple(dataclasses.replace(s, variant=word, dash=dash)
                            for s in series_of(rows, "length", column))
        panels.append(Panel(title=panel_title(rows, "length", cases), x_label=AXES["length"][1],
                            y_label="watts", series=series,
                            x_log=doubling(rows["length"].tolist())))
    return _chart("power", "Power", "Drawn while the plan ran back to back. Solid: average over "
                  "the window. Dashed: largest reading.",
                  panels or [_words_panel(study, "watts", "power_avg_w")], study, parts, cases)


def energy(study, cases):
    parts = _with(length_sweeps(cases), "energy_j")
    panels = [line_panel(rows, "length", "energy_j", "energy of one run, J", cases,
                         error="energy_uncertainty_j") for rows in parts]
    return _chart("energy", "Energy per run", "From energy counters over a sustained window; lower "
                  "is better. Bars: stated uncertainty.",
                  panels or [_words_panel(study, "energy of one run, J", "energy_j")], study,
                  parts, cases)


def _three_way(cases):
    """The sweep of the three-way study with its precisions side by side, else the first found."""
    parts = sweeps(cases, "length", ("three_way",), free=("dtype",)) or length_sweeps(cases)
    return max(parts, key=lambda rows: rows["length"].nunique()) if parts else None


def three_panel(study, cases):
    rows = _three_way(cases)
    titles = (("energy_j", "energy of one run, J", "Energy", True),
              ("gflop_per_j", "GFLOP per joule", "Efficiency", False),
              ("time_ms", "time of one run, ms", "Latency", True))
    panels = []
    for column, y_label, title, y_log in titles:
        if rows is not None and rows.loc[rows["status"] == "ok", column].notna().any():
            dtypes = {dtype: dtype for dtype in DTYPES if dtype in set(rows["dtype"])}
            panels.append(line_panel(rows, "length", column, y_label, cases, y_log=y_log,
                                     vary="dtype", names=dtypes, title=title))
        else:
            panels.append(_words_panel(study, y_label, column, title))
    shape = panel_title(rows, "length", cases) if rows is not None else ""
    return Chart("three_panel", "Energy, efficiency, latency", "The three-way study in one line: "
                 f"{shape}." if shape else "The three-way study in one line.", tuple(panels),
                 source_of(study, rows if rows is not None else cases))
