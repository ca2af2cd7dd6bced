"""Caches of keys and values: dfa.attention_varlen with block_table, and flash_attn_with_kvcache of FlashAttention-2 and -3,
against the definition in float64. What is of no sequence is NaN: nobody may read it as a number."""

import math

import pytest

torch = pytest.importorskip("torch")
import torch._dynamo.testing  # noqa: E402
import torch.utils.flop_counter  # noqa: E402

dfa = pytest.importorskip("dfa")

import dfa.torch  # noqa: E402
from dfa import flash_attn  # noqa: E402
from dfa.flash_attn import cute, flash_attn_interface  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
         torch.float16: {"rtol": 4e-3, "atol": 4e-3}}


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def alone(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0.0, slopes=None, sinks=None):
    """(o, lse) of one sequence: q [n, hq, d], k [m, hk, d], v [m, hk, dv]."""
    q, k, v = (x.double() for x in (q, k, v))
    (n, hq, d), m = q.shape, k.shape[0]
    k, v = (x.repeat_interleave(hq // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("qhd,khd->hqk", q, k) * (scale or 1 / math.sqrt(d))
    s = softcap * torch.tanh(s / softcap) if softcap else s
    distance = torch.arange(m, device=q.device) - (torch.arange(n, device=q.device)[:, None] + m - n)
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * distance.abs()
    left, right = window[0], 0 if causal else window[1]
    hidden = (distance > right if right >= 0 else distance != distance) | (distance < -left if left >= 0 else distance != distance)
    s = s.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        s = torch.cat((s, sinks.double()[:, None, None].expand(-1, n, 1)), 2)
    if s.shape[2] == 0:
        return torch.zeros(n, hq, v.shape[2], dtype=torch.float64, device=q.device), s.new_full((hq, n), -torch.inf)
    p = s.softmax(-1).nan_to_num(0)[..., :m]
    return torch.einsum("hqk,khd->qhd", p, v), s.logsumexp(-1)


class Pages:
    """A cache with room for `room` rows of each sequence, in pages that lie in no order; the first `shared` are all
    sequences'. Rows that are of none are NaN."""

    def __init__(self, lengths, page, hk=2, d=64, dv=None, dtype=torch.float32, room=0, shared=0, seed=0, device="cpu"):
        generator = torch.Generator().manual_seed(seed)
        b, columns = len(lengths), max(1, -(-(max(lengths) + room) // page))
        pages = b * columns + 3
        order = torch.randperm(pages, generator=generator)
        self.page, self.lengths, self.seqused = page, lengths, int32(lengths)
        self.k = torch.full((pages, page, hk, d), torch.nan, dtype=dtype)
        self.v = torch.full((pages, page, hk, dv or d), torch.nan, dtype=dtype)
        self.table = order[:b * columns].view(b, columns).to(torch.int32)
        for i, n in enumerate(lengths):
            whole = min(shared, n // page, lengths[0] // page)
            self.table[i, :whole] = self.table[0, :whole]
            self.table[i, -(-(n + room) // page):] = -1
            for j in range(n):
                where = self.table[i, j // page], j % page
                self.k[where] = torch.randn(hk, d, generator=generator).to(dtype)
                self.v[where] = torch.randn(hk, dv or d, generator=generator).to(dtype)
        self.k, self.v, self.table, self.seqused = (x.to(device) for x in (self.k, self.v, self.table, self.seqused))

    def rows(self, i, n=None):
        """k and v of sequence i, as they lie one after the other."""
        at = torch.arange(self.lengths[i] if n is None else n, device=self.k.device)
        where = self.table[i][at // self.page].long(), at % self.page
        return self.k[where], self.v[where]


def queries(*shape, dtype=torch.float32, device="cpu", seed=9):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def begins(lengths, device="cpu"):
    return int32([0, *lengths], device).cumsum(0).to(torch.int32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 7, 16, 64, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": (20, 3)}, {"causal": True, "scale": -0.3}])
def test_packed_queries_of_paged_keys(device, page, dtype, options):
    lens_q, lens_k = [5, 1, 0, 17, 2, 1], [100, 0, 9, page, page + 1, max(1, page - 1)]
    cache = Pages(lens_k, page, dtype=dtype, shared=1, device=device)
    q = queries(sum(lens_q), 4, 64, dtype=dtype, device=device)
    o, lse = dfa.attention_varlen(q, cache.k, cache.v, begins(lens_q, device), seqused_k=cache.seqused, block_table=cache.table,
                                  return_lse=True, **options)
    for i, (rows, row_lse) in enumerate(zip(o.split(lens_q), lse.split(lens_q, 1))):
        right, right_lse = alone(q.split(lens_q)[i], *cache.rows(i), **options)
        torch.testing.assert_close(rows.double(), right, **CLOSE[dtype])
        torch.testing.assert_close(row_lse.double(), right_lse, rtol=1e-3, atol=1e-3)
    by_begins = dfa.attention_varlen(q, cache.k, cache.v, begins(lens_q, device), begins(lens_k, device), 17, 256 * 256,
                                     block_table=cache.table, **options)
    assert torch.equal(by_begins, o) if device == "cpu" else torch.allclose(by_begins, o, atol=2e-2)  # a GPU's kernel may be another


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (8, 1)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": (200, 0)}, {"softcap": 2.0, "sinks": 1}])
def test_few_queries_of_many_keys(device, heads, options):
    lens_q, lens_k, dtype = [1, 2, 0, 1, 1], [3000, 9, 5, 0, 700], torch.bfloat16
    cache = Pages(lens_k, 16, hk=heads[1], dtype=dtype, device=device)
    q = queries(sum(lens_q), heads[0], 64, dtype=dtype, device=device)
    options = {**options, **({"sinks": torch.randn(heads[0], device=device)} if "sinks" in options else {})}
    o, lse = dfa.attention_varlen(q, cache.k, cache.v, begins(lens_q, device), None, 2, 3000, seqused_k=cache.seqused,
                                  block_table=cache.table, return_lse=True, **options)
    for i, (rows, row_lse) in enumerate(zip(o.split(lens_q), lse.split(lens_q, 1))):
        right, right_lse = alone(q.split(lens_q)[i], *cache.rows(i), **options)
        torch.testing.assert_close(rows.double(), right, **CLOSE[dtype])
        torch.testing.assert_close(row_lse.double(), right_lse, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("d, dv", [(128, 128), (40, 72), (20, 12)])
def test_logits_and_head_dims(device, d, dv):
    cache, lens_q = Pages([100, 33], 16, d=d, dv=dv, device=device), [4, 2]
    q, slopes, sinks = queries(6, 4, d, device=device), torch.rand(2, 4, device=device), torch.randn(4, device=device)
    o = dfa.attention_varlen(q, cache.k, cache.v, begins(lens_q, device), seqused_k=cache.seqused, block_table=cache.table, causal=True,
                             softcap=3.0, alibi_slopes=slopes, sinks=sinks)
    for i, rows in enumerate(o.split(lens_q)):
        right, _ = alone(q.split(lens_q)[i], *cache.rows(i), causal=True, softcap=3.0, slopes=slopes[i], sinks=sinks)
        torch.testing.assert_close(rows.double(), right, **CLOSE[torch.float32])


def test_a_half_of_a_cache_is_read_as_it_lies():
    cache = Pages([70, 33], 16)
    both = torch.stack((cache.k, cache.v))  # [2, pages, page, hk, d], as vLLM has it
    heads_first = both.transpose(2, 3).contiguous().transpose(2, 3)
    q = queries(2, 4, 64)
    wanted = dfa.attention_varlen(q, cache.k, cache.v, begins([1, 1]), seqused_k=cache.seqused, block_table=cache.table)
    for kv in (both, heads_first):
        o = dfa.attention_varlen(q, *kv, begins([1, 1]), seqused_k=cache.seqused, block_table=cache.table)
        assert torch.equal(o, wanted)


def test_names_with_a_table():
    cache, q = Pages([70, 33], 16), queries(4, 4, 64)
    cu, given = begins([3, 1]), {"causal": True, "softcap": 2.0}
    wanted, lse = dfa.attention_varlen(q, cache.k, cache.v, cu, seqused_k=cache.seqused, block_table=cache.table, return_lse=True, **given)
    o, lse2, _ = flash_attn.flash_attn_varlen_func(q, cache.k, cache.v, cu, begins(cache.lengths), 3, 70, block_table=cache.table,
                                                   return_attn_probs=True, **given)
    assert torch.equal(o, wanted) and torch.equal(lse, lse2)
    o, _ = cute.flash_attn_varlen_func(q, cache.k, cache.v, cu, seqused_k=cache.seqused, page_table=cache.table, **given)
    assert torch.equal(o, wanted)
    plain = dfa.attention_varlen(q, cache.k, cache.v, cu, seqused_k=cache.seqused, block_table=cache.table, causal=True)
    for cu_k in (None, begins(cache.lengths)):  # PyTorch's own
        o = dfa.torch.varlen_attn(q, cache.k, cache.v, cu, cu_k, 3, 70, window_size=(-1, 0), enable_gqa=True,
                                  seqused_k=cache.seqused, block_table=cache.table)
        assert torch.equal(o, plain)


def test_a_table_through_compile_and_counted():
    cache, q, cu = Pages([70, 33], 16), queries(4, 4, 64), begins([3, 1])
    counter = torch._dynamo.testing.CompileCounter()
    call = torch.compile(lambda used: dfa.attention_varlen(q, cache.k, cache.v, cu, seqused_k=used, block_table=cache.table), fullgraph=True,
                         backend=counter)
    for used in ([70, 33], [12, 1]):
        wanted = dfa.attention_varlen(q, cache.k, cache.v, cu, seqused_k=int32(used), block_table=cache.table)
        assert torch.equal(call(int32(used)), wanted)
    assert counter.frame_count == 1
    torch.library.opcheck(torch.ops.dfa.paged_forward, (q, cache.k, cache.v, cu, None, cache.seqused, cache.table, None, -1, 0, 0.0),
                          test_utils=("test_schema", "test_faketensor"))
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counted:
        dfa.attention_varlen(q, cache.k, cache.v, cu, seqused_k=cache.seqused, block_table=cache.table)
    assert counted.get_total_flops() == 4 * (3 * 70 + 33) * 4 * 64


@pytest.mark.parametrize("change, message", [
    ({"block_table": int32([[0, 1], [2, 9]])}, "block_table names page 9 in column 1 of sequence 1, but the cache has pages 0 to 4"),
    ({"block_table": int32([[0, 1], [2, -1]])}, "block_table names page -1 in column 1 of sequence 1"),
    ({"block_table": int32([[0, 1], [2, 3], [2, 3]])}, r"cu_seqlens_q has shape \[3\]; accepted: \[b \+ 1\]"),
    ({"block_table": torch.tensor([[0, 1], [2, 3]])}, "block_table is torch.int64; accepted: an int32 tensor"),
    ({"block_table": int32([0, 1])}, "block_table has shape"),
    ({"seqused_k": int32([33, 20])}, "seqused_k is 33, but block_table has 2 pages of 16 rows of sequence 0"),
    ({"seqused_k": int32([-1, 20])}, "seqused_k is -1 of sequence 0"),
    ({"seqused_k": None}, "seqused_k is None"),
    ({"max_seqlen_k": 19}, "max_seqlen_k is 19, but a sequence has 32 keys"),
    ({"max_seqlen_q": 0}, "max_seqlen_q is 0"),
    ({"max_seqlen_k": "32"}, "max_seqlen_k is '32'"), ({"max_seqlen_k": 32.9}, "max_seqlen_k is 32.9"),
    ({"deterministic": "no"}, "deterministic is 'no'"),
    ({"cu_seqlens_q": int32([1, 1, 2])}, "cu_seqlens_q does not begin with 0"),
    ({"k": torch.zeros(80, 2, 64)}, "k has 3 dimensions; 4 are expected: pages"),
    ({"v": torch.zeros(5, 8, 2, 64)}, "shapes do not match"),
    ({"q": torch.zeros(2, 3, 64)}, "hq=3 is not a multiple of hk=2"),
])
def test_tables_that_cannot_be_are_refused(change, message):
    given = {"q": torch.zeros(2, 4, 64), "k": torch.zeros(5, 16, 2, 64), "v": torch.zeros(5, 16, 2, 64), "cu_seqlens_q": begins([1, 1]),
             "seqused_k": int32([32, 20]), "block_table": int32([[0, 1], [2, 3]])} | change
    with pytest.raises((TypeError, ValueError), match=message):
        dfa.attention_varlen(**given)


@pytest.mark.parametrize("cu_seqlens_k, message", [
    ([1, 3, 7], "cu_seqlens_k does not begin with 0, but with 1"),
    ([0, 4, 3], "cu_seqlens_k falls from 4 to 3 of sequence 1"),
    ([0, 2 ** 31 - 1, -2 ** 31], "cu_seqlens_k falls from 2147483647 to -2147483648 of sequence 1"),
    ([0, 33, 40], "cu_seqlens_k has 33 keys, but block_table has 2 pages of 16 rows of sequence 0"),
])
def test_steps_that_cannot_be_are_refused_by_name_at_every_call(cu_seqlens_k, message):
    given = {"q": torch.zeros(2, 4, 64), "k": torch.zeros(5, 16, 2, 64), "v": torch.zeros(5, 16, 2, 64), "cu_seqlens_q": begins([1, 1]),
             "block_table": int32([[0, 1], [2, 3]])}
    counted = {"seqused_k": int32([3, 4])} if "falls" in message or "begin" in message else {}  # they count then, not the steps
    for more in ({}, counted):
        dfa.attention_varlen(**given, **more, cu_seqlens_k=int32([0, 32, 40]))  # from here on such calls go past checks
        with pytest.raises(ValueError, match=message):
            dfa.attention_varlen(**given, **more, cu_seqlens_k=int32(cu_seqlens_k))


def test_a_cache_with_nothing_in_it():
    k, q = torch.zeros(5, 16, 2, 64), queries(2, 4, 64)
    no_page, nothing = int32([[-1], [-1]]), int32([0, 0])
    for cache in (k, k[:0]):
        o, lse = dfa.attention_varlen(q, cache, cache, begins([1, 1]), seqused_k=nothing, block_table=no_page, return_lse=True)
        assert (o == 0).all() and (lse == -torch.inf).all()
    assert dfa.attention_varlen(q[:0], k, k, begins([0, 0]), seqused_k=nothing, block_table=no_page).shape == (0, 4, 64)
    assert dfa.attention_varlen(q[:0], k, k, begins([]), seqused_k=nothing[:0], block_table=no_page[:0]).shape == (0, 4, 64)
    with pytest.raises(ValueError, match="block_table names page -1 in column 0 of sequence 1"):
        dfa.attention_varlen(q, k[:0], k[:0], begins([1, 1]), seqused_k=int32([0, 1]), block_table=no_page)


def test_torch_func_is_refused():
    cache, q = Pages([20, 5], 16), queries(2, 4, 64)
    with pytest.raises(RuntimeError, match="transforms of a cache are not supported"):
        torch.func.grad(lambda q: dfa.attention_varlen(q, cache.k, cache.v, begins([1, 1]), seqused_k=cache.seqused, block_table=cache.table)
                        .sum())(q)


def turned(x, cos, sin, positions, interleaved):
    """x [n, h, d] with its first columns rotated as numbers of the plane, at these positions."""
    half = cos.shape[1]
    pairs = x[..., :2 * half].double()
    pairs = pairs.unflatten(-1, (half, 2)) if interleaved else torch.stack(pairs.split(half, -1), -1)
    angle = torch.complex(cos.double(), sin.double())[positions.long()][:, None]
    out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * angle)
    out = out.flatten(-2) if interleaved else torch.cat(out.unbind(-1), -1)
    return torch.cat((out, x[..., 2 * half:].double()), -1).to(x.dtype)


def angles(positions, half, dtype, device="cpu"):
    angle = torch.arange(positions)[:, None] * 0.7 ** torch.arange(half)
    return angle.cos().to(device, dtype), angle.sin().to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (30, 0)}])
@pytest.mark.parametrize("new", [0, 1, 5])
@pytest.mark.parametrize("indexed", [False, True])
def test_a_dense_cache(device, options, new, indexed):
    b, size, dtype = 3, 96, torch.bfloat16
    lengths, batches = [60, 0, 96 - new], [4, 0, 2] if indexed else [0, 1, 2]
    k_cache, v_cache = (queries(5 if indexed else 3, size, 2, 64, dtype=dtype, device=device, seed=s) for s in (1, 2))
    k, v = (queries(b, new, 2, 64, dtype=dtype, device=device, seed=s) for s in (3, 4)) if new else (None, None)
    q = queries(b, 5, 4, 64, dtype=dtype, device=device)
    for i, n in zip(batches, lengths):
        k_cache[i, n:] = v_cache[i, n:] = torch.nan
    before = k_cache.clone(), v_cache.clone()
    o, lse = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=int32(lengths, device), return_softmax_lse=True,
                                                cache_batch_idx=int32(batches, device) if indexed else None, **options)
    assert o.shape == q.shape and lse.shape == (b, 4, 5) and lse.dtype == torch.float32
    window = {"window": options["window_size"]} if "window_size" in options else options
    for i, (batch, n) in enumerate(zip(batches, lengths)):
        keys, values = (x[batch, :n] if not new else torch.cat((x[batch, :n], added[i]))
                        for x, added in zip(before, (k, v) if new else (None, None)))
        right, right_lse = alone(q[i], keys, values, **window)
        torch.testing.assert_close(o[i].double(), right, **CLOSE[dtype])
        torch.testing.assert_close(lse[i].double(), right_lse, rtol=1e-3, atol=1e-3)
        for cache, was, rows in zip((k_cache, v_cache), before, (keys, values)):
            assert torch.equal(cache[batch, :n + new], rows)
            torch.testing.assert_close(cache[batch, n + new:], was[batch, n + new:], equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_new_keys_are_rotated_into_their_pages(device, page, interleaved, causal):
    lengths, new, dtype = [60, 0, 2 * page], 3, torch.float32
    cache = Pages(lengths, page, room=new, dtype=dtype, shared=1, device=device)
    q, k, v = (queries(3, new, heads, 64, seed=seed, device=device) for heads, seed in ((4, 2), (2, 3), (2, 4)))
    cos, sin = angles(200, 16, dtype, device)
    q_was, k_was = q.clone(), k.clone()
    old = [cache.rows(i) for i in range(3)]
    o, lse = flash_attn.flash_attn_with_kvcache(q, cache.k, cache.v, k, v, cos, sin, cache.seqused, block_table=cache.table, causal=causal,
                                                rotary_interleaved=interleaved, return_softmax_lse=True)
    assert torch.equal(q, q_was) and torch.equal(k, k_was)
    for i, n in enumerate(lengths):
        at = n + torch.arange(new, device=device)
        keys = torch.cat((old[i][0], turned(k[i], cos, sin, at, interleaved)))
        rotated = turned(q[i], cos, sin, at if causal else at * 0 + n, interleaved)
        right, right_lse = alone(rotated, keys, torch.cat((old[i][1], v[i])), causal=causal)
        torch.testing.assert_close(o[i].double(), right, **CLOSE[dtype])
        torch.testing.assert_close(lse[i].double(), right_lse, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(cache.rows(i, n + new)[0], keys, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_left_padding_and_one_length_for_all(device):
    k_cache, v_cache, q = queries(2, 50, 2, 64, device=device), queries(2, 50, 2, 64, device=device, seed=2), queries(2, 2, 4, 64, device=device)
    pads = [0, 17]
    k_cache[1, :17] = v_cache[1, :17] = k_cache[:, 40:] = v_cache[:, 40:] = torch.nan
    o = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=40, cache_leftpad=int32(pads, device), causal=True)
    for i, pad in enumerate(pads):
        right, _ = alone(q[i], k_cache[i, pad:40], v_cache[i, pad:40], causal=True)
        torch.testing.assert_close(o[i].double(), right, **CLOSE[torch.float32])


@pytest.mark.parametrize("device", DEVICES)
def test_without_lengths_all_of_a_cache_counts(device):
    k_cache, q = queries(2, 50, 2, 64, device=device), queries(2, 2, 4, 64, device=device)
    o = flash_attn.flash_attn_with_kvcache(q, k_cache, k_cache)
    torch.testing.assert_close(o, flash_attn.flash_attn_func(q, k_cache, k_cache), **CLOSE[torch.float32])


def test_packed_queries_and_new_keys_of_flash_attention_3():
    lens_q, lens_new, lengths = [3, 0, 1], [2, 4, 0], [60, 5, 33]
    cache = Pages(lengths, 16, room=4)
    q, k, v = queries(4, 4, 64), queries(6, 2, 64, seed=3), queries(6, 2, 64, seed=4)
    cos, sin = angles(100, 8, torch.float32)
    base, old = int32([2, 3, 4]), [cache.rows(i) for i in range(3)]
    metadata = flash_attn_interface.get_scheduler_metadata(3, 3, 70, 4, 2, 64, cache.seqused, page_size=16, causal=True)
    o, lse = flash_attn_interface.flash_attn_with_kvcache(
        q, cache.k, cache.v, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=cache.seqused, page_table=cache.table,
        cu_seqlens_q=begins(lens_q), cu_seqlens_k_new=begins(lens_new), max_seqlen_q=3, rotary_seqlens=base, causal=True, softcap=5.0,
        scheduler_metadata=metadata, num_splits=4, pack_gqa=True, return_softmax_lse=True)
    assert o.shape == q.shape and lse.shape == (4, 4)
    for i, rows in enumerate(o.split(lens_q)):
        at = int(base[i]) + torch.arange(4)
        keys = torch.cat((old[i][0], turned(k.split(lens_new)[i], cos, sin, at[:lens_new[i]], True)))
        right, right_lse = alone(turned(q.split(lens_q)[i], cos, sin, at[:lens_q[i]], True), keys, torch.cat((old[i][1], v.split(lens_new)[i])),
                                 causal=True, softcap=5.0)
        torch.testing.assert_close(rows.double(), right, **CLOSE[torch.float32])
        torch.testing.assert_close(lse.split(lens_q, 1)[i].double(), right_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("new", [False, True])
def test_which_row_of_a_table_is_a_sequences(device, new):
    """FlashAttention-3's; flash-attn 2 refuses both. A call with other rows behind it is not the first one made again."""
    cache, dtype = Pages([40, 9, 25], 16, room=1, device=device), torch.float16 if device == "cuda" else torch.float32
    q = queries(2, 1, 4, 64, dtype=dtype, device=device)
    k_cache, v_cache, rows = cache.k.to(dtype), cache.v.to(dtype), queries(2, 2, 1, 2, 64, dtype=dtype, device=device, seed=4)
    for batches in ([2, 0], [1, 2], [2, 0]):
        taken = torch.tensor(batches, device=device)
        named = {"cache_seqlens": cache.seqused[taken], "causal": True, "rotary_seqlens": cache.seqused[taken]}
        calls = []
        for table in ({"page_table": cache.table, "cache_batch_idx": taken.int()}, {"page_table": cache.table[taken]}):
            k, v = k_cache.clone(), v_cache.clone()
            o = flash_attn_interface.flash_attn_with_kvcache(q, k, v, *(rows if new else ()), **named, **table)
            calls.append((o, k.nan_to_num(), v.nan_to_num()))
        assert all(map(torch.equal, *calls))


def test_without_lengths_a_sequence_of_flash_attention_4_has_all_its_pages():
    q, (k, v), table = queries(2, 4, 64), queries(2, 6, 16, 2, 64), int32([[4, 1, 0], [2, 5, 3]])
    o, lse = cute.flash_attn_varlen_func(q, k, v, begins([1, 1]), page_table=table, return_lse=True)
    wanted = cute.flash_attn_varlen_func(q, k, v, begins([1, 1]), page_table=table, seqused_k=int32([48, 48]), return_lse=True)
    assert torch.equal(o, wanted[0]) and torch.equal(lse, wanted[1])
    with pytest.raises(ValueError, match="block_table names page -1 in column 2 of sequence 1"):
        cute.flash_attn_varlen_func(q, k, v, begins([1, 1]), page_table=int32([[4, 1, 0], [2, 5, -1]]))
    for change, message in (({"page_table": table[0]}, r"page_table has shape \[3\]; accepted: \[b, columns\]"), ({"k": k[0]}, "k has shape")):
        with pytest.raises(ValueError, match=message):
            cute.flash_attn_varlen_func(**{"q": q, "k": k, "v": v, "cu_seqlens_q": begins([1, 1]), "page_table": table} | change)


def test_rows_of_a_table_that_are_none_are_refused():
    q, k = torch.zeros(2, 1, 4, 64), torch.zeros(4, 16, 2, 64)
    call = flash_attn_interface.flash_attn_with_kvcache
    named = {"cache_seqlens": int32([3, 3]), "page_table": int32([[0], [1], [2]]), "cache_batch_idx": int32([0, 1])}
    for change, message in (({"cache_batch_idx": int32([0, 3])}, "cache_batch_idx names row 3 for sequence 1, but page_table has 3"),
                            ({"cache_batch_idx": int32([-1, 0])}, "cache_batch_idx names row -1 for sequence 0, but page_table has 3"),
                            ({"cache_batch_idx": int32([0])}, r"cache_batch_idx has shape \[1\]"),
                            ({"page_table": named["page_table"].long()}, "page_table is torch.int64"),
                            ({"page_table": int32([0, 1])}, r"page_table is \[2\]; accepted: int32 \[rows, columns\]"),
                            ({"page_table": named["page_table"][:0]}, r"page_table is \[0, 1\]"),
                            ({"rotary_seqlens": torch.zeros(2)}, "rotary_seqlens is torch.float32")):
        call(q, k, k, **named)
        with pytest.raises(ValueError, match=message):
            call(q, k, k, **named | change)


def test_a_model_that_grows_its_cache_says_what_all_at_once_says():
    q, k, v = queries(2, 40, 4, 64), queries(2, 40, 2, 64, seed=3), queries(2, 40, 2, 64, seed=4)
    wanted = flash_attn.flash_attn_func(q, k, v, causal=True)
    cache = Pages([0, 0], 16, room=40)
    for begin, end in ((0, 17), (17, 18), (18, 34), (34, 40)):
        o = flash_attn.flash_attn_with_kvcache(q[:, begin:end], cache.k, cache.v, k[:, begin:end], v[:, begin:end], cache_seqlens=begin,
                                               block_table=cache.table, causal=True)
        torch.testing.assert_close(o, wanted[:, begin:end], **CLOSE[torch.float32])


@pytest.mark.parametrize("change, error, message", [
    ({"cache_seqlens": None}, ValueError, "cache_seqlens is None; accepted beside k and v"),
    ({"cache_seqlens": 30}, ValueError, "a new key would be row 32 of sequence 0, but the cache has 32 rows for each"),
    ({"cache_seqlens": 30, "block_table": int32([[0], [1]])}, ValueError,
     "a new key would be row 32 of sequence 0, but block_table has 1 pages of 32"),
    ({"cache_seqlens": -1}, ValueError, "cache_seqlens is -1"),
    ({"cache_seqlens": torch.tensor([1, 2])}, ValueError, "cache_seqlens is torch.int64; accepted: an int32 tensor"),
    ({"v": None}, ValueError, "k beside no v"),
    ({"k": torch.zeros(2, 3, 2, 32)}, ValueError, r"k is \[2, 3, 2, 32\] of torch.float32 on cpu; expected"),
    ({"k": torch.zeros(3, 3, 2, 64), "v": torch.zeros(3, 3, 2, 64)}, ValueError, "k is of 3 sequences, q of 2"),
    ({"k_cache": torch.zeros(1, 32, 2, 64), "v_cache": torch.zeros(1, 32, 2, 64)}, ValueError, "q has a batch of 2, k_cache of 1"),
    ({"cache_batch_idx": int32([0, 7])}, ValueError, "cache_batch_idx names batch 7 for sequence 1, but the cache has 2"),
    ({"cache_batch_idx": int32([0, 1]), "block_table": int32([[0], [1]])}, ValueError, "cache_batch_idx beside block_table"),
    ({"block_table": int32([[0], [2]])}, ValueError, "block_table names page 2 in column 0 of sequence 1, but the cache has 2"),
    ({"rotary_cos": torch.ones(9, 8)}, ValueError, "rotary_sin is NoneType"),
    ({"rotary_cos": torch.ones(9, 9), "rotary_sin": torch.ones(9, 9)}, ValueError, "rotary_dim a multiple of 16"),
    ({"rotary_cos": torch.ones(9, 8), "rotary_sin": torch.ones(9, 8)}, ValueError, "positions 8 to 9 are rotated, but rotary_cos has 9"),
    ({"num_splits": -1}, ValueError, "num_splits -1"),
    ({"q": torch.zeros(2, 4, 64)}, ValueError, "q has 3 dimensions; 4 are expected"),
    ({"k": torch.zeros(2, 3, 2, 64, requires_grad=True)}, ValueError, "k requires a gradient"),
    ({"k_cache": torch.zeros(2, 32, 2, 128)[..., ::2]}, ValueError, "k_cache is not contiguous in its last dimension"),
])
def test_what_a_cache_does_not_take_is_refused(change, error, message):
    given = {"q": torch.zeros(2, 3, 4, 64), "k_cache": torch.zeros(2, 32, 2, 64), "v_cache": torch.zeros(2, 32, 2, 64),
             "k": torch.ones(2, 3, 2, 64), "v": torch.ones(2, 3, 2, 64), "cache_seqlens": 8, "causal": "rotary_cos" not in change}
    given |= change
    if "positions 8" in message:
        given |= {"k": torch.ones(2, 2, 2, 64), "v": torch.ones(2, 2, 2, 64)}
    with pytest.raises(error, match=message):
        flash_attn.flash_attn_with_kvcache(**given)
    assert (given["k_cache"] == 0).all() and (given["v_cache"] == 0).all()


@pytest.mark.parametrize("argument, value", [("qv", torch.ones(1)), ("q_descale", torch.ones(1)), ("attention_chunk", 64), ("sm_margin", 8)])
def test_what_flash_attention_3_has_beside_is_refused_by_its_name(argument, value):
    q = torch.zeros(1, 1, 2, 64)
    with pytest.raises(ValueError, match=f"{argument} is not supported"):
        flash_attn_interface.flash_attn_with_kvcache(q, q, q, **{argument: value})
    with pytest.raises(ValueError, match="scheduler_metadata is str"):
        flash_attn_interface.flash_attn_with_kvcache(q, q, q, scheduler_metadata="none")


@pytest.mark.parametrize("wrong, message", [
    ({"cache_leftpad": int32([9, 0])}, "cache_leftpad is 9 for sequence 0, which has 3"), ({"softcap": float("nan")}, "softcap"),
    ({"window_size": (1, 2, 3)}, "window"), ({"softmax_scale": "x"}, "scale"), ({"return_softmax_lse": "x"}, "return_softmax_lse"),
    ({"alibi_slopes": torch.tensor([1, 2, torch.nan, 3])}, "alibi_slopes has nan at index 2; accepted: finite numbers"),
    ({"alibi_slopes": torch.tensor([[1, 2, 3, 4], [1, torch.inf, 3, 4]])}, "alibi_slopes has inf at index 5; accepted: finite"),
    ({"cache_seqlens": int32([2, -1])}, "a new key would be row -1 of sequence 1, but the cache has 16 rows for each"),
    ({"cache_batch_idx": int32([0, 2])}, "cache_batch_idx names batch 2 for sequence 1, but the cache has 2")])
@pytest.mark.parametrize("compiled", [False, True])
def test_nothing_is_written_by_a_call_that_is_refused(wrong, message, compiled):
    k_cache, v_cache = queries(2, 16, 2, 64), queries(2, 16, 2, 64, seed=2)
    q, k, v = queries(2, 1, 4, 64), queries(2, 1, 2, 64, seed=3), queries(2, 1, 2, 64, seed=4)
    before = k_cache.clone(), v_cache.clone()

    def call():
        return flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **{"cache_seqlens": int32([2, 5]), **wrong})
    if compiled:
        torch._dynamo.reset()
    with pytest.raises((ValueError, TypeError), match=message):
        (torch.compile(call, backend="eager") if compiled else call)()
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


@pytest.mark.parametrize("wrong, message", [
    ({"cache_seqlens": int32([2, 17])}, "sequence 1 has 17 rows by cache_seqlens, but the cache has 16 rows for each"),
    ({"cache_seqlens": int32([2, 17]), "page_table": int32([[0], [1]])}, "sequence 1 has 17 rows .* but page_table has 1 pages of 16"),
    ({"cache_seqlens": int32([2, -1])}, "cache_seqlens is -1 for sequence 1"),
    ({"cache_batch_idx": int32([0, 2])}, "cache_batch_idx names batch 2 for sequence 1"),
    ({"page_table": int32([[0], [2]])}, "page_table names page 2 in column 0 of sequence 1")])
@pytest.mark.parametrize("new", [True, False])
def test_nothing_is_written_where_a_sequence_without_new_rows_is_wrong(wrong, message, new):
    k_cache, v_cache = queries(2, 16, 2, 64), queries(2, 16, 2, 64, seed=2)
    before = k_cache.clone(), v_cache.clone()
    given = {"cache_seqlens": int32([2, 5]), **wrong}
    if new:
        given |= {"k": queries(1, 2, 64), "v": queries(1, 2, 64), "cu_seqlens_k_new": int32([0, 1, 1])}
    with pytest.raises(ValueError, match=message):
        flash_attn_interface.flash_attn_with_kvcache(queries(2, 1, 4, 64), k_cache, v_cache, **given)
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


def test_of_a_cache_that_may_not_be_written_no_half_is():
    with torch.inference_mode():
        v_cache = torch.zeros(2, 16, 2, 64)
    k_cache, k = torch.zeros(2, 16, 2, 64), queries(2, 1, 2, 64)
    with pytest.raises(ValueError, match=r"v_cache was made under torch.inference_mode\(\)"):
        flash_attn.flash_attn_with_kvcache(k, k_cache, v_cache, k, k, cache_seqlens=2)
    assert not k_cache.any()
    with torch.inference_mode():
        flash_attn.flash_attn_with_kvcache(k, k_cache, v_cache, k, k, cache_seqlens=2)


def test_new_rows_are_seen_under_autocast():
    k_cache, v_cache = queries(2, 16, 2, 64), queries(2, 16, 2, 64, seed=2)
    q, k, v = queries(2, 1, 4, 64), queries(2, 1, 2, 64, seed=3), 9 * queries(2, 1, 2, 64, seed=4)
    halves = [x.bfloat16() for x in (q, k_cache, v_cache, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=int32([2, 5]))
    assert torch.equal(o, flash_attn.flash_attn_with_kvcache(*halves, cache_seqlens=int32([2, 5])))
    assert torch.equal(k_cache[1, 5], k[1, 0])


def test_new_rows_are_not_written_to_an_expanded_cache():
    cache = queries(1, 16, 2, 64).expand(2, -1, -1, -1)
    q, k = queries(2, 1, 4, 64), queries(2, 1, 2, 64, seed=3)
    with pytest.raises(ValueError, match="k_cache is expanded"):
        flash_attn.flash_attn_with_kvcache(q, cache, cache, k, k, cache_seqlens=int32([2, 5]))
    flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=int32([2, 5]))


ROWS = queries(2, 40, 2, 96)


@pytest.mark.parametrize("k_cache, v_cache", [
    (ROWS, ROWS), (ROWS[:, :16], ROWS[:, :16, :, :64]), (ROWS[..., :64], ROWS[..., 32:]), (ROWS[:, :16], ROWS[:, 15:31]),
    (ROWS[:, 15:31], ROWS[:, :16]), (ROWS[:, :, :1], ROWS.as_strided((2, 40, 1, 8), (40 * 192, 192, 192, 1), 88)), (ROWS[:, :8], ROWS[:, 2:18:2])])
def test_keys_and_values_are_not_written_to_one_memory(k_cache, v_cache):
    k, v, before = queries(2, 1, *k_cache.shape[2:]), queries(2, 1, *v_cache.shape[2:]), ROWS.clone()
    q = queries(2, 1, 4, k.shape[-1])
    with pytest.raises(ValueError, match="v_cache shares memory with k_cache, .*accepted beside k and v: caches that lie apart"):
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=int32([2, 5]))
    assert torch.equal(ROWS, before)
    flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=int32([2, 5]))


@pytest.mark.parametrize("k_cache, v_cache", [
    (ROWS[..., :32], ROWS[..., 32:64]), (ROWS[:, :16], ROWS[:, 16:32]), (ROWS[:, :, :1], ROWS[:, :, 1:]), (ROWS[:1], ROWS[1:])])
def test_halves_of_one_tensor_take_new_rows(k_cache, v_cache):
    memory, b = ROWS.clone(), len(k_cache)
    k_cache, v_cache = (memory.as_strided(x.shape, x.stride(), x.storage_offset()) for x in (k_cache, v_cache))
    k, v = queries(b, 1, *k_cache.shape[2:], seed=3), queries(b, 1, *k_cache.shape[2:], seed=4)
    flash_attn.flash_attn_with_kvcache(queries(b, 1, 4, k.shape[-1]), k_cache, v_cache, k, v, cache_seqlens=2)
    assert torch.equal(k_cache[:, 2:3], k) and torch.equal(v_cache[:, 2:3], v)


@pytest.mark.parametrize("most", [1, 5, None])
def test_max_seqlen_q_of_dense_queries_says_nothing(most):
    k_cache, q = queries(2, 16, 2, 64), queries(2, 3, 4, 64)
    o = flash_attn_interface.flash_attn_with_kvcache(q, k_cache, k_cache, cache_seqlens=int32([2, 5]), max_seqlen_q=most)
    assert torch.equal(o, flash_attn.flash_attn_with_kvcache(q, k_cache, k_cache, cache_seqlens=int32([2, 5])))


@pytest.mark.parametrize("wrong, error", [({"max_seqlen_q": "3"}, TypeError), ({"max_seqlen_q": 2.5}, TypeError),
                                          ({"cu_seqlens_q": [0, 2, 5]}, ValueError), ({"cu_seqlens_q": int32([])}, ValueError)])
def test_packed_queries_that_are_wrong_are_told_by_name(wrong, error):
    k_cache, q = queries(2, 16, 2, 64), queries(5, 4, 64)
    given = {"cu_seqlens_q": int32([0, 2, 5]), "max_seqlen_q": 3, **wrong}
    with pytest.raises(error, match=next(iter(wrong))):
        flash_attn_interface.flash_attn_with_kvcache(q, k_cache, k_cache, cache_seqlens=int32([2, 5]), **given)
