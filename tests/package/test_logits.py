"""softcap, ALiBi and sinks against what they mean, written out: values, gradients, and who else has them under which name."""

import numpy
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
from dfa import flash_attn  # noqa: E402
from dfa.flash_attn import cute, flash_attn_interface  # noqa: E402

GIVEN = [{"softcap": 5.0}, {"alibi_slopes": (4,)}, {"alibi_slopes": (2, 4)}, {"sinks": (4,)},
         {"softcap": 3.0, "alibi_slopes": (2, 4), "sinks": (4,)}]
NAMES = ["softcap", "slopes", "slopes of each batch", "sinks", "all"]


def made(given):
    """The options with tensors in the place of shapes; slopes of the size that models have."""
    generator = torch.Generator().manual_seed(1)
    return {name: torch.rand(value, generator=generator) - 0.2 if isinstance(value, tuple) else value
            for name, value in given.items()}


def written_out(q, k, v, causal=False, scale=None, softcap=None, alibi_slopes=None, sinks=None):
    """(o, lse)"""
    b, hq, sq, d = q.shape
    sk = k.shape[2]
    k, v = (x.repeat_interleave(hq // x.shape[1], 1) for x in (k, v))
    logits = (q @ k.transpose(2, 3)) * (scale or d ** -0.5)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    after = torch.arange(sk) - torch.arange(sq)[:, None] - (sk - sq)
    if alibi_slopes is not None:
        logits = logits - alibi_slopes.expand(b, hq)[:, :, None, None] * after.abs()
    if causal:
        logits = logits.masked_fill(after > 0, -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks[None, :, None, None].expand(b, hq, sq, 1)], 3)
    return torch.softmax(logits, 3)[..., :sk] @ v, torch.logsumexp(logits, 3)


def tensors(*sizes, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_(grad) for size in sizes]


def qkv(grad=True):
    return tensors((2, 4, 30, 16), (2, 2, 50, 16), (2, 2, 50, 24), grad=grad)


@pytest.mark.parametrize("given", GIVEN, ids=NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_written_out(given, causal):
    q, k, v = qkv()
    options = made(given)
    leaves = [q, k, v]
    if "sinks" in options:
        leaves.append(options["sinks"].requires_grad_())
    g, g_lse = tensors((2, 4, 30, 24), (2, 4, 30), grad=False)
    came, wanted = [], []
    for results, (o, lse) in ((came, dfa.attention(q, k, v, causal=causal, return_lse=True, **options)),
                              (wanted, written_out(q, k, v, causal, **options))):
        results += [o, lse, *torch.autograd.grad((o * g).sum() + (lse * g_lse).sum(), leaves)]
    for a, b in zip(came, wanted):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("given", GIVEN, ids=NAMES)
def test_numpy(given):
    q, k, v = (x.numpy() for x in qkv(grad=False))
    options = made(given)
    o, lse = dfa.attention(q, k, v, causal=True, return_lse=True,
                           **{name: x.numpy() if isinstance(x, torch.Tensor) else x for name, x in options.items()})
    wanted = written_out(*map(torch.from_numpy, (q, k, v)), True, **options)
    numpy.testing.assert_allclose(o, wanted[0], atol=5e-6)
    numpy.testing.assert_allclose(lse, wanted[1], atol=5e-6)


def test_packed_sequences_are_the_sequences_alone():
    lengths = [5, 0, 17, 1]
    q, k, v = tensors((23, 4, 16), (23, 2, 16), (23, 2, 16))
    slopes, sinks = tensors((4, 4), (4,))
    cu = torch.tensor([0, 5, 5, 22, 23], dtype=torch.int32)
    slopes = slopes.detach()
    o = dfa.attention_varlen(q, k, v, cu, causal=True, softcap=4.0, alibi_slopes=slopes, sinks=sinks)
    parts = []
    for i, rows in enumerate(lengths):
        one = [x[cu[i]:cu[i] + rows].transpose(0, 1)[None] for x in (q, k, v)]
        parts.append(written_out(*one, True, softcap=4.0, alibi_slopes=slopes[i:i + 1], sinks=sinks)[0][0].transpose(0, 1))
    alone = torch.cat(parts)
    torch.testing.assert_close(o, alone, rtol=1e-5, atol=5e-6)
    for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k, v, sinks)),
                    torch.autograd.grad(alone.square().sum(), (q, k, v, sinks))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-5)


def test_compiled_as_eager():
    q, k, v = tensors((2, 4, 20, 16), (2, 4, 20, 16), (2, 4, 20, 16))
    sinks, = tensors((4,))

    def loss(q, k, v, sinks):
        return dfa.attention(q, k, v, causal=True, softcap=4.0, sinks=sinks).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(loss(q, k, v, sinks), (q, k, v, sinks)),
                    torch.autograd.grad(compiled(q, k, v, sinks), (q, k, v, sinks))):
        torch.testing.assert_close(a, b)


def test_the_operators_keep_their_promises():
    q, k, v = tensors((9, 2, 16), (9, 2, 16), (9, 2, 16))
    sinks, = tensors((2,))
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    torch.library.opcheck(torch.ops.dfa.varlen_forward,
                          (q, k, v, cu, cu, None, None, -1, 0, 0.25, False, torch.ones(2), sinks, 3.0))


def test_sinks_of_a_models_type_get_their_gradient_in_it():
    q, k, v = tensors((1, 2, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16), dtype=torch.bfloat16)
    sinks = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)
    dfa.attention(q, k, v, sinks=sinks).float().sum().backward()
    assert sinks.grad.dtype == torch.bfloat16 and sinks.grad.shape == (2,) and sinks.grad.abs().max() > 0


def test_names_of_others():
    q, k, v = (x.transpose(1, 2) for x in tensors((2, 4, 20, 16), (2, 2, 20, 16), (2, 2, 20, 16), grad=False))
    slopes, sinks = tensors((4,), (4,), grad=False)

    def wanted(**options):
        return written_out(*(x.transpose(1, 2) for x in (q, k, v)), True, **options)[0].transpose(1, 2)

    cu = torch.tensor([0, 20, 40], dtype=torch.int32)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    for came, right in [
            (flash_attn.flash_attn_func(q, k, v, causal=True, softcap=4.0, alibi_slopes=slopes),
             wanted(softcap=4.0, alibi_slopes=slopes)),
            (flash_attn.flash_attn_varlen_func(*flat, cu, cu, 20, 20, causal=True, alibi_slopes=slopes).view_as(q),
             wanted(alibi_slopes=slopes)),
            (flash_attn_interface.flash_attn_func(q, k, v, causal=True, softcap=4.0), wanted(softcap=4.0)),
            (cute.flash_attn_func(q, k, v, causal=True, learnable_sink=sinks, softcap=None)[0], wanted(sinks=sinks)),
            (cute.flash_attn_varlen_func(*flat, cu, cu, causal=True, learnable_sink=sinks)[0].view_as(q), wanted(sinks=sinks))]:
        torch.testing.assert_close(came, right, rtol=1e-5, atol=5e-6)


def test_without_keys_lse_is_the_sink():
    q, k = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 0, 16)
    sinks = torch.tensor([1.0, -2.0])
    o, lse = dfa.attention(q, k, k, return_lse=True, sinks=sinks)
    assert not o.any() and torch.equal(lse, sinks[None, :, None].expand(1, 2, 3))


@pytest.mark.parametrize("error, words, given", [
    (ValueError, "softcap -1", {"softcap": -1}), (ValueError, "softcap inf", {"softcap": float("inf")}),
    (TypeError, "softcap 'x'", {"softcap": "x"}), (ValueError, "sinks has shape \\[3\\]", {"sinks": torch.ones(3)}),
    (ValueError, "alibi_slopes has shape \\[2, 2\\]", {"alibi_slopes": torch.ones(2, 2)}),
    (TypeError, "sinks is torch.int64", {"sinks": torch.ones(2).long()}), (TypeError, "alibi_slopes is list", {"alibi_slopes": [1, 2]}),
    (ValueError, "requires a gradient", {"alibi_slopes": torch.ones(2, requires_grad=True)}),
    (ValueError, "algorithm auto", {"softcap": 3.0, "algorithm": "standard"}),
])
def test_what_is_refused_and_in_which_words(error, words, given):
    q = torch.zeros(1, 2, 4, 16)
    with pytest.raises(error, match=words) as raised:
        dfa.attention(q, q, q, **given)
    assert "\n" not in str(raised.value)


def test_jax_is_told_who_has_them():
    jax = pytest.importorskip("jax")
    q = jax.numpy.zeros((1, 2, 4, 16))
    with pytest.raises(ValueError, match="not supported on JAX"):
        dfa.attention(q, q, q, softcap=3.0)
