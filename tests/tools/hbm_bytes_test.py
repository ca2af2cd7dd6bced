#!/usr/bin/env python3
"""benchmarks/hbm_bytes with made-up counters: two kernels a call, five calls."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

DFA = """#!/usr/bin/env python3
import json, sys
assert sys.argv[1] == "analyze"
print(json.dumps({"machines": [{"costs": [{"algorithm": "standard", "memory_bytes": 9000},
                                          {"algorithm": "flash", "memory_bytes": 2000}]}]}))
"""

NCU = """#!/usr/bin/env python3
import json, sys
if "--version" in sys.argv:
    print("NVIDIA Nsight\\nVersion 1")
    sys.exit()
words = sys.argv
bench = words[words.index("bench"):]
algorithm = bench[bench.index("--algorithms") + 1]
ok = algorithm == "flash"
case = {"status": "ok" if ok else "out_of_memory", "reason": None if ok else "too large",
        "time_ms": {"n": 2}}
open(bench[bench.index("--out") + 1], "w").write(json.dumps({"cases": [case]}))
assert words[words.index("--clock-control") + 1] == "none"
print("==PROF== Connected")
print('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for kernel in range(10):
    name = "dfa::a<1>(Args)" if kernel % 2 else "dfa::b<2>(Args)"
    print(f'"{kernel}","{name}","dram__bytes_read.sum","byte","1,200"')
    print(f'"{kernel}","{name}","dram__bytes_write.sum","byte","100"')
"""


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for program, text in (("dfa", DFA), ("ncu", NCU)):
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
        command = [sys.executable, ROOT / "benchmarks/hbm_bytes", "--dfa", folder / "dfa", "--ncu",
                   folder / "ncu", "--out", folder / "hbm.json"]
        done = subprocess.run([*command, "fwd bf16 b1 h1 s8 d8"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        standard, flash = json.loads((folder / "hbm.json").read_text())["cases"]
        assert standard["status"] == "out_of_memory" and standard["reason"] == "too large"
        assert "measured_bytes" not in standard
        # Two kernels a call of 1200 read and 100 written.
        assert (flash["read_bytes"], flash["write_bytes"]) == (2400, 200), flash
        assert flash["calls"] == 5 and flash["kernels"] == ["dfa::b", "dfa::a"]
        assert flash["ratio"] == 2600 / 2000
        assert "out_of_memory: too large" in (folder / "hbm.txt").read_text()
        refused = subprocess.run([*command, "bwd bf16 b1 h1 s8 d8"], capture_output=True, text=True)
        assert refused.returncode == 1 and "accepted: problems of fwd" in refused.stderr


if __name__ == "__main__":
    main()
