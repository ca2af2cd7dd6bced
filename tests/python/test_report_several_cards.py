"""The report of one sequence over several cards: shares, each card's watts and their sum, counted bytes beside the model's."""

import copy
import json

import pytest
import synthetic

from dfa.report import draw, figures_cards, interactive, tables
from dfa.report.__main__ import main
from dfa.report.load import BadResult

ONE = {"seconds": [4e-3, 4.2e-3, 3.8e-3], "sent_bytes": None, "watts": 1300.0, "watts_of_cards": [640.0, 660.0], "joules": 2.6, "ticks": 9}
RING = {"seconds": [2.5e-3], "sent_bytes": 134e6, "model_s": 2.3e-3, "nvlink_bytes": 136.68e6, "nvlink_bytes_of_cards": [136.68e6, 136e6],
        "watts": 1400.0, "watts_of_cards": [690.0, 710.0], "joules": 3.5}
ROW = {"name": "32k h16/16 fwd", "tokens": 32768, "hq": 16, "hk": 16, "d": 128, "passes": "fwd", "window": None, "flops": 1e12, "cards": [],
       "columns": {"one": ONE, "ring": RING, "ring-8": RING, "alltoall": {"reason": "<4> heads of k are not shared by 3 ranks"},
                   "torch.gather cudnn": {"seconds": [4e-3], "sent_bytes": None, "nvlink_bytes": None, "nvlink_reason": "no <links>"}}}
RESULT = {"schema": "dfa-context-parallel/1", "created": "now", "ranks": 2, "card": "card", "torch": "2", "nccl": "2", "command": "c",
          "rows": [ROW, {"name": "128k", "reason": "no time"}]}


@pytest.fixture
def write(tmp_path):
    def make(result):
        path = tmp_path / "context_parallel.json"
        path.write_text(json.dumps(result))
        return path
    return make


def test_shares_are_of_one_cards_time_over_all_cards(write):
    chart = figures_cards.chart_of(figures_cards.load(write(RESULT)))
    shares = {s.algorithm: s.y for s in chart.panels[0].series}
    assert shares == {"ring": (pytest.approx(4e-3 / (2 * 2.5e-3)),), "torch.gather": (pytest.approx(0.5),)}
    assert [(m.algorithm, m.reason) for m in chart.panels[0].marks] == [("alltoall", "not run")]


def test_watts_are_of_each_card_beside_their_sum(write):
    chart = figures_cards.chart_of(figures_cards.load(write(RESULT)))
    watts = {s.label: dict(zip(s.x, s.y)) for s in chart.panels[1].series}
    assert watts == {"card 0": {"one": 640, "ring": 690, "ring-8": 690}, "card 1": {"one": 660, "ring": 710, "ring-8": 710},
                     "all cards together": {"one": 1300, "ring": 1400, "ring-8": 1400}}
    assert draw.figure_of(chart).axes and interactive.plots_of(chart)[1]["data"]


def test_counted_bytes_stand_beside_the_models_or_the_reason_does(write):
    chart = figures_cards.chart_of(figures_cards.load(write(RESULT)))
    assert "Bytes over NVLink ÷ the model's: ring 1.02" in chart.finding and "not counted: no <links>." in chart.finding
    text = tables.cards_table(figures_cards.load(write(RESULT)))
    assert "<td class=number>134</td><td class=number>136.7</td><td class=number>1400</td><td class=number>690 + 710</td>" in text
    assert "not run: &lt;4&gt; heads" in text
    assert {row.count("<td") for row in text.split("<tr>")[2:]} == {10}


def test_a_row_that_was_not_run_says_so(write):
    assert "<td>128k</td><td></td><td class=number>not run: no time</td>" in tables.cards_table(figures_cards.load(write(RESULT)))


@pytest.mark.parametrize("row", [{"reason": "no name"}, {"name": "no reason"}])
def test_a_row_without_a_name_or_reason_is_refused(write, row):
    with pytest.raises(BadResult, match="a row is not what it should be"):
        figures_cards.load(write(RESULT | {"rows": [row]}))


@pytest.mark.parametrize("ranks", ["<b>", 0, -1, None])
def test_a_number_of_cards_that_is_none_is_refused(write, ranks):
    with pytest.raises(BadResult):
        figures_cards.load(write(RESULT | {"ranks": ranks, "rows": []}))


def test_a_study_shows_it(write, tmp_path):
    (tmp_path / "three_way.json").write_text(json.dumps(synthetic.result()))
    write(RESULT)
    steps = [{"name": name, "question": "q", "status": "done", "reason": "", "seconds": 1.0, "commands": [], "outputs": [f"{name}.json"]}
             for name in ("three_way", "context_parallel")]
    (tmp_path / "study.json").write_text(json.dumps({"schema": "dfa-study/1", "created": "now", "machine": "m", "steps": steps}))
    assert main(["--study", str(tmp_path / "study.json"), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert 'id="several-cards"' in page and 'id="context_parallel"' in page
    assert (tmp_path / "context_parallel.png").stat().st_size > 5000


def test_without_joules_or_times_it_says_what_is_missing(write):
    result = copy.deepcopy(RESULT)
    result["rows"][0]["columns"] = {"one": {"seconds": [1.0], "joules": None, "joules_reason": "no counter"}, "ring": {"seconds": [0.5]}}
    assert len(figures_cards.chart_of(figures_cards.load(write(result))).panels) == 1
    result["rows"] = result["rows"][1:]
    chart = figures_cards.chart_of(figures_cards.load(write(result)))
    assert not chart.measured and "not measured" in chart.panels[0].words


def changed(**fields):
    row = copy.deepcopy(ROW)
    row["columns"]["ring"] |= fields
    return RESULT | {"rows": [row]}


@pytest.mark.parametrize("result", [[], {}, {**RESULT, "schema": "x"}, {**RESULT, "rows": [{**ROW, "passes": "bwd"}]}, {**RESULT, "ranks": 0},
                                    changed(seconds=[]), changed(seconds=[0]), changed(watts="many"), {**RESULT, "rows": 3}])
def test_another_file_is_refused_in_one_line(write, result):
    with pytest.raises(BadResult) as refused:
        figures_cards.load(write(result))
    assert "context_parallel.json: " in str(refused.value) and "\n" not in str(refused.value)
