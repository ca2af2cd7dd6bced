"""A bias that is added to logits, of every shape, with its gradient; and PyTorch's attn_mask where it is no interval of keys."""

import numpy
import pytest

torch = pytest.importorskip("torch")
dfa = pytest.importorskip("dfa")

import dfa.torch  # noqa: E402
from dfa import _torch_varlen  # noqa: E402, F401

SHAPES = [(2, 4, 17, 29), (1, 4, 17, 29), (2, 1, 17, 29), (2, 1, 1, 29), (1, 1, 17, 1), (1, 1, 1, 1)]


def inputs(dtype=torch.float32, b=2, hq=4, hk=2, sq=17, sk=29, d=32):
    torch.manual_seed(1)
    return [torch.randn(b, h, s, d, dtype=dtype, requires_grad=True) for h, s in ((hq, sq), (hk, sk), (hk, sk))]


def written_out(q, k, v, bias, causal=False):
    """o and lse in fp64; rows that see nothing are zeros."""
    q, k, v, bias = (x.double() for x in (q, k, v, bias))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    if causal:
        sq, sk = logits.shape[-2:]
        logits = logits.masked_fill(torch.ones(sq, sk, dtype=torch.bool).triu(sk - sq + 1), -torch.inf)
    return logits.softmax(-1).nan_to_num(0) @ v, logits.logsumexp(-1)


def assert_same(got, wanted, dtype):
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for one, other in zip(got, wanted):
        assert (one.double() - other).abs().max() <= bound * (1 + other.abs().max())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of_bias", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape, dtype, of_bias, causal):
    q, k, v = inputs(dtype)
    bias = torch.randn(shape, dtype=of_bias, requires_grad=True)
    o, lse = dfa.attention(q, k, v, bias=bias, causal=causal, return_lse=True)
    right = written_out(q, k, v, bias, causal)
    assert_same((o, lse), right, dtype)
    of_o, of_lse = torch.randn_like(o), torch.randn_like(lse)

    def gradients(o, lse):
        return torch.autograd.grad((o * of_o.to(o.dtype)).sum() + (lse * of_lse.to(lse.dtype)).sum(), (q, k, v, bias))
    got = gradients(o, lse)
    assert [x.dtype for x in got] == [dtype] * 3 + [of_bias] and got[3].shape == shape
    assert_same(got, gradients(*right), torch.bfloat16 if of_bias == torch.bfloat16 else dtype)


def test_with_softcap_slopes_and_sinks_it_comes_behind_the_cap():
    q, k, v = inputs()
    bias, sinks, slopes = torch.randn(1, 4, 17, 29, requires_grad=True), torch.randn(4), torch.rand(4)
    o = dfa.attention(q, k, v, bias=bias, softcap=2.0, alibi_slopes=slopes, sinks=sinks)
    kk, vv = (x.repeat_interleave(2, 1).double() for x in (k, v))
    logits = 2 * torch.tanh(q.double() @ kk.transpose(-1, -2) / 32 ** 0.5 / 2)
    distance = (torch.arange(17)[:, None] + 12 - torch.arange(29)).abs()
    logits = logits - slopes[:, None, None].double() * distance + bias.double()
    right = torch.cat([logits, sinks.double()[:, None, None].expand(2, 4, 17, 1)], -1).softmax(-1)[..., :-1] @ vv
    assert_same([o], [right], torch.float32)
    of_o = torch.randn_like(o)
    assert_same(torch.autograd.grad(o, (q, bias), of_o), torch.autograd.grad(right, (q, bias), of_o.double()), torch.float32)


def test_an_expanded_bias_is_read_where_it_lies_and_has_the_gradient_of_an_expanded_one():
    q, k, v = inputs()
    row = torch.randn(1, 4, 1, 29, requires_grad=True)
    right = written_out(q, k, v, row)[0]
    of_o = torch.randn(right.shape)
    for bias in (row, row.expand(2, 4, 17, 29), row.detach().expand(2, 4, 17, 29)):
        o = dfa.attention(q, k, v, bias=bias)
        assert_same([o], [right], torch.float32)
        if bias.requires_grad:
            assert_same(torch.autograd.grad(o, row, of_o, retain_graph=True),
                        torch.autograd.grad(right, row, of_o.double(), retain_graph=True), torch.float32)
    turned = torch.randn(2, 4, 29, 17).transpose(2, 3)
    assert_same([dfa.attention(q, k, v, bias=turned)], [written_out(q, k, v, turned)[0]], torch.float32)


@pytest.mark.parametrize("least", [-torch.inf, torch.finfo(torch.float32).min])
def test_what_is_low_enough_hides_a_key(least):
    q, k, v = inputs()
    hidden = torch.rand(2, 1, 17, 29) < 0.5
    hidden[:, :, 3] = True
    bias = torch.zeros(2, 1, 17, 29).masked_fill(hidden, least)
    o, lse = dfa.attention(q, k, v, bias=bias, return_lse=True)
    right = written_out(q, k, v, bias.masked_fill(hidden, -torch.inf))
    assert_same([o], right[:1], torch.float32)
    assert (o[:, :, 3] == 0).all() and (lse[:, :, 3] == -torch.inf).all()
    o.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v)) and (q.grad[:, :, 3] == 0).all()


def test_packed_sequences_count_rows_and_keys_from_their_own_first():
    lengths = [5, 0, 17, 9]
    cu = torch.tensor([0, 5, 5, 22, 31], dtype=torch.int32)
    q, k, v = (torch.randn(31, h, 32, requires_grad=True) for h in (4, 2, 2))
    for shape in ((4, 4, 17, 17), (1, 4, 17, 17), (1, 1, 20, 20), (4, 1, 1, 17)):
        bias = torch.randn(shape, requires_grad=True)
        o = dfa.attention_varlen(q, k, v, cu, causal=True, bias=bias)
        parts = []
        for i, (begin, rows) in enumerate(zip(cu.tolist(), lengths)):
            one = [x[begin:begin + rows].transpose(0, 1)[None] for x in (q, k, v)]
            of_it = bias[i:i + 1] if shape[0] > 1 else bias
            if rows:
                parts.append(written_out(*one, of_it[:, :, :rows, :rows], True)[0][0].transpose(0, 1))
        right = torch.cat(parts)
        assert_same([o], [right], torch.float32)
        of_o = torch.randn_like(o)
        assert_same(torch.autograd.grad(o, (q, bias), of_o),
                    torch.autograd.grad(right, (q, bias), of_o.double()), torch.float32)


def test_operators_stand_pytorchs_own_check():
    cu = torch.tensor([0, 17, 34], dtype=torch.int32)
    q, k, v = (torch.randn(34, 2, 32, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 1, 17, 17, requires_grad=True)
    arguments = q, k, v, cu, cu, None, None, -1, -1, 0.2, False, None, None, 0.0, bias
    torch.library.opcheck(torch.ops.dfa.varlen_forward, arguments)


def test_compiled_with_shapes_that_change():
    function = torch.compile(lambda q, k, v, bias: dfa.attention(q, k, v, bias=bias), dynamic=True, fullgraph=True)
    for sk in (29, 40, 33):
        q, k, v = inputs(sk=sk)
        bias = torch.randn(1, 4, 17, sk, requires_grad=True)
        o, right = function(q, k, v, bias), written_out(q, k, v, bias)[0]
        assert_same([o], [right], torch.float32)
        of_o = torch.randn_like(o)
        assert_same(torch.autograd.grad(o, bias, of_o), torch.autograd.grad(right, bias, of_o.double()), torch.float32)


def test_equal_bits_where_they_are_asked_for():
    q, k, v = inputs(b=3, sq=130, sk=300)
    bias = torch.randn(1, 1, 130, 300, requires_grad=True)
    runs = []
    for threads in (1, 2, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        o = dfa.attention(q, k, v, bias=bias, deterministic=True)
        runs.append(torch.autograd.grad(o.square().sum(), (q, bias)))
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for run in runs for one, other in zip(run, runs[0]))


@pytest.mark.parametrize("error, message, bias", [
    (ValueError, r"bias has shape \[2, 4, 17\]; accepted: \[b, hq, sq, sk\]", torch.zeros(2, 4, 17)),
    (ValueError, r"bias has shape \[2, 3, 17, 29\]", torch.zeros(2, 3, 17, 29)),
    (ValueError, r"bias has shape \[2, 4, 16, 29\]", torch.zeros(2, 4, 16, 29)),
    (ValueError, r"bias has shape \[2, 4, 18, 29\]", torch.zeros(2, 4, 18, 29)),
    (TypeError, "bias is torch.bool", torch.zeros(2, 4, 17, 29, dtype=torch.bool)),
    (TypeError, "bias is torch.float64", torch.zeros(2, 4, 17, 29).double()),
    (TypeError, "bias is list", [0.0]), (TypeError, "bias is a nested or sparse tensor", torch.zeros(2, 4, 17, 29).to_sparse())])
def test_what_is_no_bias_is_refused(error, message, bias):
    with pytest.raises(error, match=message):
        dfa.attention(*inputs(), bias=bias)


def test_numpy():
    q, k, v = (x.detach() for x in inputs())
    for shape in SHAPES:
        bias = torch.randn(shape)
        right = written_out(q, k, v, bias)[0]
        for given in (bias.numpy(), bias.half().numpy()):
            o = dfa.attention(*(x.numpy() for x in (q, k, v)), bias=given)
            assert_same([torch.from_numpy(o)], [right], torch.float32 if given.dtype == numpy.float32 else torch.float16)
    arrays = [x.numpy() for x in (q, k, v)]
    for error, message, given in ((TypeError, "bias is of int64", numpy.zeros((1, 1, 17, 29), int)),
                                  (ValueError, r"bias has shape \[17, 29\]", numpy.zeros((17, 29), "f")),
                                  (TypeError, "masked array", numpy.ma.zeros((1, 1, 17, 29)))):
        with pytest.raises(error, match=message):
            dfa.attention(*arrays, bias=given)


@pytest.mark.parametrize("kind", ["added", "learned", "holes", "by head", "no batch", "half"])
def test_any_attn_mask_of_pytorch_on_a_processor(kind):
    q, k, v = inputs(hk=4)
    mask = {"added": torch.randn(2, 4, 17, 29), "learned": torch.randn(1, 4, 17, 29, requires_grad=True),
            "holes": torch.rand(2, 1, 17, 29) < 0.7, "by head": torch.rand(1, 4, 17, 29) < 0.7,
            "no batch": torch.randn(17, 29), "half": torch.randn(2, 1, 1, 29)}[kind]
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    got = dfa.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
    if kind == "learned":
        of_o = torch.randn_like(got)
        torch.testing.assert_close(torch.autograd.grad(got, mask, of_o), torch.autograd.grad(wanted, mask, of_o),
                                   atol=1e-5, rtol=1e-5)
    one = [x[0] for x in (q, k, v)]
    mask = mask[0] if mask.dim() == 4 else mask
    torch.testing.assert_close(dfa.torch.scaled_dot_product_attention(*one, attn_mask=mask),
                               torch.nn.functional.scaled_dot_product_attention(*one, attn_mask=mask), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dtype, least", [(torch.float32, torch.finfo(torch.float32).min), (torch.float32, -1e31), (torch.float16, -65504.0)])
def test_a_mask_whose_low_numbers_stand_for_all_keys_is_refused_still(dtype, least, learned):
    q, k, v = (x.to(dtype) for x in inputs(hk=4))
    mask = torch.zeros(17, 29, dtype=dtype)
    mask[3] = least
    mask.requires_grad_(learned)
    with pytest.raises(ValueError, match="attn_mask hides all keys of a query"):
        dfa.torch.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_a_bias_of_no_queries_has_a_gradient_of_zeros():
    q, k, v = inputs(sq=0)
    bias = torch.randn(1, 4, 1, 29, requires_grad=True)
    o = dfa.attention(q, k, v, bias=bias)
    assert o.shape == (2, 4, 0, 32) and (torch.autograd.grad(o.sum(), bias)[0] == 0).all()
