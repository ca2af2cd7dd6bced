"""The owner's levers from the command line, on the made-up NVML, whose settings are a file."""

import json
import signal
import subprocess
import time

import pytest

from built import HUNG_S, start

POWER = ["power", "--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--points", "1",
         "--point-seconds", "0.05", "--policy", "max_performance"]
LEND = ["--allow-privileged", "--card", "0000:3b:00.0"]
TUNE = ["tune", "--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--points", "1",
        "--point-seconds", "0.05", "--profile", "p.db"]


@pytest.fixture
def card(fake_nvml, tmp_path):
    """(environment, what was set) of a card whose limit was 650 W."""
    def scenario(more=""):
        return fake_nvml(f"{more}card H200 GPU-aa 00000000:3B:00.0\nlimit 650\nlimits 200 700\n"
                         f"settings {tmp_path}/settings\n") | {"DFA_STATE_DIR": str(tmp_path)}
    return scenario


def settings(tmp_path):
    file = tmp_path / "settings"
    return file.read_text().splitlines() if file.exists() else []


def test_settings_last_as_long_as_the_run(dfa, card, tmp_path):
    done = dfa(*POWER, *LEND, "--power-limit", "500W", "--lock-clocks", "1000:1200MHz", "--seconds",
               "0.2", env=card())
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path) == ["limit 650", "limit 500", "clocks 1000 1200", "limit 650", "clocks free"]
    assert not list(tmp_path.glob("dfa-card-*"))


def test_an_error_after_the_settings_puts_them_back(dfa, card, tmp_path):
    (tmp_path / "rows.json").write_text('{"schema": "dfa-profile/1", "rows": []}')
    assert dfa("tune", "--import", "rows.json", "--profile", "empty.db").returncode == 0
    done = dfa("power", "--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--policy", "max_performance",
               "--profile", "empty.db", "--seconds", "0.2", *LEND, "--power-limit", "500W", env=card())
    assert done.returncode == 3 and "dfa tune" in done.stderr
    assert settings(tmp_path)[-2:] == ["limit 500", "limit 650"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_puts_them_back(card, tmp_path, number):
    run = start(*POWER, *LEND, "--power-limit", "500W", "--seconds", "60", env=card(), cwd=tmp_path,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while settings(tmp_path)[-1:] != ["limit 500"]:
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.02)
    run.send_signal(number)
    run.wait(timeout=HUNG_S)
    while settings(tmp_path)[-1:] != ["limit 650"] or list(tmp_path.glob("dfa-card-*")):
        assert time.monotonic() < end + 10, settings(tmp_path)
        time.sleep(0.02)


def test_without_the_flag_nothing_is_touched(fails, card, tmp_path):
    for option in (["--power-limit", "500W"], ["--lock-clocks", "1200MHz"], LEND[1:]):
        fails(2, [option[0], "--allow-privileged"], *POWER, *option, env=card())
    assert settings(tmp_path) == []


def test_without_permission_one_line_says_so(fails, card, tmp_path):
    fails(3, ["no permission", "nothing was changed"], *POWER, *LEND,
          env=card("error nvmlDeviceSetPowerManagementLimit 4\n"))
    assert settings(tmp_path) == []


def test_bad_values_name_what_is_accepted(fails, card, tmp_path):
    fails(2, ["'500'", "500W"], *POWER, *LEND, "--power-limit", "500", env=card())
    fails(2, ["'1400:1000MHz'", "1200MHz"], *POWER, *LEND, "--lock-clocks", "1400:1000MHz", env=card())
    fails(3, ["900 W", "200 to 700 W"], *POWER, *LEND, "--power-limit", "900W", env=card())
    fails(3, "runs on no GPU", *POWER, "--allow-privileged", env=card())
    assert settings(tmp_path) in ([], ["limit 650"])


@pytest.mark.parametrize("clock, words", [("2500", "no 2500 MHz; of its 345 to 1980 MHz 1980 is the nearest"),
                                          ("1201", "no 1201 MHz; of its 345 to 1980 MHz 1200 is the nearest"),
                                          ("2000:2500", "no clock from 2000 to 2500 MHz; of its 345 to 1980 MHz 1980 is")])
def test_a_clock_that_the_card_has_not_is_refused_before_anything_runs(fails, card, tmp_path, clock, words):
    fails(3, [f"--lock-clocks '{clock}MHz'", words], *POWER, *LEND, "--lock-clocks", f"{clock}MHz", env=card())
    if ":" not in clock:
        fails(3, [f"policy clock:{clock}MHz", words], *POWER[:-2], *LEND, "--policy", "max_performance", "--policy",
              f"clock:{clock}MHz", env=card())
    fails(3, "does not tell which it has", *POWER, *LEND, "--lock-clocks", f"{clock}MHz",
          env=card("error nvmlDeviceGetSupportedGraphicsClocks 3\n"))
    assert set(settings(tmp_path)) == {"limit 650"}


def test_tune_measures_at_each_clock_and_puts_the_card_back(dfa, card, tmp_path):
    done = dfa(*TUNE, *LEND, "--clocks", "1200,1500MHz", "--export", "rows.json", "--list", env=card())
    assert done.returncode == 0, done.stderr
    assert "3 rows measured" in done.stdout and "} at 1500 MHz" in done.stdout
    assert settings(tmp_path) == ["limit 650", *2 * ["clocks 1500 1500"], *2 * ["clocks 1200 1200"], "clocks free"]
    assert not list(tmp_path.glob("dfa-card-*"))
    exported = json.loads((tmp_path / "rows.json").read_text())
    assert exported["schema"] == "dfa-profile/2"
    assert [row["clock_hz"] for row in exported["rows"]] == [None, 1200e6, 1500e6]
    again = dfa(*TUNE, *LEND, "--clocks", "1200:1500:150MHz", env=card())
    assert "1 rows measured, 3 there already" in again.stdout  # 1350 MHz
    assert "0 rows measured, 1 there already" in dfa(*TUNE, env=card()).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_tuning_that_is_ended_puts_the_clocks_back(card, tmp_path, number):
    run = start(*TUNE, *LEND, "--clocks", "345:1980:60MHz", env=card(), cwd=tmp_path, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)
    end = time.monotonic() + 20
    while not any(line.startswith("clocks 1") for line in settings(tmp_path)):
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.02)
    run.send_signal(number)
    assert run.wait(timeout=HUNG_S) != 0
    while settings(tmp_path)[-1:] != ["clocks free"] or list(tmp_path.glob("dfa-card-*")):
        assert time.monotonic() < end + 10, settings(tmp_path)
        time.sleep(0.02)


def test_a_lock_that_the_driver_refuses_ends_the_tuning_in_a_line(dfa, card, tmp_path):
    done = dfa(*TUNE, *LEND, "--clocks", "1200MHz", "--export", "rows.json", env=card("error nvmlDeviceSetGpuLockedClocks 3\n"))
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("dfa: --allow-privileged: nvmlDeviceSetGpuLockedClocks: ")
    kept = dfa("tune", "--profile", "p.db", "--list")
    assert kept.stdout.count("fwd fp32") == 1  # what was measured before


def test_clocks_without_a_permission_or_a_use_and_clocks_that_are_not_there_are_refused(fails, card, tmp_path):
    fails(2, ["--clocks '1200MHz'", "--allow-privileged", "--privileges"], *TUNE, "--clocks", "1200MHz", env=card())
    fails(2, "accepted with --clocks", *TUNE, *LEND, env=card())
    fails(2, ["--clocks '1200MHz'", "--problem"], "tune", "--import", "x.json", *LEND, "--clocks", "1200MHz", env=card())
    fails(2, ["clocks '2100MHz'", "no 2100 MHz", "345 to 1980 MHz"], *TUNE, *LEND, "--clocks", "2100MHz", env=card())
    fails(2, ["clocks '1200'", "1200:1980:60MHz"], *TUNE, *LEND, "--clocks", "1200", env=card())
    fails(3, "runs on no GPU", *TUNE, "--allow-privileged", "--clocks", "1200MHz", env=card())
    fails(3, "does not tell which it has", *TUNE, *LEND, "--clocks", "1200MHz",
          env=card("error nvmlDeviceGetSupportedGraphicsClocks 3\n"))
    assert set(settings(tmp_path)) <= {"limit 650", "clocks free"}


@pytest.mark.parametrize("code, words, options", [
    (2, "unknown token 'nonsense'", ["--problem", "nonsense"]),
    (2, "nowhere.txt", ["--problems", "nowhere.txt"]),
    (2, "nowhere.json", ["--import", "nowhere.json"]),
    (2, "backend 'gpu' is unknown", ["--problem", "fwd fp32 b1 h1 s16 d8", "--backend", "gpu"]),
    (2, "clocks '1200'", [*TUNE[1:-2], "--privileges", "--socket", "nowhere", "--clocks", "1200"]),
    (2, "clocks '2100MHz'", [*TUNE[1:-2], *LEND, "--clocks", "2100MHz"]),
    (3, "no daemon of privileges", [*TUNE[1:-2], "--privileges", "--socket", "nowhere", "--clocks", "1200MHz"]),
    (3, "tf32 is a GPU", ["--problem", "fwd tf32 b1 h1 s16 d8", "--backend", "cpu"])])
def test_a_tuning_that_is_refused_leaves_no_store_behind(fails, card, tmp_path, code, words, options):
    fails(code, words, "tune", *options, "--profile", "p.db", env=card())
    assert not (tmp_path / "p.db").exists() and not (tmp_path / "p.db.lock").exists()


@pytest.fixture
def clocked(dfa, card, tmp_path):
    """A profile whose joules fall with the clock, q.db, made of what `dfa tune` exported."""
    assert dfa(*TUNE, *LEND, "--clocks", "1500,1200MHz", "--export", "rows.json", env=card()).returncode == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    for row in rows["rows"]:
        slower = 1.98e9 / (row["clock_hz"] or 1.98e9)
        row.update(time_s=1e-4 * slower, power_w=650 / slower**2, energy_j=0.065 / slower)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert dfa("tune", "--profile", "q.db", "--import", "rows.json").returncode == 0
    (tmp_path / "settings").unlink()
    return ["power", "--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--profile", "q.db"]


def test_a_policy_chooses_a_clock_of_the_profile_and_the_next_goes_back(dfa, card, clocked, tmp_path):
    done = dfa(*clocked, *LEND, "--policy", "min_energy", "--policy", "max_performance", "--seconds", "0.7", "--trace",
               "t.jsonl", env=card())
    assert done.returncode == 0, done.stderr
    assert "} at 1200 MHz" in done.stdout
    assert settings(tmp_path) == ["limit 650", "clocks 1200 1200", "clocks free"]
    decisions = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    clocks = [line.get("clock_hz") for line in decisions if line["kind"] == "decision"]
    assert clocks[0] == 1200e6 and clocks[-1] is None


def test_a_row_at_a_clock_that_the_card_has_not_is_refused(dfa, fails, card, clocked, tmp_path):
    rows = (tmp_path / "rows.json").read_text().replace("1200000000.0", "1201000000.0")
    (tmp_path / "rows.json").write_text(rows)
    assert dfa("tune", "--profile", "r.db", "--import", "rows.json").returncode == 0
    clocked[clocked.index("q.db")] = "r.db"
    done = dfa(*clocked, *LEND, "--policy", "min_energy", "--seconds", "0.3", env=card())
    assert done.returncode == 3, done.stderr
    assert "at 1201 MHz': the card has no 1201 MHz; of its 345 to 1980 MHz 1200 is the nearest" in done.stderr
    assert settings(tmp_path) == ["limit 650"]


def test_clocks_of_a_profile_that_nobody_lends_are_left_out_and_told(dfa, card, clocked, tmp_path):
    done = dfa(*clocked, "--policy", "min_energy", "--seconds", "0.3", env=card())
    assert done.returncode == 0, done.stderr
    assert "2 of them left out: their clocks are not lent here" in done.stdout
    assert settings(tmp_path) == []
