#!/usr/bin/env python3
"""PyTorch's attention on this GPU, for comparison: median milliseconds and TFLOP/s a problem.

Usage: torch_attention.py [--backend flash|cudnn|efficient|math] [--runs N] 'PROBLEM LINE' …
Only what SDPA can express: bf16 or fp16, full or causal, sq = sk, d = dv.
"""
import argparse
import re
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def parse(line):
    words = line.split()
    sizes = {name: int(value) for name, value in
             (re.fullmatch(r"([a-z]+)(\d+)", word).groups()
              for word in words if re.fullmatch(r"(b|h|hq|hk|s|d)\d+", word))}
    heads = sizes.get("h", sizes.get("hq"))
    return {"pass": words[0], "dtype": {"bf16": torch.bfloat16, "fp16": torch.float16}[words[1]],
            "causal": "causal" in words, "b": sizes["b"], "h": heads, "s": sizes["s"], "d": sizes["d"]}


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
