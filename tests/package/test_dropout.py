"""Dropout of probabilities through every door, held against its definition with the mask that a door itself shows."""

import importlib

import numpy
import pytest

import dfa

torch = pytest.importorskip("torch")
from torch.utils.checkpoint import checkpoint  # noqa: E402

import dfa.flash_attn  # noqa: E402
import dfa.torch  # noqa: E402

SIZES = 2, 4, 2, 37, 70, 16  # b, hq, hk, sq, sk, d


def qkv(dtype=torch.float32, grad=False, seed=0):
    b, hq, hk, sq, sk, d = SIZES
    generator = torch.Generator().manual_seed(seed)
    shapes = (b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, d)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad) for shape in shapes]


def factors_of(seed, p):
    """Z [b, hq, sq, sk] by the definition of docs/design/0032-dropout.md, in NumPy."""
    b, hq, _, sq, sk, _ = SIZES
    heads, i, j = (x.astype("uint64") for x in numpy.ogrid[:b * hq, :sq, :sk])
    x = [j // 32 * 8 + j % 8 + 0 * i + 0 * heads, i // 16 * 8 + i % 8 + 0 * j + 0 * heads, heads + 0 * i + 0 * j,
         0 * (heads + i + j)]
    key, low = [seed & 0xffffffff, seed >> 32], numpy.uint64(0xffffffff)
    for _ in range(10):
        even, odd = x[0] * numpy.uint64(0xD2511F53), x[2] * numpy.uint64(0xCD9E8D57)
        x = [odd >> numpy.uint64(32) ^ x[1] ^ numpy.uint64(key[0]), odd & low,
             even >> numpy.uint64(32) ^ x[3] ^ numpy.uint64(key[1]), even & low]
        key = [(key[0] + 0x9E3779B9) % 2 ** 32, (key[1] + 0xBB67AE85) % 2 ** 32]
    of_eight = i // 8 % 2 * 4 + j // 8 % 4 + 0 * heads
    word = numpy.choose((of_eight // 2).astype(int), x)
    number = word >> of_eight % 2 * 16 & numpy.uint64(0xffff)
    kept = 65536 - round(p * 65536)
    return torch.from_numpy(numpy.where(number < kept, 65536 / kept, 0.0)).reshape(b, hq, sq, sk)


def defined(q, k, v, factors, causal=False, bias=None):
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(2, 3) / q.shape[3] ** 0.5 + (0 if bias is None else bias)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[2:], dtype=torch.bool).tril(s.shape[3] - s.shape[2]), -torch.inf)
    return (s.softmax(3) * factors) @ v


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", [7, 2 ** 64 - 3])
def test_values_and_gradients_are_those_of_the_definition(p, causal, seed):
    q, k, v = qkv(grad=True)
    o, lse = dfa.attention(q, k, v, causal=causal, dropout_p=p, seed=seed, return_lse=True)
    wanted = defined(q, k, v, factors_of(seed, p), causal)
    torch.testing.assert_close(o.double(), wanted, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse, dfa.attention(q, k, v, causal=causal, return_lse=True)[1])
    d_o = torch.randn(o.shape)
    for ours, theirs in zip(torch.autograd.grad(o, (q, k, v), d_o), torch.autograd.grad(wanted, (q, k, v), d_o.double())):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    array = dfa.attention(*(x.detach().numpy() for x in (q, k, v)), causal=causal, dropout_p=p, seed=seed)
    assert numpy.array_equal(array, o.detach().numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_element_types_of_16_bits(dtype):
    q, k, v = qkv(dtype)
    o = dfa.attention(q, k, v, dropout_p=0.3, seed=5)
    torch.testing.assert_close(o.double(), defined(q, k, v, factors_of(5, 0.3)), atol=2e-2, rtol=2e-2)


def test_pytorchs_generators_reproduce():
    q, k, v = qkv(grad=True)

    def run(**options):
        o = dfa.attention(q, k, v, dropout_p=0.3, **options)
        return o, torch.autograd.grad(o.sum(), q)[0]

    torch.manual_seed(4)
    first, second = run(), run()
    torch.manual_seed(4)
    again = run()
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]) and not torch.equal(first[0], second[0])
    own = [run(seed=torch.Generator().manual_seed(9)) for _ in range(2)]
    assert torch.equal(own[0][0], own[1][0]) and not torch.equal(own[0][0], first[0])
    state = run(seed=torch.tensor([7, 0]))
    assert torch.equal(state[0], run(seed=7)[0]) and not torch.equal(state[0], run(seed=torch.tensor([7, 4]))[0])


def test_of_nothing_is_none():
    q, k, v = qkv()
    before = torch.get_rng_state()
    assert torch.equal(dfa.attention(q, k, v, dropout_p=0.0), dfa.attention(q, k, v))
    assert torch.equal(dfa.attention(q, k, v, dropout_p=0, softcap=3.0), dfa.attention(q, k, v, softcap=3.0))
    assert torch.equal(before, torch.get_rng_state())


def test_packed_sequences_go_by_their_own_rows():
    b, hq, hk, sq, sk, d = SIZES
    q, k, v = qkv()
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    cu_q, cu_k = (torch.arange(b + 1, dtype=torch.int32) * s for s in (sq, sk))
    o = dfa.attention_varlen(*rows, cu_q, cu_k, dropout_p=0.3, seed=5)
    assert torch.equal(o.unflatten(0, (b, sq)).transpose(1, 2), dfa.attention(q, k, v, dropout_p=0.3, seed=5))
    one = dfa.attention_varlen(rows[0][sq:], rows[1][sk:], rows[2][sk:], cu_q[:2], cu_k[:2], dropout_p=0.3, seed=5)
    assert not torch.equal(one, o[sq:])  # of the first sequence's mask
    with pytest.raises(ValueError, match="beside block_table"):
        dfa.attention_varlen(rows[0], rows[1][None], rows[2][None], cu_q, block_table=torch.zeros(b, 1, dtype=torch.int32),
                             seqused_k=cu_k.diff(), dropout_p=0.3)


def test_torch_compile_draws_anew_and_differentiates():
    q, k, v = qkv(grad=True)
    compiled = torch.compile(lambda q, k, v: dfa.attention(q, k, v, dropout_p=0.3), fullgraph=True)
    one, two = compiled(q, k, v), compiled(q, k, v)
    assert not torch.equal(one, two)
    assert torch.autograd.grad(one.sum(), q)[0].abs().sum() > 0
    fixed = torch.compile(lambda q, k, v: dfa.attention(q, k, v, dropout_p=0.3, seed=torch.tensor([5, 0])), fullgraph=True)
    torch.testing.assert_close(fixed(q, k, v), dfa.attention(q, k, v, dropout_p=0.3, seed=5))


def test_checkpoints_draw_the_same_again():
    q, k, v = qkv(grad=True)

    def f(q):
        return dfa.attention(q, k, v, dropout_p=0.3).square().sum()

    torch.manual_seed(2)
    wanted = torch.autograd.grad(f(q), q)[0]
    torch.manual_seed(2)
    got = torch.autograd.grad(checkpoint(f, q, use_reentrant=False), q)[0]
    assert torch.equal(got, wanted)


MASKS = [{}, {"is_causal": True}, {"attn_mask": torch.rand(1, 1, 37, 70) > 0.3},
         {"attn_mask": torch.randn(2, 4, 37, 70)}, {"attn_mask": torch.ones(37, 70, dtype=torch.bool).tril(30)}]


@pytest.mark.parametrize("mask", MASKS)
def test_pytorchs_function(mask):
    """The mean of many draws is what nothing is dropped from, and the spread is not 0."""
    q, k, v = qkv()
    with dfa.torch.enable():
        whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **mask)
        draws = torch.stack([torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3, enable_gqa=True, **mask)
                             for _ in range(200)])
    error = draws.std(0) / 200 ** 0.5
    assert error.max() > 0
    assert ((draws.mean(0) - whole).abs() <= 6 * error + 1e-4).all()


def test_others_names():
    q, k, v = (x.transpose(1, 2) for x in qkv())
    torch.manual_seed(3)
    o = dfa.flash_attn.flash_attn_func(q, k, v, dropout_p=0.3)
    torch.manual_seed(3)
    wanted = dfa.attention(*(x.transpose(1, 2) for x in (q, k, v)), dropout_p=0.3).transpose(1, 2)
    assert torch.equal(o, wanted)
    layer = dfa.torch.MultiheadAttention(64, 4, dropout=0.3, batch_first=True)
    x = torch.randn(2, 9, 64)
    assert not torch.equal(layer(x, x, x)[0], layer(x, x, x)[0])
    assert torch.equal(layer.eval()(x, x, x)[0], layer(x, x, x)[0])


def test_bert_in_training():
    transformers = pytest.importorskip("transformers")
    importlib.import_module("dfa.transformers").register()
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=60,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.3, attn_implementation="dfa")
    model = transformers.BertModel(config)
    ids, seen = torch.randint(0, 60, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    seen[1, 9:] = 0

    def run():
        return model(ids, attention_mask=seen).last_hidden_state

    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    assert torch.equal(first, run()) and not torch.equal(first, second)
    first.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for name, x in model.named_parameters() if "query" in name)
    model.eval()
    assert torch.equal(run(), run())


@pytest.mark.parametrize("options, error, message", [
    ({"dropout_p": 1.0}, ValueError, "dropout_p 1.0; accepted: from 0 on and below 1"),
    ({"dropout_p": -0.1}, ValueError, "dropout_p -0.1; accepted"), ({"dropout_p": float("nan")}, ValueError, "dropout_p nan; accepted"),
    ({"dropout_p": "0.1"}, TypeError, "dropout_p '0.1'; accepted"), ({"dropout_p": True}, TypeError, "dropout_p True; accepted"),
    ({"seed": 3}, ValueError, "seed 3 beside dropout_p of 0"),
    ({"dropout_p": 0.1, "seed": -1}, ValueError, "seed -1; accepted"), ({"dropout_p": 0.1, "seed": 2 ** 64}, ValueError, "accepted: a whole"),
    ({"dropout_p": 0.1, "seed": 0.5}, ValueError, "seed 0.5; accepted"), ({"dropout_p": 0.1, "seed": True}, ValueError, "seed True; accepted"),
    ({"dropout_p": 0.1, "algorithm": "standard", "seed": 1}, ValueError, "dropout_p, mask, block_mask, chunk and prefix take algorithm auto"),
])
def test_what_is_refused_is_told_by_its_name(options, error, message):
    for arrays in (qkv(), [x.numpy() for x in qkv()]):
        with pytest.raises(error, match=message):
            dfa.attention(*arrays, **options)
    with pytest.raises(ValueError, match="seed is a tensor of torch.int64"):
        dfa.attention(*qkv(), dropout_p=0.1, seed=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="seed None; accepted"):
        dfa.attention(*(x.numpy() for x in qkv()), dropout_p=0.1)


def test_padded_rows_are_one_packed_call(monkeypatch):
    from dfa import _segments_packed
    calls = []
    packed = _segments_packed.attention_varlen
    monkeypatch.setattr(_segments_packed, "attention_varlen", lambda *given, **options: calls.append(options["dropout_p"]) or packed(*given, **options))
    q, k, v = torch.randn(3, 4, 2, 30, 32)
    seen = torch.arange(30) < torch.tensor([[30], [7], [19], [1]])
    v = v.masked_fill(~seen[:, None, :, None], torch.nan)
    with dfa.torch.enable():
        torch.manual_seed(1)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None], dropout_p=0.5)
    assert calls == [0.5] and torch.isfinite(o).all()
    lengths, rows = seen.sum(1), [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    begins = torch.arange(5, dtype=torch.int32) * 30
    torch.manual_seed(1)
    right = dfa.attention_varlen(*rows, begins, seqused_k=lengths.to(torch.int32), dropout_p=0.5)
    assert torch.equal(o.transpose(1, 2).flatten(0, 1), right)
