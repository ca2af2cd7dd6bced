"""The first signal ends a command in its own time: what was measured is written."""
import json
import os
import pathlib
import pty
import re
import signal
import subprocess

import pytest

from built import HUNG_S, program, start


def bench(tmp_path, **options):
    (tmp_path / "lines.txt").write_text("".join(f"fwd fp32 h1 s{s} d8\n" for s in range(16, 216)))
    return start("bench", "--problems", tmp_path / "lines.txt", "--backend", "cpu", "--no-energy", "--seconds",
                 "0.2", "--out", tmp_path / "out.json", stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                 **options)


def wait_for(run, words):
    seen = b""
    while words not in seen:
        assert run.poll() is None
        seen += run.stderr.read1()


def ends_in_order(run, tmp_path):
    _, errors = run.communicate(timeout=HUNG_S)
    assert run.returncode == 1 and b"interrupted" in errors
    assert 1 <= len(json.loads((tmp_path / "out.json").read_text())["cases"]) < 400


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_bench_writes_what_it_has(tmp_path, number):
    run = bench(tmp_path)
    wait_for(run, b"2/200")
    run.send_signal(number)
    ends_in_order(run, tmp_path)


def wait_until_caught(run, number):
    """Until the program has a handler of its own for the signal."""
    caught = 0
    while not caught >> (number - 1) & 1:
        assert run.poll() is None
        status = pathlib.Path(f"/proc/{run.pid}/status").read_text(encoding="utf-8")
        caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1], 16)


SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", ["cap_step.json", "rack/eight_cards.json"])
def test_simulate_tells_how_far_it_came(tmp_path, name, number):
    scenario = json.loads((SCENARIOS / name).read_text(encoding="utf-8"))
    scenario["seconds"] = 100_000  # minutes
    (tmp_path / "long.json").write_text(json.dumps(scenario), encoding="utf-8")
    rack = "rack" in scenario
    trace = [] if rack else ["--trace", tmp_path / "trace.jsonl"]
    run = start("simulate", "--scenario", tmp_path / "long.json", *trace, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True)
    wait_until_caught(run, number)
    run.send_signal(number)
    out, errors = run.communicate(timeout=HUNG_S)
    assert run.returncode == 1
    assert re.fullmatch(r"dfa: interrupted at [\d.]+ of 100000 s; metrics are not judged\n", errors), errors
    assert "of the time" in out and "MISSED" not in out
    if not rack:
        lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text(encoding="utf-8").splitlines()]
        simulated = [line["time_s"] for line in lines if line["kind"] == "sample"]
        assert 0 < simulated[-1] < 100_000
        assert abs(simulated[-1] - float(re.search(r"at ([\d.]+) of", errors)[1])) < 0.06


def test_a_terminal_that_goes_away_takes_no_result_with_it(tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"fwd fp32 h1 s{s} d8\n" for s in range(16, 216)))
    terminal, inner = pty.openpty()

    def at_the_terminal():
        os.login_tty(inner)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
    run = subprocess.Popen([program(), "bench", "--problems", tmp_path / "lines.txt", "--backend", "cpu",
                            "--no-energy", "--seconds", "2", "--out", tmp_path / "out.json"],
                           preexec_fn=at_the_terminal, env={"DFA_CUDA_DRIVER": "none-in-tests", **os.environ})
    os.close(inner)
    seen = b""
    while b"/200 ETA" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)  # the kernel sends SIGHUP, and every write to it fails from now on
    assert run.wait(HUNG_S) == 1
    assert 1 <= len(json.loads((tmp_path / "out.json").read_text())["cases"]) < 400


def test_a_signal_ignored_from_the_start_stays_ignored_and_the_other_ends_it(tmp_path):
    run = bench(tmp_path, ignoring=[signal.SIGINT])
    wait_for(run, b"2/200")
    run.send_signal(signal.SIGINT)
    wait_for(run, b"6/200")
    run.send_signal(signal.SIGTERM)
    ends_in_order(run, tmp_path)


def test_a_killed_bench_leaves_what_it_had_beside_an_older_result(tmp_path):
    (tmp_path / "out.json").write_text("older")
    run = bench(tmp_path)
    wait_for(run, b"3/200")
    run.kill()
    run.communicate(timeout=HUNG_S)
    assert (tmp_path / "out.json").read_text() == "older"
    partial = json.loads((tmp_path / "out.partial.json").read_text())
    assert partial["schema"] == "dfa-result/1"
    assert 1 <= len(partial["cases"]) < 400 and partial["cases"][0]["status"] == "ok"
    assert (tmp_path / partial["cases"][0]["samples_file"]).stat().st_size > 0


def test_a_bench_that_ends_leaves_its_result_alone(tmp_path):
    run = bench(tmp_path)
    wait_for(run, b"3/200")
    run.send_signal(signal.SIGINT)
    ends_in_order(run, tmp_path)
    samples = {case["samples_file"] for case in json.loads((tmp_path / "out.json").read_text())["cases"]}
    assert {path.name for path in tmp_path.iterdir()} == {"lines.txt", "out.json"} | samples
