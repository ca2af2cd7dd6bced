"""What `dfa analyze` computes: traffic, memory and intensity against length; the published example."""

import pathlib

from dfa.report.chart import Chart, Panel, Series
from dfa.report.load import BadResult, read_json
from dfa.report.problem import parse_problem
from dfa.report.sweeps import AXES, describe_problem

GB = 1e-9
SCHEMA = "dfa-analysis/1"


def load(paths):
    """(analyses with a length, numbers of the worked example) of files of `dfa analyze --json`."""
    analyses, example = [], []
    for path in map(pathlib.Path, paths):
        text = read_json(path)
        try:
            if text["schema"] != SCHEMA:
                raise ValueError(f"schema {text['schema']!r}")
            if "worked_example" in text:
                example = text["worked_example"]["numbers"]
            if "problem" in text:
                problem = parse_problem(text["problem"])
                costs = {cost["algorithm"]: cost for cost in text["machines"][0]["costs"]
                         if cost["pass"] == "forward"}
                analyses.append({"length": problem["sk"], "problem": problem, "costs": costs,
                                 "machine": text["machines"][0]["machine"]["name"],
                                 "footprint": text["footprint"]})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadResult(f"{path}: not of `dfa analyze --json`: {error}; accepted: schema "
                            f"{SCHEMA}") from None
    return sorted(analyses, key=lambda a: a["length"]), example


def _panel(analyses, title, y_label, value, **options):
    series = tuple(Series(algorithm, tuple(a["length"] for a in analyses),
                          tuple(value(a, algorithm) for a in analyses))
                   for algorithm in ("standard", "flash"))
    return Panel(title=title, x_label=AXES["length"][1], y_label=y_label, series=series, x_log=True,
                 y_log=True, **options)


def theory(analyses):
    """The chart of these analyses."""
    first, last = analyses[0], analyses[-1]
    ridge = first["costs"]["flash"]["roofline"]["ridge_flops_per_byte"]
    panels = (
        _panel(analyses, "traffic of one forward", "bytes to and from memory, GB",
               lambda a, algorithm: a["costs"][algorithm]["memory_bytes"] * GB),
        _panel(analyses, "memory of one forward", "tensors and scores, GB",
               lambda a, algorithm: a["footprint"][algorithm]["total_bytes"] * GB),
        _panel(analyses, f"intensity; below {ridge:.0f}, memory holds {first['machine']} back",
               "operations a byte",
               lambda a, algorithm: a["costs"][algorithm]["roofline"]["intensity_flops_per_byte"]))
    traffic = [last["costs"][algorithm]["memory_bytes"] for algorithm in ("standard", "flash")]
    return Chart("theory", "Theory", f"Computed, not measured: {describe_problem(first['problem'])}, "
                 f"at constant tokens, with the tiles and the caches of {first['machine']}. Standard attention "
                 "moves its scores, N² of them; FlashAttention moves q, k, v and o.", panels,
                 f"dfa analyze · {first['machine']}",
                 f"Length {last['length']}: {traffic[0] / traffic[1]:.0f} times the traffic with "
                 "standard attention.")
