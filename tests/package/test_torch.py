"""dfa on PyTorch tensors; on the GPU too, where there is one."""

import threading

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402
from dfa import _torch, _torch_calls  # noqa: E402

sdpa = torch.nn.functional.scaled_dot_product_attention
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(),
                                                                reason="no GPU"))]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def tensors(device, dtype=torch.float32, b=2, hq=4, hk=2, sq=33, sk=33, d=64, dv=64, grad=False):
    return tuple(torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad)
                 for shape in ((b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv)))


def exact(q, k, v, **options):
    return sdpa(q.double(), k.double(), v.double(), enable_gqa=True, **options)


def close(got, wanted, tolerance):
    return (got.double() - wanted.double()).abs().max().item() <= tolerance * (
        1 + wanted.double().abs().max().item())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_gradients(device, dtype, causal):
    q, k, v = tensors(device, dtype, grad=True)
    o = dfa.attention(q, k, v, causal=causal)
    weight = torch.randn_like(o)
    got = torch.autograd.grad((o * weight).sum(), (q, k, v))
    wanted_o = exact(q, k, v, is_causal=causal)
    wanted = torch.autograd.grad((wanted_o * weight).sum(), (q, k, v))
    assert o.dtype == dtype and close(o, wanted_o, TOLERANCE[dtype])
    for gradient, truth, tensor in zip(got, wanted, (q, k, v)):
        assert gradient.dtype == dtype and gradient.shape == tensor.shape
        assert close(gradient, truth, 4 * TOLERANCE[dtype])


@pytest.mark.filterwarnings("ignore:Input #.*double precision")
def test_gradcheck_in_fp32_on_tiny_numbers():
    # fp32 only: a step of 1e-2 and its square's error, not gradcheck's usual 1e-6 in fp64.
    q, k, v = tensors("cpu", b=1, hq=2, hk=1, sq=3, sk=5, d=8, dv=8, grad=True)
    assert torch.autograd.gradcheck(dfa.attention, (q, k, v), eps=1e-2, atol=1e-3, rtol=1e-2)


def test_gradient_of_a_sum_has_no_strides_of_its_own(device):
    q, k, v = tensors(device, grad=True)
    dfa.attention(q, k, v).sum().backward()
    wanted = torch.autograd.grad(exact(q, k, v).sum(), (q, k, v))
    assert all(close(t.grad, truth, 4e-5) for t, truth in zip((q, k, v), wanted))


def test_slices_of_one_projection(device):
    """q, k, v as most models make them: [b, s, 3, h, d], and the output flows on without a copy."""
    qkv = torch.randn(2, 33, 3, 4, 64, device=device, requires_grad=True)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    o = dfa.attention(q, k, v, causal=True)
    assert o.transpose(1, 2).is_contiguous()
    gradient, = torch.autograd.grad(o.square().sum(), qkv)
    wanted, = torch.autograd.grad(exact(q, k, v, is_causal=True).square().sum(), qkv)
    assert close(o, exact(q, k, v, is_causal=True), 1e-5) and close(gradient, wanted, 1e-4)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_lse(device, dtype, bound, causal):
    ours = tensors(device, dtype, sq=130, sk=130, grad=True)
    theirs = [x.detach().float().requires_grad_() for x in ours]
    weights = torch.linspace(-1, 1, 130, device=device)
    o, lse = dfa.attention(*ours, causal=causal, return_lse=True)
    q, k, v = theirs
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(130, 130, dtype=torch.bool, device=device).tril(), -torch.inf)
    right = (scores.softmax(-1) @ v).square().sum() + (scores.logsumexp(-1) * weights).sum()
    for got, wanted in zip(torch.autograd.grad(o.float().square().sum() + (lse * weights).sum(), ours),
                           torch.autograd.grad(right, theirs)):
        assert close(got.float(), wanted, bound)


def test_lse(device):
    q, k, v = tensors(device, hk=4)
    _, lse = dfa.attention(q, k, v, return_lse=True)
    scores = q.double() @ k.double().transpose(2, 3) * 64 ** -0.5
    assert lse.dtype == torch.float32 and close(lse, scores.logsumexp(3), 1e-5)


def test_the_operators_keep_pytorchs_rules(device):
    q, k, v = tensors(device)
    options = (-1, 0, 0.0, False, "auto")
    o, lse = torch.ops.dfa.forward(q, k, v, *options)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.dfa.forward, (q, k, v, *options), test_utils=checks)
    torch.library.opcheck(torch.ops.dfa.backward, (o, q, k, v, o, lse, *options), test_utils=checks)


def test_compiled_without_a_graph_break(device):
    def block(q, k, v):
        return dfa.attention(q * 2, k, v, causal=True).relu()
    q, k, v = tensors(device, grad=True)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    o = compiled(q, k, v)
    assert torch.equal(o, block(q, k, v))
    got = torch.autograd.grad(o.sum(), (q, k, v))
    wanted = torch.autograd.grad(block(q, k, v).sum(), (q, k, v))
    assert all(map(torch.equal, got, wanted))


def test_tensors_are_read_alike_with_and_without_dlpacks_table(device, monkeypatch):
    q, k, v = tensors(device, torch.bfloat16, grad=True)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    outputs = []
    for table in (_torch_calls._table, None):  # None: PyTorch before 2.10
        monkeypatch.setattr(_torch_calls, "_table", table)
        _torch_calls.calls_of.cache_clear(), _torch._call.cache_clear()
        o = dfa.attention(q, k, v, window=[4, 4])
        outputs.append((o, *torch.autograd.grad(o.sum(), (q, k, v))))
    _torch_calls.calls_of.cache_clear(), _torch._call.cache_clear()
    assert all(map(torch.equal, *outputs))
    assert [t.stride() for t in outputs[0]] == [t.stride() for t in outputs[1]]


def test_calls_in_turn_do_not_get_each_others_plan(device):
    q, k, v = tensors(device, hk=4)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    wanted = exact(q, k, v)
    for _ in range(2):
        assert close(dfa.attention(q, k, v), wanted, 1e-5)
        assert close(dfa.attention(*turned), wanted, 1e-5)
        assert close(dfa.attention(q, turned[1], v), wanted, 1e-5)
        assert close(dfa.attention(q[:, :, :9], k, v), wanted[:, :, :9], 1e-5)
        assert close(dfa.attention(q, k, v, scale=1.0), exact(q, k, v, scale=1.0), 1e-5)
        assert dfa.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).dtype == torch.bfloat16


def test_a_shape_seen_first_under_inference_can_be_trained_afterwards(device):
    q, k, v = tensors(device, sq=31, grad=True)
    with torch.inference_mode():
        wanted = dfa.attention(q, k, v)
    o = dfa.attention(q, k, v)
    o.sum().backward()
    assert torch.equal(o, wanted) and q.grad is not None


def test_what_outlives_a_call_holds_no_memory(device):
    call = _torch_calls.prepare((-1, -1, 0.0, False, "auto"), 0, "bwd", *tensors(device))
    makers = [*call[1], *filter(None, call[2:])]
    assert [like.untyped_storage().nbytes() for _, like in makers] == [0] * len(makers)


def test_a_dispatch_mode_sees_the_operators(device):
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **kwargs or {})

    q, k, v = tensors(device, grad=True)
    with Watch():
        dfa.attention(q, k, v).sum().backward()
    assert torch.ops.dfa.forward.default in seen and torch.ops.dfa.backward.default in seen


def test_vmap_and_tensors_that_are_fake(device):
    q, k, v = (torch.randn(3, 2, 4, 9, 16, device=device) for _ in range(3))
    each = torch.stack([dfa.attention(*one) for one in zip(q, k, v)])
    assert torch.equal(torch.vmap(dfa.attention)(q, k, v), each)
    mode = torch._subclasses.fake_tensor.FakeTensorMode()
    fakes = [mode.from_tensor(x[0]) for x in (q, k, v)]
    o = dfa.attention(*fakes)  # outside the mode: a subclass of torch.Tensor
    assert type(o) is type(fakes[0]) and o.shape == q.shape[1:]


def test_autocast(device):
    q, k, v = tensors(device, grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        o = dfa.attention(q, k, v)
    assert o.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_twice_differentiated_is_refused():
    q, k, v = tensors("cpu", grad=True)
    gradient, = torch.autograd.grad(dfa.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("sq, sk", [(33, 33), (20, 33), (33, 20)])
def test_enable_routes_pytorchs_function(device, sq, sk):
    q, k, v = tensors(device, sq=sq, sk=sk)
    with dfa.torch.enable():
        assert torch.nn.functional.scaled_dot_product_attention is not sdpa
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        with pytest.raises(ValueError, match="dropout_p"):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=1.0)
        with pytest.raises(ValueError, match="enable_gqa"):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.nn.functional.scaled_dot_product_attention is sdpa
    assert close(o, exact(q, k, v, is_causal=True), 1e-5)


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False},
                                     {"kdim": 48, "vdim": 40, "batch_first": True}])
def test_the_layer_is_torchs(device, options):
    ours = dfa.torch.MultiheadAttention(64, 4, device=device, **options)
    theirs = torch.nn.MultiheadAttention(64, 4, device=device, **options)
    theirs.load_state_dict(ours.state_dict())
    first = options.get("batch_first", False)
    def make(columns):
        return torch.randn((2, 9, columns) if first else (9, 2, columns), device=device)
    inputs = make(64), make(options.get("kdim", 64)), make(options.get("vdim", 64))
    got, none = ours(*inputs)
    assert none is None and close(got, theirs(*inputs, need_weights=False)[0], 1e-5)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(9, device=device)
    got, _ = ours(*inputs, attn_mask=mask, is_causal=True)
    assert close(got, theirs(*inputs, attn_mask=mask, is_causal=True, need_weights=False)[0], 1e-5)
    with pytest.raises(ValueError, match="need_weights"):
        ours(*inputs, need_weights=True)


def test_the_layer_without_a_batch(device):
    ours = dfa.torch.MultiheadAttention(64, 4, device=device)
    x = torch.randn(9, 64, device=device)
    assert ours(x, x, x)[0].shape == (9, 64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_side_streams_and_graphs():
    q, k, v = tensors("cuda", torch.bfloat16, sq=257, sk=257)
    wanted = dfa.attention(q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        on_side = dfa.attention(q, k, v)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dfa.attention(q, k, v)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(on_side, wanted) and torch.equal(captured, wanted)


def test_what_cannot_be_taken():
    q, k, v = tensors("cpu")
    with pytest.raises(ValueError, match="torch.float64"):
        dfa.attention(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="one for all"):
        dfa.attention(q.half(), k, v)
    with pytest.raises(ValueError, match="device meta"):
        dfa.attention(*(x.to("meta") for x in (q, k, v)))
    with pytest.raises(TypeError, match="all of one"):
        dfa.attention(q, k.numpy(), v)


def test_enable_nests_and_puts_back_what_it_found(monkeypatch):
    functional = torch.nn.functional

    def other_library(*args, **options):
        raise AssertionError

    monkeypatch.setattr(functional, "scaled_dot_product_attention", other_library)
    with pytest.raises(KeyError), dfa.torch.enable():
        with dfa.torch.enable():
            pass
        assert functional.scaled_dot_product_attention is dfa.torch.scaled_dot_product_attention
        functional.scaled_dot_product_attention = None  # by someone inside the block
        raise KeyError
    assert functional.scaled_dot_product_attention is other_library


def test_enable_lasts_until_the_last_thread_has_left_it():
    functional = torch.nn.functional
    before, inside, leave = functional.scaled_dot_product_attention, threading.Event(), threading.Event()
    seen = []

    def other():
        with dfa.torch.enable():
            inside.set()
            leave.wait(60)
            seen.append(functional.scaled_dot_product_attention)

    thread = threading.Thread(target=other)
    with dfa.torch.enable():
        thread.start()
        assert inside.wait(60)
    leave.set()
    thread.join()
    assert seen == [dfa.torch.scaled_dot_product_attention] and functional.scaled_dot_product_attention is before
