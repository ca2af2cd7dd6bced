"""Time, speed-up and throughput against sequence length."""

import dataclasses

import pandas as pd

from dfa.report import style
from dfa.report.chart import Absent, Chart, Panel
from dfa.report.derive import BASELINE
from dfa.report.sweeps import (AXES, line_panel, marks_of, panel_title, series_of, short,
                               source_of, sweeps)

LENGTH_SUITES = ("three_way", "sequence", "custom")
_FALLBACK = ("forward_backward", "causal", "memory")


def length_sweeps(cases):
    """Sweeps over the length, from the suites made for it where they were run."""
    return sweeps(cases, "length", LENGTH_SUITES) or sweeps(cases, "length", _FALLBACK)


def no_length(name, title):
    return Absent(name, title, "no case with two sequence lengths or more: "
                  "`dfa bench --suite sequence` or `--suite three_way`")


def longest_pair(rows, algorithm="flash"):
    """(standard row, other row) at the greatest length where both ran, or None."""
    good = rows[rows["status"] == "ok"]
    for length in sorted(set(good["length"]), reverse=True):
        here = good[good["length"] == length].set_index("algorithm")
        if BASELINE in here.index and algorithm in here.index:
            return here.loc[[BASELINE]].iloc[0], here.loc[[algorithm]].iloc[0]
    return None


def _latency_finding(parts):
    words = []
    for rows in parts:
        pair = longest_pair(rows)
        if pair is not None:
            base, flash = pair
            words.append(f"{short(flash['time_ms'])} against {short(base['time_ms'])} ms "
                         f"({flash['dtype']}, length {flash['length']})")
    words = list(dict.fromkeys(words))
    return "dfa against standard attention: " + "; ".join(words) + "." if words else ""


def latency(study, cases):
    parts = length_sweeps(cases)
    if not parts:
        return no_length("latency", "Latency")
    panels = tuple(line_panel(rows, "length", "time_ms", "time of one run, ms", cases,
                              error="time_half_width_ms") for rows in parts)
    return Chart("latency", "Latency", "Median time of one run; lower is better. Bars: 95 % "
                 "interval of the median, mostly smaller than the marker.", panels,
                 source_of(study, pd.concat(parts)), _latency_finding(parts))


def _speedup_finding(rows):
    words = []
    for algorithm in style.ordered(set(rows["algorithm"]) - {BASELINE}):
        values = rows.loc[rows["algorithm"] == algorithm, "speedup"].dropna()
        if not values.empty:
            low, high = f"{values.min():.2f}×", f"{values.max():.2f}×"
            words.append(f"{style.label(algorithm)} {low}" + (f" to {high}" if high != low else ""))
    return "; ".join(words) + " the speed of standard attention." if words else ""


def speedup(study, cases):
    parts = [rows for rows in length_sweeps(cases) if rows["speedup"].notna().any()
             and (rows["algorithm"] != BASELINE).any()]
    if not parts:
        return Absent("speedup", "Speed-up", "no problem was measured with standard attention and "
                      "another algorithm: `--algorithms standard,flash`")
    panels = tuple(Panel(
        title=panel_title(rows, "length", cases), x_label=AXES["length"][1],
        y_label="time of standard ÷ time of this",
        series=series_of(rows, "length", "speedup", error="speedup_half_width", skip=(BASELINE,)),
        marks=marks_of(rows, "length"), kind="bars", reference=1.0,
        reference_label="standard attention") for rows in parts)
    rows = pd.concat(parts)
    return Chart("speedup", "Speed-up over standard attention", "How many times faster than the "
                 "standard attention measured beside it, in turns; higher is better.", panels,
                 source_of(study, rows), _speedup_finding(rows))


def throughput(study, cases):
    parts = length_sweeps(cases)
    if not parts:
        return no_length("throughput", "Throughput")
    panels = tuple(line_panel(rows, "length", "tflops", "TFLOP/s", cases, y_log=False)
                   for rows in parts)
    return Chart("throughput", "Throughput", "Useful arithmetic per second, 4·b·h·sq·sk·d per "
                 "forward (what a mask hides does not count); higher is better.", panels,
                 source_of(study, pd.concat(parts)))


_LAUNCHES = {"": ("one by one", "solid"), "graph": ("graph", "dash"),
             "compile": ("torch.compile", "dot"),
             "compile-reduce-overhead": ("torch.compile, reduce-overhead", "dashdot"),
             "compile-max-autotune": ("torch.compile, max-autotune", "longdash")}


def _by_launch(panel):
    """One colour an algorithm, one dash a way to launch it."""
    series, marks = [], []
    for s in panel.series:
        algorithm, _, way = s.algorithm.partition(", ")
        variant, dash = _LAUNCHES[way]
        series.append(dataclasses.replace(s, algorithm=algorithm, dash=dash, variant=variant))
    for mark in panel.marks:
        algorithm, _, way = mark.algorithm.partition(", ")
        marks.append(dataclasses.replace(mark, algorithm=algorithm, variant=_LAUNCHES[way][0]))
    return dataclasses.replace(panel, series=tuple(series), marks=tuple(marks))


def launch(study, cases):
    """Short calls: what launching them one by one costs, and what a recorded graph saves."""
    parts = sweeps(cases, "length", ("launch",))
    if not parts:
        return Absent("launch", "Launching short calls",
                      "not in these results: `dfa bench --suite launch`")
    panels = tuple(_by_launch(line_panel(rows, "length", "time_ms", "time of one call, µs", cases,
                                         scale=1e3)) for rows in parts)
    return Chart("launch", "Launching short calls", "Calls in a row, made one by one, recorded once "
                 "and replayed as a CUDA graph, or PyTorch's by torch.compile: where lines meet, the work itself is what takes the time.",
                 panels, source_of(study, pd.concat(parts)))
