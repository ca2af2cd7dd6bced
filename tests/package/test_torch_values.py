"""What a call on PyTorch's tensors remembers, keeps and hands on must be what this call was given: cached options, layouts
of saved tensors, derivatives of lse, values inside compiled graphs."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402

sdpa = torch.nn.functional.scaled_dot_product_attention


def qkv(d=16, dv=16):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, 4, 9, width, generator=generator) for width in (d, d, dv)]


def close(got, wanted):
    return (got - wanted).abs().max() <= 2e-5 * (1 + wanted.abs().max())


def test_a_window_of_tensors_is_read_at_each_call():
    q, k, v = qkv()
    side = torch.tensor(1)
    dfa.attention(q, k, v, window=(side, side))
    side.fill_(4)
    assert torch.equal(dfa.attention(q, k, v, window=(side, side)), dfa.attention(q, k, v, window=(4, 4)))


@pytest.mark.parametrize("accepted, refused", [
    ({"window": (1, 4)}, {"window": (True, 4)}), ({"window": (2, 2)}, {"window": (2.0, 2)}), ({"scale": 1.0}, {"scale": True}),
    ({"causal": True}, {"causal": 1}), ({"deterministic": True}, {"deterministic": "no"})])
def test_what_equals_an_accepted_value_is_refused_also_after_it(accepted, refused):
    dfa.attention(*qkv(), **accepted)
    with pytest.raises((TypeError, ValueError), match="accepted"):
        dfa.attention(*qkv(), **refused)


@pytest.mark.parametrize("transform", [
    lambda f, q: torch.func.grad(f)(q), lambda f, q: torch.func.vjp(f, q)[1](torch.ones(())),
    lambda f, q: torch.func.jacrev(f)(q), lambda f, q: torch.vmap(torch.func.grad(f))(torch.stack([q, q]))])
def test_transforms_differentiate_lse(transform):
    q, k, v = qkv()
    got = transform(lambda q: dfa.attention(q, k, v, return_lse=True)[1].sum(), q)
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    wanted = transform(lambda q: (q @ keys.mT / q.shape[-1] ** 0.5).logsumexp(-1).sum(), q)
    for ours, right in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, wanted))):
        assert (ours - right).abs().max() <= 2e-5 * (1 + right.abs().max())


def test_transforms_differentiate_o_beside_lse():
    q, k, v = qkv()

    def loss(q):
        o, lse = dfa.attention(q, k, v, return_lse=True)
        return o.square().sum(), lse

    gradient, lse = torch.func.grad(loss, has_aux=True)(q)
    assert close(gradient, torch.func.grad(lambda q: sdpa(q, k, v).square().sum())(q))
    assert close(lse, (q @ k.mT / 4).logsumexp(3))


@pytest.mark.parametrize("kept", [
    lambda x: x.contiguous().clone(), lambda x: x.mT.contiguous().mT,
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    lambda x: x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 3 else x])
@pytest.mark.parametrize("turned", [False, True])
def test_saved_tensors_come_back_in_any_layout(kept, turned):
    args = [x.transpose(1, 2).contiguous().transpose(1, 2) if turned else x for x in qkv()]
    args = [x.requires_grad_() for x in args]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, kept):
        o = dfa.attention(*args)
    d_o = torch.linspace(-1, 1, o.numel()).view(o.shape)
    got, wanted = torch.autograd.grad(o, args, d_o), torch.autograd.grad(sdpa(*args), args, d_o)
    assert all(map(close, got, wanted))


def _with_gaps(x):
    return torch.stack([x, x], -1)[..., 0]


def _turned(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1) if x.dim() > 1 else x


@pytest.mark.parametrize("kept", [_with_gaps, _turned, lambda x: _turned(x) if x.is_floating_point() and x.dim() == 2 else x])
@pytest.mark.parametrize("options", [
    {"sinks": torch.linspace(-1, 1, 4)}, {"alibi_slopes": torch.linspace(0, 1, 8).view(2, 4)}, {"dropout_p": 0.25, "seed": 3},
    {"bias": torch.linspace(-3, 3, 648).view(2, 4, 9, 9)}, {"block_mask": None, "sinks": torch.linspace(-1, 1, 4)}])
def test_saved_tensors_of_variants_come_back_in_any_layout(kept, options):
    if "block_mask" in options:
        flex = pytest.importorskip("torch.nn.attention.flex_attention")
        options = options | {"block_mask": flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu", BLOCK_SIZE=16)}
    options = {name: x.clone().requires_grad_() if name in ("sinks", "bias") else x for name, x in options.items()}
    learned = [x.requires_grad_() for x in qkv()] + [options[name] for name in ("sinks", "bias") if name in options]

    def gradients(kept):
        with torch.autograd.graph.saved_tensors_hooks(kept, lambda x: x):
            o, lse = dfa.attention(*learned[:3], return_lse=True, **options)
        return torch.autograd.grad(o.square().sum() + lse.sin().sum(), learned)
    assert all(map(torch.equal, gradients(kept), gradients(lambda x: x)))


@pytest.mark.parametrize("strides", [(16, 144, 16, 1), (1, 200, 40, 1), (600, 16, 16, 1), (600, 4, 60, 1), (600, 100, 8, 1)])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_elements_that_lie_at_one_place_get_the_sum_of_their_gradients(strides, at, compiled):
    torch._dynamo.reset()  # a graph for each layout: more than it makes of one function
    ours = torch.compile(dfa.attention, backend="aot_eager", fullgraph=True) if compiled else dfa.attention

    def run(function):
        memory = torch.randn(2000, generator=torch.Generator().manual_seed(6)).requires_grad_()
        args = [x.requires_grad_() for x in qkv()]
        args[at] = memory.as_strided((2, 4, 9, 16), strides)
        o = function(*args)
        leaves = [memory if i == at else x for i, x in enumerate(args)]
        return o, *torch.autograd.grad((o * torch.linspace(-1, 1, o.numel()).view(o.shape)).sum(), leaves)

    # PyTorch's own kernel on the processor reads copies, too: of overlapping batches it makes other numbers.
    assert all(map(close, run(ours), run(lambda *args: sdpa(*(x.contiguous() for x in args)))))


def test_gradients_of_several_outputs_at_a_time():
    q, k, v = qkv()
    q.requires_grad_()
    d_o = torch.randn(3, *q.shape)
    got, = torch.autograd.grad(dfa.attention(q, k, v), q, d_o, is_grads_batched=True)
    assert close(got, torch.autograd.grad(sdpa(q, k, v), q, d_o, is_grads_batched=True)[0])


def test_a_gradient_of_zeros_without_memory():
    q, k, v = qkv()
    o = dfa.attention(q.requires_grad_(), k, v)
    assert not torch.autograd.grad(o, q, torch._efficientzerotensor(o.shape))[0].any()


@pytest.mark.parametrize("d, dv", [(0, 16), (16, 0), (0, 5)])
def test_no_columns(d, dv):
    q, k, v = (x.requires_grad_() for x in qkv(d, dv))
    o, lse = dfa.attention(q, k, v, causal=True, return_lse=True)
    scores = (q @ k.mT / max(d, 1) ** 0.5).masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), -torch.inf)
    assert close(lse, scores.logsumexp(3)) and o.shape == (2, 4, 9, dv)
    got = torch.autograd.grad(o.square().sum(), (q, k, v))
    wanted = torch.autograd.grad((scores.softmax(3) @ v).square().sum(), (q, k, v))
    assert all(x.shape == y.shape and (x.numel() == 0 or close(x, y)) for x, y in zip(got, wanted))


def test_a_compiled_graph_serves_all_values_of_a_scale():
    q, k, v = qkv()
    from torch._dynamo.testing import CompileCounterWithBackend
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda q, scale: dfa.attention(q, k, v, scale=scale), fullgraph=True, backend=graphs)
    for value in (0.3, 0.7, -1.1):
        assert close(compiled(q, torch.tensor(value)), sdpa(q, k, v, scale=value))
    assert graphs.frame_count == 1
    scale = torch.nn.Parameter(torch.tensor(0.4))
    got, = torch.autograd.grad(compiled(q, scale).square().sum(), scale)
    assert close(got, torch.autograd.grad(sdpa(q * scale, k, v, scale=1.0).square().sum(), scale)[0])


@pytest.mark.parametrize("policy", ["max_performance", dfa.Policy("max_performance")])
def test_a_policy_inside_a_compiled_graph(policy):
    q, k, v = qkv()
    compiled = torch.compile(lambda q: dfa.attention(q, k, v, policy=policy), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), dfa.attention(q, k, v, policy=policy))


def test_masked_tensors_are_refused_in_one_line():
    with pytest.raises(ValueError, match="q is a masked tensor; accepted") as raised:
        dfa.attention(*(torch.masked.masked_tensor(x, x > 0) for x in qkv()))
    assert "\n" not in str(raised.value)


def test_the_operators_read_no_further_than_their_tensors():
    q, k, v = qkv()
    o, lse = torch.ops.dfa.forward(q, k, v, -1, -1, 0.0, False, "auto")
    for name, d_o, o_given, lse_given in (("o", o, o[:, :, :1], lse), ("d_o", o[..., :8], o, lse), ("lse", o, o, lse[:, :1]),
                                          ("lse", o, o, lse.double()), ("o", o, o.half(), lse)):
        with pytest.raises(ValueError, match=f"dfa::backward: {name} has another"):
            torch.ops.dfa.backward(d_o, q, k, v, o_given, lse_given, -1, -1, 0.0, False, "auto")
    with pytest.raises(ValueError, match="multiples of 8.*dfa.attention takes others"):
        torch.ops.dfa.forward(q[..., :5], k[..., :5], v, -1, -1, 0.0, False, "auto")


def test_the_librarys_own_number_of_threads_goes_before_pytorchs():
    code = ("import torch, dfa; from dfa._torch_calls import prepare; torch.set_num_threads(2); "
            "x = torch.randn(1, 1, 8, 8); print(prepare((-1, -1, 0.0, False, 'auto'), 2, 'fwd', x, x, x)[0].threads)")
    result = subprocess.run([sys.executable, "-c", code], env={**os.environ, "DFA_THREADS": "1"}, check=True,
                            capture_output=True, text=True)
    assert result.stdout.split() == ["1"]
