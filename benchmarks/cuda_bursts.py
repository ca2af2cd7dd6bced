"""Calls in a row on one card, by its own clock and its energy counter."""
import random
import statistics
import time

import torch

import dfa


def graph_of(call, calls=1):
    """A CUDA graph of so many calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def seconds(call, runs):
    """Of a call, the mean of so many in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(runs):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e-3 / runs


def medians(calls, bursts=7, runs=10):
    """{name: microseconds of a call} of {name: call}: the median of bursts of so many in a row, taken in turns."""
    taken = {name: [] for name in calls}
    for _ in range(bursts):
        for name in random.sample(list(calls), len(calls)):
            taken[name].append(seconds(calls[name], runs))
    return {name: 1e6 * statistics.median(times) for name, times in taken.items()}


def joules(call, least_s, at_once):
    """Of a call, over at least so many seconds of calls in a row, waited for after so many; None where the card has no counter."""
    with dfa.EnergyMeter("cuda") as meter:
        runs, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < least_s:
            for _ in range(at_once):
                call()
            runs += at_once
            torch.cuda.synchronize()
    return None if meter.energy_j is None else meter.energy_j / runs
