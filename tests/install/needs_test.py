#!/usr/bin/env python3
"""Libraries that are missing are told at once, in one line with the packages of each distribution.

Usage: needs_test.py COMPILER
"""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ABSENT = ["-DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON", "-DDFA_XXHASH_FOLDER="]


def main():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["cmake", "-S", ROOT, "-B", folder, f"-DCMAKE_CXX_COMPILER={sys.argv[1]}", "-DDFA_TESTS=OFF",
                               "-DDFA_BENCHMARKS=OFF", *ABSENT], capture_output=True, text=True, check=False)
    assert done.returncode != 0, "configured without fmt, TBB and xxhash"
    told = [line for line in done.stderr.splitlines() if "missing:" in line]
    assert len(told) == 1, done.stderr
    for words in ("missing: fmt, oneTBB, xxhash.h.", "apt install libfmt-dev libtbb-dev libxxhash-dev;",
                  "dnf install fmt-devel tbb-devel xxhash-devel;", "pacman -S fmt onetbb xxhash;",
                  "conda install -c conda-forge fmt tbb-devel xxhash"):
        assert words in told[0], (words, told[0])
    print(told[0].strip())


if __name__ == "__main__":
    main()
