"""Tensor-parallel calls: dfa.attention of DTensors against the same call of whole tensors."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from distributed_ranks import run  # noqa: E402


def drawn(b=2, hq=8, hk=4, sq=24, sk=24, d=16, dv=16):
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(b, h, s, w, generator=draw) for h, s, w in ((hq, sq, d), (hk, sk, d), (hk, sk, dv), (hq, sq, dv))]


def places():
    from torch.distributed.tensor import Replicate, Shard
    r, batch, heads, rows = Replicate(), Shard(0), Shard(1), Shard(2)
    # name: (sizes, options, placements of q, k, v, of o, transfers of the forward)
    return {
        "replicated": ({}, {"causal": True}, (r, r, r), r, 0),
        "batch": ({}, {"causal": True}, (batch, batch, batch), batch, 0),
        "heads": ({}, {"causal": True, "window": (9, 0)}, (heads, heads, heads), heads, 0),
        "heads of q alone, of whole groups": ({}, {"causal": True}, (heads, r, r), heads, 0),
        "heads of one key head": ({"hk": 1}, {"causal": True}, (heads, r, r), heads, 0),
        "heads that do not divide": ({"hq": 6, "hk": 3}, {"causal": True}, (heads, heads, heads), None, None),
        "rows of q without a mask": ({}, {}, (rows, r, r), rows, 0),
        "rows of q under a mask": ({}, {"causal": True}, (rows, r, r), None, None),
        "rows of keys": ({}, {}, (rows, rows, rows), None, None),
        "head dims": ({}, {"causal": True}, (Shard(3),) * 3, None, None),
        "batch beside heads": ({}, {"causal": True}, (batch, heads, r), None, None),
        "odd head dims": ({"d": 20, "dv": 12}, {"causal": True}, (heads, heads, heads), heads, 0),
        "softcap and sinks": ({}, {"causal": True, "softcap": 3.0, "sinks": True}, (heads, heads, heads), heads, 0),
        "alibi, of a batch that is sharded": ({}, {"alibi_slopes": torch.linspace(0.1, 1, 8)}, (batch, batch, batch), None, None),
    }


def worst(case, mesh):
    """The largest difference of o, lse and gradients, the placement of o and the transfers of the forward."""
    import dfa
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode
    sizes, options, placed, *_ = case
    options = dict(options)
    *qkv, d_o = drawn(**sizes)
    sinks = torch.linspace(-1, 1, qkv[0].shape[1]) if options.pop("sinks", False) else None
    whole = [x.clone().requires_grad_() for x in (*qkv, *([sinks] if sinks is not None else []))]
    right, right_lse = dfa.attention(*whole[:3], **options, sinks=whole[3] if sinks is not None else None, return_lse=True)
    (right * d_o).sum().backward()
    rest = [Replicate()] * (mesh.ndim - 1)
    mine = [distribute_tensor(x.detach(), mesh, [*rest, place]).requires_grad_() for x, place in zip(whole, (*placed, Shard(0)))]
    with CommDebugMode() as seen:
        o, lse = dfa.attention(*mine[:3], **options, sinks=mine[3] if sinks is not None else None, return_lse=True)
    (o * distribute_tensor(d_o, mesh, o.placements)).sum().backward()
    pairs = [(o.full_tensor(), right), (lse.full_tensor(), right_lse)]
    pairs += [(x.grad.full_tensor(), y.grad) for x, y in zip(mine, whole)]
    return max(float((a - b).detach().abs().max()) for a, b in pairs), o.placements[-1], seen.get_total_counts()


def everything(rank):
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return ({name: worst(case, mesh) for name, case in places().items()}, of_packed(mesh), refusals(mesh), of_a_model(mesh),
            of_a_scale(mesh))


def of_packed(mesh):
    import dfa
    from torch.distributed.tensor import Shard, distribute_tensor
    q, k, v, d_o = (x.transpose(1, 2).flatten(0, 1) for x in drawn())
    begins = torch.tensor([0, 5, 5, 31, 48], dtype=torch.int32)
    bias = torch.randn(1, 1, 26, 26, generator=torch.Generator().manual_seed(4))  # a plain tensor is the same on all ranks
    whole = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    (dfa.attention_varlen(*whole[:3], begins, causal=True, bias=whole[3]) * d_o).sum().backward()
    mine = [distribute_tensor(x, mesh, [Shard(1)]).requires_grad_() for x in (q, k, v)]
    own_bias = bias.clone().requires_grad_()
    o = dfa.attention_varlen(*mine, begins, causal=True, bias=own_bias)
    (o * distribute_tensor(d_o, mesh, [Shard(1)])).sum().backward()
    pairs = [(x.grad.full_tensor(), y.grad) for x, y in zip(mine, whole)] + [(own_bias.grad, whole[3].grad)]
    return max(float((a - b).abs().max()) for a, b in pairs), o.placements[0]


def of_a_scale(mesh):
    """Of tensors that are sharded, with a scale that is a plain tensor, or a DTensor, with its gradient: the largest differences."""
    import dfa
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    *qkv, d_o = drawn()
    worst = 0.0
    for value in (torch.tensor(0.3), torch.linspace(-0.5, 0.5, 8)):
        whole = value.clone().requires_grad_()
        right = dfa.attention(*qkv, scale=whole)
        (right * d_o).sum().backward()
        for place in (Shard(0), Shard(1), Shard(2)):
            mine = [distribute_tensor(x, mesh, [place if i == 0 or place.dim < 2 else Replicate()]) for i, x in enumerate(qkv)]
            for scale in (value.clone(), distribute_tensor(value.clone(), mesh, [Replicate()])):
                scale.requires_grad_()
                o = dfa.attention(*mine, scale=scale)
                (o * distribute_tensor(d_o, mesh, o.placements)).sum().backward()
                gradient = scale.grad.full_tensor() if hasattr(scale.grad, "full_tensor") else scale.grad
                for got, wanted in ((o.full_tensor(), right), (gradient, whole.grad)):
                    worst = max(worst, float(((got - wanted).abs() / (1 + wanted.abs())).max()))
    return worst


def refusals(mesh):
    import dfa
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
    q, k, v, _ = drawn()
    said = []
    for call in (lambda q: dfa.attention(q, k, v), lambda q: dfa.attention(q, *(distribute_tensor(x[:, :3], mesh, [Shard(1)])
                                                                             for x in (k, v))),
                 lambda q: dfa.attention(*(DTensor.from_local(x.to(torch.float8_e4m3fn), mesh, [Shard(1)], run_check=False)
                                           for x in (q.to_local(), k, v)))):
        try:
            call(distribute_tensor(q, mesh, [Shard(1)]))
            said.append("nothing")
        except (RuntimeError, ValueError) as error:
            said.append(str(error))
    return said


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (torch.nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        import dfa
        q, k, v = (project(x).unflatten(-1, (-1, 8)).transpose(1, 2) for project in (self.q, self.k, self.v))
        return self.o(dfa.attention(q, k, v, causal=True).transpose(1, 2).flatten(2))


def of_a_model(mesh):
    """A layer whose projections are cut by heads, as torch.distributed.tensor.parallel does it: the largest differences."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    layer, x = Layer(), torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))
    right = layer(x)
    gradients = torch.autograd.grad(right.sum(), layer.parameters())
    cut = {name: ColwiseParallel(use_local_output=False) for name in "qkv"} | {"o": RowwiseParallel()}
    parallel = parallelize_module(layer, mesh, cut)
    got = parallel(x)
    theirs = torch.autograd.grad(got.sum(), parallel.parameters())
    return max([float((got - right).detach().abs().max()), *(float((a.full_tensor() - b).abs().max()) for a, b in zip(theirs, gradients))])


def test_shards_give_what_the_whole_gives(tmp_path):
    for told in run(2, everything, tmp_path):
        assert isinstance(told, tuple), told
        cases, (packed, placed), (mixed, shapes, e4m3), model, scales = told
        assert model < 1e-5 and scales < 1e-5
        for name, (error, placement, transfers) in cases.items():
            *_, wanted, counted = places()[name]
            assert error < 1e-5, (name, error)
            assert wanted is None or placement == wanted, (name, placement)
            assert counted is None or transfers == counted, (name, transfers)
        assert packed < 1e-5 and placed.is_shard(1)
        assert "mixed torch.Tensor and DTensor" in mixed
        assert "hq=8 is not a multiple of hk=3" in shapes
        assert e4m3 == "q is a DTensor in float8_e4m3fn; accepted: its part on this rank, to_local()"


def on_a_mesh(rank):
    """Batches over the first dimension, heads over the second; and key heads that only one of them divides."""
    import dfa
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = dist.init_device_mesh("cpu", (2, 2))
    worst = 0.0
    for hk, placed in ((4, [Shard(0), Shard(1)]), (2, [Shard(0), Shard(1)]), (2, [Shard(1), Shard(1)]), (6, [Shard(1), Shard(1)])):
        q, k, v, _ = drawn(hq=12, hk=hk)
        mine = [distribute_tensor(x, mesh, placed) for x in (q, k, v)]
        o = dfa.attention(*mine, causal=True)
        worst = max(worst, float((o.full_tensor() - dfa.attention(q, k, v, causal=True)).abs().max()))
        if hk != 6 and placed[0] != placed[1]:
            assert list(o.placements) == placed, o.placements
    return worst


def test_a_mesh_shards_batch_and_heads(tmp_path):
    for told in run(4, on_a_mesh, tmp_path):
        assert isinstance(told, float) and told < 1e-5, told
