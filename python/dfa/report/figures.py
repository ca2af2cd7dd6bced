"""Every figure of the report, in reading order."""

import dataclasses
import functools

from dfa.report import (derive, figures_energy, figures_memory, figures_shape, figures_time,
                        figures_varlen, kernels)
from dfa.report.chart import Absent

FIGURES = {
    "speedup": figures_time.speedup,
    "latency": figures_time.latency,
    "throughput": figures_time.throughput,
    "memory": figures_memory.memory,
    "three_panel": figures_energy.three_panel,
    "efficiency": figures_energy.efficiency,
    "power": figures_energy.power,
    "energy": figures_energy.energy,
    "causal": figures_shape.causal,
    "forward_backward": figures_shape.forward_backward,
    **{name: functools.partial(figures_shape.shape, name)
       for name in ("batch", "heads", "head_dim", "embedding")},
    "heatmap": figures_shape.heatmap,
    "varlen": figures_varlen.varlen,
    "launch": figures_time.launch,
}


def figure(name, study, cases):
    """The Chart of that name, or Absent, of cases with ratios."""
    made = FIGURES[name](study, cases)
    if isinstance(made, Absent):
        return made
    shown = made.legend[0]
    rows = cases[[kernels.base_name(a) in shown or a in shown for a in cases["algorithm"]]]
    return dataclasses.replace(made, work=kernels.unequal_work(rows))


def build(study):
    """(charts, absent): what these results can show, and what they cannot with the reason."""
    cases = derive.with_ratios(derive.newest(study))
    made = [figure(name, study, cases) for name in FIGURES]
    return ([m for m in made if not isinstance(m, Absent)],
            [m for m in made if isinstance(m, Absent)])
