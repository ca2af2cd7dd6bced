"""What a figure shows, as plain values, drawn by draw.py and interactive.py."""

import dataclasses
import math

from dfa.report import style


@dataclasses.dataclass(frozen=True)
class Series:
    """One line or one set of bars. error: half-width a point, NaN where unknown."""
    algorithm: str  # decides colour and marker
    x: tuple
    y: tuple
    error: tuple = ()
    variant: str = ""  # what else it differs in, e.g. causal
    dash: str = "solid"  # solid | dash | dot | dashdot | longdash: decided by the variant

    @property
    def label(self):
        return style.label(self.algorithm) + (f", {self.variant}" if self.variant else "")


@dataclasses.dataclass(frozen=True)
class Mark:
    """A case that gave no number: where it would have stood, and in words why."""
    algorithm: str
    x: float
    y: float | None
    reason: str
    variant: str = ""

    @property
    def label(self):
        return ", ".join(filter(None, (style.label(self.algorithm), self.variant))) + f": {self.reason}"


@dataclasses.dataclass(frozen=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: tuple = ()
    marks: tuple = ()
    kind: str = "lines"  # lines | bars
    unit: str = "×"  # written on bars
    x_log: bool = False
    y_log: bool = False
    reference: float | None = None  # a horizontal line to compare with
    reference_label: str = ""
    words: str = ""  # shown instead of data: why there is none

    @property
    def heights(self):
        return [y for s in self.series for y in s.y] + [m.y for m in self.marks if m.y is not None]

    @property
    def logarithmic(self):
        """Whether y is drawn in logarithms: a zero, such as an energy below one tick, forbids it."""
        return self.y_log and min(self.heights) > 0


@dataclasses.dataclass(frozen=True)
class Heat:
    title: str
    x_label: str
    y_label: str
    x: tuple
    y: tuple
    z: tuple  # rows of y, None where not measured
    unit: str


@dataclasses.dataclass(frozen=True)
class Chart:
    name: str  # file name without suffix
    title: str
    caption: str  # how to read it
    panels: tuple
    source: str  # n, device, command: the footer
    finding: str = ""  # what it says, computed from the data
    work: str = ""  # where two sides did not do the same work
    pairs: bool = False  # panels come in pairs and stand side by side so

    @property
    def measured(self):
        return any(isinstance(panel, Heat) or panel.series for panel in self.panels)

    @property
    def mark_looks(self):
        """{reason: (label, colour)}: of one algorithm where it alone has marks of that reason. Those of
        several lie upon each other, and a legend with each of them would not end."""
        owners = {}
        for panel in self.panels:
            for mark in getattr(panel, "marks", ()):
                owners.setdefault(mark.reason, set()).add(mark.algorithm)
        looks = {}
        for reason, algorithms in owners.items():
            only = min(algorithms)
            looks[reason] = ((f"{style.label(only)}: {reason}", style.colour(only))
                             if len(algorithms) == 1 else (reason, style.SEVERAL))
        return looks

    @property
    def legend(self):
        """(algorithms, {variant: dash}, {mark label: colour}, reference texts), each once."""
        panels = [panel for panel in self.panels if isinstance(panel, Panel)]
        series = [s for panel in panels for s in panel.series]
        references = [f"{panel.reference_label}: {panel.reference:g}×" for panel in panels
                      if panel.reference is not None and panel.series]
        return (style.ordered(s.algorithm for s in series),
                {s.variant: s.dash for s in series if s.variant},
                dict(self.mark_looks.values()),
                list(dict.fromkeys(references)))

def doubling(values):
    """Whether an axis with these values reads better in logarithms."""
    values = [v for v in values if v is not None and math.isfinite(v)]
    return bool(values) and min(values) > 0 and max(values) / min(values) >= 8


def log_ticks(low, high):
    """1, 2, 5 a decade over a short range, finer over a shorter one, else one or fewer a decade: at
    most about nine."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if math.log10(high / low) < 0.7:
        fine = (1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)
        steps = fine if math.log10(high / low) < 0.35 else (1, 1.5, 2, 3, 4, 6, 8)
        return [m * 10.0**e for e in range(first, last + 1) for m in steps
                if low / 1.1 <= m * 10.0**e <= high * 1.1]
    if math.log10(high / low) < 2.2:
        ticks = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
    else:
        ticks = [10.0**e for e in range(first, last + 1, 1 + (last - first) // 9)]
    return [t for t in ticks if low / 1.6 <= t <= high * 1.6]


@dataclasses.dataclass(frozen=True)
class Absent:
    """A figure that these results cannot give, and what would."""
    name: str
    title: str
    reason: str
