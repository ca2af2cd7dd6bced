#!/usr/bin/env python3
"""Holds results/index.csv against the tree: what lies there, where it comes from and who cites it.

Usage: tools/results_index.py [--write]     --write: finds cited_by anew and drops rows of files that are gone

A table (results/tables) is listed once and cited somewhere; a study (results/studies) is listed once. Whoever is named in
cited_by names the file, and every path below results/ that a text names is there. `COMMIT:results/…` in a text is what git
alone still has (`git show COMMIT:results/…`).
"""
import csv
import io
import pathlib
import re
import sys

COLUMNS = ["file", "card", "date", "commit", "command", "cited_by"]
APART = {"README.md", "index.csv", "story.json", "readme_plot.json"}  # what lies in results/ and is no result
TEXTS = ("README.md", "CONTRIBUTING.md", "run", "docs", "src", "cli", "python/dfa", "tests", "benchmarks", "tools", "examples",
         "results/story.json")
SUFFIXES = {"", ".md", ".txt", ".py", ".cpp", ".h", ".cuh", ".sh", ".json"}
OWN = {"tools/results_index.py", "tests/python/test_results_index.py"}  # their examples are no citations
PATH = re.compile(r"(?<![\w:/.-])(?:\.\./)*results/((?:tables|studies|cpu|h100|h200)/[\w./-]*\w)")


def texts(root):
    """Path from the root → text, of everything that may cite a result."""
    found = {}
    for top in TEXTS:
        path = root / top
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(root).as_posix()
            if file.is_file() and file.suffix in SUFFIXES and name not in OWN and file.stat().st_size < 1_000_000:
                found[name] = file.read_text(errors="ignore")
    return found


def files(root):
    """Every result, as a path below results/."""
    results = root / "results"
    return sorted(path.relative_to(results).as_posix() for path in results.rglob("*")
                  if path.is_file() and path.relative_to(results).as_posix() not in APART)


def citations(root, name, found):
    """Who cites a result: samples are cited by the table beside them, others by their name below tables/ or studies/."""
    path = root / "results" / name
    if path.suffix == ".f32":
        return [other.relative_to(root).as_posix() for other in sorted(path.parent.glob("*.json"))
                if f'"samples_file": "{path.name}"' in other.read_text()]
    below = name.partition("/")[2]
    key = re.compile(r"(?<![\w.-])" + re.escape(below) + r"(?![\w-]|\.\w)")
    return [text for text, words in found.items() if below in words and key.search(words)]


def rows(root):
    """The index as a list of dicts; ValueError where its columns are others."""
    with open(root / "results/index.csv", newline="") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != COLUMNS:
            raise ValueError(f"results/index.csv has the columns {reader.fieldnames}; accepted: {COLUMNS}")
        return list(reader)


def unsaid(root, row):
    """What a table does not say itself: its date, its card, and in JSON its command."""
    path = root / "results" / row["file"]
    if path.suffix in (".f32", ".png") or not path.is_file():
        return []
    text = path.read_text()
    lacking = [column for column in ("date", "card") if row[column].partition(" ")[0].lower() not in text.lower()]
    if path.suffix == ".json" and '"argv"' not in text and '"command"' not in text:
        lacking.append("command")
    return [f"{row['file']}: does not say its {column}" for column in lacking]


def row_faults(root, row, found):
    """What is wrong with one row, a line each."""
    name, cited_by = row["file"], row["cited_by"].split()
    faults = [f"{name}: no {column}" for column in COLUMNS[:5] if not (row[column] or "").strip()]
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]):
        faults.append(f"{name}: date '{row['date']}'; accepted: YYYY-MM-DD")
    if not re.fullmatch(r"[0-9a-f]{7,40}", row["commit"]):
        faults.append(f"{name}: commit '{row['commit']}'; accepted: 7 hexadecimal digits or more")
    if not name.startswith(("tables/", "studies/")):
        faults.append(f"{name}: lies neither in tables/ nor in studies/")
    real = citations(root, name, found) if (root / "results" / name).is_file() else []
    faults += [f"{name}: {other} does not cite it" for other in cited_by if other not in real]
    if name.startswith("tables/"):
        faults += unsaid(root, row)
        faults += [] if cited_by else [f"{name}: a table that nothing cites"]
    return faults


def faults(root):
    """All that is wrong, a line each; none: the index is true."""
    listed, there, found = rows(root), files(root), texts(root)
    names = [row["file"] for row in listed]
    lines = [f"{name}: is not listed" for name in there if name not in names]
    lines += [f"{name}: is listed and not there" for name in names if name not in there]
    lines += [f"{name}: is listed {names.count(name)} times" for name in sorted(set(names)) if names.count(name) > 1]
    lines += [line for row in listed for line in row_faults(root, row, found)]
    for text, words in found.items():
        lines += [f"{text}: results/{name} is not there" for name in sorted(set(PATH.findall(words)))
                  if not (root / "results" / name).exists()]
    return lines


def write(root):
    """Finds cited_by of every row anew and drops rows whose file is gone; rows are sorted by file."""
    found, out = texts(root), io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in sorted((row for row in rows(root) if (root / "results" / row["file"]).is_file()), key=lambda row: row["file"]):
        writer.writerow(row | {"cited_by": " ".join(citations(root, row["file"], found))})
    (root / "results/index.csv").write_text(out.getvalue())


def main(root=pathlib.Path(__file__).resolve().parents[1]):
    if sys.argv[1:] == ["--write"]:
        write(root)
    elif sys.argv[1:]:
        sys.exit(__doc__)
    lines = faults(root)
    print("\n".join(lines) if lines else f"results/index.csv: {len(rows(root))} files, all as it says")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
