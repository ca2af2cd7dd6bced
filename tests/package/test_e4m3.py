"""dfa.attention of float8_e4m3fn with factors, against float64 of what the numbers mean: PyTorch, NumPy, JAX."""

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402
from dfa.flash_attn import flash_attn_interface  # noqa: E402

E4M3 = torch.float8_e4m3fn
ROUNDED = 2.0 ** -8  # of o, which is bfloat16: probabilities are float32 on a processor,
COARSE = 0.06  # of o's norm: and of 8 bits on a GPU
sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def quantized(b=2, hq=4, hk=2, sq=33, sk=65, d=64, dv=64):
    """q, k, v in 8 bits of heads that differ in size, and their factors [b, hk]."""
    sizes = 1 + torch.arange(b * hk).reshape(b, hk, 1, 1) / 2
    q = torch.randn(b, hq, sq, d) * sizes.repeat_interleave(hq // hk, 1)
    k, v = torch.randn(b, hk, sk, d) / sizes, torch.randn(b, hk, sk, dv) * sizes ** 2
    (q, q_descale), (k, k_descale), (v, v_descale) = dfa.quantize(q, heads=hk), dfa.quantize(k), dfa.quantize(v)
    return (q, k, v), {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}


def meant(x, descale):
    """float64: the numbers times the factor of their key head."""
    if descale is None:
        return x.double()
    factors = torch.as_tensor(descale, dtype=torch.float64)
    factors = factors[..., None, None] if factors.dim() else factors
    return x.double() * (factors.repeat_interleave(x.shape[1] // factors.shape[1], 1) if factors.dim() and factors.shape[1] > 1 else factors)


def exact(tensors, descales, causal=False, **options):
    q, k, v = (meant(x, descales.get(f"{name}_descale")) for name, x in zip("qkv", tensors))
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2]) if causal else None
    return sdpa(q, k, v, attn_mask=mask, enable_gqa=True, **options)


def holds(o, wanted):
    off, wanted = o.cpu().double() - wanted.cpu(), wanted.cpu()
    near = off.norm() < COARSE * wanted.norm() if o.is_cuda else (off.abs() <= ROUNDED * wanted.abs() + 1e-5 * wanted.abs().max()).all()
    return o.dtype == torch.bfloat16 and near


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"hq": 3, "hk": 3, "d": 128, "dv": 40}, {"hq": 6, "hk": 1, "d": 20, "dv": 12}, {"b": 1, "d": 256}])
def test_o_is_that_of_what_the_numbers_mean(sizes, causal):
    tensors, descales = quantized(**sizes)
    o, lse = dfa.attention(*tensors, **descales, causal=causal, return_lse=True)
    assert holds(o, exact(tensors, descales, causal)) and lse.dtype == torch.float32 and lse.shape == o.shape[:3]
    o_alone = dfa.attention(*tensors, **descales, causal=causal)
    assert torch.equal(o_alone, o)


@pytest.mark.parametrize("kind", ["none", "number", "0-d", "of a batch", "of a head", "a view", "bfloat16"])
def test_a_factor_may_be_one_for_all(kind):
    tensors, _ = quantized()
    v_descale = {"none": None, "number": 0.375, "0-d": torch.tensor(0.375), "of a batch": torch.rand(2, 1) + 0.5,
                 "of a head": torch.rand(1, 2) + 0.5, "a view": (torch.rand(4, 4) + 0.5).t()[::2, ::2],
                 "bfloat16": torch.tensor([[1.5, 2], [3, 4]], dtype=torch.bfloat16)}[kind]
    small = {"q_descale": 2.0 ** -4, "k_descale": torch.tensor(2.0 ** -4)}
    if isinstance(v_descale, torch.Tensor) and v_descale.dim():
        wanted = v_descale.expand(2, 2)
    else:
        wanted = v_descale
    o = dfa.attention(*tensors, **small, v_descale=v_descale)
    assert holds(o, exact(tensors, small | {"v_descale": wanted}))


def test_views_are_read_as_they_lie():
    tensors, descales = quantized(hq=2)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
    o = dfa.attention(*turned, **descales)
    assert o.stride() == turned[0].stride() and holds(o, exact(tensors, descales))
    wide = torch.stack([tensors[0].view(torch.uint8)] * 2, 4).flatten(3)[..., ::2].view(E4M3)  # no stride of 1
    assert torch.equal(dfa.attention(wide, *tensors[1:], **descales), dfa.attention(*tensors, **descales))
    first = tensors[1][:1], tensors[2][:1]
    assert holds(dfa.attention(tensors[0], *first), exact((tensors[0], *(x.expand(2, -1, -1, -1) for x in first)), {}))


def test_logits_that_are_not_plain():
    tensors, descales = quantized()
    wide = [meant(x, descales[f"{name}_descale"]).float() for name, x in zip("qkv", tensors)]
    for options in ({"softcap": 3.0}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}, {"alibi_slopes": torch.rand(2, 4)},
                    {"window": (9, 3)}, {"causal": True, "prefix": 7}, {"chunk": 16, "causal": True}, {"scale": 0.03}):
        o, lse = dfa.attention(*tensors, **descales, **options, return_lse=True)
        wanted, wanted_lse = dfa.attention(*wide, **options, return_lse=True)
        assert holds(o, wanted.double()), options
        assert torch.allclose(lse, wanted_lse, atol=2e-5, rtol=1e-5), options


def test_nothing_to_read_and_rows_that_see_nothing():
    tensors, descales = quantized(sk=0)
    o, lse = dfa.attention(*tensors, return_lse=True)
    assert o.dtype == torch.bfloat16 and not o.any() and lse.isneginf().all()
    tensors, descales = quantized(sq=9, sk=4)
    o, lse = dfa.attention(*tensors, **descales, causal=True, return_lse=True)
    assert not o[:, :, :5].any() and lse[:, :, :5].isneginf().all() and lse[:, :, 5:].isfinite().all()


def test_codes_and_nan():
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3).reshape(1, 1, 1, 256)
    o = dfa.attention(torch.zeros(1, 1, 1, 8).to(E4M3), torch.zeros(1, 1, 1, 8).to(E4M3), codes)
    assert torch.equal(o.float().nan_to_num(-1), codes.float().nan_to_num(-1)) and o.isnan().sum() == 2


def test_compiled_and_exported():
    tensors, descales = quantized()
    wanted = dfa.attention(*tensors, **descales, causal=True)
    torch._dynamo.reset()
    call = torch.compile(lambda q, k, v, **more: dfa.attention(q, k, v, causal=True, **more), fullgraph=True, backend="aot_eager")
    assert torch.equal(call(*tensors, **descales), wanted)
    plain = torch.compile(lambda q, k, v: dfa.attention(q, k, v), fullgraph=True, backend="aot_eager")
    assert torch.equal(plain(*tensors), dfa.attention(*tensors))
    torch.library.opcheck(torch.ops.dfa.e4m3_forward.default,
                          (*tensors, *descales.values(), None, None, -1, 0, 0.0, 0.0, 0, 0),
                          test_utils="test_faketensor")

    class Model(torch.nn.Module):
        def forward(self, q, k, v, factors):
            return dfa.attention(q, k, v, causal=True, **factors)
    assert torch.equal(torch.export.export(Model(), (*tensors, descales)).module()(*tensors, descales), wanted)


@pytest.mark.parametrize("change, words", [
    ({"q_descale": torch.ones(3, 2)}, "q_descale has shape [3, 2]"), ({"k_descale": torch.ones(4)}, "k_descale has shape [4]"),
    ({"v_descale": "one"}, "v_descale is 'one'"), ({"v_descale": torch.ones(2, 2, dtype=torch.int32)}, "v_descale is torch.int32"),
    ({"v_descale": torch.ones(2, 2, requires_grad=True)}, "v_descale requires a gradient"),
    ({"bias": torch.zeros(1, 1, 33, 65)}, "bias is not supported beside tensors in float8_e4m3fn"),
    ({"mask": torch.ones(1, 1, 33, 65, dtype=torch.bool)}, "mask is not supported"), ({"dropout_p": 0.5}, "dropout_p is 0.5"),
    ({"block_mask": object()}, "block_mask is not supported"), ({"seed": 3}, "seed is not supported"),
    ({"algorithm": "standard"}, "algorithm auto or flash"),
    ({"scale": torch.tensor(0.5)}, "scale is a tensor"), ({"prefix": 3}, "prefix=3 without causal"), ({"deterministic": "no"}, "deterministic"),
    ({"v_descale": torch.ones(2, 2, device="meta")}, "v_descale is on meta"),
])
def test_what_is_not_built_is_refused_by_name(change, words):
    tensors, descales = quantized()
    with pytest.raises((ValueError, TypeError)) as error:
        dfa.attention(*tensors, **descales | change)
    assert words in str(error.value) and "\n" not in str(error.value)


def backward_is_refused(call, learned):
    """The forward answers, as FlashAttention-3's own tests want, and says that it has one."""
    o = call()
    with torch.no_grad():
        assert torch.equal(call(), o) and not call().requires_grad
    with pytest.raises(NotImplementedError, match="^the gradient of attention in float8_e4m3fn is not computed; accepted: "):
        o.float().sum().backward()
    assert learned.grad is None


def test_types_gradients_and_other_doors():
    (q, k, v), descales = quantized()
    with pytest.raises(ValueError, match="element types"):
        dfa.attention(q, k, v.float(), **descales)
    with pytest.raises(ValueError, match="element types"):
        dfa.attention(q, k, v.float())
    with pytest.raises(ValueError, match="element type torch.float32 with q_descale"):
        dfa.attention(q.float(), k.float(), v.float(), v_descale=1.0)
    with pytest.raises(ValueError, match="float8_e5m2"):
        dfa.attention(*(x.float().to(torch.float8_e5m2) for x in (q, k, v)))
    for index in range(3):
        learned = [q, k, v]
        learned[index] = learned[index].clone().requires_grad_()
        backward_is_refused(lambda: dfa.attention(*learned, **descales), learned[index])
    sinks = torch.zeros(q.shape[1], requires_grad=True)
    backward_is_refused(lambda: dfa.attention(q, k, v, sinks=sinks, **descales), sinks)
    with pytest.raises((NotImplementedError, RuntimeError), match="gradient of attention in float8_e4m3fn is not computed"):
        torch.func.grad(lambda sinks: dfa.attention(q, k, v, sinks=sinks, **descales).float().sum())(sinks.detach())
    with pytest.raises(ValueError, match="no backend|e4m3"):
        dfa.plan("fwdbwd e4m3 b1 h1 s8 d64")


def test_scattered_masks_and_numbers_of_splits_are_refused_by_name():
    tensors, _ = quantized()
    for mask, words in ((torch.arange(65) % 2 == 0, "attn_mask shows a query keys that do not lie together"),
                        (torch.arange(65.0), "attn_mask of numbers is a bias, which is not supported beside float8_e4m3fn")):
        with pytest.raises(ValueError, match=words):
            dfa.torch.scaled_dot_product_attention(*tensors, attn_mask=mask.expand(33, 65), enable_gqa=True)
    for splits in (-1, 1.5):
        with pytest.raises(ValueError, match=f"num_splits {splits}"):
            flash_attn_interface.flash_attn_func(*(x.transpose(1, 2) for x in tensors), num_splits=splits)


@pytest.mark.parametrize("option, given, error", [("sinks", [1.0] * 4, TypeError), ("alibi_slopes", torch.ones(4, dtype=torch.int32), TypeError),
                                                  ("alibi_slopes", torch.ones(4, dtype=torch.complex64), TypeError)])
def test_logits_are_checked_as_elsewhere(option, given, error):
    tensors, _ = quantized()
    with pytest.raises(error, match=f"{option} is"):
        dfa.attention(*tensors, **{option: given})


@pytest.mark.parametrize("number", [1e39, float("nan"), -float("inf"), 10 ** 400])
def test_a_factor_that_float32_has_not_is_refused(number):
    jnp = pytest.importorskip("jax.numpy")
    tensors, descales = quantized()
    for given in (tensors, arrays(tensors, descales)[0], [jnp.asarray(x) for x in arrays(tensors, descales)[0]]):
        with pytest.raises(ValueError, match="k_descale is .* accepted: a finite number of float32"):
            dfa.attention(*given, k_descale=number)


@pytest.mark.parametrize("number", [np.float32(0.25), np.float16(0.25), np.float64(0.25), np.int64(4)])
def test_a_number_of_numpy_is_a_number(number):
    jnp = pytest.importorskip("jax.numpy")
    tensors, descales = quantized()
    for given in (tensors, arrays(tensors, descales)[0], [jnp.asarray(x) for x in arrays(tensors, descales)[0]]):
        one, other = (np.asarray(torch.as_tensor(o).float() if isinstance(o, torch.Tensor) else o, np.float32)
                      for o in (dfa.attention(*given, k_descale=number), dfa.attention(*given, k_descale=float(number))))
        assert (one == other).all()
    for wrong in (np.bool_(True), np.array(0.25, np.float32)):
        with pytest.raises(TypeError, match=r"k_descale is (np\.)?(True|array\(0.25).*; accepted: a number or a float32 tensor"):
            dfa.attention(*tensors, k_descale=wrong)


@pytest.mark.parametrize("name", ["q_descale", "k_descale", "v_descale"])
def test_a_factor_that_is_nan_or_infinite_is_refused_on_a_processor(name):
    jax = pytest.importorskip("jax")
    tensors, descales = quantized()
    for at, number in (((1, 0), float("nan")), ((0, 1), float("inf"))):
        wrong = {name: torch.ones(2, 2)}
        wrong[name][at] = number
        codes, factors = arrays(tensors, wrong)
        given = [(tensors, wrong), (codes, factors), ([*map(jax.numpy.asarray, codes)], {name: jax.numpy.asarray(factors[name])})]
        for operands, factor in given:
            with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=f"{name} has {number} at batch {at[0]}, key head {at[1]}"):
                np.asarray(dfa.attention(*operands, **factor))


def test_operations_are_counted():
    from torch.utils.flop_counter import FlopCounterMode
    tensors, _ = quantized()
    counts = []
    for given in (tensors, [x.float() for x in tensors]):
        with FlopCounterMode(display=False) as counter:
            dfa.attention(*given)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_forward_mode_is_refused():
    (q, k, v), factors = quantized()
    k_descale = factors["k_descale"]
    with pytest.raises(RuntimeError, match="forward-mode derivatives"):
        torch.func.jvp(lambda x: dfa.attention(q, k, v, k_descale=x).float(), (k_descale,), (k_descale,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode derivatives"):
        dfa.attention(q, k, v, k_descale=torch.autograd.forward_ad.make_dual(k_descale, k_descale))


def test_flash_attention_3s_door():
    tensors, descales = quantized()
    o, lse = flash_attn_interface.flash_attn_func(*(x.transpose(1, 2) for x in tensors), causal=True, **descales, return_attn_probs=True)
    assert holds(o.transpose(1, 2), exact(tensors, descales, causal=True)) and lse.shape == (2, 4, 33)
    qkv = torch.stack([x.view(torch.uint8).transpose(1, 2) for x in (tensors[1],) * 3], 2).view(E4M3)
    o = flash_attn_interface.flash_attn_qkvpacked_func(qkv, **descales)
    assert holds(o.transpose(1, 2), exact((tensors[1],) * 3, descales))


@pytest.mark.parametrize("options", [{}, {"scale": "tensor"}, {"descale_rows": 64}, {"rotate": 3}])
def test_quantize_refuses_numbers_that_float32_has_not(options):
    """They were infinities, and made NaN of finite numbers."""
    x = torch.ones(1, 2, 3, 8, dtype=torch.float64)
    x[0, 1, 2, 3] = -3.4e38
    x8, descale = dfa.quantize(x, **options)
    assert x8.float().isfinite().all() and descale.isfinite().all()
    for value in (1e39, -1e300):
        x[0, 1, 2, 3] = value
        with pytest.raises(ValueError, match=f"^x has {value}".replace("+", ".") + ", which float32 has not; accepted: finite numbers up to 3.4e38"):
            dfa.quantize(x, **options)
    for value in (torch.inf, torch.nan):
        x[0, 1, 2, 3] = value
        assert dfa.quantize(x, **options)[0].float().isnan().any()


def test_quantize():
    x = torch.randn(2, 6, 9, 16, dtype=torch.bfloat16)
    x[1, 3] = 0
    for heads in (6, 3, 1):
        codes, descale = dfa.quantize(x, heads=heads)
        assert codes.dtype == E4M3 and codes.shape == x.shape and descale.shape == (2, heads) and descale.dtype == torch.float32
        assert (codes.float().reshape(2, heads, -1).abs().amax(2)[x.reshape(2, heads, -1).abs().amax(2) > 0] == 448).all()
        error = (meant(codes, descale) - x.double()).abs()
        step = meant(torch.full_like(codes.float(), 2.0 ** -10), descale)
        assert (error <= torch.maximum(2.0 ** -4 * x.double().abs(), step) * 1.0001).all()
    assert dfa.quantize(x)[1][1, 3] == 1
    codes, descale = dfa.quantize(x, "tensor")
    assert descale.shape == () and codes.float().abs().max() == 448
    assert dfa.quantize(torch.zeros(0, 2, 3, 8))[1].shape == (0, 2)
    assert dfa.quantize(torch.tensor([[[[1.0, float("nan")]]]]))[0].isnan().any()
    for wrong, words in ((dict(scale="row"), "scale is 'row'"), (dict(heads=4), "heads is 4"), (dict(heads=0), "heads is 0")):
        with pytest.raises(ValueError, match=words):
            dfa.quantize(x, **wrong)
    for wrong, kind in ((x[0], ValueError), (codes, TypeError), (x.int(), TypeError), (x.clone().requires_grad_(), ValueError)):
        with pytest.raises(kind):
            dfa.quantize(wrong)


def arrays(tensors, descales):
    return ([x.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn) for x in tensors], {n: x.numpy() for n, x in descales.items()})


def test_numpy():
    tensors, descales = quantized(d=20, dv=12)
    codes, factors = arrays(tensors, descales)
    o, lse = dfa.attention(*codes, **factors, causal=True, return_lse=True)
    wanted, wanted_lse = dfa.attention(*tensors, **descales, causal=True, return_lse=True)
    assert o.dtype == ml_dtypes.bfloat16 and (o.astype(np.float32) == wanted.float().numpy()).all() and (lse == wanted_lse.numpy()).all()
    o = dfa.attention(*codes, k_descale=0.25, q_descale=np.float64(0.5), softcap=2.0)
    assert (o.astype(np.float32) == dfa.attention(*tensors, q_descale=0.5, k_descale=0.25, softcap=2.0).float().numpy()).all()
    assert (dfa.attention(*codes).astype(np.float32) == dfa.attention(*tensors).float().numpy()).all()
    empty = dfa.attention(codes[0][:, :, :0], *codes[1:])
    assert empty.dtype == ml_dtypes.bfloat16 and empty.shape == (2, 4, 0, 12)
    for change, words in (({"q_descale": np.ones(3)}, "q_descale has shape"), ({"bias": np.zeros((1, 1, 1, 1))}, "bias is not supported"),
                          ({"dropout_p": 0.5}, "dropout_p"), ({"v_descale": "x"}, "v_descale")):
        with pytest.raises((ValueError, TypeError), match=words):
            dfa.attention(*codes, **change)
    with pytest.raises(ValueError, match="float32; accepted: float8_e4m3fn"):
        dfa.attention(*(x.astype(np.float32) for x in codes), q_descale=1.0)


LAYOUTS = {"rows before heads": lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
           "columns before rows": lambda x: np.ascontiguousarray(x.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2),
           "columns backwards": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
           "rows backwards": lambda x: np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1],
           "every other": lambda x: np.repeat(np.repeat(x, 2, 2), 3, 3)[:, :, ::2, ::3],
           "of longer rows": lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0), (3, 5)))[:, :, 1:, 3:-5]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_that_do_not_lie_densely(layout):
    codes, factors = arrays(*quantized(hq=4, d=24, dv=40))
    strided = [LAYOUTS[layout](x) for x in codes]
    assert not any(x.flags.c_contiguous for x in strided) and all((a == b).all() for a, b in zip(codes, strided))
    options = {"causal": True, **factors}
    wanted = dfa.attention(*codes, **options).astype(np.float32)
    assert (dfa.attention(*strided, **options).astype(np.float32) == wanted).all()
    spread = {name: np.repeat(np.asfortranarray(x), 2, 0)[::2] for name, x in factors.items()}
    assert (dfa.attention(*strided, causal=True, **spread).astype(np.float32) == wanted).all()
    one_head = [np.broadcast_to(x[:, :1], x.shape) for x in codes[1:]]
    dense = dfa.attention(codes[0], *map(np.ascontiguousarray, one_head), **options).astype(np.float32)
    assert (dfa.attention(strided[0], *one_head, **options).astype(np.float32) == dense).all()


def test_arrays_of_jax_that_xla_lays_out_otherwise():
    jax = pytest.importorskip("jax")
    codes, factors = arrays(*quantized(hq=4, d=24, dv=40))
    wanted = dfa.attention(*codes, causal=True, **factors).astype(np.float32)

    def turned(q, k, v, **factors):
        return dfa.attention(*(x.transpose(0, 2, 1, 3)[:, :, ::-1][:, :, ::-1] for x in (q, k, v)), causal=True, **factors)
    given = [jax.numpy.asarray(x.transpose(0, 2, 1, 3)) for x in codes]
    for call in (turned, jax.jit(turned)):
        assert (np.asarray(call(*given, **factors), np.float32) == wanted).all()


def test_jax():
    jax = pytest.importorskip("jax")
    tensors, descales = quantized(d=20, dv=12)
    codes, factors = arrays(tensors, descales)
    codes, factors = [jax.numpy.asarray(x) for x in codes], {n: jax.numpy.asarray(x) for n, x in factors.items()}
    wanted, wanted_lse = dfa.attention(*tensors, **descales, causal=True, return_lse=True)
    for call in (dfa.attention, jax.jit(dfa.attention, static_argnames=("causal", "return_lse"))):
        o, lse = call(*codes, **factors, causal=True, return_lse=True)
        assert o.dtype == jax.numpy.bfloat16 and (np.asarray(o, np.float32) == wanted.float().numpy()).all()
        assert (np.asarray(lse) == wanted_lse.numpy()).all()
    mapped = jax.vmap(lambda q, k, v, a, b, c: dfa.attention(q, k, v, q_descale=a, k_descale=b, v_descale=c, causal=True))(
        *(x[:, None] for x in codes), *(x[:, None] for x in factors.values()))
    assert (np.asarray(mapped[:, 0], np.float32) == wanted.float().numpy()).all()
    assert (np.asarray(dfa.attention(*codes), np.float32) == dfa.attention(*tensors).float().numpy()).all()
    with pytest.raises(ValueError, match="forward alone"):
        jax.grad(lambda q: dfa.attention(q, *codes[1:], **factors).astype("float32").sum())(codes[0])
    for change, words in (({"q_descale": np.ones(3)}, "q_descale has shape"), ({"softcap": 2.0}, "softcap is not supported"),
                          ({"algorithm": "standard"}, "algorithm auto or flash")):
        with pytest.raises((ValueError, TypeError), match=words):
            dfa.attention(*codes, **factors | change)


def test_a_plan_on_a_processor_says_that_rows_are_widened():
    assert "e4m3" in str(dfa.plan("fwd e4m3 b1 h1 s8 d64", backend="cpu")) and "widened" in dfa.plan("fwd e4m3 h1 s8 d8", backend="cpu").why


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sizes", [{}, {"hq": 3, "hk": 3, "d": 128, "dv": 40}, {"hq": 6, "hk": 1, "d": 20, "dv": 12}])
def test_on_a_gpu_o_is_near_what_the_numbers_mean(sizes):
    """P has 8 bits there. Rows of any width, and views that its copy engine cannot step along."""
    tensors, descales = quantized(**sizes)
    wanted = exact(tensors, descales, True)
    there, factors = [x.cuda() for x in tensors], {name: x.cuda() for name, x in descales.items()}
    odd = [torch.zeros((*x.shape[:3], x.shape[3] + 3), dtype=torch.uint8, device="cuda").view(x.dtype)[..., : x.shape[3]] for x in there]
    for view, x in zip(odd, there):
        view.view(torch.uint8).copy_(x.view(torch.uint8))
    for given in (there, odd):
        assert holds(dfa.attention(*given, **factors, causal=True), wanted)
    assert torch.equal(dfa.attention(*there, **factors, causal=True), dfa.attention(*odd, **factors, causal=True))
