"""The dependency checker must catch each kind of wrong arrow: planted faults in a small tree."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_includes.py"


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        done = subprocess.run([sys.executable, TOOL, root], capture_output=True, text=True)
        return done.returncode, done.stdout


class CheckIncludes(unittest.TestCase):
    def test_a_lawful_tree_passes(self):
        code, _ = check({"src/cpu/a.cpp": '#include "base/x.h"\n#include "cpu/b.h"\n#include <vector>',
                         "include/dfa/a.h": '#include <string>\n#include "dfa/b.h"'})
        self.assertEqual(code, 0)

    def test_each_planted_fault_is_named(self):
        for name, line in {
            "src/base/a.h": '#include "spec/config.h"',
            "src/cpu/a.cpp": '#include "reference/check.h"',
            "src/power/a.cpp": '#include "attention/registry.h"',
            "src/attention/a.cpp": '#include "cpu/engine.h"',
            "src/run/a.cpp": '#include "bench/result.h"',
            "src/run/b.cpp": '#include "simulate/run.h"',
            "src/measure/a.cpp": '#include "bench/suites.h"',
            "src/bench/a.cpp": "#include <nlohmann/json.hpp>",
            "src/bench/b.cpp": "#include <CLI/CLI.hpp>",
            "include/dfa/a.h": '#include "base/env.h"',
            "include/dfa/b.h": "#include <fmt/core.h>",
        }.items():
            with self.subTest(name=name):
                code, text = check({name: line})
                self.assertEqual(code, 1)
                self.assertIn(name, text)

    def test_the_note_holds_the_table(self):
        source = {"src/base/a.h": "#include <vector>"}
        note = "docs/design/0001-the-house.md"
        right = (TOOL.parents[1] / note).read_text()
        self.assertEqual(check({**source, note: right})[0], 0)
        for wrong in (right.replace("| `src/power/` |", "| `src/might/` |"), right.replace("<!-- end -->", ""), ""):
            code, text = check({**source, note: wrong})
            self.assertEqual(code, 1)
            self.assertIn("--write", text)
        self.assertEqual(check({**source, "docs/other.md": ""})[0], 1)

    def test_the_table_has_every_folder(self):
        table = subprocess.run([sys.executable, TOOL, "--table"], capture_output=True, text=True, check=True).stdout
        for folder in (TOOL.parents[1] / "src").iterdir():
            if folder.is_dir():
                self.assertIn(f"| `src/{folder.name}/` |", table)

    def test_an_empty_tree_fails(self):
        self.assertEqual(check({"src/base/readme.txt": ""})[0], 1)


if __name__ == "__main__":
    unittest.main()
