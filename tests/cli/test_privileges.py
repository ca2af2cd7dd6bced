"""`dfa privileges` on the made-up NVML: the daemon, what it says, and runs that have a card lent by it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from built import HUNG_S, ROOT, program, start

OWN = f"user:{os.geteuid()}"
ALLOW = f"0000:3b:00.0 {OWN} limit:300:600W clock:900:1500MHz lease:100s\n"
POWER = ["power", "--problem", "fwd fp32 b1 h2 s64 d32", "--backend", "cpu", "--points", "1",
         "--point-seconds", "0.05", "--policy", "max_performance"]
LEND = ["--privileges", "--card", "0000:3b:00.0"]


@pytest.fixture
def world(fake_nvml, tmp_path):
    """Environment with a card whose limit was 650 W, and a socket's path."""
    return fake_nvml(f"card H200 GPU-aa 00000000:3B:00.0\nlimit 650\nlimits 200 700\nsettings {tmp_path}/settings\n") | {
        "DFA_STATE_DIR": str(tmp_path), "DFA_PRIVILEGES": str(tmp_path / "privileges.sock")}


@pytest.fixture
def serve(world, tmp_path):
    """Starts the daemon; ends it."""
    started = []

    def run(*options, allow=ALLOW):
        (tmp_path / "allow").write_text(allow)
        (tmp_path / "allow").chmod(0o600)
        daemon = start("privileges", "serve", "--allow", "allow", *options, env=world, cwd=tmp_path, text=True,
                       stderr=subprocess.PIPE)
        started.append(daemon)
        assert daemon.stderr.readline() == f"listening at '{world['DFA_PRIVILEGES']}'\n"
        return daemon
    yield run
    for daemon in started:
        daemon.kill()
        daemon.wait()


def settings(tmp_path):
    file = tmp_path / "settings"
    return file.read_text().splitlines() if file.exists() else []


def until(happens, seconds=20):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_has_its_card_lent_and_put_back(dfa, serve, world, tmp_path):
    serve()
    done = dfa(*POWER, *LEND, "--power-limit", "500W", "--lock-clocks", "1000:1200MHz", "--seconds", "0.2", env=world)
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path)[1:] == ["limit 650", "limit 500", "clocks 1000 1200", "limit 650", "clocks free"]
    assert not list(tmp_path.glob("dfa-card-*"))


def test_a_clock_goes_back_to_the_cards_own_where_the_daemon_ends(dfa, serve, world, tmp_path):
    daemon = serve()
    tune = ["tune", *POWER[1:-2], "--profile", "p.db"]
    fails = dfa(*tune, *LEND, "--clocks", "1650,1200MHz", env=world)
    assert fails.returncode == 2 and "1650 MHz is not lent; accepted: 900 to 1500" in fails.stderr
    done = dfa(*tune, *LEND, "--clocks", "1200MHz", "--export", "rows.json", env=world)
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path)[-3:] == [*2 * ["clocks 1200 1200"], "clocks free"]
    rows = json.loads((tmp_path / "rows.json").read_text())
    for row in rows["rows"]:
        row.update(power_w=400 if row["clock_hz"] else 600, energy_j=0.4 if row["clock_hz"] else 0.6)
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert dfa("tune", "--profile", "q.db", "--import", "rows.json").returncode == 0
    (tmp_path / "settings").unlink()
    run = start("power", "--problem", POWER[2], "--backend", "cpu", "--profile", "q.db", *LEND, "--policy", "min_energy",
                "--seconds", "30", "--trace", "t.jsonl", env=world, cwd=tmp_path, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE)
    until(lambda: settings(tmp_path)[-1:] == ["clocks 1200 1200"])
    daemon.kill()
    until(lambda: settings(tmp_path)[-1:] == ["clocks free"])
    time.sleep(1.5)
    run.send_signal(signal.SIGINT)
    error = run.communicate(timeout=HUNG_S)[1].decode().splitlines()[-1]
    assert run.returncode == 3 and "the daemon of privileges has ended" in error
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    clocks = [line.get("clock_hz") for line in lines if line["kind"] == "decision"]
    assert clocks[0] == 1200e6 and clocks[-1] is None
    assert any("no longer lent" in line["why"] for line in lines if line["kind"] == "decision")


def test_a_policy_that_turns_a_lever_asks_the_daemon_by_itself(dfa, fails, serve, world, tmp_path):
    policy = POWER[:-2] + ["--card", "0000:3b:00.0", "--seconds", "0.2", "--policy", "clock:1200MHz", "--policy",
                           "max_performance"]
    fails(3, ["no daemon of privileges", "No such file"], *policy, env=world)
    serve()
    done = dfa(*policy, env=world)
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path)[-2:] == ["clocks 1200 1200", "clocks free"]
    done = dfa(*POWER[:-2], *LEND, "--seconds", "0.2", "--policy", "clock:1600MHz", env=world)
    assert done.returncode == 3 and "the card's own clock is lent from 900 to 1500 MHz" in done.stderr
    assert settings(tmp_path).count("clocks 1200 1200") == 1


def test_the_limit_that_was_found_may_be_more_than_what_is_lent(dfa, serve, world, tmp_path):
    serve()
    done = dfa(*POWER[:-2], *LEND, "--seconds", "0.3", "--policy", "limit:500W", "--policy", "max_performance", env=world)
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path)[-2:] == ["limit 500", "limit 650"]


def test_the_owner_follows_such_a_policy_without_a_daemon(dfa, world, tmp_path):
    done = dfa(*POWER[:-2], "--allow-privileged", "--card", "GPU-aa", "--seconds", "0.2", "--policy", "clock:1200MHz", env=world)
    assert done.returncode == 0, done.stderr
    assert settings(tmp_path) == ["limit 650", "clocks 1200 1200", "clocks free"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_by_a_signal_is_undone(serve, world, tmp_path, number):
    serve()
    run = start(*POWER, *LEND, "--power-limit", "500W", "--seconds", "60", env=world, cwd=tmp_path,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: settings(tmp_path)[-1:] == ["limit 500"])
    run.send_signal(number)
    run.wait(timeout=HUNG_S)
    until(lambda: settings(tmp_path)[-1:] == ["limit 650"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV])
def test_a_daemon_that_ends_puts_the_card_back(serve, world, tmp_path, number):
    daemon = serve()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(world["DFA_PRIVILEGES"])
        lines = client.makefile("rw")
        for request in ({"op": "hello", "version": 1}, {"op": "lease", "card": "GPU-aa"},
                        {"op": "set", "card": "GPU-aa", "limit_w": 450}):
            lines.write(json.dumps(request) + "\n")
            lines.flush()
            assert json.loads(lines.readline())["ok"]
        assert settings(tmp_path)[-1] == "limit 450"
        daemon.send_signal(number)
        code = daemon.wait(timeout=HUNG_S)
        until(lambda: settings(tmp_path)[-1] == "limit 650" and not list(tmp_path.glob("dfa-card-*")))
        gentle = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        crashed = code in (-number, 1)  # 1: a build with AddressSanitizer, which says so and exits
        assert code == 0 if gentle else crashed
        assert (tmp_path / "privileges.sock").exists() == (not gentle)
    serve()  # takes the place of whatever was left


def test_status_tells_who_has_what(dfa, serve, world):
    serve()
    text = dfa("privileges", "status", env=world).stdout
    assert text == ("0000:3b:00.0  H200  free\n"
                    "  you may have limit 300 to 600 W, clocks 900 to 1500 MHz, leases of 100 s\n")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(world["DFA_PRIVILEGES"])
        client.sendall(b'{"op":"hello","version":1}\n{"op":"lease","card":"GPU-aa"}\n'
                       b'{"op":"set","card":"GPU-aa","clock_mhz":[1000,1200]}\n')
        with client.makefile("r") as lines:
            assert [json.loads(lines.readline())["ok"] for _ in range(3)] == [True] * 3
        text = dfa("privileges", "status", env=world).stdout
        assert f"process {os.getpid()} of user {os.geteuid()}, " in text and ", clocks 1000 to 1200 MHz\n" in text
        told = json.loads(dfa("privileges", "status", "--json", env=world).stdout)
        assert told["schema"] == "dfa-privileges/1"
        assert told["cards"][0]["lease"]["clock_mhz"] == [1000, 1200]
        assert told["yours"] == [{"card": "0000:3b:00.0", "limit_w": [300, 600], "clock_mhz": [900, 1500], "lease_s": 100}]


def test_check_reads_the_list_and_asks_nobody(dfa, fails, tmp_path):
    (tmp_path / "allow").write_text(ALLOW)
    done = dfa("privileges", "check", "--allow", "allow")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (f"allow:1: 0000:3b:00.0 for user {os.geteuid()}: limit 300 to 600 W, clocks 900 to 1500 MHz, "
                           "leases of 100 s\n")
    (tmp_path / "allow").write_text(ALLOW + "GPU-bb group:0 limit:700:600W\n")
    fails(2, ["allow:2: 'limit:700:600W'", "limit:350:700W"], "privileges", "check", "--allow", "allow")


def test_what_cannot_be_lent_is_one_line_and_changes_nothing(fails, serve, world, tmp_path):
    fails(3, ["no daemon of privileges", "No such file", "dfa privileges serve"], *POWER, *LEND, env=world)
    fails(3, "no daemon of privileges", "privileges", "status", env=world)
    serve()
    fails(3, ["limit_w 650", "300 to 600"], *POWER, *LEND, "--power-limit", "650W", env=world)
    fails(3, ["clock_mhz 1600 to 1600", "900 to 1500"], *POWER, *LEND, "--lock-clocks", "1600MHz", env=world)
    fails(3, ["GPU-zz", "nothing was changed"], *POWER, "--privileges", "--card", "GPU-zz", env=world)
    fails(3, ["a lease of 155 s", "100 s"], *POWER, *LEND, "--seconds", "150", env=world)
    fails(3, "runs on no GPU", *POWER, "--privileges", env=world)
    fails(2, "one of them", *POWER, *LEND, "--allow-privileged", env=world)
    fails(2, ["--socket 'x'", "--privileges"], *POWER, "--socket", "x", env=world)
    assert {line for line in settings(tmp_path)} == {"limit 650"}


@pytest.mark.parametrize("words, options", [("unknown token 'nonsense'", ["--problem", "nonsense"]),
                                            ("backend 'gpu' is unknown", [*POWER[1:3], "--backend", "gpu"]),
                                            ("--profile 'nowhere.db' is not there", [*POWER[1:5], "--profile", "nowhere.db"])])
def test_bad_usage_is_told_before_the_daemon_is_asked(fails, words, options):
    fails(2, words, "power", *options, "--policy", "clock:1200MHz", "--socket", "nowhere")


@pytest.mark.parametrize("arguments, code, words", [
    (["serve"], 2, ["--allow is required", "group:ml"]),
    (["check"], 2, "--allow is required"),
    (["lend"], 2, ["lend", "serve, check, status or unit"]),
    (["serve", "--allow", "nowhere"], 2, ["cannot read", "nowhere"]),
    (["serve", "--allow", "allow", "--group", "no-such-group"], 2, "--group 'no-such-group'"),
    (["serve", "--allow", "allow", "--socket", "/" + "x" * 200], 2, ["--socket", "107 bytes"]),
    (["serve", "--allow", "allow", "--socket", "nowhere/s"], 2, ["cannot lock", "nowhere/s.lock"]),
    (["serve", "--allow", "other"], 3, ["other:1:", "GPU-zz"]),
])
def test_bad_usage_of_the_daemon_is_one_line(fails, world, tmp_path, arguments, code, words):
    (tmp_path / "allow").write_text(ALLOW)
    (tmp_path / "other").write_text("GPU-zz user:1 limit:1:2W\n")
    fails(code, words, "privileges", *arguments, env=world)
    assert settings(tmp_path) == [] and not (tmp_path / "privileges.sock").exists()


def test_a_group_may_connect(serve, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("another group needs root")
    serve("--group", "4242")
    found = (tmp_path / "privileges.sock").stat()
    assert (found.st_gid, found.st_mode & 0o777) == (4242, 0o660)


def test_without_nvml_the_daemon_says_so(fails, world, tmp_path):
    (tmp_path / "allow").write_text(ALLOW)
    fails(3, ["allow:1:", "none.so"], "privileges", "serve", "--allow", "allow", env=world | {"DFA_NVML": "none.so"})


def test_options_without_a_use_are_refused(fails, world, tmp_path):
    for action, options, words in (("check", ["--allow", "allow", "--json"], "--json; accepted with status"),
                                   ("status", ["--allow", "allow"], "--allow; accepted with serve and check"),
                                   ("unit", ["--socket", "s"], "--socket"), ("status", ["--group", "0"], "--group")):
        fails(2, [f"privileges {action} has no use for", words], "privileges", action, *options, env=world)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_unit_is_one_that_systemd_takes(dfa, tmp_path):
    text = dfa("privileges", "unit").stdout
    unit = tmp_path / "dfa-privileges.service"
    unit.write_text(text)
    there = (ROOT / "packaging/systemd/dfa-privileges.service").read_text()
    assert text == there.replace("/usr/bin/dfa", str(program().resolve()))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=HUNG_S)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(text.replace("KillMode=process", "KillMode=sometimes"))  # a fault is seen
    assert "kill mode" in subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True,
                                        timeout=HUNG_S).stderr
