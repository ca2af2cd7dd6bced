"""chunk and prefix against masks written out: values, gradients, torch.func, and what is refused."""

import numpy
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402

GIVEN = [{"causal": True, "chunk": 7}, {"chunk": 16}, {"causal": True, "chunk": 1}, {"causal": True, "chunk": 2 ** 40},
         {"window": (5, 2), "chunk": 11}, {"causal": True, "prefix": 1}, {"causal": True, "prefix": 13},
         {"causal": True, "prefix": 500}]
IDS = [" ".join(map(str, given.values())) for given in GIVEN]


def visible(sq, sk, causal=False, window=(-1, -1), chunk=None, prefix=None):
    at = torch.arange(sq)[:, None] + sk - sq
    keys = torch.arange(sk)
    seen = torch.ones(sq, sk, dtype=torch.bool)
    if causal:
        seen &= keys <= at
    if window[0] >= 0:
        seen &= keys >= at - window[0]
    if window[1] >= 0:
        seen &= keys <= at + window[1]
    if chunk:
        seen &= at.div(chunk, rounding_mode="floor") == keys.div(chunk, rounding_mode="floor")
    return seen | (keys < prefix) if prefix else seen


def written_out(q, k, v, **options):
    """(o, lse)"""
    seen = visible(q.shape[2], k.shape[2], **options)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(~seen, -torch.inf)
    blind = ~seen.any(1)[:, None]
    o = torch.softmax(logits.masked_fill(blind, 0), 3).masked_fill(blind, 0) @ v
    return o, torch.logsumexp(logits.masked_fill(blind, 0), 3).masked_fill(blind[:, 0], -torch.inf)


def qkv(sq=30, sk=50, dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    sizes = (2, 4, sq, 16), (2, 2, sk, 16), (2, 2, sk, 24)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]


@pytest.mark.parametrize("given", GIVEN, ids=IDS)
@pytest.mark.parametrize("sq, sk", [(30, 50), (50, 30), (41, 41), (1, 37)])
def test_values_and_gradients_are_those_written_out(given, sq, sk):
    leaves = qkv(sq, sk)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    g = torch.randn(2, 4, sq, 24, generator=torch.Generator().manual_seed(3))
    o, lse = dfa.attention(*leaves, return_lse=True, **given)
    wanted_o, wanted_lse = written_out(*wide, **given)
    torch.testing.assert_close(o, wanted_o.float(), rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(lse, wanted_lse.float(), rtol=1e-5, atol=5e-6)
    came = torch.autograd.grad((o * g).sum(), leaves)
    for a, b in zip(came, torch.autograd.grad((wanted_o * g).sum(), wide)):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-5)


def test_lse_has_a_gradient():
    leaves = qkv()
    given = {"causal": True, "chunk": 7}
    came = torch.autograd.grad(dfa.attention(*leaves, return_lse=True, **given)[1].sum(), leaves[:2])
    for a, b in zip(came, torch.autograd.grad(written_out(*leaves, **given)[1].sum(), leaves[:2])):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", GIVEN, ids=IDS)
def test_numpy(given):
    leaves = [x.detach() for x in qkv()]
    o, lse = dfa.attention(*(x.numpy() for x in leaves), return_lse=True, **given)
    for a, b in zip((o, lse), written_out(*leaves, **given)):
        numpy.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
@pytest.mark.parametrize("given", [GIVEN[0], GIVEN[6]])
def test_half_precision(dtype, tolerance, given):
    leaves = qkv(65, 130, dtype)
    o = dfa.attention(*leaves, **given)
    torch.testing.assert_close(o.float(), written_out(*(x.float() for x in leaves), **given)[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("given", [GIVEN[0], GIVEN[6]])
def test_they_go_beside_logits(given):
    q, k, v = qkv()
    bias = torch.randn(1, 4, 30, 50, generator=torch.Generator().manual_seed(4))
    hidden = bias.masked_fill(~visible(30, 50, **given), -torch.inf)
    torch.testing.assert_close(dfa.attention(q, k, v, bias=bias, softcap=5.0, **given),
                               dfa.attention(q, k, v, bias=hidden, softcap=5.0), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("given", [{"chunk": 4}, {"prefix": 3}])
def test_packed_sequences_are_the_sequences_alone(given):
    lengths = [5, 0, 17, 1]
    q, k, v = (x.detach()[0, :, :23].transpose(0, 1).contiguous().requires_grad_() for x in qkv(23, 23))
    cu = torch.tensor([0, 5, 5, 22, 23], dtype=torch.int32)
    o = dfa.attention_varlen(q, k, v, cu, causal=True, **given)
    alone = torch.cat([written_out(*(x[at:at + rows].transpose(0, 1)[None] for x in (q, k, v)), causal=True, **given)[0][0]
                       .transpose(0, 1) for at, rows in zip(cu.tolist(), lengths)])
    torch.testing.assert_close(o, alone, rtol=1e-5, atol=5e-6)
    for a, b in zip(torch.autograd.grad(o.sum() + (o * o).sum(), (q, k, v)),
                    torch.autograd.grad(alone.sum() + (alone * alone).sum(), (q, k, v))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [GIVEN[0], GIVEN[6]])
def test_torch_func_and_compile(given):
    q, k, v = (x.detach() for x in qkv())

    def loss(q, k, v):
        return (dfa.attention(q, k, v, **given) ** 2).sum()

    wanted = torch.autograd.grad((written_out(*(leaves := qkv()), **given)[0] ** 2).sum(), leaves)
    for came in (torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v),
                 torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*(leaves := qkv())), leaves)):
        for a, b in zip(came, wanted):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)
    several = torch.stack([q, 2 * q])
    mapped = torch.vmap(lambda q: dfa.attention(q, k, v, **given))(several)
    for a, one in zip(mapped, several):
        torch.testing.assert_close(a, written_out(one, k, v, **given)[0], rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["chunk", "prefix"])
@pytest.mark.parametrize("value, kind", [(0, ValueError), (-3, ValueError), (2 ** 40 + 1, ValueError), (2 ** 63, ValueError),
                                         (2.5, TypeError), (True, TypeError), ("4", TypeError), (float("nan"), TypeError),
                                         ((1, 2), TypeError), (torch.ones(2), TypeError)])
def test_odd_values_are_refused_by_name(name, value, kind):
    leaves = qkv()
    for arrays in (leaves, [x.detach().numpy() for x in leaves]):
        with pytest.raises(kind, match=name):
            dfa.attention(*arrays, causal=True, **{name: value})


@pytest.mark.parametrize("options, words", [
    ({"causal": True, "chunk": 4, "prefix": 3}, "one of them"), ({"prefix": 3}, "causal=True"),
    ({"causal": True, "window": (4, 0), "prefix": 3}, "causal=True and no window"),
    ({"causal": True, "chunk": 4, "algorithm": "standard"}, "algorithm auto"),
])
def test_what_does_not_go_together(options, words):
    leaves = qkv()
    for arrays in (leaves, [x.detach().numpy() for x in leaves]):
        with pytest.raises(ValueError, match=words):
            dfa.attention(*arrays, **options)


def test_whole_numbers_of_others_are_taken():
    leaves = qkv()
    wanted = dfa.attention(*leaves, causal=True, chunk=7)
    for chunk in (numpy.int64(7), torch.tensor(7)):
        assert torch.equal(dfa.attention(*leaves, causal=True, chunk=chunk), wanted)


def test_what_is_not_there_is_refused():
    q, k, v = (x.detach()[0].transpose(0, 1).contiguous() for x in qkv(8, 8))
    cu, table = torch.tensor([0, 8], dtype=torch.int32), torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="beside block_table"):
        dfa.attention_varlen(q, k[None], v[None], cu, cu, block_table=table, causal=True, chunk=4)


def test_nothing_to_read():
    q, k, v = (x.detach() for x in qkv())
    for arrays in ((q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0]), (q[:0], k[:0], v[:0])):
        o, lse = dfa.attention(*arrays, causal=True, chunk=4, return_lse=True)
        assert o.shape == (*arrays[0].shape[:3], 24) and not o.any() and (lse == -torch.inf).all()


@pytest.mark.parametrize("given", [{"causal": True, "chunk": 7}, {"causal": True, "prefix": 13}])
def test_a_learned_bias_and_sinks_have_gradients_beside_them(given):
    generator = torch.Generator().manual_seed(5)
    q, k, v = qkv()
    bias, sinks = (torch.randn(size, generator=generator).requires_grad_() for size in ((1, 4, 30, 50), (4,)))
    leaves = q, k, v, bias, sinks
    hidden = torch.zeros(30, 50).masked_fill(~visible(30, 50, **given), -torch.inf)
    came, wanted = (torch.autograd.grad((dfa.attention(q, k, v, bias=added, sinks=sinks, **options) ** 2).sum(), leaves)
                    for added, options in ((bias, given), (bias + hidden, {})))
    for a, b in zip(came, wanted):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)
