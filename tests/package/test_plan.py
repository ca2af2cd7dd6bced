"""Plans and backends as Python sees them."""

import pytest

import dfa


def test_a_plan_explains_itself():
    plan = dfa.plan("fwdbwd bf16 causal b1 h2 s256 d64", backend="cpu", threads=1)
    assert plan.problem.startswith("fwdbwd bf16 causal b1 hq2 hk2 sq256 sk256 d64")
    assert plan.backend == "cpu" and plan.threads == 1
    assert plan.forward_flops == 4 * 2 * 256 * 256 * 64 / 2  # half, for a causal mask
    for text in (plan.problem, plan.why, plan.config, plan.backward_config):
        assert text and text in str(plan)


def test_errors_keep_their_text():
    with pytest.raises(ValueError, match="fp12"):
        dfa.plan("fwd fp12 b1 h1 s8 d8")
    with pytest.raises(ValueError, match="backend 'tpu'"):
        dfa.plan("fwd fp32 b1 h1 s8 d8", backend="tpu")
    with pytest.raises(RuntimeError, match="cpu"):
        dfa.plan("fwd tf32 b1 h1 s8 d64", backend="cpu")


def test_a_configuration_of_the_other_pass_is_refused():
    for line, config in (("fwd fp32 b1 h1 s8 d8", "BackwardConfig{.block_q=32}"), ("bwd fp32 b1 h1 s8 d8", "ForwardConfig{.block_q=32}")):
        with pytest.raises(ValueError, match="is of the other pass than"):
            dfa.plan(line, config=config, backend="cpu")
    assert "block_q=32" in dfa.plan("fwdbwd fp32 b1 h1 s8 d8", config="ForwardConfig{.block_q=32}", backend="cpu").config


def test_what_is_no_text_is_told_so():
    with pytest.raises(TypeError, match="problem is int; accepted: a problem line"):
        dfa.plan(3)
    with pytest.raises(TypeError, match="policy is int; accepted: a text"):
        dfa.Policy(3)
    for name in ("backend", "algorithm", "config"):
        with pytest.raises(TypeError, match=f"^{name} is int; accepted: text$"):
            dfa.plan("fwd fp32 b1 h1 s8 d8", **{name: 3})
    for threads in (-1, 1025, 2 ** 40, 1.0, True, "2"):
        with pytest.raises(ValueError, match="^threads .*; accepted: 1 to 1024, or 0 for all$"):
            dfa.plan("fwd fp32 b1 h1 s8 d8", threads=threads)
    with pytest.raises(TypeError, match="^device is int; accepted: text$"):
        dfa.EnergyMeter(3)


def test_every_backend_is_there_or_says_why_not():
    backends = dfa.backends()
    assert {"cpu", "cuda", "reference"} <= set(backends)
    assert backends["cpu"][0] and all(text for _, text in backends.values())
