"""Each door's calls that are made again by a launch: a GPU's way through the doors, with kernels of the processor where there is no GPU."""

import ast
import contextlib
import gc
import inspect
import weakref

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402
from dfa import _torch_again, _torch_calls, _torch_paged, _torch_varlen  # noqa: E402
from dfa.flash_attn import cute, flash_attn_func, flash_attn_interface, flash_attn_varlen_func, flash_attn_with_kvcache  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
DTYPE = torch.bfloat16 if GPU else torch.float32


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Where there is none, tensors say that they are on one, and plans are for the processor: what is asked of a device is not."""
    _torch_again.clear()
    if GPU:
        yield
        return
    cuda = torch.device("cuda", 0)

    class Here(contextlib.nullcontext):
        def __init__(self, _):
            super().__init__(0)

    def without_device(make):
        return lambda *arguments, device=None, **named: make(*arguments, **named)
    for module in (_torch_paged, _torch_varlen):
        monkeypatch.setattr(module, "_On", Here)
    for module in (_torch_calls, _torch_paged, _torch_varlen):
        plan_of = module.plan_of

        def planned(*arguments, plan_of=plan_of, **named):
            return plan_of(*["cpu" if x == "cuda" else x for x in arguments], **named)
        monkeypatch.setattr(module, "plan_of", planned)
    for name in ("arange", "full", "tensor"):
        monkeypatch.setattr(torch, name, without_device(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "device", property(lambda tensor: cuda), raising=False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setitem(_torch_again._makers, "cuda", _torch_again._makers["cpu"])
    monkeypatch.setattr(_torch_again, "_current_device", lambda: 0)
    monkeypatch.setattr(_torch_again, "_current_stream", lambda device: 0)
    yield
    _torch_again.clear()


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DTYPE).to("cuda" if GPU else "cpu")


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device="cuda" if GPU else "cpu")


def dense(seed):
    return [random(2, 24, h, 64, seed=seed + n) for n, h in enumerate((4, 2, 2))]


def heads_first(seed):
    return [x.transpose(1, 2).contiguous() for x in dense(seed)]


def packed(seed):
    return *(random(9, h, 64, seed=seed + n) for n, h in enumerate((4, 2, 2))), ints(0, *((2, 9), (8, 9), (1, 9))[seed % 3])


def cache(seed, sq=1):
    """q, pages of k and v, lengths, a table."""
    return random(2, sq, 4, 64, seed=seed), *(random(8, 16, 2, 64, seed=seed + n) for n in (1, 2)), ints(40 + seed, 17 - seed), \
        ints([4, 2, 0, 7], [1, 3, 5, 6])


def rows(seed, sq=1):
    """The same without pages."""
    q, k, v, used, _ = cache(seed, sq)
    return q, k.view(2, 64, 2, 64), v.view(2, 64, 2, 64), used


def descale(seed):
    return torch.rand(2, 2, generator=torch.Generator().manual_seed(seed)).to("cuda" if GPU else "cpu") + 0.5


def in_e4m3(k, v, e4m3):
    return (k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)) if e4m3 else (k, v)


def with_pages(name, seed, **options):
    q, k, v, used, table = cache(seed, options.pop("sq", 1))
    k, v = in_e4m3(k, v, options.pop("e4m3", False))
    used = 17 - seed if options.pop("number", False) else used
    return flash_attn_with_kvcache(q, k, v, cache_seqlens=used, block_table=table, **options) if name == "2" else \
        flash_attn_interface.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, page_table=table, **options)


def with_rows(seed, sq=1, **options):
    q, k, v, used = rows(seed, sq)
    return flash_attn_with_kvcache(q, k, v, **{"cache_seqlens": used} | options)


def with_packed_queries(seed):
    q, k, v, used, table = cache(seed, 3)
    return flash_attn_interface.flash_attn_with_kvcache(q.flatten(0, 1), k, v, cache_seqlens=used, page_table=table, causal=True,
                                                        cu_seqlens_q=ints(0, 2, 6), max_seqlen_q=4, return_softmax_lse=True)


def varlen_of_pages(seed, function=dfa.attention_varlen, **options):
    q, k, v, used, table = cache(seed, 2)
    k, v = in_e4m3(k, v, options.pop("e4m3", False))
    named = {"block_table": table} if function is dfa.attention_varlen else {"page_table": table}
    return function(q.flatten(0, 1), k, v, ints(0, 1, 4), seqused_k=used, causal=True, **named, **options)


def varlen(seed, function=dfa.attention_varlen, **options):
    q, k, v, cu = packed(seed)
    return function(q, k, v, cu, cu, 8, 8, causal=True, **options)


# name: a call whose tensors differ in values alone by its seed
SLOPES, SINKS = [0.5, 0.25, 0.125, 0.0625], [0.5, -1.0, 2.0, 0.0]
DOORS = {
    "attention": lambda seed: dfa.attention(*heads_first(seed), causal=True),
    "attention lse": lambda seed: dfa.attention(*heads_first(seed), window=(3, 0), return_lse=True),
    "sdpa": lambda seed: dfa.torch.scaled_dot_product_attention(*heads_first(seed), is_causal=True, enable_gqa=True),
    "sdpa scale": lambda seed: dfa.torch.scaled_dot_product_attention(*heads_first(seed), scale=0.5, enable_gqa=True),
    "sdpa fewer keys": lambda seed: dfa.torch.scaled_dot_product_attention(
        heads_first(seed)[0], *(x[:, :, :20] for x in heads_first(seed)[1:]), is_causal=True, enable_gqa=True),
    "sdpa more keys": lambda seed: dfa.torch.scaled_dot_product_attention(
        heads_first(seed)[0][:, :, :20], *heads_first(seed)[1:], is_causal=True, enable_gqa=True),
    "flash 2": lambda seed: flash_attn_func(*dense(seed), causal=True),
    "flash 2 lse": lambda seed: flash_attn_func(*dense(seed), window_size=(4, 4), return_attn_probs=True),
    "flash 2 one row": lambda seed: flash_attn_func(dense(seed)[0][:, :1], *dense(seed)[1:]),
    "flash 2 heads first": lambda seed: flash_attn_func(*(x.transpose(1, 2) for x in heads_first(seed))),
    "flash 3": lambda seed: flash_attn_interface.flash_attn_func(*dense(seed), causal=True),
    "flash 3 lse": lambda seed: flash_attn_interface.flash_attn_func(*dense(seed), return_attn_probs=True),
    "flash 4": lambda seed: cute.flash_attn_func(*dense(seed), causal=True),
    "flash 4 lse": lambda seed: cute.flash_attn_func(*dense(seed), window_size=(3, None), return_lse=True),
    "varlen": lambda seed: varlen(seed),
    "varlen lse": lambda seed: varlen(seed, return_lse=True, softcap=3.0),
    "varlen slopes": lambda seed: varlen(seed, alibi_slopes=torch.tensor(SLOPES).to("cuda" if GPU else "cpu")),
    "varlen sinks": lambda seed: varlen(seed, sinks=torch.tensor(SINKS).to("cuda" if GPU else "cpu"), seqused_k=ints((1, 2, 1)[seed], 1)),
    "varlen keys of q": lambda seed: dfa.attention_varlen(*packed(seed), causal=True),
    "varlen pages": lambda seed: varlen_of_pages(seed, return_lse=True),
    "flash 2 varlen": lambda seed: varlen(seed, flash_attn_varlen_func),
    "flash 2 varlen lse": lambda seed: varlen(seed, flash_attn_varlen_func, return_attn_probs=True),
    "flash 3 varlen": lambda seed: varlen(seed, flash_attn_interface.flash_attn_varlen_func, return_attn_probs=True),
    "flash 4 varlen": lambda seed: dfa.flash_attn.cute.flash_attn_varlen_func(*packed(seed)[:3], packed(seed)[3], packed(seed)[3]),
    "flash 4 varlen pages": lambda seed: varlen_of_pages(seed, cute.flash_attn_varlen_func, return_lse=True),
    "flash 2 pages": lambda seed: with_pages("2", seed, causal=True),
    "flash 2 pages lse": lambda seed: with_pages("2", seed, causal=True, sq=3, return_softmax_lse=True),
    "flash 2 pages slopes": lambda seed: with_pages("2", seed, alibi_slopes=torch.tensor(SLOPES).to("cuda" if GPU else "cpu")),
    "flash 3 pages": lambda seed: with_pages("3", seed, causal=True, softcap=5.0),
    "flash 3 pages metadata": lambda seed: with_pages("3", seed, scheduler_metadata=ints(seed)),
    "flash 3 pages e4m3": lambda seed: with_pages("3", seed, e4m3=True, k_descale=descale(seed), v_descale=descale(seed + 1)),
    "flash 3 pages e4m3 of heads": lambda seed: with_pages("3", seed, e4m3=True, k_descale=descale(seed)[:, :1], causal=True),
    "varlen pages e4m3": lambda seed: varlen_of_pages(seed, e4m3=True, v_descale=descale(seed)[:1]),
    "flash 3 pages packed": with_packed_queries,
    "cache": lambda seed: with_rows(seed, sq=2, causal=True),
    "cache lse": lambda seed: with_rows(seed, return_softmax_lse=True),
    "cache number": lambda seed: with_rows(seed, cache_seqlens=40 + seed, causal=True),
    "flash 3 pages number": lambda seed: with_pages("3", seed, number=True),
    "cache whole": lambda seed: with_rows(seed, cache_seqlens=None),
    "cache batches": lambda seed: with_rows(seed, cache_batch_idx=ints(1, 0)),
    "cache padded": lambda seed: with_rows(seed, cache_leftpad=ints(seed, 3), causal=True),
}


def listed(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("door", DOORS)
def test_a_call_made_again_gives_what_the_call_in_full_gives(door, monkeypatch):
    with torch.no_grad():
        wanted = []
        for seed in range(3):
            _torch_again.clear()
            wanted.append(listed(DOORS[door](seed)))
        made, recall = [], _torch_again.recall
        names = {module for module in (_torch_varlen, dfa._torch, dfa.torch, dfa.flash_attn, flash_attn_interface, cute)}

        def watch(key):
            outputs = recall(key)
            made.append((key[0], outputs is not None))
            return outputs
        for module in names:
            monkeypatch.setattr(module, "recall", watch)
        for seed, outputs in ((0, wanted[0]), (1, wanted[1]), (2, wanted[2]), (0, wanted[0])):
            made.clear()
            again = listed(DOORS[door](seed))
            assert made[0][1] and len(made) == 1  # the door's own call, and nothing in it
            assert len(again) == len(outputs)
            for x, y in zip(again, outputs):
                assert (x is None) == (y is None)
                if x is not None:
                    torch.testing.assert_close(x, y, rtol=0, atol=0)
                    assert x.stride() == y.stride() and x.is_inference() == y.is_inference()


def test_a_graph_does_not_record_what_may_be_forgotten(monkeypatch):
    """A dense cache's pages are made here and kept; a graph that read them would outlive them."""
    recorded = []
    monkeypatch.setattr(_torch_again, "is_recorded", lambda: bool(recorded))
    with torch.no_grad():
        for door in ("cache", "flash 2 pages"):
            _torch_again.clear()
            wanted = DOORS[door](0)
            kept = _torch_again.count()
            seen = []
            monkeypatch.setattr(dfa.flash_attn, "recall", lambda key: seen.append(_torch_again.recall(key)) or seen[-1])
            recorded.append(1)
            assert torch.equal(DOORS[door](0), wanted) and _torch_again.count() == kept == 1
            assert (seen[-1] is None) == (door == "cache")
            recorded.clear()
            assert torch.equal(DOORS[door](0), wanted) and seen[-1] is not None


@pytest.mark.parametrize("door", ["attention", "sdpa", "flash 2", "flash 3", "flash 4", "varlen", "flash 2 varlen"])
def test_in_full_where_autograd_learns(door, monkeypatch):
    DOORS[door](0)
    kept = _torch_again.count()
    assert kept >= 1
    seen = []
    draw = random
    monkeypatch.setitem(globals(), "random", lambda *shape, seed=0: seen.append(draw(*shape, seed=seed).requires_grad_()) or seen[-1])
    o = listed(DOORS[door](0))[0]
    assert o.requires_grad and _torch_again.count() == kept
    with torch.no_grad():
        assert not listed(DOORS[door](0))[0].requires_grad
    with torch.inference_mode():
        assert listed(DOORS[door](0))[0].is_inference()


@pytest.mark.parametrize("door, wrong, error", [
    (lambda **x: flash_attn_func(*dense(0), **x), {"causal": 1}, "causal"),
    (lambda **x: flash_attn_func(*dense(0), **x), {"window_size": (1.0, 0)}, "window"),
    (lambda **x: flash_attn_func(*dense(0), **x), {"return_attn_probs": 1}, "return_attn_probs"),
    (lambda **x: flash_attn_varlen_func(*packed(0), packed(0)[3], **x), {"return_attn_probs": 1}, "return_attn_probs"),
    (lambda **x: flash_attn_interface.flash_attn_func(*dense(0), **x), {"return_attn_probs": 0}, "return_attn_probs"),
    (lambda **x: cute.flash_attn_func(*dense(0), **x), {"return_lse": 0}, "return_lse"),
    (lambda **x: dfa.attention(*heads_first(0), **x), {"return_lse": 1}, "return_lse"),
    (lambda **x: dfa.attention(*heads_first(0), **x), {"deterministic": 1}, "deterministic"),
    (lambda **x: with_rows(0, **x), {"return_softmax_lse": 1}, "return_softmax_lse"),
    (lambda **x: flash_attn_interface.flash_attn_func(*dense(0), **x), {"num_splits": True}, "num_splits"),
    (lambda **x: flash_attn_interface.flash_attn_func(*dense(0), **x), {"qv": 1.0}, "qv"),
    (lambda **x: cute.flash_attn_func(*dense(0), **x), {"num_splits": -1}, "num_splits"),
    (lambda **x: dfa.torch.scaled_dot_product_attention(*heads_first(0), enable_gqa=True, **x), {"is_causal": 0}, "is_causal"),
    (lambda **x: dfa.torch.scaled_dot_product_attention(*heads_first(0), **x), {"enable_gqa": False}, "heads"),
    (lambda **x: with_pages("3", 0, **x), {"scheduler_metadata": 1.5}, "scheduler_metadata"),
    (lambda **x: with_pages("2", 0, **x), {"num_splits": True}, "num_splits"),
    (lambda **x: with_rows(0, **x), {"cache_seqlens": True}, "cache_seqlens")],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None)
def test_refusals_come_each_time(door, wrong, error):
    accepted = {"causal": True, "window_size": (1, 0), "return_attn_probs": True, "num_splits": 1, "qv": None, "is_causal": False,
                "enable_gqa": True, "scheduler_metadata": ints(0), "cache_seqlens": ints(3, 4), "return_lse": True,
                "deterministic": True, "return_softmax_lse": True}
    with torch.no_grad():
        door(**{name: accepted[name] for name in wrong})
        for _ in range(2):
            with pytest.raises((ValueError, TypeError), match=error):
                door(**wrong)


def test_a_memory_that_kernels_do_not_take_is_refused_each_time():
    """Checks of addresses are made in each call: of such a stride the first is aligned, the second not."""
    if not GPU:
        pytest.skip("processors take any address")
    memory = random(2 * 24 * 4 * 64 + 8)
    shape = 2, 24, 4, 64
    q, shifted = (memory[at:at + 2 * 24 * 4 * 64].view(shape) for at in (0, 1))
    flash_attn_func(q, q, q)
    with pytest.raises(ValueError, match="aligned"):
        flash_attn_func(shifted, q, q)


def test_nothing_of_a_call_is_kept_alive():
    q, k, v, used, table = cache(0)
    with torch.no_grad():
        for _ in range(2):
            flash_attn_with_kvcache(q, k, v, cache_seqlens=used, block_table=table, return_softmax_lse=True)
            flash_attn_func(q, q, q)
    gone = [weakref.ref(x) for x in (q, k, v, used, table)]
    del q, k, v, used, table
    gc.collect()
    assert not any(one() is not None for one in gone)


def test_at_most_so_many_calls_are_kept():
    with torch.no_grad():
        for n in range(1100):
            dfa.attention(*heads_first(0), scale=1.0 + n)
            assert _torch_again.count() <= 1024


def doors_with_keys():
    """(name, names of its parameters, names that its key has) of each function that recalls."""
    for module in (_torch_varlen, dfa._torch, dfa.torch, dfa.flash_attn, flash_attn_interface, cute):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.FunctionDef) or not any(
                    isinstance(x, ast.Call) and getattr(x.func, "id", "") == "recall" for x in ast.walk(node)):
                continue
            tuples = [x.value for x in ast.walk(node) if isinstance(x, ast.Assign) and isinstance(x.value, ast.Tuple)
                      and isinstance(x.value.elts[0], ast.Constant) and isinstance(x.value.elts[0].value, str)]
            assert len(tuples) == 1
            parameters = [x.arg for x in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            yield f"{module.__name__}.{node.name}", tuples[0].elts[0].value, parameters, {x.id for x in ast.walk(tuples[0]) if isinstance(x, ast.Name)}


def test_a_key_has_all_arguments_and_a_name_of_its_own():
    doors = list(doors_with_keys())
    assert len(doors) == 11
    assert len({name for _, name, _, _ in doors}) == len(doors)
    for door, _, parameters, named in doors:
        assert set(parameters) <= named, door
