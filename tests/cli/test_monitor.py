"""`dfa monitor` on the made-up NVML: what it prints, and what Prometheus would scrape."""

import os
import pty
import re
import select
import subprocess
import time
import urllib.request

import pytest

from built import HUNG_S, program

CARD = ("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower sine 480 30 0.7\nlimit 700\n"
        "temperature 61 70\nclocks 1.65e9 3.2e9\nutilization 99 40\nevents 4\nthrottled 0.5\n")


@pytest.fixture
def monitor(fake_nvml, tmp_path):
    """Starts `dfa monitor` on one made-up card; ends it."""
    started = []

    def start(*arguments, **options):
        environment = {**os.environ, **fake_nvml(CARD)}
        started.append(subprocess.Popen([program(), "monitor", *arguments], env=environment,
                                        cwd=tmp_path, text=True, **options))
        return started[-1]
    yield start
    for process in started:
        process.kill()
        process.wait()


def scrape(url):
    with urllib.request.urlopen(url, timeout=HUNG_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_a_scrape_by_a_socket_is_what_prometheus_reads(monitor):
    parser = pytest.importorskip("prometheus_client.parser")
    process = monitor("--listen", "0", "--interval", "0.1", stdout=subprocess.DEVNULL,
                      stderr=subprocess.PIPE)
    url = process.stderr.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)  # loopback

    def values():
        families = {f.name: f for f in parser.text_string_to_metric_families(scrape(url))}
        samples = {name: family.samples[0] for name, family in families.items()}
        return families, samples
    families, first = values()
    assert families["DCGM_FI_DEV_GPU_TEMP"].type == "gauge"
    assert families["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"].type == "counter"
    assert first["DCGM_FI_DEV_GPU_TEMP"].value == 61
    assert first["DCGM_FI_DEV_SM_CLOCK"].value == 1650
    assert 450 <= first["DCGM_FI_DEV_POWER_USAGE_INSTANT"].value <= 510
    assert first["DCGM_FI_DEV_GPU_TEMP"].labels["UUID"] == "GPU-aa"
    assert "reason" in first["dfa_sensor_missing"].labels  # its GPM is not there
    time.sleep(1)
    _, later = values()
    energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    joules = (later[energy].value - first[energy].value) / 1e3
    assert 200 < joules < 2000


def test_lines_for_a_file(monitor):
    process = monitor("--seconds", "0.5", "--interval", "0.1", stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE)
    out, errors = process.communicate(timeout=HUNG_S)
    assert (process.returncode, errors) == (0, "")
    lines = out.splitlines()
    assert 3 <= len(lines) <= 6
    assert all("0000:3b:00.0" in line and "61 C 1650 MHz 99 % held down by power_cap" in line
               for line in lines)


def test_a_terminal_view_that_redraws_itself_and_ends_by_an_interrupt(monitor):
    mine, its = pty.openpty()
    process = monitor("--interval", "0.1", stdout=its, stderr=subprocess.PIPE)
    os.close(its)
    text, end = "", time.monotonic() + 20
    while text.count("\033[J") < 2 and time.monotonic() < end:
        if select.select([mine], [], [], 1)[0]:
            text += os.read(mine, 4096).decode()
    for words in ("H200  0000:3b:00.0", "61 °C, memory 70 °C", "1650 MHz", "by power_cap",
                  "% of 700 W", "J since start", "SMs - %"):
        assert words in text, (words, text)
    process.terminate()
    assert process.wait(timeout=HUNG_S) == 0
    os.close(mine)


def test_no_gpu_and_bad_addresses(fails, fake_nvml):
    fails(3, "no GPU to watch", "monitor", env={"DFA_NVML": "none.so"})
    fails(3, "0000:99:00.0", "monitor", "--card", "0000:99:00.0", env=fake_nvml(CARD))
    fails(2, ["'here'", "127.0.0.1:9400"], "monitor", "--listen", "here", env=fake_nvml(CARD))
