"""`dfa monitor` on the made-up NVML: what it prints, and what Prometheus would scrape."""

import json
import os
import pty
import re
import select
import signal
import socket
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

    def start(*arguments, scenario=CARD, **options):
        environment = {**os.environ, **fake_nvml(scenario)}
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
    for address in ("here", "70000", "127.0.0.1:65536", "[::1]:99999", ""):
        for environment in (fake_nvml(CARD), {"DFA_NVML": "none.so"}):  # whatever is there to watch
            fails(2, [f"'{address}'", "127.0.0.1:9400", "0 to 65535"], "monitor", "--listen", address, env=environment)


def test_idle_connections_delay_neither_a_scrape_nor_the_end(monitor):
    process = monitor("--listen", "0", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    url = process.stderr.readline().strip()
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    idle[0].sendall(b"GET /metrics HTTP/1.1\r\n")  # never ends
    begin = time.monotonic()
    assert "DCGM_FI_DEV_GPU_TEMP" in scrape(url)
    assert time.monotonic() - begin < 10  # they would for ever
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HUNG_S) == 0
    assert time.monotonic() - begin < 10  # they would for ever
    for connection in idle:
        connection.close()


def test_a_scrape_reads_what_is_true_then_not_what_was_shown_last(monitor, tmp_path):
    settings = tmp_path / "settings"
    settings.write_text("limit 500\n", encoding="utf-8")
    process = monitor("--listen", "0", "--interval", "3600", scenario=f"{CARD}settings {settings}\n",
                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    url = process.stderr.readline().strip()

    def limit():
        return float(re.search(r"^DCGM_FI_DEV_POWER_MGMT_LIMIT\{.*\} (.*)$", scrape(url), re.MULTILINE)[1])
    assert limit() == 500
    settings.write_text("limit 350\n", encoding="utf-8")
    time.sleep(0.1)  # what was read less than half a tick ago is told to others too
    assert limit() == 350


def test_seconds_end_it_however_long_the_interval(monitor):
    begin = time.monotonic()
    process = monitor("--seconds", "0.3", "--interval", "3600", stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0 and out.count("\n") == 1
    assert time.monotonic() - begin < 60


def test_joules_around_a_counter_that_started_anew_are_left_out_and_told(monitor):
    process = monitor("--seconds", "2", "--interval", "0.2", scenario=CARD + "power constant 300\nreset 1\n",
                      stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0
    first, *_, last = out.splitlines()
    assert "not counted" not in first
    joules = float(re.search(r"(\S+) J \(1 gap not counted: the energy counter went back from ", last)[1])
    assert 0 < joules < 2 * 300 + 31


TWO = ("clock real\ncard H200 GPU-aa 00000000:3B:00.0\n{first}"
       "card H200 GPU-bb 00000000:5E:00.0\nminor 5\n{second}")


def test_a_card_that_is_counted_and_does_not_answer_is_missing(monitor):
    process = monitor("--seconds", "2", "--interval", "0.2", "--listen", "0",
                      scenario=TWO.format(first="lost 0\n", second=""), stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE)
    text = scrape(process.stderr.readline().strip())
    assert 'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-bb",pci_bus_id="0000:5e:00.0",device="nvidia5"' in text
    assert re.search(r'^dfa_card_missing\{gpu="0",.*reason=".*the GPU is lost.*"\} 1$', text, re.MULTILINE), text
    out, errors = process.communicate(timeout=HUNG_S)
    assert process.returncode == 3
    assert "GPU 0 missing: " in out and "0000:5e:00.0 " in out
    assert errors.startswith("dfa: GPU 0 does not answer: ") and errors.count("\n") == 1


def test_a_card_that_came_back_is_missing_no_more(monitor):
    process = monitor("--seconds", "1.5", "--interval", "0.1",
                      scenario=TWO.format(first="", second="lost 0.3 0.6\n"), stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE)
    out, errors = process.communicate(timeout=HUNG_S)
    assert (process.returncode, errors) == (0, "")
    assert "GPU 1 (0000:5e:00.0) missing: no sensor answers: " in out
    assert "missing" not in out.splitlines()[-1]


def test_info_says_which_card_is_missing_and_ends_with_three(dfa, fake_nvml):
    environment = fake_nvml(TWO.format(first="lost 0\n", second=""))
    done = dfa("info", "--json", env=environment)
    assert done.returncode == 3
    assert done.stderr.startswith("dfa: GPU 0 does not answer: ") and done.stderr.count("\n") == 1
    sensors = json.loads(done.stdout)["gpu sensors"]
    assert sensors["GPU 0"]["works"] is False and "the GPU is lost" in sensors["GPU 0"]["text"]
    assert sensors["0000:5e:00.0"]["works"] is True
    assert dfa("info", env=fake_nvml(TWO.format(first="", second=""))).returncode == 0
