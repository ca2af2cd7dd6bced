#!/usr/bin/env python3
"""One budget of watts over several cards, by dfa.Governor(group=): is the sum held, and what is it worth? Needs two GPUs or more.

Usage: python3 benchmarks/governed_group.py OUT.json [--caps 1200,1000,800] [--seconds 12] [--who group,halves] [--no-killed]

A rank a card, started here, trains in step with the others: bf16 products, then a reduction by NCCL. The last rank has half as much work
again, so that the others wait for it. Each cap is run as one budget (`group`) and as equal halves, a governor a card (`halves`, for six
seconds at most); then a rank is killed under the middle cap, the last and the first in turn, ranks not waiting for each other. Nothing is
set on a card.

Watts are of the cards' energy counters, read by this process from outside: means of one second, one at each tick of a counter. Such a second
is so many ticks, as a counter shows nothing between two: a second by this process's clock holds nine, ten or eleven tenths. Cards tick at
times of their own, so that a second of one is up to half a tick off another's: `above` has the sums of the nearest, and `at most` those of
the highest with the highest, as of cards that swing together.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

import torch

SETTLE_S, KILLED_AT_S, HALVES_S, POLL_S = 2.0, 5.0, 6.0, 0.002


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--caps", default="1200,1000,800", help="W, of all cards together")
    parser.add_argument("--seconds", type=float, default=12, help="that a cap is watched, once it is held")
    parser.add_argument("--who", default="group,halves", choices=("group,halves", "group", "halves"))
    parser.add_argument("--no-killed", action="store_true", help="leaves out the starts in which a rank is killed")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kills", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def tell(**facts):
    print(json.dumps({"time": time.time(), **facts}), flush=True)


def tell_end(rank, name, cap, rate, governor):
    facts = {fact: getattr(governor, fact) for fact in ("lease_w", "duty", "power_w", "status", "alone")}
    tell(rank=rank, phase="end", name=name, cap_w=cap, steps_per_s=rate, **facts)


class Work:
    """A rank's steps: of some 40 ms, with a reduction at their end unless alone."""

    def __init__(self, rank, ranks, alone):
        import torch.distributed as dist
        self._times = 24 + (12 if rank == ranks - 1 else 0)
        self._x, self._w = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._gradient = torch.zeros(1 << 20, device="cuda")
        self._reduce = (lambda: None) if alone else (lambda: dist.all_reduce(self._gradient))

    def step(self):
        for _ in range(self._times):
            torch.mm(self._x, self._w)
        self._reduce()


def paced(governor, work, seconds, agree):
    """Steps in `seconds`; all ranks leave after the same one."""
    begin, steps = time.perf_counter(), 0
    while agree(time.perf_counter() - begin < seconds):
        work.step()
        governor.pace()
        steps += 1
    return steps / (time.perf_counter() - begin)


def rank_of(options):
    import torch.distributed as dist

    import dfa
    rank, ranks = options.rank, torch.cuda.device_count()
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=ranks)
    killed = options.kills is not None
    work, caps = Work(rank, ranks, killed), [float(cap) for cap in options.caps.split(",")]

    def agree(more):
        if killed:
            return more
        answer = torch.tensor([int(more)])
        dist.broadcast(answer, 0)
        return bool(answer)

    def run(name, cap, idle_w):
        policy, group = (f"power_cap:{cap}W", dist.group.WORLD) if name == "group" else (f"power_cap:{cap / ranks}W", None)
        with dfa.Governor(policy, group=group, idle_w=idle_w) as governor:
            # As long for all: while one is still learned, the others have no gaps by their leases either.
            paced(governor, work, 2.5 + SETTLE_S, agree)
            tell(rank=rank, phase="begin", name=name, cap_w=cap)
            seconds = KILLED_AT_S if killed else min(options.seconds, HALVES_S) if name == "halves" else options.seconds
            rate = paced(governor, work, seconds, agree)
            tell_end(rank, name, cap, rate, governor)
            if killed:
                if rank == options.kills:
                    os._exit(0)
                rate = paced(governor, work, options.seconds + 2, agree)
                tell_end(rank, "alone", cap, rate, governor)
                os._exit(0)  # NCCL's end waits for the one that is gone
            return governor.idle_w
    work.step()
    torch.cuda.synchronize()
    dist.all_reduce(torch.zeros(1))  # by gloo: NCCL's watchdog would end a rank that outlives the others
    time.sleep(1)
    if killed:
        run("group", caps[len(caps) // 2], None)
    idle_w = None
    for cap in caps:
        for name in options.who.split(","):
            idle_w = run(name, cap, idle_w)
    dist.destroy_process_group()


def watched(options, kills=None):
    """(what ranks told, ticks of each card) of one start of all ranks."""
    from dfa import _core
    ranks = torch.cuda.device_count()
    sources = [_core.EnergySource(f"GPU-{torch.cuda.get_device_properties(card).uuid}") for card in range(ranks)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, str(options.out), "--caps", options.caps, "--seconds", str(options.seconds), "--who", options.who]
    command += [] if kills is None else ["--kills", str(kills)]
    files = [options.out.with_suffix(f".rank{rank}") for rank in range(ranks)]
    processes = []
    for rank, file in enumerate(files):
        with file.open("w") as out:
            processes.append(subprocess.Popen([*command, "--rank", str(rank)], stdout=out, env=os.environ | {
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DFA_CUDA_DEVICE": str(rank),
                "NCCL_NVLS_ENABLE": "0"}))  # multicast over NVLink can take a host's cards out of service
    ticks = [[] for _ in sources]
    while any(process.poll() is None for process in processes):
        for source, of_card in zip(sources, ticks):
            joules = source.read().value  # a counter that gives nothing ends the run: there is nothing to say then
            if not of_card or joules != of_card[-1][1]:
                of_card.append((time.time(), float(joules)))
        time.sleep(POLL_S)
    told = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    for file in files:
        file.unlink()
    failed = [process.returncode for process in processes if process.returncode]
    if failed:
        sys.exit(f"governed_group.py: a rank ended with {failed[0]}")
    return told, ticks


def seconds_of(ticks, begin, end):
    """[[W of each card]] of seconds within, one at each tick of the first card; those of the others are the nearest.

    ticks: of each card [(when its counter was first seen to show it, joules)]. A second is a whole number of ticks, and lasts as long as so
    many do on the mean of the run: when a tick was is known less well."""
    watts = [_watts_at(of_card) for of_card in ticks]
    result = []
    for at, first in watts[0]:
        if not begin + 1 <= at <= end:
            continue
        nearest = [min(others, key=lambda one: abs(one[0] - at), default=(-1e9, 0)) for others in watts[1:]]
        if all(abs(when - at) < 0.1 for when, _ in nearest):
            result.append([first, *(w for _, w in nearest)])
    return result


def _watts_at(ticks):
    """[(time of a tick, W of the second that it ends)]. None spans a time in which a tick may not have been seen."""
    ticks = ticks[1:]  # the first was seen whenever reading began
    gaps = [then[0] - now[0] for now, then in zip(ticks, ticks[1:])]
    if not gaps:
        return []
    usual = statistics.median(gaps)
    period = statistics.mean(gap for gap in gaps if usual / 2 < gap < 1.5 * usual)
    long, result, since = max(1, round(1 / period)), [], 0
    for at, gap in enumerate(gaps, 1):
        since = at if gap > 1.5 * usual else since
        if at - long >= since:
            result.append((ticks[at][0], (ticks[at][1] - ticks[at - long][1]) / (long * period)))
    return result


def summary(cap, means, **more):
    sums = [sum(of) for of in means]
    if not sums:
        sys.exit(f"governed_group.py: no second of {cap:g} W was seen; accepted: --seconds of some more")
    return {"cap_w": cap, "seconds": means, "mean_w": statistics.mean(sums), "most_w": max(sums),
            "above": sum(one > cap for one in sums) / len(sums),
            "above_at_most": sum(sum(of) > cap for of in zip(*map(sorted, zip(*means)))) / len(sums), **more}


def rows_of(told, ticks, kills):
    rows = []
    begins = [one for one in told if one["phase"] == "begin"]
    for name, cap in dict.fromkeys((one["name"], one["cap_w"]) for one in begins):
        ends = [one for one in told if one["phase"] == "end" and (one["name"], one["cap_w"]) == (name, cap)]
        begin = max(one["time"] for one in begins if (one["name"], one["cap_w"]) == (name, cap))
        rows.append(summary(cap, seconds_of(ticks, begin, min(one["time"] for one in ends)), name=name, ranks=ends))
    for one in told:
        if one["name"] == "alone":
            rows.append(summary(one["cap_w"], seconds_of(ticks, max(end["time"] for end in told if end["name"] == "group"), one["time"]),
                                name=f"rank {kills} killed", ranks=[one]))
    halves = {row["cap_w"]: row["ranks"][0]["steps_per_s"] for row in rows if row["name"] == "halves"}
    for row in rows:
        row["of_halves"] = row["ranks"][0]["steps_per_s"] / halves[row["cap_w"]] if row["name"] == "group" and row["cap_w"] in halves else None
    return rows


HEAD = ("cap W", "who", "seconds", "mean W", "most W", "above", "at most", "each card W", "steps/s", "of halves", "leases W", "duties", "status")


def line_of(row):
    def of_ranks(fact, form):
        return " ".join("-" if one[fact] is None else format(one[fact], form) for one in row["ranks"])
    said = sorted({one["status"] for one in row["ranks"]} | {one["alone"] for one in row["ranks"] if one["alone"]})
    cells = (f"{row['cap_w']:.0f}", row["name"], str(len(row["seconds"])), f"{row['mean_w']:.0f}", f"{row['most_w']:.0f}", f"{row['above']:.3f}",
             f"{row['above_at_most']:.3f}", " ".join(f"{statistics.mean(of):.0f}" for of in zip(*row["seconds"])), of_ranks("steps_per_s", ".2f"),
             "-" if row["of_halves"] is None else f"{row['of_halves']:.2f}", of_ranks("lease_w", ".0f"), of_ranks("duty", ".2f"), ", ".join(said))
    return f"| {' | '.join(cells)} |"


def main():
    options = arguments_of()
    if options.rank is not None:
        return rank_of(options)
    ranks = torch.cuda.device_count()
    if ranks < 2:
        sys.exit("governed_group.py: needs two GPUs that PyTorch sees")
    rows = []
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|", flush=True)
    for kills in (None,) if options.no_killed else (None, ranks - 1, 0):
        for row in rows_of(*watched(options, kills), kills):
            rows.append(row)
            print(line_of(row), flush=True)
        # After each start: what a later one meets loses nothing.
        options.out.write_text(json.dumps({"schema": "dfa-governed-group/2", "machine": f"{ranks} x {torch.cuda.get_device_name()}",
                                           "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "torch": torch.__version__,
                                           "seconds": options.seconds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
