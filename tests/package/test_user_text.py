"""mask_mod and score_mod, texts of one C++ expression, against what they mean, written out."""

import numpy
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402

TEXTS = [
    ("causal", {"mask_mod": "kv_idx <= q_idx + sk - sq"}, lambda at: at["k"] <= at["q"] + 50 - 30, None),
    ("of heads and batches", {"mask_mod": "(kv_idx + 3 * h + b) % 5 != 0 && kv_idx / 16 <= q_idx / 8"},
     lambda at: ((at["k"] + 3 * at["h"] + at["b"]) % 5 != 0) & (at["k"] // 16 <= at["q"] // 8), None),
    ("alibi", {"score_mod": "score - 0.1f * abs(q_idx - kv_idx)"}, None, lambda s, at: s - 0.1 * (at["q"] - at["k"]).abs()),
    ("softcap", {"score_mod": "2.0f * tanh(score / 2.0f) + 0.25f * h"}, None, lambda s, at: 2 * torch.tanh(s / 2) + 0.25 * at["h"]),
    ("pieces", {"score_mod": "score > 0 ? 1.5f * score : min(0.25f * score, exp(score))"}, None,
     lambda s, at: torch.where(s > 0, 1.5 * s, torch.minimum(0.25 * s, torch.exp(s)))),
    ("both", {"mask_mod": "q_idx % 4 != 3", "score_mod": "kv_idx % 3 == 0 ? -INFINITY : score * score"},
     lambda at: (at["q"] % 4 != 3) & (at["k"] >= 0), lambda s, at: torch.where(at["k"] % 3 == 0, -torch.inf, s * s)),
]
NAMES = [text[0] for text in TEXTS]
OF_ALL = {"mask_mod": "(kv_idx + 3 * h + b) % 5 != 0 || kv_idx <= q_idx + sk - sq", "score_mod": "score * (1 + 0.25f * h) - 0.1f * abs(q_idx - kv_idx)"}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def written_out(q, k, v, sees, becomes, causal=False):
    """(o, lse)"""
    b, hq, sq, d = q.shape
    sk = k.shape[2]
    k, v = (x.repeat_interleave(hq // x.shape[1], 1) for x in (k, v))
    grids = torch.meshgrid(*map(torch.arange, (b, hq, sq, sk)), indexing="ij")
    at = dict(zip("bhqk", grids))
    logits = (q @ k.transpose(2, 3)) * d ** -0.5
    if becomes:
        logits = becomes(logits, at)
    if sees:
        logits = logits.masked_fill(~sees(at), -torch.inf)
    if causal:
        logits = logits.masked_fill(at["k"] > at["q"] + sk - sq, -torch.inf)
    most = logits.detach().amax(3, keepdim=True)
    weights = torch.exp(logits - torch.where(most.isneginf(), 0, most))
    total = weights.sum(3)
    seen = total > 0
    whole = torch.where(seen, total, 1)
    return weights / whole[..., None] @ v, torch.where(seen, most[..., 0] + torch.log(whole), -torch.inf)


def tensors(*sizes, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_(grad) for size in sizes]


def tensors_of(b, sq, sk):
    return tensors((b, 4, sq, 16), (b, 2, sk, 16), (b, 2, sk, 24), grad=False)


def qkv(grad=True):
    return tensors((2, 4, 30, 16), (2, 2, 50, 16), (2, 2, 50, 24), grad=grad)


@pytest.mark.parametrize("_, options, sees, becomes", TEXTS, ids=NAMES)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_written_out(_, options, sees, becomes, causal):
    q, k, v = qkv()
    g, g_lse = tensors((2, 4, 30, 24), (2, 4, 30), grad=False)
    came, wanted = [], []
    for results, (o, lse) in ((came, dfa.attention(q, k, v, causal=causal, return_lse=True, **options)),
                              (wanted, written_out(q, k, v, sees, becomes, causal))):
        seen = torch.where(lse.isneginf(), 0, lse)
        results += [o, lse, *torch.autograd.grad((o * g).sum() + (seen * g_lse).sum(), (q, k, v))]
    for a, b in zip(came, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("_, options, sees, becomes", TEXTS, ids=NAMES)
def test_numpy(_, options, sees, becomes):
    q, k, v = (x.numpy() for x in qkv(grad=False))
    o, lse = dfa.attention(q, k, v, return_lse=True, **options)
    wanted = written_out(*map(torch.from_numpy, (q, k, v)), sees, becomes)
    numpy.testing.assert_allclose(o, wanted[0], atol=5e-6)
    numpy.testing.assert_allclose(lse, wanted[1], atol=5e-6)


def test_flex_attention_says_the_same():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q, k, v = tensors((2, 4, 40, 16), (2, 4, 56, 16), (2, 4, 56, 16), grad=False)  # it has no backward on a processor
    block_mask = create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + 8 * h + b, 2, 4, 40, 56, device="cpu")
    wanted = flex_attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score * (1 + 0.5 * h) - 0.01 * q_idx,
                            block_mask=block_mask)
    o = dfa.attention(q, k, v, mask_mod="kv_idx <= q_idx + 8 * h + b", score_mod="score * (1 + 0.5f * h) - 0.01f * q_idx")
    torch.testing.assert_close(o, wanted, rtol=1e-5, atol=5e-6)


def test_packed_sequences_are_the_sequences_alone():
    lengths = [5, 0, 17, 1]
    begins = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    q, k, v = tensors((23, 4, 16), (23, 2, 16), (23, 2, 16), grad=False)
    text = {"mask_mod": "kv_idx <= q_idx", "score_mod": "score * (1 + 0.5f * b) - 0.1f * (sk - kv_idx)"}
    o = dfa.attention_varlen(q, k, v, begins, **text)
    for i, (begin, end) in enumerate(zip(begins[:-1], begins[1:])):
        if begin == end:
            continue
        one = [x[begin:end].transpose(0, 1)[None] for x in (q, k, v)]
        alone = dfa.attention(*one, mask_mod="kv_idx <= q_idx", score_mod=f"score * (1 + 0.5f * {i}) - 0.1f * (sk - kv_idx)")
        torch.testing.assert_close(o[begin:end], alone[0].transpose(0, 1), rtol=1e-5, atol=5e-6)


def test_a_call_made_again_with_another_text_is_another_call():
    q, k, v = qkv(grad=False)
    first = dfa.attention(q, k, v, score_mod="score")
    other = dfa.attention(q, k, v, score_mod="2 * score")
    torch.testing.assert_close(first, dfa.attention(q, k, v))
    torch.testing.assert_close(other, dfa.attention(q, k, v, scale=2 * 16 ** -0.5), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    q, k, v = (x.to(dtype) for x in qkv(grad=False))
    o = dfa.attention(q, k, v, mask_mod="kv_idx % 2 == 0", score_mod="score - 0.1f * h")
    wanted, _ = written_out(*(x.float() for x in (q, k, v)), lambda at: at["k"] % 2 == 0, lambda s, at: s - 0.1 * at["h"])
    torch.testing.assert_close(o.float(), wanted, rtol=2e-2, atol=2e-2)


def gradients(call, tensors):
    return torch.autograd.grad(call(*tensors).square().sum(), tensors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile(backend, device):
    tensors = [x.detach().to(device).requires_grad_() for x in qkv()]

    def call(q, k, v):
        return dfa.attention(2 * q, k, v, **OF_ALL)
    for a, b in zip(gradients(torch.compile(call, backend=backend, fullgraph=True), tensors), gradients(call, tensors)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_serves_all_lengths_and_one_text(device):
    from torch._dynamo.testing import CompileCounterWithBackend
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda q, k, v, text: dfa.attention(q, k, v, **text), backend=counter, fullgraph=True, dynamic=True)

    def held(b, sq, sk, text):
        tensors = [x.to(device).requires_grad_() for x in tensors_of(b, sq, sk)]
        # Eager first: what dfa.attention keeps of the first types that it meets is a guard, which makes another graph once.
        for a, b in zip(*(gradients(lambda *x: call(*x), tensors)
                          for call in (lambda *x: dfa.attention(*x, **text), lambda *x: compiled(*x, text)))):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        return counter.frame_count
    graphs = held(3, 30, 50, OF_ALL)
    assert held(5, 17, 64, OF_ALL) == held(7, 90, 41, OF_ALL) == graphs
    assert held(3, 30, 50, {"score_mod": "2 * score"}) > graphs


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return dfa.attention(q, k, v, **OF_ALL)
    sq, sk = torch.export.Dim("sq", min=2, max=4096), torch.export.Dim("sk", min=2, max=4096)
    exported = torch.export.export(Model(), tuple(tensors_of(3, 30, 50)), dynamic_shapes=({2: sq}, {2: sk}, {2: sk}))
    others = tensors_of(3, 11, 70)
    torch.testing.assert_close(exported.module()(*others), dfa.attention(*others, **OF_ALL))


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        q, k, v = (torch.empty(size, requires_grad=True) for size in ((2, 4, 30, 16), (2, 2, 50, 16), (2, 2, 50, 24)))
        o, lse = dfa.attention(q, k, v, return_lse=True, **OF_ALL)
        assert (o.shape, lse.shape) == ((2, 4, 30, 24), (2, 4, 30))
        assert [x.shape for x in torch.autograd.grad(o.sum() + lse.sum(), (q, k, v))] == [q.shape, k.shape, v.shape]
        with pytest.raises(ValueError, match="mask_mod: column 10: expected a value at the end"):
            dfa.attention(q, k, v, mask_mod="kv_idx <=")


def test_the_operators():
    q, k, v = (x.detach().transpose(1, 2).flatten(0, 1).requires_grad_() for x in qkv())
    lengths = torch.tensor([0, 30, 60], dtype=torch.int32), torch.tensor([0, 50, 100], dtype=torch.int32), None, None
    options = *lengths, -1, 0, 0.0, True, None, None, 0.0, None, 0, 0, None, 0.0, *OF_ALL.values()
    torch.library.opcheck(torch.ops.dfa.varlen_forward, (q, k, v, *options))
    o, lse = torch.ops.dfa.varlen_forward(q, k, v, *options)
    given = [x.detach() for x in (o, q, k, v, o, lse)]
    torch.library.opcheck(torch.ops.dfa.varlen_backward, (*given, *options),
                          test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"))


@pytest.mark.parametrize("options, words", [({"mask_mod": "kv_idx <="}, "mask_mod: column 10: expected a value at the end"),
                                            ({"score_mod": lambda score, b, h, q, k: score}, "score_mod is <function"),
                                            ({"mask_mod": "true", "block_mask": object()}, "block_mask|disable")])
def test_what_cannot_be_compiled_says_so(options, words):
    compiled = torch.compile(lambda q, k, v: dfa.attention(q, k, v, **options), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=words):
        compiled(*qkv(grad=False))


def test_torch_vmap():
    stacked = [torch.stack([x, x + 1, 2 * x]) for x in qkv(grad=False)]
    alone = torch.stack([dfa.attention(*x, **OF_ALL) for x in zip(*stacked)])
    torch.testing.assert_close(torch.vmap(lambda q, k, v: dfa.attention(q, k, v, **OF_ALL))(*stacked), alone)


def test_torch_func():
    q, k, v = qkv(grad=False)
    by_text = torch.func.grad(lambda q: dfa.attention(q, k, v, mask_mod="kv_idx <= q_idx + sk - sq").square().sum())(q)
    torch.testing.assert_close(by_text, torch.func.grad(lambda q: dfa.attention(q, k, v, causal=True).square().sum())(q))


@pytest.mark.parametrize("options, error, words", [
    ({"mask_mod": "kv_idx <= "}, ValueError, "mask_mod: column 11: expected a value at the end"),
    ({"score_mod": "score + * 2"}, ValueError, "score_mod: column 9: expected a value before '*'"),
    ({"mask_mod": lambda b, h, q, k: k <= q}, TypeError, "mask_mod is <function"),
    ({"score_mod": 3}, TypeError, "score_mod is 3; accepted: a text of one C.. expression, or None"),
    ({"mask_mod": ""}, ValueError, "mask_mod is empty"),
    ({"mask_mod": "true", "algorithm": "standard"}, ValueError, "chunk and prefix take algorithm auto"),
])
def test_what_is_wrong_is_one_line(options, error, words):
    with pytest.raises(error, match=words) as raised:
        dfa.attention(*qkv(grad=False), **options)
    assert "\n" not in str(raised.value)


def test_who_takes_no_text_says_so():
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in qkv(grad=False))
    begins = torch.tensor([0, 30, 60], dtype=torch.int32)
    with pytest.raises(ValueError, match="beside block_table are not supported"):
        dfa.attention_varlen(q, k[None], v[None], begins, block_table=torch.zeros(2, 1, dtype=torch.int32), mask_mod="true")
    q, k, v = (x.to(torch.float8_e4m3fn) for x in qkv(grad=False))
    with pytest.raises(ValueError, match="mask_mod is not supported beside tensors in float8_e4m3fn"):
        dfa.attention(q, k, v, mask_mod="true")


def test_a_plan_shows_the_texts():
    plan = dfa.plan("fwd fp32 h2 s8 d64 mask_mod(kv_idx <= (q_idx))", backend="cpu")
    assert plan.problem.endswith("mask_mod(kv_idx<=q_idx)")
