#!/usr/bin/env python3
"""PyTorch's attention on this GPU, for comparison: median milliseconds and TFLOP/s a problem.

Usage: torch_attention.py [--backend flash|cudnn|efficient|math] [--runs N] 'PROBLEM LINE' …
Only what SDPA can express: bf16 or fp16, full or causal, sq = sk, d = dv.
"""
import argparse
import re
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parse(line):
    """A problem as SDPA's arguments; ends the program at a line that SDPA cannot express."""
    attention_pass, dtype, *rest = line.split()
    sizes, causal = {}, False
    for word in rest:
        size = re.fullmatch(r"([a-z]+)(\d+)", word)
        if size:
            sizes[size[1]] = int(size[2])
        elif word == "causal":
            causal = True
        elif word != "full":
            sys.exit(f"torch_attention: '{line}': '{word}' is not for SDPA; accepted: full, causal, sizes")
    heads, length = sizes.get("h", sizes.get("hq")), sizes.get("s", sizes.get("sq"))
    square = (sizes.get("hk", heads), sizes.get("sk", length), sizes.get("dv", sizes.get("d")))
    if dtype not in DTYPES or None in (heads, length) or square != (heads, length, sizes.get("d")):
        sys.exit(f"torch_attention: '{line}': accepted are bf16 and fp16, hq = hk, sq = sk, d = dv")
    return {"pass": attention_pass, "dtype": DTYPES[dtype], "causal": causal, "b": sizes.get("b", 1),
            "h": heads, "s": length, "d": sizes["d"]}


def milliseconds(work, runs):
    times = []
    for _ in range(3):
        work()
    for _ in range(runs):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", choices=BACKENDS, default="flash")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("problems", nargs="+")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {arguments.backend}")
    for line in arguments.problems:
        p = parse(line)
        shape = (p["b"], p["h"], p["s"], p["d"])
        q, k, v = (torch.randn(shape, dtype=p["dtype"], device="cuda", requires_grad=True)
                   for _ in range(3))
        grad = torch.randn(shape, dtype=p["dtype"], device="cuda")
        flops = 4 * p["b"] * p["h"] * p["s"] ** 2 * p["d"] * (0.5 if p["causal"] else 1)
        attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p["causal"])
        with sdpa_kernel(BACKENDS[arguments.backend]):
            if p["pass"] != "bwd":
                ms = milliseconds(attend, arguments.runs)
                print(f"  {line:44} forward  {ms:9.4f} ms {flops / ms * 1e-9:7.1f} TFLOP/s", flush=True)
            if p["pass"] != "fwd":
                out = attend()
                back = lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
                ms = milliseconds(back, arguments.runs)
                print(f"  {line:44} backward {ms:9.4f} ms {2.5 * flops / ms * 1e-9:7.1f} TFLOP/s", flush=True)


if __name__ == "__main__":
    main()
