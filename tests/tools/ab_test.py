#!/usr/bin/env python3
"""benchmarks/ab with a made-up dfa: the order of turns, the table, what fails."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Notes each call; a tile of 80 keys is refused, one of 96 misses the rule, one of 112 hangs, the peer has no joules.
DFA = """#!/usr/bin/env python3
import json, os, pathlib, struct, sys, time
words = sys.argv
value = lambda name: words[words.index(name) + 1] if name in words else ""
config = value("--config")
with open(pathlib.Path(words[0]).parent / "calls.txt", "a") as calls:
    print(pathlib.Path(words[0]).name, config or os.environ.get("DFA_KERNEL_SOURCES", ""), file=calls)
if "block_k=112" in config:
    time.sleep(60)
if "block_k=80" in config:
    sys.exit("error: block_k=80 is not legal")
# 500.25 TFLOP/s; "before" runs on, into the limit. A sample of another case stands in front.
seconds = [1e-3, 1e-3, 1e-3] + [2e-3] * (5 if "before" in words[0] else 0)
out = pathlib.Path(value("--out"))
out.with_suffix(".f32").write_bytes(b"".join(struct.pack("<3f", 0, s, 60) for s in [9] + seconds))
case = {"algorithm": "flash", "backend": "cuda", "status": "ok", "reason": None, "tflops": 1, "flops": 500.25e9, "gflop_per_j": 700.4,
        "check": {"ok": "block_k=96" not in config}, "samples_file": out.with_suffix(".f32").name,
        "samples": {"offset_bytes": 12, "rows": len(seconds), "columns": ["start_s", "duration_s", "temp_c"]}}
cases = [case]
if value("--peers"):
    cases.append(dict(case, algorithm=value("--peers"), backend="torch", gflop_per_j=None))
if not case["check"]["ok"]:
    case["status"] = "failed"
out.write_text(json.dumps({"cases": cases}))
"""


def run(folder, rows, *options):
    (folder / "rows.txt").write_text(rows)
    done = subprocess.run([ROOT / "benchmarks/ab", folder / "rows.txt", "--out", folder / "out", "--dfa", folder / "dfa",
                           *options], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for program in ("dfa", "before"):
            (folder / program).write_text(DFA)
            (folder / program).chmod(0o755)
        code, said, _ = run(folder, "fwd bf16 s512 d64  # why\n  wide: block_k=128\n", "--program", f"before={folder}/before",
                            "--peers", "torch-flash3")
        assert code == 0, said
        assert said.splitlines() == ["fwd bf16 s512 d64", "  planned          500.2 700 | 500.2 700",
                                     "  torch-flash3     500.2 - | 500.2 -", "  before           500.2 700 | 500.2 700",
                                     "  wide             500.2 700 | 500.2 700"], said
        assert (folder / "out/ab.txt").read_text() == said
        calls = (folder / "calls.txt").read_text().split("\n")
        wide = "dfa ForwardConfig{block_k=128}"
        assert calls[:6] == ["dfa ", "before ", wide, wide, "before ", "dfa "], calls  # and back again

        code, said, _ = run(folder, "fwd bf16 s512 d64\n  a: block_k=80\n  b: block_k=96\n", "--rounds", "1")
        assert code == 1
        assert "  a                error: block_k=80 is not legal" in said.splitlines(), said
        assert "  b                misses the rule" in said.splitlines(), said
        code, said, _ = run(folder, "fwd bf16 s512 d64\n  b: block_k=96\n", "--rounds", "1", "--wrong")
        assert code == 0 and said.splitlines()[1:] == ["  planned          500.2 700", "  b                500.2 700!"], said

        (folder / "calls.txt").unlink()
        code, said, _ = run(folder, "fwd bf16 s512 d64\n  wide: block_k=128\n", "--rounds", "1", "--compile", "2",
                            "--sources", "mine=/some/src")
        calls = (folder / "calls.txt").read_text().splitlines()
        assert code == 0 and "  mine             500.2 700" in said.splitlines(), said
        assert sorted(calls[:3]) == sorted(calls[3:]) == ["dfa ", "dfa /some/src", wide], calls  # each once ahead

        code, said, _ = run(folder, "fwd bf16 s512 d64\n  c: block_k=112\n", "--rounds", "1", "--limit", "3", "--compile", "1")
        assert code == 1 and said.splitlines()[1:] == ["  planned          500.2 700", "  c                ended after 3 s"], said

        for rows, why in (("  a: block_k=80\n", "rows.txt:1"), ("fwd s5\n  a\n", "rows.txt:2"), ("# none\n", "no problem line"),
                          ("fwd s5\n  a: b=1\n  a: b=2\n", "'a' twice")):
            code, _, error = run(folder, rows)
            assert code == 1 and why in error and "Traceback" not in error, error
    print("ab: passed")


if __name__ == "__main__":
    main()
