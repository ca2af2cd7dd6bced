"""EnergyMeter on a made-up RAPL tree, and where nothing measures."""

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
