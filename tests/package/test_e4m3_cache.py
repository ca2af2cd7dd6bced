"""Caches in float8_e4m3fn beside queries of 16 and 32 bits: against float64 of the numbers they mean, and what new rows become."""

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
from dfa.flash_attn import flash_attn_interface  # noqa: E402

E4M3 = torch.float8_e4m3fn
TABLE = torch.tensor([[4, 0, 7], [2, 6, -1], [1, 3, 5]], dtype=torch.int32)
USED = torch.tensor([40, 17, 33], dtype=torch.int32)


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def caches(hk=2, d=64, page=16):
    return [draw(8, page, hk, d, seed=seed).mul(40).to(E4M3) for seed in (2, 3)]


def kinds():
    return {"none": (None, None), "numbers": (0.02, 0.7), "tensors": (torch.tensor(0.02), torch.tensor(0.7)),
            "of heads": (torch.tensor([[0.02, 0.03]]), torch.tensor([[0.5, 2.0]])),
            "of sequences and heads": (draw(3, 2, seed=5).abs() / 40 + 0.005, draw(3, 2, seed=6).abs() + 0.1)}


def factor(descale, n):
    if descale is None:
        return torch.ones(2, dtype=torch.float64)
    return torch.as_tensor(descale).double().expand(3, 2)[n]


def right(q, k_cache, v_cache, k_descale, v_descale, n, used, causal):
    """Sequence n's o in float64, q [sq, hq, d]."""
    pages = TABLE[n].long().clamp(min=0)
    k, v = ((x[pages].flatten(0, 1)[:used].double() * factor(f, n)[:, None]).repeat_interleave(q.shape[1] // 2, 1)
            for x, f in ((k_cache, k_descale), (v_cache, v_descale)))
    s = torch.einsum("qhd,khd->hqk", q.double(), k) / q.shape[2] ** 0.5
    if causal:
        s.masked_fill_(~torch.ones(s.shape[1:], dtype=torch.bool).tril(s.shape[2] - s.shape[1]), -torch.inf)
    return torch.einsum("hqk,khd->qhd", s.softmax(-1), v)


def near(o, expected, dtype):
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    return (o.double() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", kinds())
def test_a_cache_means_its_numbers_times_factors(kind, dtype):
    k_cache, v_cache = caches()
    k_descale, v_descale = kinds()[kind]
    q = draw(3, 2, 4, 64).to(dtype)
    if kind == "none":
        q = q / 40
    o = flash_attn_interface.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=USED, page_table=TABLE, causal=True,
                                                     k_descale=k_descale, v_descale=v_descale)
    assert o.dtype == dtype
    for n in range(3):
        assert near(o[n], right(q[n], k_cache, v_cache, k_descale, v_descale, n, int(USED[n]), True), dtype), n
    begins = torch.arange(4, dtype=torch.int32) * 2
    packed = dfa.attention_varlen(q.flatten(0, 1), k_cache, v_cache, begins, seqused_k=USED, block_table=TABLE, causal=True,
                                  k_descale=k_descale, v_descale=v_descale)
    assert torch.equal(packed.view_as(o), o)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("paged", [True, False])
def test_new_rows_are_divided_and_rounded_as_they_are_written(paged, dtype):
    k_descale, v_descale = kinds()["of sequences and heads"]
    k_cache, v_cache = caches() if paged else [draw(3, 48, 2, 64, seed=seed).mul(40).to(E4M3) for seed in (2, 3)]
    before = [x.clone() for x in (k_cache, v_cache)]
    k, v = draw(3, 2, 2, 64, seed=8).to(dtype), draw(3, 2, 2, 64, seed=9).to(dtype)
    k[0, 0, 0, 0] = 1e4  # more than 448 of its factor
    q, used = draw(3, 2, 4, 64).to(dtype), torch.tensor([30, 15, 0], dtype=torch.int32)
    options = {"page_table": TABLE} if paged else {}
    o = flash_attn_interface.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=used, causal=True, k_descale=k_descale,
                                                     v_descale=v_descale, **options)
    changed = 0
    for n in range(3):
        for i in range(2):
            row = int(used[n]) + i
            at = (int(TABLE[n, row // 16]), row % 16) if paged else (n, row)
            for cache, x, descale, old in ((k_cache, k, k_descale, before[0]), (v_cache, v, v_descale, before[1])):
                expected = (x[n, i].float() / descale[n][:, None]).clamp(-448, 448).to(E4M3)
                assert torch.equal(cache[at].view(torch.uint8), expected.view(torch.uint8))
                old[at] = expected
                changed += 1
    assert changed == 12 and all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip((k_cache, v_cache), before))
    if paged:
        for n in range(3):
            assert near(o[n], right(q[n], k_cache, v_cache, k_descale, v_descale, n, int(used[n]) + 2, True), dtype)


def test_head_dims_that_are_padded():
    k_cache, v_cache = caches(d=20)
    q = draw(3, 1, 4, 20)
    o = flash_attn_interface.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=USED, page_table=TABLE, k_descale=0.02)
    assert o.shape == q.shape
    for n in range(3):
        assert near(o[n], right(q[n], k_cache, v_cache, 0.02, None, n, int(USED[n]), False), torch.float32)


def test_what_is_behind_a_sequence_is_not_read():
    k_cache, v_cache = caches()
    for cache in (k_cache, v_cache):
        cache[0, 8:] = cache[2, :0].new_zeros(()).fill_(float("nan"))
    used = torch.tensor([24, 17, 33], dtype=torch.int32)
    o = flash_attn_interface.flash_attn_with_kvcache(draw(3, 1, 4, 64), k_cache, v_cache, cache_seqlens=used, page_table=TABLE)
    assert o.isfinite().all()


@pytest.mark.parametrize("change, message", [
    (lambda a: a.update(k_cache=a["k_cache"].bfloat16(), k_descale=None), "element types"),
    (lambda a: a.update(k_cache=a["k_cache"].float(), v_cache=a["v_cache"].float()), "k_descale beside k and v of torch.float32; accepted"),
    (lambda a: a.update(k_descale=torch.ones(4, 2)), "k_descale has shape"),
    (lambda a: a.update(k_descale="1"), "k_descale is"),
    (lambda a: a.update(q_descale=1.0), "q_descale is not supported"),
    (lambda a: a.update(q=a["q"].to(E4M3)), "q has element type torch.float8_e4m3fn; accepted beside a cache"),
    (lambda a: a.update(q=a["q"].double()), "q has element type torch.float64; accepted beside a cache"),
    (lambda a: a.update(k=a["q"][:, :, :2].to(E4M3), v=a["q"][:, :, :2]), "k is .* expected"),
    (lambda a: a.update(v_descale=torch.ones(1, 2, requires_grad=True)), "v_descale requires a gradient"),
])
def test_what_is_refused_is_told_in_one_line(change, message):
    k_cache, v_cache = caches()
    arguments = {"q": draw(3, 1, 4, 64), "k_cache": k_cache, "v_cache": v_cache, "cache_seqlens": USED, "page_table": TABLE, "k_descale": 0.1}
    change(arguments)
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        flash_attn_interface.flash_attn_with_kvcache(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("none", [0.0, 1e-45, -0.0])
@pytest.mark.parametrize("causal", [False, True])
def test_a_factor_of_nothing_makes_all_keys_weigh_alike(none, causal):
    k, v = caches()
    q, cu = draw(6, 4, 64, seed=4), torch.tensor([0, 2, 4, 6], dtype=torch.int32)
    o, lse = dfa.attention_varlen(q, k, v, cu, seqused_k=USED, block_table=TABLE, k_descale=none, causal=causal, return_lse=True)
    for n in range(3):
        expected = right(q[cu[n]:cu[n + 1]], k, v, none, None, n, int(USED[n]), causal)
        assert near(o[cu[n]:cu[n + 1]], expected, torch.float32)
    assert lse.isfinite().all()


@pytest.mark.parametrize("change, message", [
    ({"page_table": torch.tensor([[-1, 1, 2]], dtype=torch.int32)}, "page_table names page -1 in column 0 of sequence 0"),
    ({"page_table": torch.tensor([[1, 8, 2]], dtype=torch.int32)}, "page_table names page 8 in column 1"),
    ({"cache_seqlens": torch.tensor([48], dtype=torch.int32)}, "row 48 of sequence 0"),
    ({"k_descale": 0.0}, "k_descale has a factor of 0"), ({"v_descale": torch.tensor([[1.0, torch.inf]])}, "v_descale has a factor of 0, NaN"),
    ({"k_descale": 1e39}, "k_descale is 1e\\+39; accepted: a finite number"), ({"window_size": (4,)}, "window"),
])
def test_what_is_refused_has_written_nothing(change, message):
    k_cache, v_cache = caches()
    kept = [x.clone().view(torch.uint8) for x in (k_cache, v_cache)]
    new = torch.ones(1, 1, 2, 64)
    options = {"cache_seqlens": torch.tensor([20], dtype=torch.int32), "page_table": torch.tensor([[3, 1, 2]], dtype=torch.int32)}
    with pytest.raises(ValueError, match=message):
        flash_attn_interface.flash_attn_with_kvcache(torch.ones(1, 1, 4, 64), k_cache, v_cache, new, new, **(options | change))
    assert all((x.view(torch.uint8) == y).all() for x, y in zip((k_cache, v_cache), kept))


def test_pages_that_a_window_has_left_behind_may_be_gone():
    k_cache, v_cache = caches()
    new, table = torch.ones(1, 1, 2, 64), torch.tensor([[-1, 1, 2]], dtype=torch.int32)
    options = {"cache_seqlens": torch.tensor([36], dtype=torch.int32), "causal": True}
    def call(table, *caches):
        return flash_attn_interface.flash_attn_with_kvcache(torch.ones(1, 1, 4, 64), *caches, new, new, page_table=table, window_size=(10, 0), **options)
    whole = call(torch.tensor([[0, 1, 2]], dtype=torch.int32), *(x.clone() for x in (k_cache, v_cache)))
    assert torch.equal(call(table, k_cache, v_cache), whole)


def test_factors_go_with_e4m3_alone():
    begins = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match="element type torch.float32 with q_descale, k_descale"):
        dfa.attention_varlen(draw(3, 4, 64), draw(3, 2, 64), draw(3, 2, 64), begins, k_descale=1.0)


def test_compiled_calls_take_it():
    k_cache, v_cache = caches()
    q, begins = draw(3, 4, 64), torch.arange(4, dtype=torch.int32)

    def call(q):
        return dfa.attention_varlen(q, k_cache, v_cache, begins, seqused_k=USED, block_table=TABLE, k_descale=0.02)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q))
