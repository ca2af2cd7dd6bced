"""What `dfa monitor --json` wrote of many cards: read, refused, drawn, summed up."""

import json
import math

import pytest

from dfa.report import cards, trace

HEAD = {"schema": "dfa-monitor/1", "created": "now", "hostname": "box"}


def card(name, watts, joules=None, sent=None):
    return {"card": name, "power_average_w": watts, "energy_j": joules, "nvlink_sent_bytes": sent,
            "nvlink_sent_bytes_per_s": None if sent is None else 1e9}


def look(time_s, *of, budget=None, standing="within", breaks=0):
    told = [one["power_average_w"] for one in of if one["power_average_w"] is not None]
    joules = [one["energy_j"] for one in of if one["energy_j"] is not None]
    return {"time_s": time_s, "cards": list(of),
            "sum": {"power_average_w": sum(told) if told else None, "energy_j": sum(joules) if joules else None, "cards": len(of),
                    "power_cards": len(told), "energy_cards": len(joules), "energy_breaks": breaks},
            "budget": None if budget is None else {"budget_w": budget, "standing": standing, "over_w": 0, "above_s": 1.5, "unknown_s": 0.5,
                                                   "watched_s": 4.0, "most_w": 0}}


LOOKS = (look(0, card("GPU 0", 400, 0, 0), card("GPU 1", 500, 0), budget=850, standing="above"),
         look(1, card("GPU 0 (a)", 300, 300, 2e9), card("GPU 1", None), budget=850, standing="unknown", breaks=1),
         look(2, card("GPU 0 (a)", 200, 600, 4e9), card("GPU 1", 600, 1000), budget=850, breaks=1))


@pytest.fixture
def write(tmp_path):
    def make(*records):
        path = tmp_path / "t.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path
    return make


def read(path):
    return cards.load(path, path.read_text().splitlines())


def test_each_card_and_the_sum_are_tabled_and_a_silent_one_makes_no_smaller_sum(write, tmp_path, capsys):
    path = write(HEAD, *LOOKS)
    assert trace.main([str(path), "--out", str(tmp_path / "plots")]) == 0
    out = capsys.readouterr().out
    assert "above 850 W for 1.5 s of 4.0 s, not known for 0.5 s" in out
    assert "| GPU 0 (a) | 300 | 400 | 600 | 4.0 |" in out
    assert "| GPU 1 | 550 (of 2 of 3 samples) | 600 | 1000 | - |" in out
    assert "| sum of 2 | 850 (of 2 of 3 samples) | 900 | 1600 | - |" in out  # not (900 + 300 + 800) / 3
    assert "breaks of energy counters: 1;" in out
    assert (tmp_path / "plots/t.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_drawn_breaks_where_a_card_was_silent(write):
    found = read(write(HEAD, *LOOKS))
    from matplotlib.figure import Figure
    axes = Figure().subplots()
    cards._sum(axes, found)
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["sum, 1 s"][::2] == [900, 800] and math.isnan(lines["sum, 1 s"][1])
    assert lines["of some cards alone"][1] == 300 and math.isnan(lines["of some cards alone"][0])
    assert lines["budget"] == [850, 850, 850]
    assert [patch.get_label() for patch in axes.patches] == ["not known"]  # the first look tells of no time


def test_without_links_or_a_budget_there_is_neither(write, tmp_path):
    found = read(write(HEAD, look(0, card("GPU 0", None)), look(1, card("GPU 0", None))))
    assert cards.held(found) == ""
    assert "| sum of 1 | - | - | - | - |" in cards.table(found)
    cards.draw(found, tmp_path / "none.png")
    assert (tmp_path / "none.png").stat().st_size > 5000


@pytest.mark.parametrize("records, place", [
    ([HEAD], "no samples"), ([HEAD, {}], ":2: "), ([HEAD, LOOKS[0], []], ":3: "), ([HEAD, LOOKS[0], {**LOOKS[1], "budget": {}}], ":3: "),
    ([HEAD, LOOKS[0], look(1, card("GPU 0", 1))], "same cards"), ([HEAD, look(0, card("a", 1), card("a", 2))], "same cards"),
    ([HEAD, look(0, card("a", 1, None, "many"))], ":2: ")])
def test_refuses_what_is_none_in_one_line(write, records, place, tmp_path, capsys):
    path = write(*records)
    assert trace.main([str(path), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and place in error and error.count("\n") == 1
