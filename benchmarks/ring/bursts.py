"""Times of calls in turns, watts while one of them repeats, and the bytes a second of the link."""

import math
import random
import statistics
import time

import cuda_bursts
import torch
import torch.distributed as dist

from dfa._distributed_exchange import Exchange
from ring import cards

MOST, LEAST, BURST_S = 9, 3, 0.03
SETTLE_S = 0.15  # a card's counters may be a tenth of a second old; of NVLink's it is assumed, not read
SLOWEST = "one, slowest card"  # no call of its own: what a job waits for


def bursts(job, calls, seconds, seed):
    """({name: [seconds of a call, of the slowest rank; of `one` the mean of the ranks, and of SLOWEST its slowest]}, {name: why not})."""
    runs, took, failed = {}, {}, {}
    for name, call in list(calls.items()):
        _, why = job.tried(lambda: (call(), call()))
        if why:
            failed[name] = why
            del calls[name]
            continue
        took[name] = job.most(_burst(job, call, 1))
        runs[name] = max(1, min(50, math.ceil(BURST_S / took[name])))
    whole = sum(runs[name] * took[name] for name in calls)
    rounds = max(LEAST, min(MOST, int(seconds / max(whole, 1e-9))))
    times, draw = {name: [] for name in calls}, random.Random(seed)
    for _ in range(rounds):
        for name in draw.sample(sorted(calls), len(calls)):
            of_rank = _burst(job, calls[name], runs[name])
            slowest = job.most(of_rank)
            times[name].append(job.mean(of_rank) if name == "one" else slowest)
            if name == "one":
                times.setdefault(SLOWEST, []).append(slowest)
    return times, failed


def _burst(job, call, runs):
    job.meet()
    if not job.on_gpu:
        begin = time.perf_counter()
        for _ in range(runs):
            call()
        return (time.perf_counter() - begin) / runs
    return cuda_bursts.seconds(call, runs)


def joules(job, call, samples, seconds, problems):
    """{"watts": of all cards, "joules": of one problem}: watts from tick to tick of the counter while calls repeat, times the time
    of one. problems: how many are computed at once."""
    meter = cards.meter(job)
    _, why = job.tried(meter.reading)
    if why:
        return {"joules": None, "joules_reason": why}
    each = statistics.median(samples)
    together = max(1, round(0.02 / each))
    changes = []
    job.meet()
    for _ in range(math.ceil(seconds / (each * together))):  # as many on every rank: they need each other
        for _ in range(together):
            call()
        job.wait()
        reading = meter.reading()
        if not changes or reading[1] != changes[-1][1]:
            changes.append(reading)
    if len(changes) > 3:
        changes = changes[1:]  # the first reading is of no tick
    known = len(changes) > 1
    watts = (changes[-1][1] - changes[0][1]) / (changes[-1][0] - changes[0][0]) if known else math.nan
    of_ranks = job.gathered(watts)
    if any(map(math.isnan, of_ranks)):
        return {"joules": None, "joules_reason": "the counter did not change"}
    return {"watts": sum(of_ranks), "watts_of_cards": of_ranks, "joules": sum(of_ranks) * each / problems, "ticks": len(changes) - 1}


def over_nvlink(job, call, seconds, counter=None):
    """{"nvlink_bytes": what the card that sends most sends in a call, "nvlink_bytes_of_cards"}, by the cards' own counters, or why there
    is none. seconds: of a call."""
    counter = counter or cards.nvlink(job)
    calls = max(LEAST, math.ceil(BURST_S / seconds))

    def settled():
        job.meet()
        time.sleep(SETTLE_S)
        return counter.reading()
    before, why = job.tried(settled)
    if not why:
        for _ in range(calls):
            call()
        after, why = job.tried(settled)
    if why:
        return {"nvlink_bytes": None, "nvlink_reason": why.removeprefix("RuntimeError: ")}
    of_cards = [sent / calls for sent in job.gathered(after - before)]
    if min(of_cards) < 0:
        return {"nvlink_bytes": None, "nvlink_reason": "a counter went back"}
    return {"nvlink_bytes": max(of_cards), "nvlink_bytes_of_cards": of_cards}


def link(job):
    """{"swap_gb_s": what a rank sends a second while it receives as much, "latency_us"} by dfa.distributed's own transfers."""
    if job.ranks == 1:
        return None
    exchange = Exchange(dist.group.WORLD, None)
    result = {}
    for name, count in (("small", 256), ("large", (1 << 26) if job.on_gpu else (1 << 16))):
        sent = torch.ones(count, device=job.device, dtype=torch.bfloat16)

        def swap(sent=sent):
            received = torch.empty_like(sent)
            return exchange.finish(exchange.swap((sent,), (job.rank + 1) % job.ranks, (received,), (job.rank - 1) % job.ranks))
        swap()
        result[name] = statistics.median(job.most(_burst(job, swap, 5)) for _ in range(5)), 2 * count
    (latency, _), (seconds, size) = result["small"], result["large"]
    return {"latency_us": latency * 1e6, "swap_gb_s": size / max(seconds - latency, 1e-9) * 1e-9}
