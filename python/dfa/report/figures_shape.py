"""Time and throughput against the shape: batch, heads, head dimension, width, mask, pass."""

import pandas as pd

from dfa.report import style
from dfa.report.chart import Absent, Chart, Heat, Panel, Series
from dfa.report.sweeps import (AXES, PASS_NAMES, line_panel, panel_title, source_of, sweeps)

_SHAPES = {  # name: axis, suites, title, caption
    "batch": ("b", ("batch", "three_way"), "Batch",
              "Batches are independent: where throughput rises, smaller ones leave processors idle."),
    "heads": ("hq", ("heads",), "Heads",
              "Heads are independent: once all processors are busy, time grows in proportion."),
    "head_dim": ("d", ("head_dim",), "Head dimension",
                 "Both products grow with the head dimension, the softmax does not."),
    "embedding": ("width", ("embedding",), "Model width",
                  "Width in heads of a fixed dimension, as models grow."),
}


def shape(name, study, cases):
    axis, suites, title, caption = _SHAPES[name]
    parts = sweeps(cases, axis, suites)
    if not parts and axis == "d":  # at a constant width the heads get fewer as they get wider
        parts = sweeps(cases, axis, suites, free=("hq", "hk"))
    if not parts:
        return Absent(name, title, f"not in these results: `dfa bench --suite {name}`")
    panels = []
    for rows in parts:
        words = panel_title(rows, axis, cases)
        panels.append(line_panel(rows, axis, "time_ms", "time of one run, ms", cases,
                                 error="time_half_width_ms", title=f"time · {words}"))
        panels.append(line_panel(rows, axis, "tflops", "TFLOP/s", cases, y_log=False,
                                 title=f"throughput · {words}"))
    return Chart(name, title, caption, tuple(panels), source_of(study, pd.concat(parts)),
                 pairs=True)


def _mask_gain(rows):
    """Series of time(full) ÷ time(causal), an algorithm each."""
    good = rows[rows["status"] == "ok"]
    times = good.pivot_table(index=["algorithm", "length"], columns="mask", values="time_ms")
    gain = (times["full"] / times["causal"]).dropna()
    return tuple(Series(a, tuple(gain[a].index.tolist()), tuple(gain[a].tolist()))
                 for a in style.ordered(gain.index.get_level_values("algorithm")))


def causal(study, cases):
    parts = [rows for rows in sweeps(cases, "length", ("causal",), free=("mask",))
             if {"full", "causal"} <= set(rows.loc[rows["status"] == "ok", "mask"])]
    if not parts:
        return Absent("causal", "Causal against full",
                      "not in these results: `dfa bench --suite causal`")
    panels = []
    for rows in parts:
        words = panel_title(rows, "length", cases)
        panels.append(line_panel(rows, "length", "time_ms", "time of one run, ms", cases,
                                 error="time_half_width_ms", vary="mask", title=f"time · {words}",
                                 names={"full": "full", "causal": "causal"}))
        panels.append(Panel(title=f"what the mask saves · {words}", x_label=AXES["length"][1],
                            y_label="time full ÷ time causal", series=_mask_gain(rows),
                            kind="bars", reference=2.0, reference_label="half the work"))
    return Chart("causal", "Causal against full", "A causal mask hides about half of the scores. "
                 "An algorithm that skips hidden tiles comes near 2×; one that computes and discards "
                 "them stays at 1×.", tuple(panels), source_of(study, pd.concat(parts)),
                 pairs=True)


def forward_backward(study, cases):
    parts = sweeps(cases, "length", ("forward_backward",), free=("pass",))
    if not parts:
        return Absent("forward_backward", "Forward and backward",
                      "not in these results: `dfa bench --suite forward_backward`")
    panels = []
    for rows in parts:
        words = panel_title(rows, "length", cases)
        panels.append(line_panel(rows, "length", "time_ms", "time of one run, ms", cases,
                                 error="time_half_width_ms", vary="pass", names=PASS_NAMES,
                                 title=f"time · {words}"))
        panels.append(line_panel(rows[rows["pass"] != "fwdbwd"], "length", "tflops", "TFLOP/s",
                                 cases, y_log=False, vary="pass", names=PASS_NAMES,
                                 title=f"throughput · {words}"))
    return Chart("forward_backward", "Forward and backward", "The backward does 2.5 times the "
                 "arithmetic of the forward: FlashAttention recomputes the probabilities block by "
                 "block instead of keeping them.", tuple(panels),
                 source_of(study, pd.concat(parts)), pairs=True)


def heatmap(study, cases):
    rows = cases[(cases["suite"] == "heatmap") & (cases["status"] == "ok")]
    rows = rows[rows["tflops"].notna()]
    if rows["b"].nunique() < 2 or rows["length"].nunique() < 2:
        return Absent("heatmap", "Throughput over batch and length",
                      "not in these results: `dfa bench --suite heatmap`")
    panels = []
    for (device, dtype), part in rows.groupby(["device", "dtype"], sort=False):
        for algorithm in style.ordered(part["algorithm"]):
            table = part[part["algorithm"] == algorithm].pivot_table(
                index="b", columns="length", values="tflops")
            words = [style.label(algorithm), dtype, f"h {part['hq'].iloc[0]}",
                     f"d {part['d'].iloc[0]}"] + ([device] if cases["device"].nunique() > 1 else [])
            panels.append(Heat(
                title=" · ".join(words), x_label="sequence length", y_label="batch",
                x=tuple(table.columns.tolist()), y=tuple(table.index.tolist()),
                z=tuple(tuple(None if pd.isna(v) else v for v in line)
                        for line in table.to_numpy().tolist()), unit="TFLOP/s"))
    return Chart("heatmap", "Throughput over batch and length",
                 "Where the kernel reaches its rate, and where problems are too small for it.",
                 tuple(panels), source_of(study, rows))
