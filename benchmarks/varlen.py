#!/usr/bin/env python3
"""Packed sequences: dfa.attention_varlen beside whatever peers are there, in turns on one card.

Usage: python3 benchmarks/varlen.py [--configs FILE] [--fa3 LIBRARY] [--joules] [--pages N,…] [--only TEXT] [--forward]
needs the package dfa, PyTorch and a GPU

Peers: FlashAttention-4 (flash_attn.cute), FlashAttention-3 (flash_attn_interface, or a LIBRARY with its operators, such as
xformers' flash_attn_3/_C.so), and torch.nn.attention.varlen; those that cannot be imported are named. A line a row and pass:
TFLOP/s by true lengths (half for causal), the median of bursts taken in turns, and `dense`, the same lengths where they are all
alike as a dense call. --joules: behind a slash GFLOP/J, by the card's counter over a second of each. --configs: lines
`fwd|bwd CONFIG` whose configurations are timed as further columns of ours. --pages: forwards of the same keys and values in
pages of so many rows, in no order and NaN behind each end, as planned and, where that is Hopper's own, by cuda_sm80; the share of the
packed one's rate behind each. --only: rows whose name has the text; --forward: no backward.
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
        ("8 of 2048", (16, 16, 128), [2048] * 8), ("16 of 1024", (32, 32, 64), [1024] * 16),
        ("4 of 512 on 8192", (32, 8, 128), [512] * 4, [8192] * 4), ("2 of 8192", (32, 8, 128), [8192] * 2)]


def lengths_of(row):
    name, _, lengths, *_ = row
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
        (self.name, (hq, hk, d), _, *keys), self.lengths = row, lengths_of(row)
        self.keys = keys[0] if keys else self.lengths
        self.kinds = ("fwd",) if keys else ("fwd", "bwd")
        total, total_k, self.d, self.hq, self.hk = sum(self.lengths), sum(self.keys), d, hq, hk
        q, d_o = (torch.randn(total, hq, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        k, v = (torch.randn(total_k, hk, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.q, self.k, self.v, self.d_o = q, k, v, d_o
        self.cu, self.cu_k = (torch.tensor([0, *x], device="cuda").cumsum(0).to(torch.int32) for x in (self.lengths, self.keys))
        self.most, self.most_k = max(self.lengths), max(self.keys)
        self.flops = {"fwd": 2 * hq * d * sum(n * (2 * m - n) for n, m in zip(self.lengths, self.keys))}
        self.flops["bwd"] = 2.5 * self.flops["fwd"]

    def line(self, kind):
        total, total_k = sum(self.lengths), sum(self.keys)
        return (f"{kind} bf16 causal b{len(self.lengths)} hq{self.hq} hk{self.hk} sq{total} sk{total_k} d{self.d} "
                f"packed({total},{total_k})")

    def in_pages(self, page):
        """The problem line, k and v, the table, and how many rows each sequence has."""
        counts = [-(-n // page) for n in self.keys]
        order = torch.randperm(sum(counts), device="cuda", dtype=torch.int32).split(counts)
        table = torch.full((len(counts), max(counts)), -1, device="cuda", dtype=torch.int32)
        k, v = (torch.full((sum(counts), page, self.hk, self.d), torch.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        for i, (pages, begin, n) in enumerate(zip(order, self.cu_k.tolist(), self.keys)):
            table[i, :len(pages)] = pages
            for cache, rows in ((k, self.k), (v, self.v)):
                whole = torch.full((len(pages) * page, self.hk, self.d), torch.nan, device="cuda", dtype=torch.bfloat16)
                whole[:n] = rows[begin:begin + n]
                cache[pages.long()] = whole.view(len(pages), page, self.hk, self.d)
        total = sum(self.lengths)
        line = (f"fwd bf16 causal b{len(counts)} hq{self.hq} hk{self.hk} sq{total} sk{self.most_k} d{self.d} "
                f"packed({total},{sum(counts) * page}) page({page})")
        return line, k, v, table, torch.tensor(self.keys, device="cuda", dtype=torch.int32)


def ours(row, kind, config=""):
    """A call past autograd, as a kernel's own time is asked for."""
    plan = dfa.plan(row.line(kind), backend="cuda", config=config)
    lengths = [row.cu.data_ptr(), row.cu_k.data_ptr(), 0, 0]
    workspace = torch.empty(plan.workspace_bytes, device="cuda", dtype=torch.uint8)
    o, lse = dfa.attention_varlen(row.q, row.k, row.v, row.cu, row.cu_k, causal=True, return_lse=True)
    stream = torch.cuda.current_stream().cuda_stream
    if kind == "fwd":
        tensors = [row.q, row.k, row.v, o, lse, workspace]
        return lambda: plan._forward(*(x.data_ptr() for x in tensors), stream, lengths), (o,)
    gradients = [torch.empty_like(x) for x in (row.q, row.k, row.v)]
    tensors = [row.q, row.k, row.v, o, lse, row.d_o, *gradients, workspace]
    return lambda: plan._backward(*(x.data_ptr() for x in tensors), stream, lengths), gradients


def over_pages(row, page, config=""):
    line, k, v, table, used = row.in_pages(page)
    plan = dfa.plan(line, backend="cuda", config=config)
    workspace = torch.empty(plan.workspace_bytes, device="cuda", dtype=torch.uint8)
    o, lse = torch.full_like(row.q, torch.nan), torch.empty(row.hq, row.q.shape[0], device="cuda")
    tensors, stream = [row.q, k, v, o, lse, workspace], torch.cuda.current_stream().cuda_stream
    lengths, pages = [row.cu.data_ptr(), 0, 0, used.data_ptr()], (table.data_ptr(), table.stride(0), 0)

    def call():
        plan._forward(*(x.data_ptr() for x in tensors), stream, lengths, (0, 0, 0, 0, (0, 0, 0)), pages)
    call.kept = table, used
    return call, o, plan.config


def paged_calls(row, pages, right):
    calls = {}
    for page in pages:
        call, o, planned = over_pages(row, page)
        check("dfa", row, "fwd", call, [o], right)
        calls[f"page {page}"] = call
        if "cuda_sm90" in planned:
            call, o, _ = over_pages(row, page, "target=cuda_sm80")
            check("dfa", row, "fwd", call, [o], right)
            calls[f"page {page} sm80"] = call
    return calls


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
        found["FA4"] = lambda row: lambda q, k, v: fa4(q, k, v, cu_seqlens_q=row.cu, cu_seqlens_k=row.cu_k,
                                                       max_seqlen_q=row.most, max_seqlen_k=row.most_k, causal=True)[0]
    except Exception as error:  # noqa: BLE001: whatever keeps a peer away is told
        print("no FlashAttention-4:", " ".join(str(error).split())[:200])
    try:
        fa3 = flash_attention_3.varlen(library)
        found["FA3"] = lambda row: lambda q, k, v: fa3(q, k, v, row.cu, row.cu_k, row.most, row.most_k)
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
        return varlen_attn(q, k, v, row.cu, row.cu_k, row.most, row.most_k, window_size=(-1, 0))
    except TypeError:  # PyTorch 2.11
        return varlen_attn(q, k, v, row.cu, row.cu_k, row.most, row.most_k, True)


def truth(row, kind):
    """Of each sequence alone, by dense calls that are tested elsewhere."""
    outputs = []
    for begin, n, begin_k, m in zip(row.cu.tolist(), row.lengths, row.cu_k.tolist(), row.keys):
        q, d_o = (x[begin:begin + n].transpose(0, 1)[None].contiguous() for x in (row.q, row.d_o))
        k, v = (x[begin_k:begin_k + m].transpose(0, 1)[None].contiguous() for x in (row.k, row.v))
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
    b = len(row.lengths)
    q, k, v, d_o = (x.view(b, x.shape[0] // b, -1, row.d).transpose(1, 2) for x in (row.q, row.k, row.v, row.d_o))
    if kind == "fwd":
        return lambda: dfa.attention(q, k, v, causal=True)
    tensors = [x.detach().requires_grad_() for x in (q, k, v)]
    o = dfa.attention(*tensors, causal=True)
    return lambda: torch.autograd.grad(o, tensors, d_o, retain_graph=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs")
    parser.add_argument("--pages", type=lambda text: [int(x) for x in text.split(",")], default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--fa3", metavar="LIBRARY")
    parser.add_argument("--joules", action="store_true")
    asked = parser.parse_args()
    configs = [line.split(None, 1) for line in open(asked.configs)] if asked.configs else []
    others = peers(asked.fa3)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for row in map(Row, (row for row in ROWS if asked.only in row[0])):
        for kind in row.kinds[:1] if asked.forward else row.kinds:
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
            if kind == "fwd":
                calls |= paged_calls(row, asked.pages, right)
            if (alike := dense(row, kind)) is not None:
                calls["dense"] = alike
            runs = {name: max(2, int(SECONDS / BURSTS / seconds(call, 3))) for name, call in calls.items()}
            times = {name: [] for name in calls}
            for _ in range(BURSTS):
                for name in random.sample(list(calls), len(calls)):
                    times[name].append(seconds(calls[name], runs[name]))
            rates = {name: row.flops[kind] / statistics.median(t) * 1e-12 for name, t in times.items()}
            rate = {name: f"{value:.0f}" for name, value in rates.items()}
            for name, call in calls.items() if asked.joules else ():
                joule = joules(call, 1, runs[name])
                rate[name] += " / not measured" if joule is None else f" / {row.flops[kind] / joule * 1e-9:.0f}"
            plan = dfa.plan(row.line(kind), backend="cuda")
            share = {name: f" ({value / rates['dfa']:.3f})" for name, value in rates.items() if name.startswith("page ")}
            print(f"{row.name:20} h{row.hq}/{row.hk} d{row.d} {kind}  " +
                  "  ".join(f"{name if len(name) < 14 else '[' + name[-60:] + ']'} {value}{share.get(name, '')}"
                            for name, value in rate.items()),
                  f"  ({plan.config or plan.backward_config})", flush=True)


if __name__ == "__main__":
    main()
