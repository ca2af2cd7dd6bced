"""HBM bytes that a GPU's hardware counted (benchmarks/hbm_bytes) beside the analysis."""

import pathlib

from dfa.report.chart import Chart, Mark, Panel, Series, doubling
from dfa.report.load import STATUSES, BadResult, read_schema
from dfa.report.problem import parse_problem
from dfa.report.style import label, ordered
from dfa.report.sweeps import PASS_NAMES, STATUS_WORDS, describe_problem, short

SCHEMA = "dfa-hbm/1"
GB = 1e-9


def load(path):
    """The cases of a file of schema dfa-hbm/1, each with its length, and its source in words.
    BadResult in one line where it is something else."""
    result = read_schema(pathlib.Path(path), SCHEMA, "benchmarks/hbm_bytes")
    try:
        for case in result["cases"]:
            problem = parse_problem(case["problem"])
            case["length"] = problem["sk"]
            case["of"] = f"{PASS_NAMES[problem['pass']]} · {describe_problem(problem)}"
            if case["status"] not in STATUSES:
                raise ValueError(f"status {case['status']!r}")
            float(case["analytic_bytes"])
            if case["status"] == "ok":
                float(case["measured_bytes"])
        kernels = dict.fromkeys(k.removeprefix("void ") for c in result["cases"]
                                for k in c.get("kernels", ()))
        words = [f"kernels: {', '.join(kernels)}" if kernels else "",
                 str(result.get("machine") or "").upper(), "benchmarks/hbm_bytes",
                 f"ncu {result['ncu']}", result["created"]]
        source = " · ".join(filter(None, words))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadResult(f"{path}: a case is not what it should be: {error}") from None
    return result["cases"], source


def _series(cases, algorithm):
    rows = sorted((c for c in cases if c["algorithm"] == algorithm), key=lambda c: c["length"])
    good = [c for c in rows if c["status"] == "ok"]
    counted = Series(algorithm, tuple(c["length"] for c in good),
                     tuple(c["measured_bytes"] * GB for c in good), variant="counted")
    analysed = Series(algorithm, tuple(c["length"] for c in rows),
                      tuple(c["analytic_bytes"] * GB for c in rows), variant="analysis", dash="dot")
    return [s for s in (counted, analysed) if s.x]


def _finding(cases):
    words = []
    for algorithm in ordered(c["algorithm"] for c in cases):
        ratios = [c["measured_bytes"] / c["analytic_bytes"] for c in cases
                  if c["algorithm"] == algorithm and c["status"] == "ok"]
        if ratios:
            low, high = short(min(ratios)), short(max(ratios))
            words.append(f"{label(algorithm)} {low}" + (f" to {high}" if high != low else ""))
    return "Counted ÷ analysis: " + "; ".join(words) + "." if words else ""


def _panel(title, cases):
    algorithms = ordered(c["algorithm"] for c in cases)
    lengths = {c["length"] for c in cases}
    series = tuple(s for algorithm in algorithms for s in _series(cases, algorithm))
    marks = tuple(Mark(c["algorithm"], c["length"], c["analytic_bytes"] * GB,
                       STATUS_WORDS[c["status"]]) for c in cases if c["status"] != "ok")
    return Panel(title=title, x_label="sequence length", y_label="HBM traffic, GB", series=series,
                 marks=marks, x_log=doubling(sorted(lengths)), y_log=len(lengths) > 1)


def hbm(path):
    """The chart of such a file."""
    cases, source = load(path)
    kinds = dict.fromkeys(c["of"] for c in cases)
    panels = tuple(_panel(kind, [c for c in cases if c["of"] == kind]) for kind in kinds)
    return Chart("hbm", "Bytes to and from memory", "Solid: counted by the hardware (ncu), the mean "
                 "of calls in a row. Dotted: what `dfa analyze` says.", panels, source, _finding(cases))
