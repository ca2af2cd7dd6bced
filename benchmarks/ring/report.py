"""Lines and the table of a run."""

import statistics


def link_line(link):
    return "one rank" if link is None else f"{link['swap_gb_s']:.0f} GB/s each way at once, {link['latency_us']:.0f} µs"


def _median(column):
    return statistics.median(column["seconds"]) if "seconds" in column else None


def share(columns, name, ranks):
    one, own = _median(columns.get("one", {})), _median(columns.get(name, {}))
    return one / (ranks * own) if one and own and not name.startswith("one") else None


def row_line(row, columns, ranks):
    parts = []
    for name in columns:
        column, of_linear = columns[name], share(columns, name, ranks)
        if "seconds" not in column:
            parts.append(f"{name} not run: {column['reason'][:90]}")
            continue
        text = f"{name} {1e3 * _median(column):.3g} ms"
        parts.append(text + (f" ({of_linear:.3f})" if of_linear else ""))
    return f"{row.name}: " + ", ".join(parts)


def table(result):
    ranks = result["ranks"]
    lines = ["", f"{ranks} × {result['card']}, PyTorch {result['torch']}, NCCL {result['nccl']}, {result['created']}, seed {result['seed']}"]
    lines += [f"  {line}" for line in result["cards_before"]]
    if "checks" in result:
        verdicts = [one["verdict"] for one in result["checks"]]
        lines.append("checks: " + ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("right", "WRONG", "refused")))
        lines += [f"  {one['verdict']} {one['case']} {one['method']}: {one['text']}" for one in result["checks"] if one["verdict"] != "right"]
    if "link" in result:
        lines.append(f"link: {link_line(result['link'])}")
    lines += [f"NVLink: not counted: {why}" for why in _uncounted(result)]
    lines += ["", "| row | who | ms | spread % | TFLOP/s a card | share of linear | model ms | MB sent | MB NVLink | GB/s | W | J |",
              "|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in result["rows"]:
        if "columns" not in row:
            lines.append(f"| {row['name']} | not run: {row['reason']} |" + " |" * 10)
            continue
        lines += [_line(row, name, ranks) for name in row["columns"]]
        if row["cards"]:
            lines.append(f"| | cards after it: {'; '.join(line.split(', ', 2)[-1] for line in row['cards'])} |" + " |" * 10)
    return "\n".join(lines)


def _uncounted(result):
    columns = [column for row in result["rows"] for column in row.get("columns", {}).values()]
    return list(dict.fromkeys(column["nvlink_reason"] for column in columns if column.get("nvlink_reason")))


def _watts(column):
    """Of all cards, and of each where they are few."""
    each = column.get("watts_of_cards", [])
    if not 1 < len(each) <= 4:
        return f"{column['watts']:.0f}" + (f" ({min(each):.0f} to {max(each):.0f} each)" if len(each) > 4 else "")
    return f"{column['watts']:.0f} ({' + '.join(f'{watts:.0f}' for watts in each)})"


def _line(row, name, ranks):
    column = row["columns"][name]
    if "seconds" not in column:
        return f"| {row['name']} | {name} | not run: {column['reason'][:120]} |" + " |" * 9
    samples, own = column["seconds"], _median(column)
    cells = [row["name"], name, f"{1e3 * own:.4g}", f"{100 * (max(samples) - min(samples)) / own:.1f}",
             f"{row['flops'] / own / (1 if name.startswith('one') else ranks) * 1e-12:.3g}"]
    of_linear = share(row["columns"], name, ranks)
    cells.append(f"{of_linear:.3f}" if of_linear else "")
    cells.append(f"{1e3 * column['model_s']:.4g}" if column.get("model_s") else "")
    sent = column.get("sent_bytes")
    counted = column.get("nvlink_bytes")
    cells += [f"{sent / 1e6:.0f}" if sent else "", "" if counted is None else f"{counted / 1e6:.0f}", f"{sent / own * 1e-9:.0f}" if sent else ""]
    if "joules" in column:
        cells += [_watts(column), f"{column['joules']:.3g}"] if column["joules"] else ["", f"not measured: {column['joules_reason'][:60]}"]
    else:
        cells += ["", ""]
    return "| " + " | ".join(cells) + " |"
