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


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_softcap_may_be_any_number(dynamic):
    torch._dynamo.reset()
    q, = tensors((1, 2, 9, 16), grad=False)
    compiled = torch.compile(lambda q, cap: dfa.attention(q, q, q, softcap=cap), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for cap in (3.0, 2.0, 5.5):
        assert torch.equal(compiled(q, cap), dfa.attention(q, q, q, softcap=cap))
    for wrong in (-1.0, float("nan"), float("inf"), 1e-40):
        with pytest.raises((ValueError, torch._dynamo.exc.Unsupported), match="softcap|Observed exception"):
            compiled(q, wrong)


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
    (TypeError, "alibi_slopes is ndarray; accepted: a floating-point tensor", {"alibi_slopes": numpy.ones(2, "float32")}),
    (TypeError, "bias is ndarray; accepted: a dense tensor", {"bias": numpy.zeros((1, 1, 4, 4), "float32")}),
    (ValueError, "requires a gradient", {"alibi_slopes": torch.ones(2, requires_grad=True)}),
    (ValueError, "algorithm auto", {"softcap": 3.0, "algorithm": "standard"}),
])
def test_what_is_refused_and_in_which_words(error, words, given):
    q = torch.zeros(1, 2, 4, 16)
    with pytest.raises(error, match=words) as raised:
        dfa.attention(q, q, q, **given)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("softcap, error", [
    (True, TypeError), (numpy.True_, TypeError), ("5", TypeError), (b"5", TypeError), (numpy.complex64(5 + 1j), TypeError),
    (torch.tensor(True), TypeError), ([5], TypeError), (torch.tensor(5.0, device="meta"), TypeError), (10**400, ValueError),
    (-1, ValueError), (float("nan"), ValueError), (torch.tensor(5.0, requires_grad=True), ValueError)],
    ids=lambda x: str(x)[:20])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_softcap_is_one_number_that_is_not_learned(library, softcap, error):
    q, k, v = (x if library == "torch" else x.numpy() for x in qkv(grad=False))
    with pytest.raises(error, match="^softcap .*accepted: "):
        dfa.attention(q, k, v, softcap=softcap)


def test_a_learned_softcap_is_refused_inside_torch_func():
    q, k, v = qkv(grad=False)
    with pytest.raises(ValueError, match="softcap requires a gradient"):
        torch.func.grad(lambda cap: dfa.attention(q, k, v, softcap=cap).sum())(torch.tensor(3.0))


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
@pytest.mark.parametrize("odd", [numpy.ma.array(numpy.ones(4), mask=[0, 1, 0, 0]), torch.ones(4, requires_grad=True),
                                 [[1.0], [1.0, 2.0]], torch.ones(4, device="meta")], ids=["masked", "learned", "ragged", "meta"])
def test_arrays_that_are_more_than_their_values_are_refused(name, odd):
    q, k, v = (x.numpy() for x in qkv(grad=False))
    with pytest.raises(TypeError, match=f"{name} is .*accepted: "):
        dfa.attention(q, k, v, **{name: odd})


def test_sinks_of_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (x.numpy() for x in qkv(grad=False))
    sinks = numpy.array([0.5, -1, 2, 0], bfloat16)
    assert numpy.array_equal(dfa.attention(q, k, v, sinks=sinks), dfa.attention(q, k, v, sinks=sinks.astype("float32")))


def test_a_number_is_no_array_of_one():
    q = numpy.zeros((1, 1, 2, 8), numpy.float32)
    with pytest.raises(ValueError, match=r"sinks has shape \[\]; accepted: \[hq\]"):
        dfa.attention(q, q, q, sinks=1.0)


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
def test_sparse_tensors_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is a torch.sparse_coo tensor"):
        dfa.attention(*qkv(grad=False), **{name: torch.ones(4).to_sparse()})


def test_masked_tensors_are_refused():
    q, k, v = qkv(grad=False)
    masked = torch.masked.masked_tensor(q, torch.ones_like(q, dtype=torch.bool))
    with pytest.raises(ValueError, match="q is a masked tensor"):
        dfa.attention(masked, k, v, softcap=3.0)
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    with pytest.raises(ValueError, match="q is a masked tensor"):
        dfa.attention_varlen(torch.masked.masked_tensor(rows[0], torch.ones_like(rows[0], dtype=torch.bool)), *rows[1:],
                             torch.tensor([0, 60], dtype=torch.int32), torch.tensor([0, 100], dtype=torch.int32))


@pytest.mark.parametrize("given", GIVEN, ids=NAMES)
def test_transforms_of_torch_func(given):
    q, k, v = qkv(grad=False)
    options = made(given)
    learned = options.pop("sinks", None)
    inputs = (q, k, v) + (() if learned is None else (learned,))

    def loss(attention):
        def of(q, k, v, sinks=None):
            named = options if sinks is None else {**options, "sinks": sinks}
            return attention(q, k, v, True, **named).square().sum()
        return of

    def ours(q, k, v, causal, **named):
        return dfa.attention(q, k, v, causal=causal, **named)

    def theirs(q, k, v, causal, **named):
        return written_out(q, k, v, causal, **named)[0]

    at = tuple(range(len(inputs)))
    two = [torch.stack([x, 0.5 * x]) for x in inputs]
    for a, b in [(torch.func.grad(loss(ours), at)(*inputs), torch.func.grad(loss(theirs), at)(*inputs)),
                 (torch.vmap(torch.func.grad(loss(ours), at))(*two), torch.vmap(torch.func.grad(loss(theirs), at))(*two))]:
        for x, y in zip(a, b):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=2e-5)


def test_vmap_maps_without_a_word_of_slowness(recwarn):
    q, k, v = qkv(grad=False)
    sinks = torch.tensor([[0.5] * 4, [-1.0] * 4])
    o = torch.vmap(lambda q, sinks: dfa.attention(q, k, v, sinks=sinks))(torch.stack([q, 2 * q]), sinks)
    wanted = [written_out(x, k, v, sinks=s)[0] for x, s in zip((q, 2 * q), sinks)]
    torch.testing.assert_close(o, torch.stack(wanted), rtol=1e-5, atol=5e-6)
    assert not [str(one.message) for one in recwarn if "batching rule" in str(one.message)]


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode
    q, k, v = qkv(grad=False)
    with FakeTensorMode() as fake:
        o = dfa.attention(*map(fake.from_tensor, (q, k, v)), softcap=3.0, sinks=fake.from_tensor(torch.ones(4)))
    alone = dfa.attention(q, k, v, softcap=3.0, sinks=torch.ones(4))
    assert (o.shape, o.stride(), o.dtype) == (alone.shape, alone.stride(), alone.dtype)


def test_a_sink_that_is_none_has_no_gradient():
    q, k, v = tensors((1, 2, 9, 16), (1, 2, 4, 16), (1, 2, 4, 16))  # causal: five rows see no key
    sinks = torch.tensor([-torch.inf, 0.5], requires_grad=True)
    o, lse = dfa.attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
    dsinks, = torch.autograd.grad(o.sum() + lse.nan_to_num(0, 0, 0).sum(), sinks)
    assert dsinks[0] == 0 and dsinks[1].isfinite() and dsinks[1] != 0


def test_lse_of_sequences_without_keys_tells_of_sinks():
    q, k, v = tensors((5, 2, 16), (3, 2, 16), (3, 2, 16))
    sinks, = tensors((2,))
    for keys, cu_k in ((slice(0, 3), [0, 0, 3]), (slice(0, 0), [0, 0, 0])):
        cu_q, cu_k = torch.tensor([0, 4, 5], dtype=torch.int32), torch.tensor(cu_k, dtype=torch.int32)
        o, lse = dfa.attention_varlen(q, k[keys], v[keys], cu_q, cu_k, sinks=sinks, return_lse=True)
        assert torch.equal(lse[:, :4], sinks.detach()[:, None].expand(2, 4))
        got, = torch.autograd.grad(lse[:, :4].sum(), sinks, retain_graph=True)
        torch.testing.assert_close(got, torch.full((2,), 4.0))
        assert torch.equal(torch.autograd.grad(o[:4].sum(), sinks)[0], torch.zeros(2))


def test_rows_of_no_sequence_have_no_sink():
    q, k, v = tensors((6, 2, 16), (3, 2, 16), (3, 2, 16), grad=False)
    cu_q, none = torch.tensor([0, 4, 5], dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    used = torch.tensor([2, 1], dtype=torch.int32)
    sinks = torch.tensor([1.0, -2.0])
    for keys in (k, k[:0]):
        lse = dfa.attention_varlen(q, keys, keys, cu_q, none, seqused_q=used, sinks=sinks, return_lse=True)[1]
        assert (lse[0] == torch.tensor([1.0, 1.0, -torch.inf, -torch.inf, 1.0, -torch.inf])).all()
    nothing = dfa.attention_varlen(q, k, v, none[:1], none[:1], sinks=sinks, return_lse=True)[1]
    assert nothing.isneginf().all()


def test_slopes_that_are_not_finite_are_refused_by_name():
    q, k, v = (numpy.zeros((1, 2, 4, 16), numpy.float32) for _ in range(3))
    wrong = numpy.array([1.0, numpy.nan], numpy.float32)
    with pytest.raises(ValueError, match=r"alibi_slopes has nan at index 1; accepted: finite numbers"):
        dfa.attention(q, k, v, alibi_slopes=wrong)
    with pytest.raises(ValueError, match="alibi_slopes has nan at index 1"):
        dfa.attention(*(torch.from_numpy(x) for x in (q, k, v)), alibi_slopes=torch.from_numpy(wrong))
    q, k, v = (torch.zeros(2, 2, 4, 16) for _ in range(3))
    with pytest.raises(ValueError, match="alibi_slopes has nan at index 3"):
        dfa.attention(q, k, v, alibi_slopes=torch.from_numpy(numpy.stack([[1.0, 1.0], wrong]).astype("float32")))
    q, k, v = (x[:1].numpy() for x in (q, k, v))
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(Exception, match="alibi_slopes has nan at index 1"):
        dfa.attention(*map(jnp.asarray, (q, k, v)), alibi_slopes=jnp.asarray(wrong)).block_until_ready()
