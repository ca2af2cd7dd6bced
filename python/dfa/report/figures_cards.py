"""One sequence over several cards (benchmarks/context_parallel.py): shares of linear, and each card's watts beside their sum."""

import math
import pathlib
import statistics

from dfa.report.chart import Chart, Mark, Panel, Series
from dfa.report.load import BadResult, read_schema
from dfa.report.sweeps import short

SCHEMA = "dfa-context-parallel/1"
TOGETHER = "together"
_PASSES = {"fwd": "forward", "fwd+bwd": "forward and backward"}


def load(path):
    """A file of schema dfa-context-parallel/1, each column with the median of its seconds and its share of linear where it has them.
    BadResult in one line where it is something else."""
    result = read_schema(pathlib.Path(path), SCHEMA, "benchmarks/context_parallel.py")
    try:
        for key in ("card", "torch", "nccl", "created", "command"):
            str(result[key])
        result["ranks"] = int(result["ranks"])
        if result["ranks"] < 1:
            raise ValueError(f"{result['ranks']} cards")
        for row in result["rows"]:
            row["name"] = str(row["name"])
            if "columns" not in row:
                row["reason"] = str(row["reason"])
            for name, column in row.get("columns", {}).items():
                _read(column, str(name))
            if "columns" in row:
                int(row["tokens"]), int(row["hq"]), int(row["hk"]), _PASSES[row["passes"]]
                _share(row["columns"], result["ranks"])
    except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BadResult(f"{path}: a row is not what it should be: {error!r}") from None
    return result


def _read(column, name):
    if "seconds" not in column:
        str(column["reason"])
        return
    column["median_s"] = statistics.median(map(float, column["seconds"]))
    if not column["median_s"] > 0:
        raise ValueError(f"{name} took {column['median_s']} s")
    for key in ("model_s", "sent_bytes", "nvlink_bytes", "watts", "joules"):
        column[key] = None if column.get(key) is None else float(column[key])
    column["watts_of_cards"] = [float(watts) for watts in column.get("watts_of_cards", ())]


def _share(columns, ranks):
    one = columns.get("one", {}).get("median_s")
    for name, column in columns.items():
        if one and "median_s" in column and not name.startswith("one"):
            column["share"] = one / (ranks * column["median_s"])


def who(name):
    """`torch.gather cudnn` is PyTorch's, by whatever attention."""
    return name.split()[0]


def _kind(row):
    heads = f"{row['hq']} heads" + (f", {row['hk']} of keys" if row["hq"] != row["hk"] else "")
    return f"{_PASSES[row['passes']]}, {heads}" + (f", window {row['window']}" if row.get("window") else "")


def _shares(rows):
    """A panel for each kind of row."""
    panels = []
    for kind in dict.fromkeys(map(_kind, rows)):
        here = [row for row in rows if _kind(row) == kind]
        # ring-8 and the like, a ring that leaves so much room, are in the table alone: the figure has no room for them.
        names = list(dict.fromkeys(name for row in here for name in row["columns"] if not name.startswith(("one", "ring-"))))
        series, marks = [], []
        for name in names:
            found = [(row["tokens"], row["columns"][name]) for row in here if name in row["columns"]]
            shares = [(tokens, column["share"]) for tokens, column in found if "share" in column]
            if shares:
                series.append(Series(who(name), *map(tuple, zip(*shares))))
            marks += [Mark(who(name), tokens, None, "not run") for tokens, column in found if "reason" in column]
        if series:
            panels.append(Panel(title=kind, x_label="tokens", y_label="share of linear", series=tuple(series), marks=tuple(marks), kind="bars",
                                unit="", reference=1, reference_label="linear"))
    return panels


def _watts(row):
    """A panel of each card's watts and their sum, for each who ran; of rows whose joules were measured."""
    told = {who(name): column for name, column in row["columns"].items() if column.get("watts") and column.get("watts_of_cards")}
    if not told:
        return []
    cards = max(len(column["watts_of_cards"]) for column in told.values())
    series = [Series(f"card {card}", tuple(told), tuple(column["watts_of_cards"][card] for column in told.values())) for card in range(cards)]
    series.append(Series(TOGETHER, tuple(told), tuple(column["watts"] for column in told.values())))
    return [Panel(title=f"watts, {row['name']}", x_label="who", y_label="W", series=tuple(series), kind="bars", unit="")]


def _finding(rows):
    """What the counters say beside the model."""
    ratios = {}
    reasons = {}
    for row in rows:
        for name, column in row["columns"].items():
            if column.get("nvlink_reason"):
                reasons[column["nvlink_reason"]] = None
            if column.get("nvlink_bytes") is not None and column.get("sent_bytes"):
                ratios.setdefault(who(name), []).append(column["nvlink_bytes"] / column["sent_bytes"])
    words = [f"{name} {short(min(of))}" + (f" to {short(max(of))}" if short(max(of)) != short(min(of)) else "") for name, of in ratios.items()]
    told = [f"Bytes over NVLink ÷ the model's: {'; '.join(words)}."] if words else []
    return " ".join(told + [f"Bytes over NVLink were not counted: {reason}." for reason in reasons])


def chart_of(result):
    """The chart of such a file."""
    rows = [row for row in result["rows"] if "columns" in row]
    panels = _shares(rows) + [panel for row in rows for panel in _watts(row)]
    source = (f"kernels: as planned by each · {result['ranks']} × {result['card']} · PyTorch {result['torch']} · NCCL {result['nccl']} · "
              f"{result['command']} · {result['created']}")
    if not panels:
        panels = [Panel(title="", x_label="", y_label="", words="not measured: no row was timed on one card and on several")]
    return Chart("context_parallel", "One sequence over several cards", "Share of linear: one card's time ÷ (cards × the time of all). Medians of "
                 "bursts in turns, of the slowest card. Watts from tick to tick of each card's energy counter.", tuple(panels), source,
                 _finding(rows))


def table_of(result):
    """(headings, rows of texts) of every row and who ran it."""
    head = ("row", "who", "ms", "share of linear", "model ms", "MB sent, model", "MB NVLink", "W together", "W of each card", "J")
    return head, [cells for row in result["rows"] for cells in _rows(row)]


def _rows(row):
    if "columns" not in row:
        return [(row["name"], "", f"not run: {row['reason']}", *[""] * 7)]
    return [_cells(row, name, column) for name, column in row["columns"].items()]


def _cells(row, name, column):
    if "median_s" not in column:
        return (row["name"], name, f"not run: {column['reason']}", *[""] * 7)

    def told(key, factor, digits):
        value = column.get(key)
        return "" if value is None or math.isnan(value) else f"{factor * value:.{digits}g}"
    each = " + ".join(f"{watts:.0f}" for watts in column["watts_of_cards"])
    return (row["name"], name, told("median_s", 1e3, 4), told("share", 1, 3), told("model_s", 1e3, 4), told("sent_bytes", 1e-6, 4),
            told("nvlink_bytes", 1e-6, 4), told("watts", 1, 4), each, told("joules", 1, 3))
