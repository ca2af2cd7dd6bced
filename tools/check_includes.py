#!/usr/bin/env python3
"""The dependency law: which folder may include which. Run first in the tests.

Usage: tools/check_includes.py [ROOT]   exit 1 and one line per wrong arrow
"""
import pathlib
import re
import sys

# A folder may include itself, include/dfa and the folders named here; nothing else of ours.
ALLOWED = {
    "base": [],
    "spec": [],
    "contract": ["base", "spec"],
    "analysis": ["base", "spec", "contract"],
    "kernels": ["spec"],
    "gpu": ["base"],
    "sensors": ["base", "contract"],
    "reference": ["base", "spec", "contract"],
    "profile": ["base", "spec", "contract"],
    "cpu": ["base", "spec", "contract"],
    "cuda": ["base", "spec", "contract", "gpu", "kernels"],
    "cuda_absent": ["base", "spec", "contract", "cuda"],
    "attention": ["base", "spec", "contract", "reference", "cpu", "cuda", "cuda_absent"],
    "power": ["base", "spec", "contract"],
    "monitor": ["base", "contract", "sensors"],
    "simulate": ["base", "contract", "sensors", "power"],
    "govern": ["base", "spec", "contract", "sensors", "reference", "attention", "profile", "power", "simulate", "bench"],
    "bench": ["base", "spec", "contract", "analysis", "sensors", "reference", "attention", "power"],
    "evaluate": ["base", "spec", "contract", "bench"],
    "cli": ["base", "spec", "contract", "analysis", "sensors", "reference", "attention", "power", "profile", "simulate", "bench", "govern", "monitor", "evaluate", "cuda"],
    "python": ["base", "spec", "contract", "sensors", "attention", "power", "profile", "bench", "govern"],
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
# attention may name only the factories of the floor below.
FACTORY_ONLY = {
    "attention": {"cpu": ["cpu/backend.h"], "cuda": ["cuda/backend.h"], "reference": ["reference/backend.h"]},
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


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    if root.is_file():
        root = root.parent.parent
    files = [p for top in ("include", "src", "cli", "python") for p in sorted((root / top).rglob("*"))
             if p.suffix in (".h", ".cpp", ".cuh", ".cu")]
    wrong = [error for path in files for error in errors_in(path, root)]
    print("\n".join(wrong) if wrong else f"includes: {len(files)} files follow the law")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main())
