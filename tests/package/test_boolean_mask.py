"""mask= against the same mask written out: values, gradients, torch.func, and what is refused."""

import numpy
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402

SHAPES = [(2, 4, 30, 50), (1, 1, 30, 50), (2, 1, 1, 50), (1, 4, 30, 1), (1, 1, 1, 1)]


def qkv(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    sizes = (2, 4, 30, 16), (2, 2, 50, 16), (2, 2, 50, 24)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]


def mask_of(shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.7


def written_out(q, k, v, seen, bias=0.0):
    """(o, lse)"""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    logits = q @ k.transpose(2, 3) * 0.25 + bias
    seen = seen.expand(logits.shape)
    blind = ~seen.any(3, keepdim=True)
    logits = logits.masked_fill(~seen, -torch.inf).masked_fill(blind, 0)
    o = torch.softmax(logits, 3).masked_fill(blind, 0) @ v
    return o, torch.logsumexp(logits, 3).masked_fill(blind[..., 0], -torch.inf)


def causal(seen):
    return seen & (torch.arange(50) <= torch.arange(30)[:, None] + 20)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_values_and_gradients_are_those_written_out(shape, is_causal):
    leaves, seen = qkv(), mask_of(shape)
    if shape[2:] == (30, 50):
        seen[..., 3, :] = False  # a row that sees nothing
    wide = [x.detach().double().requires_grad_() for x in leaves]
    o, lse = dfa.attention(*leaves, causal=is_causal, mask=seen, return_lse=True)
    wanted_o, wanted_lse = written_out(*wide, causal(seen) if is_causal else seen)
    torch.testing.assert_close(o, wanted_o.float(), rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(lse, wanted_lse.float(), rtol=1e-5, atol=5e-6)
    for a, b in zip(torch.autograd.grad((o * o).sum(), leaves), torch.autograd.grad((wanted_o ** 2).sum(), wide)):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_numpy(shape, with_bias):
    leaves, seen = [x.detach() for x in qkv()], mask_of(shape)
    bias = torch.randn(1, 4, 30, 1) if with_bias else None
    came = dfa.attention(*(x.numpy() for x in leaves), mask=seen.numpy(), bias=bias.numpy() if with_bias else None, return_lse=True)
    for a, b in zip(came, written_out(*leaves, seen, bias if with_bias else 0.0)):
        numpy.testing.assert_allclose(a, b, atol=5e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    leaves, seen = [x.detach() for x in qkv(getattr(torch, dtype))], mask_of((2, 1, 30, 50))
    wanted = written_out(*(x.float() for x in leaves), seen)[0]
    torch.testing.assert_close(dfa.attention(*leaves, mask=seen).float(), wanted, rtol=2e-2, atol=2e-2)
    if dtype == "float16":
        o = dfa.attention(*(x.numpy() for x in leaves), mask=seen.numpy())
        numpy.testing.assert_allclose(o.astype("float32"), wanted, rtol=2e-2, atol=2e-2)


def test_a_learned_bias_keeps_its_shape_and_gradient():
    q, k, v = qkv()
    bias, seen = torch.randn(1, 4, 30, 50, requires_grad=True), mask_of((2, 1, 1, 50))
    came = torch.autograd.grad((dfa.attention(q, k, v, bias=bias, mask=seen) ** 2).sum(), bias)[0]
    wanted = torch.autograd.grad((written_out(q, k, v, seen, bias)[0] ** 2).sum(), bias)[0]
    torch.testing.assert_close(came, wanted, rtol=1e-5, atol=2e-5)


def test_beside_chunks_and_in_torch_func():
    q, k, v = (x.detach() for x in qkv())
    seen = mask_of((2, 1, 30, 50))
    chunk = (torch.arange(30)[:, None] + 20) // 8 == torch.arange(50) // 8
    torch.testing.assert_close(dfa.attention(q, k, v, causal=True, chunk=8, mask=seen),
                               written_out(q, k, v, causal(seen) & chunk)[0], rtol=1e-5, atol=5e-6)
    several = torch.stack([seen, ~seen])
    mapped = torch.vmap(lambda m: dfa.attention(q, k, v, mask=m))(several)
    for a, one in zip(mapped, several):
        torch.testing.assert_close(a, written_out(q, k, v, one)[0], rtol=1e-5, atol=5e-6)
    compiled = torch.compile(lambda q, m: dfa.attention(q, k, v, mask=m), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, seen), dfa.attention(q, k, v, mask=seen))


@pytest.mark.parametrize("odd, kind, words", [
    (torch.ones(30, 50, dtype=torch.bool), ValueError, "mask has shape"),
    (torch.ones(2, 4, 30, 49, dtype=torch.bool), ValueError, "mask has shape"),
    (torch.ones(3, 1, 1, 1, dtype=torch.bool), ValueError, "mask has shape"),
    (torch.ones(1, 1, 30, 50), TypeError, "accepted: a .* of bool"),
    (torch.ones(1, 1, 30, 50, dtype=torch.int64), TypeError, "accepted: a .* of bool")])
def test_odd_masks_are_refused_by_name(odd, kind, words):
    leaves = [x.detach() for x in qkv()]
    with pytest.raises(kind, match=words):
        dfa.attention(*leaves, mask=odd)
    with pytest.raises(kind, match=words):
        dfa.attention(*(x.numpy() for x in leaves), mask=odd.numpy())


@pytest.mark.parametrize("odd", [True, "causal", [[True]], numpy.ma.masked_array(numpy.ones((1, 1, 30, 50), bool))])
def test_what_is_no_array_of_bool_is_refused(odd):
    leaves = [x.detach() for x in qkv()]
    for arrays in (leaves, [x.numpy() for x in leaves]):
        with pytest.raises((TypeError, ValueError), match="mask"):
            dfa.attention(*arrays, mask=odd)


def test_a_bias_of_a_wrong_shape_or_kind_is_not_stretched():
    leaves, seen = [x.detach() for x in qkv()], mask_of((2, 1, 30, 50))
    for bias, kind in ((torch.ones(50), ValueError), (torch.ones(1, 1, 30, 50, dtype=torch.int64), (TypeError, ValueError))):
        with pytest.raises(kind, match="bias"):
            dfa.attention(*leaves, mask=seen, bias=bias)
        with pytest.raises(kind, match="bias"):
            dfa.attention(*(x.numpy() for x in leaves), mask=seen.numpy(), bias=bias.numpy())
    with pytest.raises(TypeError, match="bias"):
        dfa.attention(*leaves, mask=seen, bias=2.0)
    with pytest.raises(ValueError, match="algorithm auto"):
        dfa.attention(*leaves, mask=seen, algorithm="standard")


def test_others_arguments_keep_their_errors_beside_a_mask():
    q, k, v = (x.detach() for x in qkv())
    seen = mask_of((2, 1, 30, 50))
    with pytest.raises(ValueError, match="q, k, v have element types"):
        dfa.attention(q.double(), k.double(), v.double(), mask=seen)
    with pytest.raises(ValueError, match="q, k, v have element types"):
        dfa.attention(q, k.half(), v, mask=seen)
    with pytest.raises(ValueError, match="mask is on meta"):
        dfa.attention(q, k, v, mask=seen.to("meta"))


@pytest.mark.parametrize("shape", [(1, 1, 1, 0), (2, 4, 30, 0)])
def test_no_keys_to_hide(shape):
    q, k, v = qkv()
    mask, bias = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, requires_grad=True)
    for options in ({"mask": mask}, {"bias": bias}):
        o, lse = dfa.attention(q, k[:, :, :0], v[:, :, :0], **options, return_lse=True)
        o.sum().backward()
        assert not o.any() and lse.isneginf().all() and not q.grad.any()
    assert bias.grad.shape == shape


def test_nothing_to_read():
    q, k, v = (x.detach() for x in qkv())
    for arrays in ((q[:, :, :0], k, v), (q, k[:, :, :0], v[:, :, :0]), (q[:0], k[:0], v[:0])):
        for given in (arrays, [x.numpy() for x in arrays]):
            seen = (torch if given is arrays else numpy).ones((1, 1, 1, 1), dtype=torch.bool if given is arrays else bool)
            o, lse = dfa.attention(*given, mask=seen, return_lse=True)
            assert o.shape == (*arrays[0].shape[:3], 24) and not o.any() and (lse == -torch.inf).all()


def test_autocast_and_masks_that_lie_apart():
    q, k, v = (x.detach() for x in qkv())
    seen = mask_of((2, 4, 50, 30)).transpose(2, 3)
    wanted = written_out(q, k, v, seen)[0]
    torch.testing.assert_close(dfa.attention(q, k, v, mask=seen), wanted, rtol=1e-5, atol=5e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = dfa.attention(q, k, v, mask=seen)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o.float(), wanted, rtol=3e-2, atol=3e-2)
    o = dfa.attention(*(x.numpy() for x in (q, k, v)), mask=seen.numpy())
    numpy.testing.assert_allclose(o, wanted, atol=5e-6)
