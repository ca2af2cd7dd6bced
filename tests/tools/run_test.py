#!/usr/bin/env python3
"""./run with made-up tools: commands stand beside each other, and one that must wait says for whom."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HUNG_S = 60

# Each tool notes what it does and stays where it is while a file of its name lies in `hold`.
TOOL = """#!/bin/bash
did() { echo "$*" >>"$FAKES/calls.txt"; }
stay() { did "$1 begins"; while [[ -e $FAKES/hold/$1 ]]; do sleep 0.05; done; did "$1 ends"; }
case "${0##*/} $*" in
  dpkg-query*) echo installed ;;
  python*' -m venv --clear '*) rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && did "venv $4" ;;
  python*' -m pip '*) stay pip ;;
  python*' --version') echo Python 3 ;;
  python*' tools/junit_counts.py '*) echo 1 0 0 ;;
  python*' -m pytest '*) stay pytest ;;
  python*' -m dfa.report '*) stay report ;;
  'cmake --preset '*) mkdir -p "build/$2" && touch "build/$2/build.ninja" ;;
  'cmake --build '*) stay build && stay "${2##*/}" && mkdir -p "$2/cli" && cp "$0" "$2/cli/dfa" ;;
  ctest*) stay ctest && touch "$(sed 's/.*--output-junit \\([^ ]*\\).*/\\1/' <<<"$*")" ;;
  dfa*) stay dfa ;;
  clang-format-14*)
    if bad=$(grep -l BAD "${@:3}"); then sed 's/$/:1:2: error: code should be clang-formatted [-W]/' <<<"$bad" >&2; exit 1; fi ;;
esac
"""


class Checkout:
    def __init__(self, folder):
        self.folder, self.fakes = folder / "tree", folder / "fakes"
        shutil.copytree(ROOT / "packaging", self.folder / "packaging")
        (self.fakes / "hold").mkdir(parents=True)
        for name in ("clang-format-14", "cmake", "ctest", "dpkg-query", "python3"):
            (self.fakes / name).write_text(TOOL)
            (self.fakes / name).chmod(0o755)
        text = (ROOT / "run").read_text().replace("/usr/bin/python3", str(self.fakes / "python3"))
        text = text.replace("/proc/driver/nvidia", "/nowhere")
        (self.folder / "run").write_text(text)
        (self.folder / "run").chmod(0o755)
        self.environment = {"PATH": f"{self.fakes}:/usr/bin:/bin", "FAKES": str(self.fakes), "CUDA_HOME": "/nowhere",
                            "HOME": str(folder)}
        self.started = []

    def start(self, *words):
        log = self.folder / f"log{len(self.started)}"
        with open(log, "w") as to:
            self.started.append(subprocess.Popen(["./run", *words], cwd=self.folder, env=self.environment, stdout=to,
                                                 stderr=to, start_new_session=True))
        self.started[-1].log = log
        return self.started[-1]

    def run(self, *words):
        self.ends(self.start(*words))

    @staticmethod
    def ends(process):
        assert process.wait(HUNG_S) == 0, process.log.read_text()

    def hold(self, tool):
        (self.fakes / "hold" / tool).touch()

    def let_go(self, tool):
        (self.fakes / "hold" / tool).unlink()

    def calls(self):
        path = self.fakes / "calls.txt"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition, what):
        for _ in range(20 * HUNG_S):
            if condition():
                return
            time.sleep(0.05)
        raise AssertionError(f"never: {what}; {self.calls()}")

    def until_called(self, line, times=1):
        self.until(lambda: self.calls().count(line) >= times, f"{line} ({times})")

    def until_says(self, process, line):
        self.until(lambda: line in process.log.read_text(), f"{line} in {process.log.read_text()}")


def a_story_beside_tests_takes_no_environment_away(tree):
    tree.hold("ctest")
    tests = tree.start("test", "quick")
    tree.until_called("ctest begins")
    tree.run("story")
    tree.let_go("ctest")
    tree.ends(tests)
    assert "waiting" not in tests.log.read_text()
    tree.run("test", "quick")
    made = [line for line in tree.calls() if line.startswith("venv")]
    assert made == ["venv .venv/requirements-test", "venv .venv/requirements"], made


def tests_wait_for_tests_until_those_are_killed(tree):
    tree.hold("ctest")
    first = tree.start("test", "quick")
    tree.until_called("ctest begins")
    second = tree.start("test", "quick")
    tree.until_says(second, f"waiting for process {first.pid} (bash ./run test quick), which has tests")
    first.send_signal(signal.SIGKILL)
    tree.until_called("ctest begins", 2)
    tree.let_go("ctest")
    tree.ends(second)


def one_builds_at_a_time(tree):
    tree.hold("build")
    first = tree.start("dfa", "info")
    tree.until_called("build begins")
    second = tree.start("dfa", "info")
    tree.until_says(second, f"waiting for process {first.pid} (bash ./run dfa info), which has build/release")
    tree.let_go("build")
    for process in (first, second):
        tree.ends(process)
    builds = [line for line in tree.calls() if line.startswith("build")]
    assert builds == ["build begins", "build ends"] * 2, builds


def an_environment_in_use_is_not_made_anew(tree):
    tree.hold("dfa")
    first = tree.start("dfa", "monitor")
    tree.until_called("dfa begins")
    with open(tree.folder / "packaging/requirements.txt", "a") as packages:
        packages.write("another\n")
    second = tree.start("story")
    tree.until_says(second, f"waiting for process {first.pid} (")
    tree.until_says(second, "which has .venv/requirements")
    assert tree.calls().count("venv .venv/requirements") == 1
    tree.let_go("dfa")
    for process in (first, second):
        tree.ends(process)
    assert tree.calls().count("venv .venv/requirements") == 2


def a_file_that_is_not_formatted_is_named(tree):
    for name, text in (("good.h", "GOOD"), ("bad.h", "BAD")):
        (tree.folder / name).write_text(text)
    for words in (("init", "-q"), ("add", "good.h", "bad.h")):
        subprocess.run(["git", *words], cwd=tree.folder, check=True)
    tests = tree.start("test", "quick")
    assert tests.wait(HUNG_S) == 1
    said = tests.log.read_text()
    assert "\nbad.h is not formatted; ./run format mends it\n" in said and "good.h is" not in said, said
    assert said.endswith("1 passed, 1 failed, 0 skipped\n"), said


def processes_of(session):
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(stat.parent.name)
    return found


def sanitized_tests_begin_when_their_builds_end(tree):
    tree.hold("tsan")
    tests = tree.start("test")
    tree.until_says(tests, "what is left of the sanitized builds")
    tree.until_called("tsan begins")
    assert tree.calls().count("ctest begins") == 2, tree.calls()
    tree.let_go("tsan")
    tree.until_called("ctest begins", 4)
    assert tree.calls().index("tsan ends") < [i for i, line in enumerate(tree.calls()) if line == "ctest begins"][2]
    tests.wait(HUNG_S)


def sanitized_builds_go_beside_the_tests_of_python_and_end_with_them(tree):
    for tool in ("pytest", "tsan"):
        tree.hold(tool)
    tests = tree.start("test")
    for line in ("pytest begins", "asan-ubsan ends", "tsan begins"):
        tree.until_called(line)
    assert "pytest ends" not in tree.calls()
    tests.send_signal(signal.SIGTERM)
    tests.wait(HUNG_S)
    tree.until(lambda: not processes_of(tests.pid), "the end of all processes of the tests")


def main():
    for case in (sanitized_tests_begin_when_their_builds_end, sanitized_builds_go_beside_the_tests_of_python_and_end_with_them,
                 a_story_beside_tests_takes_no_environment_away, tests_wait_for_tests_until_those_are_killed,
                 one_builds_at_a_time, an_environment_in_use_is_not_made_anew, a_file_that_is_not_formatted_is_named):
        with tempfile.TemporaryDirectory() as name:
            tree = Checkout(pathlib.Path(name))
            try:
                case(tree)
            finally:
                shutil.rmtree(tree.fakes / "hold")  # whatever still stays ends
                for process in tree.started:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGTERM)
                    process.wait(HUNG_S)


if __name__ == "__main__":
    main()
