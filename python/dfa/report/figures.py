"""Every figure of the report, in reading order."""

import functools

from dfa.report import derive, figures_energy, figures_memory, figures_shape, figures_time
from dfa.report.chart import Absent

FIGURES = (
    figures_time.speedup,
    figures_time.latency,
    figures_time.throughput,
    figures_memory.memory,
    figures_energy.three_panel,
    figures_energy.efficiency,
    figures_energy.power,
    figures_energy.energy,
    figures_shape.causal,
    figures_shape.forward_backward,
    *(functools.partial(figures_shape.shape, name)
      for name in ("batch", "heads", "head_dim", "embedding")),
    figures_shape.heatmap,
    figures_time.launch,
)


def build(study):
    """(charts, absent): what these results can show, and what they cannot with the reason."""
    cases = derive.with_ratios(derive.newest(study))
    made = [figure(study, cases) for figure in FIGURES]
    return ([m for m in made if not isinstance(m, Absent)],
            [m for m in made if isinstance(m, Absent)])
