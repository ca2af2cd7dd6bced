"""The figure of HBM bytes: counted and analysed, and files that are not what they should be."""

import json
import pathlib

import pytest
import synthetic

from dfa.report import figures_hbm
from dfa.report.__main__ import main
from dfa.report.load import BadResult

COUNTED = pathlib.Path(__file__).parents[2] / "results/tables/hbm_bytes_h200.json"


def file_of(tmp_path, case=None, **changes):
    cases = [{"problem": f"fwd bf16 b1 h1 s{s} d64", "algorithm": "flash", "status": "ok",
              "analytic_bytes": 1e9 * s, "measured_bytes": 2e9 * s} for s in (8, 16)]
    cases.append({"problem": "fwd bf16 b1 h1 s16 d64", "algorithm": "standard",
                  "status": "out_of_memory", "analytic_bytes": 5e9})
    cases[0] |= case or {}
    path = tmp_path / "hbm.json"
    path.write_text(json.dumps({"schema": "dfa-hbm/1", "created": "now", "ncu": "1",
                                "cases": cases} | changes))
    return path


def test_counted_and_analysed_stand_side_by_side(tmp_path):
    chart = figures_hbm.hbm(file_of(tmp_path))
    lines = {(s.algorithm, s.variant): (s.x, s.y) for s in chart.panels[0].series}
    assert lines["flash", "counted"] == ((8, 16), pytest.approx((16, 32)))
    assert lines["flash", "analysis"] == ((8, 16), pytest.approx((8, 16)))
    assert ("standard", "counted") not in lines
    assert [(m.algorithm, m.reason) for m in chart.panels[0].marks] == [("standard", "out of memory")]
    assert chart.finding == "Counted ÷ analysis: dfa 2."


@pytest.mark.parametrize("changes", [{"schema": "dfa-result/1"}, {"cases": [{"problem": "x"}]},
                                     {"case": {"status": "fine"}}, {"case": {"problem": "bwd"}},
                                     {"case": {"measured_bytes": None}}])
def test_a_file_that_is_something_else_is_refused_in_one_line(tmp_path, changes):
    with pytest.raises(BadResult) as refused:
        figures_hbm.hbm(file_of(tmp_path, **changes))
    assert "hbm.json: " in str(refused.value) and "\n" not in str(refused.value)


def test_the_report_takes_the_file_and_draws_it(tmp_path):
    result = tmp_path / "r.json"
    result.write_text(json.dumps(synthetic.result()))
    out = tmp_path / "out"
    assert main([str(result), "--hbm", str(COUNTED), "--out", str(out)]) == 0
    assert (out / "hbm.png").stat().st_size > 5000
    assert "Bytes to and from memory" in (out / "report.html").read_text()
    assert main([str(result), "--hbm", str(result), "--out", str(out)]) == 2
