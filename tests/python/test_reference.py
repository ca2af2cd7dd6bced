"""The reference that `./run docs` makes: nothing public is missing, and doxygen warns of nothing."""
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("reference")  # the pages are made once


@pytest.fixture(scope="module")
def python_page():
    done = subprocess.run([sys.executable, ROOT / "docs/reference/python_page.py", ROOT / "python/dfa"],
                          capture_output=True, text=True, check=True)
    return done.stdout


def test_every_public_python_name_is_there_with_its_text(python_page):
    stub = (ROOT / "python/dfa/__init__.pyi").read_text()
    names = [name for module, name in re.findall(r"from (\S+) import \w+ as (\w+)", stub)
             if module != "dfa._core"]
    assert len(names) >= 5
    for name in names:
        assert re.search(rf"^## dfa\.{name}\n\n```\ndfa\.{name}\(.*?```\n\n```\n\S", python_page,
                         re.MULTILINE | re.DOTALL), name
    assert "q: [b, hq, sq, d]" in python_page and "## dfa.torch.enable" in python_page
    for name in ("torch.varlen_attn", "flash_attn.flash_attn_varlen_func", "hub.write", "jax.dot_product_attention"):
        assert f"## dfa.{name}\n" in python_page, name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A copy of what the site is made from, with the site."""
    if not shutil.which("doxygen"):
        pytest.skip("no doxygen here (packaging/debian-test.txt)")
    here = tmp_path_factory.mktemp("site") / "source"
    for part in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "include", "python", "results/README.md",
                 "results/tables/work_per_joule_h200.png"):
        (here / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, here / part)
    done = subprocess.run([here / "docs/reference/make", sys.executable], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return here


def test_the_pages_are_made_without_a_warning(site):
    html = site / "out/docs/html"
    problem = (html / "structdfa_1_1Problem.html").read_text()
    assert "One attention problem, a plain value" in problem  # comments of the headers became its text
    assert "InvalidArgument" in (html / "annotated.html").read_text()
    assert "held against fp64" in (html / "index.html").read_text()

    bad = site / "docs/guide/bad.md"
    bad.write_text("# Bad\n\n[nowhere](missing.md)\n")
    made = site / "out/docs"
    made.rename(site / "kept")
    assert subprocess.run([site / "docs/reference/make", sys.executable],
                          capture_output=True).returncode != 0
    shutil.rmtree(made)
    (site / "kept").rename(made)
    bad.unlink()


def test_code_in_the_text_is_not_taken_for_quotes(site):
    assert [page.name for page in (site / "out/docs/html").glob("*.html") if "&lsquo;" in page.read_text()] == []


@pytest.mark.parametrize("width", [pytest.param(1400, marks=pytest.mark.all), 390])
def test_pages_are_silent_and_fit_the_window(site, driver, width):
    html = site / "out/docs/html"
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500})
    for page in sorted(html.glob("*.html")):
        if not re.match("index|md_|structdfa|namespacedfa|annotated|attention_8h", page.name):
            continue
        driver.get(page.as_uri())
        assert driver.get_log("browser") == [], page.name
        whole, text = driver.execute_script("""return [document.documentElement.scrollWidth,
            document.querySelector('#doc-content').getBoundingClientRect().width]""")
        assert whole <= width, page.name
        assert text >= 0.7 * width, page.name  # the tree of pages leaves it room, or gives way


def test_the_first_page_has_five_lines_the_support_matrix_and_ways_on(site, driver):
    driver.get((site / "out/docs/html/index.html").as_uri())
    code, tables, links = driver.execute_script("""return [document.querySelectorAll('.fragment')[0].innerText,
        [...document.querySelectorAll('table.markdownTable')].map(t => t.innerText),
        [...document.querySelectorAll('.contents a[href]')].map(a => a.href)]""")
    lines = re.search(r"```python\n(.*?)```", (ROOT / "docs/start.md").read_text(), re.DOTALL)[1].splitlines()
    assert len(lines) == 5 and [line.rstrip() for line in code.splitlines()] == lines
    assert len(tables) == 2 and "sinks" in tables[1] and "Hopper" in tables[1]
    pages = {pathlib.Path(link.removeprefix("file://").split("#")[0]) for link in links if link.startswith("file://")}
    assert len(pages) >= 12 and all(page.exists() for page in pages)
