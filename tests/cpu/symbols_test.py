#!/usr/bin/env python3
"""Engines compiled for one instruction set may define no symbol that the linker could take for all.

A weak symbol (an inline function or template of a shared header) is kept once per program: were it
the copy of an AVX-512 file, it would crash a processor without.

Usage: symbols_test.py OBJECT…   exit 1 and one line per weak symbol
"""
import pathlib
import subprocess
import sys

ISA_FILES = ("avx2", "avx512", "avx512_bf16", "amx")
WEAK = set("VvWwu")


def weak_symbols(listing):
    for line in listing.splitlines():
        *_, kind, name = line.split(maxsplit=2) if line[0] != " " else ["", *line.split(maxsplit=1)]
        # The sanitizers' pointer to the exception personality: data, the same from every file.
        if kind in WEAK and not name.startswith("DW.ref."):
            yield name


def main():
    objects = [p for p in map(pathlib.Path, sys.argv[1:]) if p.name.split(".")[0] in ISA_FILES]
    wrong = []
    for path in objects:
        listing = subprocess.run(["nm", "-C", path], check=True, capture_output=True, text=True)
        wrong += [f"{path.name}: weak symbol {name}" for name in weak_symbols(listing.stdout)]
    fault = "0000000000000000 W dfa::shared()\n                 U memcpy\n"
    assert list(weak_symbols(fault)) == ["dfa::shared()"], "the check itself is blind"
    print("\n".join(wrong) if wrong else f"symbols: {len(objects)} engine objects keep to themselves")
    return 1 if wrong or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
