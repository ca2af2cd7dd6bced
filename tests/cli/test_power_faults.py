"""What goes wrong around a policy: one clear line, and nothing lost that was there."""

import os
import resource
import signal
import sqlite3
import subprocess
import time

import pytest

from built import HUNG_S, start

PROBLEM = "fwd fp32 b1 h2 s64 d32"
FAST = ["--backend", "cpu", "--point-seconds", "0.05"]
SHORT = [*FAST, "--points", "1"]
POWER = ["power", "--problem", PROBLEM, "--policy", "max_performance", "--seconds", "0.2", *SHORT]


def test_places_that_cannot_be_written_are_known_before_the_run(fails):
    for option in ("--trace", "--chrome"):
        fails(2, ["cannot write", "nowhere"], *POWER, option, "/nowhere/t")


def test_a_full_disk_takes_the_trace_and_not_what_was_measured(dfa, tmp_path, tmp_path_factory):
    (tmp_path / "t.jsonl").write_text("old")
    done = dfa(*POWER, "--trace", "t.jsonl", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
               env={"GCOV_PREFIX": str(tmp_path_factory.mktemp("coverage")), "GCOV_ERROR_FILE": os.devnull})
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("dfa: cannot write 't.jsonl'")
    assert "max_performance" in done.stdout and "calls" in done.stdout
    assert (tmp_path / "t.jsonl").read_text() == "old" and os.listdir(tmp_path) == ["t.jsonl"]


def spoil(path, statement):
    with sqlite3.connect(path) as database:
        assert database.execute(statement).rowcount > 0


@pytest.mark.parametrize("statement, words", [
    ("update rows set problem = 'nonsense'", "nonsense"),
    ("update rows set time_s = 0", "time_s"),
    ("update rows set config = 'tile 7'", "tile 7"),
])
def test_a_profile_that_somebody_changed_is_named(dfa, fails, tmp_path, statement, words):
    store = tmp_path / "p.db"
    assert dfa("tune", "--problem", PROBLEM, "--profile", store, *SHORT).returncode == 0
    spoil(store, statement)
    fails(2, words, "power", "--problem", PROBLEM, "--policy", "max_performance", "--profile", store, "--backend", "cpu")


def test_a_damaged_profile_is_one_line(dfa, fails, tmp_path):
    store = tmp_path / "p.db"
    assert dfa("tune", "--problem", PROBLEM, "--profile", store, *SHORT).returncode == 0
    whole = store.read_bytes()
    store.write_bytes(whole[:4096] + b"\x77" * (len(whole) - 4096))
    fails(2, ["profile", "p.db"], "power", "--problem", PROBLEM, "--policy", "max_performance", "--profile", store,
          "--backend", "cpu")


def test_a_tuning_that_was_killed_goes_on_with_what_it_had(tmp_path):
    store = tmp_path / "p.db"
    (tmp_path / "lines.txt").write_text("".join(f"fwd fp32 h1 s{s} d8\n" for s in range(16, 76)))
    tune = ["tune", "--problems", tmp_path / "lines.txt", "--profile", store, *SHORT]
    run = start(*tune, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    seen = b""
    while b"[3/60]" not in seen:
        assert run.poll() is None
        seen += run.stderr.read1()
    time.sleep(0.3)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=HUNG_S)
    with sqlite3.connect(store) as database:
        rows = database.execute("select count(*) from rows").fetchone()[0]
    assert 2 <= rows < 60
    again = start(*tune, "--budget", "0.001", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out, _ = again.communicate(timeout=HUNG_S)
    assert f"1 rows measured, {rows} there already, 0 wrong, {59 - rows} left".encode() in out, out


def test_the_memory_that_stored_probabilities_may_take(dfa, tmp_path):
    tune = ["tune", "--problem", "fwdbwd fp32 b1 h2 s64 d32", "--profile", tmp_path / "p.db", *FAST,
            "--points", "2"]
    small = dfa(*tune, "--memory", "10KB")
    assert small.returncode == 0 and "1 rows measured" in small.stdout
    assert "stored probabilities of 'fwdbwd fp32" in small.stdout and "0.01024 MB may be had" in small.stdout
    enough = dfa(*tune, "--memory", "1GiB", "--list")
    assert "1 rows measured, 1 there already" in enough.stdout
    assert "StandardConfig{.probabilities=Probabilities::stored}" in enough.stdout
