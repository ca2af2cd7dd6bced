"""The first signal ends a command in its own time: what was measured is written."""
import json
import os
import signal
import subprocess

import pytest

from built import program


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_writes_what_it_has(tmp_path, number):
    (tmp_path / "lines.txt").write_text("".join(f"fwd fp32 h1 s{s} d8\n" for s in range(16, 216)))
    run = subprocess.Popen(
        [program(), "bench", "--problems", tmp_path / "lines.txt", "--backend", "cpu", "--no-energy",
         "--seconds", "0.2", "--out", tmp_path / "out.json"], stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, env={**os.environ, "DFA_CUDA_DRIVER": "none-in-tests"})
    while b"2/200" not in run.stderr.read1():
        assert run.poll() is None
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1 and b"interrupted" in errors
    assert 1 <= len(json.loads((tmp_path / "out.json").read_text())["cases"]) < 400
