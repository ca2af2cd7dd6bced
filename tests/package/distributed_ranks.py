"""Processes that test_distributed.py starts, and what they compute: attention in float64 by its definition."""

import datetime
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT_S = 300  # of a test's processes: none is left after it


def run(ranks, body, tmp_path, *arguments, limit_s=LIMIT_S):
    """What body(rank, *arguments) returns or raises in each of these processes, and their exit codes."""
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    init = f"file://{tmp_path}/init"
    workers = [context.Process(target=_work, args=(rank, ranks, init, results, body, arguments)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    told = {}
    end = datetime.datetime.now() + datetime.timedelta(seconds=limit_s)
    for worker in workers:
        worker.join(max(0.1, (end - datetime.datetime.now()).total_seconds()))
    hung = [rank for rank, worker in enumerate(workers) if worker.is_alive()]
    for worker in workers:
        worker.kill()
    while not results.empty():
        rank, result = results.get()
        told[rank] = result
    assert not hung, f"ranks {hung} hang"
    return [told.get(rank) for rank in range(ranks)]


def _work(rank, ranks, init, results, body, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=120))
    try:
        results.put((rank, body(rank, *arguments)))
    except BaseException:
        results.put((rank, "".join(traceback.format_exc())))
    dist.destroy_process_group()


def by_definition(q, k, v, causal=False, window=None, scale=None, softcap=None, sinks=None, slopes=None, begins=None):
    """(o, lse) of [b, h, s, d] in float64. begins: (of q, of k) of packed sequences, with b = 1."""
    q, k, v = (x.double() for x in (q, k, v))
    b, hq, sq, d = q.shape
    k, v = (x.repeat_interleave(hq // k.shape[1], 1) for x in (k, v))
    sk = k.shape[2]
    logits = q @ k.transpose(2, 3) * (d ** -0.5 if scale is None else scale)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    hidden = torch.ones(sq, sk, dtype=torch.bool)
    away = torch.zeros(sq, sk, dtype=torch.float64)
    left, right = window or (-1, -1)
    right = 0 if causal else right
    of_q, of_k = begins or ([0, sq], [0, sk])
    for q0, q1, k0, k1 in zip(of_q, of_q[1:], of_k, of_k[1:]):
        i, j = torch.arange(q1 - q0)[:, None] + (k1 - k0) - (q1 - q0), torch.arange(k1 - k0)[None]
        out = (j < i - left) & (left >= 0) | (j > i + right) & (right >= 0)
        hidden[q0:q1, k0:k1], away[q0:q1, k0:k1] = out, (i - j).abs().double()
    if slopes is not None:
        logits = logits - slopes.double().view(1, -1, 1, 1) * away
    logits = logits.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        logits = torch.cat((logits, sinks.double().view(1, -1, 1, 1).expand(b, -1, sq, 1)), 3)
    lse = logits.logsumexp(3)
    p = (logits - lse.masked_fill(lse.isneginf(), 0).unsqueeze(3)).exp()
    return p[..., :sk] @ v, lse
