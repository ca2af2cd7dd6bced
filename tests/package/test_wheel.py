"""What an installed package is beside its functions: names, the command, the self-test, and how long it takes to be imported."""

import importlib.metadata
import pathlib
import subprocess
import sys

import dfa
import dfa.selftest

DISTRIBUTION = "dfa-attention"
COMMAND = pathlib.Path(sys.prefix) / "bin" / "dfa"


def ran(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def test_the_distribution_has_a_name_of_its_own_and_the_package_is_dfa():
    told = importlib.metadata.metadata(DISTRIBUTION)
    assert told["Name"] == DISTRIBUTION and told["Version"] == dfa.__version__
    assert "dfa" in importlib.metadata.packages_distributions()
    assert importlib.metadata.packages_distributions()["dfa"] == [DISTRIBUTION]


def test_the_command_is_the_program():
    for command in ([COMMAND], [sys.executable, "-m", "dfa"]):
        done = ran(*command, "--version")
        assert (done.returncode, done.stdout) == (0, f"dfa {dfa.__version__}\n"), done.stderr
    refused = ran(COMMAND, "nonsense")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1


def test_without_the_program_one_line_says_so(tmp_path):
    package = tmp_path / "dfa"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text((pathlib.Path(dfa.__file__).with_name("__main__.py")).read_text())
    done = subprocess.run([sys.executable, "-m", "dfa", "info"], capture_output=True, text=True, check=False, cwd=tmp_path,
                          env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and "without the program" in done.stderr


def test_the_program_is_told_of_the_environment_that_it_was_started_from():
    # NVRTC of the same environment is found without `activate`.
    done = subprocess.run([COMMAND, "info"], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"})
    line, = [line for line in done.stdout.splitlines() if line.split()[:1] == ["VIRTUAL_ENV"]]
    assert sys.prefix in line


def test_the_self_test_checks_the_module_and_the_doors():
    lines = []
    assert dfa.selftest.run(lines.append) == 0
    assert any(line.startswith("cpu_portable  ok ") for line in lines)
    assert any(line.startswith("NumPy         ok ") for line in lines)
    assert lines[-1].startswith("selftest: ") and " 0 wrong" in lines[-1]


def test_the_self_test_refuses_in_one_line(monkeypatch):
    assert ran(sys.executable, "-m", "dfa.selftest", "--gpu").stderr == "usage: python -m dfa.selftest\n"
    monkeypatch.setenv("DFA_THREADS", "many")
    refused = ran(sys.executable, "-m", "dfa.selftest")
    assert refused.returncode == 1 and refused.stderr.startswith("dfa.selftest: DFA_THREADS 'many'") and refused.stderr.count("\n") == 1



def test_the_self_test_fails_on_a_wrong_result(monkeypatch):
    right = dfa.attention
    monkeypatch.setattr(dfa, "attention", lambda *a, **b: right(*a, **b) * 1.0001)
    lines = []
    assert dfa.selftest.run(lines.append) >= 1
    assert any("WRONG" in line for line in lines)


def test_importing_it_takes_no_time():
    code = "import time; t = time.process_time(); import dfa; print(time.process_time() - t)"
    seconds = min(float(ran(sys.executable, "-c", code).stdout) for _ in range(5))
    assert seconds <= 0.15  # nothing but importlib: 0.001 s


def test_what_is_linked_into_the_module_stays_inside():
    from dfa import _core

    rows = ran("readelf", "--wide", "--dyn-syms", _core.__file__).stdout.splitlines()
    shown = {row[7] for row in map(str.split, rows) if len(row) == 8 and row[4] == "GLOBAL" and row[6] != "UND"}
    assert shown == {"PyInit__core"}
