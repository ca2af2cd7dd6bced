"""Result files `dfa-result/1` → one data frame, a row a case, and the facts of each file."""

import dataclasses
import json
import math
import os
import pathlib
import shlex

import pandas as pd

from dfa.report import kernels
from dfa.report.problem import parse_problem
from dfa.report.strict_json import parse_json

SCHEMA = "dfa-result/1"
LAUNCHES = ("eager", "graph", "compile", "compile-reduce-overhead", "compile-max-autotune")
STATUSES = ("ok", "out_of_memory", "unsupported", "failed")

# column of the frame: path inside a case. All are numbers or null.
NUMBERS = {
    "time_ms": ("time_ms", "median"),
    "time_min_ms": ("time_ms", "min"),
    "time_p95_ms": ("time_ms", "p95"),
    "time_mad_ms": ("time_ms", "mad"),
    "time_half_width_ms": ("time_ms", "half_width"),
    "n": ("time_ms", "n"),
    "tflops": ("tflops",),
    "flops": ("flops",),
    "energy_j": ("energy_j",),
    "energy_uncertainty_j": ("energy_uncertainty_j",),
    "power_avg_w": ("power_avg_w",),
    "power_max_w": ("power_max_w",),
    "gflop_per_j": ("gflop_per_j",),
    "temp_c": ("temp_c",),
    "utilization_pct": ("utilization_pct",),
    "sm_clock_mhz": ("sm_clock_mhz",),
    "cpu_clock_mhz": ("cpu_clock_mhz",),
    "throttle_power_pct": ("throttle", "power_pct"),
    "throttle_thermal_pct": ("throttle", "thermal_pct"),
    "memory_bytes": ("memory_bytes",),
    "memory_peak_bytes": ("memory_peak_bytes",),
    "workspace_bytes": ("workspace_bytes",),
    "check_error": ("check", "max_error"),
    "check_bound": ("check", "bound"),
    "other_load_pct": ("other_load_pct",),
}
TEXTS = ("suite", "problem", "algorithm", "backend", "config", "backward_config", "origin", "status",
         "reason")
REQUIRED = ("schema", "created", "argv", "git", "machine", "cases")


class BadResult(ValueError):
    """A file is not what it should be; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What one result file says about itself."""
    path: pathlib.Path
    created: str
    argv: tuple
    sha: str | None
    dirty: bool | None
    machine: dict
    scale: str

    @property
    def command(self):
        return shlex.join(self.argv)

    @property
    def device(self):
        """The processor that did the work, in a few words."""
        gpu = self.machine.get("gpu")
        if gpu:
            return gpu.get("name", "GPU")
        threads = self.machine.get("threads")
        plural = "" if threads == 1 else "s"
        return (f"{self.machine.get('cpu', 'unknown CPU')}, {threads} thread{plural}, "
                f"{self.machine.get('isa', 'unknown ISA')}")

    @property
    def card(self):
        """The device with what limits it: watts and driver of a GPU."""
        gpu = self.machine.get("gpu") or {}
        words = [f"{gpu['power_limit_w']:g} W"] if gpu.get("power_limit_w") else []
        words += [f"driver {gpu['driver']}"] if gpu.get("driver") else []
        return self.device + (f" ({', '.join(words)})" if words else "")

    @property
    def revision(self):
        if not self.sha:
            return "source revision unknown"
        return f"git {self.sha[:10]}" + (" with local changes" if self.dirty else "")


@dataclasses.dataclass(frozen=True)
class Results:
    """cases: a row a case, `run` its index into runs. not_measured: run, case, field, reason."""
    runs: tuple
    cases: pd.DataFrame
    not_measured: pd.DataFrame


def read_json(path):
    """parse_json of a file; BadResult in one line that names it."""
    try:
        data = path.read_bytes()
        if not data.strip():
            raise ValueError("it is empty")
        return parse_json(data)
    except OSError as error:
        raise BadResult(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BadResult(f"{path}: not JSON: {error}") from None


def read_schema(path, schema, maker):
    """read_json of a file of this schema; BadResult where it is something else."""
    result = read_json(path)
    if not isinstance(result, dict) or result.get("schema") != schema:
        raise BadResult(f"{path}: not a file of {maker}; accepted: schema {schema}")
    return result


def _expect(condition, path, where, value, accepted):
    if not condition:
        text = json.dumps(value)
        raise BadResult(f"{path}: {where} is {text[:60]}{'…' if len(text) > 60 else ''}; "
                        f"accepted: {accepted}")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(path, where, case, keys):
    value = case
    for key in keys:
        if value is None:
            return math.nan
        _expect(isinstance(value, dict), path, where, value, "an object or null")
        value = value.get(key)
    name = f"{where}.{'.'.join(keys)}"
    _expect(value is None or _is_number(value), path, name, value, "a finite number or null")
    _expect(value is None or value >= 0 or name.endswith("temp_c"), path, name, value,
            "0 or more, or null")
    return math.nan if value is None else float(value)


def _check(path, where, case):
    check = case.get("check")
    _expect(check is None or (isinstance(check, dict) and isinstance(check.get("ok"), bool)), path,
            f"{where}.check", check, "an object with ok true or false, or null")
    if check is None:
        return {"check": "not checked", "check_tensor": "", "check_sampled": False}
    return {"check": "ok" if check["ok"] else "wrong", "check_tensor": check.get("tensor") or "",
            "check_sampled": bool(check.get("sampled"))}


def _case_row(path, where, case):
    _expect(isinstance(case, dict), path, where, case, "an object")
    row = {}
    for key in TEXTS:
        value = case.get(key)
        optional = key in ("reason", "backend", "config", "backward_config", "origin")
        _expect(isinstance(value, str) or (optional and value is None), path, f"{where}.{key}",
                value, "a text")
        row[key] = value or ""
    _expect(row["status"] in STATUSES, path, f"{where}.status", row["status"], ", ".join(STATUSES))
    try:
        row |= parse_problem(row["problem"])
    except ValueError as error:
        raise BadResult(f"{path}: {where}: {error}") from None
    row["kernel"] = kernels.kernel_of(case)
    if row["backend"] == "reference":  # the fp64 truth, whatever algorithm it was asked for
        row["algorithm"] = "reference"
    launch = case.get("launch") or "eager"
    _expect(launch in LAUNCHES, path, f"{where}.launch", launch, ", ".join(LAUNCHES))
    if launch != "eager":  # the same kernels launched otherwise: a line of its own
        row["algorithm"] += f", {launch}"
    row |= {column: _number(path, where, case, keys) for column, keys in NUMBERS.items()}
    row |= _check(path, where, case)
    _expect(row["status"] != "ok" or row["time_ms"] > 0, path, f"{where}.time_ms",
            case.get("time_ms"), "a positive median where the status is ok")
    return row


_FACTS = (  # path in the file, types (null and absent are fine), in words
    (("git", "sha"), str, "a text"), (("git", "dirty"), bool, "true or false"),
    (("scale",), str, "a text"), (("machine", "gpu"), dict, "an object"),
    *((("machine", key), str, "a text") for key in ("host", "cpu", "isa", "toolchain", "os")),
    *((("machine", key), (int, float), "a number") for key in ("threads", "memory_bytes")),
    (("machine", "virtual_machine"), bool, "true or false"),
    *((("machine", "gpu", key), str, "a text") for key in ("name", "driver")),
    *((("machine", "gpu", key), (int, float), "a number")
      for key in ("power_limit_w", "sm_count")))


def _check_facts(path, result):
    for keys, types, words in _FACTS:
        value = result
        for key in keys:
            value = None if value is None else value.get(key)
        _expect(value is None or isinstance(value, types), path, ".".join(keys), value,
                f"{words} or null")


def _run(path, result):
    _expect(isinstance(result, dict), path, "the file", result, f"an object of schema {SCHEMA}")
    _expect(result.get("schema") == SCHEMA, path, "schema", result.get("schema"), SCHEMA)
    for key in REQUIRED:
        _expect(key in result, path, key, None, "present")
    argv, git, machine = result["argv"], result["git"], result["machine"]
    _expect(isinstance(argv, list) and all(isinstance(a, str) for a in argv), path, "argv", argv,
            "a list of texts")
    _expect(isinstance(git, dict), path, "git", git, "an object")
    _expect(isinstance(machine, dict), path, "machine", machine, "an object")
    _check_facts(path, result)
    _expect(isinstance(result["created"], str), path, "created", result["created"], "a UTC time")
    return Run(path=path, created=result["created"], argv=tuple(argv), sha=git.get("sha"),
               dirty=git.get("dirty"), machine=machine, scale=result.get("scale") or "")


def _refuse_files_twice(paths):
    """By whatever name: its samples would count as those of two runs."""
    seen = set()
    for path in paths:
        if (real := os.path.realpath(path)) in seen:
            raise BadResult(f"{path} is given twice; accepted: each result once")
        seen.add(real)


def _refuse_copy(path, result, contents):
    """What says the same as a file before it is its copy, however it is spaced: two runs share no time of their making and samples."""
    text = json.dumps(result, sort_keys=True)
    if (first := contents.setdefault(text, path)) != path:
        raise BadResult(f"{path} is a copy of {first}; accepted: each result once")


def _refuse_twice(path, case, seen):
    """As `dfa compare` knows cases apart, and in its words."""
    launch = case.get("launch") or "eager"
    names = [case["suite"], case["problem"], case["algorithm"], case.get("backend") or "", *([launch] if launch != "eager" else [])]
    key = " | ".join(names)
    if key in seen:
        raise BadResult(f"{path}: result has two cases '{key}'; accepted: each case once")
    seen.add(key)


def load(paths):
    """Results of one or more result files. BadResult in one line when a file cannot be used."""
    _refuse_files_twice(paths)
    runs, rows, gaps, contents = [], [], [], {}
    for path in map(pathlib.Path, paths):
        seen = set()
        result = read_json(path)
        runs.append(_run(path, result))
        _refuse_copy(path, result, contents)
        cases = result["cases"]
        _expect(isinstance(cases, list) and cases, path, "cases", cases, "a list with a case")
        for index, case in enumerate(cases):
            where = f"cases[{index}]"
            row = _case_row(path, where, case)
            _refuse_twice(path, case, seen)
            reasons = case.get("not_measured") or {}
            _expect(isinstance(reasons, dict), path, f"{where}.not_measured", reasons, "an object")
            gaps += [{"run": len(runs) - 1, "case": len(rows), "field": field, "reason": str(why)}
                     for field, why in reasons.items()]
            rows.append({"run": len(runs) - 1} | row)
    return Results(tuple(runs), pd.DataFrame(rows),
                 pd.DataFrame(gaps, columns=["run", "case", "field", "reason"]))
