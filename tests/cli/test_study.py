"""`dfa study` at its smallest on the CPU: killed half way, it goes on; the page tells what is missing."""

import json
import signal
import subprocess
import sys
import time

import pytest

from built import HUNG_S, ROOT, start


def study(folder, *options):
    # The report is made by the Python of these tests; what has torch is looked for there, too.
    return start("study", "--quick", "--source", ROOT, "--out", folder, *options,
                 env={"DFA_PYTHON": sys.executable, "VIRTUAL_ENV": ""},
                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def states(folder):
    steps = json.loads((folder / "study.json").read_text())["steps"]
    return {step["name"]: step["status"] for step in steps}


def test_a_killed_study_goes_on_and_ends_with_a_report(tmp_path):
    folder = tmp_path / "study"
    parts = ("--steps", "launch,theory")
    first = study(folder, *parts)
    end = time.monotonic() + HUNG_S
    while not (folder / "study.json").exists() or states(folder).get("launch") != "done":
        assert first.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    made = (folder / "launch.json").stat().st_mtime_ns
    second = study(folder, *parts)
    out, progress = second.communicate(timeout=HUNG_S)
    assert second.returncode == 0, (out, progress)
    assert (folder / "launch.json").stat().st_mtime_ns == made
    assert "launch            done before" in out
    assert "left in all" in progress and "13/17" in progress
    found = states(folder)
    assert {name for name, state in found.items() if state == "done"} == {"launch", "theory", "report"}
    assert found["three_way"] == "cannot"
    assert "not asked for" in (folder / "report.html").read_text()
    assert out.splitlines()[-1] == str(folder / "report.html")


def test_without_a_report_the_record_is_named(tmp_path):
    done = start("study", "--quick", "--source", tmp_path, "--out", tmp_path / "study", "--steps", "theory",
                 env={"DFA_PYTHON": sys.executable, "VIRTUAL_ENV": ""},
                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, _ = done.communicate(timeout=HUNG_S)
    assert states(tmp_path / "study")["report"] == "cannot"
    assert out.splitlines()[-1] == str(tmp_path / "study" / "study.json")


# Every suite, up to its longest problems.
@pytest.mark.full
@pytest.mark.all
def test_the_whole_study_ends_with_every_figure(tmp_path):
    whole = study(tmp_path)
    out, progress = whole.communicate(timeout=HUNG_S)
    assert whole.returncode == 0, (out, progress)
    found = states(tmp_path)
    assert found.pop("hbm") == found.pop("context_parallel") == "cannot"
    assert found.pop("training") in ("done", "cannot")
    assert set(found.values()) == {"done"}, found
    page = (tmp_path / "report.html").read_text()
    assert "the counters are those of a GPU" in page and "The published example" in page
    figures = {path.name for path in tmp_path.glob("*.png")}
    assert figures >= {f"{name}.png" for name in (
        "speedup", "latency", "throughput", "memory", "three_panel", "efficiency", "causal",
        "forward_backward", "batch", "heads", "head_dim", "embedding", "heatmap", "launch", "theory")}
    assert (tmp_path / "three_panel.pdf").read_bytes().startswith(b"%PDF")
    for name in ("baseline", "flash", "dynamic"):
        assert json.loads((tmp_path / f"{name}_results.json").read_text())


def test_an_interrupt_ends_it_in_order(tmp_path):
    run = study(tmp_path)
    while not (tmp_path / "log").exists():
        time.sleep(0.05)
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    out, errors = run.communicate(timeout=HUNG_S)
    assert run.returncode == 1 and "goes on from here" in errors
    assert "done" not in states(tmp_path).values()


def test_the_list_says_what_each_part_takes(dfa, tmp_path):
    done = dfa("study", "--list", "--out", tmp_path / "s", "--source", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "three_way" in done.stdout and "in all" in done.stdout
    assert "is no checkout of dfa" in done.stdout  # the report
    assert not (tmp_path / "s").exists()


def test_steps_of_which_no_report_can_be_made_are_refused_first(fails, tmp_path):
    made = tmp_path / "made"
    for steps in ("theory", "theory,report"):
        fails(2, [f"--steps '{steps}'", "three_way, ", ", launch"], "study", "--quick", "--source", ROOT, "--out", made, "--steps", steps,
              env={"DFA_PYTHON": sys.executable, "VIRTUAL_ENV": ""})
    assert not made.exists()


def test_bad_usage(fails, tmp_path):
    fails(2, ["'speed'", "three_way"], "study", "--out", tmp_path, "--steps", "speed")
    fails(2, "--out", "study")
    for text in ("{}", "[]", "null", '"dfa-study/1"', '{"schema": 1}'):
        (tmp_path / "study.json").write_text(text)
        fails(2, ["study.json", "(another schema)", "dfa-study/1"], "study", "--out", tmp_path)
