"""The story: chapters of words, figures and tables from result files, as a story.json lists them.

    python3 -m dfa.report --story results/story.json --out DIR

A figure whose files are not there yet stands as "not measured" with the command that gives them; once
the files are there, it is drawn.
"""

import dataclasses
import pathlib

from dfa.report import derive, figures, figures_hbm, figures_training, story_parts
from dfa.report.chart import Absent, Chart
from dfa.report.load import BadResult, Results, load, read_json

SCHEMA = "dfa-story/1"


@dataclasses.dataclass(frozen=True)
class Missing:
    """What has no number: where it would have stood, and what gives it."""
    title: str
    reason: str
    command: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    title: str
    html: str
    source: str


@dataclasses.dataclass(frozen=True)
class Picture:
    name: str
    title: str
    png: bytes
    source: str


@dataclasses.dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    text: tuple
    parts: tuple  # Chart | Missing | Table | Picture


@dataclasses.dataclass(frozen=True)
class Story:
    title: str
    lead: str
    tiles: tuple
    chapters: tuple

    @property
    def charts(self):
        return [part for chapter in self.chapters for part in chapter.parts
                if isinstance(part, Chart)]


def has_words(problem, words):
    """Whether all of these stand in a problem line; `full` where no mask does."""
    tokens = problem.split()
    masked = any(t == "causal" or t.startswith(("window(", "chunk(")) for t in tokens)
    return all(not masked if word == "full" else word in tokens for word in words.split())


class _Teller:
    """Makes the parts of a story whose files lie in `folder`."""

    def __init__(self, folder, dfa, kernels):
        self.folder, self.dfa = folder, dfa
        self.kernels = kernels  # file → algorithm → words, of files that do not say it themselves
        self.makers = {"figure": self.figure, "hbm": self.hbm, "bytes": self.bytes, "training": self.training,
                       "trace": self.trace, "theory": self.theory, "table": self.table,
                       "phases": self.phases, "processor": self.processor,
                       "example": self.example}

    def part(self, item):
        kind = next((kind for kind in self.makers if kind in item), None)
        if kind is None:
            raise ValueError(f"an item has none of {', '.join(self.makers)}")
        files = [self.folder / name for name in item.get("files", ())]
        there = [path for path in files if path.exists()]
        if files and not there:
            return Missing(item.get("title") or str(item[kind]), item.get("reason", ""),
                           item.get("command", ""))
        return self.makers[kind](item, there)

    def study(self, item, files):
        """The cases that the item asks for, with its suite and the kernels that the story says they are of."""
        study = load(files)
        cases = study.cases
        for run, path in enumerate(files):
            named = self.kernels.get(path.relative_to(self.folder).as_posix(), {})
            for algorithm, kernel in named.items():
                cases.loc[(cases["run"] == run) & (cases["algorithm"] == algorithm), "kernel"] = kernel
        if "only" in item:
            cases = cases[[any(has_words(p, only) for only in item["only"])
                           for p in cases["problem"]]]
            if cases.empty:
                raise ValueError(f"no problem has the words {' or '.join(item['only'])}")
        for words in item.get("without", ()):  # an algorithm, or a file and an algorithm
            *name, algorithm = words.split()
            runs = [run for run, path in enumerate(files) if not name or path == self.folder / name[0]]
            cases = cases[~(cases["run"].isin(runs) & (cases["algorithm"] == algorithm))]
        cases = cases.assign(**({"suite": item["as"]} if "as" in item else {}))
        return Results(study.runs, cases, study.not_measured)

    def figure(self, item, files):
        study = self.study(item, files)
        made = figures.figure(item["figure"], study, derive.with_ratios(derive.newest(study)))
        if isinstance(made, Absent):
            return Missing(item.get("title", made.title), made.reason, item.get("command", ""))
        return _dressed(made, item)

    def hbm(self, item, files):
        return _dressed(figures_hbm.hbm(files[0]), item)

    def bytes(self, item, files):
        cases, source = figures_hbm.load(files[0])
        return Table(item["title"], story_parts.byte_table(cases, item["bytes"]), source)

    def training(self, item, files):
        return _dressed(figures_training.training(files[0]), item)

    def trace(self, item, files):
        return Picture(item["trace"], item["title"], story_parts.trace_png(files[0]),
                       item.get("words", ""))

    def theory(self, item, _):
        if self.dfa is None:
            return _without_program(item)
        return _dressed(story_parts.theory(self.dfa, item["theory"], item["machine"]), item)

    def example(self, item, _):
        if self.dfa is None:
            return _without_program(item)
        return Table(item["title"], story_parts.example(self.dfa), "dfa analyze --worked-example")

    def table(self, item, files):
        study = self.study(item, files)
        return Table(item["title"], story_parts.rate_table(derive.newest(study), item["table"]),
                     story_parts.table_source(study))

    def phases(self, item, files):
        return Table(item["title"], story_parts.phase_table(files[0].read_text(), item["phases"]),
                     item.get("words", ""))

    def processor(self, item, files):
        return _dressed(story_parts.processor(files), item)

    def tile(self, item):
        files = [self.folder / name for name in item["files"]]
        cases = derive.with_ratios(derive.newest(self.study(item, files)))
        return story_parts.ratio_tile(cases, item)


def _without_program(item):
    return Missing(item["title"], "Computed by `dfa analyze`; --dfa names the program.",
                   item.get("command", ""))


def _dressed(chart, item):
    caption = " ".join(filter(None, (chart.caption, item.get("words", ""))))
    return dataclasses.replace(chart, name=item.get("name", chart.name), caption=caption,
                               title=item.get("title", chart.title),
                               pairs=item.get("pairs", chart.pairs))


def tell(path, dfa=None):
    """The Story of a file of schema dfa-story/1; BadResult in one line where it cannot be told."""
    path = pathlib.Path(path)
    try:
        book = read_json(path)
        if book["schema"] != SCHEMA:
            raise ValueError(f"schema {book['schema']!r}")
        teller = _Teller(path.parent, dfa, book.get("kernels", {}))
        chapters = tuple(
            Chapter(chapter["name"], chapter["title"], tuple(chapter.get("text", ())),
                    tuple(teller.part(item) for item in chapter["parts"]))
            for chapter in book["chapters"])
        story = Story(book["title"], book["lead"], tuple(map(teller.tile, book["tiles"])), chapters)
    except OSError as error:
        raise BadResult(f"{error.filename or path}: cannot be read: {error.strerror or error}") from None
    except BadResult:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadResult(f"{path}: no story: {error!r}; accepted: schema {SCHEMA}") from None
    names = [chart.name for chart in story.charts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise BadResult(f"{path}: two figures are named '{twice}'; accepted: a \"name\" each")
    return story
