"""A scale that is a tensor, of one number or one of each query head, against the definition in fp64 and its finite differences."""

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
import dfa.flash_attn  # noqa: E402
import dfa.flash_attn.cute  # noqa: E402
import dfa.flash_attn.flash_attn_interface  # noqa: E402
import dfa.torch  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
B, HQ, HK, S, D = 2, 4, 2, 17, 16
SCALES = {"one": 0.4, "one in a dimension": [0.4], "of each head": [0.1, 0.2, -0.3, 0.4], "with a zero": [0.5, 0.0, -0.3, 0.4], "zero": 0.0}


def qkv(dtype=torch.float32, device="cpu", d=D):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(B, h, S, d, generator=generator).to(device, dtype) for h in (HQ, HK, HK)]


def weights(device="cpu"):
    return torch.randn(B, HQ, S, D, generator=torch.Generator().manual_seed(6)).to(device)


def turned(x):
    return x.transpose(1, 2)


def rows(x):
    return turned(x).flatten(0, 1)


def unpacked(o):
    return turned(o.unflatten(0, (B, S)))


def begins(device="cpu"):
    return torch.arange(0, (B + 1) * S, S, dtype=torch.int32, device=device)


def defined(q, k, v, scale, causal=False, softcap=None, sinks=None, bias=None, score_mod=False):
    """o by the definition, in fp64."""
    q, k, v, scale = (x.double() for x in (q, k, v, scale))
    x = torch.stack([(scale.flatten()[h if scale.numel() > 1 else 0] * q[:, h]) @ k[:, h // (HQ // HK)].mT for h in range(HQ)], 1)
    if score_mod:
        place = torch.arange(S, dtype=torch.float64, device=q.device)
        x = x * x * 0.25 - 0.125 * (place[:, None] - place).abs()
    x = x if softcap is None else softcap * (x / softcap).tanh()
    x = x if bias is None else x + bias.double()
    x = x.masked_fill(torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1), -torch.inf) if causal else x
    if sinks is not None:
        x = torch.cat([x, sinks.double()[:, None, None].expand(B, HQ, S, 1)], 3)
    return torch.stack([x.softmax(3)[:, h, :, :S] @ v[:, h // (HQ // HK)] for h in range(HQ)], 1)


def differences(q, k, v, scale, w, step=1e-5, **options):
    """The gradient of (o · w).sum() with respect to scale by central differences in fp64."""
    gradient = torch.zeros_like(scale, dtype=torch.float64)
    for n in range(scale.numel()):
        sums = []
        for sign in (1, -1):
            moved = scale.detach().double().clone()
            moved.view(-1)[n] += sign * step
            sums.append((defined(q, k, v, moved, **options) * w.double()).sum())
        gradient.view(-1)[n] = (sums[0] - sums[1]) / (2 * step)
    return gradient


def close(got, wanted, bound=2e-5):
    assert got.shape == wanted.shape
    assert (got.double() - wanted.double()).abs().max() <= bound * (1 + wanted.double().abs().max())


def packed(q, k, v, scale, **options):
    return unpacked(dfa.attention_varlen(*map(rows, (q, k, v)), begins(q.device), scale=scale, **options))


def enabled(q, k, v, scale):
    with dfa.torch.enable():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)


def nested(q, k, v, scale):
    jagged = [torch.nested.nested_tensor_from_jagged(rows(x), begins()).transpose(1, 2) for x in (q, k, v)]
    return unpacked(dfa.torch.scaled_dot_product_attention(*jagged, scale=scale, enable_gqa=True).transpose(1, 2).values())


DOORS = {
    "attention": lambda q, k, v, s: dfa.attention(q, k, v, scale=s),
    "attention, standard": lambda q, k, v, s: dfa.attention(q, k, v, scale=s, algorithm="standard"),
    "attention under a mask": lambda q, k, v, s: dfa.attention(q, k, v, scale=s, mask=torch.ones(1, 1, S, S, dtype=torch.bool)),
    "attention_varlen": packed,
    "nested": nested,
    "enable": enabled,
    "flex_attention": lambda q, k, v, s: dfa.torch.flex_attention(q, k, v, scale=s, enable_gqa=True),
    "varlen_attn": lambda q, k, v, s: unpacked(dfa.torch.varlen_attn(*map(rows, (q, k, v)), begins(), begins(), S, S, scale=s, enable_gqa=True)),
    "flash_attn": lambda q, k, v, s: turned(dfa.flash_attn.flash_attn_func(*map(turned, (q, k, v)), softmax_scale=s)),
    "flash_attn, packed": lambda q, k, v, s: unpacked(dfa.flash_attn.flash_attn_varlen_func(
        *map(rows, (q, k, v)), begins(), begins(), S, S, softmax_scale=s)),
    "flash_attn_interface": lambda q, k, v, s: turned(dfa.flash_attn.flash_attn_interface.flash_attn_func(
        *map(turned, (q, k, v)), softmax_scale=s)),
    "cute": lambda q, k, v, s: turned(dfa.flash_attn.cute.flash_attn_func(*map(turned, (q, k, v)), softmax_scale=s)[0]),
}


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_its_gradient(door, kind):
    tensors, w = qkv(), weights()
    scale = torch.tensor(SCALES[kind], requires_grad=True)
    o = DOORS[door](*tensors, scale)
    close(o, defined(*tensors, scale.detach()))
    (o * w).sum().backward()
    close(scale.grad, differences(*tensors, scale, w))
    with torch.no_grad():
        close(DOORS[door](*tensors, torch.nn.Parameter(scale.detach())), o)


BESIDE = {
    "softcap, causal": {"softcap": 1.5, "causal": True}, "a sink": {"sinks": torch.linspace(-1, 1, HQ)},
    "a bias": {"bias": torch.randn(1, HQ, S, S, generator=torch.Generator().manual_seed(9))},
    "all": {"softcap": 2.0, "causal": True, "sinks": torch.linspace(-1, 1, HQ),
            "bias": torch.randn(B, 1, S, S, generator=torch.Generator().manual_seed(9))},
    "a score_mod": {"score_mod": "score * score * 0.25f - 0.125f * abs(q_idx - kv_idx)"}}


@pytest.mark.parametrize("kind", ["one", "of each head"])
@pytest.mark.parametrize("beside", BESIDE)
def test_beside_what_becomes_of_a_logit(beside, kind):
    tensors, w, options = qkv(), weights(), BESIDE[beside]
    meant = options | ({"score_mod": True} if "score_mod" in options else {})
    scale = torch.tensor(SCALES[kind], requires_grad=True)
    for call in (lambda: dfa.attention(*tensors, scale=scale, **options), lambda: packed(*tensors, scale, **options)):
        o = call()
        close(o, defined(*tensors, scale.detach(), **meant))
        close(torch.autograd.grad((o * w).sum(), scale)[0], differences(*tensors, scale, w, **meant))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["one", "of each head", "zero"])
def test_in_16_bits(kind, dtype, device):
    tensors, w = qkv(dtype, device), weights(device)
    scale = torch.tensor(SCALES[kind], requires_grad=True, device=device)
    learned = [x.requires_grad_() for x in tensors]
    o = dfa.attention(*learned, scale=scale)
    d_q, d_scale = torch.autograd.grad((o.float() * w).sum(), (learned[0], scale))
    exact = defined(*tensors, scale.detach())
    exact_d_q, = torch.autograd.grad((defined(*learned, scale.detach()) * w.double()).sum(), learned[0])
    factor = scale.detach().reshape(-1, 1, 1)
    plain = torch.nn.functional.scaled_dot_product_attention((tensors[0].detach() * factor).to(dtype), *tensors[1:], scale=1.0, enable_gqa=True)
    ruler = (plain.double() - exact).abs().max() + (exact + 0.3).to(dtype).double().sub(0.3).sub(exact).abs().max()
    assert (o.double() - exact).abs().max() <= 2 * ruler
    eps = torch.finfo(dtype).eps
    assert (d_q.double() - exact_d_q).abs().max() <= 4 * eps * exact_d_q.abs().max() + 4 * eps
    # What q · dq is the sum of has dq rounded, and P, and dS.
    close(d_scale, differences(*(x.detach() for x in tensors), scale, w), 4 * eps)


def test_one_number_is_the_kernels_own_scale():
    """Nothing of q is rounded again."""
    tensors = qkv(torch.bfloat16)
    scale = torch.tensor(0.3217, requires_grad=True)
    assert torch.equal(dfa.attention(*tensors, scale=scale), dfa.attention(*tensors, scale=float(scale.detach())))
    assert torch.equal(packed(*tensors, scale), packed(*tensors, float(scale.detach())))


def test_a_call_made_again_follows_what_was_written_into_the_scale():
    tensors = qkv()
    for kind in ("one", "of each head"):
        scale = torch.tensor(SCALES[kind])
        for call in (DOORS["attention"], packed):
            for _ in range(3):
                scale.add_(0.25)
                close(call(*tensors, scale), defined(*tensors, scale))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["one", "of each head"])
@pytest.mark.parametrize("door", ["attention", "attention_varlen", "attention under a mask", "flash_attn"])
def test_one_graph_is_for_all_values(door, kind):
    from torch._dynamo.testing import CompileCounterWithBackend
    tensors, w = qkv(), weights()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda s: DOORS[door](*tensors, s), fullgraph=True, backend=graphs)
    for step in (0, 0.2, -0.9):
        scale = (torch.tensor(SCALES[kind]) + step).requires_grad_()
        o = compiled(scale)
        close(o, defined(*tensors, scale.detach()))
        (o * w).sum().backward()
        close(scale.grad, differences(*tensors, scale, w))
    assert graphs.frame_count == 1


def test_an_exported_program_takes_a_scale():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(SCALES["of each head"]))

        def forward(self, q, k, v, other):
            return dfa.attention(q, k, v, scale=self.scale) + dfa.attention(q, k, v, scale=other)

    tensors, layer = qkv(), Layer()
    program = torch.export.export(layer, (*tensors, torch.tensor(0.25)))
    close(program.module()(*tensors, torch.tensor(-0.5)), defined(*tensors, layer.scale.detach()) + defined(*tensors, torch.tensor(-0.5)))


@pytest.mark.parametrize("door", ["attention", "attention_varlen"])
def test_functions_of_a_scale(door):
    tensors, w = qkv(), weights()

    def loss(scale):
        return (DOORS[door](*tensors, scale) * w).sum()

    each = torch.tensor([[0.1, 0.2, -0.3, 0.4], [0.5, -0.5, 0.25, 0.0]])
    for values in (each, each[:, 0]):
        close(torch.vmap(loss)(values), torch.stack([(defined(*tensors, s) * w.double()).sum() for s in values]))
        wanted = torch.stack([differences(*tensors, s, w) for s in values])
        close(torch.vmap(torch.func.grad(loss))(values), wanted)
        close(torch.stack([torch.func.grad(loss)(s) for s in values]), wanted)


@pytest.mark.parametrize("kind", ["one", "of each head"])
def test_q_alone_is_mapped_over(kind):
    q, k, v = qkv()
    scale, w = torch.tensor(SCALES[kind], requires_grad=True), weights()
    mapped = torch.stack([q, -2 * q])
    o = torch.vmap(lambda q: dfa.attention(q, k, v, scale=scale))(mapped)
    close(torch.autograd.grad((o * w).sum(), scale)[0], sum(differences(q, k, v, scale, w) for q in mapped))
    each = torch.vmap(torch.func.grad(lambda s, q: (dfa.attention(q, k, v, scale=s) * w).sum()), (None, 0))(scale.detach(), mapped)
    close(each, torch.stack([differences(q, k, v, scale, w) for q in mapped]))


def test_autocast_and_head_dims_that_are_padded():
    tensors, w = qkv(d=13), weights()[..., :13]
    for kind in ("one", "of each head"):
        scale = torch.tensor(SCALES[kind], requires_grad=True)
        for call in (DOORS["attention"], packed):
            close(torch.autograd.grad((call(*tensors, scale) * w).sum(), scale)[0], differences(*tensors, scale, w))
        with torch.autocast("cpu", torch.bfloat16):
            o = dfa.attention(*tensors, scale=scale)
        assert o.dtype == torch.bfloat16
        close(torch.autograd.grad((o * w).sum(), scale)[0], differences(*tensors, scale, w), 3e-2)


@pytest.mark.parametrize("kind", ["one", "of each head"])
@pytest.mark.parametrize("name", ["sq", "sk"])
def test_nothing_to_read(kind, name):
    q, k, v = qkv()
    q, k, v = (q[:, :, :0], k, v) if name == "sq" else (q, k[:, :, :0], v[:, :, :0])
    scale = torch.tensor(SCALES[kind], requires_grad=True)
    gradient, = torch.autograd.grad(dfa.attention(q, k, v, scale=scale).sum(), scale)
    assert gradient.shape == scale.shape and not gradient.any()


def test_a_second_derivative_is_refused():
    tensors, scale = qkv(), torch.tensor(0.4, requires_grad=True)
    tensors[0].requires_grad_()
    for scale in (scale, torch.tensor(SCALES["of each head"], requires_grad=True)):
        first, = torch.autograd.grad(dfa.attention(*tensors, scale=scale).square().sum(), scale, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative.*accepted"):
            first.sum().backward()


def test_pages_and_caches():
    """Right, and refused by the backward."""
    (q, k, v), scales = qkv(), [torch.tensor(SCALES[kind]) for kind in ("one", "of each head", "zero")]
    table, used = torch.arange(B, dtype=torch.int32)[:, None], torch.full((B,), S, dtype=torch.int32)

    def paged(scale):
        return unpacked(dfa.attention_varlen(rows(q), turned(k), turned(v), begins(), seqused_k=used, block_table=table, scale=scale))

    def cached(scale):
        return turned(dfa.flash_attn.flash_attn_with_kvcache(turned(q), turned(k), turned(v), softmax_scale=scale))

    for scale in scales:
        for call in (paged, cached):
            close(call(scale), defined(q, k, v, scale))
            with torch.no_grad():
                close(call(torch.nn.Parameter(scale)), defined(q, k, v, scale))
            with pytest.raises(NotImplementedError, match="gradient of attention to a cache .*accepted"):
                call(torch.nn.Parameter(scale)).sum().backward()


@pytest.mark.parametrize("call", [DOORS["attention"], packed])
@pytest.mark.parametrize("scale, words", [
    (torch.ones(3), "tensor .3.*here .4."), (torch.ones(4, 1, 1), "one for each query head"), (torch.ones(2, 4), "one for each query head"),
    (torch.ones(0), "one for each query head"), (torch.tensor(True), "bool.*one real number"), (torch.tensor(1j), "complex.*one real number"),
    (torch.ones(4).to_sparse(), "sparse.*one real number"), (torch.ones(4, device="meta"), "scale is on meta.*accepted"),
    (torch.tensor(torch.nan), "scale nan; accepted"), (torch.tensor(torch.inf), "scale inf; accepted")])
def test_what_is_no_scale(call, scale, words):
    with pytest.raises(ValueError, match=words) as raised:
        call(*qkv(), scale)
    assert "\n" not in str(raised.value)


def test_e4m3_takes_a_number():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in qkv())
    for scale in (torch.tensor(0.4, requires_grad=True), torch.ones(HQ)):
        for call in (DOORS["attention"], packed):
            with pytest.raises((TypeError, ValueError), match="^scale .*accepted"):
                call(q, k, v, scale)
