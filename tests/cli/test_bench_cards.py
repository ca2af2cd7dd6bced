"""`dfa bench --suite context_parallel`: what it starts, by a Python that only says what it was asked, and what it refuses."""

import pytest

PYTHON = """#!/bin/sh
[ "$1" = -c ] && case "$2" in *device_count*) exit {few};; *) exit 0;; esac
echo "asked: $*"
while [ "$1" != --out ]; do shift; done
echo '{{}}' > "$2"
exit {code}
"""


@pytest.fixture
def environment(tmp_path):
    def make(few=0, code=0):
        python = tmp_path / "python"
        python.write_text(PYTHON.format(few=few, code=code))
        python.chmod(0o755)
        return {"DFA_PYTHON": str(python), "VIRTUAL_ENV": ""}
    return make


def test_it_starts_a_rank_a_card(dfa, environment, tmp_path):
    done = dfa("bench", "--suite", "context_parallel", "--out", tmp_path / "r.json", "--seconds", "1.5", "--no-energy", env=environment())
    assert done.returncode == 0, done.stderr
    asked, wrote = done.stdout.splitlines()
    assert asked.startswith("asked: -m torch.distributed.run --standalone --nproc-per-node=gpu /")
    assert asked.endswith(f"/benchmarks/context_parallel.py --out {tmp_path}/r.json --seconds 1.5 --energy-seconds 0")
    assert wrote == f"wrote {tmp_path}/r.json" and (tmp_path / "r.json").exists()


def test_where_ranks_fail_it_does(dfa, environment, tmp_path):
    done = dfa("bench", "--suite", "context_parallel", "--out", tmp_path / "r.json", env=environment(code=7))
    assert done.returncode == 1 and "ended with 7" in done.stderr and "wrote" not in done.stdout


def test_refusals(fails, environment, tmp_path):
    out = ("--out", tmp_path / "r.json")
    fails(3, "PyTorch sees fewer than two GPUs here", "bench", "--suite", "context_parallel", *out, env=environment(few=1))
    fails(3, "no Python here imports torch", "bench", "--suite", "context_parallel", *out, env={"DFA_PYTHON": "/bin/false", "VIRTUAL_ENV": ""})
    for option in (("--peers", "torch"), ("--backend", "cpu"), ("--only", "32k"), ("--no-interleave",)):
        name = option[0].replace("--no-", "--")
        fails(2, [f"no use for {name}", "--energy-seconds"], "bench", "--suite", "context_parallel", *out, *option, env=environment())
    fails(2, ["'speed'", "context_parallel"], "bench", "--suite", "speed", *out)
    assert not (tmp_path / "r.json").exists()
