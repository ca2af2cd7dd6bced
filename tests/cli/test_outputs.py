"""Outputs go where their path leads, and a gate does not pass on nothing."""
import json
import os
import signal
import stat
import subprocess

import pytest

from built import HUNG_S, start

LINE = "fwd fp32 b1 h1 s4 d8"
SCENARIO = os.path.join(os.path.dirname(__file__), "../../scenarios/cap_step.json")


def commands(path):
    """Every command that writes one file, writing it to `path`."""
    return {
        "run": ["run", "--problem", LINE, "--json", path],
        "bench": ["bench", "--problem", LINE, "--backend", "cpu", "--seconds", "0.05", "--no-energy",
                  "--out", path],
        "simulate": ["simulate", "--scenario", SCENARIO, "--trace", path],
        "tune": ["tune", "--import", "rows.json", "--export", path],
    }


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "rows.json").write_text('{"schema": "dfa-profile/1", "rows": []}')


@pytest.mark.parametrize("command", ["run", "bench", "simulate", "tune"])
def test_a_link_stays_and_its_target_keeps_its_mode(dfa, tmp_path, rows, command):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far/target.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to("far/target.json")
    done = dfa(*commands(link)[command])
    assert done.returncode == 0, done.stderr
    assert link.is_symlink() and target.read_text() != "old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    link.unlink()
    link.symlink_to("far/made.json")
    assert dfa(*commands(link)[command]).returncode == 0
    assert link.is_symlink() and (tmp_path / "far/made.json").stat().st_size > 0


@pytest.mark.parametrize("command", ["run", "bench", "simulate", "tune"])
def test_devices_and_descriptors_are_written_to(dfa, tmp_path, rows, command):
    assert dfa(*commands("/dev/null")[command]).returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    done = dfa(*commands("/dev/full")[command])
    assert done.returncode == 2 and "cannot write '/dev/full': No space" in done.stderr.splitlines()[-1]
    with open(tmp_path / "log", "wb") as log:
        log.write(b"before\n")
        log.flush()
        done = dfa(*commands(f"/dev/fd/{log.fileno()}")[command], pass_fds=[log.fileno()])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_bytes().startswith(b"before\n{")
    assert not [name for name in os.listdir("/dev") if "samples" in name or "partial" in name]


@pytest.mark.parametrize("command", ["run", "bench", "simulate", "tune"])
def test_links_in_a_circle_and_folders_are_one_line(fails, tmp_path, rows, command):
    (tmp_path / "loop").symlink_to("loop")
    fails(2, ["loop", "symbolic links"], *commands("loop")[command])
    fails(2, "is a folder", *commands(".")[command])


@pytest.mark.parametrize("command", ["run", "bench", "simulate", "tune", "profile"])
def test_no_folder_is_made_for_a_file(fails, tmp_path, rows, command):
    path = "missing/below/file"
    profile = ["tune", "--import", "rows.json", "--profile", path]
    fails(2, f"cannot write '{path}': 'missing/below' is not a folder", *(commands(path) | {"profile": profile})[command])
    assert not (tmp_path / "missing").exists()


def bench(dfa, path, *problems):
    asked = [word for line in problems for word in ("--problem", line)]
    assert dfa("bench", *asked, "--backend", "cpu", "--seconds", "0.05", "--no-energy", "--algorithms", "flash",
               "--out", path).returncode == 0


def test_a_comparison_of_nothing_or_of_less_does_not_pass(dfa, fails, tmp_path):
    bench(dfa, "a.json", "fwd fp32 b1 h1 s16 d8", "fwd fp32 b1 h1 s32 d8")
    bench(dfa, "b.json", "fwd fp32 b1 h1 s64 d8")
    nothing = dfa("compare", "a.json", "b.json")
    assert nothing.returncode == 1 and "nothing was compared" in nothing.stdout
    assert json.loads(dfa("compare", "a.json", "b.json", "--json").stdout)["worse"] is True
    less = json.loads((tmp_path / "a.json").read_text())
    gone = less["cases"].pop()
    less["machine"]["threads"] += 3
    (tmp_path / "less.json").write_text(json.dumps(less))
    done = dfa("compare", "a.json", "less.json", "--tolerance", "1000")
    assert done.returncode == 1
    assert f"gone, only in A: custom | {gone['problem']}" in done.stdout
    assert "machines differ: threads: " in done.stdout
    assert "same file" in dfa("compare", "a.json", "a.json").stdout
    less["cases"].append(less["cases"][0])
    (tmp_path / "twice.json").write_text(json.dumps(less))
    fails(2, ["B: result has two cases", "each case once"], "compare", "a.json", "twice.json")


@pytest.mark.parametrize("text, words", [
    ("", "empty"), ("[]", "schema"), ('{"schema": "dfa-result/2"}', "dfa-result/1"),
    ('{"schema": "dfa-result/1", "schema": "dfa-result/1"}', "twice"),
    ('{"schema": NaN}', "not JSON"), ("[" * 100000, "nested deeper"),
])
def test_what_is_no_result_is_one_line(fails, tmp_path, text, words):
    (tmp_path / "x.json").write_text(text)
    fails(2, ["x.json", words], "compare", "x.json", "x.json")


NUMBERS = {
    "--seed": [["run", "--problem", LINE], ["bench", "--problem", LINE, "--out", "r.json"]],
    "--threads": [["run", "--problem", LINE], ["bench", "--problem", LINE, "--out", "r.json"]],
    "--sm-budget": [["run", "--problem", LINE], ["bench", "--problem", LINE, "--out", "r.json"]],
    "--calls": [["bench", "--problem", LINE, "--out", "r.json"]],
    "--points": [["tune", "--problem", LINE], ["power", "--policy", "edp", "--problem", LINE]],
    "--seconds": [["bench", "--problem", LINE, "--out", "r.json"], ["power", "--policy", "edp", "--problem", LINE],
                  ["monitor"]],
    "--interval": [["monitor"]],
    "--sram": [["analyze", "--problem", LINE]],
    "--memory": [["tune", "--problem", LINE], ["power", "--policy", "edp", "--problem", LINE]],
    "--budget": [["tune", "--problem", LINE]],
    "--point-seconds": [["tune", "--problem", LINE], ["power", "--policy", "edp", "--problem", LINE]],
}


@pytest.mark.parametrize("value", ["-1", "x", "1e3", "0x10", "nan", "inf", "99999999999999999999999", "5x", " 5",
                                   "5 ", "+5"])
@pytest.mark.parametrize("option", NUMBERS)
def test_numbers_are_read_alike_in_every_command(fails, option, value):
    for command in NUMBERS[option]:
        if option == "--memory" and value in ("x", "5x", "99999999999999999999999"):
            continue  # sizes have units, and words of their own
        fails(2, [option, f"'{value}' is no number", "accepted are"], *command, f"{option}={value}")


def test_zeros_in_front_make_no_octal_number(dfa, fails):
    fails(2, "'010' is no number", "run", "--problem", LINE, "--seed", "010")
    assert dfa("run", "--problem", LINE, "--seed", str(2**64 - 1)).returncode == 0


def test_reading_makes_no_profile(fails, tmp_path):
    power = ["power", "--policy", "edp", "--problem", LINE, "--backend", "cpu", "--profile"]
    (tmp_path / "empty.db").touch()
    fails(2, ["'none.db' is not there", "dfa tune"], *power, "none.db")
    (tmp_path / "dangling.db").symlink_to("none.db")
    fails(2, ["'dangling.db' is not there"], *power, "dangling.db")
    fails(2, "'.' is no file", *power, ".")
    for reading in (["--list"], ["--export", "rows.json"]):
        fails(2, ["'none.db' is not there", "dfa tune"], "tune", "--profile", "none.db", *reading)
    assert not (tmp_path / "none.db").exists()


def test_a_profile_of_a_backend_that_is_none_is_refused(dfa, fails, tmp_path):
    row = {"card": "a card", "driver": "", "kernels": "k", "problem": "fwd fp32 b1 h1 s64 d8", "backend": "cpu", "config": "c", "dtype": "fp32",
           "time_s": 1.0, "power_w": None, "energy_j": None, "dynamic_w": None, "clock_share": 1.0, "error": 0.0, "stores_probabilities": False,
           "memory_bytes": 0, "spread": 0.0, "temp_c": None, "date": "2026-01-31T12:00:00Z"}

    def write(**changes):
        (tmp_path / "p.json").write_text(json.dumps({"schema": "dfa-profile/1", "rows": [row, row | changes]}))
    for backend in ("gpu", "auto", "CPU"):
        write(backend=backend)
        fails(2, ["--import 'p.json': profile: row 2", f"backend '{backend}' is unknown; accepted: ", "cpu, reference"], "tune", "--import", "p.json", "--profile", "p.db")
        assert not (tmp_path / "p.db").exists()
    write(date="2026-01-31")
    fails(2, ["row 2: date '2026-01-31' must be of UTC"], "tune", "--import", "p.json", "--profile", "p.db")
    write(config="d")
    assert "imported 2 rows" in dfa("tune", "--import", "p.json", "--profile", tmp_path / "p.db", cwd=tmp_path).stdout


def test_two_tunes_of_one_profile_are_one_too_many(fails, tmp_path):
    (tmp_path / "link.db").symlink_to("p.db")
    first = start("tune", "--problem", "fwd fp32 b1 h1 s64 d8", "--backend", "cpu", "--point-seconds", "60",
                  "--profile", tmp_path / "p.db", stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert first.stderr.read(1)  # it measures
    tune = ["tune", "--problem", "fwd fp32 b1 h1 s64 d8", "--profile"]
    fails(2, [f"in use by process {first.pid}", "accepted"], *tune, "p.db")
    fails(2, [f"in use by process {first.pid}", "accepted"], *tune, "link.db")
    first.kill()
    first.communicate(timeout=HUNG_S)
    assert start(*tune, tmp_path / "p.db", "--backend", "cpu", "--point-seconds", "0.05",
                 stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL).wait(HUNG_S) == 0
    assert not (tmp_path / "p.db.lock").exists()


def test_two_studies_in_one_folder_are_one_too_many(tmp_path):
    def study():
        return start("study", "--quick", "--backend", "cpu", "--source", tmp_path, "--steps", "launch", "--out",
                     tmp_path / "study", stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    first = study()
    assert "launch" in first.stderr.readline()
    first.send_signal(signal.SIGSTOP)  # else it may have ended before the second begins
    second = study()
    _, errors = second.communicate(timeout=HUNG_S)
    assert second.returncode == 2 and errors.count("\n") == 1
    assert f"in use by process {first.pid}" in errors
    first.send_signal(signal.SIGHUP)
    first.send_signal(signal.SIGCONT)
    _, errors = first.communicate(timeout=HUNG_S)
    assert first.returncode == 1 and "interrupted" in errors
    assert not (tmp_path / "study/.lock").exists()
