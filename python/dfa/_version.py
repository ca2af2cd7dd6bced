"""The version is written once, in include/dfa/version.h: a checkout reads it there, a package has it in its metadata."""

import importlib.metadata
import pathlib
import re


def read():
    header = pathlib.Path(__file__).parents[2] / "include" / "dfa" / "version.h"
    if header.exists():
        return re.search(r'kVersion = "([^"]+)"', header.read_text())[1]
    return importlib.metadata.version("dfa-attention")
