"""python3 -m dfa.report.trace TRACE… --out DIR: power against time, with the cap and the decisions.

A trace is what `dfa simulate --trace` or `dfa power --trace` wrote, schema dfa-trace/1; or what `dfa monitor --json` wrote of many
cards, schema dfa-monitor/1: each card, their sum and its budget, and a table of them.
"""

import argparse
import io
import math
import pathlib
import re
import sys

from dfa.report import cards
from dfa.report.strict_json import parse_json

SCHEMA = "dfa-trace/1"
POWER, MEAN, CAP, LEVEL, HEAT = "#9DC3E6", "#1F5FA8", "#D55E00", "#00946B", "#B8679A"
STATUS_COLOUR = {"stale": "#A07A00", "foreign": "#7A68C9", "infeasible": "#D55E00"}


class BadTrace(ValueError):
    """A file is not what it should be; the message is one line."""


def _lines(path):
    try:
        return pathlib.Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: cannot be read: {error}") from error


def _of_cards(lines):
    try:
        return parse_json(lines[0])["schema"] == cards.SCHEMA
    except (ValueError, KeyError, TypeError, IndexError):
        return False


def load(path):
    """{'head': …, 'sample': [...], 'decision': [...], 'measures': …} of a file."""
    return _load(path, _lines(path))


def _load(path, lines):
    trace = {"head": None, "sample": [], "decision": [], "measures": None}
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line)
            kind = record["kind"]
            if kind not in trace or (kind == "head" and trace["head"] is not None):
                raise ValueError(kind)
        except (ValueError, KeyError, TypeError) as error:
            raise BadTrace(f"{path}:{number}: not a record of {SCHEMA}") from error
        if kind in ("sample", "decision"):
            trace[kind].append(record)
        elif kind in trace:
            trace[kind] = record
    if trace["head"] is None or trace["head"].get("schema") != SCHEMA:
        raise BadTrace(f"{path}: no head of schema {SCHEMA}")
    if not trace["sample"]:
        raise BadTrace(f"{path}: no samples")
    return trace


def column(records, key):
    """Values of a key, NaN where there is none, so that lines break there; TypeError for what is no number."""
    values = [math.nan if r.get(key) is None else r[key] for r in records]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{key} is {value!r}")
    return values


def spans(decisions, key, end):
    """(value, from, to) for runs of equal values."""
    found = []
    for record in decisions:
        value, time = record[key], record["time_s"]
        if not found or found[-1][0] != value:
            if found:
                found[-1][2] = time
            found.append([value, time, end])
    return [tuple(span) for span in found]


def summary(trace):
    measures = trace["measures"] or {}
    parts = []
    for key, words in (("violation_pct", "above the cap {:.2g} % of the time"),
                       ("overshoot_pct", "overshoot {:.2g} %"), ("settling_s", "settling {:.2g} s"),
                       ("power_deviation_w", "deviation {:.2g} W"),
                       ("work_vs_pacing", "{:.2f} × the work of gaps alone")):
        if key == "settling_s" and trace["head"]["source"] == "measured":
            continue  # 25 ms of each 100 show gaps, not the mean power that settles
        if measures.get(key) is not None:
            parts.append(words.format(measures[key]))
    return ", ".join(parts)


def short(label):
    """A configuration by its target and tile; other labels as they are, cut to what fits."""
    fields = dict(re.findall(r"\.(\w+)=(?:\w+::)?(\w+)", label))
    if {"target", "block_q", "block_k"} <= fields.keys():
        return f"{fields['target']} {fields['block_q']} × {fields['block_k']}"
    return label[:28]


def at_clock(decision):
    """The clock that it was locked to, where it was."""
    return f" at {1e-6 * decision['clock_hz']:.0f} MHz" if decision.get("clock_hz") else ""


def loads_of(head):
    """{problem line: letter} of a run whose loads take turns, empty where there is one."""
    lines = head["name"].split("; ")
    return dict(zip(lines, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) if len(lines) > 1 else {}


def told_at(head):
    """{time: what happened then}; a load that takes turns is told by its letter."""
    told, loads = {}, loads_of(head)
    for event in head.get("events", ()):
        note = loads.get(event["note"], event["note"])
        told[event["time_s"]] = f"{told[event['time_s']]}; {note}" if event["time_s"] in told else note
    return told


def draw(trace, path):
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from dfa.report.draw import _RC, FAINT

    samples, decisions, head = trace["sample"], trace["decision"], trace["head"]
    end = samples[-1]["time_s"]
    with rc_context(_RC):
        figure = Figure(figsize=(9, 6.6), layout="constrained")
        power, lever, heat = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.6, 1.2))
        time = column(samples, "time_s")
        power.plot(time, column(samples, "power_w"), color=POWER, linewidth=1,
                   label="100 ms" if head["source"] == "simulated" else "25 ms of each 100")
        power.plot(time, column(samples, "second_w"), color=MEAN, linewidth=1.8, label="1 s")
        power.step(time, column(samples, "cap_w"), color=CAP, where="pre", linewidth=1.6,
                   label="cap")
        power.set_ylabel("board power, W")
        power.set_ylim(bottom=0)
        for status, begin, until in spans(decisions, "status", end):
            if status in STATUS_COLOUR:
                power.axvspan(begin, until, color=STATUS_COLOUR[status], alpha=0.15, linewidth=0,
                              label=status)
        unique = dict(zip(*reversed(power.get_legend_handles_labels())))
        power.legend(unique.values(), unique.keys(), ncols=len(unique), loc="lower right",
                     bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
        for event in head.get("events", ()):
            for axes in (power, lever, heat):
                axes.axvline(event["time_s"], color=FAINT, linewidth=0.8, linestyle=(0, (2, 2)))
        for time_s, note in told_at(head).items():
            power.text(time_s, 0.03, note[:46], fontsize=7, color=FAINT, rotation=90, ha="right",
                       transform=power.get_xaxis_transform(), va="bottom")
        lever.step([d["time_s"] for d in decisions], [100 * d["level"] for d in decisions],
                   where="post", color=LEVEL, linewidth=1.6)
        lever.set_ylabel("level, %")
        lever.set_ylim(0, 112)
        named = spans([dict(d, ran=short(d["point"]) + at_clock(d)) for d in decisions], "ran", end)
        for value, begin, until in named[:40]:
            lever.axvline(begin, color=LEVEL, linewidth=0.6)
            if until - begin > 0.13 * end:
                lever.text(begin, 104, " " + value, fontsize=7, color=LEVEL)
        heat.plot(time, column(samples, "temp_c"), color=HEAT, linewidth=1.6)
        heat.step(time, column(samples, "cap_c"), color=CAP, where="pre", linewidth=1.4)
        heat.set_ylabel("die, °C")
        heat.set_xlabel("seconds")
        heat.set_xlim(0, end)
        name = "; ".join(f"{letter}: {line}" for line, letter in loads_of(head).items()) or head["name"]
        title = [name, " · ".join([head["policy"], head["card"]]), summary(trace)]
        figure.suptitle("\n".join(filter(None, title)), fontsize=10, x=0.01, ha="left")
        figure.savefig(path, dpi=130)


def _picture(path):
    """(PNG of one file, a table of what it shows where that is of many cards)."""
    lines, png = _lines(path), io.BytesIO()
    if not _of_cards(lines):
        trace = _load(path, lines)
        try:
            draw(trace, png)
        except KeyError as error:
            raise BadTrace(f"{path}: a record of {SCHEMA} has no {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise BadTrace(f"{path}: a record of {SCHEMA} has a value of another type: {error}".replace("\n", " ")) from error
        return png.getvalue(), ""
    try:
        found = cards.load(path, lines)
    except ValueError as error:
        raise BadTrace(str(error)) from error
    cards.draw(found, png)
    return png.getvalue(), "\n".join(filter(None, (cards.held(found), cards.table(found))))


def _targets(paths, folder):
    """{picture: trace}: each has a name of its own."""
    targets = {}
    for path in paths:
        target = folder / (pathlib.Path(path).stem + ".png")
        if target in targets:
            raise BadTrace(f"{targets[target]} and {path} would both be {target}; accepted: traces with names of their own")
        targets[target] = path
    return targets


def main(argv=None):
    """0 done, 2 bad usage or input, with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python3 -m dfa.report.trace", description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="TRACE", help=f"JSON lines of {SCHEMA} or {cards.SCHEMA}")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR")
    arguments = parser.parse_args(argv)
    try:
        pictures = {target: _picture(path) for target, path in _targets(arguments.traces, arguments.out).items()}
        from dfa.report.files import write_atomically
        arguments.out.mkdir(parents=True, exist_ok=True)
        for target, (png, told) in pictures.items():
            write_atomically(target, png)
            print(f"wrote {target}" + (f"\n{told}" if told else ""))
    except BadTrace as error:
        print(f"dfa.report.trace: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"dfa.report.trace: {error.filename or arguments.out}: cannot be written: "
              f"{error.strerror or error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
