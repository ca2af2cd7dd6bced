"""HTML tables: every case by suite, the machines, the origin of the numbers, what is missing."""

import html
import math

from dfa.report import figures_cards, style
from dfa.report.sweeps import STATUS_WORDS

MIB = 1.0 / (1 << 20)


def escape(value):
    return html.escape(str(value), quote=True)


def _number(digits):
    return lambda value: f"{value:.{digits}g}"


_COLUMNS = (  # heading, unit, column, format
    ("median", "ms", "time_ms", _number(4)),
    ("± 95 %", "ms", "time_half_width_ms", _number(2)),
    ("min", "ms", "time_min_ms", _number(4)),
    ("p95", "ms", "time_p95_ms", _number(4)),
    ("n", "", "n", lambda v: f"{v:.0f}"),
    ("rate", "TFLOP/s", "tflops", _number(3)),
    ("speed-up", "×", "speedup", lambda v: f"{v:.2f}"),
    ("peak memory", "MiB", "memory_peak_bytes", lambda v: f"{v * MIB:.4g}"),
    ("planned", "MiB", "memory_bytes", lambda v: f"{v * MIB:.4g}"),
    ("energy", "J", "energy_j", _number(4)),
    ("± energy", "J", "energy_uncertainty_j", _number(2)),
    ("power avg", "W", "power_avg_w", _number(4)),
    ("power max", "W", "power_max_w", _number(4)),
    ("efficiency", "GFLOP/J", "gflop_per_j", _number(4)),
    ("temp", "°C", "temp_c", _number(3)),
    ("utilization", "%", "utilization_pct", _number(3)),
    ("SM clock", "MHz", "sm_clock_mhz", _number(4)),
    ("CPU clock", "MHz", "cpu_clock_mhz", _number(4)),
    ("power throttle", "%", "throttle_power_pct", _number(3)),
    ("thermal throttle", "%", "throttle_thermal_pct", _number(3)),
    ("other load", "%", "other_load_pct", _number(2)),
)


def _chip(algorithm):
    return (f'<span class="swatch" style="background:{style.colour(algorithm)}"></span>'
            f"{escape(style.label(algorithm))}")


def _status(row):
    if row["status"] == "ok":
        return "ok"
    return f'<strong class="bad">{STATUS_WORDS[row["status"]]}</strong>: {escape(row["reason"])}'


def _verdict(row):
    if row["check"] == "not checked":
        return "–"
    detail = ""
    if not math.isnan(row["check_error"]):
        bound = "?" if math.isnan(row["check_bound"]) else f"{row['check_bound']:.1e}"
        detail = f" {row['check_error']:.1e} ≤ {bound}" if row["check"] == "ok" else \
            f" {row['check_error']:.1e}, bound {bound}"
    sampled = " (sampled)" if row["check_sampled"] else ""
    return f'<span class="{"good" if row["check"] == "ok" else "bad"}">' \
           f'{"passed" if row["check"] == "ok" else "wrong"}</span>{detail}{sampled}'


def _cell(row, column, text):
    value = row[column]
    if value is None or math.isnan(value):
        return '<td class="number missing" data-value="">–</td>'
    return f'<td class="number" data-value="{value!r}">{text(value)}</td>'


def suite_table(rows, show_device):
    """All cases of a suite; columns that nothing measured are left out."""
    columns = [c for c in _COLUMNS if rows[c[2]].notna().any()]
    head = "".join(f'<th scope="col" class="number">{name}'
                   + (f'<small>{unit}</small>' if unit else "") + "</th>"
                   for name, unit, _, _ in columns)
    lines = []
    for _, row in rows.iterrows():
        lines.append(
            f'<tr><th scope="row">{escape(row["problem"])}</th><td>{_chip(row["algorithm"])}</td>'
            + (f'<td>{escape(row["device"])}</td>' if show_device else "")
            + "".join(_cell(row, column, text) for _, _, column, text in columns)
            + f"<td>{_verdict(row)}</td><td>{_status(row)}</td>"
            f'<td class="config" title="{escape(row["config"])}">{escape(row["backend"])}, '
            f'{escape(row["origin"] or "not planned")}</td></tr>')
    return (f'<div class="scroll" tabindex="0"><table class="sortable"><thead><tr>'
            f'<th scope="col">problem</th><th scope="col">algorithm</th>'
            f'{"<th scope=col>device</th>" if show_device else ""}{head}'
            f'<th scope="col">check against fp64</th><th scope="col">status</th>'
            f'<th scope="col">configuration</th></tr></thead>'
            f'<tbody>{"".join(lines)}</tbody></table></div>')


def _facts(pairs):
    return "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in pairs)


def _bytes(value):
    return f"{value / (1 << 30):.3g} GiB" if value else "not stated"


def _machine_facts(run):
    m, gpu = run.machine, run.machine.get("gpu")
    machine = [("host", escape(m.get("host", "not stated"))),
               ("processor", escape(m.get("cpu", "not stated"))),
               ("instruction set", escape(m.get("isa", "not stated"))),
               ("threads", escape(m.get("threads", "not stated"))),
               ("memory", _bytes(m.get("memory_bytes")))]
    if gpu:
        limit = gpu.get("power_limit_w")
        machine += [("GPU", escape(gpu.get("name"))), ("driver", escape(gpu.get("driver"))),
                    ("power limit", f"{limit:g} W" if limit else "not measured"),
                    ("multiprocessors", escape(gpu.get("sm_count")))]
    else:
        machine.append(("GPU", "none"))
    machine.append(("system", escape(m.get("os", "not stated"))
                    + (" (virtual machine)" if m.get("virtual_machine") else "")))
    return f'<dl class="facts">{_facts(machine)}</dl>'


def _origin_row(run):
    dirty = {True: "yes, uncommitted changes", False: "no", None: "unknown"}[run.dirty]
    return (f'<tr><th scope="row">{escape(run.path.name)}</th><td>{escape(run.created)}</td>'
            f'<td class="wrap"><code>{escape(run.command)}</code></td>'
            f"<td><code>{escape((run.sha or 'unknown')[:12])}</code></td><td>{dirty}</td>"
            f"<td>{escape(run.machine.get('toolchain', 'not stated'))}</td>"
            f"<td>{escape(run.scale or 'as given')}</td></tr>")


def origins(runs):
    """Each machine once, with the files that were made on it: command, revision, toolchain."""
    machines = {}
    for run in runs:
        machines.setdefault(_machine_facts(run), []).append(run)
    head = "".join(f'<th scope="col">{name}</th>' for name in (
        "file", "created", "command", "git revision", "source changed since", "toolchain", "sizes"))
    return "".join(
        f'<h4>Machine</h4>{facts}<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr>'
        f'</thead><tbody>{"".join(map(_origin_row, made))}</tbody></table></div>'
        for facts, made in machines.items())


def not_measured_table(study):
    """Field, reason, number of cases; empty text where everything was measured."""
    gaps = study.not_measured
    if gaps.empty:
        return ""
    counts = gaps.groupby(["field", "reason"], sort=False).size()
    lines = "".join(f'<tr><th scope="row"><code>{escape(field)}</code></th>'
                    f'<td class="wrap">{escape(reason)}</td>'
                    f'<td class="number">{count} of {len(study.cases)}</td></tr>'
                    for (field, reason), count in counts.items())
    return (f'<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">what</th>'
            f'<th scope="col">why not</th><th scope="col" class="number">cases</th></tr></thead>'
            f"<tbody>{lines}</tbody></table></div>")


def troubles(cases):
    """One line a case that is wrong or failed, and one about neighbours' load."""
    lines = [f'{escape(row["problem"])}, {escape(style.label(row["algorithm"]))}: '
             f'{escape(row["reason"])}'
             for _, row in cases[cases["status"] == "failed"].iterrows()]
    disturbed = int((cases["other_load_pct"] > 10).sum())
    if disturbed:
        lines.append(f"{disturbed} of {len(cases)} cases were timed while other processes used "
                     "more than 10 % of the machine; their times are less certain than the "
                     "intervals say.")
    return lines


_STEP_WORDS = {"done": "done", "failed": "failed", "cannot": "not run here", "left": "not run yet"}


def steps_table(steps):
    """What a study consisted of, and why parts of it are not there."""
    others = [step for step in steps if step["name"] != "report"]
    if not others:
        return ""
    lines = []
    for step in others:
        mood = {"done": "good", "failed": "bad"}.get(step["status"], "")
        took = f"{step['seconds']:.0f} s" if step["status"] == "done" else ""
        lines.append(f'<tr><th scope="row">{escape(step["name"])}</th><td>{escape(step["question"])}'
                     f'</td><td class="{mood}">{_STEP_WORDS[step["status"]]}</td>'
                     f'<td class="number">{took}</td><td>{escape(step["reason"])}</td></tr>')
    done = sum(step["status"] == "done" for step in others)
    return (f'<details id="study"><summary>The study: {done} of {len(others)} parts done</summary>'
            '<div class="scroll"><table><thead><tr><th>part</th><th>question</th><th>state</th>'
            f'<th class="number">took</th><th>remarks</th></tr></thead><tbody>{"".join(lines)}'
            "</tbody></table></div></details>")


def example_rows(numbers):
    """The published table beside what the model says, and what that rests on."""
    lines = "".join(
        f'<tr><th scope="row">{escape(n["what"])}</th><td class="number">{n["published"]:g} '
        f'{escape(n["unit"])}</td><td class="number">{n["model"]:.4g}</td>'
        f'<td class="number">{n["direct_count"]:.4g}</td><td>{escape(n["agreement"])}</td>'
        f'<td>{escape(n["assumptions"])}</td></tr>' for n in numbers)
    return ('<p class="caption">The table of the '
            "first FlashAttention paper, beside what this model says under the assumptions named and "
            "what it counts without any. Bound: a time that no machine of that kind can go below."
            '</p><div class="scroll"><table><thead><tr><th>what</th><th class="number">published</th>'
            '<th class="number">model</th><th class="number">our count</th><th>agreement</th>'
            f"<th>assumptions</th></tr></thead><tbody>{lines}</tbody></table></div>")


def example_table(numbers):
    """The section of a page, empty where there are no numbers."""
    return ('<section id="worked-example"><h2>The published example</h2>'
            f"{example_rows(numbers)}</section>") if numbers else ""


def _rate(row):
    if row["status"] != "ok":
        return f'<td class="number bad">{STATUS_WORDS[row["status"]]}</td>'
    if row["check"] == "wrong":
        return '<td class="number bad">wrong</td>'
    return f'<td class="number">{row["tflops"]:.4g}</td>'


def pass_tables(cases):
    """TFLOP/s forward and backward against length, an algorithm a column; what did not fit is told."""
    rows = cases[(cases["suite"] == "forward_backward") & cases["pass"].isin(["fwd", "bwd"])]
    if rows.empty:
        return ""
    parts = []
    for (_, b, heads, dim), part in rows.groupby(["device", "b", "hq", "d"], sort=False):
        for name, title in (("fwd", "forward"), ("bwd", "backward")):
            here = part[part["pass"] == name]
            algorithms = style.ordered(here["algorithm"])
            body = ""
            for length in sorted(set(here["length"])):
                found = here[here["length"] == length].drop_duplicates("algorithm", keep="last")
                found = found.set_index("algorithm")
                body += f'<tr><th scope="row">{length}</th>' + "".join(
                    _rate(found.loc[a]) if a in found.index else '<td class="number missing">–</td>'
                    for a in algorithms) + "</tr>"
            head = "".join(f'<th class="number">{_chip(a)}</th>' for a in algorithms)
            parts.append(f'<h3>{title}, {heads} heads of {dim}, batch {b}</h3><div class="scroll"><table>'
                         f"<thead><tr><th>length</th>{head}</tr></thead><tbody>{body}</tbody></table>"
                         "</div>")
    return ('<section id="passes"><h2>Forward and backward, TFLOP/s</h2><p class="caption">Useful arithmetic: '
            "a backward counts 2.5 forwards, whoever recomputes does more than that. A case out "
            f"of memory is a result.</p>{''.join(parts)}</section>")


def cards_table(several):
    """The section of what ran on several cards, of figures_cards.load; empty where there is none."""
    if several is None:
        return ""
    head, rows = figures_cards.table_of(several)
    body = "".join("<tr>" + "".join(f'<td{"" if k < 2 else " class=number"}>{escape(cell)}</td>' for k, cell in enumerate(row)) + "</tr>"
                   for row in rows)
    headings = "".join(f'<th{"" if k < 2 else " class=number"}>{escape(name)}</th>' for k, name in enumerate(head))
    return (f'<section id="several-cards"><h2>One sequence over {several["ranks"]} cards, row by row</h2>'
            '<p class="caption">MB are of the rank that sends most: by the model, and by its card\'s NVLink counter. J are of one problem.</p>'
            f'<div class="scroll"><table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div></section>')
