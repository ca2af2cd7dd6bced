"""Paths for the tests of the report, and studies made of synthetic results."""

import json
import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent),
                str(pathlib.Path(__file__).resolve().parents[2] / "python")]


@pytest.fixture
def write_result(tmp_path):
    """write_result(result, name) → path of a JSON file."""
    def write(result, name="synthetic.json"):
        path = tmp_path / name
        path.write_text(json.dumps(result))
        return path
    return write


@pytest.fixture
def study_of(write_result):
    """study_of(result) → what dfa.report.load makes of it."""
    from dfa.report.load import load

    def make(result):
        return load([write_result(result)])
    return make
