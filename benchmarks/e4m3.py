#!/usr/bin/env python3
"""Forward in e4m3 beside bf16, and beside cuDNN's in e4m3, in turns on one card.

Usage: python3 benchmarks/e4m3.py [--rows N,…] [--configs FILE] [--seconds 0.4]    needs the package dfa, PyTorch and a GPU of 9.0;
       cuDNN's by nvidia-cudnn-frontend 1.14, where it can be imported

A line a row and way: TFLOP/s, the median of bursts in turns of CUDA graphs; the ratio to ours in bf16; GFLOP/J by the card's energy
counter over windows of --seconds, in turns likewise (0: not measured). FLOP are those of what the mask shows. --configs:
configurations of the forward in e4m3, one a line, as further ways. Each way first holds a call against softmax in fp32 of the
numbers times their factors.
"""
import argparse
import random
import statistics
import time

import torch

import dfa
from cuda_bursts import graph_of, joules, seconds

BURSTS, BURST_S = 5, 0.03
ROWS = [(d, causal, s) for d in (64, 128, 256) for causal in (False, True) for s in (4096, 16384)] + [(128, False, 1024), (128, True, 1024)]
TOKENS, WIDTH = 16384, 4096  # of a row: batches by length, query heads by head dim


class Row:
    def __init__(self, d, causal, s):
        self.d, self.causal, self.s, self.b, self.hq = d, causal, s, TOKENS // s, WIDTH // d
        self.hk = self.hq // 8
        self.name = f"d{d} {'causal' if causal else 'full'} {s} b{self.b} h{self.hq}/{self.hk}"
        made = [torch.randn(self.b, s, h, d, device="cuda") for h in (self.hq, self.hk, self.hk)]
        self.bf16 = [x.to(torch.bfloat16) for x in made]
        self.descales = [torch.rand(self.b, h, device="cuda") * 0.5 + 0.75 for h in (self.hk,) * 3]
        self.e4m3 = [x.to(torch.float8_e4m3fn) for x in made]
        seen = s * (s + 1) / 2 if causal else s * s
        self.flop = 4 * self.b * self.hq * d * seen

    def line(self, element):
        return f"fwd {element}{' causal' if self.causal else ''} b{self.b} hq{self.hq} hk{self.hk} s{self.s} d{self.d} layout(bshd)"

    def truth(self, tensors, factors, rows):
        """Of the last batch and head, some rows."""
        q, k, v = (x[-1, :, -1].float() for x in tensors)
        fq, fk, fv = (float(f[-1, -1]) for f in factors) if factors else (1, 1, 1)
        scores = q[rows] @ k.T * (fq * fk * self.d ** -0.5)
        if self.causal:
            scores.masked_fill_(torch.arange(self.s, device="cuda") > torch.tensor(rows, device="cuda")[:, None], -torch.inf)
        return scores.softmax(1) @ v * fv

    def check(self, o, tensors, factors, bound):
        rows = sorted({0, 1, self.s // 2, self.s - 1, *random.sample(range(self.s), 60)})
        wanted = self.truth(tensors, factors, rows)
        error = float((o[-1, rows, -1].float() - wanted).norm() / wanted.norm())
        if not error < bound:
            raise RuntimeError(f"differs from softmax by {error:.3g} of the norm")
        return error


def ours(row, element, config=""):
    plan = dfa.plan(row.line(element), backend="cuda", config=config)
    workspace = torch.empty(plan.workspace_bytes, device="cuda", dtype=torch.uint8)
    tensors = getattr(row, element)
    factors = row.descales if element == "e4m3" else None
    o = torch.full(row.bf16[0].shape, torch.nan, device="cuda", dtype=torch.bfloat16)
    lse = torch.empty(row.b, row.hq, row.s, device="cuda")
    descales = [(f.data_ptr(), row.hk, 1) for f in factors] if factors else [(0, 0, 0)] * 3

    def call():
        plan._forward(*(x.data_ptr() for x in (*tensors, o, lse, workspace)), torch.cuda.current_stream().cuda_stream, descales=descales)
    call()
    torch.cuda.synchronize()
    call.error = row.check(o, tensors, factors, 0.01 if element == "bf16" else 0.06)
    call.kept, call.config = (workspace, lse, o), plan.config
    return call


def cudnn_e4m3(row):
    import cudnn
    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    shapes = [x.transpose(1, 2) for x in row.e4m3]
    q, k, v = (graph.tensor(name=n, dim=list(x.shape), stride=list(x.stride()), data_type=cudnn.data_type.FP8_E4M3)
               for n, x in zip("qkv", shapes))
    names = ["descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o"]
    scales = {n: graph.tensor(name=n, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1], data_type=cudnn.data_type.FLOAT) for n in names}
    o, _, amax_s, amax_o = graph.sdpa_fp8(q=q, k=k, v=v, **scales, is_inference=True, attn_scale=row.d ** -0.5, use_causal_mask=row.causal)
    out = torch.zeros_like(row.e4m3[0])
    shape = out.transpose(1, 2)
    o.set_output(True).set_dim(list(shape.shape)).set_stride(list(shape.stride())).set_data_type(cudnn.data_type.FP8_E4M3)
    for amax in (amax_s, amax_o):
        amax.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    largest = {"scale_s": 256.0, "descale_s": 1 / 256.0, "scale_o": 16.0}
    values = {n: torch.full((1, 1, 1, 1), largest.get(n, 1.0), device="cuda") for n in names}
    workspace = torch.empty(graph.get_workspace_size(), device="cuda", dtype=torch.uint8)
    largest_s, largest_o = torch.zeros(1, 1, 1, 1, device="cuda"), torch.zeros(1, 1, 1, 1, device="cuda")
    pack = {q: row.e4m3[0], k: row.e4m3[1], v: row.e4m3[2], o: out, amax_s: largest_s, amax_o: largest_o,
            **{scales[n]: values[n] for n in names}}

    def call():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, workspace, handle=handle)
    call()
    torch.cuda.synchronize()
    call.error = row.check(out.float() / 16, row.e4m3, None, 0.12)
    call.kept, call.config = (workspace, out, pack), f"cuDNN {cudnn.backend_version()}"
    return call


def measure(row, configs, window):
    ways = {"bf16": lambda: ours(row, "bf16"), "e4m3": lambda: ours(row, "e4m3"), "cuDNN e4m3": lambda: cudnn_e4m3(row)}
    ways.update({config: lambda config=config: ours(row, "e4m3", config) for config in configs})
    graphs, calls = {}, {}
    print(row.name, flush=True)
    for name, make in ways.items():
        try:
            calls[name] = make()
            graphs[name] = graph_of(calls[name])
        except Exception as error:  # noqa: BLE001: whatever keeps a way away is told
            print(f"  {name}: none: {' '.join(str(error).split())[:220]}")
    times, spent = {name: [] for name in graphs}, {name: [] for name in graphs}
    runs = {name: max(2, int(BURST_S / seconds(graph.replay, 2))) for name, graph in graphs.items()}
    for _ in range(BURSTS):
        for name in random.sample(list(graphs), len(graphs)):
            times[name].append(seconds(graphs[name].replay, runs[name]))
            time.sleep(0.02)
    for _ in range(2 if window else 0):
        for name in random.sample(list(graphs), len(graphs)):
            spent[name].append(joules(graphs[name].replay, window, at_once=8))
    rate = {name: row.flop / statistics.median(t) for name, t in times.items()}
    for name in graphs:
        told = [row.flop / j for j in spent[name] if j is not None]
        work = f"{statistics.mean(told) * 1e-9:.0f} GFLOP/J" if told else "joules not measured"
        times_bf16 = f"{rate[name] / rate['bf16']:.3f} x bf16" if "bf16" in rate else "no bf16"
        print(f"  {name:12} {rate[name] * 1e-12:7.1f} TFLOP/s  {times_bf16}  {work}  error {calls[name].error:.4f}  {calls[name].config}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows")
    parser.add_argument("--configs")
    parser.add_argument("--seconds", type=float, default=0.4)
    arguments = parser.parse_args()
    configs = [line.strip() for line in open(arguments.configs) if line.strip()] if arguments.configs else []
    rows = [ROWS[int(i)] for i in arguments.rows.split(",")] if arguments.rows else ROWS
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}", flush=True)
    for row in rows:
        measure(Row(*row), configs, arguments.seconds)


if __name__ == "__main__":
    main()
