"""PyTorch's context_parallel block and ring-flash-attn's names, over dfa.distributed: two ranks against the whole in one process."""

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch without gloo", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from distributed_ranks import by_definition, run  # noqa: E402

S = 53  # no multiple of anything


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.table, self.places = torch.nn.Embedding(17, 32), torch.nn.Embedding(S, 32)
        self.q, self.kv, self.out = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 17)

    def forward(self, tokens, positions):
        x = self.table(tokens) + self.places(positions)
        q = self.q(x).unflatten(2, (4, 8)).transpose(1, 2)
        k, v = self.kv(x).unflatten(2, (2, 2, 8)).permute(2, 0, 3, 1, 4)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(o.transpose(1, 2).flatten(2))


def loss_of(model, tokens, labels, positions):
    return torch.nn.functional.cross_entropy(model(tokens, positions).flatten(0, 1), labels.flatten(), reduction="sum")


def in_a_block(rank):
    import dfa.distributed as dd
    draw = torch.Generator().manual_seed(6)
    tokens, labels = (torch.randint(17, (2, S), generator=draw) for _ in range(2))
    positions = torch.arange(S)
    right = Model()
    whole = loss_of(right, tokens, labels, positions)
    whole.backward()
    mine, given = Model(), [tokens.clone(), labels.clone(), positions.clone()]
    theirs = torch.nn.functional.scaled_dot_product_attention
    mesh = dist.init_device_mesh("cpu", (2,))
    with dd.context_parallel(mesh, buffers=given, buffer_seq_dims=[1, 1, 0], no_restore_buffers={given[1]}):
        rows = given[0].shape[1]
        loss = loss_of(mine, given[0], given[1], given[2])
        loss.backward()
        said = _refused(mesh, dd)
    assert torch.nn.functional.scaled_dot_product_attention is theirs
    assert torch.equal(given[0], tokens) and torch.equal(given[2], positions) and given[1].shape[1] == rows < S
    total = loss.detach().clone()
    dist.all_reduce(total)
    worst = float((total - whole).abs() / whole)
    for a, b in zip(mine.parameters(), right.parameters()):
        dist.all_reduce(a.grad)
        worst = max(worst, float((a.grad - b.grad).abs().max()))
    for bad in ({"buffers": [tokens], "buffer_seq_dims": []}, {"buffers": [torch.ones(4, requires_grad=True)], "buffer_seq_dims": [0]},
                {"buffers": [tokens], "buffer_seq_dims": [1], "no_restore_buffers": {labels}},
                {"buffers": [tokens, tokens], "buffer_seq_dims": [1, 1]}, {"buffers": [tokens, labels], "buffer_seq_dims": [1, 5]}):
        said.append(_said(lambda bad=bad: dd.context_parallel(mesh, **bad).__enter__()))
    return worst, said, tokens.shape[1] == S, _of_views(mesh, dd)


def _of_views(mesh, dd):
    """Tokens and labels of one batch, as training has them, and what lies in memory otherwise: are parts right, and all put back?"""
    batch, right = torch.randint(17, (2, S + 1), generator=torch.Generator().manual_seed(7)), []
    before = batch.clone()
    given = [batch[:, :-1], batch[:, 1:], batch.t()[:S], batch[0, :S].expand(3, S)]
    whole, dims, places = [x.clone() for x in given], [1, 1, 0, 1], [(x.data_ptr(), x.stride()) for x in given]
    with dd.context_parallel(mesh, buffers=given, buffer_seq_dims=dims):
        right += [torch.equal(x, dd.shard(y, dim=dim, layout="zigzag")) for x, y, dim in zip(given, whole, dims)]
        given[0].zero_()  # a part is a copy
    right += [torch.equal(x, y) for x, y in zip(given, whole)]
    return [*right, torch.equal(batch, before), places == [(x.data_ptr(), x.stride()) for x in given]]


def _refused(mesh, dd):
    f = torch.nn.functional.scaled_dot_product_attention
    x = torch.randn(1, 2, 8, 8)
    return [_said(call) for call in (
        lambda: f(x, x, x, torch.ones(8, 8, dtype=torch.bool)), lambda: f(x, x, x, dropout_p=0.1), lambda: f(x, x[:, :, :4], x[:, :, :4]),
        lambda: f(x, x[:, :1], x[:, :1]), lambda: dd.context_parallel(mesh).__enter__())]


def _said(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"


def test_a_block_gives_the_loss_and_gradients_of_the_whole(tmp_path):
    wanted = ("attn_mask in a context_parallel block", "dropout_p=0.1", "as many rows of each", "enable_gqa=True lets them share",
              "one block at a time", "0 dimensions for 1 buffers", "buffers[0] requires a gradient", "none of buffers", "buffers[1] is there twice",
              "dim is 5")
    for told in run(2, in_a_block, tmp_path):
        assert isinstance(told, tuple), told
        worst, said, left_whole, views = told
        assert worst < 1e-4 and len(said) == len(wanted) and left_whole and views == [True] * 10
        assert all(text in one for text, one in zip(wanted, said)), said


def by_names(rank):
    """The largest differences of o, lse and gradients, by each of ring-flash-attn's functions; what is refused."""
    import dfa.distributed as dd
    import dfa.ring_flash_attn as ring
    draw = torch.Generator().manual_seed(7)
    q, k, v, d_o = (torch.randn(2, 24, h, 16, generator=draw) for h in (4, 4, 4, 4))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    begins = [0, 8, 24]
    worst = {}
    for causal in (False, True):
        o, lse = by_definition(*(x.transpose(1, 2) for x in whole), causal=causal)
        right = torch.autograd.grad((o * d_o.transpose(1, 2)).sum(), whole)
        for name in ("ring", "zigzag_ring"):
            def part(x, name=name):
                return dd.shard(x, dim=1, layout="contiguous" if name == "ring" else "zigzag")
            for form in ("", "_kvpacked", "_qkvpacked"):
                mine = [part(x).requires_grad_() for x in (q, k, v)]
                given = {"": mine, "_kvpacked": [mine[0], torch.stack(mine[1:], 2)], "_qkvpacked": [torch.stack(mine, 2)]}[form]
                got, got_lse, none = getattr(ring, f"{name}_flash_attn{form}_func")(*given, causal=causal, return_attn_probs=True)
                gradients = torch.autograd.grad(got, mine, part(d_o))
                pairs = [(got, part(o.transpose(1, 2))), (got_lse, part(lse.transpose(1, 2)).transpose(1, 2)), *zip(gradients, map(part, right))]
                worst[name, form, causal] = max(float((a - b).detach().abs().max()) for a, b in pairs)
        o, _ = by_definition(*(x[:1].transpose(1, 2) for x in whole), causal=causal, begins=(begins, begins))
        for name in ("ring", "zigzag_ring"):
            def part(x, name=name):
                return dd.shard(x[0], dim=0, layout="contiguous" if name == "ring" else "zigzag", cu_seqlens=torch.tensor(begins))
            local = torch.tensor(begins, dtype=torch.int32) // 2
            got = getattr(ring, f"{name}_flash_attn_varlen_func")(*map(part, (q, k, v)), local, 8, causal=causal)
            worst[name, "varlen", causal] = float((got - part(o.transpose(1, 2))).detach().abs().max())
            got = getattr(ring, f"{name}_flash_attn_varlen_qkvpacked_func")(torch.stack([*map(part, (q, k, v))], 1), local, 8, causal=causal)
            worst[name, "varlen qkv", causal] = float((got - part(o.transpose(1, 2))).detach().abs().max())
    x = q[:, :12]
    said = [_said(call) for call in (
        lambda: ring.ring_flash_attn_func(x, x, x, dropout_p=0.1), lambda: ring.ring_flash_attn_func(x, x, x, alibi_slopes=torch.ones(4)),
        lambda: ring.zigzag_ring_flash_attn_varlen_func(x[0], x[0], x[0], torch.tensor([0, 3, 12]), 9),
        lambda: ring.ring_flash_attn_func(x[0], x[0], x[0]))]
    for name in ("stripe_flash_attn_func", "llama3_flash_attn_varlen_func", "substitute_hf_flash_attn"):
        try:
            said.append(getattr(ring, name) and "nothing")
        except AttributeError as error:
            said.append(str(error))
    return worst, said


def test_the_names_of_ring_flash_attn(tmp_path):
    wanted = ("dropout_p is not supported", "alibi_slopes is not supported", "odd number of rows", "accepted: a tensor [b, rows, heads, d]",
              "stripe_flash_attn_func is not supported", "llama3_flash_attn_varlen_func is not supported", "substitute_hf_flash_attn")
    for told in run(2, by_names, tmp_path):
        assert isinstance(told, tuple), told
        worst, said = told
        assert len(worst) == 20 and max(worst.values()) < 1e-5, worst
        assert all(text in one for text, one in zip(wanted, said)) and len(said) == len(wanted), said
