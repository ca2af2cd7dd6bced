"""Help, version, usage errors and exit codes."""
import json
import re

import pytest

COMMANDS = ["info", "run", "bench", "analyze", "compare", "tune", "power", "simulate", "cache", "monitor", "study", "selftest", "privileges"]


def test_version(dfa):
    done = dfa("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dfa 0.")


def test_help_lists_every_command(dfa):
    text = dfa("--help").stdout
    for command in COMMANDS:
        assert f"\n  {command} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(dfa, command):
    done = dfa(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"xample: dfa {command}" in done.stdout


@pytest.mark.parametrize("arguments, words", [
    ([], ["no command", "info, run, bench, analyze, compare"]),
    (["fly"], ["fly", "info, run, bench, analyze, compare"]),
    (["--fast"], ["--fast", "accepted"]),
    (["run"], "--problem is required"),
    (["run", "--problem"], "--problem"),
    (["run", "--problem", "fwd bf16 h1 s8 d8", "--zap"], ["--zap", "--check"]),
    (["run", "--problem", "fwd bf16 h1 s8 d8", "--seed", "one"], ["--seed", "one", "integer"]),
    (["run", "--problem", "fwd bf16 h1 s8 d8", "--seed", "-1"], ["--seed", "-1"]),
    (["run", "--problem", "fwd bf16 h1 s8 d8", "extra"], "extra"),
    (["info", "--zap"], ["--zap", "--json"]),
    (["bench", "--problem", "fwd fp32 h1 s8 d8", "--out", "r.json", "--zap"], ["--zap", "--suite"]),
    (["bench", "--suite", "three_way"], "--out is required"),
    (["compare", "a.json"], "B is required"),
    (["compare", "a.json", "b.json"], ["cannot read", "a.json"]),
    (["analyze"], "--problem"),
    (["simulate"], "--scenario"),
    (["power", "--problem", "fwd bf16 h1 s8 d8"], "--policy is required"),
    (["power", "--problem", "fwd bf16 h1 s8 d8", "--policy", "fast"], ["fast", "power_cap:500W"]),
    (["tune", "--points", "0"], "--points"),
    (["cache"], ["ACTION is required", "list, warm or clear"]),
    (["cache", "burn"], ["burn", "list, warm or clear"]),
])
def test_bad_usage_is_one_line_and_exit_code_two(fails, arguments, words):
    fails(2, words, *arguments)


def test_bench_measures_only_the_problems_asked_for(dfa, tmp_path):
    lines = ["fwd fp32 b1 h1 s16 d8", "fwd fp16 b1 h1 s16 d8", "fwd fp16 b1 h1 s160 d8"]
    asked = [word for line in lines for word in ("--problem", line)]
    out = tmp_path / "r.json"
    done = dfa("bench", *asked, "--algorithms", "flash", "--backend", "cpu", "--seconds", "0.1",
               "--no-energy", "--only", "sq16 fp16", "--only", "sk160", "--out", str(out))
    assert done.returncode == 0, done.stderr
    cases = json.loads(out.read_text())["cases"]
    assert [case["problem"].split()[1::4] for case in cases] == [["fp16", "sq16"], ["fp16", "sq160"]]
    done = dfa("bench", *asked, "--only", "sq1", "--out", str(out))
    assert done.returncode == 2 and "--only 'sq1'" in done.stderr


def test_bench_gives_a_configuration_to_the_problems_of_its_pass(dfa, tmp_path):
    done = dfa("bench", *(word for way in ("fwd", "bwd", "fwdbwd") for word in ("--problem", f"{way} fp32 h1 s64 d32")), "--algorithms",
               "flash", "--config", "BackwardConfig{.block_q=32}", "--backend", "cpu", "--seconds", "0.05", "--no-energy", "--out",
               tmp_path / "r.json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert ["block_q=32" in (case["backward_config"] or "") for case in cases] == [False, True, True], cases
    assert all("block_q=32" not in (case["config"] or "") for case in cases)


def test_bench_that_measured_nothing_says_so_by_its_exit_code(dfa, tmp_path):
    asked = ["bench", "--problem", "fwd fp32 h1 s8 d8", "--problem", "fwd fp32 h1 s16 d8", "--algorithms", "flash", "--backend", "cpu",
             "--seconds", "0.05", "--no-energy", "--out", tmp_path / "r.json"]
    done = dfa(*asked, "--launch", "graph")
    assert done.returncode == 3 and "wrote " in done.stdout, (done.returncode, done.stderr)
    assert re.match("dfa: .*nothing was measured, all 2 cases .*r.json", done.stderr.splitlines()[-1]), done.stderr
    cases = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert [case["status"] for case in cases] == ["unsupported"] * 2 and all(case["reason"] for case in cases)
    assert dfa(*asked, "--launch", "graph,eager").returncode == 0  # half of it is something


def test_info_tells_what_works_and_why_not(dfa):
    done = dfa("info")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ["machine", "toolchain", "cpu_portable", "energy", "DFA_ISA"]:
        assert word in done.stdout
    facts = json.loads(dfa("info", "--json").stdout)
    assert facts["schema"] == "dfa-info/1"
    assert facts["instruction sets"]["cpu_portable"]["works"] is True
    for section in ["devices", "instruction sets", "sensors", "gpu sensors"]:
        for name, item in facts[section].items():
            assert item["text"], f"{name} gives no reason"


def test_info_shows_gpu_sensors_or_why_there_are_none(dfa, fake_nvml):
    absent = json.loads(dfa("info", "--json", env={"DFA_NVML": "no-nvml.so"}).stdout)["gpu sensors"]
    assert list(absent) == ["library"] and absent["library"]["works"] is False
    assert "no-nvml.so" in absent["library"]["text"]

    card = fake_nvml("card H200 GPU-bb 00000000:5E:00.0\npower constant 321.5\nevents 4\n"
                     "process 17\nfield_error 82 3\n")
    sensors = json.loads(dfa("info", "--json", env=card).stdout)["gpu sensors"]
    assert "H200" in sensors["0000:5e:00.0"]["text"]
    assert "1 other process" in sensors["0000:5e:00.0"]["text"]
    assert sensors["0000:5e:00.0 nvml:power"] == {"works": True, "text": "321.5 W"}
    assert sensors["0000:5e:00.0 nvml:clock_events"]["text"] == "power_cap"
    assert sensors["0000:5e:00.0 nvml:memory_temperature"]["works"] is False
    assert "not supported" in sensors["0000:5e:00.0 nvml:memory_temperature"]["text"]
    assert "321.5 W" in dfa("info", env=card).stdout

    split = fake_nvml("card H200 GPU-bb 00000000:5E:00.0\nmig 1\n")
    sensors = json.loads(dfa("info", "--json", env=split).stdout)["gpu sensors"]
    assert "MIG" in sensors["0000:5e:00.0 nvml:energy"]["text"]


def test_a_lower_instruction_set_can_be_forced(dfa):
    done = dfa("info", "--json", env={"DFA_ISA": "portable"})
    levels = json.loads(done.stdout)["instruction sets"]
    assert "used" in levels["cpu_portable"]["text"]
    assert levels["cpu_avx512"]["works"] is False


def test_a_bad_environment_value_is_named(fails):
    fails(2, ["DFA_ISA=mmx", "portable, avx2, avx512, amx"],
          "run", "--problem", "fwd fp32 h1 s8 d8", env={"DFA_ISA": "mmx"})
    for value in ("two", "-1", "1025", "1.5"):
        fails(2, [f"DFA_THREADS '{value}'", "1 to 1024"], "run", "--problem", "fwd fp32 h1 s8 d8", env={"DFA_THREADS": value})


def test_a_full_standard_output_is_an_error(dfa):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = dfa("info", stdout=full)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "standard output" in done.stderr
