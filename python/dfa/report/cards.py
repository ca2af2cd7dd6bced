"""What `dfa monitor --json` wrote, schema dfa-monitor/1: each card's watts over time, their sum and its budget."""

import math

from dfa.report.strict_json import parse_json

SCHEMA = "dfa-monitor/1"
SUM, PART, BUDGET, UNKNOWN = "#222222", "#7F7F7F", "#D55E00", "#A07A00"
_NUMBERS = ("power_average_w", "energy_j", "nvlink_sent_bytes", "nvlink_sent_bytes_per_s")
_SUMS = ("power_average_w", "energy_j", "cards", "power_cards", "energy_cards", "energy_breaks")


def _number(value):
    if value is None or isinstance(value, (int, float)) and not isinstance(value, bool):
        return math.nan if value is None else value
    raise ValueError(f"{value!r} is no number")


def _told(value):
    """A number that has to be there."""
    if value is None:
        raise ValueError("a number is missing")
    return _number(value)


def load(path, lines):
    """{'head', 'time_s', 'cards': {name: {field: values}}, 'sum': {…}, 'budget': [...]} of the lines of a file, NaN where a card
    said nothing; ValueError names the line that is something else."""
    head, samples = None, []
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line)
            if number == 1:
                head = record
            else:
                samples.append(_sample(record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}:{number}: not a record of {SCHEMA}: {error}") from error
    if not samples:
        raise ValueError(f"{path}: no samples")
    names = list(samples[-1]["cards"])  # one that was lost at first may have been known less well then
    if any(len(one["cards"]) != len(names) or one["count"] != len(names) for one in samples):
        raise ValueError(f"{path}: not the same cards in each sample")
    cards = [list(one["cards"].values()) for one in samples]
    return {"head": head, "time_s": [one["time_s"] for one in samples], "budget": [one["budget"] for one in samples],
            "cards": {name: {field: [of[place][field] for of in cards] for field in _NUMBERS} for place, name in enumerate(names)},
            "sum": {field: [one["sum"][field] for one in samples] for field in _SUMS}}


def _sample(record):
    """What a line has of all this, as numbers."""
    budget = record["budget"]
    if budget is not None:
        budget = {key: _told(budget[key]) for key in ("budget_w", "above_s", "unknown_s", "watched_s")} | {"standing": budget["standing"]}
    return {"time_s": _told(record["time_s"]), "budget": budget, "count": len(record["cards"]),
            "cards": {card["card"]: {field: _number(card.get(field)) for field in _NUMBERS} for card in record["cards"]},
            "sum": {field: _number(record["sum"][field]) for field in _SUMS}}


def held(trace):
    """How the sum stood to the budget, in words; empty where there was none."""
    last = trace["budget"][-1]
    if last is None:
        return ""
    text = f"above {last['budget_w']:.0f} W for {last['above_s']:.1f} s of {last['watched_s']:.1f} s"
    return text + (f", not known for {last['unknown_s']:.1f} s" if last["unknown_s"] else "")


def table(trace):
    """Rows of Markdown: each card and their sum. A mean is of the samples that told."""
    lines = ["| card | mean W | most W | J | NVLink GB sent |", "|---|---|---|---|---|"]
    looks = len(trace["time_s"])
    for name, of in trace["cards"].items():
        lines.append(_line(name, of["power_average_w"], of["energy_j"][-1], of["nvlink_sent_bytes"][-1], looks))
    total = trace["sum"]
    whole = [w if said == cards else math.nan for w, said, cards in zip(total["power_average_w"], total["power_cards"], total["cards"])]
    joules = total["energy_j"][-1] if total["energy_cards"][-1] == total["cards"][-1] else math.nan
    breaks = total["energy_breaks"][-1]
    last = _line(f"sum of {total['cards'][-1]}", whole, joules, math.nan, looks)
    return "\n".join([*lines, last] + ([f"breaks of energy counters: {breaks:.0f}; what was used around them is in no J"] if breaks else []))


def _line(name, watts, joules, sent, looks):
    told = [w for w in watts if not math.isnan(w)]
    mean = f"{sum(told) / len(told):.0f}" if told else "-"
    if told and len(told) < looks:
        mean += f" (of {len(told)} of {looks} samples)"
    cells = [name, mean, f"{max(told):.0f}" if told else "-", "-" if math.isnan(joules) else f"{joules:.0f}",
             "-" if math.isnan(sent) else f"{sent * 1e-9:.1f}"]
    return f"| {' | '.join(cells)} |"


def draw(trace, path):
    """A panel of the sum with its budget, one of each card's watts, and where a card has links one of what it sends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from dfa.report.draw import _RC
    from dfa.report.style import colour

    time, cards = trace["time_s"], trace["cards"]
    links = {name: of["nvlink_sent_bytes_per_s"] for name, of in cards.items()
             if not all(map(math.isnan, of["nvlink_sent_bytes_per_s"]))}
    looks = {name: {"color": colour(f"card {place}"), "linestyle": "-" if place < 8 else "--"} for place, name in enumerate(cards)}
    with rc_context(_RC):
        figure = Figure(figsize=(9, 7.4 if links else 5.6), layout="constrained")
        together, each, *rest = figure.subplots(3 if links else 2, 1, sharex=True, height_ratios=(2, 2, 1.4)[:3 if links else 2])
        _sum(together, trace)
        for name, of in cards.items():
            each.plot(time, of["power_average_w"], **looks[name], linewidth=1.6, label=name)
        each.set_ylabel("each card, W in 1 s")
        each.set_ylim(bottom=0)
        for name, rates in links.items():
            rest[0].plot(time, [rate * 1e-9 for rate in rates], **looks[name], linewidth=1.6)
        if links:
            rest[0].set_ylabel("sent over NVLink, GB/s")
            rest[0].set_ylim(0, 1.08 * max(rate for rates in links.values() for rate in rates if not math.isnan(rate)) * 1e-9 or 1)
        for axes in (together, each):
            axes.legend(ncols=5 if axes is together else 4, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, borderaxespad=0.2)
        (rest or [each])[0].set_xlabel("seconds")
        together.set_xlim(time[0], max(time[-1], time[0] + 1e-3))
        head = trace["head"]
        title = [f"{len(cards)} card{'' if len(cards) == 1 else 's'} of {head.get('hostname') or 'a machine'}, {head.get('created', '')}", held(trace)]
        figure.suptitle("\n".join(filter(None, title)), fontsize=10, x=0.01, ha="left")
        figure.savefig(path, dpi=130)


def _sum(axes, trace):
    time, total = trace["time_s"], trace["sum"]
    full = [said == cards for said, cards in zip(total["power_cards"], total["cards"])]
    axes.plot(time, [w if all_told else math.nan for w, all_told in zip(total["power_average_w"], full)], color=SUM, linewidth=1.8,
              marker="o" if len(time) < 4 else None, markersize=4, label="sum, 1 s")
    if not all(full):
        axes.plot(time, [math.nan if all_told else w for w, all_told in zip(total["power_average_w"], full)], color=PART, linewidth=1.4,
                  linestyle=(0, (1.2, 1.8)), marker="o", markersize=3, label="of some cards alone")
    if trace["budget"][-1] is not None:
        axes.plot(time, [math.nan if one is None else one["budget_w"] for one in trace["budget"]], color=BUDGET, linewidth=1.6, label="budget")
    for standing, colour, label in (("above", BUDGET, "above it"), ("unknown", UNKNOWN, "not known")):
        for at in range(1, len(time)):
            if trace["budget"][at] is not None and trace["budget"][at]["standing"] == standing:
                axes.axvspan(time[at - 1], time[at], color=colour, alpha=0.15, linewidth=0, label=label)
                label = None
    axes.set_ylabel("together, W")
    axes.set_ylim(bottom=0)
