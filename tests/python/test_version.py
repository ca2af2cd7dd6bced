"""The Python package and the C++ library carry the same version."""

import pathlib
import re

import dfa

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_versions_agree():
    header = (ROOT / "include" / "dfa" / "version.h").read_text()
    assert re.search(r'kVersion = "([^"]+)"', header)[1] == dfa.__version__
