"""`dfa monitor` on the made-up NVML: what it prints, and what Prometheus would scrape."""

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
import urllib.request

import pytest

from built import HUNG_S, ROOT, program

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


def test_several_cards_have_a_sum_that_is_held_against_a_budget(monitor):
    process = monitor("--seconds", "2.5", "--interval", "0.5", "--budget", "900W", stdout=subprocess.PIPE,
                      scenario=TWO.format(first="power constant 400\n", second="power step 450 600 1\n"))
    out, _ = process.communicate(timeout=HUNG_S)
    assert process.returncode == 0
    sums = [line for line in out.splitlines() if " together " in line]
    assert len(sums) * 3 == len(out.splitlines())  # one below two cards
    assert "2 cards together 850 W in 1 s 0.0 J budget 900 W: 50 W below, above for 0.0 s of 0.0 s" in sums[0]
    above, watched, most = map(float, re.search(r"100 W ABOVE, above for (\S+) s of (\S+) s, (\d+) W at most$", sums[-1]).groups())
    assert 0 < above < watched < 2.6 and most == 1000


def test_a_card_alone_has_no_sum_unless_there_is_a_budget(monitor):
    for budget, wanted in (((), False), (("--budget", "500W"), True)):
        out, _ = monitor("--seconds", "0.1", *budget, stdout=subprocess.PIPE).communicate(timeout=HUNG_S)
        assert ("1 card together" in out) == wanted


def test_a_lost_card_makes_no_smaller_sum_in_silence(monitor):
    scenario = TWO.format(first="power constant 400\n", second="power constant 450\nlost 0.4\n")
    process = monitor("--seconds", "1.5", "--interval", "0.5", "--budget", "600W", "--listen", "0", scenario=scenario,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    url = process.stderr.readline().strip()
    time.sleep(0.8)
    text = scrape(url)
    out, _ = process.communicate(timeout=HUNG_S)
    first, *_, last = (line for line in out.splitlines() if " together " in line)
    assert "2 cards together 850 W in 1 s" in first and "250 W ABOVE" in first
    assert "1 of 2 cards together 400 W in 1 s" in last and "budget 600 W: not known" in last
    assert float(re.search(r"; not known for (\S+) s$", last)[1]) > 0
    assert re.search(r'^dfa_sum_power_watts\{.*cards="1",of="2"\} 400$', text, re.MULTILINE), text
    assert "dfa_budget_watts" in text


@pytest.mark.parametrize("budget", [(), ("--budget", "800W")])
def test_json_is_as_its_schema_says(monitor, budget):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/schema/dfa-monitor-1.schema.json").read_text())
    process = monitor("--seconds", "0.5", "--interval", "0.2", "--json", *budget, stdout=subprocess.PIPE,
                      scenario=TWO.format(first="lost 0\n", second="power constant 450\nnvlink 18 18 4e9 2e9\nlost 0.3\n"))
    head, *looks = map(json.loads, process.communicate(timeout=HUNG_S)[0].splitlines())
    assert set(head) == {"schema", "created", "hostname"} and head["schema"] == f"{schema['$id'].replace('-1', '')}/1"
    assert len(looks) == 3 and looks[-1]["sum"]["power_cards"] == 0
    for look in looks:
        jsonschema.Draft7Validator(schema).validate(look)
        assert all(set(card) == set(schema["definitions"]["card"]["properties"]) for card in look["cards"])  # nothing is left undescribed
    assert (looks[0]["budget"] is None) == (budget == ())


def test_json_and_csv_carry_cards_sum_and_budget(monitor):
    arguments = ("--seconds", "0.3", "--interval", "0.2", "--budget", "800W")
    scenario = TWO.format(first="power constant 400\nnvlink 18 18 4e9 2e9\n", second="power constant 450\n")
    out, _ = monitor(*arguments, "--json", scenario=scenario, stdout=subprocess.PIPE).communicate(timeout=HUNG_S)
    head, *looks = map(json.loads, out.splitlines())
    assert head["schema"] == "dfa-monitor/1" and len(looks) == 2
    assert [card["power_average_w"] for card in looks[1]["cards"]] == [400, 450]
    assert looks[1]["cards"][0]["nvlink_sent_bytes"] > 0 and looks[1]["cards"][1]["nvlink_sent_bytes"] is None
    assert looks[1]["sum"]["power_average_w"] == 850 and looks[1]["sum"]["power_cards"] == looks[1]["sum"]["cards"] == 2
    assert looks[1]["budget"]["over_w"] == 50 and looks[1]["budget"]["above_s"] > 0
    out, _ = monitor(*arguments, "--csv", scenario=scenario, stdout=subprocess.PIPE).communicate(timeout=HUNG_S)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["card"] for row in rows] == ["GPU 0 (0000:3b:00.0)", "GPU 1 (0000:5e:00.0)", "sum"] * 2
    assert rows[5]["power_average_w"] == "850" and rows[5]["standing"] == "above" and float(rows[5]["above_s"]) > 0
    assert rows[4]["nvlink_sent_bytes"] == "" and rows[4]["standing"] == ""


def test_a_budget_is_looked_after_between_what_is_shown(monitor):
    process = monitor("--seconds", "4", "--interval", "2.5", "--budget", "500W", stdout=subprocess.PIPE,
                      scenario=CARD + "power step 600 300 1\n")
    last = process.communicate(timeout=HUNG_S)[0].splitlines()[-1]
    above = float(re.search(r"above for (\S+) s of ", last)[1])
    assert 0.4 < above < 2.3, last  # one look in 2.5 s would have found it within


@pytest.mark.parametrize("rows, cards, table", [(60, 2, False), (24, 8, True)])
def test_a_terminal_redraws_all_rows_that_it_needed(monitor, rows, cards, table):
    scenario = "clock real\n" + "".join(f"card H200 GPU-{i:02} 00000000:{i + 16:02X}:00.0\npower constant 400\n" for i in range(cards))
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    process = monitor("--seconds", "1", "--interval", "0.3", "--budget", "9000W", scenario=f"{scenario}lost 0.4\n", stdout=its)
    os.close(its)
    text = b""
    while chunk := _read(mine):
        text += chunk
    os.close(mine)
    assert process.wait(timeout=HUNG_S) == 3
    frames, ups = re.split(r"\x1b\[\d+A\x1b\[J", text.decode()), re.findall(r"\x1b\[(\d+)A", text.decode())
    assert len(frames) >= 3
    for frame, up in zip(frames, ups):
        lines = frame.replace("\r", "").splitlines()
        assert int(up) == sum(max(1, -(-len(line) // 80)) for line in lines) < rows
        assert all(len(line) <= 80 for line in lines if "lost" not in line)
        assert ("W in 1 s  limit" in frame) == table
    assert f"{cards - 1} of {cards} cards together" in frames[-1] and "not known" in frames[-1]


def _read(descriptor):
    try:
        return os.read(descriptor, 4096) if select.select([descriptor], [], [], HUNG_S)[0] else b""
    except OSError:  # the other end is closed
        return b""


def test_budgets_that_are_none(fails, fake_nvml):
    for budget in ("1100", "0W", "-5W", "infW", "W", "1100w", "nanW"):
        fails(2, ["--budget", "1100W"], "monitor", f"--budget={budget}", env=fake_nvml(CARD))
    fails(2, ["--json", "--csv"], "monitor", "--json", "--csv", env=fake_nvml(CARD))
