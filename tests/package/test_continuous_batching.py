"""transformers' continuous batching (generate_batch) by dfa: as a kernel of the hub, which it takes on processors too, and as the
scaled_dot_product_attention that "sdpa" calls. It refuses "dfa" by name, and so nothing else runs in silence."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import dfa.hub  # noqa: E402
import dfa.torch  # noqa: E402
import dfa.transformers  # noqa: E402
from test_hub import NAME, folder, front_end, models, named  # noqa: E402, F401

PROMPTS = [[7, 3, 9, 1, 4], [2] * 31, [11, 12], [2] * 31 + [5], [8, 9, 10, 11, 12, 13, 14]]


def batching(transformers, **options):
    return transformers.ContinuousBatchingConfig(page_size=8, num_blocks=64, max_batch_tokens=24, max_requests_per_batch=3,
                                                 auto_switch_to_flash=False, **options)


def generated(transformers, model, **options):
    """The tokens of each prompt; at most three requests run at once, in chunks of 24 tokens."""
    wanted = transformers.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)
    out = model.generate_batch(PROMPTS, generation_config=wanted, continuous_batching_config=batching(transformers, **options))
    assert [x.error for x in out.values()] == [None] * len(PROMPTS)
    return [x.generated_tokens for x in sorted(out.values(), key=lambda x: [*map(int, x.request_id.split("_")[1:])])]


def alone(model):
    """Of each prompt by itself, with eager attention."""
    answers = []
    for prompt in PROMPTS:
        x = torch.tensor([prompt])
        answers.append(model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=6, do_sample=False, eos_token_id=None,
                                      pad_token_id=0)[0, len(prompt):].tolist())
    return answers


@pytest.fixture
def calls(monkeypatch):
    """(rows of queries, rows of keys) of each packed call."""
    made, real = [], dfa.hub.attention_varlen

    def count(q, k, v, begins, begins_k, *rest, **options):
        made.append((begins.diff().tolist(), begins_k.diff().tolist()))
        return real(q, k, v, begins, begins_k, *rest, **options)
    monkeypatch.setattr(dfa.hub, "attention_varlen", count)
    return made


@pytest.mark.parametrize("kind, options", [("Llama", {}), ("Mistral", {"sliding_window": 11})])
def test_a_kernel_of_the_hub(front_end, calls, kind, options):
    eager, ours = models(front_end, kind, initializer_range=0.3, **options)
    wanted = alone(eager)
    assert generated(front_end, ours) == wanted
    assert any(len([n for n in q if n]) > 1 for q, _ in calls), "no call of several requests"
    assert any(0 < n < m for q, k in calls for n, m in zip(q, k) if n > 1), "no prompt went on in a second chunk"


def test_sdpa_by_ours(front_end, monkeypatch):
    eager, ours = models(front_end, initializer_range=0.3)
    ours.set_attn_implementation("sdpa")
    wanted, made = alone(eager), []
    with dfa.torch.enable():
        served = torch.nn.functional.scaled_dot_product_attention
        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                            lambda *x, **named: made.append(1) or served(*x, **named))
        assert generated(front_end, ours) == wanted
        monkeypatch.undo()
    assert made and served is not torch.nn.functional.scaled_dot_product_attention


def test_dfa_itself_is_refused_by_name(front_end):
    _, model = models(front_end)
    model.set_attn_implementation(dfa.transformers.register())
    with pytest.raises(ValueError, match="Implementation dfa is not supported for continuous batching"):
        model.generate_batch(PROMPTS, continuous_batching_config=batching(front_end))
