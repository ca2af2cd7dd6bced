"""The parts of a story that are no figure of a suite: traces, theory, tables, phases, processors."""

import io
import math
import pathlib
import re
import subprocess
import tempfile

from dfa.report import figures_theory, kernels, style
from dfa.report.chart import Chart, Panel, Series
from dfa.report.load import BadResult, read_json
from dfa.report.summary import GOOD, PLAIN, Tile
from dfa.report.sweeps import STATUS_WORDS, period
from dfa.report.tables import escape, example_rows
from dfa.report.trace import BadTrace
from dfa.report.trace import draw as draw_trace
from dfa.report.trace import load as load_trace


def trace_png(path):
    """The picture of a trace of `dfa power` or `dfa simulate`."""
    try:
        image = io.BytesIO()
        draw_trace(load_trace(path), image)
        return image.getvalue()
    except BadTrace as error:
        raise BadResult(str(error)) from None


def _analyze(dfa, questions):
    """(analyses, numbers of the worked example) that `dfa analyze` gives now."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for index, words in enumerate(questions):
            done = subprocess.run([str(dfa), "analyze", "--json", *words], capture_output=True,
                                  text=True, timeout=60)
            if done.returncode != 0:
                raise BadResult(f"{dfa} analyze: {done.stderr.strip() or done.returncode}")
            files.append(pathlib.Path(folder) / f"{index}.json")
            files[-1].write_text(done.stdout)
        return figures_theory.load(files)


def theory(dfa, problems, machine):
    """The chart of what theory says of these problems on that machine."""
    return figures_theory.theory(_analyze(dfa, [["--machine", machine, "--problem", problem]
                                                for problem in problems])[0])


def example(dfa):
    """The published table beside the model."""
    return example_rows(_analyze(dfa, [["--worked-example"]])[1])


def _geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def ratio_tile(cases, item):
    """`of` over `over` by a column, problem by problem: geometric mean and range."""
    good = cases[(cases["status"] == "ok") & cases[item["column"]].notna()]
    table = good.pivot_table(index="problem", columns="algorithm", values=item["column"])
    if not {item["of"], item["over"]} <= set(table.columns):
        return Tile(item["label"], "not measured", f"no problem has both {item['of']} and {item['over']}")
    ratios = (table[item["of"]] / table[item["over"]]).dropna().tolist()
    mean = _geometric_mean(ratios)
    return Tile(item["label"], f"{mean:.2f}×", f"geometric mean of {len(ratios)} problems, "
                f"{min(ratios):.2f} to {max(ratios):.2f}; {item['words']}", GOOD if mean > 1 else PLAIN)


def _rate_cell(found):
    if found.empty:
        return '<td class="number missing">–</td>'
    row = found.iloc[-1]
    if row["status"] != "ok":
        return f'<td class="number bad">{STATUS_WORDS[row["status"]]}</td>'
    if row["check"] == "wrong":
        return '<td class="number bad">wrong</td>'
    joules = "" if math.isnan(row["gflop_per_j"]) else f" ({row['gflop_per_j']:.0f})"
    return f'<td class="number">{row["tflops"]:.4g}{joules}</td>'


def rate_table(cases, caption):
    """TFLOP/s, in brackets GFLOP/J, a problem a row and an algorithm a column."""
    algorithms = style.ordered(cases["algorithm"])
    head = "".join(f'<th class="number">{escape(style.label(a))}</th>' for a in algorithms)
    body = ""
    for problem, rows in cases.groupby("problem", sort=False):
        body += f'<tr><th scope="row">{escape(problem)}</th>' + "".join(
            _rate_cell(rows[rows["algorithm"] == a]) for a in algorithms) + "</tr>"
    return (f'<p class="caption">{escape(caption)}</p><div class="scroll"><table><thead><tr><th>problem</th>'
            f"{head}</tr></thead><tbody>{body}</tbody></table></div>")


def table_source(study):
    runs = [study.runs[index] for index in sorted(set(study.cases["run"]))]
    words = [kernels.named(study.cases), *dict.fromkeys(run.card for run in runs),
             *dict.fromkeys(run.command for run in runs),
             *dict.fromkeys(run.revision for run in runs), period(runs)]
    return " · ".join(filter(None, words))


def _table(caption, heads, rows):
    """Rows whose first cell is a text and whose others are numbers."""
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in heads[1:])
    body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(
        f'<td class="number">{escape(cell)}</td>' for cell in row[1:]) + "</tr>" for row in rows)
    return (f'<p class="caption">{escape(caption)}</p><div class="scroll"><table><thead><tr>'
            f"<th>{escape(heads[0])}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>")


def byte_table(cases, caption):
    """Bytes that the hardware counted beside those of the analysis."""
    rows = [(case["problem"], style.label(case["algorithm"]), f"{case['read_bytes'] * 1e-6:.4g}",
             f"{case['write_bytes'] * 1e-6:.4g}", f"{case['analytic_bytes'] * 1e-6:.4g}",
             f"{case['measured_bytes'] / case['analytic_bytes']:.2f}")
            for case in cases if case["status"] == "ok"]
    return _table(caption, ("problem", "algorithm", "read, MB", "written, MB", "analysis, MB",
                            "counted ÷ analysis"), rows)


_KERNEL = re.compile(r"^  (\S.*?)\s{2,}([\d.]+) us\s+([\d.]+) MB\s+([\d.]+) TB/s$")


def phase_table(text, names):
    """Microseconds of each kernel of a call, by problem, as a profiler counted them one by one."""
    found, problem = {}, None
    for line in text.splitlines():
        kernel = _KERNEL.match(line)
        if kernel and problem:
            found[problem].append(float(kernel[2]))
        elif re.match(r"(fwd|bwd|fwdbwd) ", line):
            problem = line.strip()
            found[problem] = []
    rows = {p: times for p, times in found.items() if len(times) == len(names)}
    if not rows:
        raise ValueError(f"no problem with {len(names)} kernels")
    return _table("Microseconds of each kernel.", ("problem", *names, "sum"), [
        (problem, *(f"{t:g}" for t in times), f"{sum(times):.4g}") for problem, times in rows.items()])


def processor(files):
    """TFLOP/s of one core against length, from Google Benchmark's files (benchmarks/attention_benchmark);
    of a case in several files the last counts."""
    found, dates = {}, []
    for path in files:
        result = read_json(path)
        try:
            dates.append(result["context"]["date"][:10])
            rows = [(b["run_name"].split("/"), b["GFLOPs"]) for b in result["benchmarks"]
                    if b["aggregate_name"] == "median"]
            for (algorithm, isa, dtype, pass_, mask, d, length), rate in rows:
                if mask == "full":
                    found[(f"{isa} {dtype}, {d}", algorithm, pass_, int(length[1:]))] = rate / 1e3
        except (KeyError, TypeError, ValueError) as error:
            raise BadResult(f"{path}: not of benchmarks/attention_benchmark: {error!r}") from None
    panels = []
    for title in dict.fromkeys(key[0] for key in found):
        series = []
        for algorithm, pass_, dash in (("standard", "forward", "solid"), ("standard", "backward", "dash"),
                                       ("flash", "forward", "solid"), ("flash", "backward", "dash")):
            points = sorted((key[3], rate) for key, rate in found.items()
                            if key[:3] == (title, algorithm, pass_))
            if len(points) > 1:  # one length alone is no line, and its marker tells no pass
                series.append(Series(algorithm, *zip(*points), variant=pass_, dash=dash))
        panels.append(Panel(title=title, x_label="sequence length", y_label="TFLOP/s, one core",
                            series=tuple(series), x_log=True))
    return Chart("processor", "One core of a processor", "Median rate of one core, full mask.",
                 tuple(panels), f"benchmarks/attention_benchmark · {', '.join(p.name for p in files)} · "
                 f"{', '.join(dict.fromkeys(dates))}")
