"""What a TokenMeter measured, as JSON (docs/schema/dfa-tokens-1.schema.json) and as text for Prometheus."""

import datetime
import json
import math

from dfa._token_ledger import PHASES
from dfa._version import read as version

_SCHEMA = "dfa-tokens/1"


def record_of(source, ledger, workload):
    """The record as a dict of what JSON has. Raises ValueError where the workload is none."""
    try:
        json.dumps(workload, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the workload is nothing that JSON has: {error}") from None
    known = ledger.measured_s > 0
    seconds = (ledger.end_s - ledger.begin_s) if ledger.begin_s is not None else 0.0
    watts = _per(ledger.energy_j, ledger.measured_s) if known else None
    return {
        "schema": _SCHEMA,
        "created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": version(),
        "measurement_method": source.method if source.kind else None,
        "measurement_kind": source.kind or None,
        "sensors": source.names,
        "sampling_interval_seconds": source.period_s,
        "sampling_rate_hz": 1 / source.period_s if source.period_s else None,
        "not_measured": why_not(source, ledger),
        "device": {"kind": source.device, "name": source.card, "driver": source.driver,
                   "power_limit_watts": source.power_limit_w,
                   "scope": "the whole device: joules of other programs on it are in these"},
        "workload": workload,
        "duration_seconds": seconds,
        "measured_seconds": ledger.measured_s,
        "unmeasured_seconds": ledger.unmeasured_s,
        "readings": ledger.readings,
        "counter_breaks": ledger.breaks,
        "total_energy_joules": ledger.energy_j if known else None,
        "total_energy_uncertainty_joules": ledger.uncertainty_j() if known else None,
        "average_power_watts": watts,
        "input_token_count": sum(ledger.phases[phase].prefill_tokens for phase in PHASES),
        "output_token_count": ledger.output,
        "output_tokens_per_second": _per(ledger.output, seconds),
        "output_tokens_per_joule": _per(ledger.measured_output, ledger.energy_j) if known else None,
        "energy_per_output_token_joules": _per(ledger.energy_j, ledger.measured_output) if known else None,
        "phases": {phase: _phase(ledger, phase) for phase in PHASES},
        "windows": {"length_seconds": ledger.window_s,
                    "energy_per_output_token_joules": _spread(ledger.spreads["output"])},
    }


def _phase(ledger, phase):
    sums = ledger.phases[phase]
    known, tokens = sums.measured_seconds > 0, sums.prefill_tokens + sums.decode_tokens
    each = _per(sums.energy_j, sums.measured_tokens) if known else None
    record = {
        "seconds": sums.seconds,
        "measured_seconds": sums.measured_seconds,
        "energy_joules": sums.energy_j if known else None,
        "energy_uncertainty_joules": ledger.uncertainty_j(phase) if known else None,
        "average_power_watts": _per(sums.energy_j, sums.measured_seconds) if known else None,
    }
    if phase == "idle":
        return record
    return record | {
        "steps": sums.steps,
        "prefill_token_count": sums.prefill_tokens,
        "decode_token_count": sums.decode_tokens,
        "measured_token_count": sums.measured_tokens,
        "tokens_per_second": _per(tokens, sums.seconds),
        "energy_per_token_joules": each,
        "energy_per_token_millijoules": None if each is None else 1e3 * each,
        "energy_per_token_uncertainty_joules": _per(ledger.uncertainty_j(phase), sums.measured_tokens) if known else None,
        "windows_energy_per_token_joules": _spread(ledger.spreads[phase]),
    }


def _per(a, b):
    return a / b if b > 0 and math.isfinite(a / b) else None


def _spread(spread):
    return {"mean": spread.mean if spread.count else None, "std": spread.std(), "count": spread.count}


def why_not(source, ledger):
    """Why there are no joules, or why there are none of a part of the time; None where all was measured."""
    if not source.kind:
        return source.reason
    if ledger.begin_s is None:
        return "no step has run yet"
    if ledger.measured_s == 0 and not ledger.why_not:
        return (f"the {source.kind} of {', '.join(source.names)} changes every {source.period_s:.3g} s and has not changed in the "
                f"{ledger.end_s - ledger.begin_s:.3g} s since the first step")
    return ledger.why_not or None


def exposition(source, ledger):
    """Prometheus' text format 0.0.4."""
    lines = []
    phases = ledger.phases
    _family(lines, "dfa_tokens_total", "counter", "Tokens by the phase that they ran in",
            [({"phase": p, "kind": kind}, count) for p in PHASES[:3] for kind in ("prefill", "decode")
             if (count := getattr(phases[p], f"{kind}_tokens")) or p in (kind, "mixed")])  # the other kind: counts set inside a step
    _family(lines, "dfa_output_tokens_total", "counter", "Tokens of answers", [({}, ledger.output)])
    _family(lines, "dfa_phase_seconds_total", "counter", "Seconds of a phase",
            [({"phase": p}, phases[p].seconds) for p in PHASES])
    _family(lines, "dfa_unmeasured_seconds_total", "counter", "Seconds whose joules are not known", [({}, ledger.unmeasured_s)])
    if source.kind:
        _family(lines, "dfa_energy_joules_total", "counter", "Joules of the whole device while a phase ran",
                [({"phase": p}, phases[p].energy_j) for p in PHASES])
        _family(lines, "dfa_energy_uncertainty_joules", "gauge", "Bound on the error of a phase's joules",
                [({"phase": p}, ledger.uncertainty_j(p)) for p in PHASES])
        _family(lines, "dfa_measured_tokens_total", "counter", "Tokens whose joules are known",
                [({"phase": p}, phases[p].measured_tokens) for p in PHASES[:3]])
    per_token = [({"phase": p}, _per(phases[p].energy_j, phases[p].measured_tokens)) for p in PHASES[:3]]
    _family(lines, "dfa_energy_per_token_joules", "gauge", "Joules a token since the start",
            [(labels, value) for labels, value in per_token if value])
    if source.power_limit_w is not None:
        _family(lines, "dfa_power_limit_watts", "gauge", "The card's power limit", [({}, source.power_limit_w)])
    facts = {"device": source.device, "name": source.card or "", "driver": source.driver or "",
             "method": source.method if source.kind else "", "kind": source.kind}
    _family(lines, "dfa_meter_info", "gauge", "What measures", [(facts, 1)])
    missing = why_not(source, ledger)
    if missing:
        _family(lines, "dfa_meter_missing", "gauge", "Why joules are missing", [({"reason": missing}, 1)])
    return "".join(lines)


def _family(lines, name, kind, help_text, samples):
    if not samples:
        return
    lines.append(f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n")
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}\n" if inside else f"{name} {value!r}\n")


def _escaped(text):
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
