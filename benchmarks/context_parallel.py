#!/usr/bin/env python3
"""One sequence over N cards: dfa.distributed beside one card and beside PyTorch's context_parallel. First right, then timed.

Usage: torchrun --nproc-per-node=N benchmarks/context_parallel.py --out FILE.json [--seconds 4] [--long] [--only TEXT]
       torchrun --nproc-per-node=2 benchmarks/context_parallel.py --device cpu     small sizes by gloo: that the script runs

Checks: outputs and gradients of fresh random inputs, gathered, against float64 by definition, and one card's beside them. Times:
medians of bursts taken in turns, of the slowest rank; `one` is the whole problem on each card alone, all at once, the mean of
the cards. share = one / (N · time). MB sent: what the rank that sends most sends by the model; MB NVLink: what the card that sends
most did send, by its counter, payload alone. GB/s: what a rank sends by the model, over the whole time. J: of all cards, their watts from
tick to tick of the energy counter times the time; of `one`, of one card. `model`: ring/model.py from the time of one card and the link.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import time

# Multicast over NVLink can take a host's cards out of service; priority lets a transfer's blocks start before a kernel's.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("NVSHMEM_DISABLE_NVLS", "1")
os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
os.environ.setdefault("DFA_CUDA_DEVICE", os.environ.get("LOCAL_RANK", "0"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ring import cards, checks, model, report  # noqa: E402
from ring.bursts import bursts, joules, link, over_nvlink  # noqa: E402
from ring.columns import OURS, columns_of, sent_bytes, way_of  # noqa: E402
from ring.job import Job  # noqa: E402
from ring.rows import rows_of  # noqa: E402


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=3, help="of bursts, a row")
    parser.add_argument("--energy-seconds", type=float, default=1.6, help="of each column of the rows whose joules are measured; 0: none")
    parser.add_argument("--limit", type=float, default=190, help="seconds of the whole run, after which no row begins")
    parser.add_argument("--long", action="store_true", help="512k tokens, too")
    parser.add_argument("--only", default="", help="rows whose names have this text")
    parser.add_argument("--checks", default="yes", choices=("yes", "no", "only"))
    parser.add_argument("--peers", default="yes", choices=("yes", "no"))
    parser.add_argument("--merge", default="kernel", choices=("kernel", "operators"), help="how parts are added: Triton's kernel, or PyTorch's operators")
    parser.add_argument("--channels", type=int, help="thread blocks of a transfer, by NCCL's variables; NCCL's own choice unless given")
    return parser.parse_args()


def measured(job, row, options):
    """One row: {column: {…}} and the cards' state after it."""
    with contextlib.ExitStack() as stack:
        calls, refused = columns_of(job, row, options.peers == "yes", stack)
        times, failed = bursts(job, calls, options.seconds, row.name)
        of = {}
        for name, samples in times.items():
            of[name] = {"seconds": samples, "sent_bytes": sent_bytes(job, row, name)}
            if row.energy and options.energy_seconds and name in calls and (name == "one" or not name.startswith("torch")):
                of[name] |= joules(job, calls[name], samples, options.energy_seconds, job.ranks if name == "one" else 1)
            if name in calls and name != "one":
                of[name] |= over_nvlink(job, calls[name], statistics.median(samples))
    calls.clear()
    row.free()
    return of | {name: {"reason": reason} for name, reason in (refused | failed).items()}


def predict(job, row, of, link, forwards):
    """Adds the model's time to our columns. forwards: one card's forward of rows before, by their sizes."""
    if link is None or "seconds" not in of["one"]:
        return
    one, key = statistics.median(of["one"]["seconds"]), (row.tokens, row.hq, row.hk, row.window)
    forward = forwards.setdefault(key, one if row.passes == "fwd" else one / 3.5)
    card = model.Card(forward, max(0, one - forward), link["swap_gb_s"], link["latency_us"] * 1e-6)
    for name, column in of.items():
        if "seconds" in column and name in OURS:
            column["model_s"] = model.seconds(*way_of(job, name), card, **row.sizes())


def main():
    options, begin = arguments_of(), time.perf_counter()
    if options.channels:
        os.environ["NCCL_MAX_CTAS"] = os.environ["NCCL_MAX_P2P_NCHANNELS"] = str(options.channels)
    job = Job(options.device)
    job.say(f"{job.ranks} × {cards.name(job)}, PyTorch {torch.__version__}, NCCL {cards.nccl()}, merge by {job.merge_by(options.merge)}")
    job.say(*cards.states(job))
    result = {"schema": "dfa-context-parallel/1", "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "ranks": job.ranks,
              "card": cards.name(job), "torch": torch.__version__, "nccl": cards.nccl(), "seed": job.seed, "merge": options.merge,
              "command": " ".join(sys.argv), "cards_before": cards.states(job), "rows": []}
    try:
        if options.checks != "no":
            result["checks"] = checks.run(job, begin)
        if options.checks != "only":
            result["link"] = link(job)
            job.say(f"link: {report.link_line(result['link'])}")
            forwards = {}
            for row in rows_of(job, options):
                if job.most(time.perf_counter() - begin) > options.limit:
                    job.say(f"{row.name}: not run: {options.limit:.0f} s are over")
                    result["rows"].append({"name": row.name, "reason": "no time"})
                    continue
                of = measured(job, row, options)
                predict(job, row, of, result["link"], forwards)
                result["rows"].append({"name": row.name, **row.facts(), "columns": of, "cards": cards.states(job)})
                job.say(f"[{time.perf_counter() - begin:5.1f} s] {report.row_line(row, of, job.ranks)}")
        result["seconds"] = time.perf_counter() - begin
    finally:
        if job.rank == 0 and options.out:
            options.out.write_text(json.dumps(result, indent=1) + "\n")
    if job.rank == 0:
        print(report.table(result), flush=True)
    failed = [one for one in result.get("checks", []) if one["verdict"] == "WRONG"]
    dist.destroy_process_group()
    sys.exit(f"{len(failed)} checks are wrong" if failed and job.rank == 0 else 0)


if __name__ == "__main__":
    main()
