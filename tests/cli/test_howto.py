"""The how-to pages: their shell snippets run, and every dfa command in the documents is one that exists."""

import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from built import HUNG_S, ROOT, program

PAGES = sorted((ROOT / "docs/howto").glob("*.md"))
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("guide/*.md")), *PAGES]
FAKE = ("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower sine 480 30 0.7\nlimit 700\n"
        "temperature 61 70\ncard H200 GPU-bb 00000000:5E:00.0\npower constant 450\nlimit 700\n")


def fences(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def test_every_page_has_something_to_run():
    for page in PAGES:
        assert fences(page, "sh") + fences(page, "python"), page  # the Python ones: tests/package/test_howto.py


@pytest.mark.parametrize("page", [page for page in PAGES if "\n```sh\n" in page.read_text()], ids=lambda page: page.stem)
def test_the_shell_snippets_of_a_page_run(page, tmp_path, fake_nvml):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/dfa").symlink_to(program())
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    environment = os.environ | fake_nvml(FAKE) | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "DFA_CUDA_DRIVER": "none-in-tests",
        "DFA_STATE_DIR": str(tmp_path), "DFA_PRIVILEGES": str(tmp_path / "privileges.sock"), "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *sys.path])}
    for snippet in fences(page, "sh"):
        done = subprocess.run(["bash", "-euc", snippet], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, timeout=HUNG_S)
        assert done.returncode == 0, (snippet, done.stdout, done.stderr)
    if page.stem == "many-gpus":
        assert (tmp_path / "plots/cards.png").stat().st_size > 5000 and "| sum of 2 | 9" in done.stdout, done.stdout
    if page.stem == "read-a-trace":
        assert list((tmp_path / "plots").glob("*.png"))
        source, = fences(page, "python")
        done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, text=True,
                              capture_output=True, timeout=HUNG_S)
        assert done.returncode == 0 and "means of a second above the cap" in done.stdout, done.stderr


@functools.cache
def options_of(command):
    done = subprocess.run([program(), command, "--help"], capture_output=True, text=True, timeout=HUNG_S)
    return set(re.findall(r"--[a-z][a-z-]*", done.stdout)) if done.returncode == 0 else None


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_commands_and_options_in_the_documents_exist(page):
    for line in page.read_text().splitlines():
        match = re.match(r"\s*(?:\./run )?dfa ([a-z]+)\b(.*)", line)
        if not match or line.lstrip().startswith("`"):
            continue
        command, rest = match.groups()
        known = options_of(command)
        if known is None:  # words about dfa
            assert not rest.lstrip().startswith("--"), line
            continue
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest.split("   ")[0].replace("…", " ")):
            assert option in known, f"{page.name}: dfa {command} has no {option}: {line}"
