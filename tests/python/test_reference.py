"""The reference that `./run docs` makes: nothing public is missing, and doxygen warns of nothing."""
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


@pytest.mark.skipif(not shutil.which("doxygen"), reason="no doxygen here (packaging/debian-test.txt)")
def test_the_pages_are_made_without_a_warning(tmp_path):
    here = tmp_path / "source"
    for part in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "include", "python", "results/README.md",
                 "results/tables/work_per_joule_h200.png"):
        (here / part).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, here / part)
    done = subprocess.run([here / "docs/reference/make", sys.executable], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    html = here / "out/docs/html"
    problem = (html / "structdfa_1_1Problem.html").read_text()
    assert "One attention problem, a plain value" in problem  # comments of the headers became its text
    assert "InvalidArgument" in (html / "annotated.html").read_text()
    assert "held against fp64" in (html / "index.html").read_text()

    bad = here / "docs/guide/bad.md"
    bad.write_text("# Bad\n\n[nowhere](missing.md)\n")
    assert subprocess.run([here / "docs/reference/make", sys.executable],
                          capture_output=True).returncode != 0
