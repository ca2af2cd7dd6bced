"""TokenMeter: on made-up counters, readings given by hand, recorded traces and a made-up NVML."""

import json
import pathlib
import re
import threading
import time
from types import SimpleNamespace

import pytest

import dfa
from dfa._token_ledger import PHASES, Ledger, Spread
from dfa._token_record import exposition, record_of

ROOT = pathlib.Path(__file__).parents[2]


def valid(record):
    """The record, held against the published schema where the package for that is here."""
    json.loads(json.dumps(record, allow_nan=False))
    try:
        import jsonschema
    except ImportError:
        return record
    jsonschema.Draft7Validator(json.loads((ROOT / "docs/schema/dfa-tokens-1.schema.json").read_text())).validate(record)
    return record


SOURCE = SimpleNamespace(kind="counter", method="nvml", device="cuda", reason="", names=["nvml:energy"], period_s=0.1, card="a card",
                         driver="580.1", power_limit_w=700.0)


class Loop:
    """A card on a clock turned by hand: true power, and a counter that changes every `period` seconds."""

    def __init__(self, period=0.1, window=1.0):
        self.now, self.joules, self.breaks, self.period, self.shown = 0.0, 0.0, 0, period, 0.0
        self.ledger = Ledger(False, period, window, limit_w=700)
        self.truth = dict.fromkeys(PHASES, 0.0)
        self.closed = dict(self.truth)  # of what is measured: up to the last change that a reading showed

    def event(self, fails="", change=None):
        before = self.ledger.measured_s
        self.ledger.event(self.read(fails), change)
        if self.ledger.measured_s > before:
            self.closed = dict(self.truth)

    def read(self, fails=""):
        value = None if fails else self.shown
        return SimpleNamespace(value=value, time_s=self.now, breaks=self.breaks, reason=fails)

    def run(self, phase, seconds, watts):
        """The counter shows what was used up to its last tick."""
        end, self.truth[phase] = self.now + seconds, self.truth[phase] + seconds * watts
        while (tick := (int(self.now / self.period + 1e-9) + 1) * self.period) <= end + 1e-12:
            self.joules += (tick - self.now) * watts
            self.now, self.shown = tick, self.joules
        self.joules += (end - self.now) * watts
        self.now = end

    def step(self, phase, seconds, watts, prefill=0, decode=0, fails=""):
        self.event(change=lambda: self.ledger.begin(phase))
        self.run(phase, seconds, watts)
        self.event(fails, lambda: self.ledger.finish(phase, prefill, decode, decode))

    def record(self, **workload):
        return valid(record_of(SOURCE, self.ledger, workload))


def test_steps_longer_than_the_counters_period_get_their_own_joules():
    loop = Loop()
    for _ in range(4):
        loop.step("prefill", 1.0, 600, prefill=1000)
        loop.step("decode", 2.0, 200, decode=400)
    record = loop.record(model="made up")
    prefill, decode = record["phases"]["prefill"], record["phases"]["decode"]
    assert prefill["energy_joules"] == pytest.approx(2400) and decode["energy_joules"] == pytest.approx(1600)
    assert prefill["energy_per_token_millijoules"] == pytest.approx(600) and decode["energy_per_token_joules"] == pytest.approx(1)
    assert record["total_energy_joules"] == pytest.approx(4000) and record["output_tokens_per_joule"] == pytest.approx(0.4)
    assert record["energy_per_output_token_joules"] == pytest.approx(2.5)
    assert record["total_energy_uncertainty_joules"] == pytest.approx(2 * 0.1 * 700)  # the limit
    assert decode["tokens_per_second"] == pytest.approx(200) and record["average_power_watts"] == pytest.approx(4000 / 12)
    assert prefill["windows_energy_per_token_joules"] == {"mean": pytest.approx(0.6), "std": pytest.approx(0), "count": 4}
    assert record["workload"] == {"model": "made up"} and record["not_measured"] is None


@pytest.mark.parametrize("seconds", [0.003, 0.017, 0.06, 0.25])
def test_the_bound_holds_however_short_steps_are(seconds):
    loop = Loop()
    for n in range(200):
        loop.step("prefill", seconds * (1 + n % 3), 650, prefill=10)
        loop.step("decode", seconds, 210, decode=10)
        loop.run("idle", 0.001 * (n % 5), 120)
    record = loop.record()
    for phase in PHASES:
        got = record["phases"][phase]
        if loop.closed[phase]:
            assert abs(got["energy_joules"] - loop.closed[phase]) <= got["energy_uncertainty_joules"] * (1 + 1e-9) + 1e-6
    prefill = record["phases"]["prefill"]
    assert prefill["energy_uncertainty_joules"] > 0.1 * prefill["energy_joules"] or seconds > 0.1
    measured = sum(record["phases"][p]["energy_joules"] or 0 for p in PHASES)
    assert measured == pytest.approx(record["total_energy_joules"])
    assert abs(sum(loop.closed.values()) - measured) <= record["total_energy_uncertainty_joules"] + 1e-6


def test_a_window_too_short_for_the_counter_says_so():
    loop = Loop()
    loop.step("decode", 0.02, 300, decode=3)
    record = loop.record()
    assert record["total_energy_joules"] is None and "changes every 0.1 s" in record["not_measured"]
    assert record["phases"]["decode"]["decode_token_count"] == 3
    assert record["phases"]["decode"]["energy_per_token_joules"] is None
    loop.step("decode", 0.2, 300, decode=30)
    record = loop.record()
    assert record["total_energy_uncertainty_joules"] >= 0.5 * record["total_energy_joules"]


def test_joules_across_a_break_are_not_invented():
    loop = Loop()
    loop.step("decode", 1, 300, decode=10)
    loop.breaks = 1
    loop.step("decode", 1, 300, decode=10)  # its begin finds the break
    loop.step("decode", 1, 300, decode=10, fails="the card is lost")
    loop.step("decode", 1, 300, decode=10)  # its begin reads again
    record = loop.record()
    decode = record["phases"]["decode"]
    assert decode["decode_token_count"] == 40 and decode["measured_token_count"] == 30
    assert decode["energy_joules"] == pytest.approx(900) and decode["energy_per_token_joules"] == pytest.approx(30)
    assert record["unmeasured_seconds"] == pytest.approx(1) and record["not_measured"] == "the card is lost"
    assert record["counter_breaks"] == 2


def test_a_gap_between_samples_is_a_break():
    ledger = Ledger(True, 0.1, 1.0)
    for now, watts in ((0.0, 100.0), (0.1, 300.0), (0.2, 300.0), (5.0, 300.0), (5.1, 300.0), (5.2, None), (5.3, 100.0), (5.4, 100.0)):
        ledger.event(SimpleNamespace(value=watts, time_s=now, breaks=0, reason="" if watts else "lost"))
    assert ledger.energy_j == pytest.approx(20 + 30 + 30 + 10) and ledger.unmeasured_s == pytest.approx(4.8 + 0.2)
    assert ledger.breaks == 2 and ledger.why_not == "lost"
    ledger.event(SimpleNamespace(value=100.0, time_s=9.0, breaks=0, reason=""))
    assert "no sample was taken for 3.6 s" in ledger.why_not and ledger.breaks == 3


def test_overlapping_steps_share_time_and_joules():
    loop = Loop()
    loop.ledger.event(loop.read(), lambda: loop.ledger.begin("prefill"))
    loop.ledger.event(loop.read(), lambda: loop.ledger.begin("decode"))
    loop.run("mixed", 1.0, 400)
    loop.ledger.event(loop.read(), lambda: loop.ledger.finish("prefill", 8, 0, 0))
    loop.run("decode", 1.0, 400)
    loop.ledger.event(loop.read(), lambda: loop.ledger.finish("decode", 0, 2, 2))
    phases = loop.record()["phases"]
    assert phases["prefill"]["seconds"] == pytest.approx(0.5) and phases["decode"]["seconds"] == pytest.approx(1.5)
    assert phases["prefill"]["energy_joules"] == pytest.approx(200) and phases["decode"]["energy_joules"] == pytest.approx(600)
    assert phases["prefill"]["energy_uncertainty_joules"] >= 200


def test_mean_and_deviation():
    spread = Spread()
    assert spread.std() is None
    for x in (2.0, 4.0, 9.0):
        spread.add(x)
    assert spread.mean == pytest.approx(5) and spread.std() == pytest.approx(13 ** 0.5)


def test_a_processors_counter(rapl):
    meter = dfa.TokenMeter("cpu")
    with meter.prefill(100, output=1):
        time.sleep(0.05)
        rapl(6_000_000)
    with meter.step(prefill=10, decode=5):
        time.sleep(0.05)
        rapl(6_400_000)
    with meter.decode(4, output=2) as step:
        time.sleep(0.05)
        rapl(7_400_000)
        step.output = 3
    record = valid(meter.record())
    phases = record["phases"]
    idle = phases["idle"]["energy_joules"]  # what ran between steps, more of it where a machine is busy
    for phase, used in zip(PHASES[:3], (1, 1, 0.4)):
        assert used - idle - 1e-9 <= phases[phase]["energy_joules"] <= used + 1e-9
        assert used - phases[phase]["energy_joules"] <= phases[phase]["energy_uncertainty_joules"] + 1e-9
    assert sum(phases[phase]["energy_joules"] for phase in PHASES) == pytest.approx(2.4)
    assert record["input_token_count"] == 110 and record["output_token_count"] == 1 + 5 + 3
    assert phases["mixed"]["measured_token_count"] == 15
    assert phases["decode"]["energy_per_token_millijoules"] == pytest.approx(phases["decode"]["energy_joules"] / 4 * 1e3)
    assert (record["measurement_method"], record["measurement_kind"]) == ("rapl", "counter") and record["device"]["name"]
    assert record["device"]["power_limit_watts"] is None and "2.4 J by rapl" in repr(meter)


def test_a_step_that_fails_counts_joules_and_no_tokens(rapl):
    meter = dfa.TokenMeter("cpu")
    with pytest.raises(KeyError):
        with meter.decode(8):
            rapl(6_000_000)
            raise KeyError
    with pytest.raises(ValueError, match="output is -1"):
        with meter.decode(8) as step:
            step.output = -1
    decode = valid(meter.record())["phases"]["decode"]
    assert decode["decode_token_count"] == 0 and decode["energy_joules"] == pytest.approx(1) and decode["steps"] == 2


def test_without_a_sensor_there_is_no_joule_and_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("DFA_SYSFS_ROOT", str(tmp_path))
    meter = dfa.TokenMeter("cpu")
    with meter.decode(8):
        pass
    record = valid(meter.record())
    assert record["total_energy_joules"] is None and record["measurement_method"] is None
    assert str(tmp_path) in record["not_measured"] and record["output_token_count"] == 8
    assert record["output_tokens_per_second"] > 0 and "not measured" in repr(meter)
    assert "dfa_energy_joules_total" not in meter.prometheus() and "dfa_meter_missing{" in meter.prometheus()


CARD = "driver 580.1\nclock real\ncard H200 GPU-aa 00000000:3B:00.0\nlimit 650\n"


def test_a_cards_counter(fake_nvml):
    fake_nvml(CARD + "power constant 500\ntick 0.02\n")
    with dfa.TokenMeter("GPU-aa", window_s=0.1) as meter:
        for _ in range(8):
            with meter.decode(10):
                time.sleep(0.05)
    record = valid(meter.record())
    assert record["device"] == {"kind": "cuda", "name": "H200", "driver": "580.1", "power_limit_watts": 650,
                                "scope": record["device"]["scope"]}
    assert (record["measurement_method"], record["measurement_kind"]) == ("nvml", "counter")
    assert record["total_energy_joules"] == pytest.approx(500 * record["measured_seconds"],
                                                          abs=record["total_energy_uncertainty_joules"])
    assert record["windows"]["energy_per_output_token_joules"]["count"] >= 2
    later = meter.record()
    assert later["duration_seconds"] == record["duration_seconds"]  # it has ended
    with pytest.raises(RuntimeError, match="after the end"):
        with meter.decode(1):
            pass


def test_a_card_without_a_counter_is_sampled(tmp_path):
    trace = tmp_path / "watts.csv"
    trace.write_text("time_s,card.power_w\n" + "".join(f"{n * 0.02:.2f},{400}\n" for n in range(200)))
    meter = dfa.TokenMeter(f"replay:{trace}")
    with meter.decode(10):
        time.sleep(0.3)  # the thread samples meanwhile
    record = valid(meter.record())
    assert record["measurement_kind"] == "sampled" and record["readings"] > 5
    assert record["total_energy_joules"] == pytest.approx(400 * record["measured_seconds"], rel=1e-6)
    assert record["measured_seconds"] >= 0.3


def test_a_recorded_counter(tmp_path):
    trace = tmp_path / "joules.csv"
    trace.write_text("time_s,card.energy_j\n" + "".join(f"{n * 0.01:.2f},{n * 3}\n" for n in range(400)))
    meter = dfa.TokenMeter(f"replay:{trace}")
    with meter.prefill(30):
        time.sleep(0.2)
    prefill = valid(meter.record())["phases"]["prefill"]
    assert prefill["average_power_watts"] == pytest.approx(300, rel=0.15)
    trace.write_text("time_s,card.temp_c\n0,1\n")
    with pytest.raises(ValueError, match="no column of energy_j or power_w"):
        dfa.TokenMeter(f"replay:{trace}")


def test_many_threads_lose_no_token_and_no_second(rapl):
    meter, begin = dfa.TokenMeter("cpu"), time.monotonic()

    def serve():
        for n in range(100):
            with meter.prefill(3):
                pass
            with meter.decode(2):
                pass
            if n % 25 == 0:
                meter.record()
                meter.prometheus()
    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, record = time.monotonic() - begin, valid(meter.record())
    assert record["input_token_count"] == 2400 and record["output_token_count"] == 1600
    assert sum(record["phases"][p]["seconds"] for p in PHASES) == pytest.approx(record["duration_seconds"])
    assert record["duration_seconds"] <= elapsed + 0.1 and not any(meter._ledger.running.values())


def test_tokens_that_are_set_inside_a_step_of_the_other_kind_are_all_exposed():
    loop = Loop()
    loop.step("prefill", 1.0, 300.0, prefill=7, decode=3)
    lines = exposition(SOURCE, loop.ledger).splitlines()
    assert 'dfa_tokens_total{phase="prefill",kind="prefill"} 7' in lines and 'dfa_tokens_total{phase="prefill",kind="decode"} 3' in lines



def test_prometheus_reads_it(rapl):
    parser = pytest.importorskip("prometheus_client.parser")
    meter = dfa.TokenMeter("cpu")
    with meter.decode(4):
        rapl(6_000_000)
    families = {family.name: family for family in parser.text_string_to_metric_families(meter.prometheus())}
    joules = {sample.labels["phase"]: sample.value for sample in families["dfa_energy_joules"].samples}
    assert joules["decode"] == pytest.approx(1) and families["dfa_energy_joules"].type == "counter"
    assert families["dfa_meter_info"].samples[0].labels["method"] == "rapl"
    assert families["dfa_energy_per_token_joules"].samples[0].value == pytest.approx(0.25)


def test_every_line_of_the_exposition_is_of_its_format():
    loop = Loop()
    loop.step("decode", 1, 300, decode=10)
    source = SimpleNamespace(**{**vars(SOURCE), "card": 'a "card"\\\nof two lines'})
    text = exposition(source, loop.ledger)
    line = re.compile(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="([^"\\\n]|\\.)*"(,\w+="([^"\\\n]|\\.)*")*\})? [0-9.e+-]+')
    assert text.endswith("\n") and all(line.fullmatch(each) for each in text.splitlines())
    assert r'name="a \"card\"\\\nof two lines"' in text and "dfa_power_limit_watts 700.0" in text


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "8", None])
def test_counts_are_checked(wrong):
    meter = dfa.TokenMeter("cpu")
    with pytest.raises(ValueError, match="decode is .*accepted"):
        meter.decode(wrong)
    with pytest.raises(ValueError, match="no tokens"):
        meter.step()


def test_options_are_checked():
    for window in (0, -1, float("nan"), float("inf"), "5", True):
        with pytest.raises(ValueError, match="window_s"):
            dfa.TokenMeter("cpu", window_s=window)
    with pytest.raises(TypeError, match="device is int"):
        dfa.TokenMeter(3)
    with pytest.raises(RuntimeError, match="'tpu'.*accepted: auto, cpu, cuda"):
        dfa.TokenMeter("tpu")
    with pytest.raises(ValueError, match="JSON"):
        dfa.TokenMeter("cpu").record(model=object())
    with pytest.raises(ValueError, match="JSON"):
        dfa.TokenMeter("cpu").record(loss=float("nan"))


def test_a_record_before_any_step():
    record = valid(dfa.TokenMeter("cpu").record())
    assert record["duration_seconds"] == 0 and record["not_measured"]
