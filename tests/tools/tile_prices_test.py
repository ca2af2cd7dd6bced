#!/usr/bin/env python3
"""The prices in src/plan/prices_forward.h are those that benchmarks/tile_prices solves from the table in the repository."""
import pathlib
import re
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "benchmarks/tile_prices"


def main():
    solved = {}
    for line in subprocess.run([TOOL], check=True, capture_output=True, text=True).stdout.splitlines():
        element, dim, queries, keys, pair, *prices = re.match(
            r"(\w+) (\d+) (\d+) x (\d+)( pair)?: ([\d.]+), ([\d.]+); ([\d.]+), ([\d.]+) ", line).groups()
        solved[element, int(dim), int(queries), int(keys), 2 if pair else 1] = [float(price) for price in prices]
    number = r"([\d.]+)"
    written = {}
    for found in re.finditer(rf"\{{DType::(\w+), (\d+), \{{{number}, {number}\}}, \{{{number}, {number}\}}, \{{(\d+), (\d+), \d, \d, \w+(?:, (\d))?",
                             (ROOT / "src/plan/prices_forward.h").read_text()):
        element, dim, *prices, queries, keys, cluster = found.groups()
        written[element, int(dim), int(queries), int(keys), int(cluster or 1)] = [float(price) for price in prices]
    assert len(written) == 24 and written.items() <= solved.items(), (written, solved)

    with tempfile.TemporaryDirectory() as name:
        empty = pathlib.Path(name) / "table.json"
        empty.write_text('{"cases": []}')
        done = subprocess.run([TOOL, empty], capture_output=True, text=True)
        assert done.returncode == 1 and "no joules" in done.stderr, done.stderr
    print("tile_prices: passed")


if __name__ == "__main__":
    main()
