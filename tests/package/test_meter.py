"""EnergyMeter on a made-up RAPL tree, and where nothing measures."""

import time

import pytest

import dfa


def test_joules_between_begin_and_end(rapl):
    with dfa.EnergyMeter("cpu") as meter:
        rapl(12_500_000)
    assert meter.energy_j == pytest.approx(7.5)
    assert meter.uncertainty_j >= 0 and meter.seconds > 0 and meter.reason == ""
    assert "7.5" in repr(meter)


def test_not_measured_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("DFA_SYSFS_ROOT", str(tmp_path))
    with dfa.EnergyMeter("cpu") as meter:
        pass
    assert meter.energy_j is None and meter.uncertainty_j is None and meter.power_w is None
    assert meter.reason and meter.reason in repr(meter)


def test_a_failure_in_the_block_is_passed_on_and_measured(rapl):
    with pytest.raises(KeyError):
        with dfa.EnergyMeter("cpu") as meter:
            rapl(6_000_000)
            raise KeyError
    assert meter.energy_j == pytest.approx(1)


def test_unknown_devices():
    with pytest.raises(ValueError, match="accepted: auto, cpu, cuda"):
        dfa.EnergyMeter("tpu")


def test_a_sensor_of_a_card_by_its_name(fake_nvml):
    from dfa import _core
    fake_nvml("clock real\ncard H200 GPU-aa 00000000:3B:00.0\nnvlink 18 18 1e9 5e8\ncard T4 GPU-bb 00000000:5E:00.0\n")
    sent, received = (_core.CardSensor("GPU-aa", f"nvml:nvlink_{way}") for way in ("sent", "received"))
    assert sent.read()[1] == received.read()[1] == ""
    time.sleep(0.2)
    assert sent.read()[0] / received.read()[0] == pytest.approx(2, rel=0.05)
    none, why = _core.CardSensor("GPU-bb", "nvml:nvlink_sent").read()
    assert none is None and "nvmlDeviceGetNvLinkState: not supported" in why
    none, why = _core.CardSensor("GPU-of-nobody", "nvml:nvlink_sent").read()
    assert none is None and "GPU-of-nobody" in why
    with pytest.raises(ValueError, match="sensor 'nvlink'; accepted: nvml:energy, "):
        _core.CardSensor("GPU-aa", "nvlink")
