"""float8_e4m3fn with a factor for each block of rows (descale_rows), against float64 of what the numbers mean: PyTorch, NumPy, JAX."""

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402

E4M3 = torch.float8_e4m3fn
ROUNDED = 2.0 ** -8  # of o, which is bfloat16
sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def quantized(b=2, hq=4, hk=2, sq=130, sk=200, d=64, dv=32, rows=64):
    """q, k, v in 8 bits of rows that differ in size, and their factors [b, hk, blocks]."""
    def drawn(h, s, d):
        return torch.randn(b, h, s, d) * torch.logspace(-0.5, 0.5, s).reshape(1, 1, s, 1)
    parts = [dfa.quantize(drawn(h, s, d), heads=hk, descale_rows=rows) for h, s, d in ((hq, sq, d), (hk, sk, d), (hk, sk, dv))]
    tensors, factors = zip(*parts)
    return tensors, {f"{name}_descale": x for name, x in zip("qkv", factors)}


def meant(x, descale, rows):
    """float64: the numbers times the factor of their key head and block."""
    b, h, s, _ = x.shape
    factors = torch.as_tensor(descale, dtype=torch.float64).expand(b, -1, -(-s // rows))
    index = torch.arange(s) // rows
    return x.double() * factors.repeat_interleave(h // factors.shape[1], 1)[:, :, index, None]


def exact(tensors, descales, rows=64, causal=False):
    q, k, v = (meant(x, descales[f"{name}_descale"], rows) for name, x in zip("qkv", tensors))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    return sdpa(q, k, v, attn_mask=mask, enable_gqa=True)


def holds(o, wanted):
    return o.dtype == torch.bfloat16 and ((o.double() - wanted).abs() <= ROUNDED * wanted.abs() + 1e-5 * wanted.abs().max()).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"hq": 3, "hk": 3, "rows": 128, "sq": 300, "sk": 300}, {"hq": 6, "hk": 1, "d": 20, "dv": 12}, {"b": 1, "sq": 1, "sk": 65},
                                   {"b": 8, "hq": 8, "sq": 70, "d": 32}, {"rows": 192, "sk": 500}])
def test_o_is_that_of_what_the_numbers_mean(sizes, causal):
    tensors, descales = quantized(**sizes)
    rows = sizes.get("rows", 64)
    o, lse = dfa.attention(*tensors, **descales, descale_rows=rows, causal=causal, return_lse=True)
    wanted = exact(tensors, descales, rows, causal)
    assert holds(o, wanted) and lse.isfinite().all()
    for name in descales:  # another block's factor is seen
        wrong = descales | {name: descales[name].flip(2)}
        if descales[name].shape[2] > 1:
            assert not holds(dfa.attention(*tensors, **wrong, descale_rows=rows, causal=causal), wanted)


def test_rows_may_share_a_factor():
    tensors, descales = quantized()
    k_descale = descales["k_descale"]
    small = torch.full((2, 2), 0.25)
    one = dfa.attention(*tensors, q_descale=0.25, k_descale=small, v_descale=torch.tensor(0.5))
    for options in ({"q_descale": small, "k_descale": 0.25, "v_descale": torch.full((2, 2, 4), 0.5)},
                    {"q_descale": small[:1, :, None], "k_descale": torch.full((1, 1, 4), 0.25), "v_descale": 0.5},
                    {"q_descale": torch.full((2, 1, 3), 0.25), "k_descale": torch.full((4, 2, 4), 0.25)[::2].transpose(1, 2).contiguous().transpose(1, 2),
                     "v_descale": torch.full((1, 1), 0.5)}):
        assert torch.equal(dfa.attention(*tensors, **options, descale_rows=64), one)
    assert torch.equal(dfa.attention(*tensors, descale_rows=64), dfa.attention(*tensors))
    view = torch.stack([k_descale] * 3, 3).transpose(0, 1)[..., 1].transpose(0, 1)
    assert not view.is_contiguous() and torch.equal(dfa.attention(*tensors, **descales | {"k_descale": view}, descale_rows=64),
                                                    dfa.attention(*tensors, **descales, descale_rows=64))


def test_logits_and_empty_tensors():
    tensors, descales = quantized()
    wide = [meant(x, descales[f"{name}_descale"], 64).float() for name, x in zip("qkv", tensors)]
    for options in ({"softcap": 3.0}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"alibi_slopes": torch.rand(2, 4)}, {"window": (70, 3)},
                    {"scale": -0.03}):
        o, lse = dfa.attention(*tensors, **descales, descale_rows=64, **options, return_lse=True)
        wanted, wanted_lse = dfa.attention(*wide, **options, return_lse=True)
        assert holds(o, wanted.double()) and torch.allclose(lse, wanted_lse, atol=2e-5, rtol=1e-5), options
    q, k, v = tensors
    assert dfa.attention(q[:, :, :0], k, v, q_descale=descales["q_descale"][:, :, :0], descale_rows=64).shape == (2, 4, 0, 32)
    assert not dfa.attention(q, k[:, :, :0], v[:, :, :0], q_descale=descales["q_descale"], descale_rows=64).any()


def test_compiled_and_exported():
    tensors, descales = quantized()
    wanted = dfa.attention(*tensors, **descales, descale_rows=64)
    torch._dynamo.reset()
    call = torch.compile(lambda *x, **more: dfa.attention(*x, descale_rows=64, **more), fullgraph=True, backend="aot_eager")
    assert torch.equal(call(*tensors, **descales), wanted)
    x = torch.randn(2, 4, 130, 32)
    quantise = torch.compile(lambda x: dfa.quantize(x, heads=2, descale_rows=64, rotate=3), fullgraph=True, backend="aot_eager")
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(quantise(x), dfa.quantize(x, heads=2, descale_rows=64, rotate=3)))
    torch.library.opcheck(torch.ops.dfa.e4m3_forward.default, (*tensors, *descales.values(), None, None, -1, -1, 0.0, 0.0, 0, 0, 64),
                          test_utils="test_faketensor")

    class Model(torch.nn.Module):
        def forward(self, q, k, v, factors):
            return dfa.attention(q, k, v, descale_rows=64, **factors)
    assert torch.equal(torch.export.export(Model(), (*tensors, descales)).module()(*tensors, descales), wanted)


def test_quantize_is_exported_for_all_lengths():
    class Model(torch.nn.Module):
        def forward(self, x):
            return dfa.quantize(x, heads=2, descale_rows=64)
    rows = torch.export.Dim("rows", min=65, max=4096)
    program = torch.export.export(Model(), (torch.randn(2, 4, 100, 16),), dynamic_shapes={"x": {2: rows}}).module()
    for s in (65, 127, 128, 129, 1000):
        x = torch.randn(2, 4, s, 16) * torch.logspace(-3, 3, s)[:, None]
        for got, wanted in zip(program(x), dfa.quantize(x, heads=2, descale_rows=64)):
            assert got.shape == wanted.shape and torch.equal(got.float(), wanted.float())


@pytest.mark.parametrize("s", [1, 64, 130])
def test_quantize(s):
    x = torch.randn(2, 6, s, 16, dtype=torch.bfloat16)
    blocks = -(-s // 64)
    x[1, 2:4, :64] = 0
    codes, descale = dfa.quantize(x, heads=3, descale_rows=64)
    assert codes.dtype == E4M3 and codes.shape == x.shape and descale.shape == (2, 3, blocks) and descale.dtype == torch.float32
    for n in range(blocks):
        own, factors = dfa.quantize(x[:, :, 64 * n: 64 * n + 64], heads=3)  # a block is a tensor of its own
        assert torch.equal(codes[:, :, 64 * n: 64 * n + 64].float(), own.float()) and torch.equal(descale[:, :, n], factors)
    assert descale[1, 1, 0] == 1
    turned = dfa.quantize(x, heads=3, descale_rows=64, rotate=5)
    wanted = dfa.quantize(dfa.rotate(x.float(), 5), heads=3, descale_rows=64)
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(turned, wanted))


def test_quantize_at_the_edges():
    assert dfa.quantize(torch.zeros(2, 3, 0, 8), descale_rows=64)[1].shape == (2, 3, 0)
    assert dfa.quantize(torch.zeros(0, 2, 65, 8), descale_rows=64)[1].shape == (0, 2, 2)
    x = torch.ones(1, 1, 130, 8)
    x[0, 0, 70, 3] = float("nan")
    bad = dfa.quantize(x, descale_rows=64)[0].float().isnan()[0, 0].all(1)
    assert bad[64:128].all() and not bad[:64].any() and not bad[128:].any()
    with pytest.raises(ValueError, match="descale_rows is 64 beside scale 'tensor'"):
        dfa.quantize(x, "tensor", descale_rows=64)


def test_small_rows_beside_large_ones_keep_their_digits():
    """Of a head whose rows span more than e4m3 does."""
    q, k, v = (torch.randn(1, 2, 256, 64) for _ in range(3))
    v = v * torch.logspace(-6, 3, 4).repeat_interleave(64).reshape(1, 1, 256, 1)
    window = {"window": (0, 0)}  # a query sees its own key
    for options, most in (({}, None), ({"descale_rows": 64}, 0.04)):
        parts = [dfa.quantize(x, **options) for x in (q, k, v)]
        o = dfa.attention(*(x for x, _ in parts), **{f"{name}_descale": f for name, (_, f) in zip("qkv", parts)}, **options, **window)
        error = ((o.double() - v).norm(dim=3) / v.double().norm(dim=3)).amax()
        assert error > 0.9 if most is None else error < most


def arrays(tensors, descales):
    return ([x.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn) for x in tensors], {n: x.numpy() for n, x in descales.items()})


def test_numpy():
    tensors, descales = quantized(d=20, dv=12)
    codes, factors = arrays(tensors, descales)
    o, lse = dfa.attention(*codes, **factors, causal=True, return_lse=True, descale_rows=64)
    wanted, wanted_lse = dfa.attention(*tensors, **descales, causal=True, return_lse=True, descale_rows=64)
    assert o.dtype == ml_dtypes.bfloat16 and (o.astype(np.float32) == wanted.float().numpy()).all() and (lse == wanted_lse.numpy()).all()
    o = dfa.attention(*codes, k_descale=0.25, q_descale=factors["q_descale"][:1, :, :1], v_descale=factors["v_descale"][:, :1, 0], descale_rows=64)
    wanted = dfa.attention(*tensors, k_descale=0.25, q_descale=descales["q_descale"][:1, :, 0], v_descale=descales["v_descale"][:, :1, 0])
    assert (o.astype(np.float32) == wanted.float().numpy()).all()


def test_jax():
    jax = pytest.importorskip("jax")
    tensors, descales = quantized(d=20, dv=12)
    codes, factors = arrays(tensors, descales)
    codes, factors = [jax.numpy.asarray(x) for x in codes], {n: jax.numpy.asarray(x) for n, x in factors.items()}
    wanted, wanted_lse = dfa.attention(*tensors, **descales, causal=True, return_lse=True, descale_rows=64)
    jitted = jax.jit(dfa.attention, static_argnames=("causal", "return_lse", "descale_rows"))
    for call in (dfa.attention, jitted):
        o, lse = call(*codes, **factors, causal=True, return_lse=True, descale_rows=64)
        assert o.dtype == jax.numpy.bfloat16 and (np.asarray(o, np.float32) == wanted.float().numpy()).all()
        assert (np.asarray(lse) == wanted_lse.numpy()).all()
    mapped = jax.vmap(lambda q, k, v, a, b, c: dfa.attention(q, k, v, q_descale=a, k_descale=b, v_descale=c, causal=True, descale_rows=64))(
        *(x[:, None] for x in codes), *(x[:, None] for x in factors.values()))
    assert (np.asarray(mapped[:, 0], np.float32) == wanted.float().numpy()).all()
    if len(jax.devices()) >= 4:
        mesh = jax.make_mesh((2, 2), ("batch", "heads"))
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch", "heads"))
        shared = [jax.device_put(x, place) for x in codes], {n: jax.device_put(x, place) for n, x in factors.items()}
        o = jitted(*shared[0], **shared[1], causal=True, descale_rows=64)
        assert len(o.sharding.device_set) == 4 and (np.asarray(o, np.float32) == wanted.float().numpy()).all()


@pytest.mark.parametrize("change, error, words", [
    ({"descale_rows": 48}, ValueError, "descale_rows is 48; accepted: a multiple of 64"), ({"descale_rows": 0}, ValueError, "descale_rows is 0"),
    ({"descale_rows": -64}, ValueError, "descale_rows is -64"), ({"descale_rows": True}, TypeError, "descale_rows is True"),
    ({"descale_rows": 64.0}, TypeError, "descale_rows is 64.0"), ({"descale_rows": 2 ** 80}, ValueError, "accepted: a multiple of 64 up to 2\\^40"),
    ({"descale_rows": None}, ValueError, r"q_descale has shape \[2, 2, 3\]; accepted: \[b, hk\]"),
    ({"descale_rows": 128}, ValueError, r"q_descale has shape \[2, 2, 3\]; .* here \[2, 2, 2\]"),
    ({"v_descale": np.ones((2, 2, 3), np.float32)}, ValueError, r"v_descale has shape \[2, 2, 3\]; accepted: \[b, hk, blocks of descale_rows\]"),
    ({"k_descale": np.ones((2, 4, 4), np.float32)}, ValueError, "k_descale has shape"),
    ({"k_descale": np.ones(4, np.float32)}, ValueError, r"k_descale has shape \[4\]"),
])
def test_what_does_not_fit_is_refused_by_name(change, error, words):
    jnp = pytest.importorskip("jax.numpy")
    tensors, descales = quantized()
    codes, factors = arrays(tensors, descales)
    given = {"descale_rows": 64} | change
    for operands, own, made in ((tensors, descales, torch.from_numpy), (codes, factors, np.asarray), ([*map(jnp.asarray, codes)], factors, jnp.asarray)):
        options = own | {name: made(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        with pytest.raises(error, match=words):
            dfa.attention(*operands, **options)


def test_other_types_and_sequences_are_refused():
    tensors, descales = quantized()
    wide = [x.float() for x in tensors]
    for given in (wide, [x.numpy() for x in wide]):
        with pytest.raises(ValueError, match="float32.*accepted: .*float8_e4m3fn"):
            dfa.attention(*given, descale_rows=64)
    wrong = descales["k_descale"].clone()
    wrong[1, 0, 2] = float("nan")
    with pytest.raises(ValueError, match="k_descale has nan at batch 1, key head 0, block 2"):
        dfa.attention(*tensors, **descales | {"k_descale": wrong}, descale_rows=64)
    begins = torch.tensor([0, 5, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"k_descale has shape \[2, 2, 1\]; accepted: \[b, hk\]"):
        dfa.attention_varlen(*(x[0, :2, :9].transpose(0, 1).contiguous() for x in tensors[:2]), tensors[2][0, :2, :9].transpose(0, 1).contiguous(), begins, begins,
                             max_seqlen_q=5, max_seqlen_k=5, k_descale=torch.ones(2, 2, 1))
    with pytest.raises(ValueError, match=r"descale_rows\(64\) of packed sequences"):
        dfa.plan("fwd e4m3 h1 d64 lens(5,70) descale_rows(64)")


def test_blocks_longer_than_the_sequence_take_no_memory():
    x = torch.randn(1, 2, 10, 64)
    for rows in (64, 2 ** 40, np.int64(128)):
        x8, factors = dfa.quantize(x, descale_rows=rows)
        assert factors.shape == (1, 2, 1) and torch.equal(x8.view(torch.uint8), dfa.quantize(x)[0].view(torch.uint8))


def test_a_tangent_is_refused():
    x = torch.randn(1, 2, 10, 64)
    with pytest.raises(ValueError, match="x has a tangent"):
        torch.func.jvp(lambda x: dfa.quantize(x)[0].float(), (x,), (x,))
