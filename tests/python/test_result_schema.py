"""A result file that `dfa bench` really wrote obeys the schema, and broken ones do not."""

import copy
import json
import os
import pathlib
import struct
import subprocess

import pytest

jsonschema = pytest.importorskip("jsonschema")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schema" / "dfa-result-1.schema.json").read_text())


def dfa_binary():
    if "DFA_BINARY" in os.environ:
        return pathlib.Path(os.environ["DFA_BINARY"])
    found = sorted(ROOT.glob("build/*/cli/dfa"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


@pytest.fixture(scope="module")
def produced(tmp_path_factory):
    """(path, content) of a file with measured and with unsupported cases."""
    binary = dfa_binary()
    if binary is None:
        pytest.skip("the dfa program is not built; DFA_BINARY names it")
    path = tmp_path_factory.mktemp("result") / "r.json"
    problems = ["fwd fp32 b1 h2 s64 d32", "fwdbwd bf16 causal b1 h2 s64 d32",
                "fwd tf32 b1 h1 s16 d8"]
    command = [str(binary), "bench", "--algorithms", "standard,dynamic", "--seconds", "0.2",
               "--threads", "1", "--backend", "cpu", "--out", str(path)]
    for problem in problems:
        command += ["--problem", problem]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return path, json.loads(path.read_text())


def errors(result):
    return [error.message for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(result)]


def test_the_schema_is_a_schema():
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_a_real_file_obeys(produced):
    _, result = produced
    assert errors(result) == []
    statuses = [case["status"] for case in result["cases"]]
    assert statuses == ["ok"] * 4 + ["unsupported"] * 2


def test_every_number_is_finite_or_null(produced):
    path, _ = produced

    def refuse(token):
        raise AssertionError(f"{token} in a result file")

    json.loads(path.read_text(), parse_constant=refuse)


def test_the_samples_are_beside_it(produced):
    path, result = produced
    case = result["cases"][0]
    rows = case["samples"]
    raw = (path.parent / case["samples_file"]).read_bytes()
    columns = len(rows["columns"])
    values = struct.unpack_from(f"<{rows['rows'] * columns}f", raw, rows["offset_bytes"])
    durations = sorted(values[rows["columns"].index("duration_s")::columns])
    assert len(durations) == case["time_ms"]["n"]
    assert durations[0] * 1e3 == pytest.approx(case["time_ms"]["min"], rel=1e-5)


def wrong_schema(r):
    r["schema"] = "dfa-result/2"


def no_machine(r):
    del r["machine"]


def no_status(r):
    del r["cases"][0]["status"]


def unknown_status(r):
    r["cases"][0]["status"] = "fine"


def text_for_number(r):
    r["cases"][0]["time_ms"]["median"] = "1.5"


def negative_time(r):
    r["cases"][0]["time_ms"]["median"] = -1


def ok_without_time(r):
    r["cases"][0]["time_ms"] = None


def failed_without_reason(r):
    r["cases"][4]["reason"] = None


def power_from_nothing(r):
    r["cases"][0].update(energy_j=None, power_avg_w=350.0)


def samples_elsewhere(r):
    r["cases"][0]["samples_file"] = "/etc/passwd"


def samples_above(r):
    r["cases"][0]["samples_file"] = "../r.f32"


def bad_problem(r):
    r["cases"][0]["problem"] = "attention please"


def bad_date(r):
    r["created"] = "yesterday"


def bad_sha(r):
    r["git"]["sha"] = "main"


@pytest.mark.parametrize("break_it", [
    wrong_schema, no_machine, no_status, unknown_status, text_for_number, negative_time,
    ok_without_time, failed_without_reason, power_from_nothing, samples_elsewhere, samples_above,
    bad_problem, bad_date, bad_sha], ids=lambda f: f.__name__)
def test_a_broken_file_does_not(produced, break_it):
    _, result = produced
    broken = copy.deepcopy(result)
    break_it(broken)
    assert errors(broken) != []
