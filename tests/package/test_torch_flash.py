"""torch.nn.attention.activate_flash_attention_impl("dfa"): PyTorch's flash operators by dfa. The operators of GPUs are called
here with tensors of the CPU, for which they are overridden as well."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import dfa.torch  # noqa: E402, F401: registers the name
from test_torch import close  # noqa: E402
from test_torch_varlen import LENGTHS, begins, one_by_one, problem  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

attention = torch.nn.attention
functional = torch.nn.functional
sdpa = functional.scaled_dot_product_attention
aten = torch.ops.aten
GPUS = [name for name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
                          "_flash_attention_forward", "_flash_attention_forward_no_dropout_inplace", "_flash_attention_backward")
        if hasattr(aten, name)]
pytestmark = pytest.mark.skipif(not hasattr(attention, "register_flash_attention_impl"), reason="PyTorch before 2.11")


@pytest.fixture(autouse=True)
def activated():
    torch.manual_seed(3)
    attention.activate_flash_attention_impl("dfa")
    yield
    attention.restore_flash_attention_impl()


def qkv(sq=9, sk=9, hq=4, hk=4, d=16, dtype=torch.float32, turned=False):
    shapes = (2, hq, sq, d), (2, hk, sk, d), (2, hk, sk, d)
    if turned:
        return [torch.randn(b, s, h, d, dtype=dtype).transpose(1, 2).requires_grad_() for b, h, s, d in shapes]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def by_math(q, k, v, **options):
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        return sdpa(*(x.double() for x in (q, k, v)), **options)


def check(o, wanted, inputs, tolerance=1e-5):
    assert close(o.double(), wanted, tolerance)
    weights = torch.randn(o.shape, dtype=o.dtype)
    got = torch.autograd.grad(o, inputs, weights)
    for one, truth, x in zip(got, torch.autograd.grad(wanted, inputs, weights.double()), inputs):
        assert one.dtype == x.dtype and one.shape == x.shape and close(one.double(), truth.double(), 10 * tolerance)


def test_the_name_is_registered_and_activated():
    assert "dfa" in attention.list_flash_attention_impls() and attention.current_flash_attention_impl() == "dfa"


def test_all_are_overridden_for_gpus_too():
    def kernels():
        return [line for name in GPUS for line in torch._C._dispatch_dump(f"aten::{name}").splitlines()
                if line.startswith("CUDA: ") and "_torch_flash.py" in line]
    assert len(kernels()) == len(GPUS)
    attention.restore_flash_attention_impl()
    assert not kernels()


def test_the_switch_goes_back():
    q, k, v = qkv()
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        with pytest.raises(ValueError, match="attn_mask is not supported"):
            sdpa(q, k, v, torch.ones(9, 9, dtype=torch.bool))
        attention.restore_flash_attention_impl()
        theirs = sdpa(q, k, v)
        sdpa(q, k, v, torch.ones(9, 9, dtype=torch.bool))
        with pytest.raises(NotImplementedError):
            aten._scaled_dot_product_flash_attention(q, k, v)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attention.activate_flash_attention_impl("dfa")
            attention.activate_flash_attention_impl("dfa")
        assert close(sdpa(q, k, v), theirs, 1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
@pytest.mark.parametrize("turned", [False, True])
def test_plain_sdpa(dtype, tolerance, options, turned, monkeypatch):
    calls = []
    from dfa import _torch_operators
    forward = _torch_operators._forward
    monkeypatch.setattr(_torch_operators, "_forward", lambda *x: calls.append(1) or forward(*x))
    q, k, v = qkv(dtype=dtype, turned=turned)
    o = sdpa(q, k, v, **options)
    assert calls == [1]
    check(o, by_math(q, k, v, **options), (q, k, v), tolerance)


@pytest.mark.parametrize("sq, sk, d", [(5, 9, 16), (9, 5, 16), (9, 9, 12), (1, 9, 8)])
def test_plain_sdpa_is_causal_from_the_first_query_on(sq, sk, d):
    q, k, v = qkv(sq, sk, d=d)
    with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
        check(sdpa(q, k, v, is_causal=True), by_math(q, k, v, is_causal=True), (q, k, v))
        check(sdpa(q, k, v), by_math(q, k, v), (q, k, v))


@pytest.mark.parametrize("hk", [4, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_operator_of_gpus(hk, is_causal):
    q, k, v = qkv(hk=hk)
    o, lse, cum_q, cum_k, most_q, most_k, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)
    check(o, by_math(q, k, v, is_causal=is_causal, enable_gqa=True), (q, k, v))
    _, right = dfa.attention(q, k, v, causal=is_causal, return_lse=True)
    assert torch.equal(lse, right) and cum_q is None and cum_k is None and (most_q, most_k) == (9, 9)


@pytest.mark.parametrize("window", [(None, None), (-1, -1), (3, 2), (3, None)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_flash_operator_of_dense_tensors(window, is_causal):
    q, k, v = qkv(sq=5, hk=2)
    left, right = window
    o, lse, *_ = aten._flash_attention_forward(*(x.transpose(1, 2) for x in (q, k, v)), None, None, 5, 9, 0.0, is_causal, False,
                                               window_size_left=left, window_size_right=right, scale=0.3)
    meant = tuple(-1 if side is None else side for side in window)
    wanted, right_lse = dfa.attention(q, k, v, causal=is_causal, window=meant, scale=0.3, return_lse=True)
    assert torch.equal(o.transpose(1, 2), wanted) and torch.equal(lse, right_lse)
    weights = torch.randn_like(wanted)
    got = torch.autograd.grad(o.transpose(1, 2), (q, k, v), weights)
    for one, truth in zip(got, torch.autograd.grad(wanted, (q, k, v), weights)):
        assert close(one, truth, 1e-5)


@pytest.mark.parametrize("lens_q, lens_k", LENGTHS)
@pytest.mark.parametrize("window, meant", [((-1, -1), {}), ((-1, 0), {"causal": True}), ((20, 5), {"window": (20, 5)})])
@pytest.mark.parametrize("d", [64, 12])
def test_pytorchs_own_function_of_packed_sequences(lens_q, lens_k, window, meant, d):
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    tensors, cu = problem(lens_q, lens_k, "cpu", hk=4, d=d, grad=True)
    o, lse = varlen.varlen_attn(*tensors, *cu, max(lens_q), max(lens_k), window_size=window, scale=0.3,
                                return_aux=varlen.AuxRequest(lse=True))
    wanted, right_lse = one_by_one(tensors, lens_q, lens_k, scale=0.3, **meant)
    check(o, wanted, tensors, 1e-4)
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-4, atol=1e-4)


def test_pytorchs_own_function_into_an_output():
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    if not hasattr(varlen, "varlen_attn_out"):
        pytest.skip("this PyTorch has no varlen_attn_out")
    (q, k, v), cu = problem([3, 5], [3, 5], "cpu", hk=4)
    out = torch.full_like(q, torch.nan)
    used = torch.tensor([2, 5], dtype=torch.int32)
    varlen.varlen_attn_out(out, q, k, v, *cu, 5, 5, seqused_k=used)
    assert torch.equal(out, dfa.attention_varlen(q, k, v, *cu, seqused_k=used))


def packed(**options):
    q, cu = torch.zeros(8, 4, 64), begins([3, 5], "cpu")
    return aten._flash_attention_forward(q, q, q, *(options.pop(name, cu) for name in ("cum_seq_q", "cum_seq_k")), 5, 5,
                                         options.pop("dropout_p", 0.0), False, options.pop("return_debug_mask", False), **options)


@pytest.mark.parametrize("options, message", [
    ({"dropout_p": 0.1}, "dropout_p is not supported by activate_flash_attention_impl"),
    ({"return_debug_mask": True}, "return_debug_mask is not supported"),
    ({"alibi_slopes": torch.zeros(4)}, "alibi_slopes is not supported"),
    ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, "block_table is not supported"),
    ({"num_splits": 2}, "num_splits is not supported"),
    ({"cum_seq_k": None}, "cum_seq_k is None"),
    ({"window_size_left": -2}, "-1 or more"),
])
def test_what_is_refused_by_its_name(options, message):
    known = {argument.name for argument in aten._flash_attention_forward.default._schema.arguments}
    if not {*options} <= known:
        pytest.skip("this PyTorch has no such argument")
    with pytest.raises(ValueError, match=message) as caught:
        packed(**options)
    assert "\n" not in str(caught.value)


def test_what_plain_sdpa_is_refused():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="attn_mask is not supported"), torch.no_grad():
        sdpa(q, k, v, torch.ones(9, 9, dtype=torch.bool))
    with pytest.raises(ValueError, match="element type torch.float64"):
        sdpa(*(x.double() for x in (q, k, v)))


def test_a_gradient_that_pytorchs_operator_would_get_wrong():
    q, cu = torch.zeros(8, 4, 64, requires_grad=True), begins([3, 5], "cpu")
    used = torch.tensor([2, 5], dtype=torch.int32)
    with pytest.raises(ValueError, match="seqused_k where a gradient is asked for"):
        aten._flash_attention_forward(q, q, q, cu, cu, 5, 5, 0.0, False, False, seqused_k=used)


@pytest.mark.parametrize("empty", [{"sq": 0}, {"sk": 0}])
def test_nothing_to_read(empty):
    q, k, v = qkv(**empty)
    o, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v)
    assert o.shape == q.shape and not o.any() and (lse == -torch.inf).all()
    assert all(not x.any() for x in torch.autograd.grad(o.sum(), (q, k, v)))


def calls(turned):
    q, k, v = (x.detach() for x in qkv(turned=turned, d=12))
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    cu = begins([9, 9], "cpu")
    rows = [x.transpose(1, 2) for x in (q, k, v)]
    yield aten._scaled_dot_product_flash_attention.default, (q, k, v)
    yield aten._scaled_dot_product_flash_attention_for_cpu.default, (q, k, v)
    yield aten._flash_attention_forward.default, (*rows, None, None, 9, 9, 0.0, True, False)
    yield aten._flash_attention_forward.default, (*flat, cu, cu, 9, 9, 0.0, True, False)
    o, lse, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_flash_attention(q, k, v)
    yield (aten._scaled_dot_product_flash_attention_backward.default,
           (q, q, k, v, o, lse, None, None, 9, 9, 0.0, True, seed, offset))
    o, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    yield aten._scaled_dot_product_flash_attention_for_cpu_backward.default, (q, q, k, v, o, lse, 0.0, True)
    o, lse, *_ = aten._flash_attention_forward(*flat, cu, cu, 9, 9, 0.0, True, False)
    yield aten._flash_attention_backward.default, (flat[0], *flat, o, lse, cu, cu, 9, 9, 0.0, True, seed, offset)


@pytest.mark.parametrize("turned", [False, True])
def test_results_lie_as_pytorch_says_ahead(turned):
    for operator, arguments in calls(turned):
        real = operator(*arguments)
        with FakeTensorMode() as mode:
            said = operator(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments))
        for one, other in zip(real, said):
            if isinstance(one, torch.Tensor):
                assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype), operator
            else:
                assert one == other


def test_compiled():
    q, k, v = qkv()
    o = torch.compile(lambda *x: sdpa(*x, is_causal=True), fullgraph=True, backend="aot_eager")(q, k, v)
    check(o, by_math(q, k, v, is_causal=True), (q, k, v))
