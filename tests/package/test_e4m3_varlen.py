"""dfa.attention_varlen of float8_e4m3fn with factors of each sequence, against float64 of what the numbers mean, a sequence at a time."""
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
from dfa.flash_attn import flash_attn_interface  # noqa: E402

E4M3 = torch.float8_e4m3fn
ROUNDED = 2.0 ** -8  # of o, which is bfloat16: probabilities are float32 on a processor
ROWS, KEYS = [33, 1, 0, 70, 5], [40, 17, 9, 70, 0]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def begins(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def drawn(hq=4, hk=2, d=64, dv=64, rows=ROWS, keys=KEYS):
    """q, k, v in 8 bits, packed, their factors [b, hk], each of its own, and the begins."""
    b = len(rows)
    tensors = [torch.randn(total, h, width).to(E4M3) for total, h, width in
               ((sum(rows), hq, d), (sum(keys), hk, d), (sum(keys), hk, dv))]
    factors = {f"{name}_descale": torch.rand(b, hk) + 0.5 for name in "qkv"}
    return tensors, factors, (begins(rows), begins(keys))


def meant(x, factors, group=1):
    """float64 [1, h, rows, width] of one sequence. factors: [hk]."""
    return (x.double() * factors.double().repeat_interleave(group)[None, :, None]).transpose(0, 1)[None]


def exact(tensors, factors, starts, causal=False, scale=None, used=None):
    """(o [total_q, hq, dv], lse [hq, total_q]) in float64, and zeros and -inf where a row sees no key."""
    q, k, v = tensors
    hq, hk = q.shape[1], k.shape[1]
    o = torch.zeros(q.shape[0], hq, v.shape[2], dtype=torch.float64)
    lse = torch.full((hq, q.shape[0]), -torch.inf, dtype=torch.float64)
    for i in range(starts[0].shape[0] - 1):
        (q0, q1), (k0, k1) = (cu[i:i + 2].tolist() for cu in starts)
        k1 = k1 if used is None else k0 + int(used[i])
        if q1 == q0 or k1 == k0:
            continue
        of_q = meant(q[q0:q1], factors["q_descale"][i], hq // hk)
        of_k, of_v = (meant(x[k0:k1], factors[name][i]).repeat_interleave(hq // hk, 1) for x, name in ((k, "k_descale"), (v, "v_descale")))
        s = of_q @ of_k.mT * (scale or q.shape[2] ** -0.5)
        if causal:
            s = s.masked_fill(~torch.ones(s.shape[2:], dtype=torch.bool).tril(k1 - k0 - (q1 - q0)), -torch.inf)
        lse[:, q0:q1] = s.logsumexp(3)[0]
        o[q0:q1] = (s - s.logsumexp(3, keepdim=True)).exp().nan_to_num(0).matmul(of_v)[0].transpose(0, 1)
    return o, lse


def holds(o, wanted):
    return o.dtype == torch.bfloat16 and ((o.double() - wanted).abs() <= ROUNDED * wanted.abs() + 1e-5 * wanted.abs().max()).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"hq": 3, "hk": 3, "d": 128, "dv": 40}, {"hq": 6, "hk": 1, "d": 20, "dv": 12}, {"d": 256, "dv": 256}])
def test_o_and_lse_are_those_of_what_the_numbers_mean(sizes, causal):
    tensors, factors, starts = drawn(**sizes)
    o, lse = dfa.attention_varlen(*tensors, *starts, max(ROWS), max(KEYS), **factors, causal=causal, return_lse=True)
    wanted, wanted_lse = exact(tensors, factors, starts, causal)
    assert holds(o, wanted)
    assert lse.dtype == torch.float32 and torch.allclose(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)
    assert torch.equal(dfa.attention_varlen(*tensors, *starts, **factors, causal=causal), o)


def test_a_sequence_is_that_of_the_dense_call():
    tensors, factors, starts = drawn(rows=[12, 30], keys=[12, 30])
    o = dfa.attention_varlen(*tensors, starts[0], causal=True, **factors)
    for i, (begin, end) in enumerate(((0, 12), (12, 42))):
        dense = (x[begin:end].transpose(0, 1)[None] for x in tensors)
        alone = dfa.attention(*dense, causal=True, **{name: x[i:i + 1] for name, x in factors.items()})
        assert torch.equal(alone[0].transpose(0, 1), o[begin:end])


def test_factors_are_numbers_one_for_all_or_none():
    tensors, factors, starts = drawn()
    some = {"q_descale": 0.5, "k_descale": factors["k_descale"][:, :1], "v_descale": factors["v_descale"][:1]}
    spread = {"q_descale": torch.full((5, 2), 0.5), "k_descale": factors["k_descale"][:, :1].expand(5, 2),
              "v_descale": factors["v_descale"][:1].expand(5, 2)}
    assert holds(dfa.attention_varlen(*tensors, *starts, **some), exact(tensors, spread, starts)[0])
    ones = {name: torch.ones(5, 2) for name in factors}
    assert holds(dfa.attention_varlen(*tensors, *starts), exact(tensors, ones, starts)[0])
    strided = {name: torch.stack((x, -x), 2)[..., 0] for name, x in factors.items()}
    assert torch.equal(dfa.attention_varlen(*tensors, *starts, **strided), dfa.attention_varlen(*tensors, *starts, **factors))


def test_options_of_other_types_hold_here_too():
    tensors, factors, starts = drawn()
    used = torch.tensor([20, 17, 0, 1, 0], dtype=torch.int32)
    o = dfa.attention_varlen(*tensors, *starts, seqused_k=used, scale=0.3, **factors)
    assert holds(o, exact(tensors, factors, starts, scale=0.3, used=used)[0])
    wide = {"q_descale": factors["q_descale"], "k_descale": factors["k_descale"], "v_descale": factors["v_descale"]}
    as_fp32 = [torch.cat([meant(x[a:e], wide[f"{name}_descale"][i], x.shape[1] // 2)[0].transpose(0, 1)
                          for i, (a, e) in enumerate(zip(cu[:-1].tolist(), cu[1:].tolist()))]).float()
               for x, name, cu in zip(tensors, "qkv", (starts[0], starts[1], starts[1]))]
    for options in ({"window": (5, 3)}, {"softcap": 2.0}, {"alibi_slopes": torch.rand(5, 4)}, {"sinks": torch.randn(4)},
                    {"chunk": 16, "causal": True}, {"prefix": 3, "causal": True}, {"num_splits": 1}, {"batch_invariant": True},
                    {"seqused_q": torch.tensor([3, 1, 0, 70, 0], dtype=torch.int32)}):
        o = dfa.attention_varlen(*tensors, *starts, **factors, **options)
        assert holds(o, dfa.attention_varlen(*as_fp32, *starts, **options).double()), options


def test_it_compiles_and_is_of_flash_attn_interface():
    tensors, factors, starts = drawn()
    o, lse = dfa.attention_varlen(*tensors, *starts, **factors, return_lse=True)
    named = flash_attn_interface.flash_attn_varlen_func(*tensors, *starts, max(ROWS), max(KEYS), return_attn_probs=True, **factors)
    assert all(map(torch.equal, named, (o, lse)))
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: dfa.attention_varlen(*x[:5], q_descale=x[5], k_descale=x[6], v_descale=x[7]), backend="aot_eager",
                             fullgraph=True)
    assert torch.equal(compiled(*tensors, *starts, *factors.values()), o)


def test_vmap_goes_by_turns():
    (q, k, v), factors, starts = drawn(rows=[4, 5], keys=[6, 3])
    more = torch.stack([q.view(torch.uint8), q.view(torch.uint8).flip(0)]).view(E4M3)
    mapped = torch.vmap(lambda x, f: dfa.attention_varlen(x, k, v, *starts, q_descale=f))(more, torch.stack([factors["q_descale"], torch.ones(2, 2)]))
    for turn, factor in ((0, factors["q_descale"]), (1, torch.ones(2, 2))):
        assert torch.equal(mapped[turn], dfa.attention_varlen(more[turn], k, v, *starts, q_descale=factor))


def test_counts_of_operations_see_the_operator_and_the_other_one_takes_no_e4m3():
    tensors, factors, starts = drawn()
    from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        dfa.attention_varlen(*tensors, *starts, **factors)
    assert counter.get_total_flops() == sum(4 * 4 * 64 * rows * keys for rows, keys in zip(ROWS, KEYS))
    with pytest.raises(KeyError):  # its o has q's type, which would be too small
        torch.ops.dfa.varlen_forward(*tensors, *starts, None, None, -1, -1, 0.125, False)


def test_what_has_no_rows_leaves_zeros():
    tensors, factors, starts = drawn(rows=[0, 0], keys=[3, 4])
    o, lse = dfa.attention_varlen(*tensors, *starts, **factors, return_lse=True)
    assert o.shape == (0, 4, 64) and o.dtype == torch.bfloat16 and lse.shape == (4, 0)
    tensors, factors, starts = drawn(rows=[2, 3], keys=[0, 0])
    sinks = torch.randn(4)
    for given, wanted in ((None, torch.full((4, 5), -torch.inf)), (sinks, sinks[:, None].expand(4, 5))):
        o, lse = dfa.attention_varlen(*tensors, *starts, **factors, sinks=given, return_lse=True)
        assert not o.any() and torch.equal(lse, wanted)


@pytest.mark.parametrize("learned", [0, 1, 2, "sinks"])
def test_the_backward_is_refused_not_the_forward(learned):
    tensors, factors, starts = drawn()
    named = {"sinks": torch.zeros(4, requires_grad=True)} if learned == "sinks" else {}
    if not named:
        tensors[learned] = tensors[learned].clone().requires_grad_()
    o, lse = dfa.attention_varlen(*tensors, *starts, return_lse=True, **factors, **named)
    with torch.no_grad():
        assert torch.equal(o, dfa.attention_varlen(*tensors, *starts, **factors, **named))
    for output in (o, lse):
        with pytest.raises(NotImplementedError, match="^the gradient of attention in float8_e4m3fn is not computed; accepted: "):
            output.float().sum().backward()


def test_what_it_does_not_take_is_refused_by_name():
    (q, k, v), factors, starts = drawn()
    def refused(match, *tensors, kind=ValueError, **options):
        with pytest.raises(kind, match=match):
            dfa.attention_varlen(*(tensors or (q, k, v)), *starts, **options)
    refused("bias is not supported beside packed tensors in float8_e4m3fn", bias=torch.zeros(1, 1, 1, 1))
    refused("seed is not supported", seed=3)
    refused("dropout_p is 0.5, which is not supported", dropout_p=0.5)
    refused("element types torch.bfloat16", q.bfloat16(), k, v, **factors)
    refused("element types torch.float8_e4m3fn, torch.bfloat16", q, k.bfloat16(), v, **factors)
    refused("element type torch.bfloat16 with q_descale, k_descale, v_descale or descale_rows", *(x.bfloat16() for x in (q, k, v)), k_descale=2.0)
    refused("3 are expected: rows of all sequences, heads, head dim", q[None], k, v)
    refused(r"q_descale has shape \[2, 2\]; accepted: \[b, hk\] .* here \[5, 2\]", q_descale=torch.ones(2, 2))
    refused("v_descale is .* accepted: a number or a float32 tensor", v_descale=torch.ones(5, 2, dtype=torch.int32), kind=TypeError)
    refused("k_descale requires a gradient", k_descale=torch.ones(5, 2, requires_grad=True))
    refused("q is list", [1], k, v, k_descale=1.0, kind=TypeError)
    refused("max_seqlen_q is 3, but a sequence has 70 rows", max_seqlen_q=3)
    refused("scale", scale=torch.tensor([1.0, 2.0]), kind=(ValueError, TypeError))
    refused("deterministic", deterministic="yes", kind=(ValueError, TypeError))
    refused("return_lse", return_lse=3, kind=(ValueError, TypeError))
    with pytest.raises(ValueError, match="cu_seqlens_q does not begin with 0, but with 1"):
        dfa.attention_varlen(q, k, v, starts[0] + 1, starts[1])
    with pytest.raises(ValueError, match="cu_seqlens_k has shape"):
        dfa.attention_varlen(q, k, v, starts[0], starts[1][:-1])
    table = torch.zeros(5, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="q_descale beside block_table is not supported"):
        dfa.attention_varlen(q, k[None], v[None], *starts, block_table=table, q_descale=1.0)
