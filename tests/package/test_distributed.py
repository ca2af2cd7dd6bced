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
    "causal_of_many_rows": ({"b": 1, "hq": 4, "hk": 4, "sq": 1100, "sk": 1100}, {"causal": True}),
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
    "lse_gradient": ({}, {"causal": True, "lse": True, "sm_margin": 8}),
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
                                                 sinks=sink if with_sinks else None, timeout_s=60)
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
    return [float((a.detach().double() - b.detach().double()).abs().max()) if a.numel() else 0.0 for a, b in pairs]


def everything(rank, methods):
    """One start of the processes for all that ranks compute: it takes longer than the cases."""
    import dfa.distributed as dd
    ranks = dist.get_world_size()
    result = {(name, method): worst(name, method, *CASES[name]) for name in CASES for method in methods}
    for name in ("window", "packed"):  # the layout may be any, and a mesh of one dimension is a group
        mesh = dist.init_device_mesh("cpu", (ranks,))
        result[name, "mesh"] = worst(name, "auto", *CASES[name], group=mesh)
    if ranks == 4:
        mesh = dist.init_device_mesh("cpu", (2, 2))
        result |= {(name, "mesh of ring and heads", method): worst(name, method, *CASES[name], group=mesh)
                   for name in CASES for method in ("auto", "allgather")}
    half = {method: worst("causal", method, {"d": 64, "dv": 64, "sq": 256, "sk": 256}, {"causal": True}, torch.bfloat16)
            for method in methods}
    return result, half, of_helpers(rank, dd), of_slopes(dd), of_checks_once(dd), of_lengths_that_vary(dd), ranks > 2 or of_compile(dd)


def of_helpers(rank, dd):
    """shard and unshard undo each other; what is cut has a gradient; 61 rows are cut like others."""
    x = torch.arange(61 * 3.0).view(1, 61, 3)
    right = []
    for options in ({}, {"causal": True}, {"layout": "zigzag", "cu_seqlens": torch.tensor([0, 7, 7, 8, 61])}):
        part = dd.shard(x, dim=1, **options)
        right.append(part.is_contiguous() and torch.equal(dd.unshard(part, dim=1, **options), x))
    learned = x.clone().requires_grad_()
    dd.shard(learned, dim=-2).sum().backward()
    total = learned.grad.clone()
    dist.all_reduce(total)
    right.append(bool((total == 1).all()) and float(learned.grad.sum()) < 61 * 3)
    try:
        dd.unshard(x[:, :40 + rank], dim=1)
    except ValueError as error:
        right.append("rows by rank; accepted" in str(error))
    return right


def of_slopes(dd):
    q, k, v, *_ = tensors({})
    slopes = torch.rand(8)
    dist.broadcast(slopes, 0)
    o = dd.context_parallel_attention(*(dd.shard(x, causal=True) for x in (q, k, v)), causal=True, alibi_slopes=slopes)
    return float((o - dd.shard(by_definition(q, k, v, causal=True, slopes=slopes)[0], causal=True)).abs().max())


def of_checks_once(dd):
    """How many transfers of a check three calls make, of packed sequences and of others."""
    from dfa import _distributed_agree
    asked, gathered = [], _distributed_agree._gathered
    _distributed_agree._gathered = lambda *given: asked.append(1) or gathered(*given)
    begins = torch.tensor([0, 13, 32])
    rows, x = dd.shard(torch.randn(32, 4, 8), dim=0, cu_seqlens=begins), dd.shard(torch.randn(1, 4, 32, 8))
    counts = []
    for tensor, options in ((rows, {"cu_seqlens_q": begins}), (rows, {"cu_seqlens_q": begins, "softcap": 2.0}), (x, {})):
        asked.clear()
        for _ in range(3):
            dd.context_parallel_attention(tensor, tensor, tensor, check="once", **options)
        counts.append(len(asked))
    _distributed_agree._gathered = gathered
    return counts


def of_lengths_that_vary(dd):
    """The worst difference over lengths of which a rank has as many rows while others do not: checked once, and in PyTorch's block."""
    worst = 0.0
    for s in (61, 62, 63, 61, 64, 60):
        whole = tensors({"b": 1, "sq": s, "sk": s}, seed=s)[:3]
        meant = dd.shard(by_definition(*whole, causal=True)[0], causal=True)
        mine = [dd.shard(x, causal=True) for x in whole]
        got = dd.context_parallel_attention(*mine, causal=True, check="once", timeout_s=60)
        with dd.context_parallel(None, buffers=whole, buffer_seq_dims=[2, 2, 2]):
            inside = torch.nn.functional.scaled_dot_product_attention(*whole, is_causal=True, enable_gqa=True)
        worst = max(worst, *(float((o - meant).abs().max()) for o in (got, inside)))
    return worst


def of_compile(dd):
    x = [dd.shard(torch.randn(1, 4, 32, 8), causal=True) for _ in range(3)]
    step = lambda q, k, v: dd.context_parallel_attention(q * 2, k, v, causal=True) + 1  # noqa: E731
    return torch.equal(torch.compile(step, backend="eager")(*x), step(*x))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ranks", (4, 2))
def test_values_and_gradients_of_every_method(ranks, tmp_path):
    for told in run(ranks, everything, tmp_path, METHODS):
        assert isinstance(told, tuple), told
        result, half, helpers, slopes, checks, varied, compiled = told
        assert len(result) == len(CASES) * (len(METHODS) + (2 if ranks == 4 else 0)) + 2
        assert not {case: errors for case, errors in result.items() if not max(errors) <= 2e-5}
        # One rounding to bfloat16 of o is 2^-8 of its largest value here, about 4; gradients are sums of such.
        assert not {method: errors for method, errors in half.items() if not max(errors) <= 0.05}
        assert helpers == [True] * 5 and slopes < 2e-5 and checks == [1, 1, 3] and varied < 2e-5 and compiled


def refusals(rank):
    """What each bad call says on this rank, and whether a good one works after it."""
    import dfa.distributed as dd
    x = torch.randn(1, 4, 16, 8)
    one, other = rank == 0, rank == 1

    def call(q=x, k=x, v=x, **options):
        return dd.context_parallel_attention(q, k, v, timeout_s=60, **options)
    begins = torch.tensor([0, 10, 32], dtype=torch.int32)
    rows = dd.shard(torch.randn(32, 4, 8), dim=0, cu_seqlens=begins)
    bad = {
        "q has [18, 16] rows by rank; accepted: [17, 17]": lambda: call(torch.randn(1, 4, 18 if one else 16, 8)),
        "causal or window": None,
        "window differs by rank: (-1, 0) on rank 0 of the group, (-1, -1) on rank 1": lambda: call(causal=one, layout="contiguous"),
        "layout differs by rank": lambda: call(causal=one),
        "method differs by rank: ring on rank 0": lambda: call(method="ring" if one else "allgather"),
        "element type differs by rank": lambda: call(*[x.half() if one else x] * 3),
        "hq differs by rank": lambda: call(torch.randn(1, 8 if one else 4, 16, 8)),
        "requires_grad differs by rank": lambda: call(x.clone().requires_grad_(one)),
        "cu_seqlens differs by rank": lambda: call(rows, rows, rows, cu_seqlens_q=begins if one else torch.tensor([0, 11, 32])),
        "k is not contiguous, with strides": lambda: call(k=torch.randn(1, 4, 32, 8)[:, :, ::2] if other else x),
        "v is list; accepted: a tensor (rank 1": lambda: call(v=[1] if other else x),
        "q has 3 dimensions; accepted: batch, heads, rows": lambda: call(q=x[0]),
        "hq=3 is not a multiple of hk=4": lambda: call(torch.randn(1, 3, 16, 8)),
        "hq=3 and hk=1 heads are exchanged between 2 ranks": lambda: call(x[:, :3].contiguous(), *[x[:, :1].contiguous()] * 2,
                                                                         method="alltoall"),
        "method is 'rings'; accepted: auto, ring, allgather, alltoall": lambda: call(method="rings"),
        "layout is 'stripe'; accepted": lambda: call(layout="stripe"),
        "window (3,); accepted": lambda: call(window=(3,) if other else None),
        "scale 0; accepted": lambda: call(scale=0.0),
        "softcap -1.0; accepted": lambda: call(softcap=-1.0 if one else 1.0),
        "sinks has shape [3]": lambda: call(sinks=torch.zeros(3 if one else 4)),
        "alibi_slopes with method ring is not supported; accepted: alltoall": lambda: call(alibi_slopes=torch.ones(4), method="ring"),
        "sinks has nan at index 1; accepted: finite": lambda: call(sinks=torch.tensor([0, torch.nan if one else 1, 2, 3]), method="alltoall"),
        "sinks has inf at index 2; accepted: finite": lambda: call(sinks=torch.tensor([0, 1, torch.inf if one else 2, 3])),
        "alibi_slopes has -inf at index 3; accepted": lambda: call(alibi_slopes=torch.tensor([0, 1, 2, -torch.inf if one else 3])),
        "heads_stride is 0": lambda: call(heads_stride=0),
        "causal is 'yes'; accepted: True or False": lambda: call(causal="yes" if one else True),
        "check is 'never'": lambda: call(check="never" if one else "always"),
        "sm_margin is -1; accepted: a number of multiprocessors": lambda: call(sm_margin=-1 if one else 0),
        "timeout_s is -1": lambda: dd.context_parallel_attention(x, x, x, timeout_s=-1 if one else 60),
        "cu_seqlens_q is torch.float32": lambda: call(rows, rows, rows, cu_seqlens_q=begins.float()),
        "cu_seqlens_q is [0, 10, 9]": lambda: call(rows, rows, rows, cu_seqlens_q=torch.tensor([0, 10, 9])),
        "cu_seqlens_k without cu_seqlens_q": lambda: call(cu_seqlens_k=begins),
        "q has [16, 16] rows by rank; accepted: [14, 13]": lambda: call(rows, rows, rows, cu_seqlens_q=torch.tensor([0, 7, 27])),
        "q has no rows on any rank": lambda: call(x[:, :, :0]),
        "q, k, v have element types torch.float64": lambda: call(*[x.double()] * 3),
    }
    del bad["causal or window"]
    said = {}
    for text, attempt in bad.items():
        try:
            attempt()
            said[text] = "nothing"
        except ValueError as error:
            said[text] = str(error)
    good = call()
    for text, group in (("group is str; accepted: a ProcessGroup", "world"), ("a DeviceMesh of 3 dimensions", None)):
        try:
            call(group=group or dist.init_device_mesh("cpu", (1, 1, 2)))
            said[text] = "nothing"
        except (TypeError, ValueError) as error:
            said[text] = str(error)
    good = float((good - dd.shard(by_definition(*[dd.unshard(x)] * 3)[0])).abs().max())
    return said, good, of_second_derivatives(dd), of_transforms(dd, x), of_no_gradients(dd, x), of_two_groups(dd, x)


def of_no_gradients(dd, x):
    """Under no_grad a parameter is a tensor like any other: how far o is from that of the same numbers."""
    scale, slopes = torch.nn.Parameter(torch.tensor(0.25)), torch.nn.Parameter(torch.linspace(0, 1, 4))
    with torch.no_grad():
        pairs = ((dd.context_parallel_attention(x, x, x, scale=scale), dd.context_parallel_attention(x, x, x, scale=0.25)),
                 (dd.context_parallel_attention(x, x, x, alibi_slopes=slopes),
                  dd.context_parallel_attention(x, x, x, alibi_slopes=slopes.detach())))
    return max(float((a - b).abs().max()) for a, b in pairs)


def of_second_derivatives(dd):
    """By method, what a gradient penalty behind a sum says, whose first gradients hang on saved tensors alone."""
    said = {}
    for method in METHODS:
        learned = [dd.shard(x).requires_grad_() for x in tensors({})[:3]]
        sink = torch.zeros(8, requires_grad=True)
        o = dd.context_parallel_attention(*learned, sinks=sink, method=method, timeout_s=60)
        firsts = torch.autograd.grad(o.sum(), (*learned, sink), create_graph=True)
        for name, first in zip(("q", "k", "v", "sinks"), firsts):
            try:
                (first.square().sum() + learned[0].sum()).backward(retain_graph=True)
                said[method, name] = "nothing"
            except RuntimeError as error:
                said[method, name] = str(error)
    return said


def of_transforms(dd, x):
    """What torch.func, forward mode and torch.jit.trace say."""
    def call(q):
        return dd.context_parallel_attention(q, x, x, timeout_s=60)

    def in_forward_mode(q):
        with torch.autograd.forward_ad.dual_level():
            call(torch.autograd.forward_ad.make_dual(q, q))
    said = []
    for attempt in (torch.func.grad(lambda q: call(q).sum()), lambda q: torch.vmap(call)(q[None]), in_forward_mode,
                    lambda q: torch.jit.trace(call, q, check_trace=False)):
        try:
            attempt(x)
            said.append("nothing")
        except RuntimeError as error:
            said.append(str(error))
    return said


def of_two_groups(dd, x):
    """Groups that do not match: nobody hears of the other's, so that the time limit tells."""
    group = dist.new_group([0, 1])
    start = time.monotonic()
    try:
        dd.context_parallel_attention(x, x, x, group=group if dist.get_rank() else None, timeout_s=2)
    except RuntimeError as error:
        return str(error), time.monotonic() - start
    return "nothing", 0


def test_what_one_rank_cannot_take_all_refuse(tmp_path):
    for told in run(2, refusals, tmp_path):
        assert isinstance(told, tuple), told
        said, good, second, transforms, without_gradients, (two_groups, waited) = told
        assert len(said) == 36
        assert not {text: error for text, error in said.items() if text not in error}
        assert good < 1e-5 and without_gradients == 0
        assert len(second) == 4 * len(METHODS)
        assert not {key: text for key, text in second.items() if "second derivative" not in text and "differentiate twice" not in text}
        words = ("torch.func and torch.vmap of", "torch.func and torch.vmap of", "forward-mode", "torch.jit.trace cannot record")
        assert [word for word, text in zip(words, transforms, strict=True) if word not in text] == [], transforms
        assert "called with another group" in two_groups and waited < 30


def with_a_death(rank, dying):
    """Rank `dying` ends in the middle of its first ring; the others then try each method on a group that has it, too."""
    import dfa.distributed as dd
    from dfa import _distributed_exchange
    groups = {method: dist.new_group([0, 1, 2]) for method in METHODS}
    x = torch.randn(1, 6, 12, 8)
    if rank == dying:
        _distributed_exchange.Exchange.swap = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    said = []
    for method, group in groups.items():
        start = time.monotonic()
        try:
            dd.context_parallel_attention(x, x, x, group=group, method=method, timeout_s=5)
            said.append(("nothing", 0))
        except RuntimeError as error:
            said.append((str(error), time.monotonic() - start))
    return said


def test_a_rank_that_dies_ends_the_others(tmp_path):
    told = run(3, with_a_death, tmp_path, 1, limit_s=150)
    assert told[1] is None
    for said in (told[0], told[2]):
        assert len(said) == 3, said
        for text, waited in said:
            assert "a rank of the group [0, 1, 2] has stopped" in text and waited < 30


def test_without_a_process_group_it_says_so():
    import dfa.distributed as dd
    x = torch.randn(1, 1, 8, 8)
    for call in (lambda: dd.context_parallel_attention(x, x, x), lambda: dd.shard(x), lambda: dd.unshard(x)):
        with pytest.raises(RuntimeError, match="no process group; accepted: after torch.distributed.init_process_group"):
            call()
