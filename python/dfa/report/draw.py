"""A Chart as a matplotlib figure: sizes in inches, title and legend on top, the source below."""

import math
import textwrap

import seaborn
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from dfa.report import style
from dfa.report.chart import Heat, log_ticks

INK, FAINT = "#222222", "#666666"
_DASH = {"solid": "-", "dash": (0, (5, 2.2)), "dot": (0, (1.2, 1.8)),
         "dashdot": (0, (5, 1.8, 1.2, 1.8)), "longdash": (0, (9, 2.5))}
_RC = {**seaborn.axes_style("whitegrid"), "font.family": "sans-serif", "font.size": 9,
       "font.sans-serif": ["DejaVu Sans"], "axes.edgecolor": "#BBBBBB", "grid.color": "#E6E6E6",
       "axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left",
       "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
       "xtick.bottom": True, "ytick.left": True, "pdf.fonttype": 42}
_PANEL_W, _PANEL_H, _LINE = 4.3, 3.0, 0.17


def size_text(value):
    """128, 2048, 16k: lengths that double stay short. A text stays itself."""
    if isinstance(value, str):
        return value
    value = int(value) if float(value).is_integer() else value
    return f"{value // 1024}k" if value >= 8192 and value % 1024 == 0 else f"{value:g}"


def bar_text(value, unit):
    return (f"{value:.2g}" if value < 100 else f"{value:.0f}") + unit


def columns_for(chart):
    panels = len(chart.panels)
    return 2 if chart.pairs and panels > 1 else {1: 1, 2: 2, 4: 2}.get(panels, 3)


def _thin(ticks, most=9):
    step = math.ceil(len(ticks) / most)
    return ticks[::-1][::step][::-1]


def _log_y(ax):
    limits = ax.get_ylim()
    ticks = [t for t in log_ticks(*limits) if limits[0] <= t <= limits[1]]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.yaxis.set_minor_locator(NullLocator())


def _marks(ax, panel, place, looks):
    for mark in panel.marks:
        inside = mark.y is not None
        ax.plot([place(mark.x)], [mark.y if inside else 0.965], linestyle="none", marker="X",
                markersize=7.5, color=looks[mark.reason][1], markeredgecolor="white",
                transform=ax.transData if inside else ax.get_xaxis_transform(), zorder=4,
                clip_on=False, label=mark.label)


def _lines(ax, panel, looks):
    for series in panel.series:
        error = [0 if math.isnan(e) else e for e in series.error] or None
        ax.errorbar(series.x, series.y, yerr=error, label=series.label, linewidth=1.8,
                    color=style.colour(series.algorithm), linestyle=_DASH[series.dash],
                    marker=style.marker(series.algorithm), markersize=5, capsize=2.5,
                    elinewidth=1, markeredgecolor="white", markeredgewidth=0.6)
    _marks(ax, panel, lambda x: x, looks)
    ticks = sorted({x for s in panel.series for x in s.x} | {m.x for m in panel.marks})
    if panel.x_log:
        ax.set_xscale("log", base=2)
    ax.set_xticks(_thin(ticks), [size_text(t) for t in _thin(ticks)])
    ax.xaxis.set_minor_locator(NullLocator())
    if panel.logarithmic:
        ax.set_yscale("log")
        _log_y(ax)
    else:
        ax.set_ylim(0, 1.08 * max(panel.heights) or 1)


def _bars(ax, panel, looks):
    ticks = sorted({x for s in panel.series for x in s.x} | {m.x for m in panel.marks})
    place = {x: k for k, x in enumerate(ticks)}
    width = 0.78 / len(panel.series)
    labelled = len(ticks) * len(panel.series) <= 14
    for k, series in enumerate(panel.series):
        at = [place[x] + (k - (len(panel.series) - 1) / 2) * width for x in series.x]
        error = [0 if math.isnan(e) else e for e in series.error] or None
        bars = ax.bar(at, series.y, width * 0.94, yerr=error, label=series.label, capsize=2,
                      color=style.colour(series.algorithm), error_kw={"elinewidth": 1})
        if labelled:
            ax.bar_label(bars, labels=[bar_text(y, panel.unit) for y in series.y],
                         padding=2, fontsize=7.5,  # in front of the line to compare with
                         bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6})
    _marks(ax, panel, place.__getitem__, looks)
    ax.set_xticks(range(len(ticks)), [size_text(t) for t in ticks])
    ax.grid(axis="x", visible=False)
    tops = [y + (e if e > 0 else 0) for s in panel.series
            for y, e in zip(s.y, s.error or (0,) * len(s.y))]
    ax.set_ylim(0, 1.16 * max(*tops, panel.reference or 0) or 1)


def _heat(ax, panel):
    values = [[math.nan if v is None else v for v in row] for row in panel.z]
    seaborn.heatmap(values, ax=ax, cmap="viridis", vmin=0, annot=True, fmt=".3g", linewidths=0.6,
                    xticklabels=[size_text(x) for x in panel.x],
                    yticklabels=[size_text(y) for y in panel.y], annot_kws={"fontsize": 8},
                    cbar_kws={"label": panel.unit})
    ax.invert_yaxis()
    ax.tick_params(bottom=False, left=False, rotation=0)


def _words(ax, panel, width):
    ax.text(0.5, 0.5, textwrap.fill(panel.words, width), ha="center", va="center",
            transform=ax.transAxes, color=FAINT, style="italic")
    ax.set_xticks([])
    ax.set_yticks([])


def _panel(ax, panel, columns, looks):
    ax.set_title(textwrap.fill(panel.title, 70 if columns == 1 else 48))
    if isinstance(panel, Heat):
        _heat(ax, panel)
    elif not panel.series:
        _words(ax, panel, 90 if columns == 1 else 44)
    else:
        (_bars if panel.kind == "bars" else _lines)(ax, panel, looks)
        if panel.reference is not None:
            ax.axhline(panel.reference, color="#555555", linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)


def _same_height_of_bars(axes, panels):
    """Ratios side by side are read against each other: bars of one meaning share their scale."""
    for meaning in {p.y_label for p in panels if getattr(p, "kind", "") == "bars" and p.series}:
        group = [ax for ax, p in zip(axes, panels) if p.y_label == meaning and p.series]
        top = max(ax.get_ylim()[1] for ax in group)
        for ax in group:
            ax.set_ylim(0, top)


def _legend_handles(chart):
    algorithms, variants, marks, references = chart.legend
    handles = [Line2D([], [], color=style.colour(a), marker=style.marker(a), linewidth=1.8,
                      label=style.label(a)) for a in algorithms]
    handles += [Line2D([], [], color=FAINT, linestyle=_DASH[dash], linewidth=1.6, label=variant)
                for variant, dash in variants.items()]
    handles += [Line2D([], [], color=colour, linestyle="none", marker="X", label=text)
                for text, colour in marks.items()]
    handles += [Line2D([], [], color="#555555", linestyle=(0, (4, 3)), linewidth=1.2, label=text)
                for text in references]
    return handles


def _legend(fig, handles, width, top):
    """As many columns as the figure has room for; returns how many lines they make."""
    for columns in range(max(1, int(width / 1.75)), 0, -1):
        legend = fig.legend(handles=handles, loc="upper left", ncols=columns, frameon=False,
                            bbox_to_anchor=(0.02 / width, top), fontsize=8.5, handlelength=2.4,
                            columnspacing=1.4)
        if columns == 1 or legend.get_window_extent().x1 <= fig.bbox.x1:
            return math.ceil(len(handles) / columns)
        legend.remove()


def _head(fig, chart, width, height):
    """Title, finding and legend from the top; returns the height they take."""
    fig.text(0.12 / width, 1 - 0.12 / height, chart.title, fontsize=13, weight="bold", va="top")
    used = 0.42
    if chart.finding:
        lines = textwrap.wrap(chart.finding, int(width * 15))
        fig.text(0.12 / width, 1 - used / height, "\n".join(lines), va="top", color=FAINT)
        used += _LINE * len(lines) + 0.06
    handles = _legend_handles(chart)
    if handles:
        used += 0.2 * _legend(fig, handles, width, 1 - (used - 0.06) / height) + 0.1
    return used


def figure_of(chart):
    """The matplotlib Figure; axes in the order of chart.panels."""
    with rc_context(_RC):
        columns = columns_for(chart)
        rows = math.ceil(len(chart.panels) / columns)
        width = max(6.6, columns * _PANEL_W)
        foot = textwrap.wrap(f"Not the same work: {chart.work}", int(width * 19)) if chart.work else []
        foot += textwrap.wrap(chart.source, int(width * 19))
        foot_height = 0.135 * len(foot) + 0.14
        head_lines = len(textwrap.wrap(chart.finding, int(width * 15)))
        panel_height = _PANEL_H if chart.measured else 1.1
        height = rows * (panel_height + 0.1) + foot_height + 0.85 + _LINE * head_lines
        fig = Figure(figsize=(width, height), layout="constrained")
        used = _head(fig, chart, width, height)
        fig.text(0.12 / width, 0.09 / height, "\n".join(foot), fontsize=6.5, color=FAINT,
                 va="bottom", linespacing=1.35)
        fig.get_layout_engine().set(
            rect=(0, foot_height / height, 1, 1 - (foot_height + used) / height), w_pad=0.08)
        axes = fig.subplots(rows, columns, squeeze=False).ravel()
        for ax, panel in zip(axes, chart.panels):
            _panel(ax, panel, columns, chart.mark_looks)
        _same_height_of_bars(axes, chart.panels)
        for ax in axes[len(chart.panels):]:
            ax.remove()
        return fig
