"""Result files made up by formula, for tests only: no number in them was measured.

Per problem with n = b · heads · sq · sk · d / 1e6: standard takes n / 10 ms, flash a third of it,
dynamic a quarter. A causal mask costs standard nothing less and halves the others.
"""

NO_ENERGY = "synthetic: no energy counter on this machine"
SPEED = {"standard": 1, "flash": 3, "dynamic": 4}
WATTS = {"standard": 200, "flash": 250, "dynamic": 220}
MACHINE = {"host": "synthetic-host", "cpu": "Synthetic CPU", "isa": "synthetic_isa", "threads": 2,
           "gpu": None, "toolchain": "dfa 0.1.0, synthetic compiler", "os": "synthetic OS",
           "memory_bytes": 8 << 30, "virtual_machine": True}


def line(pass_="fwd", dtype="fp32", mask="full", b=1, h=8, s=512, d=64):
    return f"{pass_} {dtype} {mask} b{b} hq{h} hk{h} sq{s} sk{s} d{d}"


def time_of(algorithm, pass_="fwd", mask="full", b=1, h=8, s=512, d=64):
    work = {"fwd": 1, "bwd": 2.5, "fwdbwd": 3.5}[pass_]
    skipped = 2 if mask == "causal" and algorithm != "standard" else 1
    return work * b * h * s * s * d / 1e6 / 10 / SPEED[algorithm] / skipped


def case(suite, algorithm, energy=False, **shape):
    time = time_of(algorithm, **{k: v for k, v in shape.items() if k != "dtype"})
    work = {"fwd": 1, "bwd": 2.5, "fwdbwd": 3.5}[shape.get("pass_", "fwd")]
    b, h, s, d = (shape.get(k, v) for k, v in (("b", 1), ("h", 8), ("s", 512), ("d", 64)))
    flops = 4.0 * work * b * h * s * s * d / (2 if shape.get("mask") == "causal" else 1)
    tensors = 4 * b * h * s * d * 4
    scores = 2 * b * h * s * s * 4 if algorithm == "standard" else 0
    joules = WATTS[algorithm] * time / 1e3 if energy else None
    return {
        "suite": suite, "problem": line(**shape), "algorithm": algorithm, "backend": "cpu",
        "config": ".block_q=64, .block_k=64", "origin": "default", "status": "ok",
        "reason": None if energy else f"not measured: {NO_ENERGY}",
        "time_ms": {"median": time, "min": time * 0.98, "p95": time * 1.1, "mad": time * 0.01,
                    "n": 12, "mean": time * 1.01, "half_width": time * 0.02},
        "tflops": flops / (time * 1e9), "flops": flops, "energy_j": joules,
        "energy_uncertainty_j": joules * 0.01 if energy else None,
        "power_avg_w": float(WATTS[algorithm]) if energy else None,
        "power_max_w": WATTS[algorithm] * 1.2 if energy else None,
        "gflop_per_j": flops / 1e9 / joules if energy else None, "temp_c": None,
        "utilization_pct": None, "sm_clock_mhz": None, "cpu_clock_mhz": None,
        "throttle": {"power_pct": None, "thermal_pct": None},
        "memory_bytes": tensors + scores, "memory_peak_bytes": tensors + scores + (1 << 20),
        "workspace_bytes": scores,
        "check": {"ok": True, "max_error": 1e-6, "bound": 1e-5, "seed": 1, "tensor": "o",
                  "sampled": False},
        "seed": 1, "samples_file": None,
        "not_measured": {} if energy else {f: NO_ENERGY for f in (
            "energy_j", "power_avg_w", "power_max_w", "gflop_per_j")},
    }


def out_of_memory(suite, algorithm, **shape):
    lost = case(suite, algorithm, **shape)
    lost |= {"status": "out_of_memory", "reason": "needs 300 GB; not run", "time_ms": None,
             "tflops": None, "memory_peak_bytes": None, "check": None, "not_measured": {}}
    return lost


def wrong(suite, algorithm, **shape):
    bad = case(suite, algorithm, **shape)
    bad |= {"status": "failed", "reason": "the check failed: o differs by 0.5, bound 1e-05"}
    bad["check"] = {"ok": False, "max_error": 0.5, "bound": 1e-5, "seed": 1}
    return bad


def both(suite, energy, algorithms=("standard", "flash"), **shape):
    return [case(suite, algorithm, energy, **shape) for algorithm in algorithms]


def packed(lengths, energy=False):
    """Packed sequences that take half the time of the same ones padded, and those."""
    padded = case("varlen", "flash", energy, dtype="bf16", mask="causal", b=len(lengths), s=max(lengths))
    one = padded | {"problem": f"fwd bf16 causal hq8 hk8 d64 lens({','.join(map(str, lengths))})"}
    one["time_ms"] = {name: value / 2 if name != "n" else value for name, value in padded["time_ms"].items()}
    return [one, padded]


def cases(energy=False):
    """Every suite, small."""
    three = ("standard", "flash", "dynamic")
    rows = []
    for dtype in ("fp32", "fp16"):
        for s in (128, 256, 512, 1024, 2048):
            rows += both("three_way", energy, three, dtype=dtype, s=s)
        for b in (2, 4):
            rows += both("three_way", energy, three, dtype=dtype, b=b)
    for s in (128, 256, 512, 1024, 2048, 4096):
        rows += both("sequence", energy, dtype="bf16", s=s)
    for b in (1, 2, 4, 8, 16):
        rows += both("batch", energy, dtype="bf16", b=b, s=256)
    for h in (1, 2, 4, 8, 16, 32):
        rows += both("heads", energy, dtype="bf16", h=h)
    for d in (32, 64, 96, 128, 192, 256):
        rows += both("head_dim", energy, dtype="bf16", d=d, h=4)
    for h in (4, 8, 12, 16, 24, 32):
        rows += both("embedding", energy, dtype="bf16", h=h)
    for s in (256, 512, 1024, 2048):
        for mask in ("full", "causal"):
            rows += both("causal", energy, dtype="bf16", s=s, mask=mask)
    for s in (256, 512, 1024, 2048, 4096):
        rows += both("memory", energy, dtype="bf16", h=4, s=s)
    rows += [out_of_memory("memory", "standard", dtype="bf16", h=4, s=65536)]
    for s in (256, 512, 1024):
        for pass_ in ("fwd", "bwd", "fwdbwd"):
            rows += both("forward_backward", energy, dtype="bf16", s=s, pass_=pass_)
    for b in (1, 2, 4, 8):
        for s in (128, 256, 512, 1024):
            rows += both("heatmap", energy, ("flash",), dtype="bf16", b=b, s=s)
    for lengths in ((512, 37, 100), (256, 256)):
        rows += packed(lengths, energy)
    for s in (64, 256):
        rows += both("launch", energy, ("flash",), dtype="bf16", s=s, mask="causal")
        rows += [rows[-1] | {"launch": "graph"}]
    return rows


def result(rows=None, energy=False, **changes):
    return {"schema": "dfa-result/1", "created": "2026-01-31T12:00:00Z",
            "argv": ["dfa", "bench", "--suite", "synthetic", "--out", "synthetic.json"],
            "git": {"sha": "0123456789012345678901234567890123456789", "dirty": True},
            "machine": MACHINE, "scale": "cpu",
            "cases": cases(energy) if rows is None else rows} | changes
