#!/usr/bin/env python3
"""Every public header compiles alone and twice, without a warning.

Usage: headers_test.py COMPILER
"""
import pathlib
import subprocess
import sys

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"


def main():
    headers = sorted(path.relative_to(INCLUDE) for path in INCLUDE.rglob("*.h"))
    assert headers
    failed = 0
    for header in headers:
        done = subprocess.run(
            [sys.argv[1], "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
             "-fsyntax-only", "-I", str(INCLUDE), "-x", "c++", "-"],
            input=f'#include "{header}"\n#include "{header}"\n', text=True, check=False)
        failed += done.returncode != 0
    print(f"headers: {len(headers) - failed} of {len(headers)} compile alone")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
