"""A Chart as plain plotly values. Colours of the page itself are set by page.js, which knows the
theme."""

import math

from dfa.report import style
from dfa.report.chart import Heat, log_ticks
from dfa.report.draw import bar_text, size_text

_HOVER = "<b>%{fullData.name}</b><br>%{customdata}<extra></extra>"


def _error(series):
    if not any(e > 0 for e in series.error):
        return {}
    return {"error_y": {"type": "data", "thickness": 1.2, "width": 3,
                        "array": [None if math.isnan(e) else e for e in series.error]}}


def _hover_texts(panel, series):
    errors = series.error or (math.nan,) * len(series.x)
    return [f"{panel.x_label} {size_text(x)}<br>{panel.y_label}: {y:.4g}"
            + (f" ± {e:.2g}" if e > 0 else "") for x, y, e in zip(series.x, series.y, errors)]


def _series(panel, series, place):
    trace = {
        "name": series.label, "x": [place(x) for x in series.x], "y": list(series.y),
        "customdata": _hover_texts(panel, series), "hovertemplate": _HOVER,
        "meta": {"algorithm": series.algorithm, "variant": series.variant},
    }
    colour = style.colour(series.algorithm)
    if panel.kind == "bars":  # their interval is in the hover: drawn, it would hide the label
        return trace | {"type": "bar", "marker": {"color": colour},
                        "text": [bar_text(y, panel.unit) for y in series.y], "textposition": "outside",
                        "textfont": {"size": 10}, "textangle": 0, "constraintext": "none",
                        "cliponaxis": False}
    return trace | _error(series) | {
        "type": "scatter", "mode": "lines+markers",
        "line": {"color": colour, "width": 2.2, "dash": series.dash},
        "marker": {"color": colour, "size": 8, "symbol": style.plotly_marker(series.algorithm)}}


def _mark(mark, panel, place, top, looks):
    """Where no number stands, a cross: at its height if known, else at the top of the plot."""
    return {"type": "scatter", "mode": "markers", "name": mark.label, "x": [place(mark.x)],
            "y": [mark.y if mark.y is not None else top],
            "marker": {"color": looks[mark.reason][1], "size": 11, "symbol": "x"},
            "meta": {"algorithm": mark.algorithm, "variant": mark.variant},
            "hovertemplate": f"<b>{mark.label}</b><br>{panel.x_label} {size_text(mark.x)}"
                             "<extra></extra>"}


def _x_axis(panel, ticks):
    axis = {"title": {"text": panel.x_label}}
    if panel.kind == "bars":
        return axis | {"type": "category"}
    if len(ticks) > 9:
        ticks = ticks[::-1][::2][::-1]
    return axis | {"type": "log" if panel.x_log else "linear", "tickvals": ticks,
                   "ticktext": [size_text(t) for t in ticks]}


def _panel(panel, looks):
    place = size_text if panel.kind == "bars" else (lambda x: x)
    ticks = sorted({x for s in panel.series for x in s.x} | {m.x for m in panel.marks})
    values = [y for s in panel.series for y in s.y]
    top = max(values) if panel.kind == "lines" else 1.1 * max(values)
    data = [_series(panel, series, place) for series in panel.series]
    data += [_mark(mark, panel, place, top, looks) for mark in panel.marks]
    y_axis = {"title": {"text": panel.y_label}, "rangemode": "tozero"}
    if panel.logarithmic:
        vals = log_ticks(min(panel.heights), max(panel.heights))
        y_axis |= {"type": "log", "tickvals": vals, "ticktext": [f"{v:g}" for v in vals]}
    layout = {"xaxis": _x_axis(panel, ticks), "yaxis": y_axis, "barmode": "group"}
    if panel.kind == "bars":
        layout["xaxis"] |= {"categoryorder": "array",
                            "categoryarray": [size_text(t) for t in ticks]}
    if panel.reference is not None:
        layout["shapes"] = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y",
                             "y0": panel.reference, "y1": panel.reference,
                             "line": {"width": 1.4, "dash": "dash"}}]
    return {"data": data, "layout": layout}


def _heat(panel):
    top = max(v for row in panel.z for v in row if v is not None)
    text = [["" if v is None else f"{v:.3g}" for v in row] for row in panel.z]
    return {
        "data": [{
            "type": "heatmap", "x": [size_text(x) for x in panel.x],
            "y": [size_text(y) for y in panel.y], "z": [list(row) for row in panel.z],
            "text": text, "texttemplate": "%{text}", "colorscale": "Viridis", "zmin": 0, "zmax": top or 1,
            "xgap": 2, "ygap": 2,
            "colorbar": {"title": {"text": panel.unit, "side": "right"}, "thickness": 14},
            "hovertemplate": f"{panel.y_label} %{{y}}, {panel.x_label} %{{x}}<br>"
                             f"%{{z:.4g}} {panel.unit}<extra></extra>"}],
        "layout": {"xaxis": {"type": "category", "title": {"text": panel.x_label}},
                   "yaxis": {"type": "category", "title": {"text": panel.y_label}}}}


def _same_height_of_bars(panels, plots):
    tops = {}
    for panel in panels:
        if getattr(panel, "kind", "") == "bars" and panel.series:
            values = [y for s in panel.series for y in s.y] + [panel.reference or 0]
            tops[panel.y_label] = max(tops.get(panel.y_label, 0), 1.14 * max(values))
    for panel, plot in zip(panels, plots):
        if plot and getattr(panel, "kind", "") == "bars":
            plot["layout"]["yaxis"]["range"] = [0, tops[panel.y_label]]


def plots_of(chart):
    """A dict {data, layout} a panel; None for a panel that only has words."""
    plots = [_heat(p) if isinstance(p, Heat) else _panel(p, chart.mark_looks) if p.series else None
             for p in chart.panels]
    _same_height_of_bars(chart.panels, plots)
    return plots
