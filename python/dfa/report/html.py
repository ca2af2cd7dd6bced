"""One self-contained page: figures, tables, machine and origin. It asks nothing of the network."""

import importlib.resources
import json
import string

from plotly.offline import get_plotlyjs

import dfa
from dfa.report import derive, style, summary, tables
from dfa.report.draw import columns_for
from dfa.report.interactive import plots_of
from dfa.report.sweeps import period
from dfa.report.tables import escape

_COLUMN_CLASS = {1: "one", 2: "two", 3: "three"}
_SVG_DASH = {"solid": "", "dash": "6 3", "dot": "1.5 3", "dashdot": "6 2 1.5 2",
             "longdash": "10 3"}


def part(name):
    return importlib.resources.files("dfa.report").joinpath("page", name).read_text("utf-8")


def embed_json(value):
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _line_key(dash):
    return (f'<svg viewBox="0 0 26 12" aria-hidden="true"><line x1="0" y1="6" x2="26" y2="6" '
            f'stroke="currentColor" stroke-width="2" stroke-dasharray="{_SVG_DASH[dash]}"/></svg>')


def _toggle(kind, value, content):
    return (f'<button type="button" aria-pressed="true" data-kind="{kind}" '
            f'data-value="{escape(value)}">{content}</button>')


def _legend(chart):
    algorithms, variants, marks, references = chart.legend
    keys = [_toggle("algorithm", a, f'<span class="swatch" style="background:{style.colour(a)};'
                                    f'margin:0"></span>{escape(style.label(a))}')
            for a in algorithms]
    keys += [_toggle("variant", v, _line_key(dash) + escape(v)) for v, dash in variants.items()]
    keys += [f'<span class="key"><b style="color:{colour}">✕</b>{escape(text)}</span>'
             for text, colour in marks.items()]
    keys += [f'<span class="key">{_line_key("dash")}{escape(text)}</span>' for text in references]
    return f'<div class="legend">{"".join(keys)}</div>' if keys else ""


def figure(chart, plots):
    panels = []
    for panel, plot in zip(chart.panels, plots_of(chart)):
        heading = f"<h4>{escape(panel.title)}</h4>" if panel.title else ""
        if plot is None:
            panels.append(f'<div>{heading}<p class="words">{escape(panel.words)}</p></div>')
            continue
        name = f"{chart.name}-{len(panels)}"
        plots[name] = plot
        panels.append(f'<div>{heading}<div class="plot" data-plot="{name}" role="img" '
                      f'aria-label="{escape(chart.title)}: {escape(panel.title)}"></div></div>')
    finding = f'<p class="finding">{escape(chart.finding)}</p>' if chart.finding else ""
    work = f'<p class="caption work">{escape(chart.work)}</p>' if chart.work else ""
    return (f'<article id="{chart.name}"><h2>{escape(chart.title)}</h2>{finding}'
            f'<p class="caption">{escape(chart.caption)}</p>{work}{_legend(chart)}'
            f'<div class="panels {_COLUMN_CLASS[columns_for(chart)]}">{"".join(panels)}</div>'
            f'<p class="source">{escape(chart.source)}</p></article>')


def tile_of(tile):
    size = "" if tile.value[0].isdigit() else " text"
    return (f'<div class="tile {tile.mood}"><div class="label">{escape(tile.label)}</div>'
            f'<div class="value{size}">{escape(tile.value)}</div>'
            f'<div class="detail">{escape(tile.detail)}</div></div>')


def _troubles(cases):
    lines = "".join(f"<li>{line}</li>" for line in tables.troubles(cases))
    return f'<div class="troubles"><h2>Read this first</h2><ul>{lines}</ul></div>' if lines else ""


def _absent(unmeasured, absent):
    reasons = [(chart.name, chart.title, chart.panels[0].words) for chart in unmeasured]
    reasons += [(lost.name, lost.title, lost.reason) for lost in absent]
    if not reasons:
        return ""
    lines = "".join(f'<li id="{name}"><strong>{escape(title)}</strong>: {escape(reason)}</li>'
                    for name, title, reason in reasons)
    return (f'<section id="absent"><h2>Figures these results cannot give</h2>'
            f'<ul class="absent">{lines}</ul></section>')


def _suite_tables(cases):
    parts, several = [], cases["device"].nunique() > 1
    for suite, rows in cases.groupby("suite", sort=False):
        count = f"{len(rows)} case" + ("" if len(rows) == 1 else "s")
        name = "single runs (dfa run)" if suite == "run" else suite
        is_open = " open" if not parts or suite == "run" else ""
        parts.append(f'<details{is_open}><summary>{escape(name)} '
                     f"<small>{count}</small></summary>{tables.suite_table(rows, several)}</details>")
    return "".join(parts)


def _nav(charts):
    links = [(chart.name, chart.title) for chart in charts]
    links += [("results", "Results"), ("not-measured", "Not measured"),
              ("origin", "Machine and origin")]
    return "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in links)


def page(study, charts, absent, steps=(), example=(), several=None):
    """The text of report.html."""
    cases = derive.with_ratios(derive.with_device(study))
    devices = ", ".join(dict.fromkeys(run.device for run in study.runs))
    revisions = ", ".join(dict.fromkeys(run.revision for run in study.runs))
    measured = [chart for chart in charts if chart.measured]
    unmeasured = [chart for chart in charts if not chart.measured]
    plots = {}
    figures = "".join(figure(chart, plots) for chart in measured)
    missing = tables.not_measured_table(study) or \
        '<p class="caption">These files name nothing that was left unmeasured.</p>'
    return string.Template(part("page.html")).substitute(
        title="Attention, measured", lead=escape(f"{devices} · {revisions} · {period(study.runs)}"),
        tiles="".join(map(tile_of, summary.tiles(study))), troubles=_troubles(cases),
        nav=_nav(measured), steps=tables.steps_table(steps), example=tables.example_table(example),
        passes=tables.pass_tables(cases) + tables.cards_table(several), figures=figures, absent=_absent(unmeasured, absent),
        tables=_suite_tables(cases), not_measured=missing, runs=tables.origins(study.runs),
        version=dfa.__version__, files=escape(", ".join(run.path.name for run in study.runs)),
        plots=embed_json(plots), plotly=get_plotlyjs(), css=part("page.css"),
        js=part("page.js"))
