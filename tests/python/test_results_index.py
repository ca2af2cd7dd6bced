"""results/index.csv says what lies in results/, and a planted fault of every kind is told."""
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import results_index  # noqa: E402

HEAD = "file,card,date,commit,command,cited_by\n"
TABLE = "tables/a_h200.json,H200,2026-11-27,0123abc,dfa bench,README.md\n"
SAMPLES = "tables/a.samples-1.f32,H200,2026-11-27,0123abc,dfa bench,results/tables/a_h200.json\n"
STUDY = "studies/b_h200.txt,H200,2026-11-27,0123abc,by hand,\n"


@pytest.fixture
def tree(tmp_path):
    """A tree with one table, its samples and one study, and its true index."""
    for folder in ("results/tables", "results/studies"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "README.md").write_text("See [a](results/tables/a_h200.json).\n")
    (tmp_path / "results/tables/a_h200.json").write_text(
        '{"argv": ["dfa", "bench"], "card": "NVIDIA H200", "created": "2026-11-27T01:02:03Z", "samples_file": "a.samples-1.f32"}')
    (tmp_path / "results/tables/a.samples-1.f32").write_bytes(b"1234")
    (tmp_path / "results/studies/b_h200.txt").write_text("b\n")
    (tmp_path / "results/index.csv").write_text(HEAD + STUDY + SAMPLES + TABLE)
    return tmp_path


def test_the_index_of_this_repository_is_true():
    assert results_index.faults(ROOT) == []


def test_a_true_index_has_no_faults_and_is_written_the_same(tree):
    assert results_index.faults(tree) == []
    before = (tree / "results/index.csv").read_text()
    results_index.write(tree)
    assert (tree / "results/index.csv").read_text() == before


@pytest.mark.parametrize("index, told", [
    (STUDY + SAMPLES, "tables/a_h200.json: is not listed"),
    (STUDY + SAMPLES + TABLE + TABLE, "tables/a_h200.json: is listed 2 times"),
    (STUDY + SAMPLES + TABLE + TABLE.replace("a_h200", "c_h200"), "tables/c_h200.json: is listed and not there"),
    (STUDY + SAMPLES + TABLE.replace("README.md", ""), "tables/a_h200.json: a table that nothing cites"),
    (STUDY.replace(",\n", ",README.md\n") + SAMPLES + TABLE, "studies/b_h200.txt: README.md does not cite it"),
    (STUDY + SAMPLES + TABLE.replace("2026-11-27", "yesterday"), "tables/a_h200.json: date 'yesterday'; accepted: YYYY-MM-DD"),
    (STUDY + SAMPLES + TABLE.replace("dfa bench", ""), "tables/a_h200.json: no command"),
    (STUDY + SAMPLES + TABLE.replace("0123abc", "now"), "tables/a_h200.json: commit 'now'; accepted: 7 hexadecimal digits or more"),
])
def test_what_is_wrong_is_told(tree, index, told):
    (tree / "results/index.csv").write_text(HEAD + index)
    assert told in results_index.faults(tree)


def test_a_path_that_is_not_there_is_told_but_not_one_of_the_history(tree):
    with open(tree / "README.md", "a") as readme:
        readme.write("`results/h200/old.txt`, `0123abc:results/h200/older.txt`\n")
    assert results_index.faults(tree) == ["README.md: results/h200/old.txt is not there"]


@pytest.mark.parametrize("index, told", [
    (TABLE.replace("H200", "H100"), "tables/a_h200.json: does not say its card"),
    (TABLE.replace("2026-11-27", "2026-11-26"), "tables/a_h200.json: does not say its date"),
])
def test_a_table_says_itself_where_it_comes_from(tree, index, told):
    (tree / "results/index.csv").write_text(HEAD + STUDY + SAMPLES + index)
    assert results_index.faults(tree) == [told]


def test_a_table_of_json_names_its_command(tree):
    table = tree / "results/tables/a_h200.json"
    table.write_text(table.read_text().replace("argv", "words"))
    assert results_index.faults(tree) == ["tables/a_h200.json: does not say its command"]


def test_a_longer_name_is_no_citation(tree):
    (tree / "README.md").write_text("results/tables/a_h200.json.txt\n")
    assert "tables/a_h200.json: README.md does not cite it" in results_index.faults(tree)


def test_other_columns_are_refused(tree):
    (tree / "results/index.csv").write_text("file,card\n")
    with pytest.raises(ValueError, match="accepted"):
        results_index.faults(tree)
