#!/usr/bin/env python3
"""Decode over a paged cache in bf16 and in e4m3: dfa beside FlashAttention-4, in turns on one card.

Usage: python3 benchmarks/decode.py [--configs FILE] [--rows N,…]    needs the package dfa, PyTorch and a GPU

One query a sequence in bf16, lengths of 3/4 to 1 of the context. A line a row: the median of bursts taken in turns of CUDA graphs of
several calls, in microseconds, with the cache in bf16 (dfa) and in e4m3 with a factor for each sequence and key head (e4m3); then for
each of the two GB/s that ours reads of keys and values, the share of that of the bandwidth of a copy, read and written, in the same
run, and millijoules that the card spends on a token, by its counter; the time of e4m3 as a part of bf16's; and microseconds that the
host takes for a call. --configs: configurations, one a line, whose kernels are timed as further columns; those that begin with `e4m3 `
are of that cache. Each implementation first holds one call against softmax in fp32 of the numbers that it reads.
"""
import argparse
import random
import statistics
import time

import torch

import dfa
from cuda_bursts import graph_of, joules, seconds
from dfa import flash_attn

CALLS, SECONDS, BURSTS = 10, 0.06, 7
ROWS = [(1, 32768, 32, 8, 128, 16), (8, 8192, 32, 8, 128, 16), (32, 4096, 32, 8, 128, 16), (64, 8192, 32, 8, 128, 64),
        (64, 2048, 64, 8, 64, 16), (1, 131072, 32, 8, 128, 256), (128, 1024, 32, 8, 128, 16), (16, 2048, 28, 4, 128, 16),
        (64, 16384, 32, 8, 128, 64), (8, 131072, 32, 8, 128, 256), (64, 16384, 64, 8, 64, 64)]
E4M3 = "e4m3 "


class Row:
    def __init__(self, b, context, hq, hk, d, page):
        self.name, self.b, self.hq, self.hk, self.d, self.page = f"b{b} {context} h{hq}/{hk} d{d} page {page}", b, hq, hk, d, page
        rng = random.Random(b * context)
        self.context, self.lengths = context, [rng.randint(context * 3 // 4, context) for _ in range(b)]
        columns = context // page
        self.k, self.v = (torch.randn(b * columns, page, hk, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.q = torch.randn(b, 1, hq, d, device="cuda", dtype=torch.bfloat16)
        self.table = torch.randperm(b * columns, device="cuda", dtype=torch.int32).view(b, columns)
        self.used = torch.tensor(self.lengths, device="cuda", dtype=torch.int32)
        self.cu = torch.arange(b + 1, device="cuda", dtype=torch.int32)
        for i, n in enumerate(self.lengths):  # nothing behind the end may be read as a number
            for tensor in (self.k, self.v):
                tensor[self.table[i, n // page:].long()] = torch.where(
                    (torch.arange(columns - n // page, device="cuda")[:, None] * page + torch.arange(page, device="cuda") >= n % page)
                    [..., None, None], torch.nan, tensor[self.table[i, n // page:].long()])
        self.bytes = 2 * 2 * hk * d * sum(self.lengths)
        (self.k8, self.k_descale), (self.v8, self.v_descale) = self.quantized(self.k), self.quantized(self.v)

    def quantized(self, cache):
        """In e4m3, NaN as it is, and factors [b, hk], which differ."""
        pages = self.table.long()
        factors = torch.stack([cache[of].nan_to_num(0).abs().amax((0, 1, 3)).float() / 448 for of in pages])
        codes = torch.empty_like(cache, dtype=torch.uint8)  # bytes: PyTorch indexes no numbers of 8 bits
        for of, factor in zip(pages, factors):
            codes[of] = (cache[of] / factor[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
        return codes, factors

    def numbers(self, i, e4m3):
        """Keys and values of a sequence in fp32."""
        for x, codes, factors in ((self.k, self.k8, self.k_descale), (self.v, self.v8, self.v_descale)):
            rows = (codes if e4m3 else x)[self.table[i].long()].flatten(0, 1)[:self.lengths[i]]
            yield rows.view(torch.float8_e4m3fn).float() * factors[i][:, None] if e4m3 else rows.float()

    def truth(self, i, e4m3):
        k, v = (x.repeat_interleave(self.hq // self.hk, 1) for x in self.numbers(i, e4m3))
        scores = torch.einsum("hd,nhd->hn", self.q[i, 0].float(), k) * self.d ** -0.5
        return torch.einsum("hn,nhd->hd", scores.softmax(1), v)

    def check(self, name, o):
        for i in {0, self.b // 2, self.b - 1}:
            wanted = self.truth(i, name.startswith(E4M3.strip()))
            error = float((o.view(self.b, self.hq, self.d)[i].float() - wanted).abs().max() / wanted.abs().max())
            if not error < 0.02:
                raise SystemExit(f"{name} {self.name}: sequence {i} differs from softmax by {error:.3g} of the largest")

    def line(self):
        return f"fwd bf16 b{self.b} hq{self.hq} hk{self.hk} sq1 sk{self.context} d{self.d} page({self.page})"


def ours(row, config=""):
    e4m3, config = config.startswith(E4M3), config.removeprefix(E4M3)
    plan = dfa.plan(row.line() + (" kv(e4m3)" if e4m3 else ""), backend="cuda", config=config)
    workspace = torch.empty(plan.workspace_bytes, device="cuda", dtype=torch.uint8)
    o, lse = torch.empty_like(row.q), torch.empty(row.hq, row.b, device="cuda")
    cache = (row.k8, row.v8) if e4m3 else (row.k, row.v)
    factors = [(x.data_ptr(), *x.stride()) for x in (row.k_descale, row.v_descale)] if e4m3 else [(0, 0, 0)] * 2
    tensors = [x.data_ptr() for x in (row.q, *cache, o, lse, workspace)]
    lengths, pages = [0, 0, 0, row.used.data_ptr()], (row.table.data_ptr(), row.table.stride(0), 0)

    def call():
        plan._forward(*tensors, torch.cuda.current_stream().cuda_stream, lengths, (0, 0, 0, 0, (0, 0, 0)), pages,
                      descales=[(0, 0, 0), *factors])
        return o
    call.kept = plan, workspace, lse
    return call


def door(row):
    return lambda: flash_attn.flash_attn_with_kvcache(row.q, row.k, row.v, cache_seqlens=row.used, block_table=row.table)


def peers(row):
    found = {}
    try:
        from flash_attn.cute import flash_attn_varlen_func as fa4
        found["FA4"] = lambda: fa4(row.q[:, 0], row.k, row.v, cu_seqlens_q=row.cu, max_seqlen_q=1, max_seqlen_k=row.context,
                                   seqused_k=row.used, page_table=row.table, causal=True)[0]
    except Exception as error:  # noqa: BLE001: whatever keeps a peer away is told
        print("no FlashAttention-4:", " ".join(str(error).split())[:200])
    return found


def host_us(call, runs=200):
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(runs):
        call()
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken / runs * 1e6


def copy_bandwidth():
    a, b = (torch.empty(1 << 29, device="cuda") for _ in range(2))
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        b.copy_(a)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return 2 * 4 * a.numel() / min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--configs")
    parser.add_argument("--rows")
    arguments = parser.parse_args()
    configs = [line.strip() for line in open(arguments.configs) if line.strip()] if arguments.configs else []
    rows = [ROWS[int(i)] for i in arguments.rows.split(",")] if arguments.rows else ROWS
    copied = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, a copy reads and writes {copied * 1e-12:.2f} TB/s", flush=True)
    for row in (Row(*r) for r in rows):
        calls = {"dfa": ours(row), "e4m3": None, **{c: None for c in configs}, **peers(row)}
        for config in [E4M3, *configs]:
            try:
                calls[config.rstrip()] = ours(row, config)
            except (ValueError, RuntimeError) as error:
                print("  ", config, "does not:", " ".join(str(error).split())[:160])
                calls.pop(config.rstrip())
        for name, call in list(calls.items()):
            try:
                row.check(name, call())
                calls[name] = graph_of(call, CALLS)
            except Exception as error:  # noqa: BLE001
                print("  ", name, "does not:", " ".join(str(error).split())[:200])
                calls.pop(name)
        runs = {name: max(2, int(SECONDS / BURSTS / seconds(graph.replay, 2))) for name, graph in calls.items()}
        times = {name: [] for name in calls}
        for _ in range(BURSTS):
            for name in random.sample(list(calls), len(calls)):
                times[name].append(seconds(calls[name].replay, runs[name]) / CALLS)
        us = {name: statistics.median(t) * 1e6 for name, t in times.items()}

        def of_cache(name, read):
            rate, spent = read / us[name] * 1e6, joules(calls[name].replay, least_s=1, at_once=20)
            return f"{rate * 1e-9:.0f} GB/s, {rate / copied:.3f} of a copy, " + \
                ("joules not measured" if spent is None else f"{spent / CALLS / row.b * 1e3:.2f} mJ a token")
        print(f"{row.name:32}" + "  ".join(f"{name[-44:]} {value:.1f}" for name, value in us.items()) +
              f"   {of_cache('dfa', row.bytes)}; " +
              (f"e4m3 {of_cache('e4m3', row.bytes / 2)}, {us['e4m3'] / us['dfa']:.3f} of bf16's time; " if "e4m3" in us else "") +
              f"host {host_us(ours(row)):.1f} us, by the door {host_us(door(row)):.1f}", flush=True)
        row.check("door", door(row)())


if __name__ == "__main__":
    main()
