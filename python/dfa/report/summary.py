"""What a reader wants first: a few numbers, each with what it was computed from."""

import dataclasses
import math

from dfa.report import derive, style
from dfa.report.derive import BASELINE
from dfa.report.figures_energy import no_energy

GOOD, BAD, PLAIN = "good", "bad", "plain"


@dataclasses.dataclass(frozen=True)
class Tile:
    label: str
    value: str
    detail: str
    mood: str = PLAIN


def _geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def _ratio_text(value):
    return f"{value:.2f}×" if 0.01 <= value < 10 else f"{value:.3g}×"


def _problems(count):
    return f"{count} problem" + ("" if count == 1 else "s")


def speed_tile(cases, algorithm):
    values = cases.loc[cases["algorithm"] == algorithm, "speedup"].dropna().tolist()
    name = style.label(algorithm)
    if not values:
        return Tile(f"Speed-up, {name}", "not measured",
                    f"no problem was timed with both {algorithm} and {BASELINE}")
    mean = _geometric_mean(values)
    return Tile(f"Speed-up, {name}", _ratio_text(mean),
                f"over standard attention: geometric mean of {_problems(len(values))}, "
                f"{_ratio_text(min(values))} to {_ratio_text(max(values))}",
                GOOD if mean > 1 else BAD)


def memory_tile(cases):
    rows = cases[(cases["algorithm"] == "flash") & cases["memory_ratio"].notna()]
    if rows.empty:
        return Tile("Memory, standard ÷ flash", "not measured",
                    "no problem has a measured peak for both")
    longest = rows.sort_values(["length", "memory_ratio"]).iloc[-1]
    return Tile("Memory, standard ÷ flash", _ratio_text(longest["memory_ratio"]),
                f"at the greatest length with both, {longest['length']} "
                f"({longest['dtype']}, tensors included)", GOOD)


def check_tile(cases):
    checked = cases[cases["check"] != "not checked"]
    if checked.empty:
        return Tile("Correctness", "not checked", "no case carries a verdict", BAD)
    wrong = int((checked["check"] == "wrong").sum())
    ran = int(cases["time_ms"].notna().sum())
    detail = "against fp64, on the very inputs that were timed"
    if len(checked) < ran:
        detail += f"; {ran - len(checked)} timed cases carry no verdict"
    return Tile("Checks passed", f"{len(checked) - wrong} of {len(checked)}", detail,
                BAD if wrong or len(checked) < ran else GOOD)


def energy_tile(study, cases):
    rows = cases[cases["energy_j"].notna()]
    if rows.empty:
        return Tile("Energy", "not measured", no_energy(study).removeprefix("not measured: "))
    values = cases.loc[(cases["algorithm"] == "flash"), "energy_ratio"].dropna().tolist()
    if not values:
        best = rows.sort_values("gflop_per_j").iloc[-1]
        return Tile("Efficiency, best", f"{best['gflop_per_j']:.3g} GFLOP/J", best["problem"])
    return Tile("Energy, standard ÷ flash", _ratio_text(_geometric_mean(values)),
                f"geometric mean of {_problems(len(values))}", GOOD)


def tiles(study):
    cases = derive.with_ratios(derive.newest(study))
    found = [speed_tile(cases, "flash")]
    if (cases["algorithm"] == "dynamic").any():
        found.append(speed_tile(cases, "dynamic"))
    return found + [memory_tile(cases), check_tile(cases), energy_tile(study, cases)]
