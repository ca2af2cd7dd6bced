"""The story of the committed results, and of small ones made up here."""

import json
import pathlib
import re

import pytest
import synthetic

from dfa.report import kernels, story, story_html, story_parts
from dfa.report.__main__ import main
from dfa.report.chart import Chart

ROOT = pathlib.Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture
def book(tmp_path):
    """book(parts, tiles) → path of a story with one chapter, beside one synthetic result."""
    def write(parts, tiles=(), **changes):
        (tmp_path / "r.json").write_text(json.dumps(synthetic.result()))
        path = tmp_path / "story.json"
        path.write_text(json.dumps({"schema": "dfa-story/1", "title": "a <title>", "lead": "b",
                                    "tiles": list(tiles), "chapters": [
                                        {"name": "one", "title": "One", "text": ["<p>"],
                                         "parts": parts}]} | changes))
        return path
    return write


@pytest.fixture(scope="module")
def committed():
    return story.tell(RESULTS / "story.json")


def test_the_committed_results_tell_the_whole_story(committed):
    chapters = {chapter.name: chapter.parts for chapter in committed.chapters}
    assert list(chapters) == ["three_way", "phases", "parameters", "tables", "launching", "theory",
                              "power", "training", "processor"]
    numbers = [part.title.partition(".")[0] for part in chapters["parameters"]]
    assert [n for n in numbers if n.isdigit()] == [str(n) for n in range(1, 13)]
    assert [tile.value[-1] for tile in committed.tiles] == ["×"] * 7
    assert [t.label for t in committed.tiles if "FlashAttention-3" in t.label] == [
        "Forward, dfa ÷ FlashAttention-3", "Backward, dfa ÷ FlashAttention-3"]


def test_every_figure_names_card_kernels_date_and_command(committed):
    for chart in committed.charts:
        if chart.name.startswith("processor"):
            continue
        assert "kernels: " in chart.source and re.search(r"20\d\d-\d\d-\d\dT", chart.source), chart.name
        assert "H200" in chart.source.upper(), chart.name
        assert "bench" in chart.source or "train_gpt" in chart.source, chart.name


def test_what_is_not_measured_names_the_command_that_measures_it(committed):
    lost = [part for chapter in committed.chapters for part in chapter.parts
            if isinstance(part, story.Missing)]
    assert lost and all(part.command for part in lost)
    page = story_html.page(committed)
    for part in lost:
        assert f"<strong>{story_html.escape(part.title)}</strong>: not measured" in page


def test_figures_say_where_the_work_is_not_the_same(committed):
    charts = {chart.name: chart for chart in committed.charts}
    assert "a reference that stays" in charts["latency"].work
    assert "writes o and lse" in charts["latency"].work
    assert "same bits" in charts["throughput_backward"].work
    assert "search" in charts["three_panel"].work
    assert "as it comes" in charts["efficiency"].work  # with the backward of wide heads


def test_a_figure_whose_file_came_is_drawn(book, tmp_path):
    item = {"figure": "heads", "files": ["heads.json"], "title": "Heads", "command": "dfa bench …"}
    assert story.tell(book([item])).chapters[0].parts == (
        story.Missing("Heads", "", "dfa bench …"),)
    (tmp_path / "heads.json").write_text(json.dumps(synthetic.result()))
    made = story.tell(book([item])).chapters[0].parts[0]
    assert isinstance(made, Chart) and made.name == "heads" and made.measured


def test_a_file_without_the_figure_leaves_the_reason(book):
    item = {"figure": "launch", "files": ["r.json"], "only": ["d64"], "as": "other"}
    part = story.tell(book([item])).chapters[0].parts[0]
    assert isinstance(part, story.Missing) and "--suite launch" in part.reason


def test_problems_are_chosen_by_their_words():
    assert story.has_words("fwd bf16 b1 d64", "full d64")
    assert not story.has_words("fwd bf16 causal b1 d64", "full d64")
    assert not story.has_words("fwd bf16 b1 d64", "d6")


def test_an_algorithm_is_left_out_of_all_files_or_of_one(book, tmp_path):
    teller = story._Teller(tmp_path, None, {})
    book([])
    later = json.loads((tmp_path / "r.json").read_text()) | {"created": "2026-02-01T12:00:00Z"}
    (tmp_path / "other.json").write_text(json.dumps(later))
    files = [tmp_path / "r.json", tmp_path / "other.json"]
    def left(*without):
        cases = teller.study({"without": list(without)}, files).cases
        return [sorted(set(cases["algorithm"][cases["run"] == run])) for run in (0, 1)]
    everything = left()
    gone = everything[0][0]
    rest = [name for name in everything[0] if name != gone]
    assert rest and everything[0] == everything[1]
    assert left(gone) == [rest, rest]
    assert left(f"other.json {gone}") == [everything[0], rest]


@pytest.mark.parametrize("case, words", [
    ({"config": "ForwardConfig{.target=Target::cuda_sm90,.x=1}"}, "Hopper's kernels"),
    ({"backward_config": "BackwardConfig{.target=Target::cuda_sm80}"}, "portable kernels"),
    ({"backend": "torch", "why": "PyTorch 2.11.0, sdpa"}, "PyTorch 2.11.0"),
    ({"algorithm": "standard", "why": "was asked for: products by cublasLt 13.1.0, libcublasLt.so.13"},
     "products by cublasLt 13.1.0"), ({"config": 5, "why": 5}, "")])
def test_kernels_are_named_by_what_the_file_says(case, words):
    assert kernels.kernel_of(case).startswith(words)


def test_ratios_go_problem_by_problem(book):
    tile = {"label": "x", "files": ["r.json"], "of": "flash", "over": "standard", "column": "tflops",
            "words": "w", "only": ["full"]}
    assert story.tell(book([], [tile])).tiles[0].value == "3.00×"
    assert story.tell(book([], [tile | {"of": "nobody"}])).tiles[0].value == "not measured"


def test_a_story_says_once_what_kernels_a_file_is_of(book):
    parts = [{"figure": "speedup", "name": name, "files": [name]} for name in ("r.json", "other.json")]
    path = book(parts, kernels={"r.json": {"flash": "kernels of moss"}})
    (path.parent / "other.json").write_text((path.parent / "r.json").read_text())
    of_it, other = story.tell(path).charts
    assert "dfa: kernels of moss" in of_it.source and "moss" not in other.source


def test_phases_are_the_kernels_in_their_order():
    text = "fwd fp16 b1\n  a_kernel    1.5 us     2.0 MB   3.0 TB/s\n  b  2.5 us  2.0 MB  3.0 TB/s\n"
    html = story_parts.phase_table(text, ["S", "softmax"])
    assert html.index("1.5") < html.index("2.5") < html.index(">4<")
    with pytest.raises(ValueError):
        story_parts.phase_table(text, ["S"])


@pytest.mark.parametrize("parts, changes, says", [
    ([{"nothing": 1}], {}, "an item has none of figure"),
    ([], {"schema": "x"}, "schema 'x'"), ([], {"chapters": 5}, "no story"),
    ([{"figure": "latency", "files": ["r.json"], "only": ["d7"]}], {}, "no problem has the words d7"),
    ([{"figure": "latency", "files": ["r.json"]}] * 2, {}, "two figures are named 'latency'"),
    ([{"trace": "t", "title": "t", "files": ["r.json"]}], {}, "r.json"),
    ([{"figure": "nobody", "files": ["r.json"]}], {}, "nobody")])
def test_a_story_that_cannot_be_told_is_one_line(book, capsys, tmp_path, parts, changes, says):
    assert main(["--story", str(book(parts, **changes)), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1 and not (tmp_path / "out").exists()


def test_the_command_writes_page_figures_and_pdfs(book, tmp_path, capsys):
    path = book([{"figure": "three_panel", "files": ["r.json"]},
                 {"theory": ["fwd bf16 b1 h1 s8 d64"], "machine": "h200", "title": "Theory"},
                 {"table": "rates", "files": ["r.json"], "title": "Rates", "only": ["sq512"]}])
    assert main(["--story", str(path), "--out", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "story.html", "three_panel.png", "three_panel.pdf", "figures.pdf"}
    assert "not measured: Theory" in capsys.readouterr().out
    page = (tmp_path / "out/story.html").read_text()
    assert "a &lt;title&gt;" in page and "<h2>Rates</h2>" in page and "<p>&lt;p&gt;</p>" in page


def test_a_story_names_its_files_itself(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["r.json", "--story", "s.json", "--out", "o"])
    assert ended.value.code == 2 and "accepted beside it: --dfa, --out" in capsys.readouterr().err
