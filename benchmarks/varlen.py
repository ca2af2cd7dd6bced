#!/usr/bin/env python3
"""Packed sequences: dfa.attention_varlen beside whatever peers are there, in turns on one card.

Usage: python3 benchmarks/varlen.py [--configs FILE] [--fa3 LIBRARY] [--joules]    needs the package dfa, PyTorch and a GPU

Peers: FlashAttention-4 (flash_attn.cute), FlashAttention-3 (flash_attn_interface, or a LIBRARY with its operators, such as
xformers' flash_attn_3/_C.so), and torch.nn.attention.varlen; those that cannot be imported are named. A line a row and pass:
TFLOP/s by true lengths (half for causal), the median of bursts taken in turns, and `dense`, the same lengths where they are all
alike as a dense call. --joules: behind a slash GFLOP/J, by the card's counter over a second of each. --configs: lines
`fwd|bwd CONFIG` whose configurations are timed as further columns of ours.
Each implementation first holds one call against dfa's own of each sequence alone.
"""
import argparse
import random
import statistics

import torch

import dfa
import flash_attention_3
from cuda_bursts import joules, seconds
from dfa import _core

SECONDS, BURSTS = 0.12, 7
ROWS = [("26 of 16..2048", (16, 16, 128), None), ("128 of 512", (16, 4, 128), [512] * 128),
        ("8192 and 64 of 128", (16, 4, 128), [8192] + [128] * 64), ("19 of 16..2048", (32, 8, 64), None),
        ("8 of 2048", (16, 16, 128), [2048] * 8), ("16 of 1024", (32, 32, 64), [1024] * 16)]


def lengths_of(row):
    name, _, lengths = row
    if lengths is not None:
        return lengths
    count = int(name.split()[0])
    for seed in range(100000):  # logarithms spread evenly, 16k rows in all
        rng = random.Random(seed)
        drawn = [round(16 * 128 ** rng.random()) for _ in range(count)]
        if abs(sum(drawn) - 16384) < 64 and max(drawn) > 1900:
            return drawn
    raise SystemExit(f"no {count} lengths have 16k rows in all")


class Row:
    def __init__(self, row):
        (self.name, (hq, hk, d), _), self.lengths = row, lengths_of(row)
        total, self.d, self.hq, self.hk = sum(self.lengths), d, hq, hk
        q, k, v, d_o = (torch.randn(total, h, d, device="cuda", dtype=torch.bfloat16) for h in (hq, hk, hk, hq))
        self.q, self.k, self.v, self.d_o = q, k, v, d_o
        self.cu = torch.tensor([0, *self.lengths], device="cuda").cumsum(0).to(torch.int32)
        self.most = max(self.lengths)
        self.flops = {"fwd": 2 * hq * d * sum(n * n for n in self.lengths)}
        self.flops["bwd"] = 2.5 * self.flops["fwd"]

    def line(self, kind):
        total = sum(self.lengths)
        return (f"{kind} bf16 causal b{len(self.lengths)} hq{self.hq} hk{self.hk} sq{total} sk{total} d{self.d} "
                f"packed({total},{total})")


def ours(row, kind, config=""):
    """A call past autograd, as a kernel's own time is asked for."""
    plan = dfa.plan(row.line(kind), backend="cuda", config=config)
    lengths = [row.cu.data_ptr()] * 2 + [0, 0]
    workspace = torch.empty(plan.workspace_bytes, device="cuda", dtype=torch.uint8)
    o, lse = dfa.attention_varlen(row.q, row.k, row.v, row.cu, causal=True, return_lse=True)
    stream = torch.cuda.current_stream().cuda_stream
    if kind == "fwd":
        tensors = [row.q, row.k, row.v, o, lse, workspace]
        return lambda: plan._forward(*(x.data_ptr() for x in tensors), stream, lengths), (o,)
    gradients = [torch.empty_like(x) for x in (row.q, row.k, row.v)]
    tensors = [row.q, row.k, row.v, o, lse, row.d_o, *gradients, workspace]
    return lambda: plan._backward(*(x.data_ptr() for x in tensors), stream, lengths), gradients


def by_autograd(row, kind, call):
    if kind == "fwd":
        with torch.no_grad():
            o = call(row.q, row.k, row.v)
        def forward():
            with torch.no_grad():
                return call(row.q, row.k, row.v)
        return forward, (o,)
    tensors = [x.detach().clone().requires_grad_() for x in (row.q, row.k, row.v)]
    o = call(*tensors)
    return lambda: torch.autograd.grad(o, tensors, row.d_o, retain_graph=True), torch.autograd.grad(o, tensors, row.d_o,
                                                                                                    retain_graph=True)


def peers(library):
    found = {}
    try:
        from flash_attn.cute import flash_attn_varlen_func as fa4
        found["FA4"] = lambda row: lambda q, k, v: fa4(q, k, v, cu_seqlens_q=row.cu, cu_seqlens_k=row.cu, max_seqlen_q=row.most,
                                                       max_seqlen_k=row.most, causal=True)[0]
    except Exception as error:  # noqa: BLE001: whatever keeps a peer away is told
        print("no FlashAttention-4:", " ".join(str(error).split())[:200])
    try:
        fa3 = flash_attention_3.varlen(library)
        found["FA3"] = lambda row: lambda q, k, v: fa3(q, k, v, row.cu, row.most)
    except Exception as error:  # noqa: BLE001
        print("no FlashAttention-3:", " ".join(str(error).split())[:200])
    try:
        from torch.nn.attention.varlen import varlen_attn
        found["torch"] = lambda row: lambda q, k, v: _torch_varlen(varlen_attn, row, q, k, v)
    except Exception as error:  # noqa: BLE001
        print("no torch.nn.attention.varlen:", " ".join(str(error).split())[:200])
    return found


def _torch_varlen(varlen_attn, row, q, k, v):
    group = row.hq // row.hk
    if group > 1:
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    try:
        return varlen_attn(q, k, v, row.cu, row.cu, row.most, row.most, window_size=(-1, 0))
    except TypeError:  # PyTorch 2.11
        return varlen_attn(q, k, v, row.cu, row.cu, row.most, row.most, True)


def truth(row, kind):
    """Of each sequence alone, by dense calls that are tested elsewhere."""
    outputs = []
    for begin, n in zip(row.cu.tolist(), row.lengths):
        q, k, v, d_o = (x[begin:begin + n].transpose(0, 1)[None].contiguous() for x in (row.q, row.k, row.v, row.d_o))
        if kind == "fwd":
            outputs.append([dfa.attention(q, k, v, causal=True)])
            continue
        tensors = [x.requires_grad_() for x in (q, k, v)]
        outputs.append(torch.autograd.grad(dfa.attention(*tensors, causal=True), tensors, d_o))
    return [torch.cat([x[0].transpose(0, 1) for x in tensors]) for tensors in zip(*outputs)]


def check(name, row, kind, call, outputs, right):
    for x in outputs if not isinstance(outputs, tuple) else ():
        x.fill_(torch.nan)
    result = call()
    torch.cuda.synchronize()
    for got, wanted in zip(result if result is not None and name != "dfa" and not isinstance(result, torch.Tensor) else outputs, right):
        error = float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())
        if not error < 0.02:
            raise SystemExit(f"{name} {kind} {row.name}: differs from each sequence alone by {error:.3g} of the largest")


def dense(row, kind):
    if len(set(row.lengths)) > 1:
        return None
    b, n = len(row.lengths), row.lengths[0]
    q, k, v, d_o = (x.view(b, n, -1, row.d).transpose(1, 2) for x in (row.q, row.k, row.v, row.d_o))
    if kind == "fwd":
        return lambda: dfa.attention(q, k, v, causal=True)
    tensors = [x.detach().requires_grad_() for x in (q, k, v)]
    o = dfa.attention(*tensors, causal=True)
    return lambda: torch.autograd.grad(o, tensors, d_o, retain_graph=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs")
    parser.add_argument("--fa3", metavar="LIBRARY")
    parser.add_argument("--joules", action="store_true")
    arguments = parser.parse_args()
    configs = [line.split(None, 1) for line in open(arguments.configs)] if arguments.configs else []
    others = peers(arguments.fa3)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for row in map(Row, ROWS):
        for kind in ("fwd", "bwd"):
            right = truth(row, kind)
            calls = {}
            for name, config in [("dfa", ""), *((text.strip(), text.strip()) for of, text in configs if of == kind)]:
                try:
                    calls[name], outputs = ours(row, kind, config)
                except (ValueError, RuntimeError) as error:
                    if not config:
                        raise
                    continue
                check("dfa", row, kind, calls[name], list(outputs), right)
            for name, make in others.items():
                try:
                    calls[name], outputs = by_autograd(row, kind, make(row))
                    check(name, row, kind, calls[name], tuple(outputs), right)
                except Exception as error:  # noqa: BLE001
                    print("  ", name, "does not:", " ".join(str(error).split())[:160])
                    calls.pop(name, None)
            if (alike := dense(row, kind)) is not None:
                calls["dense"] = alike
            runs = {name: max(2, int(SECONDS / BURSTS / seconds(call, 3))) for name, call in calls.items()}
            times = {name: [] for name in calls}
            for _ in range(BURSTS):
                for name in random.sample(list(calls), len(calls)):
                    times[name].append(seconds(calls[name], runs[name]))
            rate = {name: f"{row.flops[kind] / statistics.median(t) * 1e-12:.0f}" for name, t in times.items()}
            for name, call in calls.items() if arguments.joules else ():
                joule = joules(call, 1, runs[name])
                rate[name] += " / not measured" if joule is None else f" / {row.flops[kind] / joule * 1e-9:.0f}"
            plan = dfa.plan(row.line(kind), backend="cuda")
            print(f"{row.name:20} h{row.hq}/{row.hk} d{row.d} {kind}  " +
                  "  ".join(f"{name if len(name) < 12 else '[' + name[-60:] + ']'} {value}" for name, value in rate.items()),
                  f"  ({plan.config or plan.backward_config})", flush=True)


if __name__ == "__main__":
    main()
