"""Policies: parsed by the library, a plan chosen from a profile, a loop held under a cap."""

import pathlib
import subprocess
import time
import warnings

import numpy as np
import pytest

import dfa

PROBLEM = "fwd fp32 b1 h2 s64 d32"


@pytest.mark.parametrize("text, goal, value", [
    ("max_performance", "max_performance", 0), ("power_cap:0.5kW", "power_cap", 500),
    ("limit:450W", "limit", 450), ("clock:1.2GHz", "clock", 1200),
    ("temp_cap:70C", "temp_cap", 70), ("latency:2ms", "latency", 0.002), ("edp", "edp", 0)])
def test_texts_are_those_of_the_command_line(text, goal, value):
    policy = dfa.Policy(text)
    assert (policy.goal, policy.value) == (goal, pytest.approx(value))
    assert dfa.Policy(str(policy)) == policy and hash(dfa.Policy(str(policy))) == hash(policy)


@pytest.mark.parametrize("text", ["", "fast", "power_cap", "power_cap:500", "edp:1", "power_cap:-5W"])
def test_other_texts_say_what_is_accepted(text):
    with pytest.raises(ValueError, match="accepted: max_performance"):
        dfa.Policy(text)


def arrays():
    draw = np.random.default_rng(1)
    return [draw.standard_normal((1, 2, 64, 32), dtype=np.float32) for _ in range(3)]


@pytest.fixture(scope="module")
def profile(program, tmp_path_factory):
    """What `dfa tune` measured of PROBLEM on this machine."""
    path = tmp_path_factory.mktemp("profile") / "p.db"
    subprocess.run([program, "tune", "--problem", PROBLEM, "--backend", "cpu", "--points", "2",
                    "--point-seconds", "0.05", "--profile", path], check=True, capture_output=True)
    return path


def test_a_call_follows_a_profile(profile):
    q, k, v = arrays()
    policy = dfa.Policy("max_performance", profile=profile)
    plan = dfa.plan(PROBLEM, backend="cpu", policy=policy)
    assert "by policy max_performance" in plan.why and plan.config
    np.testing.assert_allclose(dfa.attention(q, k, v, policy=policy), dfa.attention(q, k, v),
                               rtol=1e-5, atol=1e-5)
    turned = [x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in (q, k, v)]
    dfa.attention(*turned, scale=0.3, policy=policy)  # the row is of the sizes


def test_a_near_size_follows_the_nearest_that_was_measured(profile):
    q, k, v = arrays()
    policy = dfa.Policy("max_performance", profile=profile)
    np.testing.assert_allclose(dfa.attention(q[:, :, :32].copy(), k, v, policy=policy),
                               dfa.attention(q[:, :, :32].copy(), k, v), rtol=1e-5, atol=1e-5)
    why = dfa.plan("fwd fp32 b1 h2 sq32 sk64 d32", backend="cpu", policy=policy).why
    assert "in proportion to 'fwd fp32 b1 hq2 hk2 sq64 sk64 d32'" in why


def test_what_a_profile_does_not_hold_is_an_error(profile):
    q, k, v = arrays()
    policy = dfa.Policy("max_performance", profile=profile)
    with pytest.raises(RuntimeError, match="dfa tune --problem 'fwd fp32 causal b1 hq2 hk2 sq64 sk64 d32'"):
        dfa.attention(q, k, v, causal=True, policy=policy)
    with pytest.raises(ValueError, match="chooses by what was measured"):
        dfa.attention(q, k, v, policy="min_energy")
    with pytest.raises(RuntimeError, match="policy edp: "):  # none is shipped for a processor
        dfa.attention(q, k, v, policy=dfa.Policy("edp", profile="shipped"))
    with pytest.raises(FileNotFoundError, match="none.db"):
        dfa.attention(q, k, v, policy=dfa.Policy("edp", profile="none.db"))


def test_a_plain_text_for_the_librarys_own_choice():
    q, k, v = arrays()
    np.testing.assert_array_equal(dfa.attention(q, k, v, policy="max_performance"),
                                  dfa.attention(q, k, v))


def test_caps_and_other_algorithms_are_not_of_a_call(profile):
    q, k, v = arrays()
    with pytest.raises(ValueError, match="dfa.Governor"):
        dfa.attention(q, k, v, policy="power_cap:500W")
    for lever in ("limit:450W", "clock:1200MHz"):
        with pytest.raises(ValueError, match=f"policy {lever} turns a lever of the card itself"):
            dfa.attention(q, k, v, policy=lever)
    with pytest.raises(ValueError, match="algorithm 'standard'"):
        dfa.attention(q, k, v, algorithm="standard", policy=dfa.Policy("edp", profile=profile))
    with pytest.raises(TypeError, match="int"):
        dfa.attention(q, k, v, policy=3)
    with pytest.raises(ValueError, match="not accepted beside"):
        dfa.plan(PROBLEM, backend="cpu", threads=1, policy=dfa.Policy("edp", profile=profile))


@pytest.fixture
def card(fake_nvml):
    """A made-up card that draws what a scenario says."""
    def draws(power):
        fake_nvml(f"clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower {power}\ntick 0.02\nlimit 700\ntemperature 60 70\n")
    return draws


def test_a_governor_puts_gaps_after_steps_that_draw_too_much(card):
    card("sine 600 20 0.7")  # whatever the gaps: down it goes
    with dfa.Governor("power_cap:400W", device="GPU-aa", calibrate_s=0.3, idle_w=100) as governor:
        assert governor.status == "calibrating" and governor.duty == 1
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            time.sleep(0.005)
            governor.pace()
        assert governor.status in ("holding", "infeasible")
        assert governor.duty < 0.6 and 560 < governor.power_w < 640
    assert governor.waited_s > 0.5 and governor.steps > 20 and governor.status == "not running"


def test_a_governor_whose_sensor_falls_silent_says_so_once(fake_nvml):
    fake_nvml("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower constant 600\ntick 0.02\nlimit 700\nlost 0.3 1000\n")
    with warnings.catch_warnings(record=True) as told, dfa.Governor("power_cap:400W", device="GPU-aa", calibrate_s=0.0, idle_w=100) as governor:
        warnings.simplefilter("always")
        time.sleep(0.4)  # the card is lost from its first step on
        end = time.monotonic() + 30
        while governor.status == "calibrating" and time.monotonic() < end:
            assert not told
            time.sleep(0.005)
            governor.pace()
        governor.pace()
        assert governor.status == "silent" and governor.duty == 1 and governor.waited_s == 0
    assert [x.category for x in told] == [RuntimeWarning] and "the power sensor of GPU-aa says nothing" in str(told[0].message)


def test_a_governor_lets_steps_be_that_draw_less(card):
    card("sine 300 5 0.7")
    with dfa.Governor(dfa.Policy("power_cap:500W"), device="GPU-aa", calibrate_s=0.2,
                      idle_w=100) as governor:
        for _ in range(200):
            time.sleep(0.004)
            governor.pace()
        assert governor.status == "holding" and governor.duty == 1
    assert governor.waited_s < 0.05


def test_a_server_decodes_without_gaps_and_waits_behind_prompts(card):
    card("sine 600 5 0.7")
    with dfa.Governor("power_cap:400W", device="GPU-aa", calibrate_s=0.2, idle_w=100) as governor:
        end = time.monotonic() + 30
        while governor.duty == 1 and time.monotonic() < end:
            time.sleep(0.004)
            governor.pace("prefill")
        waited = governor.waited_s
        for _ in range(50):
            time.sleep(0.004)
            governor.pace("decode")
        assert governor.waited_s == waited and governor.duty < 1
        governor.pace("prefill", at_most_s=0.01)
        assert waited < governor.waited_s < waited + 0.1
        while governor.status != "infeasible" and time.monotonic() < end:  # a second of it, and nothing is paid
            time.sleep(0.004)
            governor.pace("decode")
        assert governor.status == "infeasible" and 560 < governor.reachable < 640
        for wrong, words in ((("Decode",), "phase is 'Decode'; accepted: 'prefill', 'decode' or None"), ((3,), "phase is 3")):
            with pytest.raises(ValueError, match=words):
                governor.pace(*wrong)
        for phase, seconds, words in (("decode", 0.1, "beside phase 'decode', which never waits"), ("prefill", -1, "at_most_s -1; accepted: seconds"),
                                      (None, "1", "at_most_s '1'")):
            with pytest.raises(ValueError, match=words):
                governor.pace(phase, at_most_s=seconds)


def test_a_governor_measures_the_idle_card(card):
    card("constant 120")
    with dfa.Governor("power_cap:500W", device="GPU-aa", calibrate_s=60) as governor:
        assert governor.idle_w == pytest.approx(120)
    with pytest.raises(AttributeError):
        governor.colour


def test_a_governor_refuses_what_it_cannot_hold(card, monkeypatch):
    card("constant 300")
    with pytest.raises(ValueError, match="power_cap:500W, temp_cap:70C"):
        with dfa.Governor("min_energy", device="GPU-aa", idle_w=100):
            pass
    with pytest.raises(ValueError, match="outside of the with block"):
        dfa.Governor("power_cap:500W", device="GPU-aa", idle_w=100).pace()
    for wrong, words in (({"idle_w": "100"}, "idle_w '100'; accepted: watts"), ({"idle_w": -1}, "idle_w -1"), ({"calibrate_s": None}, "calibrate_s"),
                         ({"calibrate_s": float("nan")}, "calibrate_s nan"), ({"calibrate_s": True}, "calibrate_s True"),
                         ({"lease_s": 5}, "lease_s 5 without group")):
        with pytest.raises(ValueError, match=words):
            dfa.Governor("power_cap:500W", device="GPU-aa", **wrong)
    with pytest.raises(TypeError, match="^device is NoneType; accepted: text$"):
        dfa.Governor("power_cap:500W", device=None)
    monkeypatch.setenv("DFA_NVML", "none.so")
    with pytest.raises(RuntimeError, match="power sensor"):
        dfa.Governor("power_cap:500W", device="GPU-aa")
