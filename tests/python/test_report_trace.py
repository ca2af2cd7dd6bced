"""Traces of power: reading, refusing, drawing."""

import json

import pytest

from dfa.report import trace

HEAD = {"kind": "head", "schema": "dfa-trace/1", "source": "simulated", "name": "n", "about": "",
        "policy": "power_cap:500W", "card": "c", "events": [{"time_s": 0.15, "note": "step"}]}
SAMPLE = {"kind": "sample", "time_s": 0.1, "power_w": 400, "second_w": 390, "temp_c": 50,
          "clock_hz": 1.98e9, "work_per_s": 1, "cap_w": 500, "cap_c": None}
DECISION = {"kind": "decision", "time_s": 0, "status": "stale", "point": "p", "level": 0.5}
MEASURES = {"kind": "measures", "violation_pct": 0.0, "overshoot_pct": None}


@pytest.fixture
def write(tmp_path):
    def make(*records, name="t.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        return path
    return make


def test_reads_what_it_needs(write):
    read = trace.load(write(HEAD, SAMPLE, dict(SAMPLE, time_s=0.2, cap_w=None), DECISION, MEASURES))
    assert [s["time_s"] for s in read["sample"]] == [0.1, 0.2]
    assert trace.column(read["sample"], "cap_w")[0] == 500
    assert trace.column(read["sample"], "cap_w")[1] != trace.column(read["sample"], "cap_w")[1]
    assert trace.summary(read) == "above the cap 0 % of the time"


def test_spans_join_equal_values():
    decisions = [{"time_s": t, "status": s} for t, s in ((0, "a"), (1, "a"), (2, "b"), (3, "a"))]
    assert trace.spans(decisions, "status", 4) == [("a", 0, 2), ("b", 2, 3), ("a", 3, 4)]


def test_settling_is_told_of_simulated_power_only(write):
    measures = dict(MEASURES, settling_s=0.3)
    for source, told in (("simulated", True), ("measured", False)):
        read = trace.load(write(dict(HEAD, source=source), SAMPLE, DECISION, measures))
        assert ("settling" in trace.summary(read)) == told


def test_a_configuration_is_named_by_target_and_tile():
    text = "ForwardConfig{.target=Target::cuda_sm90,.element=DType::bf16,.block_q=128,.block_k=176}"
    assert trace.short(text) == "cuda_sm90 128 × 176"
    assert trace.short("bf16 at 132 SMs") == "bf16 at 132 SMs"


def test_a_clock_that_was_chosen_is_shown(write, tmp_path, monkeypatch):
    from matplotlib.axes import Axes
    shown, text = [], Axes.text
    monkeypatch.setattr(Axes, "text", lambda axes, x, y, words, **more: (shown.append(words), text(axes, x, y, words, **more))[1])
    path = write(HEAD, *[dict(SAMPLE, time_s=t) for t in (0.1, 1, 2)], DECISION, dict(DECISION, time_s=1, clock_hz=1.2e9), MEASURES)
    assert trace.main([str(path), "--out", str(tmp_path)]) == 0
    assert " p" in shown and " p at 1200 MHz" in shown


@pytest.mark.parametrize("records", [[SAMPLE], [dict(HEAD, schema="x"), SAMPLE], [HEAD], [{"a": 1}]])
def test_refuses_what_is_no_trace(write, records, capsys, tmp_path):
    path = write(*records)
    assert trace.main([str(path), "--out", str(tmp_path / "new" / "out")]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("bad, words", [
    ({"a": 1}, "not a record"), ({k: v for k, v in SAMPLE.items() if k != "time_s"}, "has no 'time_s'"),
    (dict(SAMPLE, power_w="much"), "a value of another type"), (dict(DECISION, level=None), "a value of another type"),
    (HEAD, "not a record")])
def test_of_a_bad_trace_beside_a_good_one_nothing_is_written(write, capsys, tmp_path, bad, words):
    good = write(HEAD, SAMPLE, DECISION, MEASURES, name="good.jsonl")
    path = write(HEAD, SAMPLE, DECISION, bad)
    assert trace.main([str(good), str(path), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert f"{path}:" in error and words in error and error.count("\n") == 1, error
    assert not (tmp_path / "out").exists()


def test_two_traces_of_one_name_are_refused(write, capsys, tmp_path):
    (tmp_path / "other").mkdir()
    paths = [str(write(HEAD, SAMPLE, DECISION, MEASURES, name=name)) for name in ("t.jsonl", "other/t.jsonl")]
    assert trace.main([*paths, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert all(path in error for path in paths) and "t.png" in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("line", [
    '{"kind": "sample", "kind": "decision"}', '{"kind": "sample", "time_s": NaN}', "[" * 100000, "[]",
    '{"kind": [1]}', '{"kind": "smple", "time_s": 1}'])
def test_lines_are_json_by_the_letter(write, line):
    path = write(HEAD, SAMPLE)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(trace.BadTrace, match=":3: not a record"):
        trace.load(path)


def test_draws(write, tmp_path, capsys):
    path = write(HEAD, SAMPLE, dict(SAMPLE, time_s=0.2), DECISION,
                 dict(DECISION, time_s=0.1, status="infeasible", point="q"), MEASURES)
    assert trace.main([str(path), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "t.png").read_bytes().startswith(b"\x89PNG")
    assert "t.png" in capsys.readouterr().out


def test_loads_that_take_turns_are_told_by_letters():
    events = [{"time_s": 2, "note": "fwd b"}, {"time_s": 4, "note": "power_cap:400W"},
              {"time_s": 4, "note": "fwd a"}]
    head = dict(HEAD, name="fwd a; fwd b", events=events)
    assert trace.loads_of(head) == {"fwd a": "A", "fwd b": "B"}
    assert trace.told_at(head) == {2: "B", 4: "power_cap:400W; A"}
    assert trace.loads_of(HEAD) == {} and trace.told_at(HEAD) == {0.15: "step"}
