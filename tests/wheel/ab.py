#!/usr/bin/env python3
"""ab.py NAME=PROGRAM NAME=PROGRAM: two builds of dfa in turns on one thread, for every instruction set of the processor: the least time of
each and their ratio. Made results/tables/wheel_compilers_zen5.txt."""
import datetime
import os
import pathlib
import re
import subprocess
import sys

PROBLEMS = ("fwd fp32 b1 h8 s1024 d64", "fwd bf16 causal b1 h8 s1024 d128", "bwd fp32 b1 h8 s1024 d64", "bwd bf16 causal b1 h8 s1024 d128")
TURNS = 9


def least_ms(program, isa, problem):
    done = subprocess.run([program, "run", "--problem", problem, "--threads", "1"], capture_output=True, text=True, check=False,
                          env={**os.environ, "DFA_ISA": isa})
    found = re.search(r"least ([0-9.]+)", done.stdout)
    return float(found[1]) if found else None


def main():
    builds = dict(argument.split("=", 1) for argument in sys.argv[1:])
    (a, b) = builds
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())[1]
    print(datetime.date.today())
    print(f"{processor}, one thread, {TURNS} turns of a quarter of a second each; the least time")
    for name, program in builds.items():
        said = subprocess.run([program, "info"], capture_output=True, text=True, check=True).stdout
        print(f"{name}: {re.search(r'toolchain +(.*)', said)[1].strip()}")
    print(f"{'set':<9} {'problem':<36} {a + ', ms':>9} {b + ', ms':>9}   {b} / {a}")
    for isa in ("portable", "avx2", "avx512", "amx"):
        for problem in PROBLEMS:
            times = {name: [] for name in builds}
            for _ in range(TURNS):
                for name, program in builds.items():
                    times[name].append(least_ms(program, isa, problem))
            if None in times[a] or None in times[b]:
                print(f"{isa:<9} not here")
                break
            x, y = min(times[a]), min(times[b])
            print(f"{isa:<9} {problem:<36} {x:9.2f} {y:9.2f}   {y / x:.2f}", flush=True)


if __name__ == "__main__":
    main()
