"""dfa.Governor with a card's own levers, lent by `dfa privileges serve`, on the made-up NVML."""

import os
import subprocess
import time

import pytest

import dfa

CARD = "00000000:3B:00.0"
HERE = {"device": "GPU-aa", "calibrate_s": 0.2, "idle_w": 100}


@pytest.fixture
def lend(program, fake_nvml, tmp_path, monkeypatch):
    """lend(allow="limit:300:600W"): a daemon that lends the levers of the card, and its process."""
    card = (f"clock real\ncard H200 GPU-aa {CARD}\npower sine 600 20 0.7\ntick 0.02\nlimit 650\nlimits 200 700\n"
            f"temperature 60 70\nsettings {tmp_path}/settings\n")
    fake_nvml(card)
    monkeypatch.setenv("DFA_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("DFA_PRIVILEGES", str(tmp_path / "privileges.sock"))
    daemons = []

    def start(levers="limit:300:600W clock:900:1500MHz", lease="100s", scenario=""):
        fake_nvml(card + scenario + "\n")
        allow = tmp_path / "allow"
        allow.write_text(f"{CARD} user:{os.geteuid()} {levers} lease:{lease}\n")
        allow.chmod(0o600)
        daemon = subprocess.Popen([program, "privileges", "serve", "--allow", allow], stderr=subprocess.PIPE, text=True)
        daemons.append(daemon)
        assert daemon.stderr.readline().startswith("listening at")
        return daemon
    yield start
    for daemon in daemons:
        daemon.kill()
        daemon.wait()
        daemon.stderr.close()


def settings(tmp_path):
    file = tmp_path / "settings"
    return file.read_text() if file.exists() else ""


def until(happens, governor=None, seconds=20):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.005)
        if governor is not None:
            governor.pace()


def test_a_cap_is_held_by_the_limit_that_is_lent(lend, tmp_path):
    lend()
    with dfa.Governor("power_cap:400W", privileges=True, **HERE) as governor:
        until(lambda: "limit 392" in settings(tmp_path), governor)
        assert governor.put_back == ""
    assert settings(tmp_path).split()[-2:] == ["limit", "650"]


def test_a_socket_may_be_named_and_a_lever_be_the_policy(lend, tmp_path, monkeypatch):
    lend()
    monkeypatch.delenv("DFA_PRIVILEGES")
    with dfa.Governor("clock:1200MHz", privileges=tmp_path / "privileges.sock", **HERE) as governor:
        until(lambda: "1200" in settings(tmp_path), governor)
        assert governor.duty == 1


def test_a_lease_is_renewed_while_steps_are_long(lend, tmp_path):
    lend(lease="1s")
    with dfa.Governor("limit:450W", privileges=True, **HERE) as governor:
        until(lambda: "limit 450" in settings(tmp_path), governor)
        time.sleep(2.5)
        governor.pace()
        assert governor.put_back == "" and settings(tmp_path).split()[-2:] == ["limit", "450"]


def test_a_cap_goes_on_by_gaps_where_the_daemon_ends(lend, tmp_path):
    daemon = lend(lease="1s")
    with dfa.Governor("power_cap:400W", privileges=True, **HERE) as governor:
        until(lambda: "limit 392" in settings(tmp_path), governor)
        daemon.kill()
        until(lambda: governor.put_back, governor)
        assert "daemon of privileges has ended" in governor.put_back
        until(lambda: governor.duty < 0.7, governor)  # the made-up card draws 600 W whatever is done
        until(lambda: settings(tmp_path).split()[-2:] == ["limit", "650"])


def test_a_lever_that_is_a_policy_ends_with_its_daemon(lend, tmp_path):
    daemon = lend(lease="1s")
    with dfa.Governor("limit:450W", privileges=True, **HERE) as governor:
        until(lambda: "limit 450" in settings(tmp_path), governor)
        daemon.kill()
        with pytest.raises(RuntimeError, match="policy limit:450W: the daemon of privileges has ended"):
            until(lambda: False, governor)


def test_a_policy_chooses_among_clocks_at_which_a_step_was_measured(lend, tmp_path):
    lend(levers="clock:900:1980MHz", scenario="power_falls 0.4")
    with dfa.Governor("min_energy", privileges=True, clocks="1500,990MHz", **HERE) as governor:
        until(lambda: governor.status == "holding", governor)
        turned = [line for line in settings(tmp_path).splitlines() if line.startswith("clocks")]
        assert turned == ["clocks 1500 1500", "clocks 990 990"]  # measured, and left at the least joules
        assert governor.clock_hz == 990e6 and governor.duty == 1
    assert settings(tmp_path).split()[-2:] == ["clocks", "free"]
    with dfa.Governor("power_cap:300W", privileges=True, clocks="1500,990MHz", **HERE) as governor:
        until(lambda: governor.clock_hz == 990e6, governor)  # 240 W, of 600 and 425
        assert governor.duty == 1
    assert settings(tmp_path).split()[-2:] == ["clocks", "free"]


def test_a_clock_goes_back_to_the_cards_own_where_the_daemon_ends(lend, tmp_path):
    daemon = lend(levers="clock:900:1980MHz", lease="1s", scenario="power_falls 0.4")
    with dfa.Governor("min_energy", privileges=True, clocks="990MHz", **HERE) as governor:
        until(lambda: governor.clock_hz == 990e6, governor)
        daemon.kill()
        until(lambda: governor.put_back, governor, seconds=5)
        until(lambda: governor.status == "holding" and governor.clock_hz is None, governor)
        until(lambda: settings(tmp_path).split()[-2:] == ["clocks", "free"])


def test_clocks_that_are_not_there_are_refused(lend, tmp_path):
    for clocks, privileges in (("990MHz", False), (990, True)):
        with pytest.raises(ValueError, match="a text such as 1980,1500,1200MHz, with privileges="):
            dfa.Governor("min_energy", privileges=privileges, clocks=clocks, **HERE)
    lend()
    for clocks, words in (("2100MHz", "not lent; accepted: 900 to 1500"), ("1201MHz", "no 1201 MHz; .* 1200 is the nearest"),
                          ("1200", "1200:1980:60MHz")):
        with pytest.raises(ValueError, match=words):
            with dfa.Governor("min_energy", privileges=True, clocks=clocks, **HERE):
                pass
    with pytest.raises(ValueError, match="nothing that gaps could hold"):
        with dfa.Governor("min_energy", privileges=True, **HERE):
            pass


def test_a_policys_clock_that_the_card_has_not_is_refused(lend, tmp_path):
    lend()
    with pytest.raises(RuntimeError, match="policy clock:1201MHz: the card has no 1201 MHz; .* 1200 is the nearest"):
        with dfa.Governor("clock:1201MHz", privileges=True, **HERE):
            pass
    assert "clocks 1201" not in settings(tmp_path)


def test_what_is_not_lent_is_refused(lend, tmp_path):
    with pytest.raises(ValueError, match="privileges=True"):
        dfa.Governor("limit:450W", **HERE)
    with pytest.raises(ValueError, match="privileges=''"):
        dfa.Governor("power_cap:400W", privileges="", **HERE)
    for none in (3, None, b"x"):
        with pytest.raises(ValueError, match=f"privileges={none!r}; accepted: True, False or the path"):
            dfa.Governor("power_cap:400W", privileges=none, **HERE)
    with pytest.raises(ValueError, match="one of them"):
        dfa.Governor("power_cap:400W", privileges=True, group=object())
    with pytest.raises(RuntimeError, match="no daemon of privileges"):
        with dfa.Governor("power_cap:400W", privileges=True, **HERE):
            pass
    lend(levers="limit:300:600W")
    too_far = dfa.Governor("limit:250W", privileges=True, **HERE)  # is there until the end
    with pytest.raises(RuntimeError, match="limit is lent from 300 to 600 W"):
        with too_far:
            pass
    with pytest.raises(RuntimeError, match="clock, which nobody lends"):
        with dfa.Governor("clock:1200MHz", privileges=True, **HERE):
            pass
    assert set(settings(tmp_path).split()) <= {"limit", "650"}
    with dfa.Governor("limit:350W", privileges=True, **HERE):  # what was refused holds no lease
        with pytest.raises(RuntimeError, match="GPU-aa|3b:00.0"):
            with dfa.Governor("limit:350W", privileges=True, **HERE):
                pass
