"""Outputs and gradients of small problems, gathered from all ranks, against float64 by definition; one card's beside them."""

import time

import torch

import dfa
import dfa.distributed as dd

METHODS = ("ring", "allgather", "alltoall")
SIZES = {"b": 1, "hq": 4, "hk": 4, "s": 1024, "d": 128}
#        name: (sizes unlike SIZES, options, packed lengths)
CASES = {
    "causal": ({}, {"causal": True}, None),
    "full": ({"b": 2, "s": 512}, {}, None),
    "ragged causal": ({"s": 1021, "d": 64}, {"causal": True}, None),
    "gqa causal": ({"hq": 16, "hk": 4, "s": 2048}, {"causal": True}, None),
    "window": ({"s": 2048}, {"causal": True, "window": (200, 0)}, None),
    "window contiguous": ({"hq": 8, "hk": 4, "s": 2048}, {"causal": True, "window": (150, 0), "layout": "contiguous"}, None),
    "causal contiguous": ({}, {"causal": True, "layout": "contiguous"}, None),
    "packed": ({"hq": 8, "hk": 4, "d": 64}, {"causal": True}, (700, 33, 0, 1024, 5, 286)),
    "packed window": ({}, {"causal": True, "window": (100, 0)}, (513, 300, 1235)),
}


def run(job, begin):
    results = []
    cases = CASES if job.on_gpu else {name: CASES[name] for name in ("causal", "window contiguous", "packed")}
    for at, (name, case) in enumerate(cases.items()):
        reference = _Reference(job, at, *case)
        groups = [(method, job.mesh) for method in METHODS] + ([("mesh", job.mesh2)] if job.mesh2 is not None else [])
        for method, group in groups:
            result = {"case": name, "method": method} | _held(job, reference, method, group)
            results.append(result)
            job.say(f"[{time.perf_counter() - begin:5.1f} s] check {name:18} {method:9} {result['verdict']:7} {result['text']}")
        if job.on_gpu:
            torch.cuda.empty_cache()
    return results


class _Reference:
    """Inputs, float64's answers and the errors of one card."""

    def __init__(self, job, at, sizes, options, lengths):
        s = SIZES | sizes
        rows = sum(lengths) if lengths else s["s"]
        draw = job.generator(at + 1)
        shapes = [(s["b"], h, rows, s["d"]) for h in (s["hq"], s["hk"], s["hk"], s["hq"])]
        *self.qkv, self.d_o = [torch.randn(shape, generator=draw, device=job.device).to(torch.bfloat16) for shape in shapes]
        self.options, self.begins = options, None
        if lengths:
            self.begins = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        whole = [x.double().requires_grad_() for x in self.qkv]
        o = definition(*whole, options.get("causal", False), options.get("window"), self.begins)
        self.right = [x.detach() for x in (o, *torch.autograd.grad(o, whole, self.d_o.double()))]
        self.scales = [float(x.abs().max()) for x in self.right]
        one, why = job.tried(self._of_one_card)
        self.why, self.of_one = why, None if why else self.errors(one)

    def errors(self, got):
        """Of o, dq, dk, dv: the largest difference, as a part of the largest value; nan where something is not finite."""
        return [float((x.double() - y).abs().max()) / scale if bool(x.isfinite().all()) else float("nan")
                for x, y, scale in zip(got, self.right, self.scales)]

    def _of_one_card(self):
        options = {key: value for key, value in self.options.items() if key != "layout"}
        tensors = [x.detach().clone().requires_grad_() for x in self.qkv]
        if self.begins is None:
            o = dfa.attention(*tensors, **options)
        else:
            packed = [x[0].transpose(0, 1).contiguous() for x in tensors]
            o = dfa.attention_varlen(*packed, self.begins.to(self.d_o.device), **options).transpose(0, 1)[None]
        return [o.detach(), *torch.autograd.grad(o, tensors, self.d_o)]


def _held(job, reference, method, group):
    got, why = job.tried(lambda: _gathered(reference, "ring" if method == "mesh" else method, group))
    if why:
        refused = why.startswith("ValueError") and ("accepted" in why or "not supported" in why)
        return {"verdict": "refused" if refused else "WRONG", "text": why}
    forward, both = got
    errors = reference.errors(both)
    alone = reference.errors([forward])[0]
    limits = [2 * e + 2 ** -8 for e in reference.of_one or [2 ** -8] * 4]
    worst = job.gathered([*errors, alone])
    right = all(e <= limit for of_rank in worst for e, limit in zip(of_rank, [*limits, limits[0]]))
    text = "o dq dk dv " + " ".join(f"{e:.1e}" for e in errors) + "; one card " + (
        " ".join(f"{e:.1e}" for e in reference.of_one) if reference.of_one else f"did not: {reference.why}")
    return {"verdict": "right" if right else "WRONG", "text": text, "errors": errors, "forward_error": alone, "limits": limits}


def _gathered(reference, method, group):
    """(o without gradients, [o, dq, dk, dv]) of all rows, in memory that held nan."""
    cut = {"causal": reference.options.get("causal", False), "layout": reference.options.get("layout")}
    begins = reference.begins
    if begins is None:
        part = lambda x: dd.shard(x, group, 2, **cut)  # noqa: E731
        whole = lambda x: dd.unshard(x.detach(), group, 2, **cut)  # noqa: E731
        given = {}
    else:
        part = lambda x: dd.shard(x[0].transpose(0, 1), group, 0, **cut, cu_seqlens=begins)  # noqa: E731
        whole = lambda x: dd.unshard(x.detach(), group, 0, **cut, cu_seqlens=begins).transpose(0, 1)[None]  # noqa: E731
        given = {"cu_seqlens_q": begins}
    mine = [part(x).requires_grad_() for x in reference.qkv]

    def call():
        poison = [torch.full((size,), torch.nan, device=mine[0].device) for size in (1 << 14, 1 << 18, 1 << 22)]
        del poison
        return dd.context_parallel_attention(*mine, group=group, method=method, **reference.options, **given)
    with torch.no_grad():
        forward = whole(call())
    o = call()
    gradients = torch.autograd.grad(o, mine, part(reference.d_o))
    return forward, [whole(o), *map(whole, gradients)]


def definition(q, k, v, causal, window, begins):
    """Attention in the element type of its arguments, a matrix of logits a head."""
    b, hq, sq, d = q.shape
    k, v = (x.repeat_interleave(hq // x.shape[1], 1) for x in (k, v))
    hidden = torch.ones(sq, sq, dtype=torch.bool, device=q.device)
    left, right = window or (-1, -1)
    right = 0 if causal else right
    of = begins.tolist() if begins is not None else [0, sq]
    for first, last in zip(of, of[1:]):
        i = torch.arange(last - first, device=q.device)
        ahead = i[None] - i[:, None]
        hidden[first:last, first:last] = (ahead < -left) & (left >= 0) | (ahead > right) & (right >= 0)
    return (q @ k.transpose(2, 3) * d ** -0.5).masked_fill(hidden, -torch.inf).softmax(3) @ v
