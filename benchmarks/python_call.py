#!/usr/bin/env python3
"""What a call costs the host, on one GPU with PyTorch: microseconds, least of several rounds.

Usage: python3 benchmarks/python_call.py [RESULT.json]     needs the package dfa, torch and a GPU

The problem is so small that the GPU is idle most of the time: what is timed is Python, the library and the
driver's launch.
"""
import json
import platform
import sys
import time

import torch

import dfa
from dfa import _torch

CALLS, ROUNDS = 200, 15


def microseconds(call):
    for _ in range(50):
        call()
    least = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        least = min(least, (time.perf_counter() - begin) / CALLS)
    return round(least * 1e6, 2)


def launch_alone(q, k, v):
    """The plan's launch with everything made before."""
    plan = _torch._call_of("fwd", q, k, v, (-1, -1, 0.0, False, "auto")).plan
    o = torch.empty_like(q)
    stream = _torch._stream(q)
    return lambda: plan._forward(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), 0, 0, stream)


def main():
    q, k, v = (torch.randn(1, 1, 64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    result = {"torch": torch.__version__, "python": platform.python_version(),
              "gpu": torch.cuda.get_device_name(), "problem": "fwd bf16 b1 h1 s64 d64", "host_us": {}}
    costs = result["host_us"]
    with torch.no_grad():
        costs["launch alone"] = microseconds(launch_alone(q, k, v))
        costs["torch.empty_like"] = microseconds(lambda: torch.empty_like(q))
        costs["dfa.attention"] = microseconds(lambda: dfa.attention(q, k, v))
        costs["torch sdpa"] = microseconds(lambda: sdpa(q, k, v))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    costs["dfa.attention, autograd"] = microseconds(lambda: dfa.attention(q, k, v))
    costs["torch sdpa, autograd"] = microseconds(lambda: sdpa(q, k, v))
    text = json.dumps(result, indent=1)
    print(text)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
