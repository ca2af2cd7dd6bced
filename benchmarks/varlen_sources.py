#!/usr/bin/env python3
"""Forwards of packed keys and of the same keys in pages by kernels of several folders, in turns on one card.

Usage: python3 benchmarks/varlen_sources.py [--sources NAME=FOLDER]… [--pages 16,32,64,128,256] [--ordered] [--only TEXT] [--bursts 11]
needs the package dfa, PyTorch and a GPU

A process for each folder (DFA_KERNEL_SOURCES, named as below `src`) and one for the package's own kernels, `tree`; all have the same
tensors and tables, and one burst at a time runs on the card: of a kind of keys, each process in an order that turns. A line a row and
kind of keys: TFLOP/s by true lengths, the median of the bursts, in brackets the share of the packed keys' rate by the tree, and behind
it what the median of its bursts by those of the tree beside them is, with its quartiles. Each process first holds every call against
its sequences alone; `same` are outputs with the tree's bits. --ordered: also pages that lie in the order of the table.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import unittest.mock

ROWS = [("8 of 512", (32, 8, 128), [512] * 8), ("32 of 512", (32, 8, 128), [512] * 32), ("16 of 1024", (32, 8, 128), [1024] * 16),
        ("26 of 16..2048", (16, 16, 128), None), ("8 of 2048", (16, 16, 128), [2048] * 8), ("8 of 2048", (32, 8, 128), [2048] * 8),
        ("2 of 8192", (32, 8, 128), [8192] * 2), ("4 of 512 on 8192", (32, 8, 128), [512] * 4, [8192] * 4),
        ("16 of 512", (64, 8, 64), [512] * 16), ("16 of 1024", (64, 8, 64), [1024] * 16), ("8 of 2048", (64, 8, 64), [2048] * 8),
        ("19 of 16..2048", (32, 8, 64), None), ("4 of 512 on 8192", (64, 8, 64), [512] * 4, [8192] * 4)]
BURST_S = 0.02


def title(row):
    return "{} h{}/{} d{}".format(row[0], *row[1])


def worker():
    """Answers requests of the parent, one a line: what to prepare, and bursts."""
    import torch

    import varlen
    from cuda_bursts import seconds

    answers, sys.stdout = sys.stdout, sys.stderr
    calls, kept = {}, None
    for line in sys.stdin:
        request = json.loads(line)
        if "row" in request:
            calls.clear()
            kept = None
            torch.cuda.empty_cache()
            torch.manual_seed(request["row"])
            kept = row = varlen.Row(ROWS[request["row"]])
            right = varlen.truth(row, "fwd")
            answer = {"flops": row.flops["fwd"], "gpu": torch.cuda.get_device_name(), "sums": {}, "runs": {}}
            made = {"packed": varlen.ours(row, "fwd")[:2]}
            made |= {f"page {page}": varlen.over_pages(row, page)[:2] for page in request["pages"]}
            if request["ordered"]:
                with unittest.mock.patch("torch.randperm", torch.arange):
                    made |= {f"page {page} ordered": varlen.over_pages(row, page)[:2] for page in request["pages"]}
            for name, (call, o) in made.items():
                o = o[0] if isinstance(o, tuple) else o
                varlen.check("dfa", row, "fwd", call, [o], right)
                answer["sums"][name] = int(o.view(torch.int16).to(torch.int64).mul_(torch.arange(1, o.numel() + 1, device="cuda").view(o.shape)).sum())
                answer["runs"][name] = max(2, int(BURST_S / seconds(call, 3)))
                calls[name] = call
        else:
            call = calls[request["name"]]
            for _ in range(3):
                call()
            answer = seconds(call, request["runs"])
        print(json.dumps(answer), file=answers, flush=True)


class Process:
    def __init__(self, name, folder):
        self.name = name
        environment = {**os.environ, **({"DFA_KERNEL_SOURCES": os.path.abspath(folder)} if folder else {})}
        self.process = subprocess.Popen([sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=environment)

    def send(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, **request):
        self.send(**request)
        return self.answer()


def measured(processes, at, pages, ordered, bursts):
    """{kind: {process: [seconds of a call, burst by burst]}}, and what the processes said."""
    for p in processes:
        p.send(row=at, pages=pages, ordered=ordered)
    said = {p.name: p.answer() for p in processes}
    times = {}
    for _ in range(bursts):
        for kind in random.sample(list(said["tree"]["sums"]), len(said["tree"]["sums"])):
            runs = said["tree"]["runs"][kind]
            for p in random.sample(processes, len(processes)):
                times.setdefault(kind, {}).setdefault(p.name, []).append(p.ask(name=kind, runs=runs))
    return times, said


def show(row, times, said):
    flops, packed = said["tree"]["flops"], statistics.median(times["packed"]["tree"])
    for kind in said["tree"]["sums"]:
        line = [f"{title(row):28} {kind:16}"]
        for name in said:
            seconds = times[kind][name]
            median = statistics.median(seconds)
            text = f"{name} {flops / median * 1e-12:.0f} ({packed / median:.3f})"
            if name != "tree":
                gains = [tree / s for tree, s in zip(times[kind]["tree"], seconds)]
                low, middle, high = statistics.quantiles(gains, n=4)
                same = "same" if said[name]["sums"][kind] == said["tree"]["sums"][kind] else "other bits"
                text += f" x{middle:.3f} [{low:.3f} {high:.3f}] {same}"
            line.append(text)
        print("  ".join(line), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--pages", type=lambda text: [int(x) for x in text.split(",")], default=[16, 32, 64, 128, 256])
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--bursts", type=int, default=11)
    parser.add_argument("--worker", action="store_true")
    asked = parser.parse_args()
    if asked.worker:
        return worker()
    processes = [Process("tree", "")] + [Process(*text.split("=", 1)) for text in asked.sources]
    gpu = None
    for at, row in enumerate(ROWS):
        if asked.only not in title(row):
            continue
        times, said = measured(processes, at, asked.pages, asked.ordered, asked.bursts)
        if gpu != said["tree"]["gpu"]:
            gpu = said["tree"]["gpu"]
            print(gpu, flush=True)
        show(row, times, said)


if __name__ == "__main__":
    main()
