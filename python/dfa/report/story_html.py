"""The page of a story: chapters in reading order, and what no file gives yet."""

import base64
import string

from plotly.offline import get_plotlyjs

import dfa
from dfa.report import html
from dfa.report.chart import Chart
from dfa.report.story import Missing, Picture, Table
from dfa.report.tables import escape


def _missing(part):
    command = f" <code>{escape(part.command)}</code>" if part.command else ""
    reason = f" {escape(part.reason)}" if part.reason else ""
    return f'<strong>{escape(part.title)}</strong>: not measured.{reason}{command}'


def _part(part, plots):
    if isinstance(part, Chart):
        return html.figure(part, plots)
    if isinstance(part, Missing):
        return f'<article class="missing">{_missing(part)}</article>'
    if isinstance(part, Table):
        return (f'<article><h2>{escape(part.title)}</h2>{part.html}'
                f'<p class="source">{escape(part.source)}</p></article>')
    assert isinstance(part, Picture)
    image = base64.b64encode(part.png).decode()
    return (f'<article id="{escape(part.name)}"><h2>{escape(part.title)}</h2>'
            f'<img src="data:image/png;base64,{image}" alt="{escape(part.title)}">'
            f'<p class="source">{escape(part.source)}</p></article>')


def _chapter(chapter, plots):
    words = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in chapter.text)
    return (f'<section class="chapter" id="{escape(chapter.name)}"><h2>{escape(chapter.title)}</h2>'
            f"{words}</section>" + "".join(_part(part, plots) for part in chapter.parts))


def page(story):
    """The text of the page."""
    plots = {}
    chapters = "".join(_chapter(chapter, plots) for chapter in story.chapters)
    lost = [part for chapter in story.chapters for part in chapter.parts if isinstance(part, Missing)]
    missing = f'<ul class="absent">{"".join(f"<li>{_missing(part)}</li>" for part in lost)}</ul>' \
        if lost else '<p class="caption">Every part of this story has its numbers.</p>'
    nav = "".join(f'<a href="#{escape(c.name)}">{escape(c.title)}</a>' for c in story.chapters)
    return string.Template(html.part("story.html")).substitute(
        title=escape(story.title), lead=escape(story.lead), nav=nav, chapters=chapters,
        tiles="".join(map(html.tile_of, story.tiles)), missing=missing, version=dfa.__version__,
        plots=html.embed_json(plots), plotly=get_plotlyjs(), css=html.part("page.css"),
        js=html.part("page.js"))
