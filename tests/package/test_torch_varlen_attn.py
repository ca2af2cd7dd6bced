"""torch.nn.attention.varlen's functions by dfa: their arguments, and what PyTorch's own kernels would give."""

import inspect
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("dfa")

from dfa.torch import varlen_attn, varlen_attn_out  # noqa: E402
from test_torch_varlen import LENGTHS, one_by_one, problem  # noqa: E402

theirs = pytest.importorskip("torch.nn.attention.varlen")  # from PyTorch 2.10 on
LSE = theirs.AuxRequest(lse=True)


def inputs(lens_q, lens_k, **options):
    tensors, cu = problem(lens_q, lens_k, "cpu", **options)
    return *tensors, *cu, max(lens_q), max(lens_k)


@pytest.mark.parametrize("name", ["varlen_attn", "varlen_attn_out"])
def test_the_installed_pytorchs_arguments_are_served_or_refused(name):
    if not hasattr(theirs, name):
        pytest.skip(f"this PyTorch has no {name}")
    known = inspect.signature(varlen_attn).parameters
    for parameter in inspect.signature(getattr(theirs, name)).parameters.values():
        if parameter.name != "out":
            assert parameter.name in known, parameter
            assert parameter.kind == known[parameter.name].kind and parameter.default == known[parameter.name].default


@pytest.mark.parametrize("lens_q, lens_k", LENGTHS)
@pytest.mark.parametrize("window, meant", [((-1, -1), {}), ((-1, 0), {"causal": True}), ((20, 5), {"window": (20, 5)})])
def test_windows_scales_and_lse(lens_q, lens_k, window, meant):
    q, k, v, *where = inputs(lens_q, lens_k, grad=True)
    o, lse = varlen_attn(q, k, v, *where, window_size=window, scale=0.3, enable_gqa=True, return_aux=LSE)
    wanted, right_lse = one_by_one((q, k, v), lens_q, lens_k, scale=0.3, **meant)
    torch.testing.assert_close(o.double(), wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-4, atol=1e-4)
    weights = torch.randn_like(o)
    got = torch.autograd.grad(varlen_attn(q, k, v, *where, window_size=window, scale=0.3, enable_gqa=True), (q, k, v), weights)
    for one, truth in zip(got, torch.autograd.grad(wanted, (q, k, v), weights.double())):
        torch.testing.assert_close(one, truth, rtol=2e-4, atol=2e-4)


def test_keys_that_count():
    lens_q, lens_k, used = [1, 1], [9, 6], [5, 6]
    q, k, v, *where = inputs(lens_q, lens_k, hk=4)
    o = varlen_attn(q, k, v, *where, window_size=(-1, 0), seqused_k=torch.tensor(used, dtype=torch.int32))
    kept = torch.cat([torch.arange(5), torch.arange(9, 15)])
    wanted, _ = one_by_one((q, k[kept], v[kept]), lens_q, used, causal=True)
    torch.testing.assert_close(o.double(), wanted, rtol=1e-4, atol=1e-4)


def test_an_output_that_is_there():
    q, k, v, *where = inputs([3, 5], [3, 5], hk=4)
    wanted, right_lse = varlen_attn(q, k, v, *where, return_aux=LSE)
    out = torch.full_like(q, torch.nan)
    o, lse = varlen_attn_out(out, q, k, v, *where, return_aux=LSE)
    assert o is out and torch.equal(out, wanted) and torch.equal(lse, right_lse)
    assert varlen_attn_out(out, q, k, v, *where, window_size=(-1, 0)) is out
    assert torch.equal(out, varlen_attn(q, k, v, *where, window_size=(-1, 0)))


def test_compiled():
    q, k, v, *where = inputs([3, 5], [3, 5], hk=4, grad=True)

    def call(q, k, v, cu_q, cu_k):
        return varlen_attn(q, k, v, cu_q, cu_k, 5, 5, window_size=(-1, 0), return_aux=LSE)
    for got, wanted in zip(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, *where[:2]),
                           call(q, k, v, *where[:2])):
        torch.testing.assert_close(got, wanted)


class More(NamedTuple):
    lse: bool = True
    max_scores: bool = True


@pytest.mark.parametrize("options, message", [
    ({"block_table": torch.zeros(2, 1, dtype=torch.int32)}, "seqused_k is None; accepted beside block_table"),
    ({"block_table": torch.zeros(2, 1, dtype=torch.int32), "seqused_k": torch.ones(2, dtype=torch.int32)}, "key has 3 dimensions; 4 are"),
    ({"num_splits": -1}, "num_splits -1; accepted"),
    ({"return_aux": True}, "return_aux is True; accepted: None"),
    ({"return_aux": More()}, "return_aux.max_scores is not supported"),
    ({"enable_gqa": 1}, "enable_gqa is 1; accepted: True or False"),
    ({"window_size": 3}, "window 3; accepted"),
    ({"window_size": (-2, 0)}, "-1 or more"),
    ({"scale": 0.0}, "scale"),
    ({"cu_seq_k": None}, "cu_seq_k is None"),
    ({"key": torch.zeros(8, 2, 64), "value": torch.zeros(8, 2, 64)}, "query has 4 heads, key 2; enable_gqa=True"),
    ({"key": torch.zeros(8, 3, 64), "value": torch.zeros(8, 3, 64), "enable_gqa": True}, "multiple"),
    ({"key": torch.zeros(2, 4, 4, 64)}, "key has 4 dimensions"),
    ({"query": [1.0]}, "query is list"),
    ({"max_q": 3}, "max_seqlen_q is 3, but a sequence has 5 rows"),
])
def test_what_is_refused_is_told_in_one_line(options, message):
    names = "query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        varlen_attn(**dict(zip(names, inputs([3, 5], [3, 5], hk=4))) | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("out, grad, message", [
    (torch.zeros(8, 4, 32), False, r"out is \[8, 4, 32\] of torch.float32 on cpu; expected is \[8, 4, 64\]"),
    (torch.zeros(8, 4, 64).half(), False, "out is .* of torch.float16"),
    (None, False, "out is NoneType"),
    (torch.zeros(8, 4, 64), True, "does not compute; accepted: varlen_attn"),
])
def test_outputs_that_cannot_be(out, grad, message):
    with pytest.raises(ValueError, match=message):
        varlen_attn_out(out, *inputs([3, 5], [3, 5], hk=4, grad=grad))
