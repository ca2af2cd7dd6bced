"""num_splits and batch_invariant at the doors that have them: what plans are asked, what is refused, and that no bit changes here."""

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
from dfa import _torch_paged, _torch_varlen, flash_attn  # noqa: E402
from dfa.flash_attn import flash_attn_interface  # noqa: E402
from dfa.torch import varlen_attn  # noqa: E402


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


Q = torch.randn(7, 4, 64, generator=torch.Generator().manual_seed(1))
K, V = torch.randn(2, 40, 2, 64, generator=torch.Generator().manual_seed(2))
CACHES = torch.randn(2, 5, 16, 2, 64, generator=torch.Generator().manual_seed(3))
BEGINS, KEY_BEGINS, USED, TABLE = int32(0, 1, 3, 7), int32(0, 9, 20, 40), int32(20, 3, 30), int32(4, 0, 2, -1, 1, 3).view(3, 2)


def packed(**options):
    return dfa.attention_varlen(Q, K, V, BEGINS, KEY_BEGINS, 4, 20, causal=True, return_lse=True, **options)


def paged(**options):
    return dfa.attention_varlen(Q, *CACHES, BEGINS, None, 4, 30, seqused_k=USED, block_table=TABLE, causal=True, return_lse=True, **options)


def cache_2(**options):
    return flash_attn.flash_attn_with_kvcache(Q[:3, None], *CACHES, cache_seqlens=USED, block_table=TABLE, causal=True,
                                              return_softmax_lse=True, **options)


def dense_cache(**options):
    return flash_attn.flash_attn_with_kvcache(Q[:5, None], *CACHES, cache_seqlens=9, causal=True, return_softmax_lse=True, **options)


def cache_3(**options):
    return flash_attn_interface.flash_attn_with_kvcache(Q, *CACHES, cache_seqlens=USED, page_table=TABLE, cu_seqlens_q=BEGINS,
                                                        max_seqlen_q=4, causal=True, return_softmax_lse=True, **options)


DOORS = packed, paged, cache_2, dense_cache, cache_3


@pytest.fixture
def lines(monkeypatch):
    """Problem lines of the plans that are asked for."""
    asked = []

    def recorded(plan_of):
        def plan(*question, **more):
            asked.append(plan_of(*question, **more).problem)
            return plan_of(*question, **more)
        return plan
    for module in (_torch_varlen, _torch_paged):
        monkeypatch.setattr(module, "plan_of", recorded(module.plan_of))
    return asked


@pytest.mark.parametrize("door", DOORS)
def test_what_is_said_comes_to_the_plan_and_changes_no_bit_here(door, lines):
    usual = door()
    assert "num_splits" not in lines[-1] and "batch_invariant" not in lines[-1]
    for options, said in (({"num_splits": 1}, " num_splits(1)"), ({"num_splits": 7}, " num_splits(7)"),
                          ({"batch_invariant": True}, " batch_invariant"),
                          ({"num_splits": 1, "batch_invariant": True}, " num_splits(1) batch_invariant")):
        assert all(map(torch.equal, door(**options), usual))
        assert lines[-1].endswith(said) or said + " strides" in lines[-1], lines[-1]
    assert all(map(torch.equal, door(num_splits=0, batch_invariant=False), usual)) and "num_splits" not in lines[-1]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("options, message", [
    ({"num_splits": -1}, "num_splits -1; accepted: 0"),
    ({"num_splits": 257}, "num_splits 257; accepted"),
    ({"num_splits": True}, "num_splits True; accepted"),
    ({"num_splits": 2.0}, "num_splits 2.0; accepted"),
    ({"batch_invariant": 1}, "batch_invariant is 1; accepted: True or False"),
    ({"batch_invariant": True, "num_splits": 2}, "num_splits 2 beside batch_invariant; accepted: 0 or 1"),
])
def test_what_is_refused_is_told_in_one_line(door, options, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        door(**options)
    assert "\n" not in str(caught.value)


def test_the_name_of_pytorch_takes_num_splits(lines):
    usual = varlen_attn(Q, K.repeat_interleave(2, 1), V.repeat_interleave(2, 1), BEGINS, KEY_BEGINS, 4, 20)
    for num_splits, said in ((None, False), (0, False), (1, True), (9, True)):
        o = varlen_attn(Q, K.repeat_interleave(2, 1), V.repeat_interleave(2, 1), BEGINS, KEY_BEGINS, 4, 20, num_splits=num_splits)
        assert torch.equal(o, usual) and (f"num_splits({num_splits})" in lines[-1]) == said
    with pytest.raises(ValueError, match="num_splits -2"):
        varlen_attn(Q, K, V, BEGINS, KEY_BEGINS, 4, 20, num_splits=-2, enable_gqa=True)


def test_gradients_are_the_same_beside_it():
    def gradients(**options):
        inputs = [x.double().float().requires_grad_() for x in (Q, K, V)]
        o, lse = dfa.attention_varlen(*inputs, BEGINS, KEY_BEGINS, 4, 20, causal=True, return_lse=True, **options)
        return torch.autograd.grad(o.square().sum() + lse[lse.isfinite()].sum(), inputs)
    for options in ({"num_splits": 1}, {"batch_invariant": True}):
        assert all(map(torch.equal, gradients(**options), gradients()))
    by_func = torch.func.grad(lambda q: dfa.attention_varlen(q, K, V, BEGINS, KEY_BEGINS, batch_invariant=True).square().sum())(Q)
    assert torch.equal(by_func, torch.func.grad(lambda q: dfa.attention_varlen(q, K, V, BEGINS, KEY_BEGINS).square().sum())(Q))


def test_compiled_calls_take_it():
    compiled = torch.compile(lambda q: dfa.attention_varlen(q, K, V, BEGINS, KEY_BEGINS, 4, 20, num_splits=1, batch_invariant=True),
                             fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(Q), dfa.attention_varlen(Q, K, V, BEGINS, KEY_BEGINS))


def test_lengths_of_a_plan_are_rounded_up_to_the_rows_there_are():
    assert [_torch_varlen.most_rows(most, 100) for most in (0, 1, 2, 3, 64, 65, 100, 101)] == [100, 1, 2, 4, 64, 100, 100, 100]


def test_problem_lines_say_it():
    line = "fwd bf16 hq4 hk2 d64 lens(1,2) page(16)"
    assert dfa.plan(line + " num_splits(3)", backend="cpu").problem.endswith("page(16) num_splits(3)")
    for rest, message in ((" num_splits(0)", "num_splits"), (" num_splits(257)", "num_splits"), (" num_splits(2) num_splits(2)", "second"),
                          (" num_splits(2) batch_invariant", "beside batch_invariant")):
        with pytest.raises(ValueError, match=message):
            dfa.plan(line + rest, backend="cpu")
    for wrong in ("fwd bf16 h1 s64 d64 batch_invariant", "fwd bf16 h1 s64 d64 num_splits(1)", "fwdbwd bf16 h1 d64 lens(1,2) num_splits(1)",
                  "bwd bf16 h1 d64 lens(1,2) batch_invariant"):
        with pytest.raises(ValueError, match="is of "):
            dfa.plan(wrong, backend="cpu")


def test_masks_of_dropout_go_by_the_number_of_a_sequence():
    with pytest.raises(ValueError, match="batch_invariant beside dropout_p"):
        packed(batch_invariant=True, dropout_p=0.1, seed=3)


def test_the_planner_is_asked_before_rows_are_written(monkeypatch):
    caches, new = CACHES.clone(), torch.ones(3, 1, 2, 64)
    def refuse(*_, **__):
        raise RuntimeError("no plan")
    monkeypatch.setattr(_torch_paged, "plan_of", refuse)
    with pytest.raises(RuntimeError, match="no plan"):
        flash_attn.flash_attn_with_kvcache(Q[:3, None], *caches, new, new, cache_seqlens=USED, block_table=TABLE)
    assert torch.equal(caches, CACHES)


def test_flash_attention_4s_functions_check_it():
    from dfa.flash_attn import cute
    with pytest.raises(ValueError, match="num_splits 'x'"):
        cute.flash_attn_func(*(x[None] for x in (Q, K, V)), num_splits="x")
