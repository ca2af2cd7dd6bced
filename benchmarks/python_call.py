#!/usr/bin/env python3
"""What a call costs the host with PyTorch, on one GPU: microseconds, least of several rounds.

Usage: python3 benchmarks/python_call.py [--doors] [RESULT.json]     needs the package dfa and torch

Where there is no GPU the launch alone, on the CPU, is the whole computation: only differences from it tell.
The problem is so small that the GPU is idle most of the time: what is timed is Python, the library and the
driver's launch. layer_us: a call's part of 32, each fed by the one before, as a model's layers are, until
the GPU has done them all; one by one, and by torch.compile in two modes (reduce-overhead replays CUDA
graphs). doors_us: without autograd, each name of the package: "call", all of it; "recalled", from its key on, without the
door's own Python; "launch", the plan's launches from Python with everything made before; "made", what it returns and
the workspace, allocated from Python; "append", of new rows, their kernel's launch and what it makes, which are part of what is
over the launch. "by operators": new rows without that kernel. --doors: these alone.
"""
import json
import platform
import sys
import time

import torch

import dfa
import dfa.torch
from dfa import _torch_again, _torch_append, _torch_calls
from dfa.flash_attn import cute, flash_attn_func, flash_attn_interface, flash_attn_varlen_func, flash_attn_with_kvcache

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS, ROUNDS, LAYERS = (100, 200, 32) if DEVICE == "cuda" else (20, 100, 32)
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


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


class Doors:
    """Calls of each door on tensors of its own, so small that the launch is the longest of it."""

    def __init__(self):
        hq, hk, d, b, context, page = 8, 2, SIZE, 4, 128, 16

        def rows(*shape):
            return torch.randn(*shape, d, device=DEVICE, dtype=DTYPE)
        q, k, v = rows(1, SIZE, hq), rows(1, SIZE, hk), rows(1, SIZE, hk)
        heads = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        packed, cu = [x[0] for x in (q, k, v)], ints(0, SIZE // 4, SIZE)
        new, pages = rows(b, 1, hq), [rows(b * context // page, page, hk) for _ in range(2)]
        caches, used = [x.view(b, context, hk, d) for x in pages], ints(*[context - 3 * i for i in range(b)])
        table, begins = torch.arange(b * context // page, dtype=torch.int32, device=DEVICE).view(b, -1), ints(*range(b + 1))
        steps = {"cache_seqlens": used, "causal": True}
        added, before = [rows(b, 1, hk) for _ in range(2)], {"cache_seqlens": used - 1, "causal": True}
        turns = [torch.randn(context, SIZE // 2, device=DEVICE, dtype=DTYPE) for _ in range(2)] if SIZE % 32 == 0 else [None, None]
        self.calls = {
            "dfa.attention": lambda: dfa.attention(*heads, causal=True),
            "dfa.torch.scaled_dot_product_attention": lambda: dfa.torch.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True),
            "flash_attn_func": lambda: flash_attn_func(q, k, v, causal=True),
            "flash_attn_func with lse": lambda: flash_attn_func(q, k, v, causal=True, return_attn_probs=True),
            "flash_attn_interface.flash_attn_func": lambda: flash_attn_interface.flash_attn_func(q, k, v, causal=True),
            "cute.flash_attn_func": lambda: cute.flash_attn_func(q, k, v, causal=True),
            "dfa.attention_varlen": lambda: dfa.attention_varlen(*packed, cu, cu, SIZE, SIZE, causal=True),
            "flash_attn_varlen_func": lambda: flash_attn_varlen_func(*packed, cu, cu, SIZE, SIZE, causal=True),
            "dfa.attention_varlen, pages": lambda: dfa.attention_varlen(new[:, 0], *pages, begins, max_seqlen_q=1, max_seqlen_k=context,
                                                                        seqused_k=used, block_table=table, causal=True),
            "flash_attn_with_kvcache": lambda: flash_attn_with_kvcache(new, *caches, **steps),
            "flash_attn_with_kvcache, pages": lambda: flash_attn_with_kvcache(new, *pages, **steps, block_table=table),
            "flash_attn_with_kvcache, pages, lse": lambda: flash_attn_with_kvcache(new, *pages, **steps, block_table=table, return_softmax_lse=True),
            "flash_attn_interface.flash_attn_with_kvcache, pages": lambda: flash_attn_interface.flash_attn_with_kvcache(
                new, *pages, **steps, page_table=table),
            "flash_attn_with_kvcache, new rows": lambda: flash_attn_with_kvcache(new, *caches, *added, **before),
            "flash_attn_with_kvcache, new rows, a number of rows": lambda: flash_attn_with_kvcache(new, *caches, *added, cache_seqlens=context - 1, causal=True),
            "flash_attn_with_kvcache, pages, new rows": lambda: flash_attn_with_kvcache(new, *pages, *added, **before, block_table=table),
            "flash_attn_with_kvcache, pages, new rows, rotary": lambda: flash_attn_with_kvcache(new, *pages, *added, *turns, **before, block_table=table),
            "flash_attn_interface.flash_attn_with_kvcache, pages, new rows, rotary": lambda: flash_attn_interface.flash_attn_with_kvcache(
                new, *pages, *added, rotary_cos=turns[0], rotary_sin=turns[1], **before, page_table=table),
        }
        self.by_operators = [name for name in self.calls if name.startswith("flash_attn_with_kvcache") and "new rows" in name and "number" not in name]


class Kept:
    """What dfa._torch_again keeps of a call, seen while it is made."""

    def __init__(self, call):
        self.key = self.launch = None
        keep, launch = _torch_again.keep, _torch_again.launch

        def watched_keep(key, made, tensors):
            self.key = key
            keep(key, made, tensors)

        def watched_launch(*arguments, **options):
            self.launch = arguments, options
            return launch(*arguments, **options)
        _torch_again.clear()
        _torch_again.keep, _torch_again.launch = watched_keep, watched_launch
        try:
            call()
        finally:
            _torch_again.keep, _torch_again.launch = keep, launch

    def launch_alone(self):
        (plan, places, o, lse), options = self.launch
        tensors = {name: self.key[place] for name, place in places.items()} | (options.get("constants") or {})
        if options.get("prepare"):
            tensors |= zip(options["prepared"], options["prepare"](*self.key[1:]))
        workspace = torch.empty(plan.workspace_bytes + 64, dtype=torch.uint8, device=DEVICE)

        def at(name):
            return tensors[name].data_ptr() if name in tensors else 0
        lengths = [at(name) for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")]
        pages = at("block_table"), *options.get("steps", {}).get("block_table", [0]), at("leftpad_k")
        stream = torch.cuda.current_stream().cuda_stream if DEVICE == "cuda" else 0
        pointers = [at(name) for name in "qkv"] + [o.data_ptr(), 0, (workspace.data_ptr() + 63) // 64 * 64, stream, lengths,
                                                   (0, 0, 0, 0, (0, 0, 0)), pages]

        def launch(kept=(tensors, o, workspace)):
            plan._forward(*pointers)
        return launch

    def outputs(self):
        """Allocates what a call returns, and its workspace."""
        (plan, _, o, lse), options = self.launch
        makers = [_torch_again._maker_of(x) for x in ((o, lse) if "l" in options["returns"] else (o,))]
        if plan.workspace_bytes:
            makers.append(_torch_again._maker((plan.workspace_bytes,), (1,), torch.uint8, o.device))
        return lambda: [make(*arguments, **named) for make, arguments, named in makers]


def costs(call):
    kept = Kept(call)
    found = {"call": microseconds(call)}
    if kept.key is None or _torch_again.recall(kept.key) is None:
        return found
    found["recalled"] = microseconds(lambda: _torch_again.recall(kept.key))
    if kept.launch is not None:
        found["launch"] = microseconds(kept.launch_alone())
        found["made"] = microseconds(kept.outputs())
        if prepare := kept.launch[1].get("prepare"):
            found["append"] = microseconds(lambda: prepare(*kept.key[1:]))
        found["over the launch"] = round(found["call"] - found["launch"], 2)
    return found


@torch.no_grad()
def doors():
    all_doors = Doors()
    found = {name: costs(call) for name, call in all_doors.calls.items()}
    by_kernel, _torch_append.BY_KERNEL = _torch_append.BY_KERNEL, False
    for name in all_doors.by_operators * by_kernel:
        found[f"{name}, by operators"] = costs(all_doors.calls[name])
    _torch_append.BY_KERNEL = by_kernel
    return found


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
    only_doors, files = "--doors" in sys.argv[1:], [x for x in sys.argv[1:] if x != "--doors"]
    measures = {"doors_us": doors, "host_us": lambda: calls(q, k, v), "layer_us": lambda: layers(q, k, v)}
    for name, measure in list(measures.items())[:1 if only_doors else None]:  # compiling may outlast patience
        result[name] = measure()
        if files:
            with open(files[0], "w") as file:
                file.write(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
