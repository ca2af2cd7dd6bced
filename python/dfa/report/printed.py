"""A table that `dfa bench` printed, kept as text with a head that says where it is from."""

import re

from dfa.report.problem import parse_problem

_ROW = re.compile(r"^((?:fwd|bwd|fwdbwd) .+?)\s{2,}(\S+)\s+([\d.]+)\s+([\d.]+)\s+(\d+)\s+([\d.]+)"
                  r"\s+([\d.e-]+|–|-)\s+(ok|wrong|–|-)\s+(ok|out_of_memory|unsupported|failed)$")
_WORK = {"fwd": 4.0, "bwd": 10.0, "fwdbwd": 14.0}


def _flops(problem):
    """4·b·h·sq·sk·d of the visible scores, 2.5 times that backward; None for masks but full."""
    p = parse_problem(problem)
    if p["mask"] != "full":
        return None
    return _WORK[p["pass"]] / 2 * p["b"] * p["hq"] * p["sq"] * p["sk"] * (p["d"] + p["dv"])


def _case(found, suite):
    problem, algorithm, median, mad, n, tflops, joules, check, status = found
    flops = _flops(problem)
    energy = None if joules in ("–", "-") else float(joules)
    rate = float(tflops)
    # The rate is printed with more digits than a short time.
    time_ms = flops / rate / 1e9 if flops and rate > 0 else float(median)
    return {"suite": suite, "problem": problem, "algorithm": algorithm, "status": status,
            "time_ms": {"median": time_ms, "mad": float(mad), "n": int(n)}, "tflops": rate,
            "flops": flops, "energy_j": energy,
            "gflop_per_j": flops / 1e9 / energy if flops and energy else None,
            "check": {"ok": check == "ok"} if check in ("ok", "wrong") else None}


def _first(pattern, text):
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None


def result(text):
    """The same as an object of schema dfa-result/1; ValueError where there is no such table."""
    rows = [found.groups() for found in map(_ROW.match, text.splitlines()) if found]
    command = _first(r"^Command: (.+)$", text)
    if not rows or not command:
        raise ValueError("no table of `dfa bench` with the line 'Command: …' above it")
    suite = _first(r"--suite (\w+)", command) or "custom"
    card = _first(r"one ([A-Z]\w+)", text)
    watts = _first(r"\((\d+) W", text)
    day = re.search(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d) UTC", text)
    return {"schema": "dfa-result/1", "created": f"{day[1]}T{day[2]}Z" if day else "time not stated",
            "argv": command.split(), "git": {"sha": _first(r"commit ([0-9a-f]{7,40})", text)},
            "machine": {"gpu": {"name": f"NVIDIA {card or 'GPU'}",
                                "driver": _first(r"driver ([\d.]+)", text),
                                "power_limit_w": float(watts) if watts else None}},
            "cases": [_case(row, suite) for row in rows]}
