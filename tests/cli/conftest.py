"""Runs the built program."""
import os
import subprocess

import pytest

from built import HUNG_S, program

if os.environ.get("ONE_PROCESSOR") == "yes" and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
    processors = sorted(os.sched_getaffinity(0))  # each worker has its own
    os.sched_setaffinity(0, {processors[int(worker.removeprefix("gw")) % len(processors)]})


@pytest.fixture
def dfa(tmp_path):
    def run(*arguments, **options):
        options.setdefault("cwd", tmp_path)
        options.setdefault("stdout", subprocess.PIPE)
        # The same tests everywhere: `auto` is the CPU here, whatever the machine holds.
        options["env"] = {"DFA_CUDA_DRIVER": "none-in-tests", **os.environ, **options.get("env", {})}
        return subprocess.run([program(), *map(str, arguments)], stderr=subprocess.PIPE, text=True,
                              timeout=HUNG_S, **options)
    return run


@pytest.fixture
def fake_nvml(tmp_path):
    """Environment in which the made-up NVML of the tests answers as a scenario says."""
    def environment(scenario):
        library = program().parents[1] / "tests/fake_nvml/libnvidia-ml.so.1"
        assert library.exists(), f"{library}: build the target fake_nvml"
        (tmp_path / "scenario").write_text(scenario, encoding="utf-8")
        return {"DFA_NVML": str(library), "DFA_FAKE_NVML": str(tmp_path / "scenario")}
    return environment


@pytest.fixture
def fails(dfa):
    """Runs, and demands the exit code, nothing but one line on stderr, and words in it."""
    def run(code, words, *arguments, **options):
        done = dfa(*arguments, **options)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert done.stderr.startswith("dfa: ") and done.stderr.endswith("\n"), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        for word in [words] if isinstance(words, str) else words:
            assert word in done.stderr, (word, done.stderr)
        return done
    return run
