"""The owner's levers from the command line, on the made-up NVML, whose settings are a file."""

import signal
import subprocess
import time

import pytest

from built import HUNG_S, start

POWER = ["power", "--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--points", "1",
         "--point-seconds", "0.05", "--policy", "max_performance"]
LEND = ["--allow-privileged", "--card", "0000:3b:00.0"]


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
