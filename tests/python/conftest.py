"""Paths for the tests of the report, and studies made of synthetic results."""

import json
import pathlib
import shutil
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


@pytest.fixture(scope="module")
def driver():
    """A headless Chromium that keeps what pages say and ask for; skips where there is none."""
    browser, server = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not server:
        pytest.skip("chromium or chromium-driver is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 "--disable-background-networking"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(server))
    yield driver
    driver.quit()
