#!/usr/bin/env python3
"""What a call costs the host with PyTorch, on one GPU: microseconds, least of several rounds.

Usage: python3 benchmarks/python_call.py [RESULT.json]     needs the package dfa and torch

Where there is no GPU the launch alone, on the CPU, is the whole computation: only differences from it tell.
The problem is so small that the GPU is idle most of the time: what is timed is Python, the library and the
driver's launch. layer_us: a call's part of 32, each fed by the one before, as a model's layers are, until
the GPU has done them all; one by one, and by torch.compile in two modes (reduce-overhead replays CUDA
graphs).
"""
import json
import platform
import sys
import time

import torch

import dfa
from dfa import _torch_calls

CALLS, ROUNDS, LAYERS = 100, 200, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, DTYPE = (64, torch.bfloat16) if DEVICE == "cuda" else (8, torch.float32)
sdpa = torch.nn.functional.scaled_dot_product_attention


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def microseconds(call):
    for _ in range(50):
        call()
    least = float("inf")
    for _ in range(ROUNDS):
        synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        least = min(least, (time.perf_counter() - begin) / CALLS)
    return round(least * 1e6, 2)


def microseconds_of_a_layer(attention, mode, q, k, v):
    def stack(x):
        for _ in range(LAYERS):
            x = attention(x, k, v)
        return x

    run = stack if mode == "eager" else torch.compile(stack, fullgraph=True, mode=mode)
    wanted = stack(q)
    for _ in range(5):
        torch.testing.assert_close(run(q), wanted)
    least = float("inf")
    for _ in range(50):
        synchronize()
        begin = time.perf_counter()
        run(q)
        synchronize()
        least = min(least, (time.perf_counter() - begin) / LAYERS)
    return round(least * 1e6, 2)


def launch_alone(q, k, v):
    """The plan's launch with everything made before."""
    plan, _, _ = _torch_calls.prepare((-1, -1, 0.0, False, "auto"), 0, "fwd", q, k, v)
    o = torch.empty_like(q)
    memory = q.new_empty(plan.workspace_bytes + 64, dtype=torch.uint8)
    workspace = (memory.data_ptr() + 63) // 64 * 64
    stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0

    def launch(memory=memory):  # keeps it
        plan._forward(q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), 0, workspace, stream)
    return launch


def calls(q, k, v):
    costs = {}
    with torch.no_grad():
        costs["launch alone"] = microseconds(launch_alone(q, k, v))
        costs["torch.empty_like"] = microseconds(lambda: torch.empty_like(q))
        costs["dfa.attention"] = microseconds(lambda: dfa.attention(q, k, v))
        costs["torch sdpa"] = microseconds(lambda: sdpa(q, k, v))
    q, k, v = (tensor.detach().requires_grad_() for tensor in (q, k, v))
    costs["dfa.attention, autograd"] = microseconds(lambda: dfa.attention(q, k, v))
    costs["torch sdpa, autograd"] = microseconds(lambda: sdpa(q, k, v))
    return costs


@torch.no_grad()
def layers(q, k, v):
    return {f"{name}, {mode}": microseconds_of_a_layer(function, mode, q, k, v)
            for mode in ("eager", "default", "reduce-overhead")
            for name, function in (("dfa.attention", dfa.attention), ("torch sdpa", sdpa))}


def main():
    q, k, v = (torch.randn(1, 1, SIZE, SIZE, device=DEVICE, dtype=DTYPE) for _ in range(3))
    result = {"torch": torch.__version__, "python": platform.python_version(),
              "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
              "problem": dfa.plan(f"fwd {_torch_calls.DTYPES[DTYPE]} b1 h1 s{SIZE} d{SIZE}").problem}
    for name, measure in (("host_us", calls), ("layer_us", layers)):  # compiling may outlast patience
        result[name] = measure(q, k, v)
        if len(sys.argv) > 1:
            with open(sys.argv[1], "w") as file:
                file.write(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
