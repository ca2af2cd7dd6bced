"""Inputs of a cache that require a gradient, which no kernel computes: the forward answers, its outputs say that they require one, and
the backward raises. What flash-attn's own test_flash_attn_varlen_causal asks of pages is the first half."""

import pytest

torch = pytest.importorskip("torch")
dfa = pytest.importorskip("dfa")

import torch.autograd.forward_ad as forward_ad  # noqa: E402

import dfa.torch  # noqa: E402
from dfa import _torch_again, _torch_paged, flash_attn  # noqa: E402
from dfa.flash_attn import cute, flash_attn_interface  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
REFUSED = r"^the gradient of attention to a cache \(paged by block_table or page_table, or of flash_attn_with_kvcache\) is not computed; accepted: "


def int32(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Given:
    """q of two sequences, three rows each, and a cache that is dense, [2, 32, 2, 64], or two pages of 16 of each sequence."""

    def __init__(self, device="cpu", dtype=torch.float32):
        generator = torch.Generator().manual_seed(3)
        self.q, self.k, self.v = (torch.randn(*shape, generator=generator).to(device, dtype)
                                  for shape in ((2, 3, 4, 64), (2, 32, 2, 64), (2, 32, 2, 64)))
        self.new = [torch.randn(2, 3, 2, 64, generator=generator).to(device, dtype) for _ in range(2)]
        self.table, self.used = int32([[0, 1], [2, 3]], device), int32([20, 9], device)
        self.cu_q, self.cu_k = int32([0, 3, 6], device), int32([0, 20, 29], device)

    def packed(self, tensors):
        q, k, v = tensors
        return q.flatten(0, 1), *(x.view(4, 16, 2, 64) for x in (k, v))


DOORS = {
    "attention_varlen": lambda g, *x: dfa.attention_varlen(*g.packed(x), g.cu_q, seqused_k=g.used, block_table=g.table, return_lse=True),
    "flash2 varlen": lambda g, *x: flash_attn.flash_attn_varlen_func(*g.packed(x), g.cu_q, g.cu_k, 3, 20, causal=True, block_table=g.table,
                                                                     return_attn_probs=True)[:2],
    "flash4 varlen": lambda g, *x: cute.flash_attn_varlen_func(*g.packed(x), g.cu_q, seqused_k=g.used, page_table=g.table, return_lse=True),
    "varlen_attn": lambda g, *x: (dfa.torch.varlen_attn(*g.packed(x), g.cu_q, None, 3, 20, enable_gqa=True, seqused_k=g.used,
                                                        block_table=g.table),) * 2,
    "flash2 kvcache": lambda g, *x: flash_attn.flash_attn_with_kvcache(*x, cache_seqlens=g.used, return_softmax_lse=True),
    "flash3 kvcache": lambda g, q, k, v: flash_attn_interface.flash_attn_with_kvcache(
        q, *(x.view(4, 16, 2, 64) for x in (k, v)), page_table=g.table, cache_seqlens=g.used, causal=True, return_softmax_lse=True),
}


def appended(given, q, k, v, **more):
    return flash_attn.flash_attn_with_kvcache(q, k, v, *given.new, cache_seqlens=given.used, causal=True, return_softmax_lse=True, **more)


def is_refused(output, *learned):
    assert output.requires_grad
    with pytest.raises(NotImplementedError, match=REFUSED):
        output.float().sum().backward()
    assert all(x.grad is None for x in learned)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("door, learned", [*((door, at) for door in DOORS for at in range(3)), ("new rows", 0)])
def test_the_forward_answers_and_the_backward_does_not(device, door, learned):
    given = Given(device, torch.float16 if device == "cuda" else torch.float32)
    tensors, call = [given.q, given.k, given.v], DOORS.get(door, appended)
    wanted = call(given, *tensors)
    assert not any(x.requires_grad for x in wanted)
    tensors[learned] = tensors[learned].clone().requires_grad_()
    for _ in range(2):
        o, lse = call(given, *tensors)
        assert torch.equal(o, wanted[0]) and torch.equal(lse, wanted[1])
        for output in (o, lse):
            is_refused(output, tensors[learned])
    with torch.no_grad():
        assert not any(x.requires_grad for x in call(given, *tensors))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("door", ["flash2 varlen", "flash3 kvcache"])
def test_compiled(backend, door):
    torch._dynamo.reset()
    given = Given()
    compiled = torch.compile(lambda q, k, v: DOORS[door](given, q, k, v), backend=backend, fullgraph=True)
    q = given.q.clone().requires_grad_()
    wanted = DOORS[door](given, given.q, given.k, given.v)
    o, lse = compiled(q, given.k, given.v)
    assert torch.equal(o, wanted[0])
    is_refused(o, q)
    is_refused(compiled(q, given.k, given.v)[1], q)
    with torch.inference_mode():
        assert not compiled(q, given.k, given.v)[0].requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_have_nothing_to_do_with_it(monkeypatch, mode):
    given, made = Given(), []
    monkeypatch.setattr(_torch_paged, "undifferentiated", lambda *_: made.append(1))
    monkeypatch.setattr("dfa._torch_kvcache.undifferentiated", lambda *_: made.append(1))
    q = given.q.clone().requires_grad_()
    for call in DOORS.values():
        with mode():
            call(given, q, given.k, given.v)
        call(given, given.q, given.k, given.v)
    assert made == []


def test_a_call_with_a_gradient_is_not_kept_to_be_made_again():
    given = Given()
    q = given.q.clone().requires_grad_()
    _torch_again.clear()
    for door in DOORS.values():
        door(given, q, given.k, given.v)
    assert _torch_again.count() == 0


def test_rows_that_are_written_before_the_backward():
    """PyTorch would speak of a tensor that was modified, if the cache were kept for it."""
    given = Given()
    q = given.q.clone().requires_grad_()
    o, _ = appended(given, q, given.k, given.v)
    appended(given, given.q, given.k, given.v)
    is_refused(o, q)


@pytest.mark.parametrize("name", ["k_cache", "v_cache", "k", "v"])
def test_what_is_written_to_a_cache_requires_no_gradient(name):
    given = Given()
    named = {"k_cache": given.k, "v_cache": given.v, "k": given.new[0], "v": given.new[1]}
    kept = {key: x.clone() for key, x in named.items()}
    named[name] = named[name].clone().requires_grad_()
    with pytest.raises(ValueError, match=f"^{name} requires a gradient, which rows that are written to a cache have none of; accepted"):
        flash_attn.flash_attn_with_kvcache(given.q, **named, cache_seqlens=given.used)
    assert all(torch.equal(x, kept[key]) for key, x in named.items())
    with torch.no_grad():
        flash_attn.flash_attn_with_kvcache(given.q, **named, cache_seqlens=given.used)
    assert not torch.equal(named["k_cache"], kept["k_cache"])


def test_sinks_a_scale_and_no_rows():
    given = Given()
    q, k, v = given.packed((given.q, given.k, given.v))
    named = {"seqused_k": given.used, "block_table": given.table}
    for more in ({"sinks": torch.ones(4, requires_grad=True)}, {"scale": torch.tensor(0.1, requires_grad=True)}):
        is_refused(dfa.attention_varlen(q, k, v, given.cu_q, **named, **more), *more.values())
    nothing = q[:0].clone().requires_grad_()
    is_refused(dfa.attention_varlen(nothing, k, v, int32([0, 0, 0]), **named), nothing)


def test_tangents_and_torch_func_are_refused_as_ever():
    given = Given()
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode derivatives"):
        q = forward_ad.make_dual(given.q.clone().requires_grad_(), torch.ones_like(given.q))
        DOORS["flash2 kvcache"](given, q, given.k, given.v)
    with pytest.raises(RuntimeError, match="transforms of a cache are not supported"):
        torch.func.grad(lambda q: DOORS["flash2 kvcache"](given, q, given.k, given.v)[0].sum())(given.q)
