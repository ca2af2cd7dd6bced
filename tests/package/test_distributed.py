"""Attention over several processes against one process in float64: values, gradients, refusals, ranks that die."""

import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from distributed_ranks import by_definition, run  # noqa: E402

METHODS = ("ring", "allgather", "alltoall")
COMMON = {"b": 2, "hq": 8, "hk": 4, "sq": 64, "sk": 64, "d": 16, "dv": 16}


# name: (sizes unlike COMMON, options, packed lengths). Every one by every method, forward and backward.
CASES = {
    "full": ({}, {}),
    "causal": ({}, {"causal": True}),
    "causal_of_any_length": ({"sq": 61, "sk": 61, "b": 1}, {"causal": True}),
    "causal_fewer_rows_than_pieces": ({"sq": 3, "sk": 3}, {"causal": True}),
    "causal_more_keys": ({"sq": 21, "sk": 50}, {"causal": True}),
    "causal_more_queries": ({"sq": 50, "sk": 21}, {"causal": True}),
    "causal_contiguous": ({}, {"causal": True, "layout": "contiguous"}),
    "window": ({"sq": 70, "sk": 70}, {"causal": True, "window": (9, -1)}),
    "window_contiguous": ({"sq": 70, "sk": 70}, {"causal": True, "window": (9, 0), "layout": "contiguous"}),
    "window_both_sides": ({"sq": 40, "sk": 70}, {"window": (20, 5)}),
    "window_zigzag_not_causal": ({}, {"window": (5, 11), "layout": "zigzag"}),
    "odd_head_dims": ({"d": 20, "dv": 12}, {"causal": True, "scale": 0.3}),
    "one_key_head_each": ({"hq": 8, "hk": 4, "b": 1}, {"causal": True, "heads_stride": 3}),
    "sinks_and_softcap": ({}, {"causal": True, "softcap": 2.0, "sinks": True}),
    "sinks_alone_in_a_window": ({"sq": 40, "sk": 20}, {"causal": True, "window": (4, 0), "sinks": True}),
    "packed": ({"b": 1}, {"causal": True, "lengths": ((13, 0, 40, 1), (13, 0, 40, 1))}),
    "packed_unlike_keys": ({"b": 1}, {"causal": True, "window": (7, 0), "lengths": ((13, 5, 20), (30, 5, 11))}),
    "packed_softcap": ({"b": 1}, {"softcap": 1.5, "lengths": ((13, 6), (13, 9))}),
    "lse_gradient": ({}, {"causal": True, "lse": True}),
}


def tensors(sizes, dtype=torch.float32, seed=1):
    s = COMMON | sizes
    draw = torch.Generator().manual_seed(seed)
    shapes = ((s["b"], s["hq"], s["sq"], s["d"]), (s["b"], s["hk"], s["sk"], s["d"]), (s["b"], s["hk"], s["sk"], s["dv"]),
              (s["b"], s["hq"], s["sq"], s["dv"]), (s["hq"],), (s["b"], s["hq"], s["sq"]))
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def worst(name, method, sizes, options, dtype=torch.float32, group=None):
    """The largest differences of o, lse, dq, dk, dv and of the sinks between the ranks and float64: over these rows."""
    import dfa.distributed as dd
    options = dict(options)
    lengths, with_sinks, with_lse = options.pop("lengths", None), options.pop("sinks", False), options.pop("lse", False)
    if lengths:
        sizes = sizes | {"sq": sum(lengths[0]), "sk": sum(lengths[1])}
    q, k, v, d_o, sinks, d_lse = tensors(sizes, dtype)
    begins = [[0, *torch.tensor(of).cumsum(0).tolist()] for of in lengths] if lengths else None
    cut = {"causal": options.get("causal", False), "layout": options.get("layout")}

    whole = [x.double().requires_grad_() for x in (q, k, v, sinks)]
    math = {key: value for key, value in options.items() if key in ("causal", "window", "scale", "softcap")}
    o, lse = by_definition(*whole[:3], **math, sinks=whole[3] if with_sinks else None, begins=begins)
    seen = torch.where(lse.isneginf(), 0, lse)
    ((o * d_o.double()).sum() + ((seen * d_lse.double()).sum() if with_lse else 0)).backward()

    def part(x, of):
        if not lengths:
            return dd.shard(x, group, 2, **cut)
        return dd.shard(x[0].transpose(0, 1), group, 0, **cut, cu_seqlens=torch.tensor(begins[of]))
    mine = [part(x, of).requires_grad_() for x, of in ((q, 0), (k, 1), (v, 1))]
    given = {"cu_seqlens_q": torch.tensor(begins[0]), "cu_seqlens_k": torch.tensor(begins[1])} if lengths else {}
    sink = sinks.clone().float().requires_grad_()
    got, got_lse = dd.context_parallel_attention(*mine, group=group, method=method, **options, **given, return_lse=True,
                                                 sinks=sink if with_sinks else None, timeout_s=20)
    assert got.dtype == dtype and got_lse.dtype == torch.float32
    of_lse = part(d_lse.unsqueeze(3), 0).squeeze(-1)
    of_lse = of_lse.transpose(0, 1) if lengths else of_lse
    ((got * part(d_o, 0)).sum() + ((torch.where(got_lse.isneginf(), 0, got_lse) * of_lse).sum() if with_lse else 0)).backward()
    part_lse = part(lse.unsqueeze(3).float(), 0).squeeze(-1)
    part_lse = part_lse.transpose(0, 1) if lengths else part_lse
    assert torch.equal(part_lse.isneginf(), got_lse.isneginf())
    assert not got_lse.numel() or got_lse.isfinite().eq(part_lse.isfinite()).all()
    pairs = [(got, part(o, 0)), (torch.where(got_lse.isneginf(), 0, got_lse), torch.where(part_lse.isneginf(), 0, part_lse))]
    pairs += [(x.grad, part(y.grad, of)) for x, y, of in zip(mine, whole, (0, 1, 1))]
    if with_sinks:
        dist.all_reduce(sink.grad)
        pairs.append((sink.grad, whole[3].grad))
    return [float((a.double() - b.double()).abs().max()) if a.numel() else 0.0 for a, b in pairs]


def all_cases(rank, methods):
    return {(name, method): worst(name, method, *CASES[name]) for name in CASES for method in methods}


@pytest.mark.parametrize("ranks", (2, 4))
def test_values_and_gradients_of_every_method(ranks, tmp_path):
    for result in run(ranks, all_cases, tmp_path, METHODS):
        assert isinstance(result, dict), result
        assert len(result) == len(CASES) * len(METHODS)
        wrong = {case: errors for case, errors in result.items() if max(errors) > 2e-5}
        assert not wrong
