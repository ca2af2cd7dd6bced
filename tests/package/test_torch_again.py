"""Calls of packed sequences and caches that are made again: the same outputs, the same refusals, and in full where somebody looks on."""

import threading

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402
from dfa import _torch_again  # noqa: E402
from dfa.flash_attn import flash_attn_func, flash_attn_with_kvcache  # noqa: E402


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available(), autouse=True)
def device(request):
    _torch_again.clear()
    kept.clear()
    return request.param


kept = set()  # what was kept since, by the name of the door, and how many of those


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    keep = _torch_again.keep

    def watch(key, made, tensors):
        before = _torch_again.count()
        keep(key, made, tensors)
        kept.update((key[0], n) for n in range(before, _torch_again.count()))
    monkeypatch.setattr(_torch_again, "keep", watch)


@pytest.fixture
def on_cpu(device):
    if device != "cpu":
        pytest.skip("a GPU's calls do not read lengths")


def ints(device, *values):
    return torch.tensor(values, dtype=torch.int32, device=device)


def packed(device, total=9, hq=4, hk=2, d=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return *(torch.randn(total, h, d, generator=generator).to(device) for h in (hq, hk, hk)), ints(device, 0, 2, total)


def cache(device, seed=0, page=4):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(3, 4, 64, generator=generator).to(device)
    k, v = (torch.randn(6, page, 2, 64, generator=generator).to(device) for _ in range(2))
    return q, k, v, ints(device, 0, 1, 3), ints(device, [4, 2], [1, -1])


def known():
    """How many calls of packed sequences and caches are kept."""
    return sum(door != "dense" for door, _ in kept)


def test_a_call_made_again_reads_its_own_tensors_and_lengths(device):
    for seed, begins in ((0, [0, 2, 9]), (1, [0, 8, 9]), (2, [0, 0, 9])):
        q, k, v, _ = packed(device, seed=seed)
        cu = ints(device, *begins)
        o, lse = dfa.attention_varlen(q, k, v, cu, causal=True, return_lse=True)
        assert known() == 1
        for begin, end in zip(begins, begins[1:]):
            if begin == end:
                continue
            alone = dfa.attention(*(x[begin:end].transpose(0, 1)[None] for x in (q, k, v)), causal=True, return_lse=True)
            torch.testing.assert_close(o[begin:end], alone[0][0].transpose(0, 1), **CLOSE[device])
            torch.testing.assert_close(lse[:, begin:end], alone[1][0], **CLOSE[device])


def test_pages_are_those_of_each_call(device):
    for seed, used in ((0, [7, 3]), (1, [8, 4]), (2, [1, 1])):
        q, k, v, cu, table = cache(device, seed)
        table = table if seed else table.clone()
        used = ints(device, *used)
        o = dfa.attention_varlen(q, k, v, cu, seqused_k=used, block_table=table, causal=True)
        assert known() == 1
        for i in range(2):
            keys, values = (x[table[i].clamp(min=0).long()].flatten(0, 1)[:used[i]].transpose(0, 1)[None] for x in (k, v))
            rows = q[cu[i]:cu[i + 1]].transpose(0, 1)[None]
            torch.testing.assert_close(o[cu[i]:cu[i + 1]], dfa.attention(rows, keys, values, causal=True)[0].transpose(0, 1),
                                       **CLOSE[device])


# A GPU's products of fp32 are of three parts in bf16; the call alone may have another kernel.
CLOSE = {"cpu": {"rtol": 1e-5, "atol": 1e-5}, "cuda": {"rtol": 1e-4, "atol": 1e-4}}
OTHERS = [{"causal": True}, {"window": (1, 0)}, {"scale": 0.5}, {"softcap": 2.0}, {"chunk": 2, "causal": True}, {"prefix": 1, "causal": True},
          {"return_lse": True}, {"alibi_slopes": torch.rand(4) + 0.1}, {"sinks": torch.rand(4)}, {"seqused_k": torch.tensor([1, 2], dtype=torch.int32)},
          {"batch_invariant": True}]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_whatever_changes_the_result_is_of_the_key(device, other):
    q, k, v, cu = packed(device)
    plain = dfa.attention_varlen(q, k, v, cu)
    other = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in other.items()}
    first = dfa.attention_varlen(q, k, v, cu, **other)
    again, once_more = (dfa.attention_varlen(q, k, v, cu, **options) for options in (other, {}))
    assert known() == 2
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    torch.testing.assert_close(once_more, plain, rtol=0, atol=0)


@pytest.mark.parametrize("change", [lambda q, k, v: (q.bfloat16(), k.bfloat16(), v.bfloat16()), lambda q, k, v: (q[:, ::2], k, v),
                                    lambda q, k, v: (q, k, v[..., :32]), lambda q, k, v: (q.repeat(1, 1, 2)[..., :64], k, v)],
                         ids=["type", "heads", "width", "strides"])
def test_other_tensors_are_other_calls(device, change):
    q, k, v, cu = packed(device)
    dfa.attention_varlen(q, k, v, cu)
    changed = change(q, k, v)
    first = dfa.attention_varlen(*changed, cu)
    assert known() == 2
    assert torch.equal(dfa.attention_varlen(*changed, cu), first)
    assert torch.equal(first, dfa.attention_varlen(*(x.contiguous() for x in changed), cu))


@pytest.mark.parametrize("wrong, error", [
    ({"max_seqlen_q": 3}, "max_seqlen_q is 3, but a sequence has 7 rows"), ({"max_seqlen_q": True}, "max_seqlen_q is True"),
    ({"num_splits": True}, "num_splits True"), ({"return_lse": 1}, "return_lse"), ({"window": (1.0, 0)}, "window"),
    ({"deterministic": 1}, "deterministic"), ({"dropout_p": 1.5}, "dropout_p")])
def test_refusals_come_each_time(device, wrong, error):
    q, k, v, cu = packed(device)
    if device == "cuda" and "max_seqlen_q" in wrong and wrong["max_seqlen_q"] == 3:
        pytest.skip("a GPU's calls do not read lengths")
    accepted = {"max_seqlen_q": 7, "num_splits": 1, "return_lse": True, "window": (1, 0), "deterministic": True, "dropout_p": 0}
    dfa.attention_varlen(q, k, v, cu, **{name: accepted[name] for name in wrong})
    for _ in range(2):
        with pytest.raises((ValueError, TypeError), match=error):
            dfa.attention_varlen(q, k, v, cu, **wrong)


def test_lengths_are_checked_each_time(device, on_cpu):
    q, k, v, cu = packed(device)
    for begins, error in (([0, 2, 9], None), ([1, 2, 9], "begin"), ([0, 9, 2], "cu_seqlens"), ([0, 2, 99], "cu_seqlens")):
        cu = ints(device, *begins)
        if error is None:
            dfa.attention_varlen(q, k, v, cu)
            continue
        with pytest.raises((ValueError, RuntimeError), match=error):
            dfa.attention_varlen(q, k, v, cu)
    q, k, v, cu, table = cache(device)
    used = ints(device, *[7, 3])
    dfa.attention_varlen(q, k, v, cu, seqused_k=used, block_table=table, causal=True)
    with pytest.raises(ValueError, match="page"):
        dfa.attention_varlen(q, k, v, cu, seqused_k=used, block_table=table + 9, causal=True)


def test_who_looks_on_sees_the_operator(device):
    from torch.utils.flop_counter import FlopCounterMode
    q, k, v, cu = packed(device)
    o = dfa.attention_varlen(q, k, v, cu)
    with FlopCounterMode(display=False) as counter:
        dfa.attention_varlen(q, k, v, cu)
    assert counter.get_total_flops() == 2 * (2 * 2 + 7 * 7) * 4 * 128
    with torch.profiler.profile() as profile:
        dfa.attention_varlen(q, k, v, cu)
    assert any(event.key == "dfa::varlen_forward" for event in profile.key_averages())
    with torch.autocast(device, dtype=torch.bfloat16):
        assert dfa.attention_varlen(q, k, v, cu).dtype == torch.bfloat16
    assert torch.equal(torch.func.vmap(lambda q: dfa.attention_varlen(q, k, v, cu))(q[None])[0], o)
    q.requires_grad_()
    dfa.attention_varlen(q, k, v, cu).sum().backward()
    assert q.grad is not None
    with torch.no_grad():
        assert torch.equal(dfa.attention_varlen(q, k, v, cu), o)


def test_numbers_of_the_other_sign_are_read_as_they_are(device):
    turned = torch.view_as_complex(torch.randn(9, 4, 64, 2, generator=torch.Generator().manual_seed(1)).to(device)).conj().imag
    q, k, v, cu = packed(device)
    dfa.attention_varlen(turned.clone(), k, v, cu)
    assert turned.is_neg()
    torch.testing.assert_close(dfa.attention_varlen(turned, k, v, cu), dfa.attention_varlen(turned.clone(), k, v, cu))


def test_a_cache_answers_the_same_with_and_without_lse(device):
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(*shape, generator=generator).to(device) for shape in ((2, 3, 4, 64), (2, 16, 2, 64), (2, 16, 2, 64)))
    used = ints(device, *[5, 16])
    both = [flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True, return_softmax_lse=True) for _ in range(2)]
    alone = flash_attn_with_kvcache(q, k, v, cache_seqlens=used, causal=True)
    assert torch.equal(both[0][0], alone) and torch.equal(both[1][0], alone) and torch.equal(both[0][1], both[1][1])
    for _, lse in both:
        assert lse.shape == (2, 4, 3) and lse.stride() == (3, 6, 1)  # as the kernel writes it, [hq, b · sq]
    rows = dfa.attention(*(x.transpose(1, 2) for x in (q[1:], k[1:], v[1:])), causal=True, return_lse=True)[1]
    torch.testing.assert_close(both[1][1][1:], rows, **CLOSE[device])


def test_a_graph_that_records_the_first_call_of_its_kind_replays_it(device):
    if device != "cuda":
        pytest.skip("needs a GPU")
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(*shape, generator=generator).to(device, torch.bfloat16) for shape in ((2, 1, 4, 64), (2, 16, 2, 64), (2, 16, 2, 64)))
    used = ints(device, 5, 16)
    wanted = flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
    _torch_again.clear()
    kept.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
    assert known() == 0
    eager = flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
    assert known() == 1
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(eager, wanted) and torch.equal(recorded, wanted)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        recorded = flash_attn_with_kvcache(q, k, v, cache_seqlens=used)
    used.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(recorded, flash_attn_with_kvcache(q, k, v, cache_seqlens=used))


def test_a_function_mode_sees_each_call(device):
    from torch.overrides import TorchFunctionMode
    seen = []

    class Log(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), named=None):
            seen.append(str(function))
            return function(*arguments, **(named or {}))

    q, k, v, cu = packed(device)
    dfa.attention_varlen(q, k, v, cu)
    with Log():
        dfa.attention_varlen(q, k, v, cu)
    assert any("varlen_forward" in name for name in seen)


def test_one_row_may_have_any_stride(device):
    row = torch.randn(4, 64, generator=torch.Generator().manual_seed(5)).to(device)
    x = row.as_strided((1, 4, 64), (0, 64, 1))
    assert torch.equal(dfa.attention_varlen(x, x, x, ints(device, 0, 1)), row[None])


DENSE = {"attention": lambda q, k, v: dfa.attention(q, k, v, causal=True),
         "sdpa": lambda q, k, v: dfa.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
         "flash": lambda q, k, v: flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True).transpose(1, 2)}


@pytest.mark.parametrize("door", DENSE)
def test_who_looks_on_sees_a_dense_call(device, door):
    from torch.utils._python_dispatch import TorchDispatchMode
    seen, call = [], DENSE[door]

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            seen.append(str(function))
            return function(*arguments, **(named or {}))
    q, k, v = (torch.randn(2, 4, 16, 64, generator=torch.Generator().manual_seed(n)).to(device) for n in range(3))
    o = call(q, k, v)
    count = _torch_again.count()
    assert count >= 1 and torch.equal(call(q, k, v), o)
    with Log():
        assert torch.equal(call(q, k, v), o)
    assert any("dfa.forward" in name for name in seen)
    with torch.profiler.profile() as profile:
        call(q, k, v)
    assert any(event.key == "dfa::forward" for event in profile.key_averages())
    with torch.autocast(device, dtype=torch.bfloat16):
        assert call(q, k, v).dtype == torch.bfloat16
    assert torch.equal(torch.func.vmap(call)(q[None], k[None], v[None])[0], o)
    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(q, k, v), o)
    with pytest.raises(RuntimeError, match="forward-mode"):
        torch.func.jvp(call, (q, k, v), (q, k, v))
    assert _torch_again.count() == count
    turned = torch.view_as_complex(torch.randn(2, 4, 16, 64, 2).to(device)).conj().imag
    assert turned.is_neg()
    torch.testing.assert_close(call(turned, k, v), call(turned.clone(), k, v))
    gradients = torch.autograd.grad(call(*(x.requires_grad_() for x in (q, k, v))).sum(), (q, k, v))
    assert all(x.abs().sum() > 0 for x in gradients)


def test_a_thread_has_its_own_modes(device):
    """Threads recall beside each other; one that looks on takes none of the others with it."""
    q, k, v = (torch.randn(1, 2, 16, 64, generator=torch.Generator().manual_seed(n)).to(device) for n in range(3))
    wanted = dfa.attention(q, k, v)
    wrong = []

    def work(n):
        for _ in range(50):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=n % 2 == 1):
                o = dfa.attention(q, k, v)
            if o.dtype != (torch.bfloat16 if n % 2 else torch.float32) or n % 2 == 0 and not torch.equal(o, wanted):
                wrong.append(n)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def workspaces(monkeypatch, device):
    """How many bytes each workspace has that launches make which are kept from now on."""
    made, make = [], _torch_again._makers[device]

    def counted(shape, strides, dtype):
        if dtype == torch.uint8:
            made.append(shape[0])
        return make(shape, strides, dtype)
    monkeypatch.setitem(_torch_again._makers, device, counted)
    return made


def attend_alone(q):
    """By a launch that has a workspace: lists of tiles on a GPU, packed keys on a processor."""
    if q.device.type == "cpu":
        return dfa.attention(q, q, q)
    rows = q[0].transpose(0, 1)
    return dfa.attention_varlen(rows, rows, rows, ints("cuda", 0, q.shape[2]))


def test_the_next_call_takes_the_workspace_that_the_last_one_left(device, workspaces):
    lengths = (9, 400 if device == "cpu" else 4000, 9)
    heads = [torch.randn(1, 4, n, 64, generator=torch.Generator().manual_seed(n)).to(device) for n in lengths]
    wanted = [attend_alone(q) for q in heads]
    workspaces.clear()  # of the third one, which has been made again
    _torch_again.clear()
    assert all(torch.equal(attend_alone(q), o) for q, o in zip(heads[:2], wanted)) and not workspaces
    for _ in range(3):
        assert all(torch.equal(attend_alone(q), o) for q, o in zip(heads, wanted))
    first, larger = workspaces
    assert first < larger
    _torch_again.clear()
    for _ in range(3):
        attend_alone(heads[0])
    assert workspaces == [first, larger, first]


def test_workspaces_of_other_streams_are_their_own(device, workspaces):
    if device != "cuda":
        pytest.skip("needs a GPU")
    q = torch.randn(1, 4, 9, 64, device=device)
    wanted = attend_alone(q)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        for n in range(1, 4):
            assert torch.equal(attend_alone(q), wanted) and len(workspaces) == n
        torch.cuda.synchronize()
