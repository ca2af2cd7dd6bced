"""Result files become the expected frame, and a bad file becomes one line."""

import json
import math
import pathlib
import subprocess
import sys

import pandas
import pytest
import synthetic

from dfa.report import derive, figures_hbm, figures_theory, figures_training, story, story_parts, study
from dfa.report.load import BadResult, load
from dfa.report.problem import parse_problem

GOLDEN = pathlib.Path(__file__).parent / "data" / "synthetic_three_cases.json"


def test_the_golden_file_gives_the_golden_frame():
    frame = load([GOLDEN]).cases
    expected = pandas.DataFrame({
        "run": [0, 0, 0],
        "suite": ["three_way", "three_way", "memory"],
        "algorithm": ["standard", "flash", "standard"],
        "status": ["ok", "ok", "out_of_memory"],
        "pass": ["fwd"] * 3, "dtype": ["bf16"] * 3, "mask": ["full"] * 3,
        "b": [1] * 3, "hq": [8] * 3, "hk": [8] * 3, "sq": [1024, 1024, 65536],
        "sk": [1024, 1024, 65536], "d": [64] * 3, "dv": [64] * 3, "width": [512] * 3,
        "time_ms": [8.0, 2.0, math.nan], "time_min_ms": [7.5, 1.9, math.nan],
        "time_p95_ms": [9.0, 2.2, math.nan], "time_half_width_ms": [0.4, 0.02, math.nan],
        "n": [25, 25, math.nan], "tflops": [0.268, 1.074, math.nan],
        "energy_j": [1.6, 0.5, math.nan], "power_avg_w": [200.0, 250.0, math.nan],
        "power_max_w": [240.0, 300.0, math.nan], "gflop_per_j": [1.342, 4.295, math.nan],
        "memory_bytes": [75497472.0, 8388608.0, 275951648768.0],
        "memory_peak_bytes": [8e7, 8e6, math.nan],
        "check": ["ok", "ok", "not checked"], "check_error": [1e-6, 1e-6, math.nan],
    })
    pandas.testing.assert_frame_equal(frame[list(expected)], expected, check_dtype=False)


def test_ratios_are_standard_over_this():
    frame = derive.with_ratios(load([GOLDEN]).cases)
    assert frame["speedup"].tolist()[:2] == [1.0, 4.0]
    assert frame["memory_ratio"].tolist()[:2] == [1.0, 10.0]
    assert frame["energy_ratio"].tolist()[:2] == pytest.approx([1.0, 3.2])
    assert math.isnan(frame["speedup"][2])
    assert frame["speedup_half_width"][1] == pytest.approx(4 * math.hypot(0.05, 0.01))


def test_a_wrong_result_has_no_speed(study_of):
    rows = [synthetic.case("sequence", "standard"), synthetic.wrong("sequence", "flash")]
    frame = derive.with_ratios(study_of(synthetic.result(rows)).cases)
    assert frame["check"].tolist() == ["ok", "wrong"]
    assert math.isnan(frame["speedup"][1])


def test_a_wrong_baseline_gives_nobody_a_speed(study_of):
    rows = [synthetic.wrong("sequence", "standard"), synthetic.case("sequence", "flash")]
    assert derive.with_ratios(study_of(synthetic.result(rows)).cases)["speedup"].isna().all()


def test_a_ratio_never_crosses_files(write_result):
    one = write_result(synthetic.result([synthetic.case("sequence", "standard")]), "one.json")
    two = write_result(synthetic.result([synthetic.case("sequence", "flash")]), "two.json")
    assert derive.with_ratios(load([one, two]).cases)["speedup"].isna().tolist() == [False, True]


def test_of_two_files_with_the_same_case_figures_take_the_newest(write_result):
    old = synthetic.case("sequence", "flash")
    old["time_ms"]["median"] = 99.0
    old = write_result(synthetic.result([old], created="2025-01-31T12:00:00Z"), "old.json")
    new = write_result(synthetic.result([synthetic.case("sequence", "flash")]), "new.json")
    study = load([new, old])
    assert len(study.cases) == 2
    assert derive.newest(study)["time_ms"].tolist() == [synthetic.time_of("flash")]


def test_the_reference_backend_counts_as_the_reference(study_of):
    rows = [synthetic.case("run", "flash") | {"backend": "reference"}]
    assert study_of(synthetic.result(rows)).cases["algorithm"].tolist() == ["reference"]


def test_reasons_are_kept_a_row_a_field(study_of):
    gaps = study_of(synthetic.result([synthetic.case("sequence", "flash")])).not_measured
    assert set(gaps["field"]) == {"energy_j", "power_avg_w", "power_max_w", "gflop_per_j"}
    assert set(gaps["reason"]) == {synthetic.NO_ENERGY}


@pytest.mark.parametrize("text, column, value", [
    ("fwd bf16 b2 h8 s128 d64", "hk", 8),
    ("fwd bf16 b2 hq8 hk2 sq3 sk5 d64", "sk", 5),
    ("bwd fp32 causal b1 h1 s1 d8", "mask", "causal"),
    ("fwd fp32 b1 h1 s1 d8 dv16", "dv", 16),
    ("fwd fp32 b1 h1 s1 d8 window(4,0) deterministic", "mask", "window(4,0)"),
    ("fwd fp32 b1 h1 s1 d8 window(4,0) deterministic", "extra", "deterministic"),
    ("fwd bf16 hq4 hk2 d64 lens(70,1,130)", "b", 3), ("fwd bf16 hq4 hk2 d64 lens(70,1,130)", "sk", 130),
    ("fwd bf16 hq4 hk2 d64 lens(70,1,130) lens_k(9,8,7)", "sk", 9), ("fwd bf16 h4 d64 lens(70,1,130)", "lengths", "3 of 1–130"),
    ("fwd bf16 h4 d64 lens(64,64)", "lengths", "2 of 64"), ("fwd fp32 b1 h1 s1 d8 softcap(3) sink", "extra", "softcap(3) sink"),
    ("fwd fp32 b1 h4 s1 d32", "width", 128)])
def test_a_problem_line_gives_its_columns(text, column, value):
    assert parse_problem(text)[column] == value


@pytest.mark.parametrize("text, wrong", [
    ("", "starts with neither"), ("forward fp32 b1", "starts with neither"),
    ("fwd fp64 b1", "starts with neither"), ("fwd fp32 b1 h8 d64", "lacks sq, sk")])
def test_a_bad_problem_line_names_what_is_wrong(text, wrong):
    with pytest.raises(ValueError, match=wrong):
        parse_problem(text)


@pytest.mark.parametrize("read", [
    lambda path: load([path]), study.load, story.tell, figures_hbm.hbm, figures_training.training,
    lambda path: figures_theory.load([path]), lambda path: story_parts.processor([path])])
@pytest.mark.parametrize("text, words", [
    ("", "it is empty"), ('{"schema": "dfa-result/1", "schema": "x"}', "the key 'schema' is there twice"),
    ('{"schema": 1e999}', "1e999 is beyond"), ("[" * 100000, "nested too deeply"), ("{} x", "not JSON")])
def test_what_is_no_json_is_one_line(tmp_path, read, text, words):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadResult, match=words) as told:
        read(tmp_path / "x.json")
    assert "x.json" in str(told.value) and "\n" not in str(told.value)


def test_a_case_that_is_there_twice_is_refused_as_by_compare(write_result):
    cases = [synthetic.case("sequence", "flash", s=s) for s in (512, 1024)]
    load([write_result(synthetic.result([*cases, cases[0] | {"launch": "graph"}, cases[0] | {"suite": "custom"}]))])
    for again in (cases[0], cases[0] | {"launch": "eager"}):
        path = write_result(synthetic.result([*cases, again]))
        with pytest.raises(BadResult) as told:
            load([path])
        assert str(told.value) == (f"{path}: result has two cases 'sequence | {cases[0]['problem']} | flash | cpu'; accepted: each case "
                                   "once")


def test_a_file_given_twice_is_refused_by_whatever_name(write_result, tmp_path):
    path = write_result(synthetic.result([synthetic.case("sequence", "flash")]))
    (tmp_path / "link.json").symlink_to(path)
    for other in (path, tmp_path / "link.json", path.parent / "." / path.name, f"{path.parent}/../{path.parent.name}/{path.name}"):
        with pytest.raises(BadResult, match="is given twice; accepted: each result once"):
            load([path, other])


def test_a_copy_under_another_name_is_refused(write_result, tmp_path):
    result = synthetic.result([synthetic.case("sequence", "flash")])
    path, copy, again = write_result(result), tmp_path / "copy.json", tmp_path / "again.json"
    copy.write_text(json.dumps(dict(reversed(result.items())), indent=3))
    with pytest.raises(BadResult) as told:
        load([path, copy])
    assert str(told.value) == f"{copy} is a copy of {path}; accepted: each result once"
    again.write_text(json.dumps(result | {"created": "2026-02-01T12:00:00Z"}))
    assert len(load([path, again]).runs) == 2


def drop_cases(r):
    r["cases"] = []


def other_schema(r):
    r["schema"] = "dfa-result/2"


def no_machine(r):
    del r["machine"]


def text_time(r):
    r["cases"][0]["time_ms"]["median"] = "fast"


def infinite_time(r):
    r["cases"][0]["time_ms"]["median"] = float("inf")


def negative_time(r):
    r["cases"][0]["time_ms"]["p95"] = -1


def text_dirty(r):
    r["git"]["dirty"] = "no"


def ok_without_time(r):
    r["cases"][0]["time_ms"] = None


def unknown_status(r):
    r["cases"][0]["status"] = "fine"


def bad_problem(r):
    r["cases"][0]["problem"] = "attention please"


def bad_check(r):
    r["cases"][0]["check"] = {"ok": "yes"}


def case_is_a_number(r):
    r["cases"][0] = 7


@pytest.mark.parametrize("break_it, names", [
    (drop_cases, r"cases is \[\]"), (other_schema, "dfa-result/2.*accepted: dfa-result/1"),
    (no_machine, "machine is null"), (text_time, r'cases\[0\].time_ms.median is "fast"'),
    (infinite_time, "not JSON: Infinity"), (negative_time, "p95 is -1; accepted: 0 or more"),
    (text_dirty, 'git.dirty is "no"; accepted: true or false'), (ok_without_time, r"cases\[0\].time_ms is null"),
    (unknown_status, '"fine"; accepted: ok, out_of_memory'), (bad_problem, "attention please"),
    (bad_check, r"cases\[0\].check"), (case_is_a_number, r"cases\[0\] is 7")],
    ids=lambda v: getattr(v, "__name__", ""))
def test_a_broken_file_is_one_line_that_names_the_place(write_result, break_it, names):
    result = synthetic.result([synthetic.case("sequence", "flash")])
    break_it(result)
    with pytest.raises(BadResult, match=names) as caught:
        load([write_result(result)])
    assert "\n" not in str(caught.value) and "synthetic.json" in str(caught.value)


@pytest.mark.parametrize("content, names", [
    (b"", "not JSON"), (b"{", "not JSON"), (b"\xff\xfe\x00", "not JSON"), (b"[]", "the file is"),
    (b'{"schema": NaN}', "NaN"), (b"[" * 100000, "nested too deeply"),
    (json.dumps([{"L": 512, "avg_latency_ms": 1}]).encode(), "accepted: an object of schema")])
def test_a_file_that_is_none_is_one_line(tmp_path, content, names):
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(BadResult, match=names):
        load([path])


def test_a_missing_file_and_a_folder_are_one_line(tmp_path):
    with pytest.raises(BadResult, match="cannot be read: No such file"):
        load([tmp_path / "none.json"])
    with pytest.raises(BadResult, match="cannot be read: Is a directory"):
        load([tmp_path])


def test_a_library_that_is_not_installed_is_one_line():
    code = "import runpy, sys; sys.modules['pandas'] = None; runpy.run_module('dfa.report', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode and done.stderr.count("\n") == 1 and "pandas is not installed" in done.stderr
