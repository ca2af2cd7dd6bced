"""The report of a study: what its folder names, theory, training, launches, and what is missing."""

import json
import pathlib

import pytest
import synthetic

from dfa.report import (derive, draw, figures_theory, figures_time, figures_training, study,
                        tables)
from dfa.report.__main__ import main
from dfa.report.load import BadResult

ROOT = pathlib.Path(__file__).parents[2]


def analysis(length):
    cost = {"pass": "forward", "memory_bytes": 1e9 * length,
            "roofline": {"intensity_flops_per_byte": 10.0, "ridge_flops_per_byte": 206.0}}
    return {"schema": "dfa-analysis/1", "problem": f"fwd bf16 b1 hq16 hk16 sq{length} sk{length} d64",
            "footprint": {name: {"total_bytes": 1e9} for name in ("standard", "flash")},
            "machines": [{"machine": {"name": "h200"}, "costs": [
                cost | {"algorithm": "standard"},
                cost | {"algorithm": "flash", "memory_bytes": 1e9}]}],
            "worked_example": {"numbers": [{"what": "traffic, <flash>", "unit": "GB", "published": 4.4,
                                            "model": 4.43, "direct_count": 12.3, "agreement": "assumed",
                                            "assumptions": "some"}]}}


def training_result():
    runs = [{"variant": name, "seed": 0, "tokens_per_s": 1e5 * (i + 1), "j_per_token": joules,
             "energy_reason": "no counter", "losses": [5.0 - 0.01 * k for k in range(50)]}
            for i, (name, joules) in enumerate([("standard", 2e-3), ("torch_sdpa", 1e-3),
                                                ("dfa", 0.9e-3)])]
    return {"machine": "card", "torch": "2.0", "steps": 50, "runs": runs,
            "model": {"layers": 2, "width": 64, "heads": 2, "context": 128, "batch": 4},
            "agreement": {"largest_difference_between_variants_of_one_seed": 0.0123}}


@pytest.fixture
def folder(tmp_path):
    """A study with two suites, theory and training done, and counters that could not be read."""
    def write(name, value):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
        return name

    def step(name, status="done", outputs=(), reason=""):
        return {"name": name, "question": f"what of {name}?", "status": status, "reason": reason,
                "seconds": 12.0, "commands": [], "outputs": list(outputs)}
    steps = [
        step("three_way", outputs=[write("three_way.json", synthetic.result())]),
        step("heads", "left", ["heads.json"]),
        step("theory", outputs=[write(f"theory/s{s}.json", analysis(s)) for s in (512, 1024)]),
        step("hbm", "cannot", ["hbm.json"], "<no> ncu"),
        step("training", outputs=[write("training.json", training_result())]),
        step("report", "left", ["report.html"])]
    write("study.json", {"schema": "dfa-study/1", "created": "now", "machine": "m", "steps": steps})
    return tmp_path


def test_a_study_is_one_page_that_says_what_is_missing(folder):
    assert main(["--study", str(folder / "study.json"), "--out", str(folder)]) == 0
    for name in ("theory.png", "training.png", "three_panel.pdf", "speedup.png"):
        assert (folder / name).stat().st_size > 5000
    page = (folder / "report.html").read_text()
    assert "The study: 3 of 5 parts done" in page
    assert "not run here" in page and "&lt;no&gt; ncu" in page and "not run yet" in page
    assert "traffic, &lt;flash&gt;" in page


def test_only_finished_steps_are_read(folder):
    found = study.load(folder / "study.json")
    assert [path.name for path in found.results] == ["three_way.json"]
    assert [path.name for path in found.theory] == ["s512.json", "s1024.json"]
    assert found.hbm is None and found.training.name == "training.json"


@pytest.mark.parametrize("text", ["{}", "not JSON", "[]", "null", "1", '{"schema": "dfa-study/1"}',
                                  '{"schema": "dfa-study/1", "steps": []}'])
def test_a_file_that_is_no_study_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(BadResult) as refused:
        study.load(tmp_path / "study.json")
    assert "study.json: " in str(refused.value) and "\n" not in str(refused.value)


def test_theory_compares_traffic_at_the_longest(folder):
    analyses, example = figures_theory.load([folder / "theory/s1024.json", folder / "theory/s512.json"])
    chart = figures_theory.theory(analyses)
    assert chart.panels[0].series[0].x == (512, 1024)
    assert chart.panels[0].series[0].y == pytest.approx((512, 1024))
    assert chart.finding == "Length 1024: 1024 times the traffic with standard attention."
    assert example[0]["published"] == 4.4
    with pytest.raises(BadResult):
        figures_theory.load([folder / "training.json"])


def test_training_shows_means_and_what_was_not_measured(folder):
    chart = figures_training.training(folder / "training.json")
    speed = {s.algorithm: s.y for s in chart.panels[1].series}
    assert speed == {"standard": (100,), "torch-sdpa": (200,), "flash": (300,)}
    assert "0.0123" in chart.finding
    result = training_result()
    for run in result["runs"]:
        run["j_per_token"] = None
    (folder / "training.json").write_text(json.dumps(result))
    assert figures_training.training(folder / "training.json").panels[2].words == \
        "not measured: no counter"
    with pytest.raises(BadResult):
        figures_training.training(folder / "study.json")


def test_launches_share_a_colour_and_differ_in_dashes(study_of):
    rows = [synthetic.case("launch", "flash", dtype="bf16", h=16, s=s) for s in (64, 128)]
    rows += [dict(row, launch=way) for row in rows for way in ("graph", "compile-max-autotune")]
    found = study_of(synthetic.result(rows))
    chart = figures_time.launch(found, derive.with_ratios(derive.newest(found)))
    assert {(s.algorithm, s.variant, s.dash) for s in chart.panels[0].series} == {
        ("flash", "one by one", "solid"), ("flash", "graph", "dash"),
        ("flash", "torch.compile, max-autotune", "longdash")}


def test_what_launches_were_refused_is_one_entry_of_the_legend(study_of):
    rows = [synthetic.case("launch", "flash", dtype="bf16", h=16, s=s) for s in (64, 128)]
    refused = [dict(row, algorithm=peer, launch=way, status="unsupported", time_ms=None)
               for row in rows for peer in ("torch-flash", "torch-cudnn")
               for way in ("compile-reduce-overhead", "compile-max-autotune")]
    found = study_of(synthetic.result(rows + refused))
    chart = figures_time.launch(found, derive.with_ratios(derive.newest(found)))
    assert list(chart.legend[2]) == ["unsupported"]
    assert {m.label for m in chart.panels[0].marks} >= {
        "PyTorch flash, torch.compile, reduce-overhead: unsupported"}
    figure = draw.figure_of(chart)
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1


def test_tables_of_passes_tell_what_did_not_fit(study_of):
    rows = [synthetic.case("forward_backward", a, dtype="bf16", s=s, pass_=p)
            for a in ("standard", "flash") for s in (512, 1024) for p in ("fwd", "bwd")]
    rows += [synthetic.out_of_memory("forward_backward", "standard", dtype="bf16", s=2048)]
    found = study_of(synthetic.result(rows))
    text = tables.pass_tables(derive.with_ratios(derive.newest(found)))
    assert "forward, 8 heads" in text and "backward, 8 heads" in text
    assert text.count("out of memory</td>") == 1
    others = study_of(synthetic.result([synthetic.case("heads", "flash")]))
    assert tables.pass_tables(derive.with_ratios(derive.newest(others))) == ""


def test_the_committed_h200_results_make_a_report(tmp_path):
    assert main(["--study", str(ROOT / "results/studies/evaluation_h200/study.json"), "--out", str(tmp_path)]) == 0
    for name in ("launch", "hbm", "theory", "training"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
