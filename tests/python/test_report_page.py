"""The command, the files it writes, and the page opened in a real browser without a network."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import pytest
import synthetic

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIGURES = ["speedup", "latency", "throughput", "memory", "three_panel", "causal",
           "forward_backward", "batch", "heads", "head_dim", "embedding", "heatmap",
           "varlen", "launch"]
NOT_MEASURED = ["efficiency", "power", "energy"]


def report(*arguments):
    return subprocess.run([sys.executable, "-m", "dfa.report", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "python")})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder of a report of all suites, without energy, with one wrong and one lost case."""
    folder = tmp_path_factory.mktemp("report")
    rows = synthetic.cases() + [synthetic.wrong("custom", "flash", s=640)]
    rows[0]["other_load_pct"] = 40.0
    hostile = dict(synthetic.MACHINE, host="<script>window.pwned = 1</script>")
    rows.append(synthetic.case("</script><script>window.pwned = 2</script>", "flash"))
    rows += [synthetic.case("heads", "flash", dtype="bf16", h=h) | {
        "algorithm": "</script><script>window.pwned = 3</script>"} for h in (1, 2)]
    source = folder / "synthetic.json"
    source.write_text(json.dumps(synthetic.result(rows, machine=hostile)))
    done = report(source, "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_the_command_writes_every_file(made):
    names = {path.name for path in made.iterdir()}
    assert names == {f"{name}.png" for name in FIGURES + NOT_MEASURED} | {
        "figures.pdf", "three_panel.pdf", "report.html"}
    for path in made.iterdir():
        start = path.read_bytes()[:8]
        assert start.startswith({".png": b"\x89PNG", ".pdf": b"%PDF", ".htm": b"<!doctyp"}[
            path.suffix[:4]])
        assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("arguments, says", [
    ([], "required"), (["r.json", "--dfa", "dfa", "--out", "o"], "accepted beside --story"),
    (["r.json", "s.json", "r.json", "--out", "o"], "r.json is given twice"), (["none.json", "--out", "o"], "none.json: cannot be read"),
    (["none.json"], "--out")])
def test_bad_usage_is_exit_code_2(arguments, says):
    done = report(*arguments)
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_bad_file_is_one_line_and_writes_nothing(write_result, tmp_path):
    done = report(write_result({"schema": "other"}), "--out", tmp_path / "out")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_out_folder_that_is_a_file_is_one_line(write_result, tmp_path):
    (tmp_path / "out").write_text("precious")
    path = write_result(synthetic.result([synthetic.case("sequence", "flash")]))
    done = report(path, "--out", tmp_path / "out")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "cannot be written" in done.stderr and (tmp_path / "out").read_text() == "precious"


def test_a_full_disk_leaves_the_older_file(tmp_path, monkeypatch):
    from dfa.report import files

    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / "a.png").write_bytes(b"old")
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError):
        files.write_atomically(tmp_path / "a.png", b"new")
    assert (tmp_path / "a.png").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


class Page:
    """The report in headless Chromium, with what its console said and what it asked for."""

    def __init__(self, driver, path):
        self.driver = driver
        self.path = path

    def open(self, dark=False, width=1280):
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        self.driver.get(self.path.as_uri())
        self.wait("document.documentElement.dataset.ready === 'yes'")
        return self

    def js(self, code):
        return self.driver.execute_script(f"return {code}")

    def wait(self, condition):
        from selenium.webdriver.support.ui import WebDriverWait
        WebDriverWait(self.driver, 30).until(lambda _: self.js(condition))

    def console(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events
                if e["method"] == "Network.requestWillBeSent"]


@pytest.fixture
def page(driver, made):
    return Page(driver, made / "report.html")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_silent_and_asks_nobody(page, dark):
    page.open(dark)
    assert page.console() == []
    outside = [url for url in page.requests() if not url.startswith(("data:", "blob:"))]
    assert outside == [page.path.as_uri()]
    assert page.js("document.documentElement.dataset.theme") == ("dark" if dark else "light")


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.all), 420])
def test_the_story_of_the_committed_results_is_silent_and_fits(driver, tmp_path, width):
    from dfa.report import story, story_html
    path = tmp_path / "story.html"
    path.write_text(story_html.page(story.tell(ROOT / "results/story.json")))
    page = Page(driver, path).open(width=width)
    assert page.console() == [] and page.js("document.documentElement.scrollWidth") <= width
    plots = page.js("Object.keys(JSON.parse(document.getElementById('plots').textContent))")
    assert sorted(page.js("[...document.querySelectorAll('.plot')].map(e => e.dataset.plot)")) == sorted(plots)


def test_every_plot_is_there(page):
    page.open()
    assert page.js("[...document.querySelectorAll('article')].map(a => a.id)") == FIGURES
    plots = page.js("JSON.parse(document.getElementById('plots').textContent)")
    drawn = page.js("""Object.fromEntries([...document.querySelectorAll('.plot')].map(
        e => [e.dataset.plot, [e.data.length, e.querySelectorAll('.main-svg').length > 0,
              e.querySelectorAll('.trace, .hm').length]]))""")
    assert set(drawn) == set(plots) and len(drawn) >= len(FIGURES)
    for name, plot in plots.items():
        traces, svg, shapes = drawn[name]
        assert traces == len(plot["data"]) and svg and shapes >= 1, name


def test_what_was_not_measured_is_said_with_the_reason(page):
    page.open()
    absent = page.js("document.getElementById('absent').textContent")
    for title in ("Energy efficiency", "Power", "Energy per run"):
        assert f"{title}: not measured: {synthetic.NO_ENERGY}" in absent
    assert synthetic.NO_ENERGY in page.js("document.getElementById('not-measured').textContent")
    assert page.js("[...document.querySelectorAll('#three_panel .words')].length") == 2


def test_the_headline_says_speed_memory_checks_energy(page):
    page.open()
    tiles = page.js("[...document.querySelectorAll('.tile')].map(t => t.innerText)")
    cases = len(synthetic.cases()) + 4
    assert len(tiles) == 5 and "3.13×" in tiles[0] and "4.00×" in tiles[1]
    assert f"{cases - 2} of {cases - 1}" in tiles[3] and "not measured" in tiles[4]
    first = page.js("document.querySelector('.troubles').innerText")
    assert "o differs by 0.5" in first and "1 of" in first


def test_tables_hold_every_case_and_origin(page):
    page.open()
    assert page.js("document.querySelectorAll('#results tbody tr').length") == \
        len(synthetic.cases()) + 4
    origin = page.js("document.getElementById('origin').textContent")
    for word in ("Synthetic CPU", "synthetic_isa", "0123456789", "uncommitted changes",
                 "dfa bench --suite synthetic", "2026-01-31T12:00:00Z", "synthetic compiler"):
        assert word in origin


def test_text_of_a_result_file_is_never_run(page):
    page.open()
    assert page.js("typeof window.pwned") == "undefined"
    assert "window.pwned = 3" in page.js("document.querySelector('#heads .legend').textContent")
    assert "<script>window.pwned = 1" in page.js("document.getElementById('origin').textContent")


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.all), 420])
def test_nothing_is_wider_than_the_window(page, width):
    page.open(width=width)
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js("""[...document.querySelectorAll('#results .scroll')].every(
        s => s.querySelector('table').scrollWidth <= s.scrollWidth)""")


def test_buttons_change_theme_hide_an_algorithm_and_sort(page):
    page.open()
    before = page.js("getComputedStyle(document.body).backgroundColor")
    page.driver.find_element("id", "theme").click()
    assert page.js("getComputedStyle(document.body).backgroundColor") != before
    page.js("document.querySelector('#latency .legend button[data-value=flash]').click()")
    shown = page.js("""document.querySelector('#latency .plot').data.map(
        t => [t.meta.algorithm, t.visible])""")
    assert dict(shown) == {"standard": True, "flash": False, "dynamic": True}
    page.js("document.querySelectorAll('#results table')[0].tHead.rows[0].cells[2].click()")
    medians = page.js("""[...document.querySelectorAll('#results table')[0].tBodies[0].rows].map(
        r => +r.cells[2].dataset.value)""")
    assert medians == sorted(medians) and len(medians) > 10
    assert page.console() == []
