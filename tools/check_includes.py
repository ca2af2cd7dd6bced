#!/usr/bin/env python3
"""The dependency law: which folder may include which. Run first in the tests.

Usage: tools/check_includes.py [ROOT]    exit 1 and one line per wrong arrow, or where the note's table is another
       tools/check_includes.py --table   prints the law as Markdown, for docs/design/0001-the-house.md
       tools/check_includes.py --write   puts that table into the note
"""
import pathlib
import re
import sys

# A folder may include itself, include/dfa and the folders named here; nothing else of ours.
ALLOWED = {
    "base": [],
    "spec": ["base"],
    "plan": ["spec"],
    "contract": ["base", "spec"],
    "host": ["base", "contract"],
    "analysis": ["base", "spec", "contract"],
    "kernels": ["spec", "plan"],
    "gpu": ["base"],
    "sensors": ["base", "contract"],
    "reference": ["base", "spec", "contract", "host"],
    "profile": ["base", "spec", "plan", "contract"],
    "cpu": ["base", "spec", "plan", "contract", "host"],
    "cuda": ["base", "spec", "plan", "contract", "gpu", "kernels"],
    "cuda_absent": ["base", "spec", "contract", "cuda"],
    "attention": ["base", "spec", "contract", "reference", "cpu", "cuda", "cuda_absent"],
    "power": ["base", "spec", "contract"],
    "monitor": ["base", "contract", "sensors"],
    "privileges": ["base", "contract", "sensors"],
    "simulate": ["base", "contract", "sensors", "power"],
    "run": ["base", "spec", "contract", "sensors", "attention", "profile", "power", "measure"],
    "measure": ["base", "spec", "plan", "contract", "sensors", "reference", "attention"],
    "bench": ["base", "spec", "contract", "sensors", "reference", "attention", "measure"],
    "evaluate": ["base", "spec", "contract", "bench"],
    "cli": ["base", "spec", "contract", "analysis", "sensors", "reference", "attention", "power", "profile", "simulate", "measure", "bench", "run", "monitor", "privileges", "evaluate", "cuda"],
    "python": ["base", "spec", "contract", "sensors", "attention", "power", "profile", "privileges", "measure", "bench", "run"],
}
# What a folder holds, for the note's table.
WHAT = {
    "base": "files, JSON, environment, clock, random numbers, 16-bit floats, digests",
    "spec": "plain values and their text: configurations, problems, limits of machines, FLOP count",
    "plan": "what may run, by rules with reasons, and what is chosen, by prices",
    "contract": "pure interfaces: `Backend`, `Device`, `Diagnostics`, `Meter`, `Clock`",
    "host": "the host as a device that calls run on",
    "analysis": "FLOPs, bytes, footprint, roofline: functions of Problem × Machine",
    "kernels": "device code, compiled by NVRTC where it runs, and the description of its launches",
    "gpu": "thin RAII over the driver: library, device, stream, event, buffer, launch",
    "sensors": "NVML, RAPL, replay, simulated cards, host facts, sampler, energy window",
    "reference": "fp64 attention and the ruler that compares with it",
    "profile": "what was measured, in SQLite; the frontier",
    "cpu": "CPU backend: one engine an instruction set, chosen at run time",
    "cuda": "CUDA backend: store of kernels, launch, forward, backward",
    "cuda_absent": "the same factories where CUDA is not built in; they say why not",
    "attention": "the operation: validate, choose a backend, plan, run",
    "power": "policies, the controller's step, the governor, leases of a rack, what a governed run showed",
    "monitor": "live view of cards and their sum under a budget: what sensors say, for Prometheus by HTTP, as JSON and CSV",
    "privileges": "a daemon that lends the levers of a card's owner to those whom a list allows it",
    "simulate": "scenarios: the controller on a simulated card, bounds of its metrics",
    "measure": "a problem's tensors on a device: plans run, held against fp64 and timed; sensors beside; the search for a tile",
    "bench": "suites, interleaving, stopping rule, statistics, result file, peers",
    "run": "points measured, loads run under a policy, tuning",
    "evaluate": "the whole evaluation as steps that are commands; what is done is not repeated",
    "cli": "the command line",
    "python": "the Python package, its module in `bindings/`, and the report",
}
# Third-party headers and the only folders that may include them.
QUARANTINE = {
    "nlohmann/": ["base"],
    "CLI/": ["cli"],
    "sqlite3.h": ["profile"],
    "event2/": ["monitor"],
    "nvml": ["sensors"],
    "cuda.h": ["gpu"],
    "oneapi/tbb": ["cpu"],
    "tbb/": ["cpu"],
    "nanobind/": ["python"],
    "xla/": ["python"],
    "immintrin.h": ["cpu"],
}
# attention may name only the factories of the floor below, and the judge, which it asks before a text is first used on a GPU.
FACTORY_ONLY = {
    "attention": {"cpu": ["cpu/backend.h"], "cuda": ["cuda/backend.h"], "reference": ["reference/backend.h", "reference/check.h"]},
    "cli": {"cuda": ["cuda/cache.h"]},
    "cuda_absent": {"cuda": ["cuda/backend.h", "cuda/cache.h"]},  # what it defines in cuda's place
}
PUBLIC_STANDARD_ONLY = re.compile(r"^[a-z_0-9]+$")  # <vector>, <string>, …

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def folder_of(path, root):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] in ("src", "include") else parts[0]


def errors_in(path, root):
    folder = folder_of(path, root)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, name = match.groups()
        place = f"{path.relative_to(root)}:{number}"
        for header, owners in QUARANTINE.items():
            if name.startswith(header) and folder not in owners:
                yield f"{place}: <{name}> may be included only in {', '.join(owners)}"
        target = name.split("/")[0]
        if folder == "dfa":
            if kind == '"' and target != "dfa":
                yield f'{place}: public headers include "dfa/…" and the standard library only'
            if kind == "<" and not PUBLIC_STANDARD_ONLY.match(name):
                yield f"{place}: <{name}> is not of the standard library"
            continue
        if kind != '"' or target in ("dfa", folder):
            continue
        if target not in ALLOWED.get(folder, []):
            yield f'{place}: {folder} may not include "{name}"; allowed: {ALLOWED.get(folder)}'
        only = FACTORY_ONLY.get(folder, {}).get(target)
        if only and name not in only:
            yield f'{place}: {folder} may include of {target} only {only}'


NOTE = "docs/design/0001-the-house.md"
BEGIN, END = "<!-- made by tools/check_includes.py --write -->\n\n", "\n<!-- end -->\n"


def floor_of(folder, above=()):
    """One above the highest floor that the folder may include."""
    if folder in above:
        raise ValueError(f"{' → '.join((*above, folder))} is a circle")
    return max((1 + floor_of(below, (*above, folder)) for below in ALLOWED[folder]), default=0)


def table():
    """The law as Markdown, by floors."""
    yield "| floor | folder | what | may include, beside `include/dfa/` | libraries that only it includes |\n|---|---|---|---|---|\n"
    yield "| – | `include/dfa/` | the public API | the standard library | – |\n"
    for folder in sorted(ALLOWED, key=floor_of):
        place = f"`{folder}/`" if folder in ("cli", "python") else f"`src/{folder}/`"
        below = ", ".join(f"{name} (its factories)" if name in FACTORY_ONLY.get(folder, {}) else name for name in ALLOWED[folder])
        only = ", ".join(f"`{header}`" for header, owners in QUARANTINE.items() if folder in owners)
        yield f"| {floor_of(folder)} | {place} | {WHAT[folder]} | {below or '–'} | {only or '–'} |\n"


def errors_in_table(root):
    """In a tree with documents the note holds the law as it is here."""
    for folder in ALLOWED.keys() ^ WHAT.keys():
        yield f"tools/check_includes.py: {folder} stands in one of ALLOWED and WHAT alone"
        return
    note = root / NOTE
    if not (root / "docs").is_dir() or (note.is_file() and BEGIN + "".join(table()) + END in note.read_text()):
        return
    yield f"{NOTE}: its table is not that of tools/check_includes.py; tools/check_includes.py --write puts it there"


def write_table(note):
    text = note.read_text()
    begin, end = text.index(BEGIN), text.index(END)
    note.write_text(text[:begin] + BEGIN + "".join(table()) + text[end:])


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--table"]:
        return print("".join(table()), end="")
    if sys.argv[1:] == ["--write"]:
        return write_table(root / NOTE)
    if len(sys.argv) > 1:
        root = pathlib.Path(sys.argv[1]).resolve()
    files = [p for top in ("include", "src", "cli", "python") for p in sorted((root / top).rglob("*"))
             if p.suffix in (".h", ".cpp", ".cuh", ".cu")]
    wrong = [error for path in files for error in errors_in(path, root)] + list(errors_in_table(root))
    print("\n".join(wrong) if wrong else f"includes: {len(files)} files follow the law")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main())
