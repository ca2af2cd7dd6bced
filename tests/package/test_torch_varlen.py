"""dfa.attention_varlen and dfa.flash_attn: packed sequences are what each is alone, on a processor and, where there is one, a GPU."""

import math

import numpy
import pytest

torch = pytest.importorskip("torch")
import torch._dynamo.testing  # noqa: E402
import torch.utils.flop_counter  # noqa: E402

dfa = pytest.importorskip("dfa")

from dfa import flash_attn, hub  # noqa: E402
from dfa.flash_attn import cute, flash_attn_interface  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LENGTHS = [([70, 1, 0, 130, 65], [150, 1, 9, 129, 30]), ([33, 128, 5], [33, 128, 5]), ([3, 40], [0, 17])]


def packed(lengths, heads, d, device, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), heads, d, generator=generator).to(device, dtype)


def begins(lengths, device):
    return torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)


def problem(lens_q, lens_k, device, hq=4, hk=2, d=64, dtype=torch.float32, grad=False):
    tensors = packed(lens_q, hq, d, device, dtype, 1), packed(lens_k, hk, d, device, dtype, 2), packed(lens_k, hk, d, device, dtype, 3)
    return [x.requires_grad_(grad) for x in tensors], (begins(lens_q, device), begins(lens_k, device))


def one_by_one(tensors, lens_q, lens_k, causal=False, window=None, scale=None):
    """(o, lse) by the definition, in float64, each sequence alone."""
    q, k, v = (x.double() for x in tensors)
    os, lses, q_at, k_at = [], [], 0, 0
    for n, m in zip(lens_q, lens_k):
        qi, ki, vi = q[q_at:q_at + n], k[k_at:k_at + m], v[k_at:k_at + m]
        group = q.shape[1] // k.shape[1]
        ki, vi = (x.repeat_interleave(group, 1) for x in (ki, vi))
        s = torch.einsum("qhd,khd->hqk", qi, ki) * (scale or 1 / math.sqrt(q.shape[2]))
        i, j = torch.arange(n, device=q.device)[:, None] + m - n, torch.arange(m, device=q.device)
        left, right = window or (-1, -1)
        right = 0 if causal else right
        hidden = torch.zeros(n, m, dtype=bool, device=q.device)
        if right >= 0:
            hidden |= j > i + right
        if left >= 0:
            hidden |= j < i - left
        s = s.masked_fill(hidden, -torch.inf)
        p = s.softmax(-1).nan_to_num(0) if m else s
        os.append(torch.einsum("hqk,khd->qhd", p, vi))
        lses.append(s.logsumexp(-1) if m else s.new_full((q.shape[1], n), -torch.inf))
        q_at, k_at = q_at + n, k_at + m
    return torch.cat(os), torch.cat(lses, 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lens_q, lens_k", LENGTHS)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (20, 5)}, {"causal": True, "scale": 0.3}])
def test_each_sequence_is_as_alone(device, lens_q, lens_k, options):
    tensors, lengths = problem(lens_q, lens_k, device, grad=True)
    o, lse = dfa.attention_varlen(*tensors, *lengths, max(lens_q), max(lens_k), return_lse=True, **options)
    right = [x.detach().clone().requires_grad_() for x in tensors]
    right_o, right_lse = one_by_one(right, lens_q, lens_k, **options)
    torch.testing.assert_close(o.double(), right_o, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-4, atol=1e-4)
    d_o = torch.randn_like(o)
    o.backward(d_o)
    right_o.backward(d_o.double())
    for got, wanted in zip(tensors, right):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("d, dv", [(64, 64), (128, 128), (40, 72), (20, 12)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_and_head_dims(device, d, dv, dtype):
    lens_q, lens_k = LENGTHS[0]
    (q, k, _), lengths = problem(lens_q, lens_k, device, d=d, dtype=dtype, grad=True)
    v = packed(lens_k, 2, dv, device, dtype, 3).requires_grad_()
    o = dfa.attention_varlen(q, k, v, *lengths, causal=True)
    assert o.shape == (sum(lens_q), 4, dv)
    right = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    right_o, _ = one_by_one(right, lens_q, lens_k, causal=True)
    torch.testing.assert_close(o.double(), right_o, rtol=2e-2, atol=2e-2)
    d_o = torch.randn_like(o)
    o.backward(d_o)
    right_o.backward(d_o.double())
    for got, wanted in zip((q, k, v), right):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_lse_has_a_gradient(device):
    lens_q, lens_k = LENGTHS[1]
    tensors, lengths = problem(lens_q, lens_k, device, grad=True)
    weights = torch.randn(4, sum(lens_q), device=device)
    (dfa.attention_varlen(*tensors, *lengths, causal=True, return_lse=True)[1] * weights).sum().backward()
    right = [x.detach().clone().requires_grad_() for x in tensors]
    (one_by_one(right, lens_q, lens_k, causal=True)[1] * weights.double()).sum().backward()
    for got, wanted in zip(tensors[:2], right[:2]):
        torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_no_sequence_are_zeros_and_not_read(device):
    lens = [40, 30, 50]
    tensors, lengths = problem(lens, lens, device)
    used = torch.tensor([33, 30, 0], dtype=torch.int32, device=device)
    for x in tensors:
        for begin, n, rows in zip(lengths[0].tolist(), used.tolist(), lens):
            x[begin + n:begin + rows] = torch.nan
    tensors = [x.requires_grad_() for x in tensors]
    o, lse = dfa.attention_varlen(*tensors, *lengths, seqused_q=used, seqused_k=used, causal=True, return_lse=True)
    assert (o[33:40] == 0).all() and (o[70:] == 0).all() and (lse[:, 70:] == -torch.inf).all()
    alone = dfa.attention_varlen(*(x[40:70] for x in tensors), begins([30], device), causal=True)
    torch.testing.assert_close(o[40:70], alone)
    o.sum().backward()
    for x in tensors:
        assert (x.grad[33:40] == 0).all() and (x.grad[70:] == 0).all() and x.grad.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
def test_views_are_read_as_they_lie(device):
    lens = [17, 40]
    qkv = packed(lens, 3 * 2, 64, device).view(-1, 3, 2, 64)
    cu = begins(lens, device)
    o = dfa.attention_varlen(*qkv.unbind(1), cu, causal=True)
    torch.testing.assert_close(o, dfa.attention_varlen(*(x.contiguous() for x in qkv.unbind(1)), cu, causal=True))
    torch.testing.assert_close(o, flash_attn.flash_attn_varlen_qkvpacked_func(qkv, cu, max(lens), causal=True))


@pytest.mark.parametrize("device", DEVICES)
def test_operators_are_as_pytorch_wants_them(device):
    lens_q, lens_k = LENGTHS[1]
    tensors, lengths = problem(lens_q, lens_k, device, grad=True)
    torch.library.opcheck(torch.ops.dfa.varlen_forward, (*tensors, *lengths, None, None, -1, 0, 0.0, True),
                          test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_serves_other_lengths(device):
    counter = torch._dynamo.testing.CompileCounter()
    call = torch.compile(lambda q, k, v, cu, most: dfa.attention_varlen(q, k, v, cu, cu, most, most, causal=True),
                         fullgraph=True, dynamic=True, backend=counter)
    for lens in ([40, 30], [20, 50], [69, 1]):
        tensors, (cu, _) = problem(lens, lens, device)
        torch.testing.assert_close(call(*tensors, cu, torch.tensor(max(lens))), dfa.attention_varlen(*tensors, cu, causal=True))
    assert counter.frame_count == 1


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU")
def test_a_cuda_graph_serves_other_lengths():
    tensors, (cu, _) = problem([40, 30, 60], [40, 30, 60], "cuda", dtype=torch.bfloat16)
    for _ in range(2):
        dfa.attention_varlen(*tensors, cu, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = dfa.attention_varlen(*tensors, cu, causal=True)
    for lens in ([100, 10, 20], [1, 1, 128]):
        cu.copy_(begins(lens, "cuda"))
        graph.replay()
        torch.testing.assert_close(o.double(), one_by_one(tensors, lens, lens, causal=True)[0], rtol=2e-2, atol=2e-2)


def test_nothing_to_read():
    empty, cu = torch.zeros(0, 2, 64), torch.zeros(3, dtype=torch.int32)
    assert dfa.attention_varlen(empty, empty, empty, cu).shape == (0, 2, 64)
    q = torch.randn(3, 2, 64, requires_grad=True)
    o = dfa.attention_varlen(q, empty, empty, begins([1, 2], "cpu"), cu)
    o.sum().backward()
    assert (o == 0).all() and (q.grad == 0).all()


@pytest.mark.parametrize("change, message", [
    ({"cu_seqlens_q": torch.tensor([0, 5, 3], dtype=torch.int32)}, "cu_seqlens_q falls from 5 to 3"),
    ({"cu_seqlens_q": torch.tensor([0, 2, 9], dtype=torch.int32)}, "the tensor has 8 rows"),
    ({"cu_seqlens_q": torch.tensor([1, 2, 8], dtype=torch.int32)}, "does not begin with 0"),
    ({"cu_seqlens_q": torch.tensor([0, 3, 8])}, "torch.int64; accepted: an int32 tensor"),
    ({"seqused_k": torch.tensor([3, 5], dtype=torch.int32).numpy()}, "seqused_k is ndarray; accepted: an int32 tensor"),
    ({"cu_seqlens_q": torch.tensor([0, 8], dtype=torch.int32)}, r"cu_seqlens_k has shape \[3\]"),
    ({"seqused_k": torch.tensor([4, 5], dtype=torch.int32)}, "seqused_k is 4, but cu_seqlens_k leaves 3 rows"),
    ({"max_seqlen_k": 4}, "max_seqlen_k is 4, but a sequence has 5 rows"),
    ({"max_seqlen_q": 4.5}, r"max_seqlen_q is 4.5; accepted: a whole number"),
    ({"max_seqlen_q": "5"}, r"max_seqlen_q is '5'; accepted: a whole number"),
    ({"max_seqlen_q": True}, r"max_seqlen_q is True; accepted: a whole number"),
    ({"max_seqlen_q": torch.tensor(5.5)}, r"max_seqlen_q is tensor\(5.5000\); accepted: a whole number"),
    ({"max_seqlen_q": torch.tensor([5, 5])}, r"max_seqlen_q is tensor\(\[5, 5\]\); accepted: a whole number"),
    ({"k": torch.zeros(0, 2, 64), "v": torch.zeros(0, 2, 64)}, r"cu_seqlens_k is \[0, 3, 8\], but the tensor has 0 rows"),
    ({"q": torch.zeros(0, 2, 64)}, r"cu_seqlens_q is \[0, 3, 8\], but the tensor has 0 rows"),
    ({"q": torch.zeros(8, 3, 64)}, "not a multiple"),
    ({"k": torch.zeros(8, 2, 32)}, "shapes do not match"),
    ({"q": torch.zeros(1, 8, 2, 64)}, "q has 4 dimensions"),
    ({"q": torch.zeros(8, 2, 64, dtype=torch.float64)}, "element types"),
    ({"scale": 0.0}, "scale"),
])
def test_what_cannot_be_is_refused(change, message):
    cu = begins([3, 5], "cpu")
    given = dict(zip("qkv", (torch.zeros(8, 2, 64) for _ in range(3)))) | {"cu_seqlens_q": cu, "cu_seqlens_k": cu} | change
    with pytest.raises((ValueError, TypeError), match=message):
        dfa.attention_varlen(**given)


@pytest.mark.parametrize("device", DEVICES)
def test_names_of_flash_attn(device):
    q, k, v = (torch.randn(2, 50, heads, 64, device=device) for heads in (4, 2, 2))
    o = dfa.attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True, window=(20, -1)).transpose(1, 2)
    options = {"causal": True, "window_size": (20, -1)}
    torch.testing.assert_close(flash_attn.flash_attn_func(q, k, v, **options), o)
    torch.testing.assert_close(flash_attn.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), **options), o)
    torch.testing.assert_close(flash_attn_interface.flash_attn_func(q, k, v, **options), o)
    torch.testing.assert_close(cute.flash_attn_func(q, k, v, causal=True, window_size=(20, None))[0], o)
    o, lse, nothing = flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)
    assert o.shape == q.shape and lse.shape == (2, 4, 50) and lse.dtype == torch.float32 and nothing is None
    flat, cu = [x.flatten(0, 1) for x in (q, k, v)], begins([50, 50], device)
    for function in (flash_attn.flash_attn_varlen_func, flash_attn_interface.flash_attn_varlen_func):
        o2, lse2 = function(*flat, cu, cu, 50, 50, return_attn_probs=True)[:2]
        torch.testing.assert_close(o2.view_as(q), o)
        torch.testing.assert_close(lse2, lse.transpose(0, 1).flatten(1))
    torch.testing.assert_close(cute.flash_attn_varlen_func(*flat, cu, cu)[0].view_as(q), o)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dense", ["q", "k", "qk"])
def test_flash_attention_4_takes_rows_that_are_not_packed(device, dense):
    """Its own tests give q, k or both as [b, s, h, d], with seqused, and scheduler_metadata."""
    q, k, v = (torch.randn(3, s, heads, 64, device=device, requires_grad=True) for s, heads in ((7, 4), (50, 2), (50, 2)))
    used_q, used_k = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([7, 3, 5], [50, 20, 9]))
    flat, cu_q, cu_k = [x.flatten(0, 1) for x in (q, k, v)], begins([7] * 3, device), begins([50] * 3, device)
    options = {"seqused_q": used_q, "seqused_k": used_k, "causal": True, "return_lse": True}
    o, lse = cute.flash_attn_varlen_func(*flat, cu_q, cu_k, **options)
    given = [q if "q" in dense else flat[0], *((k, v) if "k" in dense else flat[1:])]
    named = {"cu_seqlens_q": None if "q" in dense else cu_q, "cu_seqlens_k": None if "k" in dense else cu_k}
    o2, lse2 = cute.flash_attn_varlen_func(*given, **named, **options, scheduler_metadata=object())
    if "q" in dense:
        assert o2.shape == q.shape and lse2.shape == (3, 4, 7)
        o2, lse2 = o2.flatten(0, 1), lse2.transpose(0, 1).flatten(1)
    torch.testing.assert_close(o2, o)
    torch.testing.assert_close(lse2, lse)
    gradients = [torch.autograd.grad(x.sum(), (q, k, v), retain_graph=True) for x in (o, o2)]
    torch.testing.assert_close(*gradients)


def test_rows_of_flash_attention_4_that_cannot_be_are_refused():
    q, cu = torch.zeros(2, 8, 2, 64), begins([8, 8], "cpu")
    for given, message in (((q[0], q[0], q[0]), "cu_seqlens_q is None beside q of 3 dimensions; accepted"),
                           ((q[0], q[0], q[0], cu), "cu_seqlens_k is None beside k of 3 dimensions; accepted"),
                           ((q, q, q[0]), "cu_seqlens_k is None beside v of 3 dimensions; accepted"), ((q, q[:1], q[:1]), "cu_seqlens_k has shape"),
                           (([1], q, q), "q is list"), ((q, q, q, cu, None), "q has 4 dimensions")):
        with pytest.raises((ValueError, TypeError), match=message):
            cute.flash_attn_varlen_func(*given)
    assert cute.flash_attn_varlen_func(q[:, :0], q, q)[0].shape == (2, 0, 2, 64)
    assert cute.flash_attn_varlen_func(q[:0], q[:0], q[:0])[0].shape == (0, 8, 2, 64)


@pytest.mark.parametrize("module, name, argument, value", [
    (cute, "flash_attn_func", "gather_kv_indices", torch.ones(1)), (cute, "flash_attn_func", "aux_scalars", (1,)),
    (flash_attn_interface, "flash_attn_func", "attention_chunk", 64),
    (flash_attn_interface, "flash_attn_func", "qv", torch.ones(1)), (cute, "flash_attn_func", "score_mod", print),
])
def test_what_is_not_supported_is_refused_by_its_name(module, name, argument, value):
    q = torch.zeros(1, 8, 2, 64)
    with pytest.raises(ValueError, match=f"{argument} is not supported"):
        getattr(module, name)(q, q, q, **{argument: value})


GENERATIONS = [flash_attn, flash_attn_interface, cute, hub]


@pytest.mark.parametrize("module", GENERATIONS)
@pytest.mark.parametrize("array", [torch.tensor, numpy.array])
def test_names_of_flash_attn_take_a_window_of_numbers_in_an_array(module, array):
    q, k, v = (torch.randn(1, 12, 2, 64) for _ in range(3))
    for window in ((3, 2), (1, 0), (3, 2)):  # other numbers in an array of the same shape are another call
        given, wanted = (module.flash_attn_func(q, k, v, window_size=of(window)) for of in (array, tuple))
        torch.testing.assert_close(given, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("module", GENERATIONS)
@pytest.mark.parametrize("change, error, message", [
    ({"q": numpy.zeros((1, 8, 2, 64), "f4")}, TypeError, "^q is ndarray; accepted: a tensor"),
    ({"v": [1]}, TypeError, "^v is list; accepted: a tensor"),
    ({"window_size": 5}, ValueError, "^window_size 5; accepted: "),
    ({"window_size": "55"}, ValueError, "^window_size '55'; accepted: "),
    ({"window_size": (5.0, 5)}, ValueError, r"^window_size \(5.0, 5\); accepted: "),
    ({"window_size": torch.tensor([True, False])}, ValueError, "^window_size "),
    ({"window_size": torch.tensor([1.0, 2.0])}, ValueError, "^window_size "),
    ({"window_size": torch.tensor([1, 2, 3])}, ValueError, "^window_size "),
    ({"window_size": (None,)}, ValueError, r"^window_size \(None,\); accepted: "),
    ({"softcap": ""}, TypeError, "^softcap ''; accepted: "),
    ({"softcap": False}, TypeError, "^softcap False; accepted: "),
    ({"softcap": torch.tensor(0.0, requires_grad=True)}, ValueError, "^softcap requires a gradient"),
])
def test_names_of_flash_attn_say_what_they_take(module, change, error, message):
    given = dict(zip("qkv", (torch.zeros(1, 8, 2, 64) for _ in range(3)))) | change
    with pytest.raises(error, match=message):
        module.flash_attn_func(**given)


@pytest.mark.parametrize("module", GENERATIONS)
def test_names_of_flash_attn_take_flags_and_both_lengths(module):
    q, cu = torch.zeros(8, 2, 64), begins([3, 5], "cpu")
    flag = "return_lse" if module is cute else "return_attn_probs"
    with pytest.raises(TypeError, match=f"{flag} is 'no'; accepted: True or False"):
        module.flash_attn_func(q[None], q[None], q[None], **{flag: "no"})
    with pytest.raises(TypeError, match=f"{flag} is 1; accepted: True or False"):
        module.flash_attn_varlen_func(q, q, q, cu, cu, 5, 5, **{flag: 1})
    with pytest.raises(ValueError, match="cu_seqlens_k is None"):
        module.flash_attn_varlen_func(q, q, q, cu, None, 5, 5)


def test_what_is_stacked_is_of_its_shape():
    q, cu = torch.zeros(1, 8, 2, 64), begins([3, 5], "cpu")
    of_four = torch.stack([q] * 4, 2)
    for call, message in [
            (lambda: flash_attn.flash_attn_qkvpacked_func(of_four), r"qkv has shape \[1, 8, 4, 2, 64\]; accepted: \[b, s, 3, h, d\]"),
            (lambda: flash_attn.flash_attn_qkvpacked_func(of_four[0]), r"qkv has shape \[8, 4, 2, 64\]; accepted: \[b, s, 3, h, d\]"),
            (lambda: flash_attn.flash_attn_kvpacked_func(q, of_four), r"kv has shape .*; accepted: \[b, sk, 2, hk, d\]"),
            (lambda: flash_attn.flash_attn_varlen_qkvpacked_func(of_four[0], cu, 5), r"qkv has shape .*; accepted: \[total, 3, h, d\]"),
            (lambda: flash_attn.flash_attn_varlen_kvpacked_func(q[0], of_four[0], cu, cu, 5, 5), r"accepted: \[total_k, 2, hk, d\]"),
            (lambda: flash_attn_interface.flash_attn_qkvpacked_func(of_four), r"qkv has shape .*; accepted: \[b, s, 3, h, d\]"),
            (lambda: flash_attn_interface.flash_attn_qkvpacked_func(of_four[0, 0]), r"qkv has shape .* with num_heads_q"),
            *((lambda n=n: flash_attn_interface.flash_attn_qkvpacked_func(torch.zeros(1, 8, 12, 64), num_heads_q=n),
               f"num_heads_q is {n}; accepted: the heads of q, which leave an even number of the 12")
              for n in (None, 3, 12, 20, -2, 4.0))]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="qkv is ndarray; accepted: a tensor"):
        flash_attn.flash_attn_qkvpacked_func(of_four.numpy())


def test_arguments_that_there_are_none_of_are_refused():
    q = torch.zeros(1, 8, 2, 64)
    with pytest.raises(TypeError, match="softcaps"):
        cute.flash_attn_func(q, q, q, softcaps=None)


def test_operations_are_counted_by_the_rows_that_count():
    q, cu = torch.zeros(8, 2, 64), begins([3, 5], "cpu")
    used = torch.tensor([2, 5], dtype=torch.int32)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        dfa.attention_varlen(q, q, q, cu, seqused_q=used, seqused_k=used)
    assert counter.get_total_flops() == 4 * (2 * 2 + 5 * 5) * 2 * 64


def test_a_compiled_call_refuses_lengths_as_an_eager_one():
    q = torch.zeros(8, 2, 64)
    compiled = torch.compile(lambda q, cu: dfa.attention_varlen(q, q, q, cu), backend="aot_eager", fullgraph=True)
    for cu, message in (([1, 3, 8], "cu_seqlens_q does not begin with 0"), ([0, 5, 3], "cu_seqlens_q falls"),
                        ([0, 3, 9], "the tensor has 8 rows")):
        with pytest.raises(ValueError, match=message):
            compiled(q, torch.tensor(cu, dtype=torch.int32))


def test_vmap_over_lengths():
    q = torch.randn(8, 2, 64)
    cu = torch.tensor([[0, 3, 8], [0, 7, 8]], dtype=torch.int32)
    o = torch.vmap(lambda cu: dfa.attention_varlen(q, q, q, cu))(cu)
    assert torch.equal(o, torch.stack([dfa.attention_varlen(q, q, q, one) for one in cu]))
    with pytest.raises(ValueError, match="max_seqlen_q beside cu_seqlens_q without values here"):
        torch.vmap(lambda cu: dfa.attention_varlen(q, q, q, cu, max_seqlen_q=8))(cu)
