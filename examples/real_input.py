#!/usr/bin/env python3
"""Attention of a trained model on a real text, by every algorithm: errors against fp64, and times.

q, k, v of examples/data (12 heads of 32, 331 tokens) go through `dfa run` as standard attention,
FlashAttention and the fp64 reference, in fp32 and in bf16. Exit code 1 if a result is wrong.

    python3 examples/real_input.py --dfa build/release/cli/dfa --out out
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parent / "data" / "minilm_layer0_qkv.safetensors"
VARIANTS = {"standard": ("--algorithm", "standard"), "flash": ("--algorithm", "flash"),
            "reference": ("--backend", "reference")}
ROW = "{:<10} {:<10} {:>10} {:>9} {:>12} {:>12}   {}"


def run(dfa, dtype, variant, result):
    """The case that `dfa run` wrote, whatever its verdict; exits as dfa does on an error."""
    result.unlink(missing_ok=True)
    done = subprocess.run(
        [dfa, "run", "--problem", f"fwd {dtype}", "--q", f"{DATA}:q", "--k", f"{DATA}:k",
         "--v", f"{DATA}:v", *VARIANTS[variant], "--check", "--json", result],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if not result.exists():
        why = done.stderr.strip() or f"exit code {done.returncode}, no result"
        sys.exit(f"real_input: {variant} in {dtype}: {why}")
    return json.loads(result.read_text())["cases"][0]


def number(value, form):
    return "-" if value is None else format(value, form)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dfa", default="dfa", help="the dfa program")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"), metavar="DIR",
                        help="folder for the result files real_input_DTYPE_NAME.json")
    args = parser.parse_args()
    if shutil.which(args.dfa) is None:
        parser.error(f"--dfa {args.dfa}: no such program")
    args.out.mkdir(parents=True, exist_ok=True)

    wrong = 0
    print(ROW.format("precision", "algorithm", "median ms", "± 95 %", "max error", "bound", "check"))
    for dtype in ("fp32", "bf16"):
        for variant in VARIANTS:
            case = run(args.dfa, dtype, variant, args.out / f"real_input_{dtype}_{variant}.json")
            time, check = case["time_ms"] or {}, case["check"] or {}
            wrong += check.get("ok") is not True
            print(ROW.format(dtype, variant, number(time.get("median"), ".3f"),
                             number(time.get("half_width"), ".3f"),
                             number(check.get("max_error"), ".2e"),
                             number(check.get("bound"), ".2e"),
                             "ok" if check.get("ok") else case["reason"] or "wrong"), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"real_input: {error.filename}: {error.strerror}")
