"""Policies from the command line: simulated, and on the CPU, where power may not be measured."""

import json
import pathlib
import re

import pytest

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
PROBLEM = "fwd fp32 b1 h2 s64 d32"
SHORT = ["--backend", "cpu", "--points", "2", "--point-seconds", "0.05"]


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_simulate_reaches_its_marks_and_traces(dfa, tmp_path):
    trace = tmp_path / "t.jsonl"
    done = dfa("simulate", "--scenario", str(SCENARIOS / "cap_step.json"), "--trace", str(trace))
    assert (done.returncode, done.stderr) == (0, "")
    assert "times faster than time" in done.stdout and "MISSED" not in done.stdout
    lines = records(trace)
    assert lines[0]["schema"] == "dfa-trace/1"
    assert {line["kind"] for line in lines} == {"head", "sample", "decision", "measures"}
    assert len([line for line in lines if line["kind"] == "sample"]) == 480


def test_simulate_with_another_policy_misses_marks(dfa):
    done = dfa("simulate", "--scenario", str(SCENARIOS / "cap_step.json"), "--policy", "power_cap:110W")
    assert done.returncode == 1
    assert "MISSED" in done.stdout


def test_simulate_names_bad_files(fails, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "dfa-scenario/1", "secunds": 3}')
    fails(2, ["secunds", "seconds"], "simulate", "--scenario", str(bad))
    fails(2, "nowhere.json", "simulate", "--scenario", "nowhere.json")


def test_tune_goes_on_where_it_was(dfa, tmp_path):
    store, rows = tmp_path / "p.db", tmp_path / "rows.json"
    tune = ["tune", "--problem", PROBLEM, "--profile", str(store), *SHORT]
    first = dfa(*tune)
    assert first.returncode == 0, first.stderr
    assert "2 rows measured, 0 there already" in first.stdout
    again = dfa(*tune, "--export", str(rows), "--list")
    assert "0 rows measured, 2 there already" in again.stdout
    exported = json.loads(rows.read_text())
    assert exported["schema"] == "dfa-profile/1" and len(exported["rows"]) == 2
    assert all(row["time_s"] > 0 for row in exported["rows"])
    other = tmp_path / "other.db"
    carried = dfa("tune", "--profile", str(other), "--import", str(rows), "--export", str(tmp_path / "again.json"))
    assert (carried.returncode, carried.stderr) == (0, "")
    assert "imported 2 rows" in carried.stdout and "exported 2 rows" in carried.stdout
    assert (tmp_path / "again.json").read_text() == rows.read_text()
    assert "0 rows measured, 2 there already" in dfa("tune", "--problem", PROBLEM, "--profile",
                                                      str(other), *SHORT).stdout


def test_tune_keeps_to_its_budget(dfa, tmp_path):
    done = dfa("tune", "--problem", PROBLEM, "--profile", str(tmp_path / "p.db"), "--budget", "0.001",
               *SHORT)
    assert "1 rows measured, 0 there already, 0 wrong, 1 left" in done.stdout


def test_power_runs_and_invents_no_watt(dfa, tmp_path):
    trace, chrome = tmp_path / "t.jsonl", tmp_path / "t.json"
    done = dfa("power", "--problem", PROBLEM, "--policy", "max_performance", "--policy",
               "latency:1s", "--seconds", "0.5", "--trace", str(trace), "--chrome", str(chrome), *SHORT)
    assert done.returncode == 0, done.stderr
    assert "max_performance" in done.stdout and "TFLOP/s" in done.stdout
    lines = records(trace)
    samples = [line for line in lines if line["kind"] == "sample"]
    assert samples and all(s["power_w"] is None or s["power_w"] > 0 for s in samples)
    assert any(line["kind"] == "decision" for line in lines)
    assert json.loads(chrome.read_text())["traceEvents"]


def test_power_takes_points_of_a_profile(dfa, fails, tmp_path):
    store = tmp_path / "p.db"
    asked = ["power", "--problem", PROBLEM, "--policy", "max_performance", "--profile", str(store),
             "--backend", "cpu"]
    fails(2, ["is not there", "dfa tune"], *asked)
    (tmp_path / "rows.json").write_text('{"schema": "dfa-profile/1", "rows": []}')
    assert dfa("tune", "--import", "rows.json", "--profile", str(store)).returncode == 0  # a store without a row
    fails(3, "dfa tune", *asked)
    assert dfa("tune", "--problem", PROBLEM, "--profile", str(store), *SHORT).returncode == 0
    done = dfa("power", "--problem", PROBLEM, "--policy", "max_performance", "--seconds", "0.2",
               "--profile", str(store), "--backend", "cpu")
    assert done.returncode == 0, done.stderr


def test_a_cap_needs_watts(dfa, tmp_path):
    done = dfa("power", "--problem", PROBLEM, "--policy", "power_cap:50W", "--seconds", "0.2", *SHORT)
    if "not measured" not in done.stdout:
        pytest.skip("power is measured here")
    assert done.returncode == 3
    assert "power was measured" in done.stderr


def test_several_problems_take_turns_and_a_bound_is_watched(dfa, tmp_path):
    trace = tmp_path / "t.jsonl"
    done = dfa("power", "--policy", "max_performance", "--seconds", "1.2", "--load-seconds", "0.3",
               "--problem", PROBLEM, "--problem", "fwd fp32 b1 h2 s128 d32", "--max-error", "1e-3",
               "--backend", "cpu", "--points", "1", "--point-seconds", "0.05", "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    assert re.search(r"accuracy: [1-9]\d* checks of 16 rows, largest error \S+e-0[78] of at most 0.001", done.stdout), done.stdout
    lines = records(trace)
    assert [event["note"] for event in lines[0]["events"]] == [
        "fwd fp32 b1 hq2 hk2 sq128 sk128 d32", "fwd fp32 b1 hq2 hk2 sq64 sk64 d32",
        "fwd fp32 b1 hq2 hk2 sq128 sk128 d32"]
    points = [line["why"] for line in lines if line["kind"] == "decision" and "another load" in line["why"]]
    assert len(points) == 3


def test_a_shipped_profile_says_when_it_has_no_row(fails):
    fails(3, ["--profile shipped", "no shipped row of 'fwd fp32 b1 hq2 hk2 sq64 sk64 d32'"], "power",
          "--policy", "max_performance", "--problem", PROBLEM, "--backend", "cpu", "--profile", "shipped")


def test_options_without_a_use_are_refused(fails):
    problem = ["--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--policy", "max_performance"]
    fails(2, ["--load-seconds is of turns", "several --problem"], "power", *problem, "--load-seconds", "1")
    for option in ("--points", "--point-seconds"):
        fails(2, ["--points and --point-seconds", "without --profile"], "power", *problem, "--profile", "shipped", option, "1")
