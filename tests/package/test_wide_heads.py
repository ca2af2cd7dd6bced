"""Head dims above 256, and the latent heads of MLA, through every door, against float64."""

import numpy as np
import pytest

import dfa

torch = pytest.importorskip("torch")

DIMS = [(264, 264), (320, 384), (512, 512), (192, 128), (512, 64), (257, 301), (511, 40)]


def inputs(d, dv, dtype=torch.float32, hq=4, hk=2, sq=9, sk=13):
    torch.manual_seed(1)
    return tuple(torch.randn(2, h, s, width).to(dtype).requires_grad_()
                 for h, s, width in ((hq, sq, d), (hk, sk, d), (hk, sk, dv)))


def truth(q, k, v, causal=True):
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT / q.shape[3] ** 0.5
    if causal:
        sq, sk = scores.shape[2:]
        scores = scores.masked_fill(~torch.ones(sq, sk, dtype=torch.bool).tril(sk - sq), -torch.inf)
    return scores.softmax(3) @ v


def close(ours, right, dtype=torch.float32):
    torch.testing.assert_close(ours.double(), right.double(), **({"atol": 2e-5, "rtol": 1e-4} if dtype == torch.float32
                                                                 else {"atol": 3e-2, "rtol": 3e-2}))


@pytest.mark.parametrize("algorithm", ["flash", "standard"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("d, dv", DIMS)
def test_pytorch_forward_and_backward(d, dv, dtype, algorithm):
    tensors = inputs(d, dv, dtype)
    o = dfa.attention(*tensors, causal=True, algorithm=algorithm)
    right = truth(*tensors)
    close(o, right, dtype)
    weights = torch.randn_like(o)
    ours = torch.autograd.grad((o * weights).sum(), tensors)
    for got, expected in zip(ours, torch.autograd.grad((right * weights.double()).sum(), tensors)):
        close(got, expected, dtype)


def test_latent_heads_without_gradients():
    q, k, v = inputs(576, 512, hq=8, hk=1)
    with torch.no_grad():
        close(dfa.attention(q, k, v, causal=True), truth(q, k, v))
        close(torch.compile(lambda *x: dfa.attention(*x, causal=True), backend="eager")(q, k, v), truth(q, k, v))
    arrays = [x.detach().numpy() for x in (q, k, v)]
    np.testing.assert_allclose(dfa.attention(*arrays, causal=True), truth(q, k, v).detach().numpy(), atol=2e-5, rtol=1e-4)


def test_latent_heads_have_no_gradient_and_say_so_at_the_call():
    q, k, v = inputs(576, 512, hq=8, hk=1)
    message = "d=576 has no gradient; accepted: up to 512"
    with pytest.raises(ValueError, match=message):
        dfa.attention(q, k, v)
    with pytest.raises(ValueError, match=message):
        dfa.attention(q, k, v, softcap=3.0)
    with pytest.raises(ValueError, match=message):
        torch.func.grad(lambda q: dfa.attention(q, k, v).sum())(q)
    lengths = torch.tensor([0, 4, 9], dtype=torch.int32), torch.tensor([0, 6, 13], dtype=torch.int32)
    packed = [x[0].transpose(0, 1) for x in (q, k, v)]
    with pytest.raises(ValueError, match=message):
        dfa.attention_varlen(*packed, *lengths)
    o = dfa.attention_varlen(*(x.detach() for x in packed), *lengths)
    close(o[:4].transpose(0, 1)[None], truth(q[:1, :, :4], k[:1, :, :6], v[:1, :, :6], causal=False))


@pytest.mark.parametrize("d, dv, said", [(584, 512, "d=584, dv=512"), (64, 520, "d=64, dv=520"), (577, 8, "d=577, dv=8")])
def test_wider_ones_are_refused_by_name(d, dv, said):
    tensors = [x.detach() for x in inputs(d, dv)]
    for given in (tensors, [x.numpy() for x in tensors]):
        with pytest.raises(ValueError, match=f"head dims are {said}; accepted: up to 512"):
            dfa.attention(*given)


def test_problem_lines():
    assert "d512" in dfa.plan("fwdbwd bf16 h2 s64 d512").problem
    assert dfa.plan("fwd fp32 hq8 hk1 s64 d576 dv512").backend == "cpu"
    with pytest.raises(ValueError, match="d=576; head dims are multiples of 8 from 8 to 512"):
        dfa.plan("fwdbwd fp32 h1 s64 d576 dv512")


def test_pages_and_lse():
    q, k, v = (x.detach() for x in inputs(512, 512, sq=13))
    o, lse = dfa.attention(q, k, v, causal=True, return_lse=True)
    pages = [x.transpose(1, 2).reshape(2 * 13, 1, 2, 512) for x in (k, v)]
    table = torch.arange(26, dtype=torch.int32).reshape(2, 13)
    lengths = torch.tensor([0, 13, 26], dtype=torch.int32)
    got = dfa.attention_varlen(q.transpose(1, 2).reshape(26, 4, 512), *pages, lengths, lengths, causal=True, block_table=table)
    close(got.reshape(2, 13, 4, 512).transpose(1, 2), o)
    assert lse.isfinite().all()


def test_jax():
    jax = pytest.importorskip("jax")
    tensors = inputs(512, 320)
    arrays = [jax.numpy.asarray(x.detach().numpy()) for x in tensors]
    right = truth(*tensors)
    close(torch.tensor(np.asarray(dfa.attention(*arrays, causal=True))), right)
    ours = jax.grad(lambda *x: dfa.attention(*x, causal=True).sum(), argnums=(0, 1, 2))(*arrays)
    for got, expected in zip(ours, torch.autograd.grad(right.sum(), tensors)):
        close(torch.tensor(np.asarray(got)), expected)


def test_scaled_dot_product_attention_under_enable():
    from dfa.torch import enable
    q, k, v = inputs(512, 512, hq=2)
    with enable():
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    close(o, truth(q, k, v, causal=False))


def test_latent_heads_are_mapped_and_refused_at_every_door_that_would_need_their_gradient():
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import create_block_mask
    q, v = torch.randn(2, 1, 2, 20, 576), torch.randn(2, 1, 2, 20, 64)
    mapped = torch.vmap(lambda q, v: dfa.attention(q, q, v))(q, v)
    assert torch.equal(mapped[1], dfa.attention(q[1], q[1], v[1]))
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 20, 20, device="cpu")
    q = q[0].requires_grad_()
    with pytest.raises(ValueError, match="d=576 has no gradient"):
        dfa.attention(q, q, v[0], block_mask=mask)
    assert dfa.attention(q.detach(), q.detach(), v[0], block_mask=mask).shape == v[0].shape
