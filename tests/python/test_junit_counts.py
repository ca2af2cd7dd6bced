"""tools/junit_counts.py, which sums up ./run test, on the two dialects it meets."""
import pathlib
import subprocess
import sys

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "junit_counts.py"
CTEST = """<testsuite><testcase name="a" status="run"/><testcase name="b" status="fail">
<failure message=""/></testcase><testcase name="c" status="notrun"><skipped/></testcase>
<testcase name="d" status="run"/></testsuite>"""
PYTEST = """<testsuites><testsuite><testcase name="a"/><testcase name="b"><error/></testcase>
<testcase name="c"><skipped/></testcase></testsuite></testsuites>"""


def counts(tmp_path, text):
    (tmp_path / "r.xml").write_text(text)
    done = subprocess.run([sys.executable, TOOL, tmp_path / "r.xml"], capture_output=True,
                          text=True, check=True)
    return done.stdout.split()


def test_both_dialects_are_counted(tmp_path):
    assert counts(tmp_path, CTEST) == ["2", "1", "1"]
    assert counts(tmp_path, PYTEST) == ["1", "1", "1"]
