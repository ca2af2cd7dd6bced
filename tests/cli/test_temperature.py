"""The bounds that a session on a card holds temperature caps to, held against the simulated card first."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
JUDGE = ROOT / "benchmarks/temperature_metrics"


def judge(path):
    return subprocess.run([sys.executable, str(JUDGE), str(path)], stdout=subprocess.PIPE, text=True, timeout=60)


@pytest.fixture
def session(dfa, tmp_path):
    trace = tmp_path / "t.jsonl"
    done = dfa("simulate", "--scenario", str(ROOT / "scenarios/temp_session.json"), "--trace", str(trace))
    assert done.returncode == 0, (done.stdout, done.stderr)
    return [json.loads(line) for line in trace.read_text().splitlines()]


def rewritten(path, records, change):
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_procedure_keeps_its_bounds_on_the_simulated_card(session, tmp_path):
    done = judge(rewritten(tmp_path / "same.jsonl", session, lambda record: None))
    assert done.returncode == 0, done.stdout
    first, second = done.stdout.splitlines()
    assert first.startswith("temp_cap:60C") and "infeasible" not in first
    assert second.startswith("temp_cap:30C") and "infeasible" in second


@pytest.mark.parametrize("name, kind, change, words", [
    ("hot", "sample", lambda r: r.update(temp_c=r["temp_c"] + 4), "no infeasible told"),
    ("cold", "sample", lambda r: r.update(temp_c=r["temp_c"] - 8), "allowed to be used"),
    ("wrong", "decision", lambda r: r.update(reachable=20), "20.0 C told"),
    ("blind", "sample", lambda r: r.update(temp_c=None), "was not measured"),
])
def test_bounds_are_missed_where_they_should(session, tmp_path, name, kind, change, words):
    done = judge(rewritten(tmp_path / f"{name}.jsonl", session, lambda r: change(r) if r["kind"] == kind else None))
    assert done.returncode == 1 and words in done.stdout, done.stdout


def test_power_takes_seconds_for_each_policy(dfa, fails, tmp_path):
    trace = tmp_path / "t.jsonl"
    short = ["--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--points", "1", "--point-seconds", "0.05",
             "--policy", "max_performance", "--policy", "latency:1s"]
    done = dfa("power", *short, "--seconds", "0.2", "--seconds", "0.6", "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [event["time_s"] for event in records[0]["events"]] == [0.2]
    fails(2, ["--seconds", "3", "2"], "power", *short, "--seconds", "1", "--seconds", "1", "--seconds", "1")
